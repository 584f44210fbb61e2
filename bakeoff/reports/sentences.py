"""Every sentence of a report, one function for each: typed values go in, plain text comes out.

Nothing here is escaped: who shows a sentence in Markdown, HTML or on a terminal does that.
"""

from collections.abc import Callable, Collection, Sequence

from bakeoff.judging.answer import Certainty, Question
from bakeoff.judging.compare import CellChange, ReasonKind
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.doubts_of_winner import MachineBusy, NotRanked
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.sweeps import Stretch, Sweep
from bakeoff.records.doubts import Effect
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import DECODE, SETTLE, Cell, KernelTimes, Ratio, Record, Report, Standing, Status, Verdict
from bakeoff.records.text import counted, first, listed, one_line, percent, spell_minutes, spell_ms
from bakeoff.reports import answers, headline, machine, number_format

NAME_LIMIT = 40
"""Longest name in a title, in characters."""


def title(judgement: Judgement) -> str:
    records = judgement.report.records
    if not records:
        return "Nothing has been measured yet"
    asked = [record.cell for record in records if not record.status.is_absence or record.status is Status.NOT_REACHED]
    tried = asked or [record.cell for record in records]
    names = {cell.model: cell.model_name for cell in tried}
    models = f"{len(names)} models" if judgement.suites else _first_names(list(names.values()))
    backends = _first_names([cell.backend for cell in tried])
    called = "".join(f", {words}" for words in sorted({words for cell in tried for words in cell.unusual_calls}))
    return f"{models} \u00d7 {backends} on {machine.devices(judgement.report)}{called}"


def names(contests: Sequence[ContestJudgement]) -> list[str]:
    """Return a short name for each contest: only what differs between them, or the model if nothing does."""
    parts = [_parts_of_title(contest) for contest in contests]
    names = []
    for contest, its in zip(contests, parts, strict=True):
        same_model = [other for other in parts if other["model"] == its["model"]]
        differing = [
            text
            for name, text in its.items()
            if any(other.get(name) != text for other in (same_model if name in contest.cell.dimensions else parts))
        ]
        names.append(", ".join(filter(None, differing)) or contest.cell.model_name)
    return names


def _parts_of_title(contest: ContestJudgement) -> dict[str, str]:
    cell = contest.cell
    return {
        "model": cell.model_name,
        **{name: f"{name} {value}" for name, value in cell.dimensions.items()},
        " device": str(cell.device),  # a dimension has no blank in its name
        " precision": cell.precisions,
        " task": cell.task,
        " seed": f"seed {cell.seed}",
        " run": contest.run_id or "",
    }


def verdict(contest: ContestJudgement) -> str:
    return f"{contest.title}: {finding(contest)}."


def why_nothing_is_ranked(contest: ContestJudgement) -> str:
    """Return the reason of the first failed cell if all failed, for an output that shows no cell. Or nothing."""
    reasons = [cell.record.reason for cell in contest.cells if cell.record.status.is_failure and cell.record.reason]
    return f"{contest.title}: {reasons[0]}" if contest.best is None and reasons else ""


def finding(contest: ContestJudgement) -> str:
    """Say who wins at what was asked, and who at single calls, how fast, and how much faster than the others."""
    said = of_single_calls(contest)
    if contest.answer.question is not Question.LATENCY:
        return f"{headline.line(contest)}. At single calls, {said}"
    return f"so far, {said}" if contest.is_so_far else said


def paragraph(contest: ContestJudgement) -> str:
    """Return the finding as a sentence of its own. A name at its beginning stays as it is written."""
    text = finding(contest)
    is_name = any(text.startswith(cell.label) for cell in contest.cells)
    return f"{text if is_name else text[0].upper() + text[1:]}."


def of_single_calls(contest: ContestJudgement) -> str:
    fastest = contest.fastest
    is_busy = any(isinstance(doubt, MachineBusy) for doubt in contest.doubts)
    sure = "" if fastest.certainty is Certainty.SURE else headline.how_sure(contest, fastest)
    return answers.sentence(fastest, spell_ms(fastest.value or 0.0), sure, is_busy)


def ending(cell: CellJudgement) -> str:
    """Say how a cell ended, and of a right one whether it may win: `ok`, `crash in load`, `not as required`."""
    if cell.unmet:
        return "not as required"
    return f"not {headline.within(cell.beyond)}" if cell.beyond else number_format.ending(cell.record)


def outcome(contest: ContestJudgement) -> str:
    """Say in a few words what came out of a contest: `mlp on cpu, fp32: onnx, 0.0533 ms, 4.25x eager, sure winner`."""
    return f"{contest.title}: {headline.line(contest)}"


def remarks(contest: ContestJudgement) -> list[str]:
    nominal, left = machine.tensor_core_rates(contest), left_early(contest)
    parts = [
        pays(contest),
        f"Floor: {number_format.floor(contest.roofline)}." if contest.roofline else no_floor(contest),
        *floor_sentences(contest),
        f"Tensor cores: {nominal}." if nominal else "",
        not_finite(contest),
        beyond_processes(contest),
        OF_FEW_CALLS if any(is_of_few_calls(cell) for cell in contest.cells) else "",
        lower_ranks(contest),
        f"{left}." if left else "",
        *builds_made_elsewhere(contest),
    ]
    return [part for part in parts if part]


def not_finite(contest: ContestJudgement) -> str:
    checks = [cell.record.accuracy for cell in contest.cells if cell.record.accuracy]
    count = max((check.not_finite for check in checks if not check.unchecked), default=0)
    if not count:
        return ""
    are = "is" if count == 1 else "are"
    return f"{counted(count, 'value')} of the model's own outputs {are} infinite or NaN: only the others have an error."


OF_FEW_CALLS = (
    'A speed-up with "about" is that of the few calls that waited for no core, and the latencies are of all calls.'
)


def is_of_few_calls(cell: CellJudgement) -> bool:
    return cell.speedup is not None and cell.speedup.is_rough and not cell.is_baseline


MIN_MOVED = 0.01
"""It is said of a latency that it lies outside of its processes' own medians if it does so by more than this share."""


def beyond_processes(contest: ContestJudgement) -> str:
    """Say why a latency lies outside of what its processes' own medians are, where one does."""
    medians_ms = {
        cell.label: [process.median_ms for process in cell.record.processes if process.median_ms is not None]
        for cell in contest.ranked
    }
    moved = [
        cell.label
        for cell in contest.ranked
        if cell.latency and (own := medians_ms[cell.label])
        if not min(own) * (1 - MIN_MOVED) <= cell.latency.median_ms <= max(own) * (1 + MIN_MOVED)
    ]
    if not moved:
        return ""
    its = "its processes" if len(moved) == 1 else "their processes"
    why = "what waited for cores, and the machine's drift by the rounds that cells shared, are taken out"
    return f"{listed(moved)}: the latency is outside of {its}' own medians, because {why}."


def lower_ranks(contest: ContestJudgement) -> str:
    """Say why a cell that may prove as fast as the best one has a lower rank, where one has."""
    fastest = contest.fastest
    lower = [row.label for row in fastest.ranked if row.label in fastest.open_labels and row.rank != 1]
    if not lower:
        return ""
    have = "has a lower rank" if len(lower) == 1 else "have lower ranks"
    return f"{listed(lower)} {have} by what was measured so far: to call a winner takes more evidence than a rank."


def pays(contest: ContestJudgement) -> str:
    """Say from which call on building the winner has paid, against eager or else the runner-up. Or nothing."""
    against = contest.baseline or contest.fastest.runner_up
    is_called = contest.fastest.certainty in (Certainty.SURE, Certainty.DOUBTED, Certainty.ALONE)
    if (
        not is_called
        or contest.fastest.winner is None
        or contest.best is None
        or against in (None, contest.fastest.winner)
    ):
        return ""
    break_even = contest.costs.break_even(contest.fastest.winner, against, "cold")
    if break_even is None:
        return ""
    building = f"building {contest.fastest.winner} ({_build(contest.best.record)})"
    if not break_even.is_established:
        return f"It is not established when {building} pays against {against}."
    if break_even.calls is None:
        return f"{building[0].upper()}{building[1:]} never pays against {against}."
    if break_even.calls == 0:
        return f"{contest.fastest.winner} is ahead of {against} from the first call on, building included."
    sentence = f"{building[0].upper()}{building[1:]} pays against {against} from call {break_even.calls:,} on"
    *before, last = contest.costs.legs("cold", contest.contenders)
    if before and last.line.label == contest.fastest.winner and last.first_call != break_even.calls:
        cheaper, about = f"until then {before[-1].line.label} costs less", "" if last.is_established else "about "
        doubt = "" if last.is_established else f" ({number_format.NOT_ESTABLISHED})"
        sentence += f", and costs least of all from {about}call {last.first_call:,} on{doubt}: {cheaper}"
    return f"{sentence}."


def what_more_time_would_settle(judgement: Judgement) -> str:
    report, budget = judgement.report, judgement.report.request.get("budget")
    if not budget or report.resumed_at:  # which has no budget
        return ""
    left = [
        f"{contest.answer.candidates[0]} against {' and '.join(contest.answer.open_labels)} ({contest.cell.title})"
        for contest in judgement.contests
        if contest.answer.open_labels and not any(isinstance(doubt, MachineBusy) for doubt in contest.doubts)
    ]
    is_whole = report.complete  # or else it was not the budget that ended the run
    parts = [f"more time would settle {', '.join(left)}"] if left and is_whole else []
    fewest = report.request.get("processes")
    fewest = fewest if isinstance(fewest, int) else FEWEST_PROCESSES
    hasty = [
        contest.cell.title
        for contest in judgement.contests
        if contest.fastest.runner_up and len(contest.ranked[0].record.processes) < fewest
    ]
    if hasty and is_whole:
        parts.append(f"the cells of {', '.join(hasty)} were measured in fewer than {fewest} processes each")
    if labels := _labels(judgement, lambda record: record.had_no_budget):
        parts.append(f"no time was left for {listed(first(labels))}")
    return f"--budget {budget}: {'; '.join(parts)}" if parts else ""


def not_reached(judgement: Judgement) -> list[str]:
    """Name the cells that the run had no time for, because its budget was over or it was interrupted. Where there are
    several contests, that of a cell stands beside its label."""
    return _labels(judgement, lambda record: record.status is Status.NOT_REACHED)


def _labels(judgement: Judgement, is_meant: Callable[[Record], bool]) -> list[str]:
    contests = judgement.contests
    beside = [f" ({name})" if len(contests) > 1 else "" for name in names(contests)]
    return [
        f"{cell.label}{contest_name}"
        for contest, contest_name in zip(contests, beside, strict=True)
        for cell in contest.cells
        if is_meant(cell.record)
    ]


def no_floor(contest: ContestJudgement) -> str:
    why = next((cell.record.no_floor for cell in contest.cells if cell.record.no_floor), "")
    return f"No floor: {why}." if why else ""


def left_early(contest: ContestJudgement) -> str:
    pairs = [(cell, left) for cell in contest.cells if (left := cell.record.left)]
    alike = grouped(pairs, lambda pair: (pair[1].after_process, pair[1].than, pair[1].seen_in))
    beside = "" if contest.answer.question is Question.LATENCY else " at single calls"
    said = []
    for (after_process, than, seen_in), group in alike.items():
        cells, is_sure = [cell for cell, _ in group], seen_in == "interval"
        number = "process" if after_process == 1 else f"{after_process} processes"
        leads = [least for cell in cells if (least := contest.least_times_slower(cell))]
        at_least = f", at least {number_format.ratio(min(leads))} times" if len(leads) == len(cells) else ""
        how, rounds = ("surely slower", "") if is_sure else ("slower", " in every undisturbed round")
        first = f"{'its' if len(cells) == 1 else 'their'} first {number}"
        slower = f"{how} than {than}{beside}{rounds}{at_least}"
        said.append(f"{listed([cell.label for cell in cells])} left after {first}: {slower}")
    return "; ".join(said)


def builds_made_elsewhere(contest: ContestJudgement) -> list[str]:
    """Say with dates what is of earlier runs: builds, reference, ceilings; and which phases serve several cells."""
    by_day: dict[str, dict[str, str]] = {}
    by_builder: dict[tuple[str, str], list[str]] = {}
    checked = [cell.record.accuracy for cell in contest.cells if cell.record.accuracy]
    kept = max((accuracy.reference_kept_at for accuracy in checked), default="")
    measured = contest.roofline.ceilings_kept_at if contest.roofline else ""
    for cell in contest.cells:
        phases = cell.record.phases
        if built_at := cell.record.built_at:
            by_day.setdefault(built_at.partition("T")[0], {})[cell.label] = built_at
        if shared := [phase for phase in phases if phase.shared_with]:
            names = listed([phase.name for phase in shared])
            by_builder.setdefault((shared[0].shared_with, names), []).append(cell.label)
    return [
        *(
            f"{listed(list(built))}: build times of {spell_minutes(*built.values())}, from the cache (--fresh builds "
            "anew)."
            for built in by_day.values()
        ),
        *(
            f"{what} of {spell_minutes(at)}, from the cache (--fresh {anew} them anew)."
            for what, at, anew in (
                ("Outputs in float64", kept, "computes"),
                ("Floor by ceilings", measured, "measures"),
            )
            if at
        ),
        *(
            f"{listed(labels)}: {names} shared with {builder}, and counted as if built alone."
            for (builder, names), labels in by_builder.items()
        ),
    ]


def stored_verdict(contest: ContestJudgement) -> Verdict:
    """Return the verdict as `report.json` holds it for readers of the JSON."""
    asked = contest.answer
    return Verdict(
        contest_id=contest.contest_id,
        title=contest.title,
        baseline=contest.baseline if contest.ranked else None,
        winner=asked.winner,
        tied=list(asked.tied),
        runner_up=asked.runner_up,
        lead=asked.lead,
        standings=list(map(_standing, contest.ranked)),
        sentence=verdict(contest),
        unstable=asked.is_open,
        doubts=doubts(contest),
    )


def why(change: CellChange) -> str:
    """Say why a compared cell has its outcome, or nothing if its numbers say it all."""
    return "; ".join(filter(None, [why_worse(change), _why_latency(change)]))


def why_worse(change: CellChange) -> str:
    reasons = []
    for name in change.worse:
        is_of_both = name in change.worse_of_reference
        too = ", and so is the reference's: model, data or evaluate changed" if is_of_both else ""
        reasons.append(f"{name} is worse{too}: {number_format.metric_change(change.metrics[name])}")
    if change.evaluate_fails:
        reasons.append(f"evaluate fails now: {change.evaluate_fails}")
    return "; ".join(reasons)


def _why_latency(change: CellChange) -> str:
    reason = change.reason
    if reason is None:
        return ""
    if reason.kind in (ReasonKind.ENDED, ReasonKind.NOT_REACHED):
        records = [record for record in (change.base, change.new) if record]
        endings = [f"{record.status}: {record.reason}" if record.reason else record.status.value for record in records]
        return endings[-1] if len({record.status for record in records}) == 1 else " -> ".join(endings)
    if reason.kind is ReasonKind.DISAGREEMENT:
        return f"latency: {reason.latency}; relative to {change.baseline}: {reason.relative}"
    text = _WHY[reason.kind].format(baseline=change.baseline)
    return text if reason.margin is None else f"{text}, only a change over {percent(reason.margin)} could be detected"


def with_verdicts(judgement: Judgement) -> Report:
    verdicts = [stored_verdict(contest) for contest in judgement.contests]
    return judgement.report.but(verdicts=verdicts)


def ratio(ratio: Ratio) -> str:
    interval = f" [{ratio.ci95.low:.2f}, {ratio.ci95.high:.2f}]" if ratio.ci95 else ""
    return f"{ratio.value:.2f}x{interval}"


def ratio_or_none(of: Ratio | None) -> str:
    return ratio(of) if of else number_format.NONE


def sweep_title(sweep: Sweep) -> str:
    return f"{title_without([sweep.dimension], sweep.contests[0].cell)}, over {sweep.dimension}"


def title_without(dimensions: Collection[str], cell: Cell) -> str:
    kept = {name: value for name, value in cell.dimensions.items() if name not in dimensions}
    return cell.but(dimensions=kept).title


def sweep_finding(sweep: Sweep) -> str:
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


def _first_names(names: Sequence[str]) -> str:
    return listed(first([one_line(name, NAME_LIMIT) for name in dict.fromkeys(names)]))


def _build(record: Record) -> str:
    settle_s = sum(phase.seconds for phase in record.phases if phase.name == SETTLE)
    further = f", and {number_format.seconds(settle_s)} s of calls until it was final" if settle_s else ""
    return f"{number_format.seconds(record.build_s)} s{further}"


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


_WHY = {
    ReasonKind.NO_SAMPLES: "no samples to compare",
    ReasonKind.IS_CONTROL: "it is the control: its change cannot be distinguished from the machine's",
    ReasonKind.OTHER_MACHINE: "measured on another machine",
    ReasonKind.SINGLE_PROCESS: "measured in a single process",
    ReasonKind.NO_BASELINE: "no {baseline} in the same rounds of both runs",
    ReasonKind.WAITING: "other programs kept cores busy: threads waited for them, and the change may be waiting alone",
    ReasonKind.WIDE_INTERVAL: "its interval is too wide: measure it in more processes",
}


KERNEL_LIMIT = 60
"""The name of a kernel can have hundreds of characters in C++."""


def floor_sentences(contest: ContestJudgement) -> list[str]:
    """Say what keeps each cell from the floor. It is said of decode steps that a GPU's trace was taken of."""
    if contest.cell.task != DECODE:
        return []
    return [sentence for cell in contest.cells if (sentence := _shortfall(cell))]


def _shortfall(cell: CellJudgement) -> str:
    times, latency, roofline = cell.record.kernel_times, cell.latency, cell.record.roofline
    if times is None or latency is None or roofline is None or roofline.share is None:
        return ""
    waits_ms, excess_ms = latency.median_ms - times.busy_ms, times.busy_ms - roofline.floor_ms
    text = f"{one_line(cell.label)} reaches {percent(roofline.share)} of the floor"
    if waits_ms > excess_ms:
        return (
            f"{text}: the GPU works in {number_format.milliseconds(times.busy_ms)} of {spell_ms(latency.median_ms)}, "
            f"and waits for the host between {times.kernels:,.0f} kernels."
        )
    return (
        f"{text}: its {times.kernels:,.0f} kernels take {spell_ms(times.busy_ms)}, "
        f"{number_format.ratio(times.busy_ms / roofline.floor_ms)} times the floor; {longest_kernel(times)}."
    )


def longest_kernel(times: KernelTimes) -> str:
    kernel = times.longest[0]
    return f"{one_line(kernel.name.removeprefix('void '), KERNEL_LIMIT)} takes {percent(kernel.share)} of that"


EFFECTS = {
    Effect.WINNER: "What could change the winner",
    Effect.NUMBER: "What could change the winner's numbers",
    Effect.NONE: "Other remarks",
}
"""What stands above the doubts that have this effect. The remarks fold away."""


def heading_of_doubts(effect: Effect, contest: ContestJudgement) -> str:
    """Return what stands above the doubts with this effect. Those under load stand beside what is carried."""
    is_beside = effect is Effect.WINNER and _is_sure_of_calls(contest)
    of_single_calls = is_beside or (contest.load and effect is not Effect.NONE)
    return f"{EFFECTS[effect]}{' at single calls' if of_single_calls else ''}"


def _is_sure_of_calls(contest: ContestJudgement) -> bool:
    answer = contest.answer
    return answer.question is Question.CALLS and not answer.doubts and answer.certainty is not Certainty.OPEN


def doubts_of_answer(contest: ContestJudgement) -> list[str]:
    """Return what could change the answer to what was asked, what the answer names first."""
    named = [doubt.say() for doubt in contest.answer.doubts]
    others = [] if contest.load or _is_sure_of_calls(contest) else doubts_with(Effect.WINNER, contest)
    return list(dict.fromkeys([*named, *others]))


def doubts_by_effect(contest: ContestJudgement) -> dict[str, list[str]]:
    said = {effect: [doubt.say() for doubt in doubts] for effect, doubts in contest.doubts_of_answer.items()}
    of_winner = doubts_of_answer(contest)
    return {
        "winner": of_winner,
        "winner_at_single_calls": [text for text in said[Effect.WINNER] if text not in of_winner],
        "numbers": [text for text in said[Effect.NUMBER] if text not in of_winner],
        "nothing": [text for text in said[Effect.NONE] if text not in of_winner],
    }


def doubts(contest: ContestJudgement) -> list[str]:
    return [doubt.say() for doubt in contest.doubts]


def doubts_with(effect: Effect, contest: ContestJudgement) -> list[str]:
    """Return the doubts that have this effect on the answer, as sentences. How failed cells ended is said by rows."""
    return [
        doubt.say()
        for doubt in contest.doubts_of_answer[effect]
        if effect is not Effect.NONE or not isinstance(doubt, NotRanked)
    ]
