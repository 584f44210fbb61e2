"""Who wins, by how much, and what speaks against believing it: from records to verdicts, pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from reports.schema import Cell, Extent, Ratio, Record, Standing, Status, Verdict
from reports.statistics import break_even_calls, speedup

BASELINE = "eager"

MARGIN = 0.04
"""A lead is called only if the low end of its interval is over this. Each cell is measured in a single process, and two
identical processes can differ by 4 % for as long as they live (memory layout), which no interval over rounds shows."""

NARROW = 0.10
"""A smaller lead is called, but with a doubt: ten equal processes spread over 7.9 % at worst."""

MARGIN_UNPAIRED = 0.25
"""The same between cells that were not measured in the same rounds: the machine may have drifted in between."""


def judge(records: Sequence[Record]) -> list[Verdict]:
    """One verdict per contest, in the order in which the contests first appear."""
    contests: dict[str, list[Record]] = {}
    for record in records:
        contests.setdefault(record.cell.contest_id, []).append(record)
    return [judge_contest(contest) for contest in contests.values()]


def judge_contest(records: Sequence[Record]) -> Verdict:
    """The verdict on the cells of one contest. Raises ValueError without records, or with those of two contests."""
    if len({record.cell.contest_id for record in records}) != 1:
        raise ValueError("a verdict is on the cells of exactly one contest")
    ranked = sorted(
        (record for record in records if record.status is Status.OK and record.latency),
        key=lambda record: _median_ms(record),
    )
    baseline = next((record for record in ranked if record.cell.label == BASELINE), None)
    title = title_of(records[0].cell)
    doubts = [*_doubts_of_absence(records), *_doubts_of_numbers(ranked)]
    if ranked and baseline is None:
        doubts.append(f"no {BASELINE} row to compare with: speed-ups and break-even are not given")
    if not ranked:
        return Verdict(
            contest_id=records[0].cell.contest_id,
            title=title,
            baseline=None,
            winner=None,
            sentence=f"{title}: nothing could be ranked ({_count_statuses(records)}).",
            doubts=doubts,
        )
    best, *others = ranked
    leads = {record.cell.id: speedup(best.bursts, record.bursts) for record in others}
    # walking down from the best, the tie ends at the first cell that is clearly slower
    tied = [best]
    for record in others:
        if _is_clear(leads[record.cell.id]):
            break
        tied.append(record)
    runner_up = others[len(tied) - 1] if len(tied) <= len(others) else None
    return Verdict(
        contest_id=best.cell.contest_id,
        title=title,
        baseline=baseline.cell.label if baseline else None,
        winner=best.cell.label if len(tied) == 1 else None,
        tied=[record.cell.label for record in tied] if len(tied) > 1 else [],
        runner_up=runner_up.cell.label if runner_up else None,
        lead=leads[runner_up.cell.id] if runner_up else None,
        standings=[_standing(record, ranked, tied, baseline) for record in ranked],
        sentence=f"{title}: {_sentence(best, tied, runner_up, baseline)}",
        doubts=[*doubts, *_doubts_of_pairing(leads.values()), *_doubts_of_lead(best, runner_up, leads)],
    )


def title_of(cell: Cell) -> str:
    """What a contest is about, in words: `conv (batch 4, size 128) on cpu, fp32`."""
    sizes = ", ".join(f"{name} {value}" for name, value in cell.dimensions.items())
    task = "" if cell.task == "inference" else f", {cell.task}"
    return f"{cell.model}{f' ({sizes})' if sizes else ''} on {cell.device}, {cell.precision}{task}"


def doubts_of_placement(record: Record) -> list[str]:
    """What to say of a cell that ran elsewhere, wholly or in part; nothing where it did not, or does not tell."""
    if record.placement is None or record.placement.extent is Extent.FULL:
        return []
    what = ", ".join(record.placement.fallbacks[:5]) or "see its placement"
    return [f"{record.cell.label} ran only in part where it was asked to ({record.placement.extent}): {what}"]


def spell_ratio(ratio: Ratio) -> str:
    """`1.85x [1.80, 1.90]`."""
    interval = f" [{ratio.ci95.low:.2f}, {ratio.ci95.high:.2f}]" if ratio.ci95 else ""
    return f"{ratio.value:.2f}x{interval}"


def spell_ms(milliseconds: float) -> str:
    """Milliseconds with three significant digits at least: `0.0175 ms`, `12.3 ms`, `1,234 ms`."""
    if milliseconds >= 100:
        return f"{milliseconds:,.0f} ms"
    digits = 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3 if milliseconds >= 0.1 else 4
    if 0 < milliseconds < 0.01:
        digits = min(6, 2 - math.floor(math.log10(milliseconds)))  # the clock ticks in nanoseconds
    return f"{milliseconds:.{digits}f} ms"


def _sentence(best: Record, tied: Sequence[Record], runner_up: Record | None, baseline: Record | None) -> str:
    names = [record.cell.label for record in tied]
    if len(tied) > 1:
        times = f"{spell_ms(_median_ms(tied[0]))} to {spell_ms(max(_median_ms(record) for record in tied))}"
        text = f"tie between {', '.join(names[:-1])} and {names[-1]} ({times})"
        if baseline is not None and baseline.cell.label not in names:
            text += f", about {spell_ratio(speedup(best.bursts, baseline.bursts))} as fast as {BASELINE}"
        return text + "."
    text = f"{best.cell.label} wins at {spell_ms(_median_ms(best))}"
    if runner_up is None:
        return f"only {best.cell.label} could be ranked, at {spell_ms(_median_ms(best))}."
    lead = spell_ratio(speedup(best.bursts, runner_up.bursts))
    text += f", {lead} as fast as {runner_up.cell.label}"
    if baseline is not None and baseline is not runner_up and baseline is not best:
        text += f" and {spell_ratio(speedup(best.bursts, baseline.bursts))} as fast as {BASELINE}"
    if baseline is not None and baseline is not best:
        calls = _break_even(best, baseline)
        if calls:
            text += f"; building it ({best.build_s:.1f} s) pays from call {calls:,} on"
    return text + "."


def _standing(record: Record, ranked: Sequence[Record], tied: Sequence[Record], baseline: Record | None) -> Standing:
    return Standing(
        cell_id=record.cell.id,
        label=record.cell.label,
        rank=1 if record in tied else 1 + ranked.index(record),
        median_ms=_median_ms(record),
        speedup_over_baseline=speedup(record.bursts, baseline.bursts) if baseline else None,
        break_even_calls=_break_even(record, baseline) if baseline else None,
    )


def _is_clear(lead: Ratio) -> bool:
    margin = MARGIN if lead.paired else MARGIN_UNPAIRED
    return lead.ci95 is not None and lead.ci95.low > 1 + margin


def _break_even(record: Record, baseline: Record) -> int | None:
    return break_even_calls(
        record.build_s + (record.first_call_s or 0.0),
        baseline.build_s + (baseline.first_call_s or 0.0),
        _median_ms(record),
        _median_ms(baseline),
    )


def _median_ms(record: Record) -> float:
    if record.latency is None:
        raise ValueError(f"{record.cell.id} has no latency")
    return record.latency.median_ms


def _count_statuses(records: Iterable[Record]) -> str:
    counts: dict[str, int] = {}
    for record in records:
        counts[record.status.value] = counts.get(record.status.value, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _doubts_of_absence(records: Iterable[Record]) -> list[str]:
    return [
        f"{record.cell.label} is not ranked, {record.status}{f': {record.reason}' if record.reason else ''}"
        for record in records
        if record.status is not Status.OK
    ]


def _doubts_of_numbers(ranked: Iterable[Record]) -> list[str]:
    doubts = []
    for record in ranked:
        label = record.cell.label
        doubts += [f"{label}: {doubt}" for doubt in record.doubts]
        doubts += doubts_of_placement(record)
    return doubts


def _doubts_of_lead(best: Record, runner_up: Record | None, leads: Mapping[str, Ratio]) -> list[str]:
    if runner_up is None or not _is_clear(leads[runner_up.cell.id]) or leads[runner_up.cell.id].value >= 1 + NARROW:
        return []
    return [
        f"{best.cell.label} leads by less than {NARROW:.0%}, and each cell was measured in a single process: two equal "
        "processes have been seen up to 8 % apart"
    ]


def _doubts_of_pairing(leads: Iterable[Ratio]) -> list[str]:
    if all(lead.paired for lead in leads):
        return []
    return [
        "some cells were not measured in the same rounds, so the machine's drift is in their ratios: "
        f"leads under {MARGIN_UNPAIRED:.0%} between those are called ties"
    ]
