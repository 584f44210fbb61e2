"""Every sentence of a report, one function for each: typed values go in, plain text comes out.

Nothing here is escaped: who shows a sentence in Markdown, HTML or on a terminal does that.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from judging.compare import CellChange, ReasonKind
from judging.constraints import PERCENTILES, QUANTITIES, UNITS
from judging.contest import CellJudgement, ContestJudgement
from judging.decision import MARGIN_UNPAIRED, NARROW_LEAD
from judging.environments import Difference
from judging.judgement import Judgement
from judging.ranking import BASELINE
from judging.sweeps import Stretch, Sweep
from records.schema import SETTLE, Doubt, DoubtKind, Ratio, Record, Report, Standing, Status, Verdict
from records.text import spell_ms


def verdict(contest: ContestJudgement) -> str:
    """Return the whole verdict with its title, as one sentence."""
    return f"{contest.title}: {finding(contest)}."


def verdict_alone(contest: ContestJudgement) -> str:
    """Return the verdict for an output that shows no cell: if all failed, with the reason of the first."""
    reasons = [cell.record.reason for cell in contest.cells if cell.record.status.is_failure and cell.record.reason]
    if contest.best is None and reasons:
        return f"{contest.title}: {finding(contest)}: {reasons[0]}"
    return verdict(contest)


def finding(contest: ContestJudgement) -> str:
    """Say who wins and by how much, without the title and the full stop."""
    if contest.best is None:
        return f"nothing could be ranked ({_endings(contest)})"
    text = _tie(contest) if contest.tied else _win(contest)
    return f"{text}; unstable, since measuring ended before this was decided" if contest.unstable else text


def outcome(contest: ContestJudgement) -> str:
    """Say in a few words what came out of a contest: `mlp on cpu, fp32: onnx wins, 0.0533 ms, 4.25x eager`."""
    best = contest.best
    if best is None or best.latency is None:
        return f"{contest.title}: nothing could be ranked"
    if contest.unstable:
        first = f"not decided between {' and '.join([best.label, *contest.open_labels])}"
    else:
        alone = f"{best.label} wins" if contest.runner_up else f"only {best.label} could be ranked"
        first = f"{' and '.join(contest.tied)} tie" if contest.tied else alone
    over = f", {best.speedup.value:.2f}x {contest.baseline}" if best.speedup and not best.is_baseline else ""
    return f"{contest.title}: {first}, {spell_ms(best.latency.median_ms)}{over}"


def what_to_ship(contest: ContestJudgement, folder: str = "") -> str:
    """Say where the winner's artefact is in the run's `folder`, and what makes of it a folder that runs alone."""
    best = contest.best
    if contest.winner is None or best is None or not best.record.artifact:
        return ""
    kept = f"{folder}/{best.record.artifact}" if folder else best.record.artifact
    command = f"python runner.py export {shlex.quote(folder or 'FOLDER')} {best.cell.id}"
    return f"What {best.label} built is kept: {kept}. To run it without Bakeoff: {command}"


def what_all_winners_ship(judgement: Judgement, folder: str) -> str:
    """Say the same of all contests together, in one line."""
    kept = [said for contest in judgement.contests if (said := what_to_ship(contest, folder))]
    if len(kept) < 2:
        return "".join(kept)
    command = f"python runner.py export {shlex.quote(folder)} CONTEST"
    return f"What the winners built is kept: {folder}/artifacts. To run one without Bakeoff: {command}"


def what_more_time_would_settle(judgement: Judgement) -> str:
    """Say what the time budget of the run has left open, or nothing."""
    budget = judgement.report.request.get("budget")
    if not budget:
        return ""
    left = [
        f"{contest.cells[0].label} against {' and '.join(contest.open_labels)} ({contest.cell.title})"
        for contest in judgement.contests
        if contest.open_labels
    ]
    not_reached = [record for record in judgement.report.records if record.status is Status.NOT_REACHED]
    parts = [f"more time would settle {', '.join(left)}"] if left else []
    if not_reached:
        labels = ", ".join(dict.fromkeys(record.cell.label for record in not_reached))
        parts.append(f"`resume` measures the cells that were not reached: {labels}")
    return f"--budget {budget}: {'; '.join(parts)}" if parts else ""


def doubt(doubt: Doubt) -> str:
    """Say what there is to doubt, and of which cells. In a record, it is about the record's own cell."""
    text = _DOUBTS[doubt.kind](doubt)
    about_cells = doubt.kind in _SAID_OF_CELLS and doubt.labels
    return f"{', '.join(doubt.labels)}: {text}" if about_cells else text


def doubts(contest: ContestJudgement) -> list[str]:
    """Return each doubt about a contest as a sentence, in order of weight."""
    return [doubt(each) for each in contest.doubts]


def left_early(contest: ContestJudgement) -> str:
    """Say which cells got no further process because they were surely beaten, and by whom, or nothing."""
    groups: dict[tuple[int, str], list[CellJudgement]] = {}
    for cell in contest.cells:
        if left := cell.record.left:
            groups.setdefault((left.after_process, left.than), []).append(cell)
    return "; ".join(_left_early(cells) for cells in groups.values())


def _left_early(cells: Sequence[CellJudgement]) -> str:
    """Say it of cells that left at the same time and were beaten by the same cell."""
    reasons = [cell.record.left for cell in cells if cell.record.left]
    processes = f"{'its' if len(cells) == 1 else 'their'} first"
    processes += " process" if reasons[0].after_process == 1 else f" {reasons[0].after_process} processes"
    least = min(left.ratio for left in reasons)
    return (
        f"{_listed([cell.label for cell in cells])} left after {processes}: at least {least:.1f} times slower than "
        f"{reasons[0].than} in every undisturbed round"
    )


def unmet(doubt: Doubt) -> str:
    """Say which requirement is not met: `p99_ms is 5.2, not < 5`."""
    name, comparison, limit = doubt.details
    if "value" not in doubt.values:
        return f"{name} cannot be judged: {_why_not_measured(name)}"
    return f"{name} is {_quantity(name, doubt.values['value'])}, not {comparison} {limit}"


def stored_verdict(contest: ContestJudgement) -> Verdict:
    """Return the verdict as `report.json` holds it for readers of the JSON."""
    return Verdict(
        contest_id=contest.contest_id,
        title=contest.title,
        baseline=contest.baseline if contest.ranked else None,
        winner=contest.winner,
        tied=list(contest.tied),
        runner_up=contest.runner_up,
        lead=contest.lead,
        standings=[_standing(cell) for cell in contest.ranked],
        sentence=verdict(contest),
        unstable=contest.unstable,
        doubts=doubts(contest),
    )


def why(change: CellChange) -> str:
    """Say why a compared cell has its outcome, or nothing if its numbers say it all."""
    reason = change.reason
    if reason is None:
        return ""
    if reason.kind is ReasonKind.ENDED:
        return _endings_of(change.base, change.new)
    if reason.kind is ReasonKind.DISAGREEMENT:
        return f"latency: {reason.latency}; relative to {BASELINE}: {reason.relative}"
    text = _WHY[reason.kind]
    return text if reason.margin is None else f"{text}, only a change over {percent(reason.margin)} could be told"


def difference(found: Difference) -> str:
    """Return `setting, threads: 1 -> 2`."""
    return f"{found.what}: {found.base} -> {found.new}"


def with_verdicts(judgement: Judgement) -> Report:
    """Return the judged report with its verdicts filled in, for readers of the JSON."""
    verdicts = [stored_verdict(contest) for contest in judgement.contests]
    return judgement.report.model_copy(update={"verdicts": verdicts})


def ratio(found: Ratio) -> str:
    """Return `1.85x [1.80, 1.90]`."""
    interval = f" [{found.ci95.low:.2f}, {found.ci95.high:.2f}]" if found.ci95 else ""
    return f"{found.value:.2f}x{interval}"


def sweep_title(sweep: Sweep) -> str:
    """Return a title such as `mlp (features 256, hidden 512) on cpu, fp32, over batch`."""
    cell = sweep.contests[0].cell
    kept = {name: value for name, value in cell.dimensions.items() if name != sweep.dimension}
    return f"{cell.model_copy(update={'dimensions': kept}).title}, over {sweep.dimension}"


def sweep_finding(sweep: Sweep) -> str:
    """Say which configuration is the fastest, and from which size on."""
    stretches: list[tuple[str, float]] = []
    for stretch in sweep.fastest:
        name = _leader(stretch)
        if not stretches or stretches[-1][0] != name:
            stretches.append((name, stretch.first_size))
    first, *others = stretches
    if not others:
        return f"fastest at every {sweep.dimension}: {first[0]}"
    further = ", ".join(f"from {sweep.dimension} {size:,.10g} on {name}" for name, size in others)
    return f"fastest: {first[0]}, {further}"


def _leader(stretch: Stretch) -> str:
    if stretch.winner:
        return f"{stretch.winner} (not decided)" if stretch.is_open else stretch.winner
    if not stretch.is_tie:
        return "nobody"
    return "undecided" if stretch.is_open else "a tie"


def _win(contest: ContestJudgement) -> str:
    best = contest.cells[0]
    if contest.runner_up is None or contest.lead is None:
        return f"only {best.label} could be ranked, at {_median(best)}"
    text = f"{best.label} wins at {_median(best)}, {ratio(contest.lead)} as fast as {contest.runner_up}"
    if best.speedup and contest.baseline not in (contest.runner_up, best.label):
        text += f" and {ratio(best.speedup)} as fast as {contest.baseline}"
    text += _over_processes(contest.lead)
    pays = best.break_even
    if pays is None or not pays.is_established or not pays.calls:
        return text
    return f"{text}; building it ({_build(best.record)}) pays from call {pays.calls:,} on"


def _tie(contest: ContestJudgement) -> str:
    names = contest.tied
    medians_ms = [cell.latency.median_ms for cell in contest.ranked if cell.label in names and cell.latency]
    is_open = any(label in names for label in contest.open_labels)
    text = f"{'no winner yet' if is_open else 'tie'} between {_listed(names)}"
    text += f" ({spell_ms(min(medians_ms))} to {spell_ms(max(medians_ms))})"
    best = contest.cells[0]
    if best.speedup and contest.baseline not in names:
        text += f", about {ratio(best.speedup)} as fast as {contest.baseline}"
    return text + _over_processes(contest.leads[names[1]])


def _median(cell: CellJudgement) -> str:
    return spell_ms(cell.latency.median_ms) if cell.latency else "no latency"


def _over_processes(found: Ratio) -> str:
    return f" over {found.processes} processes of each" if found.processes > 1 else ""


def _build(record: Record) -> str:
    settle_s = sum(phase.seconds for phase in record.phases if phase.name == SETTLE)
    further = f", and {settle_s:.1f} s of calls until it was final" if settle_s else ""
    return f"{record.build_s:.1f} s{further}"


def _endings(contest: ContestJudgement) -> str:
    """Return `1 crash, 2 oom`. Cells that do not meet the requirements are counted apart."""
    counts: dict[str, int] = {}
    for cell in contest.cells:
        ending = "not as required" if cell.unmet else cell.record.status.value
        counts[ending] = counts.get(ending, 0) + 1
    return ", ".join(f"{count} {ending}" for ending, count in counts.items())


def _standing(cell: CellJudgement) -> Standing:
    assert cell.rank is not None and cell.latency is not None
    pays = cell.break_even if cell.break_even and cell.break_even.is_established else None
    return Standing(
        cell_id=cell.cell.id,
        label=cell.label,
        rank=cell.rank,
        median_ms=cell.latency.median_ms,
        speedup_over_baseline=cell.speedup,
        break_even_calls=pays.calls if pays else None,
        break_even_established=pays is not None,
    )


def _endings_of(base: Record | None, new: Record | None) -> str:
    """Return how a cell ended in both runs, or once if it ended the same way."""
    known = [record for record in (base, new) if record]
    endings = [f"{record.status}: {record.reason}" if record.reason else record.status.value for record in known]
    return endings[-1] if len({record.status for record in known}) == 1 else " -> ".join(endings)


_WHY = {
    ReasonKind.NO_SAMPLES: "no samples to compare",
    ReasonKind.IS_CONTROL: "it is the control: its change cannot be told from the machine's",
    ReasonKind.OTHER_MACHINE: "measured on another machine",
    ReasonKind.SINGLE_PROCESS: "measured in a single process",
    ReasonKind.NO_BASELINE: f"no {BASELINE} in the same rounds of both runs",
    ReasonKind.WIDE_INTERVAL: "its interval is too wide: measure it in more processes",
}

_SAID_OF_CELLS = {
    DoubtKind.CAVEAT,
    DoubtKind.NOTED,
    DoubtKind.REFERENCE,
    DoubtKind.RECOMPILED,
    DoubtKind.WARM_UP,
    DoubtKind.WARM_UP_NOISE,
    DoubtKind.PROCESS_LOST,
    DoubtKind.SETTLED_LATE,
}
"""Sentences of these kinds do not name their cells: the labels are put before them."""


def _undecided(doubt: Doubt) -> str:
    best, *others = doubt.labels
    pairs = _with_ratios(others, doubt.ratios)
    processes = _count(doubt, "processes")
    return (
        f"unstable: {processes} processes of each cell do not decide how {best} compares with {pairs}. Raise "
        f"--time-limit, or --processes over {processes}, or use a quieter machine"
    )


def _not_told_apart(doubt: Doubt) -> str:
    best, *others = doubt.labels
    pairs = _with_ratios(others, doubt.ratios)
    return f"{best} cannot be told apart from cells with a longer median that vary more: {pairs}"


def _narrow_lead(doubt: Doubt) -> str:
    processes = _count(doubt, "processes")
    measured = "a single process" if processes == "1" else f"{processes} processes"
    return (
        f"{doubt.labels[0]} leads by less than {percent(NARROW_LEAD)}, and each cell was measured in {measured}: two "
        "equal processes can be up to 8 % apart"
    )


def _unpaired(_: Doubt) -> str:
    return (
        "some cells were not measured in the same rounds, so their ratios contain the machine's drift: leads under "
        f"{percent(MARGIN_UNPAIRED)} between them are called ties"
    )


def _reference(doubt: Doubt) -> str:
    computed_in, *in_float32 = doubt.details
    if in_float32:
        return f"checked against {computed_in}, but without float64 ran in float32: {', '.join(in_float32)}"
    return f"checked against eager in {computed_in}, since float64 could not be computed here"


def _settled_late(doubt: Doubt) -> str:
    return (
        f"this build needed {_count(doubt, 'calls')} calls ({doubt.values['seconds']:.1f} s) before it was final; they "
        "are part of the cost of starting"
    )


def _placement(doubt: Doubt) -> str:
    extent, *elsewhere = doubt.details
    where = ", ".join(elsewhere) or "see its placement"
    return f"{doubt.labels[0]} ran only in part where it was asked to ({extent}): {where}"


def _clock_fell(doubt: Doubt) -> str:
    return f"the SM clock fell to {_count(doubt, 'lowest_mhz')} MHz in {_share(doubt)} of the bursts{_reasons(doubt)}"


def _reasons(doubt: Doubt) -> str:
    """Return why the clock was held down, in NVML's words, and how hot the GPU was."""
    heat = [f"at up to {_count(doubt, 'temperature_c')} °C"] if "temperature_c" in doubt.values else []
    named = ", ".join([*doubt.details, *heat])
    return f" ({named})" if named else ""


def _waited(doubt: Doubt) -> str:
    switches = doubt.values.get("involuntary_switches")
    counted = f" (a thread lost its core {switches:,.0f} times a burst)" if switches is not None else ""
    return f"other processes kept our threads waiting in {_share(doubt)} of the bursts{counted}"


def _always_waited(doubt: Doubt) -> str:
    return (
        f"threads waited for a core even in the best bursts ({_with_shares(doubt)} of the time, summed over threads): "
        "there are more threads than cores, or another process never rests"
    )


def _drift(doubt: Doubt) -> str:
    fastest_ms, slowest_ms = doubt.values["fastest_ms"], doubt.values["slowest_ms"]
    return (
        f"the machine's speed drifted by {percent(doubt.values['share'])} over the run (calibration "
        f"{fastest_ms:.3g} to {slowest_ms:.3g} ms)"
    )


def _gpu_shared(doubt: Doubt) -> str:
    most = int(doubt.values["processes"])
    return f"{most} other process{'es' if most > 1 else ''} used the GPU meanwhile"


def _not_ranked(doubt: Doubt) -> str:
    status, reason = doubt.details
    are = "are" if len(doubt.labels) > 1 else "is"
    return f"{_listed(doubt.labels)} {are} not ranked, {status}{f': {reason}' if reason else ''}"


_DOUBTS: dict[DoubtKind, Callable[[Doubt], str]] = {
    DoubtKind.UNDECIDED: _undecided,
    DoubtKind.NOT_TOLD_APART: _not_told_apart,
    DoubtKind.NARROW_LEAD: _narrow_lead,
    DoubtKind.NO_BASELINE: lambda doubt: (
        f"there is no {doubt.labels[0]} to compare with: speed-ups and break-even are not given"
    ),
    DoubtKind.UNPAIRED: _unpaired,
    DoubtKind.REQUIREMENT: lambda doubt: f"{doubt.labels[0]} may not win: {unmet(doubt)}",
    DoubtKind.CAVEAT: lambda doubt: doubt.details[0],
    DoubtKind.NOTED: lambda doubt: doubt.details[0],
    DoubtKind.REFERENCE: _reference,
    DoubtKind.RECOMPILED: lambda doubt: f"compiled {_count(doubt, 'count')} more time(s) while it was measured",
    DoubtKind.WARM_UP: lambda doubt: f"the warm-up did not become steady within 2 % in {doubt.values['seconds']:.0f} s",
    DoubtKind.WARM_UP_NOISE: lambda _: (
        "latencies still differed by more than 2 % at the end of the warm-up, but became neither faster nor slower"
    ),
    DoubtKind.PROCESS_LOST: lambda doubt: f"a further process was {doubt.details[0]}",
    DoubtKind.SETTLED_LATE: _settled_late,
    DoubtKind.PLACEMENT: _placement,
    DoubtKind.BUILD_SPREAD: lambda doubt: (
        f"slowest over fastest build of the same cell: {_with_shares(doubt)}, more than processes of one build differ: "
        "its interval holds for these builds only"
    ),
    DoubtKind.PROCESS_SPREAD: lambda doubt: f"slowest over fastest process of the same cell: {_with_shares(doubt)}",
    DoubtKind.CLOCK_FELL: _clock_fell,
    DoubtKind.CLOCK_HELD_DOWN: lambda doubt: (
        f"the GPU's clock was held down in {_share(doubt)} of the bursts{_reasons(doubt)}"
    ),
    DoubtKind.WAITED: _waited,
    DoubtKind.ALWAYS_WAITED: _always_waited,
    DoubtKind.STOLEN: lambda doubt: f"the hypervisor gave our cores to others in {_share(doubt)} of the bursts",
    DoubtKind.DRIFT: _drift,
    DoubtKind.GPU_SHARED: _gpu_shared,
    DoubtKind.NOT_RANKED: _not_ranked,
}


def percent(share: float) -> str:
    """Return `12 %`."""
    return f"{100 * share:.0f} %"


def _share(doubt: Doubt) -> str:
    return percent(max(0.01, doubt.values["share"]))


def _count(doubt: Doubt, name: str) -> str:
    return f"{doubt.values[name]:,.0f}"


def _with_shares(doubt: Doubt) -> str:
    return ", ".join(f"{label} {percent(doubt.values[label])}" for label in doubt.labels)


def _with_ratios(labels: Sequence[str], ratios: Sequence[Ratio]) -> str:
    return ", ".join(f"{label} ({ratio(found)})" for label, found in zip(labels, ratios, strict=True))


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
