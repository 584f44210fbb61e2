"""Two reports of the same cells: what became faster, slower or broken between them. Pure functions.

Two runs share no round, so nothing divides out what the machine did between them. What is left is a control: eager,
measured in both. The rules, and what they cannot show, are told in docs/gate.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pydantic import JsonValue

from judging import environments
from judging.environments import Bearing, Difference
from judging.estimate import burst_ms, process_medians_ms, welch_interval
from judging.judgement import judge
from judging.ranking import BASELINE
from records.errors import UsageError
from records.schema import Burst, Cell, Interval, Record, Report, Status

FAIL_ABOVE = 0.05
"""Share by which a cell may become slower before that is a regression."""

NOTABLE = 0.02
"""A change under this is never called one, however narrow its interval."""

UNCONTROLLED = 0.25
"""What a change must be over where there is no interval over processes, no control, or another machine."""

CLOCK_TICK_MS = 1e-6
"""A median below the clock's resolution is taken for one tick: its logarithm must exist."""


class Outcome(StrEnum):
    """What became of a cell. Listed in the order in which a reader wants to see them."""

    BROKEN = "broken"  # it was ok, and is not any more
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    FASTER = "faster"
    SAME = "same"
    MENDED = "mended"  # it was not ok, and is now
    FAILING = "failing"  # it was not ok, and still is not
    NOT_MEASURED = "not measured"  # unavailable or unsupported, and nobody named it
    ONLY_BASE = "only in base"
    ONLY_NEW = "only in new"


@dataclass(frozen=True)
class Change:
    """A quantity of the new run over the same of the base run, as a logarithm: above 0 the new run takes longer."""

    log: float
    half_width: float | None  # of its 95 % interval, which is symmetric in the logarithm; None below two processes

    @property
    def value(self) -> float:
        return math.exp(self.log)

    @property
    def ci95(self) -> Interval | None:
        if self.half_width is None:
            return None
        return Interval(low=math.exp(self.log - self.half_width), high=math.exp(self.log + self.half_width))

    def widened(self, by: Change) -> Change:
        """The same with what another change leaves open on top: half-widths add in quadrature."""
        if self.half_width is None or by.half_width is None:
            return self
        return Change(self.log, math.hypot(self.half_width, by.half_width))


@dataclass(frozen=True)
class Control:
    """What eager did between the two runs: the same code, unless torch is another, on what may be another machine."""

    change: Change
    moved: bool  # by more than its own interval leaves open
    calibration: Change | None  # of a fixed piece of work outside of torch; None where a run did not time it


@dataclass(frozen=True)
class CellChange:
    """One cell that is in at least one of the two reports."""

    cell: Cell
    base: Record | None
    new: Record | None
    outcome: Outcome
    is_regression: bool = False
    reason: str = ""
    raw: Change | None = None  # of the latency, widened by what the control leaves open
    normalised: Change | None = None  # of the latency over eager's in the same rounds
    notes: tuple[str, ...] = ()  # what else differs between the two records


@dataclass(frozen=True)
class Comparison:
    base: Report
    new: Report
    fail_above: float
    differences: list[Difference]  # of the environments
    controls: dict[str, Control]  # by contest, where eager was measured in both
    cells: list[CellChange]  # those first that a reader must see
    undecided_in_base: list[str]  # titles of contests of the base run that measuring left undecided
    undecided_in_new: list[str]

    @property
    def regressions(self) -> list[CellChange]:
        return [cell for cell in self.cells if cell.is_regression]


def compare(base: Report, new: Report, fail_above: float = FAIL_ABOVE) -> Comparison:
    """What changed from `base` to `new`. A cell that became slower by more than the share `fail_above` is a regression.

    Raises UsageError where the reports share no cell: a gate that compares nothing must not let anything pass.
    """
    before = {record.cell.id: record for record in base.records}
    after = {record.cell.id: record for record in new.records}
    if not before.keys() & after.keys():
        raise UsageError(
            f"{base.run_id} and {new.run_id} share no cell: measure the same models, sizes, devices and backends"
        )
    differences = environments.differences(base.environment, new.environment)
    controls = _controls(before, after, fail_above)
    rules = _Rules(fail_above, any(difference.bearing is Bearing.MACHINE for difference in differences))
    cells = [_cell_change(_pair(cell_id, before, after), controls, rules) for cell_id in before | after]
    order = list(Outcome)
    return Comparison(
        base=base,
        new=new,
        fail_above=fail_above,
        differences=differences,
        controls=controls,
        cells=sorted(cells, key=lambda cell: (not cell.is_regression, order.index(cell.outcome))),
        undecided_in_base=[contest.title for contest in judge(base).contests if contest.unstable],
        undecided_in_new=[contest.title for contest in judge(new).contests if contest.unstable],
    )


def parse_share(text: str) -> float:
    """`5%` or `5 %` is 0.05. Raises UsageError for anything else, a bare number too: 0.05 could mean either."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--fail-above {text}: write a percentage over 0, such as 5%")
    return float(match[1]) / 100


def unpaired_change(base: Sequence[float], new: Sequence[float]) -> Change:
    """Change of the geometric mean from `base` to `new`, one positive value per process, of runs that share no round.

    Its interval is Welch's t-interval of the difference of mean logarithms (Welch, Biometrika 34, 1947): the processes
    are the sample, and neither their number nor their variance need be equal. No interval below two on either side.
    Raises ValueError where a side is empty.
    """
    if not base or not new:
        raise ValueError("a change needs at least one process on either side")
    old_logs, new_logs = np.log(base), np.log(new)
    log = float(np.mean(new_logs) - np.mean(old_logs))
    if min(len(base), len(new)) < 2:
        return Change(log, None)
    if np.ptp(old_logs) == 0 and np.ptp(new_logs) == 0:
        return Change(log, 0.0)
    interval = welch_interval(new_logs.tolist(), old_logs.tolist())
    return Change(log, (interval.high - interval.low) / 2)


def process_ratios(bursts: Iterable[Burst], baseline: Iterable[Burst]) -> list[float]:
    """Per process, in order, the median over rounds of a burst's median over that of `baseline` in the same round.

    A process that shares no round with `baseline` is left out.
    """
    paced = {(burst.group, burst.round): _median_ms(burst) for burst in baseline if burst.samples_ns}
    return _medians_by_process(
        (burst.process, _median_ms(burst) / paced[burst.group, burst.round])
        for burst in bursts
        if burst.samples_ns and (burst.group, burst.round) in paced
    )


_Records = Mapping[str, Record]


@dataclass(frozen=True)
class _Pair:
    """One cell in both runs, beside the baseline of its contest in each; None where there is none."""

    base: Record | None
    new: Record | None
    base_eager: Record | None
    new_eager: Record | None


@dataclass(frozen=True)
class _Rules:
    """What a change must be to be called one, here."""

    fail_above: float
    other_machine: bool

    def by_interval(self, change: Change) -> Outcome:
        """What an interval over processes says."""
        if change.half_width is None:
            return Outcome.CANNOT_TELL
        size = abs(change.log)
        if size > change.half_width and size > math.log1p(min(NOTABLE, self.fail_above)):
            return _direction(change)
        if size + change.half_width <= math.log1p(self.fail_above):
            return Outcome.SAME
        return Outcome.CANNOT_TELL

    def by_margin(self, change: Change) -> Outcome:
        """What can be said where the drift between the runs is anybody's guess."""
        is_over = abs(change.log) - (change.half_width or 0.0) > math.log1p(max(UNCONTROLLED, self.fail_above))
        return _direction(change) if is_over else Outcome.CANNOT_TELL


def _direction(change: Change) -> Outcome:
    return Outcome.SLOWER if change.log > 0 else Outcome.FASTER


def _pair(cell_id: str, before: _Records, after: _Records) -> _Pair:
    base, new = before.get(cell_id), after.get(cell_id)
    known = base or new
    if known is None:
        raise ValueError(f"{cell_id} is in neither of the two reports")
    eager_id = known.cell.model_copy(update={"backend": BASELINE, "mode": "default"}).id
    return _Pair(base, new, before.get(eager_id), after.get(eager_id))


def _cell_change(pair: _Pair, controls: Mapping[str, Control], rules: _Rules) -> CellChange:
    if pair.base is None or pair.new is None:
        return _alone(pair)
    if pair.base.status is Status.OK and pair.new.status is Status.OK:
        control = controls.get(pair.new.cell.contest_id)
        return _timed(pair.base, pair.new, pair, control, rules)
    return _ended(pair.base, pair.new)


def _alone(pair: _Pair) -> CellChange:
    """A cell that only one of the runs was asked for: named, and never a regression."""
    record = pair.new or pair.base
    if record is None:
        raise ValueError("a cell is in at least one of the two reports")
    outcome = Outcome.ONLY_NEW if pair.new else Outcome.ONLY_BASE
    return CellChange(record.cell, pair.base, pair.new, outcome, reason=_ending(record))


def _ended(base: Record, new: Record) -> CellChange:
    """A cell that has no numbers to compare in at least one of the runs."""
    is_lost = base.status is Status.OK and (new.status.is_failure or new.asked_by_name)
    if new.status is Status.OK:
        outcome = Outcome.MENDED
    elif is_lost:
        outcome = Outcome.BROKEN
    else:
        outcome = Outcome.NOT_MEASURED if new.status.is_absence else Outcome.FAILING
    reason = _ending(new) if base.status is new.status else f"{_ending(base)} -> {_ending(new)}"
    return CellChange(new.cell, base, new, outcome, is_lost, reason, notes=_notes(base, new))


def _ending(record: Record) -> str:
    return f"{record.status}: {record.reason}" if record.reason else record.status.value


def _timed(base: Record, new: Record, pair: _Pair, control: Control | None, rules: _Rules) -> CellChange:
    """A cell that is ok in both runs."""
    notes = _notes(base, new)
    raw = _change(_levels_ms(base.bursts), _levels_ms(new.bursts))
    if raw is None:
        return CellChange(new.cell, base, new, Outcome.CANNOT_TELL, reason="no samples to compare", notes=notes)
    if control and new.cell.label == BASELINE:
        outcome, reason = _judge_control(control, rules)
        return CellChange(new.cell, base, new, outcome, reason=reason, raw=raw, notes=notes)
    normalised = None
    if control and pair.base_eager and pair.new_eager:
        raw = raw.widened(control.change)
        normalised = _change(
            process_ratios(base.bursts, pair.base_eager.bursts), process_ratios(new.bursts, pair.new_eager.bursts)
        )
    outcome, reason, decided = _judge(raw, normalised, control, rules)
    is_regression = outcome is Outcome.SLOWER and decided.log > math.log1p(rules.fail_above)
    return CellChange(new.cell, base, new, outcome, is_regression, reason, raw, normalised, notes)


def _judge_control(control: Control, rules: _Rules) -> tuple[Outcome, str]:
    """Eager itself: the same, or nobody knows, since its change and the machine's are one number."""
    if control.moved:
        return Outcome.CANNOT_TELL, "it is the control: its change cannot be told from the machine's"
    if rules.other_machine:
        return Outcome.CANNOT_TELL, "measured on another machine"
    outcome = rules.by_interval(control.change)
    return outcome, "" if outcome is Outcome.SAME else _why_open(control.change)


def _judge(
    raw: Change, normalised: Change | None, control: Control | None, rules: _Rules
) -> tuple[Outcome, str, Change]:
    """What became of a cell that was measured in both runs, why, and the change that decided it.

    The latency decides where eager did not move and intervals can be trusted; else it and its ratio to eager's must
    agree, and the smaller of the two changes is the one that counts.
    """
    weakness = _weakness(raw, normalised, rules)
    verdict_on = rules.by_margin if weakness else rules.by_interval
    is_steady = not weakness and not (control and control.moved)
    changes = [raw] if normalised is None or is_steady else [raw, normalised]
    verdicts = [verdict_on(change) for change in changes]
    decided = min(changes, key=lambda change: abs(change.log))
    if len(set(verdicts)) > 1:
        return Outcome.CANNOT_TELL, f"latency: {verdicts[0]}; relative to {BASELINE}: {verdicts[1]}", decided
    if verdicts[0] is Outcome.CANNOT_TELL:
        return Outcome.CANNOT_TELL, weakness or _why_open(decided), decided
    return verdicts[0], weakness, decided


def _weakness(raw: Change, normalised: Change | None, rules: _Rules) -> str:
    """Why no interval can be trusted, so that only a large change counts; empty where one can."""
    margin = f"only a change over {100 * max(UNCONTROLLED, rules.fail_above):.0f} % could be told"
    if rules.other_machine:
        return f"measured on another machine, {margin}"
    if raw.half_width is None:
        return f"measured in a single process, {margin}"
    if normalised is None:
        return f"no {BASELINE} in the same rounds of both runs, {margin}"
    return ""


def _why_open(change: Change) -> str:
    if change.half_width is None:
        return "measured in a single process"
    return "its interval is too wide: measure it in more processes"


def _controls(before: _Records, after: _Records, fail_above: float) -> dict[str, Control]:
    """Eager of every contest in which it was measured in both runs."""
    found = {}
    for cell_id, base in before.items():
        new = after.get(cell_id)
        if base.cell.label != BASELINE or new is None or {base.status, new.status} != {Status.OK}:
            continue
        change = _change(_levels_ms(base.bursts), _levels_ms(new.bursts))
        if change is not None:
            calibration = _change(_calibrations_ms(base.bursts), _calibrations_ms(new.bursts))
            found[base.cell.contest_id] = Control(change, _has_moved(change, fail_above), calibration)
    return found


def _has_moved(change: Change, fail_above: float) -> bool:
    rules = _Rules(fail_above, other_machine=False)
    verdict = rules.by_margin(change) if change.half_width is None else rules.by_interval(change)
    return verdict in (Outcome.SLOWER, Outcome.FASTER)


def _change(base: Sequence[float], new: Sequence[float]) -> Change | None:
    return unpaired_change(base, new) if base and new else None


def _calibrations_ms(bursts: Iterable[Burst]) -> list[float]:
    return _medians_by_process(
        (burst.process, burst.conditions.calibration_ms)
        for burst in bursts
        if burst.conditions and burst.conditions.calibration_ms
    )


def _levels_ms(bursts: Sequence[Burst]) -> list[float]:
    return [max(level_ms, CLOCK_TICK_MS) for level_ms in process_medians_ms(bursts).values()]


def _median_ms(burst: Burst) -> float:
    return max(burst_ms(burst), CLOCK_TICK_MS)


def _medians_by_process(values: Iterable[tuple[int, float]]) -> list[float]:
    by_process: dict[int, list[float]] = {}
    for process, value in values:
        by_process.setdefault(process, []).append(value)
    return [float(np.median(by_process[process])) for process in sorted(by_process)]


def _notes(base: Record, new: Record) -> tuple[str, ...]:
    """Switches, settings and placement that differ: another cause of another latency."""
    notes = [
        *_changed("precision in force", base.precision_in_force, new.precision_in_force),
        *_changed("setting", base.settings, new.settings),
    ]
    if base.placement and new.placement and base.placement.extent is not new.placement.extent:
        notes.append(f"placement: {base.placement.extent} -> {new.placement.extent}")
    return tuple(notes)


def _changed(kind: str, base: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> list[str]:
    return [
        f"{kind}, {name}: {base.get(name, environments.UNKNOWN)} -> {new.get(name, environments.UNKNOWN)}"
        for name in sorted(base.keys() | new.keys())
        if base.get(name) != new.get(name)
    ]
