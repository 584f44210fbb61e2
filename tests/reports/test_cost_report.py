import re

import pytest

from bakeoff.judging.costs import BreakEven, Outcome
from bakeoff.judging.judgement import ContestJudgement, contests_of, judge, judged_anew
from bakeoff.records.schema import Energy, Interval, Ratio, Record, Status
from bakeoff.reports import cost_report, findings
from bakeoff.reports.markdown import to_markdown
from bakeoff.reports.number_format import NOT_ESTABLISHED
from bakeoff.reports.tables import Table
from tests.reports.samples import bursts, cell, conv_on_cpu, failed, hostile_on_cpu, ok, over_processes, report


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


def table(contest: ContestJudgement, title: str) -> Table:
    return next(each for each in cost_report.tables(contest) if each.title.startswith(title))


def column(found: Table, header: str) -> dict[str, str]:
    place = [*found.text_columns, *found.number_columns].index(header)
    return {row[0]: row[place] for row in found.rows}


def test_cold_and_warm_start_stand_beside_each_other() -> None:
    found = table(view(), "Cold and warm start")
    assert set(column(found, "backend")) == {"eager", "onnx", "openvino"}
    assert column(found, "build, cold (s)") == {"eager": "0", "onnx": "2.0", "openvino": "9.0"}
    assert column(found, "first answer, cold (s)") == {"eager": "0.010", "onnx": "2.0", "openvino": "9.0"}
    assert column(found, "build, warm (s)") == {"eager": "0", "onnx": "0.16", "openvino": "0.72"}
    assert column(found, "first answer, warm (s)") == {"eager": "0.0010", "onnx": "0.16", "openvino": "0.72"}
    assert column(found, "artefact (MiB)") == {"eager": "-", "onnx": "3", "openvino": "3"}
    assert "energy per call (mJ)" not in found.number_columns


def test_energy_has_a_column_if_a_cell_has_it() -> None:
    energy = Energy(joules_per_call=0.0123, idle_w=70.0, calls=1000, seconds=1.0, source="NVML, the whole GPU")
    found = table(view(records(energy=energy)), "Cold and warm start")
    assert column(found, "energy per call (mJ)") == {"eager": "-", "onnx": "12.3", "openvino": "-"}
    assert cost_report.sentences(view(records(energy=energy)))[-1] == (
        "Energy is that of NVML, the whole GPU, beyond what it takes idle."
    )


def test_a_single_process_has_no_warm_start_to_show() -> None:
    contest = view(conv_on_cpu())
    assert table(contest, "Cold start").number_columns == [
        "build, cold (s)",
        "first answer, cold (s)",
        "artefact (MiB)",
    ]
    assert table(contest, "What calls take").title.endswith("from a cold start (* costs least, or may)")
    assert not any("warm" in sentence for sentence in cost_report.sentences(contest))


def test_what_one_to_ten_million_calls_take_has_a_column_for_each_candidate() -> None:
    contest = view()
    found = table(contest, "What calls take")
    assert found.is_folded and found.number_columns == contest.contenders
    eager, onnx, openvino = (column(found, name) for name in ("eager", "onnx", "openvino"))
    assert list(eager) == ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000", "10,000,000"]
    assert (eager["1"], onnx["1"]) == ("0.010*, 0.0010*", "2.0, 0.16")
    assert (eager["10,000"], onnx["10,000"]) == ("20, 20", "12*, 10*")
    assert onnx["10,000,000"].count("*") == openvino["10,000,000"].count("*") == 2  # they were not told apart


def test_the_number_of_calls_that_was_asked_for_is_a_row() -> None:
    assert "7,777" in column(table(view(calls=7_777), "What calls take"), "onnx")


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


def test_a_lead_from_building_and_first_call_alone_is_not_called_sure() -> None:
    """Both have the same latency within the error; the first call of one was 5 % shorter."""
    made = [
        ok(cell("eager"), over_processes(1.0), first_call_s=0.1),
        ok(cell("onnx"), over_processes(1.01, seed=1), first_call_s=0.095),
    ]
    contest = view(made, calls=100)
    sentence, found = cost_report.sentences(contest)[0], table(contest, "What calls take")
    doubt = f"(or eager: {NOT_ESTABLISHED})"
    assert sentence.startswith("From a cold start onnx costs least up to call ")
    assert f" {doubt}, then eager from about call " in sentence
    assert findings.costs(contest, "cold").startswith("onnx costs least at first")
    assert f" {doubt}, eager from call " in findings.costs(contest, "cold")
    assert column(found, "onnx")["1"].startswith("0.095*") and column(found, "eager")["1"].startswith("0.10*")
    assert ": neither wins, onnx is 1.0" in cost_report.plain_verdicts(contest)[0]


def test_a_cell_that_only_seems_the_cheapest_is_not_called_sure() -> None:
    made = [
        ok(cell("eager"), over_processes(1.0, (1.0, 1.3, 0.8)), first_call_s=0.001),
        ok(cell("onnx"), over_processes(1.1, seed=1), build_s=2.0),
    ]
    sentence = cost_report.sentences(view(made))[0]
    assert sentence.endswith("however many calls (up to 10,000,000) (or onnx: not established).")


def test_over_a_number_of_calls_each_configuration_has_a_plain_verdict() -> None:
    contest = view(calls=10_000)
    found = table(contest, "Over 10,000 calls, against eager")
    onnx = next(row for row in found.rows if row[:2] == ["onnx", "cold"])
    assert re.fullmatch(r"onnx wins, 1\.\d\dx overall, [12]\.\d\dx steady; pays from call [\d,]+ on", onnx[2])
    assert onnx[3] == "2.0"
    assert [row[:2] for row in found.rows] == [
        [label, start] for label in contest.contenders if label != "eager" for start in ("cold", "warm")
    ]
    spent = table(contest, "What 10,000 calls take, 5 of them warm-up")
    parts = {(row[0], row[1]): row[2:] for row in spent.rows}
    assert {label for label, _ in parts} == set(contest.contenders)
    for warm_up, steady, total, _ in parts.values():
        assert float(warm_up) + float(steady) == pytest.approx(float(total), rel=0.1)
    assert parts["eager", "cold"][3] == "-" and re.match(r"[\d,]+", parts["onnx", "cold"][3])
    assert len(cost_report.plain_verdicts(contest)) == 4
    assert all(
        re.search(r"; onnx \S+ s \(\S+ warm-up, \S+ steady\), eager \S+ s", told)
        for told in cost_report.plain_verdicts(contest)
        if told.startswith("onnx")
    )
    told = {sentence.split(": ")[0] for sentence in cost_report.plain_verdicts(contest)}
    assert {"onnx over 10,000 calls from a cold start", "onnx over 10,000 calls from a warm start"} < told
    assert cost_report.plain_verdicts(view()) == []


@pytest.mark.parametrize(
    ("total", "ends", "crossing", "said"),
    [
        (1.63, (1.6, 1.66), BreakEven(15, 14, 17, True),
         "onnx wins, 1.63x overall, 2.26x steady; pays from call 15 on"),
        (2.0, (1.9, 2.1), BreakEven(0, 0, 0, True),
         "onnx wins, 2.00x overall, 2.26x steady; ahead from the first call on"),
        (0.04, (0.04, 0.04), BreakEven(4500, 4000, 5000, True),
         "eager wins, onnx is 0.040x overall, 2.26x steady; pays from call 4,500 on"),
        (0.04, (0.04, 0.04), BreakEven(None, None, None, True),
         "eager wins, onnx is 0.040x overall, 2.26x steady; never pays"),
        (1.3, (0.9, 1.7), BreakEven(90, 50, None, False),
         "neither wins, onnx is 1.30x overall, 2.26x steady; when it pays is not established"),
        (1.1, (0.7, 1.7), BreakEven(0, 0, 0, True),
         "neither wins, onnx is 1.10x overall, 2.26x steady; ahead from the first call on by what was timed once"),
    ],
)  # fmt: skip
def test_the_plain_verdict(total: float, ends: tuple[float, float], crossing: BreakEven, said: str) -> None:
    outcome = Outcome(
        label="onnx",
        baseline="eager",
        calls=100,
        overhead_s=0.5,
        steady=Ratio(value=2.26, ci95=None, paired=True),
        total_speedup=total,
        total_speedup_ci95=Interval(low=ends[0], high=ends[1]),
        total_speedup_believed=Interval(low=ends[0], high=ends[1]),
        break_even=crossing,
    )
    assert cost_report.outcome_sentence(outcome) == said


def test_a_cell_that_may_not_win_is_never_the_cheapest_but_can_be_the_baseline() -> None:
    contest = view(calls=100, require="median_ms<1.5, build_s<5")
    assert contest.contenders == ["onnx"]
    assert contest.baseline == "eager"
    assert table(contest, "What calls take").number_columns == ["onnx"]
    assert [row[0] for row in table(contest, "Over 100 calls, against eager").rows] == ["onnx", "onnx"]


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
    assert (cost_report.tables(contest), cost_report.sentences(contest), cost_report.plain_verdicts(contest)) == (
        [],
        [],
        [],
    )


def test_the_baseline_alone_is_compared_with_nothing() -> None:
    titles = [each.title for each in cost_report.tables(view([ok(cell("eager"), bursts(1.0))], calls=100))]
    assert len(titles) == 2 and titles[0].startswith("What calls take in s") and titles[1] == "Cold start"


def test_without_a_baseline_there_is_no_table_against_it() -> None:
    made = [ok(cell("onnx"), bursts(1.0), build_s=2.0), ok(cell("openvino"), bursts(2.0))]
    titles = [each.title for each in cost_report.tables(view(made, calls=100))]
    assert titles[-1] == "Cold start" and not any(title.startswith("Over") for title in titles)


def test_markdown_folds_costs_below_each_contest_unless_they_were_asked_for() -> None:
    made = report([*records(), *hostile_on_cpu()])
    assert to_markdown(judge(made)).count("<summary>What a deployment costs over its life</summary>") == 2
    contest, hostile = to_markdown(judge(judged_anew(made, calls=100))).split(
        "### What a deployment costs over its life"
    )[1:]
    assert r"| third\_party\* |" in hostile
    section = contest.split("\n## ")[0]
    assert "<details><summary>What calls take in s" in section
    assert "Over 100 calls, against eager:" in section
