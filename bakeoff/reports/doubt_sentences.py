"""What there is to doubt of a contest or a record, as sentences: what it means, and what to do."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from bakeoff.judging import doubts as contest_doubts
from bakeoff.judging.certainty import Effect
from bakeoff.judging.constraints import OF_STARTS, PERCENTILES, QUANTITIES, UNITS, is_bytes
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import FEWEST_FOR_NARROW_LEAD, MARGIN_UNPAIRED, NARROW_LEAD
from bakeoff.judging.doubts import Stop
from bakeoff.judging.headline import doubts_by_effect
from bakeoff.records import doubts as record_doubts
from bakeoff.records.schema import ORIGINAL, WITH_WINNERS, Extent, Status
from bakeoff.records.text import counted, first, listed, percent, to_go_on
from bakeoff.reports import number_format
from bakeoff.reports.traits import is_reading, of_accesses

EFFECTS = {
    Effect.WINNER: "What could change the winner",
    Effect.NUMBER: "What could change the winner's numbers",
    Effect.NONE: "Other remarks",
}
"""What stands above the doubts that have this effect. The remarks fold away."""


def heading(effect: Effect, contest: ContestJudgement) -> str:
    """Return what stands above the doubts with this effect. Those under load are told with what is carried."""
    return f"{EFFECTS[effect]}{' at single calls' if contest.load and effect is not Effect.NONE else ''}"


def doubts(contest: ContestJudgement) -> list[str]:
    """Return each doubt about a contest as a sentence, in order of weight."""
    return [doubt(each) for each in contest.doubts]


def doubts_with(effect: Effect, contest: ContestJudgement) -> list[str]:
    """Return the doubts that have this effect on the answer, as sentences. How failed cells ended is told by rows."""
    doubts = doubts_by_effect(contest)[effect]
    return [
        doubt(each) for each in doubts if effect is not Effect.NONE or not isinstance(each, contest_doubts.NotRanked)
    ]


def doubt(doubt: contest_doubts.Doubt) -> str:
    """Say what there is to doubt of a contest, and of which cells."""
    match doubt:
        case contest_doubts.OfRecords():
            return f"{', '.join(doubt.labels)}: {doubt_of_record(doubt.doubt)}"
        case contest_doubts.Undecided() | contest_doubts.NarrowLead() if doubt.best in (ORIGINAL, WITH_WINNERS):
            return (
                "calls of the whole pipeline, in one process, differ too much to tell whether it is faster with the "
                "winners. Use a quieter machine, or an example call in which the parts take more of the time"
            )
        case contest_doubts.Undecided() | contest_doubts.NotToldApart() if doubt.stop is Stop.INTERRUPTED:
            return (
                f"the run was interrupted before it was decided how {doubt.best} compares with "
                f"{listed(list(doubt.ratios))}. {to_go_on(doubt.is_live)}"
            )
        case contest_doubts.Undecided():
            processes = "one process" if doubt.processes == 1 else f"{doubt.processes} processes"
            return (
                f"{processes} of each cannot decide how {doubt.best} compares with "
                f"{listed(list(doubt.ratios))}. Raise {_limit_of(doubt)}, or use a quieter machine"
            )
        case contest_doubts.MachineBusy():
            return (
                f"{_why_busy(doubt)}: threads waited for cores so long that calls would measure the waiting. Stop what "
                "else runs, give the run fewer threads (OMP_NUM_THREADS=1), or let it wait: --wait-for-quiet 10m"
            )
        case contest_doubts.LastRunDiffers():
            said = "the opposite" if doubt.is_opposite else "otherwise"
            return (
                f"the last run ({doubt.run_id}) said {said}: {ratios_of_runs(doubt)}. One of them is wrong, or "
                "something changed between them: measure again, on a quiet machine"
            )
        case contest_doubts.NotToldApart():
            return (
                f"{listed(list(doubt.ratios))} may be as fast as {doubt.best}: the median is longer, but varies too "
                "much to tell. Raise --processes"
            )
        case contest_doubts.NarrowLead():
            on = "`resume`, or " if doubt.stop is Stop.INTERRUPTED and not doubt.is_live else ""
            measured = "a single process" if doubt.processes == 1 else f"{doubt.processes} processes"
            return (
                f"{doubt.best} leads by less than {percent(NARROW_LEAD)} in {measured} of each, but two equal "
                f"processes can be so far apart. Measure more of them: {on}--processes {FEWEST_FOR_NARROW_LEAD}"
            )
        case contest_doubts.NoBaseline():
            return f"{doubt.baseline} has no numbers here, so no speed-up can be given. Measure it too"
        case contest_doubts.ModelChanges():
            return (
                f"{doubt.label} is the model itself, and later answers of it were wrong: what it answers changes with "
                "the number of calls. Builds were checked against its first answers only. Let it answer every call "
                "alike, or compare later answers yourself"
            )
        case contest_doubts.Unpaired():
            return (
                "some cells were not measured in the same rounds, and the machine may have changed in between: leads "
                f"under {percent(MARGIN_UNPAIRED)} between them count as ties. Measure them in one run, interleaved"
            )
        case contest_doubts.RequirementMissed():
            return of_requirement(doubt)
        case contest_doubts.RequirementOpen():
            return f"{listed(list(doubt.labels))} may miss what is required: {_open_requirement(doubt)}"
        case contest_doubts.NotEvaluated(of_reference=True):
            return f"nothing was evaluated: evaluate failed for the float32 reference: {doubt.reason}"
        case contest_doubts.NotEvaluated():
            return f"{listed(list(doubt.labels))} could not be evaluated: {doubt.reason}"
        case contest_doubts.WithoutInterval():
            return (
                f"{listed(list(doubt.quantities))}: evaluate returns a plain number, which has no interval, so that a "
                "difference may be chance. Let it return the score of each sample"
            )
        case contest_doubts.EvaluationVaries():
            return (
                f"evaluate is not repeatable: {doubt.label} is the reference itself, and its {doubt.metric} is "
                f"{number_format.metric(doubt.value)} here and {number_format.metric(doubt.reference)} there. "
                "Let it use the same samples in each call"
            )
        case contest_doubts.JudgedByCalibration():
            return (
                f"{listed(list(doubt.labels))}: {doubt.samples:,} of the {doubt.judged:,} samples that evaluate judges "
                "are calibration data, so that the metric may look better than it is. Let calibrate return others"
            )
        case contest_doubts.CoarseCheck():
            return (
                f"{', '.join(doubt.labels)}: the error is up to {100 * doubt.error:.0f} % of the outputs and passes, "
                "because eager's is as large: this check finds only gross faults. Random weights often do this: check "
                "trained ones"
            )
        case contest_doubts.SettledLate():
            calls = counted(doubt.calls, "call")
            return (
                f"{doubt.label}: this build was final only after {calls} ({doubt.seconds:.1f} s). They count as part "
                "of building it"
            )
        case contest_doubts.PartlyElsewhere(extent=Extent.FALLBACK):
            where = f": {_reasons(doubt.elsewhere)}" if doubt.elsewhere else ""
            where = f": {', '.join(doubt.engines)} did the work" if doubt.engines else where
            return f"{doubt.label} did not run where it was asked to (fallback){where}. With --strict it is not ranked"
        case contest_doubts.PartlyElsewhere():
            where = _reasons(doubt.elsewhere or doubt.engines) or "the library does not say what ran elsewhere"
            return (
                f"{doubt.label} ran only in part where it was asked to ({doubt.extent}): {where}. Its latency is that "
                "of both parts; with --strict it is not ranked"
            )
        case contest_doubts.BuildSpread():
            return (
                f"builds of the same cell differ, the slowest from the fastest by: {_percentages(doubt.spreads)}. That "
                "is more than processes of one build do, so the interval holds for these builds only: raise --builds"
            )
        case contest_doubts.ProcessSpread():
            return (
                f"processes of the same cell differ, the slowest from the fastest by: {_percentages(doubt.spreads)}. "
                "The intervals contain this, and more --processes narrow them"
            )
        case contest_doubts.RoughLatency():
            return _rough_latency(doubt)
        case contest_doubts.ThroughputContradicted():
            return (
                f"the throughput is only a part of what the latency allows ({_percentages(doubt.shares)}), also when "
                "measured again: other load took the machine meanwhile. Measure it on a quiet machine"
            )
        case contest_doubts.TwoSpeeds():
            factors = ", ".join(f"{label} {factor:.1f} times" for label, factor in doubt.factors.items())
            return (
                f"calls back to back were far faster than the latency of single calls allows ({factors}): these "
                "processes have two speeds, and the interval contains one of them. Raise --processes"
            )
        case contest_doubts.FreshMemory():
            pages = ", ".join(f"{label} {count:,.0f}" for label, count in doubt.pages.items())
            return (
                "each call gets memory from the kernel that the C library had given back after the last one (pages: "
                f"{pages}). Another allocator may be much faster: measure rows such as eager@glibc-tuned, and serve so"
            )
        case contest_doubts.ClockFell():
            return (
                f"the GPU's clock fell to {doubt.lowest_mhz:,} MHz in {_share(doubt.share)} of the measurements"
                f"{_throttling(doubt)}. {_SLOWED_GPU}"
            )
        case contest_doubts.ClockHeldDown():
            held_down = f"the GPU's clock was held down in {_share(doubt.share)} of the measurements"
            return f"{held_down}{_throttling(doubt)}. {_SLOWED_GPU}"
        case contest_doubts.CoresTaken():
            busy = f"other processes kept the machine busy in {_share(doubt.share)} of the measurements"
            return f"{busy}. {_what_of_these(doubt)}"
        case contest_doubts.CoresStolen():
            stolen = f"the hypervisor gave our cores to others in {_share(doubt.share)} of the measurements"
            return f"{stolen}. {_what_of_these(doubt)}"
        case contest_doubts.AlwaysWaited():
            return (
                "threads waited for a core all the time (in each second of calls, and summed over threads, "
                f"{', '.join(f'{label} {share:.2g} s' for label, share in doubt.shares.items())}): "
                + (
                    "another process never rests. Stop it"
                    if doubt.have_one_thread
                    else "there are more threads than cores, or another process never rests. Stop it, or lower "
                    "OMP_NUM_THREADS"
                )
            )
        case contest_doubts.SpeedDrifted():
            by = f"by {percent(doubt.share)}" if doubt.share <= 1 else f"by a factor of {1 + doubt.share:.2g}"
            return (
                f"the machine's speed drifted {by} over the run. Ratios are taken within rounds, so that a "
                "slower clock divides out; the latencies are an average"
            )
        case contest_doubts.GpuShared():
            others, them = ("processes", "them") if doubt.processes > 1 else ("process", "it")
            return f"{doubt.processes} other {others} used the GPU meanwhile. Stop {them} and measure again"
        case contest_doubts.NotRanked():
            return _not_ranked(doubt)
    assert_never(doubt)


def doubt_of_record(doubt: record_doubts.RecordDoubt) -> str:
    """Say what there is to doubt of a record's own cell."""
    match doubt:
        case record_doubts.Caveat():
            return doubt.text
        case record_doubts.Unchecked():
            which = "some of its outputs" if doubt.others_compared else "its outputs"
            return f"{which} could not be compared: {doubt.why}. Compare them yourself before you rely on it"
        case record_doubts.FrozenChoices():
            return (
                f"the trace froze what the model decides by the values of its inputs ({'; '.join(doubt.places)}): for "
                "other inputs this build may answer wrongly, and it does less work than the model"
            )
        case record_doubts.InputsNotWritten():
            why = (
                ". The mode copies images into channels_last memory, unless they are in it already, and calls write "
                "into the copies"
            )
            return (
                f"does not write the change into its inputs that the model makes ({listed(first(doubt.names))}): a "
                f"caller that reads them afterwards sees other values{why if doubt.are_converted else ''}"
            )
        case record_doubts.Dropped():
            why = ": its answer holds what was read while it was built" if is_reading(doubt.accesses) else ""
            return f"the model {of_accesses(doubt.accesses)} in forward, and this build does not{why}"
        case record_doubts.Growing():
            return (
                f"the model keeps more from call to call ({listed(first(doubt.names))} grows): its memory grows, and "
                "calls may take longer the more there were before"
            )
        case record_doubts.Recalled():
            return (
                "the model keeps answers, or parts of them: inputs that it has seen take "
                f"{doubt.again:,} of the {counted(doubt.operators, 'operator')} that new ones take. Here the same few "
                "inputs come again, so its latency may be that of a lookup. Measure the model without its cache"
            )
        case record_doubts.DecidedByRounding(computed_in="float64"):
            return (
                f"the answer depends on rounding ({doubt.how}): what is at most four times as far off as eager "
                "passes, so that a fault of that size is not seen"
            )
        case record_doubts.DecidedByRounding():
            return (
                f"checked against eager in {doubt.computed_in}, since what the model decides depends on rounding "
                f"({doubt.how})"
            )
        case record_doubts.NarrowReference(computed_in="float64"):
            operators = ", ".join(doubt.in_float32)
            return f"checked against float64, but without float64 ran in float32: {operators}"
        case record_doubts.NarrowReference():
            causes = "; ".join([*([doubt.why] if doubt.why else []), *doubt.in_float32])
            return (
                f"checked against eager in {doubt.computed_in}, since float64 gave no reference here"
                f"{f' ({causes})' if causes else ''}: an error that eager makes too is not seen"
            )
        case record_doubts.AcceptedByMetric() | record_doubts.AcceptedByLimit():
            return (
                f"the numeric check rejects it (relative RMSE {number_format.error(doubt.relative_rmse)}), but "
                f"{why_accepted(doubt)}. Make sure that this covers what you need"
            )
        case record_doubts.OtherWidths():
            return f"returns {', '.join(doubt.outputs)}, with the right values: cast it where your code needs the type"
        case record_doubts.Recompiled():
            return (
                f"compiled {counted(doubt.count, 'more time')} while it was measured: its latency may contain "
                "compiling. Fix the shapes of the inputs"
            )
        case record_doubts.WarmUpTrend():
            return (
                f"still became faster or slower after {doubt.seconds:.0f} s of warm-up: its latency in a long-lived "
                "process may be another. A longer --min-time shows it"
            )
        case record_doubts.WarmUpNoise():
            return (
                "latencies still moved by more than 2 % at the end of the warm-up, but neither up nor down: this is "
                "noise"
            )
        case record_doubts.ProcessLost() if doubt.rounds:
            measured = f"What {counted(doubt.rounds, 'round')} measured until then counts"
            return f"{doubt.reason}. {measured}, but the outputs were not checked again"
        case record_doubts.ProcessLost():
            return f"a further process was {doubt.reason}: its numbers are those of the processes before"
        case record_doubts.BuiltAnew():
            return f"a build that an earlier run kept failed ({doubt.reason}): its numbers are those of a new build"
    assert_never(doubt)


def why_accepted(doubt: record_doubts.Accepted) -> str:
    """Say what accepts outputs that the numeric check rejects."""
    if isinstance(doubt, record_doubts.AcceptedByLimit):
        return f"--accept '{doubt.required}' allows it"
    return f"{doubt.required} surely holds, which decides"


def brief(doubt: contest_doubts.Doubt) -> str:
    """Say in a few words, after `but`, what could change the winner."""
    match doubt:
        case contest_doubts.Undecided() | contest_doubts.NotToldApart():
            return f"{listed(first(list(doubt.ratios)), 'or')} may be as fast"
        case contest_doubts.MachineBusy():
            return _why_busy(doubt)
        case contest_doubts.LastRunDiffers():
            return "the last run said the opposite"
        case contest_doubts.ModelChanges():
            return "the model's answers change with the number of calls"
        case contest_doubts.NarrowLead():
            return "measured in too few processes"
        case contest_doubts.NotRanked():
            return f"{listed(first(doubt.labels))} {'were' if len(doubt.labels) > 1 else 'was'} not reached"
        case contest_doubts.CoresTaken() | contest_doubts.CoresStolen() | contest_doubts.AlwaysWaited():
            return "the machine was busy"
        case contest_doubts.GpuShared():
            return "the GPU was shared"
        case contest_doubts.BuildSpread():
            return "other builds may differ"
        case contest_doubts.TwoSpeeds():
            return "some processes have two speeds"
        case contest_doubts.RequirementOpen():
            asked = f"{listed(first(doubt.labels))} may miss {doubt.quantity} {doubt.comparison} {doubt.limit}"
            return f"{asked}: {_further_samples(doubt)}"
        case contest_doubts.NotEvaluated():
            return "its metrics are not known"
        case contest_doubts.JudgedByCalibration():
            return "it is judged by its calibration data"
        case contest_doubts.OfRecords(doubt=record_doubts.Unchecked()):
            return "its outputs could not be compared"
        case contest_doubts.OfRecords(doubt=record_doubts.ProcessLost()):
            return "its outputs were not checked after its rounds"
        case contest_doubts.OfRecords(doubt=record_doubts.FrozenChoices()):
            return "a choice of the model is frozen in it"
        case contest_doubts.OfRecords(doubt=record_doubts.InputsNotWritten()):
            return "it does not write into its inputs as the model does"
        case contest_doubts.OfRecords(doubt=record_doubts.Dropped(accesses=accesses)):
            reads = "it froze what the model reads in forward"
            return reads if is_reading(accesses) else "it leaves out what the model does in forward"
        case contest_doubts.OfRecords(doubt=record_doubts.Growing()):
            return "the model keeps more from call to call"
        case contest_doubts.OfRecords(doubt=record_doubts.Recalled()):
            return "the model keeps its answers to these inputs"
        case contest_doubts.OfRecords(doubt=record_doubts.DecidedByRounding()):
            return "the answer depends on rounding"
    raise ValueError(f"{type(doubt).__name__} does not make a winner doubtful")


def _why_busy(doubt: contest_doubts.MachineBusy) -> str:
    """Return why cells that the table ranks below the best one may be as fast.

    `the machine was busy (without waiting, onnx is about 4.8x as fast as eager)`
    """
    known = [_about(doubt.best, label, each.value) for label, each in doubt.ratios.items() if each.is_rough]
    if known:
        return f"the machine was busy (without waiting, {listed(known)})"
    return (
        f"the machine was busy, and waiting for cores may be all that makes {listed(first(list(doubt.ratios)))} slower"
    )


def _about(one: str, other: str, ratio: float) -> str:
    fast, slow = (one, other) if ratio >= 1 else (other, one)
    return f"{fast} is about {number_format.ratio(max(ratio, 1 / ratio))}x as fast as {slow}"


def ratios_of_runs(doubt: contest_doubts.LastRunDiffers) -> str:
    """Return `onnx was 1.13x as fast as eager [1.08, 1.20], and now is 0.56x [0.54, 0.58]`."""
    before, now = (
        f"{number_format.ratio(each.value)}x{{}} {number_format.ratio_interval(each.ci95)}".rstrip()
        for each in (doubt.before, doubt.now)
    )
    return f"{doubt.label} was {before.format(f' as fast as {doubt.other}')}, and now is {now.format('')}"


def of_requirement(doubt: contest_doubts.RequirementMissed) -> str:
    """Say which cell may not win, and why."""
    return f"{doubt.label} may not win: {unmet(doubt)}"


def unmet(doubt: contest_doubts.RequirementMissed) -> str:
    """Say which requirement is not met: `p99_ms is 5.2, not < 5`."""
    if doubt.value is None:
        return f"{doubt.quantity} cannot be judged: {doubt.why or _why_not_measured(doubt.quantity)}"
    if doubt.is_of_metric:
        near = f" (reference {number_format.metric(doubt.reference)})" if doubt.reference is not None else ""
        return f"{doubt.quantity} is {number_format.metric(doubt.value)}{near}, not {doubt.comparison} {doubt.limit}"
    return f"{doubt.quantity} is {_quantity(doubt.quantity, doubt.value)}, not {doubt.comparison} {_limit(doubt)}"


def _open_requirement(doubt: contest_doubts.RequirementOpen) -> str:
    """Say how far the samples tell, and how many more would tell: `8 samples do not show that top1 is > -1%`."""
    if doubt.quantity in QUANTITIES:
        return (
            f"{doubt.quantity} is {_quantity(doubt.quantity, doubt.value)}, and {doubt.samples:,} repetitions do not "
            f"show whether it is {doubt.comparison} {_limit(doubt)}"
        )
    near = f" (reference {number_format.metric(doubt.reference)})" if doubt.reference is not None else ""
    text = (
        f"{doubt.quantity} is {number_format.metric(doubt.value)}{near}, and {doubt.samples:,} samples do not show "
        f"whether it is {doubt.comparison} {doubt.limit}"
    )
    if doubt.further is None:
        return f"{text}. It is so near that {_further_samples(doubt)}"
    return f"{text}. {_further_samples(doubt).capitalize()}, if they are like these"


def _further_samples(doubt: contest_doubts.RequirementOpen) -> str:
    return (
        "more samples would hardly tell"
        if doubt.further is None
        else f"about {doubt.further:,} more samples would tell"
    )


def _rough_latency(doubt: contest_doubts.RoughLatency) -> str:
    """Say between what a latency may lie, and that a ratio is known by itself."""
    ranges = [
        f"{label} {number_format.milliseconds_interval(each)} ms"
        f"{', which begins below the floor' if label in doubt.below_floor else ''}"
        for label, each in doubt.intervals.items()
    ]
    ratios = " Ratios are taken within rounds and have intervals of their own." if doubt.has_ratios else ""
    return (
        f"the latency is known only roughly: {'; '.join(ranges)}. Its processes or rounds differ too much, or are too "
        f"few.{ratios} {to_go_on(doubt.is_live) if doubt.stop is Stop.INTERRUPTED else 'Raise --processes'}"
    )


def _limit_of(doubt: contest_doubts.Undecided) -> str:
    """Return the limit that kept the cells from further processes."""
    match doubt.stop:
        case Stop.PROCESSES:
            return f"--processes over {doubt.processes}"
        case Stop.BUDGET:
            return "--budget"
    return "--time-limit"


_SLOWED_GPU = "The latencies are those of a slowed GPU: check its cooling and its power limit"


def _throttling(doubt: contest_doubts.ClockFell | contest_doubts.ClockHeldDown) -> str:
    """Return why the clock was held down, in NVML's words, and how hot the GPU was."""
    heat = [] if doubt.temperature_c is None else [f"at up to {doubt.temperature_c} °C"]
    named = ", ".join([*doubt.reasons, *heat])
    return f" ({named})" if named else ""


def _what_of_these(doubt: contest_doubts.CoresTaken | contest_doubts.CoresStolen) -> str:
    if doubt.is_counted:
        return "They count, and without them the answer is open: measure again while the machine is quiet"
    return "No narrow lead depends on them"


def _not_ranked(doubt: contest_doubts.NotRanked) -> str:
    labels, several = listed(list(doubt.labels)), len(doubt.labels) > 1
    if doubt.status is Status.NOT_REACHED:
        were, them = ("were", "them") if several else ("was", "it")
        return f"{labels} {were} not reached: {doubt.reason}. {to_go_on(doubt.is_live, them)}"
    are = "are" if several else "is"
    return f"{labels} {are} not ranked, {doubt.status}{f': {doubt.reason}' if doubt.reason else ''}"


def _share(share: float) -> str:
    return percent(max(0.01, share))


def _percentages(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {percent(share)}" for label, share in shares.items())


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
    "joules_per_call": "no energy was counted, or less than the counter resolves",
    **dict.fromkeys(OF_STARTS, "it was not started"),
}


def _why_not_measured(name: str) -> str:
    return _WHY_NOT_MEASURED.get(name, "it was not measured")


def _quantity(name: str, value: float) -> str:
    """Return six digits, so that a value that just misses a limit does not read like it. Tables have MiB, too."""
    return f"{value / number_format.MEBIBYTE:.6g} MiB" if is_bytes(name) else f"{value:.6g}"


def _limit(doubt: contest_doubts.RequirementMissed | contest_doubts.RequirementOpen) -> str:
    """Return the limit as it was written, and bytes in MiB, too."""
    number, _, unit = doubt.limit.partition(" ")
    if not is_bytes(doubt.quantity) or unit == "MiB":
        return doubt.limit
    return f"{doubt.limit} ({_quantity(doubt.quantity, float(number) * UNITS.get(unit, 1))})"


def _reasons(reasons: Sequence[str]) -> str:
    """Return reasons of libraries as a part of a sentence. Those that end in a full stop lose it."""
    return ", ".join(reason.rstrip(". ") for reason in reasons)
