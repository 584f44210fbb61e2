"""What there is to doubt of a contest or a record, as sentences: what it means, and what to do."""

from __future__ import annotations

from collections.abc import Callable

from bakeoff.judging.certainty import COUNTED, Effect
from bakeoff.judging.constraints import PERCENTILES, QUANTITIES, UNITS
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import FEWEST_FOR_NARROW_LEAD, MARGIN_UNPAIRED, NARROW_LEAD
from bakeoff.records.schema import Doubt, DoubtKind, Status
from bakeoff.reports.words import first, listed, percent

KEEPING_MEMORY = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=1073741824"
"""The variables with which glibc gives back no memory below 1 GiB. Source: mallopt(3)."""


def doubt(doubt: Doubt) -> str:
    """Say what there is to doubt, and of which cells. In a record, it is about the record's own cell."""
    text = _DOUBTS[doubt.kind](doubt)
    about_cells = doubt.kind in _SAID_OF_CELLS and doubt.labels
    return f"{', '.join(doubt.labels)}: {text}" if about_cells else text


def doubts(contest: ContestJudgement) -> list[str]:
    """Return each doubt about a contest as a sentence, in order of weight."""
    return [doubt(each) for each in contest.doubts]


EFFECTS = {
    Effect.WINNER: "What could change the winner",
    Effect.NUMBER: "What could change the winner's numbers",
    Effect.NONE: "Other remarks",
}
"""What stands above the doubts that have this effect. The remarks fold away."""


def doubts_with(effect: Effect, contest: ContestJudgement) -> list[str]:
    """Return the doubts that have this effect on the answer, as sentences. How failed cells ended is told by rows."""
    told_by_a_row = DoubtKind.NOT_RANKED if effect is Effect.NONE else None
    return [doubt(each) for each in contest.doubts_by_effect[effect] if each.kind is not told_by_a_row]


def unmet(doubt: Doubt) -> str:
    """Say which requirement is not met: `p99_ms is 5.2, not < 5`."""
    name, comparison, limit = doubt.details
    if "value" not in doubt.values:
        return f"{name} cannot be judged: {_why_not_measured(name)}"
    return f"{name} is {_quantity(name, doubt.values['value'])}, not {comparison} {limit}"


_SAID_OF_CELLS = {
    DoubtKind.CAVEAT,
    DoubtKind.NOTED,
    DoubtKind.REFERENCE,
    DoubtKind.COARSE_CHECK,
    DoubtKind.RECOMPILED,
    DoubtKind.WARM_UP,
    DoubtKind.WARM_UP_NOISE,
    DoubtKind.PROCESS_LOST,
    DoubtKind.SETTLED_LATE,
}
"""Sentences of these kinds do not name their cells: the labels are put before them."""

BUT: dict[DoubtKind, Callable[[Doubt], str]] = {
    DoubtKind.NOT_TOLD_APART: lambda doubt: f"{listed(first(doubt.labels[1:]), 'or')} may be as fast",
    DoubtKind.NARROW_LEAD: lambda _: "measured in too few processes",
    DoubtKind.NOT_RANKED: lambda doubt: f"without {listed(first(doubt.labels))}, for lack of time",
    DoubtKind.WAITED: lambda _: "the machine was busy",
    DoubtKind.ALWAYS_WAITED: lambda _: "the machine was busy",
    DoubtKind.STOLEN: lambda _: "the machine was busy",
    DoubtKind.GPU_SHARED: lambda _: "the GPU was shared",
    DoubtKind.BUILD_SPREAD: lambda _: "other builds may differ",
}
"""What a doubt that could change the winner is in a few words, after `but`."""


def _undecided(doubt: Doubt) -> str:
    best, *others = doubt.labels
    processes = _count(doubt, "processes")
    return (
        f"{processes} processes of each do not decide how {best} compares with {listed(others)}. Raise --time-limit, "
        f"or --processes over {processes}, or use a quieter machine"
    )


def _not_told_apart(doubt: Doubt) -> str:
    best, *others = doubt.labels
    return (
        f"{listed(others)} may be as fast as {best}: the median is longer, but varies too much to tell. Raise "
        "--processes"
    )


def _narrow_lead(doubt: Doubt) -> str:
    processes = _count(doubt, "processes")
    measured = "a single process" if processes == "1" else f"{processes} processes"
    return (
        f"{doubt.labels[0]} leads by less than {percent(NARROW_LEAD)} in {measured} of each, but two equal processes "
        f"can be so far apart. Measure more of them: --processes {FEWEST_FOR_NARROW_LEAD}"
    )


def _unpaired(_: Doubt) -> str:
    return (
        "some cells were not measured in the same rounds, and the machine may have changed in between: leads under "
        f"{percent(MARGIN_UNPAIRED)} between them count as ties. Measure them in one run, interleaved"
    )


def _reference(doubt: Doubt) -> str:
    computed_in, *more = doubt.details
    if computed_in == "float64":
        return f"checked against {computed_in}, but without float64 ran in float32: {', '.join(more)}"
    why = f" ({'; '.join(more)})" if more else ""
    return (
        f"checked against eager in {computed_in}, since float64 could not be computed here{why}: an error that eager "
        "makes too is not seen"
    )


def _settled_late(doubt: Doubt) -> str:
    return (
        f"this build was final only after {_count(doubt, 'calls')} calls ({doubt.values['seconds']:.1f} s). They count "
        "as part of building it"
    )


def _placement(doubt: Doubt) -> str:
    extent, *elsewhere = doubt.details
    where = ", ".join(elsewhere) or "see its placement"
    return (
        f"{doubt.labels[0]} ran only in part where it was asked to ({extent}): {where}. Its latency is that of both "
        "parts; with --strict it is not ranked"
    )


def _process_spread(doubt: Doubt) -> str:
    return (
        f"processes of the same cell differ, the slowest from the fastest by: {_with_shares(doubt)}. The intervals "
        "contain this, and more --processes narrow them"
    )


def _fresh_memory(doubt: Doubt) -> str:
    pages = ", ".join(f"{label} {doubt.values[label]:,.0f}" for label in doubt.labels)
    return (
        f"each call gets memory from the kernel that the C library had given back after the last one (pages: {pages}). "
        f"It may be much faster with {KEEPING_MEMORY}: measure and serve with them"
    )


def _clock_fell(doubt: Doubt) -> str:
    return (
        f"the GPU's clock fell to {_count(doubt, 'lowest_mhz')} MHz in {_share(doubt)} of the measurements"
        f"{_reasons(doubt)}. {_SLOWED_GPU}"
    )


def _clock_held_down(doubt: Doubt) -> str:
    return f"the GPU's clock was held down in {_share(doubt)} of the measurements{_reasons(doubt)}. {_SLOWED_GPU}"


_SLOWED_GPU = "The latencies are those of a slowed GPU: check its cooling and its power limit"


def _reasons(doubt: Doubt) -> str:
    """Return why the clock was held down, in NVML's words, and how hot the GPU was."""
    heat = [f"at up to {_count(doubt, 'temperature_c')} °C"] if "temperature_c" in doubt.values else []
    named = ", ".join([*doubt.details, *heat])
    return f" ({named})" if named else ""


def _waited(doubt: Doubt) -> str:
    return f"other processes kept the machine busy in {_share(doubt)} of the measurements. {_what_of_these(doubt)}"


def _stolen(doubt: Doubt) -> str:
    return f"the hypervisor gave our cores to others in {_share(doubt)} of the measurements. {_what_of_these(doubt)}"


def _what_of_these(doubt: Doubt) -> str:
    if COUNTED in doubt.values:
        return "They count, since too few others remain: measure again while the machine is quiet"
    return "They were left out where cells are compared"


def _always_waited(doubt: Doubt) -> str:
    return (
        f"threads waited for a core all the time ({_with_shares(doubt)} of their time, summed over threads): there are "
        "more threads than cores, or another process never rests. Stop it, or lower OMP_NUM_THREADS"
    )


def _drift(doubt: Doubt) -> str:
    return (
        f"the machine's speed drifted by {percent(doubt.values['share'])} over the run. Ratios are taken within rounds "
        "and stay right; the latencies are an average"
    )


def _gpu_shared(doubt: Doubt) -> str:
    most = int(doubt.values["processes"])
    others, them = ("processes", "them") if most > 1 else ("process", "it")
    return f"{most} other {others} used the GPU meanwhile. Stop {them} and measure again"


def _not_ranked(doubt: Doubt) -> str:
    status, reason = doubt.details
    if status == Status.NOT_REACHED:
        were, them = ("were", "them") if len(doubt.labels) > 1 else ("was", "it")
        return f"{listed(doubt.labels)} {were} not reached: {reason}. `resume` measures {them}"
    are = "are" if len(doubt.labels) > 1 else "is"
    return f"{listed(doubt.labels)} {are} not ranked, {status}{f': {reason}' if reason else ''}"


_DOUBTS: dict[DoubtKind, Callable[[Doubt], str]] = {
    DoubtKind.UNDECIDED: _undecided,
    DoubtKind.NOT_TOLD_APART: _not_told_apart,
    DoubtKind.NARROW_LEAD: _narrow_lead,
    DoubtKind.NO_BASELINE: lambda doubt: (
        f"there is no {doubt.labels[0]} to compare with, so no speed-up can be given. Measure it too"
    ),
    DoubtKind.UNPAIRED: _unpaired,
    DoubtKind.REQUIREMENT: lambda doubt: f"{doubt.labels[0]} may not win: {unmet(doubt)}",
    DoubtKind.CAVEAT: lambda doubt: doubt.details[0],
    DoubtKind.NOTED: lambda doubt: doubt.details[0],
    DoubtKind.REFERENCE: _reference,
    DoubtKind.COARSE_CHECK: lambda doubt: (
        f"the error is up to {100 * doubt.values['error']:.0f} % of the outputs and passes, because eager's is as "
        "large: this check finds only gross faults. Random weights often do this: check trained ones"
    ),
    DoubtKind.RECOMPILED: lambda doubt: (
        f"compiled {_count(doubt, 'count')} more time(s) while it was measured: its latency may contain compiling. Fix "
        "the shapes of the inputs"
    ),
    DoubtKind.WARM_UP: lambda doubt: (
        f"still became faster or slower after {doubt.values['seconds']:.0f} s of warm-up: its latency in a long-lived "
        "process may be another. A longer --min-time shows it"
    ),
    DoubtKind.WARM_UP_NOISE: lambda _: (
        "latencies still moved by more than 2 % at the end of the warm-up, but neither up nor down: this is noise"
    ),
    DoubtKind.PROCESS_LOST: lambda doubt: (
        f"a further process was {doubt.details[0]}: its numbers are those of the processes before"
    ),
    DoubtKind.SETTLED_LATE: _settled_late,
    DoubtKind.PLACEMENT: _placement,
    DoubtKind.BUILD_SPREAD: lambda doubt: (
        f"builds of the same cell differ, the slowest from the fastest by: {_with_shares(doubt)}. That is more than "
        "processes of one build do, so the interval holds for these builds only: raise --builds"
    ),
    DoubtKind.PROCESS_SPREAD: _process_spread,
    DoubtKind.FRESH_MEMORY: _fresh_memory,
    DoubtKind.CLOCK_FELL: _clock_fell,
    DoubtKind.CLOCK_HELD_DOWN: _clock_held_down,
    DoubtKind.WAITED: _waited,
    DoubtKind.ALWAYS_WAITED: _always_waited,
    DoubtKind.STOLEN: _stolen,
    DoubtKind.DRIFT: _drift,
    DoubtKind.GPU_SHARED: _gpu_shared,
    DoubtKind.NOT_RANKED: _not_ranked,
}


def _share(doubt: Doubt) -> str:
    return percent(max(0.01, doubt.values["share"]))


def _count(doubt: Doubt, name: str) -> str:
    return f"{doubt.values[name]:,.0f}"


def _with_shares(doubt: Doubt) -> str:
    return ", ".join(f"{label} {percent(doubt.values[label])}" for label in doubt.labels)


_WHY_NOT_MEASURED = {
    **dict.fromkeys(("median_ms", "mean_ms", "min_ms"), "no latency was measured"),
    **dict.fromkeys(PERCENTILES, "the sample is too small for this percentile: raise --min-time"),
    "calls_per_s": "no throughput was measured",
    "build_s": "no phase was timed",
    **dict.fromkeys(("first_call_s", "first_answer_s"), "no first call was timed"),
    **dict.fromkeys(("warm_build_s", "warm_first_answer_s"), "it was never started warm"),
    "peak_device_bytes": "no memory of a device was read",
    "peak_resident_bytes": "no memory was read",
    "artifact_bytes": "it leaves no artefact",
    **dict.fromkeys(("rmse", "relative_rmse", "max_abs_error"), "no error was measured"),
    "joules_per_call": "this machine counts no energy",
}


def _why_not_measured(name: str) -> str:
    return _WHY_NOT_MEASURED.get(name, "it was not measured")


def _quantity(name: str, value: float) -> str:
    """Return six digits, so that a value that just misses a limit does not read like the limit. Bytes get a unit."""
    if not QUANTITIES[name].is_bytes:
        return f"{value:.6g}"
    unit = next(unit for unit in ("GB", "MB", "kB", "B") if value >= UNITS[unit] or unit == "B")
    return f"{value / UNITS[unit]:.6g} {unit}"
