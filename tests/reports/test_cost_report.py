"""What a deployment costs over its life. What each case says is held against `golden/costs.txt`."""

from bakeoff.judging.judgement import ContestJudgement, contests_of, judge, judged_anew
from bakeoff.records.schema import Record, Status
from bakeoff.reports import cost_report, findings
from bakeoff.reports.run_report import to_markdown
from tests.reports.samples import cell, failed, hostile_on_cpu, ok, over_processes, report
from tests.support.golden import same_as_golden


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


SLOWER = [ok(cell("eager"), over_processes(1.0)), ok(cell("onnx"), over_processes(2.0, seed=1), build_s=2.0)]
CASES: dict[str, ContestJudgement] = {
    "crossings and two that tie": view(),
    "a number of calls": view(calls=7_777),
    "one is always the cheapest": view(SLOWER),
    "a start that was not timed": view([SLOWER[0], SLOWER[1].model_copy(update={"phases": []})]),
    "a lead of the first call alone": view(
        [
            ok(cell("eager"), over_processes(1.0), first_call_s=0.1),
            ok(cell("onnx"), over_processes(1.01, seed=1), first_call_s=0.095),
        ],
        calls=100,
    ),
    "one only seems the cheapest": view(
        [
            ok(cell("eager"), over_processes(1.0, (1.0, 1.3, 0.8)), first_call_s=0.001),
            ok(cell("onnx"), over_processes(1.1, seed=1), build_s=2.0),
        ]
    ),
    "two may not win": view(calls=100, require="median_ms<1.5, build_s<5"),
}


def test_costs_are_told_as_before() -> None:
    lines = []
    for name, contest in CASES.items():
        table = cost_report.table(contest)
        assert table
        rows = [[column.heading for column in table.columns], *table.rows]
        said = [*cost_report.sentences(contest), findings.costs(contest), *(" | ".join(map(str, row)) for row in rows)]
        lines += [f"{name}: {one}" for one in said]
    same_as_golden("costs.txt", "\n".join(lines))


def test_a_cell_that_may_not_win_is_never_the_cheapest_but_can_be_the_baseline() -> None:
    contest = CASES["two may not win"]
    assert (contest.contenders, contest.baseline) == (["onnx"], "eager")


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
