import re
from typing import Any

from bakeoff.judging.judgement import ContestJudgement, contests_of, judge, judged_anew
from bakeoff.records.schema import Record, Status
from bakeoff.reports import cost_report, findings
from bakeoff.reports.number_format import NOT_ESTABLISHED
from bakeoff.reports.run_report import to_markdown
from bakeoff.reports.tables import Table
from tests.reports.samples import cell, failed, hostile_on_cpu, ok, over_processes, report


def records(**more: object) -> list[Record]:
    """Return eager at 2 ms, onnx at 1 ms after 2 s of building, openvino that ties with onnx, and a crash."""
    return [
        ok(cell("eager"), over_processes(2.0)),
        ok(cell("onnx"), over_processes(1.0, (1.0, 1.01, 0.99), seed=1), build_s=2.0, **more),
        ok(cell("openvino"), over_processes(0.99, (0.9, 1.1, 1.0), seed=2), build_s=9.0),
        failed(cell("inductor"), Status.CRASH, "signal 11"),
    ]


def view(made: list[Record] | None = None, calls: int | None = None, require: str | None = None) -> ContestJudgement:
    return contests_of(judged_anew(report(made or records()), calls, require))[0]


def table(contest: ContestJudgement) -> Table[Any]:
    found = cost_report.table(contest)
    assert found
    return found


def column(found: Table[Any], header: str) -> dict[str, str]:
    return {row[0]: row[headings(found).index(header)] for row in found.rows}


def headings(found: Table[Any]) -> list[str]:
    return [column.heading for column in found.columns]


def test_what_one_to_ten_million_calls_take_has_a_column_for_each_candidate() -> None:
    contest = view()
    found = table(contest)
    assert headings(found) == ["calls", *contest.contenders]
    eager, onnx, openvino = (column(found, name) for name in ("eager", "onnx", "openvino"))
    assert list(eager) == ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000", "10,000,000"]
    assert (eager["1"], onnx["1"]) == ("0.010*, 0.0010*", "2.0, 0.16")
    assert (eager["10,000"], onnx["10,000"]) == ("20, 20", "12*, 10*")
    assert onnx["10,000,000"].count("*") == openvino["10,000,000"].count("*") == 2  # they were not told apart


def test_the_number_of_calls_that_was_asked_for_is_a_row() -> None:
    assert "7,777" in column(table(view(calls=7_777)), "onnx")


def test_the_sentences_name_the_crossings_and_the_front() -> None:
    cold, warm, front = cost_report.sentences(view())
    assert re.fullmatch(
        r"From a cold start eager costs least up to call [\d,]+, then onnx from call [\d,]+ \[[\d,\xa0]+\] on, then "
        rf"openvino from about call [\d,]+ on \({NOT_ESTABLISHED}\)\.",
        cold,
    )
    assert warm.startswith("From a warm start eager costs least up to call 1")
    assert front == "Nothing dominates onnx and eager in latency, throughput, resident memory, build time and error."


def test_a_cell_that_is_always_the_cheapest_is_named_alone() -> None:
    made = [ok(cell("eager"), over_processes(1.0)), ok(cell("onnx"), over_processes(2.0, seed=1), build_s=2.0)]
    sentence = cost_report.sentences(view(made))[0]
    assert sentence == "From a cold start eager costs least, however many calls (up to 10,000,000)."
    untimed = made[1].model_copy(update={"phases": []})
    assert cost_report.sentences(view([made[0], untimed]))[0] == f"{sentence} No cold start of onnx was timed."


def test_a_lead_from_building_and_first_call_alone_is_not_called_sure() -> None:
    """Both have the same latency within the error; the first call of one was 5 % shorter."""
    made = [
        ok(cell("eager"), over_processes(1.0), first_call_s=0.1),
        ok(cell("onnx"), over_processes(1.01, seed=1), first_call_s=0.095),
    ]
    contest = view(made, calls=100)
    sentence, found = cost_report.sentences(contest)[0], table(contest)
    doubt = f"(or eager: {NOT_ESTABLISHED})"
    assert sentence.startswith("From a cold start onnx costs least up to call ")
    assert f" {doubt}, then eager from about call " in sentence
    assert findings.costs(contest).startswith("onnx costs least at first")
    assert f" {doubt}, eager from call " in findings.costs(contest)
    assert column(found, "onnx")["1"].startswith("0.095*") and column(found, "eager")["1"].startswith("0.10*")


def test_a_cell_that_only_seems_the_cheapest_is_not_called_sure() -> None:
    made = [
        ok(cell("eager"), over_processes(1.0, (1.0, 1.3, 0.8)), first_call_s=0.001),
        ok(cell("onnx"), over_processes(1.1, seed=1), build_s=2.0),
    ]
    sentence = cost_report.sentences(view(made))[0]
    assert sentence.endswith("however many calls (up to 10,000,000) (or onnx: not established).")


def test_a_cell_that_may_not_win_is_never_the_cheapest_but_can_be_the_baseline() -> None:
    contest = view(calls=100, require="median_ms<1.5, build_s<5")
    assert contest.contenders == ["onnx"]
    assert contest.baseline == "eager"
    assert headings(table(contest)) == ["calls", "onnx"]
    assert cost_report.sentences(contest)[-1] == (
        "Left out here, because they may not win: eager (median_ms is 2.033, not < 1.5), "
        "openvino (build_s is 9, not < 5)."
    )


def test_a_report_is_judged_anew_and_keeps_its_records() -> None:
    before = report(records())
    after = judged_anew(before, calls=7, require="build_s<5")
    assert (after.request["calls"], after.request["require"]) == (7, "build_s<5")
    assert after.records == before.records
    assert contests_of(judged_anew(after, require=""))[0].doubts == contests_of(before)[0].doubts
    assert contests_of(after)[0].doubts != contests_of(before)[0].doubts
    assert judged_anew(before) == before


def test_nothing_is_shown_if_nothing_was_measured() -> None:
    contest = view([failed(cell("onnx"), Status.CRASH, "signal 11")])
    assert (cost_report.table(contest), cost_report.sentences(contest)) == (None, [])


def test_markdown_folds_costs_below_each_contest_unless_they_were_asked_for() -> None:
    made = report([*records(), *hostile_on_cpu()])
    assert to_markdown(judge(made)).count("<summary>What a deployment costs over its life</summary>") == 2
    contest, hostile = to_markdown(judge(judged_anew(made, calls=100))).split(
        "### What a deployment costs over its life"
    )[1:]
    assert r"| third\_party\* |" in hostile
    section = contest.split("\n## ")[0]
    assert "\nWhat calls take in s" in section and "<summary>What calls take" not in section
