"""Compares two reports of the same cells: what became faster, slower, worse or broken between them (docs/gate.md).

No ratio removes what the machine did between two runs. The baseline, which was measured in both, is the control.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import JsonValue

from bakeoff.judging import environment_changes
from bakeoff.judging.change import Change, calibration_change, grouped_alike, latency_change, relative_change
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.doubts_of_winner import LastRunDiffers, contradictions
from bakeoff.judging.environment_changes import UNKNOWN, Bearing, Difference
from bakeoff.judging.estimate import process_medians_ms
from bakeoff.judging.fit import Fit, by_contest
from bakeoff.judging.intervals import student_quantile
from bakeoff.judging.judgement import ContestJudgement, judge
from bakeoff.judging.metric_changes import MetricJudgement, metrics_beside
from bakeoff.judging.ranking import BASELINE, baseline_of
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.metrics import Metrics
from bakeoff.records.schema import Cell, Record, Report, Status

FAIL_ABOVE = 0.05
"""The share by which a cell may become slower before that is a regression."""

MIN_CHANGE = 0.02
"""A smaller change is never called one, however narrow its interval."""

MIN_UNCONTROLLED_CHANGE = 0.25
"""A change must be over this without an interval over processes, without a control, or on another machine."""


class Outcome(StrEnum):
    """What became of a cell, in the order in which a reader wants to see them."""

    BROKEN = "broken"  # it was ok, and is not any more
    WORSE = "worse"  # of a metric of the user's own; how fast it is counts less
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    FASTER = "faster"
    SAME = "same"
    MENDED = "mended"  # it was not ok, and is now
    FAILING = "failing"  # it was not ok, and still is not
    NOT_MEASURED = "not measured"  # unavailable or unsupported, and its backend was not asked for by name
    ONLY_BASE = "only in base"
    ONLY_NEW = "only in new"


_JUDGED = {Outcome.BROKEN, Outcome.WORSE, Outcome.SLOWER, Outcome.FASTER, Outcome.SAME, Outcome.MENDED}

CANNOT_TELL = "cannot-tell"
FAIL_ON = (
    Outcome.SLOWER.value,
    Outcome.BROKEN.value,
    Outcome.WORSE.value,
    *(status.value for status in Status if status.is_failure),
    CANNOT_TELL,
)
"""What a gate may fail on. `broken` is a cell that was ok and is not any more; a status is such a cell with this
status. `worse` is one with a worse metric."""

MIN_PROCESSES = 3
MAX_PROCESSES = 100


class ReasonKind(StrEnum):
    """Why a cell has its outcome."""

    ENDED = "ended"  # it has no numbers in at least one run; its records say why
    NOT_REACHED = "not reached"  # the time budget of a run was over before, or it was interrupted
    NO_SAMPLES = "no samples"
    IS_CONTROL = "is control"  # the baseline itself moved: its change and the machine's are one number
    OTHER_MACHINE = "other machine"
    SINGLE_PROCESS = "single process"
    NO_BASELINE = "no baseline"  # none in the same rounds of both runs
    WIDE_INTERVAL = "wide interval"
    WAITING = "waiting"  # for cores, which makes the interval wide
    DISAGREEMENT = "disagreement"  # the latency and its ratio to the baseline's have different outcomes


@dataclass(frozen=True)
class Reason:
    """A reason with its values. With `margin`, only a change over this share could be seen."""

    kind: ReasonKind
    margin: float | None = None
    latency: Outcome | None = None  # of a disagreement: by the latency alone
    relative: Outcome | None = None  # of a disagreement: by the ratio to the baseline's


@dataclass(frozen=True)
class Control:
    """The change of the baseline: the same code in both runs unless its library or the machine is another."""

    label: str
    change: Change
    moved: bool  # by more than its own interval leaves open
    calibration: Change | None  # of a fixed piece of work outside of torch, if both runs timed it


@dataclass(frozen=True)
class CellChange:
    """One cell that is in at least one of the two reports."""

    cell: Cell
    base: Record | None
    new: Record | None
    outcome: Outcome
    is_regression: bool = False
    reason: Reason | None = None
    raw: Change | None = None  # of the latency, widened by what the control leaves open
    normalised: Change | None = None  # of the latency over the baseline's in the same rounds
    baseline: str = BASELINE
    differences: tuple[Difference, ...] = ()  # between the two records: switches, settings, placement
    metrics: Mapping[str, MetricJudgement] = field(default_factory=dict)  # of the new run beside those of the base
    worse: tuple[str, ...] = ()  # the names of those that are worse, of a cell that is ok in both runs
    worse_of_reference: tuple[str, ...] = ()  # of these: the float reference's own are worse as well
    evaluate_fails: str = ""  # for this cell or the reference, and did not in the base run: why


@dataclass(frozen=True)
class Inconclusive:
    """Why cells could not be judged slower, faster or the same."""

    cells: int
    is_all: bool  # no other cell could be judged either
    kind: ReasonKind  # the reason of most of them
    margin: float | None = None  # only a change over this share would have been seen
    processes: int | None = None  # of each cell in both runs would decide; None where more do not help
    is_enough: bool = True  # False if even the largest number that can be asked for may not decide


@dataclass(frozen=True)
class Comparison:
    """Everything that an output of two compared reports shows."""

    base: Report
    new: Report
    fail_above: float
    differences: list[Difference]  # of the environments and the models
    controls: dict[str, Control]  # by contest, if its baseline was measured in both
    cells: list[CellChange]  # the most important ones first
    undecided_in_base: list[str]  # titles of contests of the base run that measuring left undecided
    undecided_in_new: list[str]
    opposite: list[
        tuple[str, LastRunDiffers]
    ]  # titles of contests, and who is faster in one run and slower in the other

    @property
    def regressions(self) -> list[CellChange]:
        return [cell for cell in self.cells if cell.is_regression]

    def failing(self, kinds: Collection[str]) -> list[CellChange]:
        return [
            cell
            for cell in self.cells
            if (cell.is_regression and cell.outcome in kinds)
            or (cell.is_regression and cell.new and cell.new.status in kinds)
            or ((cell.worse or cell.evaluate_fails) and Outcome.WORSE in kinds)
            or (cell.outcome is Outcome.CANNOT_TELL and CANNOT_TELL in kinds)
        ]

    @property
    def baselines(self) -> list[str]:
        """Return the labels that ratios are taken to: one, unless ONNX files and other models are compared together."""
        return list(dict.fromkeys(cell.baseline for cell in self.cells))

    @property
    def inconclusive(self) -> Inconclusive | None:
        """Return why some cells could not be judged, or None if there is no such cell."""
        reasons = [cell.reason for cell in self.cells if cell.outcome is Outcome.CANNOT_TELL and cell.reason]
        if not reasons:
            return None
        kind, _ = Counter(reason.kind for reason in reasons).most_common(1)[0]
        verdict = Inconclusive(
            cells=len(reasons),
            is_all=not any(cell.outcome in _JUDGED for cell in self.cells),
            kind=kind,
            margin=max((reason.margin for reason in reasons if reason.margin), default=None),
        )
        if kind is ReasonKind.SINGLE_PROCESS:
            return replace(verdict, processes=MIN_PROCESSES)
        if kind is not ReasonKind.WIDE_INTERVAL:
            return verdict
        needed = _processes_needed(self.cells, self.fail_above)
        return replace(verdict, processes=min(needed, MAX_PROCESSES), is_enough=needed <= MAX_PROCESSES)

    @property
    def has_metrics(self) -> bool:
        return any(cell.metrics for cell in self.cells)

    @property
    def judges_most(self) -> bool:
        return self.inconclusive is None or 2 * self.inconclusive.cells <= len(self.cells)


def compare(base: Report, new: Report, fail_above: float = FAIL_ABOVE) -> Comparison:
    """Compare two reports. A cell that became slower by more than the share `fail_above` is a regression. Raise
    UsageError if the reports share no cell: a gate that compares nothing must not pass."""
    base, new = grouped_alike([base, new])
    base_contests, new_contests = judge(base).contests, judge(new).contests
    before, after = _records_of(base_contests), _records_of(new_contests)
    if not before.keys() & after.keys():
        called = [{words for record in report.records for words in record.cell.unusual_calls} for report in (base, new)]
        what = (
            "the same models, sizes, devices and backends"
            if called[0] == called[1]
            else "both with the same --cold-cache and --inputs-from"
        )
        raise UsageError(f"{base.run_id} and {new.run_id} share no cell: measure {what}")
    shared = {cell_id: record for cell_id, record in before.items() if cell_id in after}
    differences = [
        *_differences_of_models(base, new, [record.cell for record in shared.values()]),
        *environment_changes.differences(base.environment, new.environment),
    ]
    by_id = {contest.contest_id: contest for contest in new_contests}
    fits = {one.contest_id: (one.fit, by_id[one.contest_id].fit) for one in base_contests if one.contest_id in by_id}
    # for an ONNX file the baseline is a cell that both runs have, if there is any
    contests = by_contest((shared | before | after | before).values()).items()
    baselines = {contest_id: baseline_of([record.cell for record in of_contest]) for contest_id, of_contest in contests}
    controls = _controls(before, after, baselines, fits, fail_above)
    rules = _Rules(fail_above, any(difference.bearing is Bearing.MACHINE for difference in differences))
    required = Requirements.parse(str(new.request.get("require") or "")).higher_is_better
    cells = [
        replace(
            _with_metrics(
                _cell_change(before.get(cell_id), after.get(cell_id), fits, controls, rules), required, fail_above
            ),
            baseline=baselines[record.cell.contest_id],
        )
        for cell_id, record in (before | after).items()
    ]
    order = list(Outcome)
    return Comparison(
        base=base,
        new=new,
        fail_above=fail_above,
        differences=differences,
        controls=controls,
        cells=sorted(cells, key=lambda cell: (not cell.is_regression, order.index(cell.outcome))),
        undecided_in_base=[contest.title for contest in base_contests if _ended_undecided(contest)],
        undecided_in_new=[contest.title for contest in new_contests if _ended_undecided(contest)],
        opposite=[
            (old.title, doubt)
            for old in base_contests
            if old.best and old.contest_id in by_id
            for doubt in contradictions(
                base.run_id,
                [(old.best.label, label, lead) for label, lead in old.fastest.leads.items()],
                by_id[old.contest_id].fit,
            )[:1]
            if doubt.is_opposite
        ],
    )


def _differences_of_models(base: Report, new: Report, shared: Iterable[Cell]) -> list[Difference]:
    files = sorted(base.own_files.keys() | new.own_files.keys()) if base.own_files and new.own_files else []
    own_files = [(name, base.own_files.get(name, NO_FILE), new.own_files.get(name, NO_FILE)) for name in files]
    weights = {
        (f"weights of {cell.model_name}", base.weights[cell.reference_id], new.weights[cell.reference_id])
        for cell in shared
        if cell.reference_id in base.weights and cell.reference_id in new.weights
    }
    by_name = {name: (name, before[:8], after[:8]) for name, before, after in sorted(weights) if before != after}
    return [Difference(*row, Bearing.MODEL) for row in (*by_name.values(), *own_files) if row[1] != row[2]]


NO_FILE = "not there"


def _processes_needed(cells: Iterable[CellChange], fail_above: float) -> int:
    """Return about how many processes of each cell would decide whether one is slower by `fail_above`."""
    spreads = [
        cell.raw.half_width / _half_width_for(min(len(process_medians_ms(one.bursts)) for one in (cell.base, cell.new)))
        for cell in cells
        if cell.base and cell.new and cell.raw and cell.raw.half_width
    ]
    spread = math.hypot(*spreads) / math.sqrt(len(spreads))
    needed = MIN_PROCESSES
    # an interval of half the limit decides every change: the change is that small, or differs from 0
    while needed <= MAX_PROCESSES and spread * _half_width_for(needed) > math.log1p(fail_above) / 2:
        needed += 1
    return needed


def _half_width_for(processes: int) -> float:
    """Return half the width of an interval from so many processes on either side, up to a factor."""
    return student_quantile(0.95, 2 * processes - 2) / math.sqrt(processes)


def parse_fail_on(text: str) -> frozenset[str]:
    """Read `slower,incorrect`. Raises UsageError for a word that is not in `FAIL_ON`."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in FAIL_ON:
            raise unknown("kind of failure", word, FAIL_ON, f"--fail-on takes {', '.join(FAIL_ON)}")
    return frozenset(words)


def parse_share(text: str) -> float:
    """Read `5%` or `5 %` as 0.05. Raises UsageError for anything else: a bare 0.05 could mean either."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--fail-above {text}: write a percentage over 0, such as 5%")
    return float(match[1]) / 100


_Records = Mapping[str, Record]


def _records_of(contests: Sequence[ContestJudgement]) -> dict[str, Record]:
    return {judged.cell.id: judged.record for contest in contests for judged in contest.cells}


_Fits = Mapping[str, tuple[Fit, Fit]]
"""The fits of each contest that is in both runs, by its id."""


@dataclass(frozen=True)
class _Rules:
    """The thresholds above which a difference counts as a change."""

    fail_above: float
    other_machine: bool

    @property
    def margin(self) -> float:
        return max(MIN_UNCONTROLLED_CHANGE, self.fail_above)

    def by_interval(self, change: Change) -> Outcome:
        if change.half_width is None:
            return Outcome.CANNOT_TELL
        size = abs(change.log)
        if size > change.half_width and size > math.log1p(min(MIN_CHANGE, self.fail_above)):
            return _direction(change)
        if size + change.half_width <= math.log1p(self.fail_above):
            return Outcome.SAME
        return Outcome.CANNOT_TELL

    def by_margin(self, change: Change) -> Outcome:
        """Return what can be said if the drift between the runs is unknown."""
        is_over = abs(change.log) - (change.half_width or 0.0) > math.log1p(self.margin)
        return _direction(change) if is_over else Outcome.CANNOT_TELL


def _direction(change: Change) -> Outcome:
    return Outcome.SLOWER if change.log > 0 else Outcome.FASTER


def _cell_change(
    base: Record | None, new: Record | None, fits: _Fits, controls: Mapping[str, Control], rules: _Rules
) -> CellChange:
    if base and new:
        is_timed = base.status is new.status is Status.OK
        return _timed(base, new, fits, controls.get(new.cell.contest_id), rules) if is_timed else _ended(base, new)
    alone = new or base
    assert alone is not None
    outcome = Outcome.ONLY_NEW if new else Outcome.ONLY_BASE
    return CellChange(alone.cell, base, new, outcome, reason=Reason(ReasonKind.ENDED))


def _ended(base: Record, new: Record) -> CellChange:
    differences = _differences(base, new)
    if Status.NOT_REACHED in (base.status, new.status):
        reason = Reason(ReasonKind.NOT_REACHED)
        return CellChange(new.cell, base, new, Outcome.CANNOT_TELL, reason=reason, differences=differences)
    is_lost = base.status is Status.OK and (new.status.is_failure or new.asked_by_name)
    if new.status is Status.OK:
        outcome = Outcome.MENDED
    elif is_lost:
        outcome = Outcome.BROKEN
    else:
        outcome = Outcome.NOT_MEASURED if new.status.is_absence else Outcome.FAILING
    return CellChange(new.cell, base, new, outcome, is_lost, Reason(ReasonKind.ENDED), differences=differences)


def _timed(base: Record, new: Record, fits: _Fits, control: Control | None, rules: _Rules) -> CellChange:
    label = new.cell.label
    both = fits[new.cell.contest_id]
    raw = latency_change(*both, label)
    change = CellChange(new.cell, base, new, Outcome.CANNOT_TELL, raw=raw, differences=_differences(base, new))
    if raw is None:
        return replace(change, reason=Reason(ReasonKind.NO_SAMPLES))
    if control and label == control.label:
        outcome, reason = _judge_control(control, rules)
        if new.cell.configuration == BASELINE or outcome is Outcome.SAME:
            return replace(change, outcome=outcome, reason=reason)
        control = None  # a library that may itself have become slower, as eager does not
    normalised = None
    if control:
        raw = raw.widened(control.change)
        normalised = relative_change(*both, label, control.label)
    outcome, reason, decided = _judge(raw, normalised, control, rules)
    is_regression = outcome is Outcome.SLOWER and decided.log > math.log1p(rules.fail_above)
    return replace(change, outcome=outcome, is_regression=is_regression, reason=reason, raw=raw, normalised=normalised)


def _with_metrics(change: CellChange, required: Mapping[str, bool], fail_above: float) -> CellChange:
    """Return the change with its metrics. A cell that is ok in both runs is worse if it surely lost of one of them.
    `required` says by name whether higher is better, as the new run requires it."""
    base, new = change.base, change.new
    if base is None or new is None:
        return change

    def between(before: Metrics | None, after: Metrics | None) -> Mapping[str, MetricJudgement]:
        judged = metrics_beside(after, before).items()
        return {
            name: replace(metric, higher_is_better=required.get(name, metric.higher_is_better))
            for name, metric in judged
        }

    def worse_of(metrics: Mapping[str, MetricJudgement]) -> tuple[str, ...]:
        # a plain number has no interval, so it must be worse by over the share `fail_above`
        return tuple(name for name, metric in metrics.items() if metric.is_worse(fail_above))

    change = replace(change, metrics=between(base.metrics, new.metrics))
    if {base.status, new.status} != {Status.OK}:
        return change
    failures = [metrics.failure for metrics in (new.reference_metrics, new.metrics) if metrics and metrics.failure]
    failure = failures[0] if failures and base.metrics and not base.metrics.failure else None
    worse, reference = worse_of(change.metrics), worse_of(between(base.reference_metrics, new.reference_metrics))
    change = replace(
        change,
        worse=worse,
        worse_of_reference=tuple(name for name in worse if name in reference),
        evaluate_fails=failure.sentence if failure else "",
    )
    if change.is_regression or not (worse or failure):
        return change
    return replace(change, outcome=Outcome.WORSE, is_regression=True)


def _judge_control(control: Control, rules: _Rules) -> tuple[Outcome, Reason | None]:
    """Judge the baseline itself: it is the same, or cannot be judged: its change and the machine's are one."""
    if control.moved:
        return Outcome.CANNOT_TELL, Reason(ReasonKind.IS_CONTROL)
    if rules.other_machine:
        return Outcome.CANNOT_TELL, Reason(ReasonKind.OTHER_MACHINE)
    outcome = rules.by_interval(control.change)
    return outcome, None if outcome is Outcome.SAME else _why_open(control.change)


def _judge(
    raw: Change, normalised: Change | None, control: Control | None, rules: _Rules
) -> tuple[Outcome, Reason | None, Change]:
    """Return what became of a cell that was measured in both runs, why, and the change that decided it. Unless the
    latency decides alone, it must agree with its ratio to the baseline's."""
    weakness = _weakness(raw, normalised, rules)
    outcome_of = rules.by_margin if weakness else rules.by_interval
    is_steady = not weakness and not (control and control.moved)
    changes = [raw] if normalised is None or is_steady else [raw, normalised]
    outcomes = [outcome_of(change) for change in changes]
    # the smaller of the two changes counts
    decided = min(changes, key=lambda change: abs(change.log))
    if len(set(outcomes)) > 1:
        return Outcome.CANNOT_TELL, Reason(ReasonKind.DISAGREEMENT, None, *outcomes), decided
    if outcomes[0] is Outcome.CANNOT_TELL:
        return Outcome.CANNOT_TELL, weakness or _why_open(decided), decided
    return outcomes[0], weakness, decided


def _ended_undecided(contest: ContestJudgement) -> bool:
    """Return True if several processes left a pair undecided. That one process decides little is said of cells."""
    return any(contest.fastest.leads[label].processes > 1 for label in contest.fastest.open_labels)


def _weakness(raw: Change, normalised: Change | None, rules: _Rules) -> Reason | None:
    """Return why no interval can be trusted, so that only a large change counts."""
    if rules.other_machine:
        return Reason(ReasonKind.OTHER_MACHINE, rules.margin)
    if raw.half_width is None:
        return Reason(ReasonKind.SINGLE_PROCESS, rules.margin)
    if normalised is None:
        return Reason(ReasonKind.NO_BASELINE, rules.margin)
    return None


def _why_open(change: Change) -> Reason:
    if change.half_width is None:
        return Reason(ReasonKind.SINGLE_PROCESS)
    # threads that waited for cores make up most of the interval's width
    is_waiting = 2 * change.waiting > change.half_width
    return Reason(ReasonKind.WAITING if is_waiting else ReasonKind.WIDE_INTERVAL)


def _controls(
    before: _Records, after: _Records, baselines: Mapping[str, str], fits: _Fits, fail_above: float
) -> dict[str, Control]:
    controls = {}
    for cell_id, base in before.items():
        new, label = after.get(cell_id), baselines[base.cell.contest_id]
        if base.cell.label != label or new is None or {base.status, new.status} != {Status.OK}:
            continue
        if change := latency_change(*fits[base.cell.contest_id], label):
            calibration = calibration_change(base.bursts, new.bursts)
            # a change without an interval may be none, but it does not show that nothing changed
            is_over = change.half_width is None and abs(change.log) > math.log1p(fail_above)
            outcome = _Rules(fail_above, other_machine=False).by_interval(change)
            moved = is_over or outcome in (Outcome.SLOWER, Outcome.FASTER)
            controls[base.cell.contest_id] = Control(label, change, moved, calibration)
    return controls


def _differences(base: Record, new: Record) -> tuple[Difference, ...]:
    """Return the switches, settings and placement that differ: they may be the cause of another latency. Nothing is
    known to differ where one of the records was never built."""
    if base.status.is_absence or new.status.is_absence:
        return ()
    differences = [
        *_changed("precision in force", base.precision_in_force, new.precision_in_force),
        *_changed("setting", base.settings, new.settings),
    ]
    if base.placement and new.placement and base.placement.extent is not new.placement.extent:
        extents = base.placement.extent.value, new.placement.extent.value
        differences.append(Difference("placement", *extents, Bearing.SPEED))
    return tuple(differences)


def _changed(kind: str, base: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> list[Difference]:
    old, late = ({name: str(value) for name, value in values.items()} for values in (base, new))
    return [
        Difference(f"{kind}, {name}", old.get(name, UNKNOWN), late.get(name, UNKNOWN), Bearing.SPEED)
        for name in sorted(base.keys() | new.keys())
        if base.get(name) != new.get(name)
    ]
