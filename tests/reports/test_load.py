"""What outputs say of a contest under load. Sentences are held against `golden/load.txt`."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from bakeoff.commands.run import exit_status
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.load_samples import ServingSettings as Settings
from bakeoff.records.load_samples import TriedSettings
from bakeoff.records.schema import AroundCall, Record
from bakeoff.reports import headline, load_report
from bakeoff.reports.charts import Palette, of_contest
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_markdown
from bakeoff.reports.writer import render
from tests.judging.test_load import carrying, window
from tests.reports.samples import once, report
from tests.support.golden import same_as_golden

BEST = Settings(instances=2, threads=1, batch=4, wait_ms=2.0, options={"hint": "THROUGHPUT"})
TRIED = [
    TriedSettings(settings=Settings(threads=2), value=380.0, windows=[window(380.0), window(420.0, p99_ms=90.0)]),
    TriedSettings(settings=BEST, value=410.0),
]


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


def soaked(*at_less: tuple[float, float]) -> list[Record]:
    """Return a cell that misses in its soak at 420 requests/s, with a p99 in ms for each lower rate, and a slow one."""
    lower = [window(rate, p99_ms=p99_ms) for rate, p99_ms in at_less for _ in range(2)]
    soak = [window(420.0, p99_ms=25.0)] * 6
    return [carrying("openvino", [410, 414, 409], 2.0, soak=soak, lower_soak=lower), SLOW]


def soaked_at_less(p99_ms: float) -> list[Record]:
    soaks = {"soak": [window(4560.9, p99_ms=p99_ms)] * 6, "lower_soak": [window(4104.8, p99_ms=14.0)] * 2}
    return [carrying("onnx", [5400, 5402, 5401], **soaks, ceiling=None)]


def near_the_ceiling(*rates: float) -> list[Record]:
    near = carrying("onnx", [12_000, 12_010, 11_990], ceiling=22_789.4)
    return [near, carrying("eager", rates, 2.0, ceiling=1e6)]


SLOW, QUICK = carrying("eager", [200, 201, 199]), carrying("onnx", [500, 501, 502])
NOT_HELD = soaked((378.0, 24.0), (294.0, 24.0), (210.0, 24.0), (147.0, 24.0))[0]
HELD_BY_TURNS = carrying("onnx", [500, 501, 502], soak=[window(500.0, p99_ms=25.0)] * 6)
CASES: dict[str, list[Record]] = {
    "decided": records(),
    "as fast at single calls": [QUICK, carrying("eager", [350, 352, 349], 2.0)],
    "one process": [carrying("onnx", [4000]), carrying("eager", [350])],
    "a wide interval": [carrying("onnx", [200, 500, 800])],
    "no soak": soaked(),
    "a lower soak held": soaked((378.0, 14.0)),
    "the second lower soak held": soaked((378.0, 24.0), (294.0, 14.0)),
    "no lower soak held": soaked((378.0, 24.0), (294.0, 23.0)),
    "no soak of the only one held": [NOT_HELD],
    "no soak held, and another is quicker": [NOT_HELD, QUICK],
    "interrupted before lower soaks": [HELD_BY_TURNS, SLOW],
    "a soak at less than the turns": soaked_at_less(18.0),
    "a soak at less than the turns was missed": soaked_at_less(25.0),
    "near the generator's ceiling": near_the_ceiling(8000, 8010, 7990),
    "a tie near the generator's ceiling": near_the_ceiling(12_000, 11_990, 12_030),
    "open near the generator's ceiling": near_the_ceiling(5500, 12_000, 25_000),
    "nothing holds": [carrying("onnx", [], settings=None, reason="p99 < 20 ms does not hold")],
    "a first look": [carrying("openvino", [], settings=BEST, tried=TRIED)],
    "a first look that goes on": [carrying("openvino", [], settings=None, tried=[*TRIED[::-1]])],
    "no load": [once(1.0, "eager")],
}


def test_contests_under_load_are_told_as_before() -> None:
    lines = []
    for (name, made), complete in itertools.product(CASES.items(), (True, False)):
        (contest,) = judge(report(made, complete=complete)).contests
        said = [headline.line(contest), *load_report.sentences(contest)]
        lines += [f"{name}{'' if complete else ', so far'}: {one}" for one in said]
    same_as_golden("load.txt", "\n".join(lines))


def test_a_run_in_which_no_cell_holds_the_objective_fails() -> None:
    held, missed = carrying("onnx", [500, 501, 502]), carrying("eager", [])
    assert exit_status(judge(report([held, missed]))) == 0
    assert exit_status(judge(report([missed]))) == 1


def test_a_cell_that_holds_no_soak_carries_nothing() -> None:
    """No output has a rate for it, and the run fails if there is no other cell."""
    found = judge(report([NOT_HELD]))
    assert "413" not in to_markdown(found)
    (answer,) = answer_of(found, Path("run")).contests
    assert (answer.outcome, answer.winner, answer.value) == ("nothing ranked", None, None)
    assert answer.under_load is not None and not answer.under_load.values
    assert exit_status(found) == 1 and exit_status(judge(report([NOT_HELD, SLOW]))) == 0


def test_a_run_that_is_interrupted_before_lower_soaks_ranks_by_turns() -> None:
    for complete, winner in ((False, "onnx"), (True, "eager")):
        (contest,) = judge(report([HELD_BY_TURNS, SLOW], complete=complete)).contests
        assert contest.load is not None and contest.load.answer.winner == winner


def test_the_rate_of_a_soak_is_in_the_tables(tmp_path: Path) -> None:
    found = judge(report(soaked_at_less(18.0)))
    assert "rate of the soak" in to_markdown(found) and "4,561" in to_markdown(found)
    render(found, tmp_path, figures=False)
    (row,) = csv.DictReader((tmp_path / "load.csv").read_text().splitlines())
    assert float(row["soak_requests_per_s"]) == 4560.9


def test_rates_of_whole_requests_have_no_sum_of_stages_beside_them() -> None:
    around = [AroundCall(name="before", process=0, calls=10, median_ms=20.0)]
    made = [each.model_copy(update={"around": around}) for each in records()]
    assert "whole requests" not in headline.line(judge(report(made)).contests[0])
    single = [each.model_copy(update={"load": None}) for each in made]
    assert "whole requests" in headline.line(judge(report(single)).contests[0])


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


def test_the_answer_for_programs_has_values_and_settings(judgement: Judgement, tmp_path: Path) -> None:
    answer = answer_of(judgement, tmp_path).contests[0].under_load
    assert answer is not None and answer.winner == "openvino"
    assert answer.values["onnx"] == pytest.approx(352, abs=1) and answer.settings["openvino"] == BEST


def test_a_contest_without_load_has_no_tables_of_it() -> None:
    assert load_report.tables(judge(report([once(1.0, "eager")])).contests[0]) == []
