"""A bisection halves the versions, and says no more than its steps allow."""

import math
from collections.abc import Callable, Mapping

import pytest

from bakeoff.judging.bisection import Bisection, Call, TriedVersion, call_of, judge_step
from bakeoff.records.schema import Cell, Interval, Ratio, Record, Status
from bakeoff.reports.bisection import conclusion, step_line, steps_table
from tests.reports.samples import failed, once
from tests.support.golden import same_as_golden

VERSIONS = tuple(f"1.{minor}" for minor in range(12))


def ratio(value: float, half_width: float = 0.005, processes: int = 10) -> Ratio:
    interval = Interval(low=value * math.exp(-half_width), high=value * math.exp(half_width))
    return Ratio(value=value, ci95=interval, paired=True, processes=processes)


def walked(judge: Callable[[str], TriedVersion], versions: tuple[str, ...] = VERSIONS) -> Bisection:
    """Return the bisection after all the steps that it asks for."""
    found = Bisection(package="toy", backend="onnx", versions=versions)
    while version := found.next_version:
        found = found.model_copy(update={"steps": (*found.steps, judge(version))})
    return found


def slow_from(first: str, odd: Mapping[str, Call] | None = None) -> Callable[[str], TriedVersion]:
    """Return a judge to whom every version from `first` on takes 1.3 times as long."""

    def judge(version: str) -> TriedVersion:
        is_slow = VERSIONS.index(version) >= VERSIONS.index(first)
        call = (odd or {}).get(version, Call.SLOW if is_slow else Call.FAST)
        if call is Call.SKIPPED:
            return TriedVersion(version=version, call=call, reason="no wheel")
        above = 1.3 if is_slow else 1.0
        return TriedVersion(version=version, call=call, over_good=ratio(above), below_bad=ratio(1.3 / above))

    return judge


@pytest.mark.parametrize("first", VERSIONS[1:])
def test_the_first_slow_version_is_found_in_few_steps(first: str) -> None:
    found = walked(slow_from(first))
    assert found.first_slow is not None and found.first_slow.version == first
    assert len(found.steps) <= 1 + math.ceil(math.log2(len(VERSIONS) - 1))


def test_two_neighbours_need_one_step() -> None:
    found = walked(slow_from("1.1"), ("1.0", "1.1"))
    assert [step.version for step in found.steps] == ["1.1"] and found.first_slow is found.steps[0]


ODD = {"1.5": Call.SKIPPED, "1.6": Call.UNDECIDED}


def ending_at_once(call: Call, above: float) -> Bisection:
    return walked(lambda version: TriedVersion(version=version, call=call, over_good=ratio(above)))


def in_two_steps(version: str) -> TriedVersion:
    return TriedVersion(version=version, call=Call.SLOW, over_good=ratio(1.2), below_bad=ratio(1.1))


CASES: dict[str, Bisection] = {
    "a first slow version": walked(slow_from("1.7")),
    "odd versions beside it": walked(slow_from("1.9", ODD)),
    "odd versions around it": walked(slow_from("1.6", ODD)),
    "ends alike": ending_at_once(Call.FAST, 1.0),
    "the end is faster": ending_at_once(Call.FAST, 0.8),
    "ends not told apart": ending_at_once(Call.UNDECIDED, 1.03),
    "a slowdown in two versions": walked(in_two_steps),
}


def test_bisections_are_told_as_before() -> None:
    lines = []
    for name, found in CASES.items():
        steps = [step_line(found, step) for step in found.steps]
        table = steps_table(found)
        rows = [" | ".join(column.text_of(row) for column in table.columns) for row in table.rows]
        lines += [f"{name}: {told}" for told in (*steps, *rows, conclusion(found))]
    same_as_golden("bisections.txt", "\n".join(lines))


def test_what_is_skipped_or_undecided_is_walked_around() -> None:
    found = CASES["odd versions beside it"]
    assert found.first_slow is not None and found.first_slow.version == "1.9"
    found = CASES["odd versions around it"]
    assert found.suspects == ("1.5", "1.6", "1.7") and found.first_slow is None
    assert {step.version for step in found.steps} >= {"1.4", "1.5", "1.6", "1.7"}
    assert [len(CASES[name].steps) for name in ("ends alike", "the end is faster", "ends not told apart")] == [1, 1, 1]
    found = CASES["a slowdown in two versions"]
    assert found.first_slow is not None and found.first_slow.version == "1.1"


@pytest.mark.parametrize(
    ("over_good", "below_bad", "call"),
    [
        (ratio(1.3), None, Call.SLOW),
        (ratio(1.0), None, Call.FAST),
        (ratio(0.8), None, Call.FAST),
        (ratio(1.0, half_width=0.2), None, Call.UNDECIDED),
        (ratio(1.0, processes=1), None, Call.UNDECIDED),
        (ratio(1.3), ratio(1.0), Call.SLOW),
        (ratio(1.3), ratio(1.2), Call.SLOW),
        (ratio(1.0), ratio(1.3), Call.FAST),
        (ratio(0.9), ratio(1.4), Call.FAST),
        (ratio(1.03, half_width=0.025), ratio(1.3), Call.UNDECIDED),
        (ratio(1.1, half_width=0.3), ratio(1.1, half_width=0.3), Call.UNDECIDED),
    ],
)
def test_a_step_says_what_the_verdict_would(over_good: Ratio, below_bad: Ratio | None, call: Call) -> None:
    assert call_of(over_good, below_bad) is call


def measured(latencies_ms: Mapping[str, float]) -> list[Record]:
    made = []
    for name, level_ms in latencies_ms.items():
        record = once(level_ms, "onnx")
        made.append(record.model_copy(update={"cell": record.cell.model_copy(update={"environment": name})}))
    return made


def test_a_step_is_judged_from_the_records_of_its_contest() -> None:
    records = measured({"a": 1.0, "b": 1.5, "c": 1.5})
    step = judge_step("2", records, "a", "b", "c")
    assert step.call is Call.SLOW and step.over_good and step.below_bad
    assert (step.over_good.value, step.below_bad.value) == (pytest.approx(1.5), pytest.approx(1.0))
    assert judge_step("3", records, "a", "b", "b").below_bad is None


def test_a_version_with_which_the_model_fails_is_skipped() -> None:
    broken = Cell(model="mlp", backend="onnx", environment="c")
    records = [*measured({"a": 1.0, "b": 1.5}), failed(broken, Status.CRASH, "died of signal 11")]
    step = judge_step("2", records, "a", "b", "c")
    assert (step.call, step.reason) == (Call.SKIPPED, "onnx@c ended as crash: died of signal 11")
