"""The answer in one line, to what was asked, and in the paragraph that begins the report.

What each case says is held against `golden/headlines.txt`.
"""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from bakeoff.judging.contest import judge_contest
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.ranking import undecided
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Interval, Ratio, Record
from bakeoff.reports import doubt_sentences, headline, number_format, sentences
from bakeoff.reports.columns import columns_of
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.first_screen import first_screen
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_page, to_short_markdown
from tests.judging import test_generation as generations
from tests.judging import test_metrics as metrics
from tests.judging.test_load import carrying
from tests.reports.samples import LAYOUTS, cell, judged, ok, once, over_processes, steady
from tests.support.golden import same_as_golden
from tests.support.printed import every_output, reported


def line(judgement: Judgement) -> str:
    return headline.line(judgement.contests[-1])


def pair(onnx_ms: list[float], eager_ms: list[float], build_s: float = 0.0) -> list[Record]:
    return [ok(cell("onnx"), steady(onnx_ms), build_s=build_s), ok(cell("eager"), steady(eager_ms))]


def evaluated(scores: list[float], require: str = "top1>-1%") -> Judgement:
    """A run in which a fast build has these scores, and the reference knows nine of ten samples."""
    theirs = [0.0 if place % 10 == 0 else 1.0 for place in range(len(scores))]
    return judged(
        [metrics.measured("onnx", scores, theirs), metrics.measured("eager", theirs, theirs, ms=2.0)],
        request={"require": require},
    )


APART = ok(cell(), over_processes(10.0, (1.0, 1.5, 2.0, 2.5, 3.0)))
TO_BUILD = [once(1.0, "onnx", build_s=20.0), once(2.0, "eager")]
BETTER = [0.0 if place % 10 == 0 and place > 10 else 1.0 for place in range(1000)]
AS_GOOD = [float(place % 10 > 0) for place in range(1000)]
CLOSE_MS = [1.06, 0.97, 1.05, 0.96, 1.05, 0.98, 1.04, 0.97, 1.05]
CASES: dict[str, Callable[[], Judgement]] = {
    "a lead of two processes": lambda: judged(pair([1.0, 1.0], [4.48, 4.95])),
    "a lead that is not sure": lambda: judged(pair([1.0, 1.0], [1.5, 9.0])),
    "a baseline that varies": lambda: judged([ok(cell("onnx"), over_processes(1.0, LAYOUTS)), APART]),
    "load": lambda: judged([carrying("onnx", [500, 501, 502], 1.0), carrying("eager", [250, 251, 249], 2.0)]),
    "open load": lambda: judged([carrying("onnx", [504, 380, 450], 1.0), carrying("eager", [380, 504, 450], 2.0)]),
    "generation": lambda: generations.judged(
        *generations.both(100.0, 10.0, "eager"), *generations.both(80.0, 5.0, "inductor")
    ),
    "many calls": lambda: judged(TO_BUILD, request={"calls": 100_000}),
    "few calls": lambda: judged(TO_BUILD, request={"calls": 10}),
    "a better metric": lambda: evaluated(BETTER),
    "a metric that is as good": lambda: evaluated(AS_GOOD, ""),
    "a plain metric": lambda: judged([metrics.measured("onnx", 0.9, 0.90001)]),
    "a negative metric": lambda: judged(
        [metrics.measured("onnx", -3.0, -2.0), metrics.measured("eager", -2.0, -2.0, ms=2.0)]
    ),
    "few samples": lambda: evaluated([0.0, *[1.0] * 7]),
    "close after eight processes": lambda: judged(pair([1.0] * 8, CLOSE_MS[:8])),
    "close after nine processes": lambda: judged(pair([1.0] * 9, CLOSE_MS)),
}


def test_contests_are_answered_as_before() -> None:
    lines = []
    for name, made in CASES.items():
        contest = made().contests[-1]
        lines += [f"{name}: {headline.line(contest)}", f"{name}: {sentences.paragraph(contest)}"]
    same_as_golden("headlines.txt", "\n".join(lines))


def test_a_total_over_calls_is_the_first_sentence_and_what_a_single_call_leaves_open_is_said_of_that(
    tmp_path: Path,
) -> None:
    calls_ms = {"onnx": [1.0, 1.05], "openvino": [1.03, 1.0], "eager": [2.0, 2.0]}
    made = [ok(cell(name), steady(levels), build_s=20.0 * (name != "eager")) for name, levels in calls_ms.items()]
    judgement = judged(made, request={"calls": 10})
    (contest,) = judgement.contests
    assert "At single calls, no winner yet between " in sentences.paragraph(contest)
    answer = answer_of(judgement, tmp_path).contests[0]
    by_effect = answer.doubts_by_effect
    assert answer.doubts_of_winner == by_effect["winner"] == [] and len(by_effect["winner_at_single_calls"]) == 1
    assert sorted(doubt for doubts in by_effect.values() for doubt in doubts) == sorted(answer.doubts)
    for text in (to_short_markdown(judgement, tmp_path), to_page(judgement)):
        assert "What could change the winner at single calls" in text and "nothing was found that could" in text
        assert "more time would settle" not in text
    of_calls = answer_of(judged(made), tmp_path).contests[0]
    assert of_calls.doubts_of_winner == of_calls.doubts_by_effect["winner"] != []


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.9, 2.1, "2.00x eager"),
        (1.2, 2.2, "1.20x to 2.20x eager"),
        (1.2, 4.0, "faster than eager, unclear by how much (1.20x to 4.00x)"),
        (13.74, 636, "faster than eager, unclear by how much (13.74x to 636x)"),
        (3.35, 3906.2, "faster than eager, unclear by how much (3.35x to 3,906x)"),
        (1.2, 9e4, "faster than eager, unclear by how much (1.20x to 90,000x)"),
        (0.1, 9e4, "?x eager"),
        (0.99, 1.02, "2.00x eager"),
    ],
)
def test_a_speedup_is_told_as_surely_as_it_is_known(low: float, high: float, said: str) -> None:
    assert number_format.compared(Ratio(value=2.0, ci95=Interval(low=low, high=high), paired=True), "eager") == said


def test_a_short_report_of_nothing_says_so(tmp_path: Path) -> None:
    assert "No cell has ended yet." in to_short_markdown(judged([]), tmp_path)


def test_an_interval_of_a_speedup_is_the_same_in_every_output(tmp_path: Path) -> None:
    apart = ok(cell(), over_processes(3000.0, (1.0, 1.0, 1.0, 10.0, 10.0)))
    judgement = judged([ok(cell("onnx"), over_processes(1.0, (1.0,) * 5)), apart])
    contest = judgement.contests[0]
    ratio = contest.cells[0].speedup
    assert ratio is not None and ratio.ci95 is not None and ratio.ci95.high > 5000
    ends = [number_format.ratio(end) for end in (ratio.ci95.low, ratio.ci95.high)]
    assert "({}x to {}x)".format(*ends) in headline.line(contest)
    assert "[{},\u00a0{}]".format(*ends) in [
        column.interval_of(contest.cells[0]) for column in columns_of([contest]) if column.csv == "speedup"
    ]
    assert number_format.ratio_interval(Interval(low=3.35, high=3906.2)) == "[3.35,\u00a03,906]", "however wide"
    answer = answer_of(judgement, tmp_path).contests[0]
    assert answer.speedup == ratio
    row = next(csv.DictReader(io.StringIO(to_csv(judgement))))
    assert (float(row["speedup_ci95_low"]), float(row["speedup_ci95_high"])) == (ratio.ci95.low, ratio.ci95.high)


def test_an_open_requirement_tells_in_every_output_how_many_more_samples_would_decide(tmp_path: Path) -> None:
    judgement = evaluated([0.0, *[1.0] * 7])
    said = "but onnx may miss top1 > -1%: about 428 more samples would tell"
    for name, text in every_output(judgement).items():
        assert said in text, name
    assert answer_of(judgement, tmp_path).contests[0].metrics["onnx"]["top1"].further_samples == 428


@pytest.mark.parametrize("calls", [None, 100])
def test_an_undecided_answer_says_who_may_miss_a_requirement_and_counts_what_it_lists(calls: int | None) -> None:
    few = [0.0, *[1.0] * 7]
    records = [
        metrics.measured(label, few, few).model_copy(
            update={name: getattr(ok(cell(label), steady(levels)), name) for name in ("latency", "processes", "bursts")}
        )
        for label, levels in {"onnx": [1.0, 1.05], "eager": [1.03, 1.0]}.items()
    ]
    judgement = judged(records, request={"require": "top1>-1%", "calls": calls})
    assert "undecided, and " in line(judgement) and "onnx may miss top1 > -1%" in headline.line(judgement.contests[-1])
    listed = doubt_sentences.doubts_with(Effect.WINNER, judgement.contests[0])
    outputs = every_output(judgement)
    assert len(listed) == 2 and f"What could change the winner: - {listed[0]} - {listed[1]}" in outputs["terminal"]
    for name in ("terminal", "report.md", "details.md", "page"):
        assert "2 findings could change the winner" in outputs[name], name


def test_what_keeps_the_cheapest_build_from_winning_is_listed_though_another_answers_a_call_faster() -> None:
    few = [0.0, *[1.0] * 7]
    slow_to_build = ok(cell("inductor"), steady([0.5, 0.5]), build_s=60.0)
    fastest = metrics.measured("inductor", [1.0] * 1000, [1.0] * 1000, ms=0.5)
    records = [
        fastest.model_copy(update={"phases": slow_to_build.phases, "processes": slow_to_build.processes}),
        metrics.measured("onnx", few, few),
        metrics.measured("eager", few, few, ms=2.0),
    ]
    judgement = judged(records, request={"require": "top1>-1%", "calls": 100})
    assert line(judgement).startswith("onnx, ") and "but " in line(judgement) and "onnx" in line(judgement)
    (said,) = doubt_sentences.doubts_with(Effect.WINNER, judgement.contests[0])
    assert "may miss what is required" in said
    assert "one finding could change the winner" in first_screen(judgement, "").whether_to_ship


def test_a_narrow_terminal_leaves_out_other_columns_before_the_names_of_backends() -> None:
    rows = reported(evaluated([float(place % 10 > 0) for place in range(1000)]), 80, is_terminal=True).splitlines()
    assert any("onnx" in row and "0.9 (0)" in row for row in rows) and any(
        "eager" in row and "2.000" in row for row in rows
    )


@pytest.mark.parametrize(("processes", "is_open"), [(8, True), (9, False)])
def test_after_nine_processes_it_is_an_answer_that_two_are_close(processes: int, is_open: bool) -> None:
    records = pair([1.0] * processes, CLOSE_MS[:processes])
    assert bool(undecided(records)) is is_open
    assert (headline.how_sure(judge_contest(records), judge_contest(records).fastest) == "undecided") is is_open
