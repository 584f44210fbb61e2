"""What outputs say of a contest under load."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from bakeoff.commands.run import exit_status
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.load_samples import ServingSettings as Settings
from bakeoff.records.load_samples import TriedSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import AroundCall, Record
from bakeoff.reports import headline, load_report
from bakeoff.reports.charts import Palette, of_contest
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_markdown
from bakeoff.reports.writer import render
from tests.judging.test_load import carrying, window
from tests.reports.samples import once, report

BEST = Settings(instances=2, threads=1, batch=4, wait_ms=2.0, options={"hint": "THROUGHPUT"})
TRIED = [
    TriedSettings(settings=Settings(threads=2), value=380.0, windows=[window(380.0), window(420.0, p99_ms=90.0)]),
    TriedSettings(settings=BEST, value=410.0),
]


UNSOAKED = "only eager could be ranked, and openvino may carry more, at a rate that was not soaked"


def records() -> list[Record]:
    soak = [window(420.0, p99_ms=19.0, resident_bytes=2**29, joules=36.0, energy_source="RAPL") for _ in range(6)]
    return [
        carrying("openvino", [410, 414, 409], 2.0, settings=BEST, tried=TRIED, soak=soak, left_out=["no batches"]),
        carrying("onnx", [350, 352, 349], 1.0),
    ]


@pytest.fixture(scope="module")
def judgement() -> Judgement:
    request = {"load": "server", "price": "3.6/h"}
    return judge(report(records()).model_copy(update={"request": request}))


def test_the_verdict_has_rates_and_intervals(judgement: Judgement) -> None:
    found = load_report.sentences(judgement.contests[0])
    assert found[0].startswith("Under load openvino, 413 ±") and found[0].endswith(", sure winner.")
    assert "requests/s at p99 < 20 ms" in found[0]
    assert found[1] == f"openvino serves best with {load_report.settings(BEST)}."


def test_one_process_of_each_is_told_as_the_reason_why_nothing_is_decided() -> None:
    made = [carrying("onnx", [4000]), carrying("eager", [350])]
    said = load_report.sentences(judge(report(made)).contests[0])[0]
    assert said.startswith("Under load onnx or eager, 4,0")
    assert said.endswith(", undecided, as one process of each does not decide.")
    said = load_report.sentences(judge(report(made, complete=False)).contests[0])[0]
    why = "(the run was interrupted. bakeoff resume measures on, and unfinished processes anew)."
    assert said.endswith(f", undecided {why}")


def test_a_run_in_which_no_cell_holds_the_objective_fails() -> None:
    held, missed = carrying("onnx", [500, 501, 502]), carrying("eager", [])
    assert exit_status(judge(report([held, missed]))) == 0
    assert exit_status(judge(report([missed]))) == 1


def test_a_cell_that_holds_no_soak_carries_nothing() -> None:
    """No output has a rate for it, and the run fails if there is no other cell."""
    lower = [window(rate, p99_ms=24.0) for rate in (378.0, 294.0, 210.0, 147.0) for _ in range(2)]
    missed = carrying("openvino", [410, 414, 409], soak=[window(420.0, p99_ms=25.0)] * 6, lower_soak=lower)
    found = judge(report([missed]))
    said = load_report.sentences(found.contests[0])
    why = "it does not hold the objective for long, even at 147 requests/s"
    assert said[0] == f"Under load nothing could be ranked (openvino: {why})."
    assert not any("413" in text or "serves best" in text for text in (*said, to_markdown(found)))
    (answer,) = answer_of(found, Path("run")).contests
    assert (answer.outcome, answer.winner, answer.value) == ("nothing ranked", None, None)
    assert answer.under_load is not None and not answer.under_load.values
    assert exit_status(found) == 1
    quick, slow = carrying("onnx", [500, 501, 502]), carrying("eager", [200, 201, 199])
    assert exit_status(judge(report([missed, slow]))) == 0
    assert "may carry more" not in headline.line(judge(report([missed, quick])).contests[0]), "it missed at less"


def test_a_run_that_is_interrupted_before_lower_soaks_ranks_by_turns() -> None:
    missed = carrying("onnx", [500, 501, 502], soak=[window(500.0, p99_ms=25.0)] * 6)
    made = [missed, carrying("eager", [200, 201, 199])]
    (so_far,) = judge(report(made, complete=False)).contests
    assert so_far.load is not None and so_far.load.answer.winner == "onnx"
    assert "onnx" in headline.line(so_far) and "it does not hold even 500 requests/s for long" in headline.line(so_far)
    assert "sure" not in headline.certainty(so_far)
    (ended,) = judge(report(made)).contests
    assert ended.load is not None and ended.load.answer.winner == "eager"


def test_rates_of_whole_requests_have_no_sum_of_stages_beside_them() -> None:
    around = [AroundCall(name="before", process=0, calls=10, median_ms=20.0)]
    made = [each.model_copy(update={"around": around}) for each in records()]
    assert "whole requests" not in headline.line(judge(report(made)).contests[0])
    single = [each.model_copy(update={"load": None}) for each in made]
    assert "whole requests" in headline.line(judge(report(single)).contests[0])


def test_it_says_when_another_cell_wins_at_single_calls(judgement: Judgement) -> None:
    assert "not the fastest at single calls, which is onnx" in " ".join(load_report.sentences(judgement.contests[0]))
    same = judge(report([carrying("onnx", [500, 501, 502], 1.0), carrying("eager", [350, 352, 349], 2.0)]))
    assert "single calls" not in " ".join(load_report.sentences(same.contests[0]))


@pytest.mark.parametrize(
    ("lower", "told", "brief"),
    [
        ([], "at 420 requests/s (25.00 ms over 15 s).", UNSOAKED),
        ([(378.0, 14.0)], "(25.00 ms over 15 s). It held at 378 requests/s (14.00 ms over 5.0 s).",
         "but it holds only 378 requests/s for long"),
        ([(378.0, 24.0), (294.0, 14.0)], "and 378 requests/s (24.00 ms over 5.0 s). It held at 294 requests/s (14.00 "
         "ms over 5.0 s).", "but it holds only 294 requests/s for long"),
        ([(378.0, 24.0), (294.0, 23.0)], "378 requests/s (24.00 ms over 5.0 s) and 294 requests/s (23.00 ms over 5.0 "
         "s).", UNSOAKED),
    ],
)  # fmt: skip
def test_a_rate_that_does_not_last_has_one_that_does_beside_it(
    lower: list[tuple[float, float]], told: str, brief: str
) -> None:
    soak = [window(420.0, p99_ms=25.0)] * 6
    at_less = [window(rate, p99_ms=p99_ms) for rate, p99_ms in lower for _ in range(2)]
    records = [
        carrying("openvino", [410, 414, 409], 2.0, soak=soak, lower_soak=at_less), carrying("eager", [200, 201, 199])
    ]  # fmt: skip
    contest = judge(report(records)).contests[0]
    found = load_report.sentences(contest)
    assert any("does not hold the objective for long" in one and one.endswith(told) for one in found), found
    assert headline.line(contest).endswith(brief)
    for_long = re.findall(r"p99 < 20 ms \((\d+) for long\), 2", found[0])
    assert for_long == ([] if brief == UNSOAKED else re.findall(r"only (\d+)", brief))


@pytest.mark.parametrize(
    ("p99_ms", "told"),
    [
        (18.0, "The soak of onnx ran at 4,561 requests/s, and does not show that it carries 5,429 for long."),
        (25.0, "(14.00 ms over 5.0 s). It missed at less than the 5,429 requests/s of all its turns."),
    ],
)
def test_a_soak_at_a_lower_rate_is_told_with_both_rates(p99_ms: float, told: str, tmp_path: Path) -> None:
    soaks = {"soak": [window(4560.9, p99_ms=p99_ms)] * 6, "lower_soak": [window(4104.8, p99_ms=14.0)] * 2}
    record = carrying("onnx", [5400, 5402, 5401], **soaks, ceiling=None)
    found = judge(report([record]))
    assert sum(one.endswith(told) for one in load_report.sentences(found.contests[0])) == 1
    assert "rate of the soak" in to_markdown(found) and "4,561" in to_markdown(found)
    render(found, tmp_path, figures=False)
    (row,) = csv.DictReader((tmp_path / "load.csv").read_text().splitlines())
    assert float(row["soak_requests_per_s"]) == 4560.9
    near = load_report.sentences(judge(report(records())).contests[0])
    assert not any("soak" in one for one in near), "420 is no less than 413"


@pytest.mark.parametrize(
    ("rates", "certainty"),
    [([8000, 8010, 7990], "but"), ([12_000, 11_990, 12_030], "tie, and"), ([5500, 12_000, 25_000], "undecided, and")],
)
def test_an_answer_near_the_ceiling_of_the_generator_says_so(rates: list[float], certainty: str) -> None:
    near = {"ceiling": 22_789.4}
    made = [carrying("onnx", [12_000, 12_010, 11_990], **near), carrying("eager", rates, 2.0, ceiling=1e6)]
    (contest,) = judge(report(made)).contests
    assert headline.line(contest).endswith(f"{certainty} the load generator may be the limit of onnx")
    assert headline.is_unsure(contest)
    (told,) = [one for one in load_report.sentences(contest) if "generator itself" in one]
    assert "reaches 22,789 requests/s here" in told and re.search(r"onnx's 12,0\d\d requests/s\.$", told)


def test_settings_are_said_in_words() -> None:
    assert load_report.settings(BEST) == "2 instances x 1 thread, batches of up to 4 within 2 ms, hint THROUGHPUT"
    assert load_report.settings(Settings(threads=2)) == "1 instance x 2 threads"


def test_the_csv_has_a_row_for_each_cell(judgement: Judgement, tmp_path: Path) -> None:
    render(judgement, tmp_path, figures=False)
    rows = list(csv.DictReader((tmp_path / "load.csv").read_text().splitlines()))
    assert [(row["backend"], row["rank"]) for row in rows] == [("openvino", "1"), ("onnx", "2")]
    assert float(rows[0]["requests_per_s"]) == pytest.approx(413, abs=1)
    assert float(rows[0]["price_per_million"]) == pytest.approx(1e-3 / 413 * 1e6, rel=0.01)


def test_the_chart_has_every_window_and_the_objective(judgement: Judgement) -> None:
    contest = judgement.contests[0]
    palette = Palette(row.record for row in contest.cells)
    (chart,) = [each for each in of_contest(contest, palette, judgement.report) if each.name == "load"]
    assert len(chart.marks) == sum(len(cell.points) for cell in contest.load.cells) + 1  # type: ignore[union-attr]
    assert "p99 < 20 ms" in chart.marks[-1].tip
    assert any("onnx at" in mark.tip for mark in chart.marks)


def test_a_contest_without_load_says_nothing_of_it() -> None:
    contest = judge(report([once(1.0, "eager")])).contests[0]
    assert load_report.sentences(contest) == [] and load_report.tables(contest) == []


def test_cells_that_carried_nothing_have_their_reason() -> None:
    nothing = carrying("onnx", [], scenario=Scenario.SERVER, settings=None, reason="p99 < 20 ms does not hold")
    (sentence,) = load_report.sentences(judge(report([nothing])).contests[0])
    assert sentence == "Under load nothing could be ranked (onnx: p99 < 20 ms does not hold)."


def test_cells_without_a_turn_have_what_they_carried_by_a_first_look() -> None:
    looked = carrying("openvino", [], settings=BEST, tried=TRIED)
    (sentence, *_) = load_report.sentences(judge(report([looked])).contests[0])
    told = "no turn yet, but 410 requests/s by a first look"
    rule = "First looks rank nothing: cells are compared in turns, side by side."
    assert sentence == f"Under load nothing could be ranked (openvino: {told}). {rule}"
    searching = carrying("openvino", [], settings=None, tried=[*TRIED[::-1]])
    assert load_report.sentences(judge(report([searching])).contests[0]) == [sentence]


def test_the_answer_for_programs_has_values_and_settings(judgement: Judgement, tmp_path: Path) -> None:
    answer = answer_of(judgement, tmp_path).contests[0].under_load
    assert answer is not None and answer.winner == "openvino"
    assert answer.values["onnx"] == pytest.approx(352, abs=1) and answer.settings["openvino"] == BEST


def test_an_interval_that_is_wide_has_both_ends() -> None:
    wide = judge(report([carrying("onnx", [200, 500, 800])])).contests[0].load
    assert wide is not None and "[" in load_report.verdict(wide) and "±" not in load_report.verdict(wide)
