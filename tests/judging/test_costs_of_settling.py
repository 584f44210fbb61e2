"""What goes on choosing while it answers calls: what n calls of it cost, when it has paid, and how that is told."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.costs import Costs, Line, Start, Unsettled, break_even, envelope, line_of, settling_line
from judging.judgement import ContestJudgement, contests_of, judged_anew
from judging.verdict import judge_contest
from records.schema import Interval, Ratio, Record, Settling
from reports import cost_report, findings
from reports.chart_data import relative_totals
from reports.charts import costs as chart_of_costs
from reports.charts.key import Key
from tests.judging.test_costs import measured
from tests.reports.samples import report

EAGER_MS, COMPILED_MS = 0.187, 0.117
COLD, WARM = 264_957, 3_027  # calls until it had settled, as on an H200

numbers = st.integers(1, 40).map(float)
settling_lines = st.builds(
    settling_line, st.just("settles"), st.builds(Unsettled, st.integers(1, 30), numbers, numbers), numbers
)
any_lines = st.one_of(st.builds(Line, st.just("straight"), numbers, numbers), settling_lines)


def settling(record: Record, cold: Settling | None = None, warm: Settling | None = None) -> Record:
    """`record` as that of a backend that took these calls to settle, when it started cold and when it started warm."""
    first, *others = record.processes
    processes = [first.model_copy(update={"settling": cold})]
    processes += [process.model_copy(update={"settling": warm}) for process in others]
    return record.model_copy(update={"processes": processes})


def calls_of(calls: int, call_ms: float) -> Settling:
    return Settling(calls=calls, seconds=calls * call_ms / 1e3)


def eager() -> Record:
    return measured("eager", EAGER_MS)


def hotpath(settling_ms: float = EAGER_MS * 1.01, steady_ms: float = COMPILED_MS) -> Record:
    """Answers by eager's code, a little slower, until it has settled."""
    return settling(measured("hotpath", steady_ms), cold=calls_of(COLD, settling_ms), warm=calls_of(WARM, settling_ms))


def inductor() -> Record:
    """Compiled as fast as can be, and called through guards."""
    return measured("inductor", 0.16, build_s=6.0, warm_build_s=1.5)


def line(record: Record, start: Start) -> Line:
    found = line_of(record, start)
    assert found is not None
    return found


def view(records: list[Record], calls: int | None = None) -> ContestJudgement:
    return contests_of(judged_anew(report(records), calls))[0]


def table(contest: ContestJudgement, title: str) -> cost_report.Table:
    return next(each for each in cost_report.tables(contest) if each.title.startswith(title))


def cells(found: cost_report.Table, *names: str) -> dict[str, str]:
    row = next(row for row in found.rows if tuple(row[: len(names)]) == names)
    return dict(zip([*found.text_columns, *found.number_columns], row, strict=True))


# --- totals


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_hundred_calls_take_about_what_they_take_by_eager(start: Start) -> None:
    by_eager, by_hotpath = (line(record, start).total_s(100) for record in (eager(), hotpath()))
    assert by_hotpath == pytest.approx(by_eager, rel=0.02)
    found = Costs([eager(), hotpath()]).outcome("hotpath", "eager", 100, start)
    assert found and found.total_speedup == pytest.approx(1.0, abs=0.02) and found.winner is None


def test_what_calls_take_until_it_has_settled_and_after_that() -> None:
    hot = line(hotpath(settling_ms=0.2), "cold")
    steady_s = line(measured("hotpath", COMPILED_MS), "cold").steady_s
    assert hot.total_s(1) == pytest.approx(0.01)  # the first call is none of those that it settles in
    assert hot.total_s(1001) == pytest.approx(0.01 + 1000 * 0.2e-3)
    assert hot.total_s(1 + COLD) == pytest.approx(0.01 + COLD * 0.2e-3)
    assert hot.total_s(1 + COLD + 1000) == pytest.approx(0.01 + COLD * 0.2e-3 + 1000 * steady_s)


@given(settling_lines)
def test_the_total_has_a_bend_but_no_step_where_it_has_settled(hot: Line) -> None:
    assert hot.unsettled is not None
    before, end, after = (hot.total_s(hot.settled_at + step) for step in (-1, 0, 1))
    assert end - before == pytest.approx(hot.unsettled.call_s)
    assert after - end == pytest.approx(hot.steady_s)
    assert hot.total_s(hot.settled_at + 1e-9) == pytest.approx(end)  # of figures


def test_each_start_has_the_settling_of_its_own() -> None:
    once, again = calls_of(1000, 0.5), calls_of(10, 0.3)
    plain = measured("hotpath", COMPILED_MS)
    for cold, warm in ((once, again), (once, None), (None, again), (None, None)):
        record = settling(plain, cold, warm)
        for start, found in (("cold", cold), ("warm", warm)):
            early = line(record, start).unsettled  # type: ignore[arg-type]
            assert (early and early.calls) == (found and found.calls)
            if found is None:
                assert line(record, start) == line(plain, start)  # type: ignore[arg-type]


# --- who has paid, and when


@pytest.mark.parametrize(("start", "settled_at"), [("cold", 1 + COLD), ("warm", 1 + WARM)])
@pytest.mark.parametrize("settling_ms", [EAGER_MS * 0.97, EAGER_MS, EAGER_MS * 1.01, EAGER_MS * 1.3])
def test_nothing_has_paid_before_it_has_settled(start: Start, settled_at: int, settling_ms: float) -> None:
    """Eager's code is none the faster for being called by another name, whatever a mean may be over a median."""
    found = Costs([eager(), hotpath(settling_ms)]).break_even("hotpath", "eager", start)
    assert found and found.calls and found.low and found.high and found.is_established
    assert settled_at <= found.low <= found.calls <= found.high
    surplus_s = settled_at * (settling_ms - EAGER_MS) / 1e3
    later = max(0.0, surplus_s) / (1e-3 * (EAGER_MS - COMPILED_MS))
    assert found.calls == pytest.approx(settled_at + later, rel=0.01)


def test_the_verdict_tells_the_same_break_even() -> None:
    told = {standing.label: standing for standing in judge_contest([eager(), hotpath()]).standings}
    found = Costs([eager(), hotpath()]).break_even("hotpath", "eager", "cold")
    assert found and found.calls and found.calls > COLD
    assert told["hotpath"].break_even_calls == found.calls


def test_what_is_clearly_faster_while_it_settles_has_paid_before_it_has() -> None:
    built = measured("hotpath", COMPILED_MS, build_s=1.0)
    halfway = settling(built, cold=calls_of(COLD, 0.13))
    found = Costs([eager(), halfway]).break_even("hotpath", "eager", "cold")
    assert found and found.is_established and found.low and found.calls and found.high
    assert found.calls == pytest.approx(1000 / (EAGER_MS - 0.13), rel=0.01)
    assert found.low < found.calls < found.high < COLD


def test_the_interval_is_that_of_the_same_totals() -> None:
    """A settling was timed in one process, in no shared rounds: it is known within 25 %, as such latencies are."""
    ours, theirs = settling_line("ours", Unsettled(1000, 1.0, 2.25), 1.0), Line("theirs", 1.0, 2.0)
    ratio = Ratio(value=2.0, ci95=Interval(low=1.6, high=2.5), paired=True, processes=3)
    found = break_even(ours, theirs, ratio)
    assert (found.low, found.calls, found.is_established) == (1001, 1251, True)
    slow = settling_line("ours", Unsettled(1000, 1.0, 2.25 * 1.25), 1.25)
    assert found.high == slow.break_even(theirs) == 2085


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_what_never_pays_says_never_and_costs_no_more_than_its_calls(start: Start) -> None:
    slower = hotpath(settling_ms=EAGER_MS * 1.3, steady_ms=EAGER_MS * 1.2)
    costs = Costs([eager(), slower])
    found = costs.break_even("hotpath", "eager", start)
    assert found and (found.calls, found.is_established) == (None, True)
    contest = view([eager(), slower], calls=100)
    assert cells(table(contest, "What 100 calls take"), "hotpath", start)["break-even (calls)"] == "never"
    often, seldom = (costs.outcome("hotpath", "eager", calls, start) for calls in (10**7, 101))
    assert often and often.winner == "eager"
    assert seldom and seldom.total_speedup == pytest.approx((10 + 18.7) / (10 + 18.7 * 1.3), rel=0.01)


def test_a_rival_that_settles_is_ahead_again_in_the_end() -> None:
    """Inductor overtakes it while it settles, and loses that lead to it afterwards."""
    records = [inductor(), hotpath(settling_ms=0.4)]
    costs = Costs(records)
    back = costs.break_even("hotpath", "inductor", "cold")
    assert back and back.calls and back.is_established and back.calls > COLD
    never = costs.break_even("inductor", "hotpath", "cold")
    assert never and (never.calls, never.is_established) == (None, True)
    overtakes = 6000 / (0.4 - 0.16)
    told = cells(table(view(records), "Break-even from a cold start"), "inductor")["hotpath"]
    first, last = (int(number.replace(",", "")) for number in told.split(" to "))
    assert (first, last) == (pytest.approx(overtakes, rel=0.01), back.calls - 1)


# --- any lines


@given(any_lines, any_lines)
def test_it_is_ahead_where_it_costs_no_more(ours: Line, theirs: Line) -> None:
    ahead = ours.ahead_of(theirs)
    for calls in range(1, 120):
        costs_no_more = ours.exact_total_s(calls) <= theirs.exact_total_s(calls)
        assert costs_no_more == any(first <= calls and (last is None or calls <= last) for first, last in ahead)
    found = ours.break_even(theirs)
    assert (found is None) == (not ahead or ahead[-1][1] is not None)


@given(st.lists(any_lines, min_size=1, max_size=6), st.integers(1, 5000))
def test_nobody_is_below_the_envelope_once_all_have_settled(many: list[Line], further: int) -> None:
    calls = further + max(line.settled_at for line in many)
    legs = envelope(many, calls)
    starts = [first for _, first in legs]
    assert starts[0] == 1 and starts == sorted(set(starts)) and starts[-1] <= calls
    assert legs[-1][0].exact_total_s(calls) == min(line.exact_total_s(calls) for line in many)


# --- how it is told


def test_the_cheapest_is_told_by_the_same_totals() -> None:
    contest = view([eager(), hotpath(settling_ms=EAGER_MS * 0.97)])
    found = {calls: contest.costs.cheapest(calls, "cold", contest.contenders) for calls in (100, 10_000, 10**7)}
    told = {calls: (each.line.label, [line.label for line in each.rivals]) for calls, each in found.items() if each}
    # eager's code in either case: whose calls were shorter while it settled cannot be told
    assert told == {100: ("eager", ["hotpath"]), 10_000: ("eager", ["hotpath"]), 10**7: ("hotpath", [])}
    legs = contest.costs.legs("cold", contest.contenders)
    assert [(leg.line.label, leg.first_call) for leg in legs] == [("eager", 1), ("hotpath", 1 + COLD)]
    sentence = cost_report.sentences(contest)[0]
    doubt = "(or hotpath: not established)"
    assert sentence.startswith(f"From a cold start eager costs least up to call {COLD:,} {doubt}, then hotpath from")


def test_a_lead_that_may_be_chance_is_none_over_a_third_one_either() -> None:
    """By what it took it would be ahead of Inductor whenever Inductor is of eager, and it runs eager's code."""
    contest = view([eager(), inductor(), hotpath(settling_ms=EAGER_MS * 0.97)])
    by_eager, by_inductor, hot = contest.costs.legs("cold", contest.contenders)
    assert [leg.line.label for leg in (by_eager, by_inductor, hot)] == ["eager", "inductor", "hotpath"]
    assert by_inductor.first_call == pytest.approx(6000 / (EAGER_MS - 0.16), rel=0.01)
    assert hot.first_call == 1 + COLD


def test_a_lead_that_does_not_last_is_none_that_is_established() -> None:
    """Its first call was a little shorter, and eager is ahead for as long as it settles."""
    first_calls = measured("hotpath", COMPILED_MS).phases
    shorter = [phase.model_copy(update={"seconds": 0.0099}) for phase in first_calls]
    hot = hotpath(settling_ms=EAGER_MS * 1.1).model_copy(update={"phases": shorter})
    hot_first, by_eager, hot_again = Costs([eager(), hot]).legs("cold", ["eager", "hotpath"])
    assert [leg.line.label for leg in (hot_first, by_eager, hot_again)] == ["hotpath", "eager", "hotpath"]
    assert by_eager.crossing and not by_eager.crossing.is_established
    assert hot_again.crossing and hot_again.crossing.is_established and hot_again.first_call > COLD


def test_no_winner_is_named_by_what_the_calls_of_one_settling_took() -> None:
    """8 % longer on average than eager's median, over a hundred thousand calls: another process may have it shorter."""
    found = Costs([eager(), hotpath(settling_ms=EAGER_MS * 1.08)]).outcome("hotpath", "eager", 100_000, "cold")
    assert found and found.total_speedup == pytest.approx(1 / 1.08, rel=0.01)
    assert found.total_speedup_ci95 and found.total_speedup_ci95.low < 0.8 and found.total_speedup_ci95.high > 1.1
    assert found.winner is None
    once_settled = Costs([eager(), hotpath()]).outcome("hotpath", "eager", 10**7, "cold")
    assert once_settled and once_settled.winner == "hotpath"


def test_the_overhead_is_what_its_calls_took_beyond_as_many_of_eager() -> None:
    records = [eager(), inductor(), hotpath(settling_ms=0.2)]
    few = table(view(records, calls=100), "Over 100 calls")
    assert cells(few, "hotpath", "cold")["warm-up overhead (s)"] == (
        f"0.0013 (with 99 settling calls beyond eager's; with all {COLD:,}: 3.4)"
    )
    assert cells(few, "inductor", "cold")["warm-up overhead (s)"] == "6.0"
    many = cells(table(view(records, calls=10**6), "Over 1,000,000 calls"), "hotpath", "cold")
    assert many["warm-up overhead (s)"] == f"3.4 (with {COLD:,} settling calls beyond eager's)"


def test_what_the_calls_take_is_told_in_parts() -> None:
    few = table(view([eager(), hotpath(settling_ms=0.2)], calls=100), "What 100 calls take")
    hot = cells(few, "hotpath", "cold")
    assert [hot[name] for name in ("warm-up, building included (s)", "settling (s)", "steady (s)", "total (s)")] == [
        *("0.011", "0.019", "0", "0.030")
    ]
    assert cells(few, "eager", "cold")["settling (s)"] == "-"
    many = cells(table(view([eager(), hotpath(settling_ms=0.2)], calls=10**6), "What"), "hotpath", "cold")
    assert (many["settling (s)"], many["steady (s)"], many["total (s)"]) == ("53", "86", "139")
    told = next(each for each in cost_report.plain_verdicts(view([eager(), hotpath(0.2)], calls=100)) if "cold" in each)
    assert "; hotpath 0.030 s (0.011 warm-up, 0.019 settling, 0 steady), eager 0.029 s (0.011 warm-up, 0.018" in told


def test_nothing_is_said_of_settling_where_nobody_settles() -> None:
    contest = view([eager(), inductor()], calls=100)
    assert "settling (s)" not in table(contest, "What 100 calls take").number_columns
    assert not any(
        "settl" in sentence for sentence in cost_report.sentences(contest) + cost_report.plain_verdicts(contest)
    )


def test_a_sentence_says_how_long_it_takes_to_settle() -> None:
    told = [each for each in cost_report.sentences(view([eager(), hotpath(0.2)])) if each.startswith("hotpath settles")]
    assert told == [
        f"hotpath settles in {COLD:,} calls of 0.200 ms from a cold start and {WARM:,} calls of 0.200 ms from a warm "
        "start: they count as such, timed once and known within 25 %."
    ]


def test_figures_are_drawn_of_the_same_totals() -> None:
    calls = np.asarray([1.0, 100.0, 10_000.0, 1e7])
    hot, reference = line(hotpath(), "cold"), line(eager(), "cold")
    relative = relative_totals(hot, reference, calls)
    assert relative == pytest.approx([hot.total_s(n) / reference.total_s(n) for n in calls.tolist()])
    assert relative[:3] == pytest.approx([1.0] * 3, abs=0.02) and relative[3] < 0.7
    contest = view([eager(), hotpath(0.2)])
    made = chart_of_costs.chart(contest, Key([row.label for row in contest.cells]), "cold")
    assert made is not None
    tips = " ".join(text for text in made.root.itertext())
    assert f"hotpath: 0.010 s, then {COLD:,} calls of 0.200 ms, then 0.117 ms a call" in tips
    told = r"eager costs least up to call ([\d,]+) \(or hotpath: not established\), hotpath from call .*"
    seen = re.fullmatch(told, findings.costs(contest, "cold"))
    assert seen and int(seen[1].replace(",", "")) > COLD
