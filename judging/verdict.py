"""Who wins, by how much, and what speaks against believing it: from records to verdicts, pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from judging.costs import BreakEven, break_even, line_of
from judging.decision import FEWEST_PROCESSES, MARGIN_UNPAIRED, NARROW_LEAD, Relation, is_decided, relation
from judging.disturbance import conditions_doubts, percent
from judging.estimate import ratio_of, series_of
from records.schema import Cell, Extent, Ratio, Record, Standing, Status, Verdict

BASELINE = "eager"

SPREAD = 0.05
"""Equal processes of a cell that are further apart than this are named."""


class Requirements(Protocol):
    """What a cell must keep to in order to win."""

    def unmet(self, record: Record) -> Sequence[str]:
        """In words, what of it the record does not keep to."""


def judge_contests(records: Sequence[Record], requirements: Requirements | None = None) -> list[Verdict]:
    """One verdict per contest, in the order in which the contests first appear."""
    contests: dict[str, list[Record]] = {}
    for record in records:
        contests.setdefault(record.cell.contest_id, []).append(record)
    return [judge_contest(contest, requirements) for contest in contests.values()]


def judge_contest(records: Sequence[Record], requirements: Requirements | None = None) -> Verdict:
    """The verdict on the cells of one contest. Raises ValueError without records, or with those of two contests."""
    if len({record.cell.contest_id for record in records}) != 1:
        raise ValueError("a verdict is on the cells of exactly one contest")
    field = _Field(records, requirements)
    title = title_of(records[0].cell)
    doubts = [*_doubts_of_absence(records), *_doubts_of_requirements(field), *_doubts_of_numbers(field.ranked)]
    if field.ranked and field.baseline is None:
        doubts.append(f"no {BASELINE} row to compare with: speed-ups and break-even are not given")
    if not field.ranked:
        return Verdict(
            contest_id=records[0].cell.contest_id,
            title=title,
            baseline=None,
            winner=None,
            sentence=f"{title}: nothing could be ranked ({_why_nothing(records, field)}).",
            doubts=doubts,
        )
    best, *others = field.ranked
    tied = field.sharing_first_place()
    runner_up = others[len(tied) - 1] if len(tied) <= len(others) else None
    return Verdict(
        contest_id=best.cell.contest_id,
        title=title,
        baseline=field.baseline.cell.label if field.baseline else None,
        winner=best.cell.label if len(tied) == 1 else None,
        tied=[record.cell.label for record in tied] if len(tied) > 1 else [],
        runner_up=runner_up.cell.label if runner_up else None,
        lead=field.ratio(best, runner_up) if runner_up else None,
        standings=[_standing(record, field, tied) for record in field.ranked],
        sentence=f"{title}: {_sentence(field, tied, runner_up)}{_unstable(field)}.",
        unstable=bool(field.open_pairs()),
        doubts=[
            *doubts,
            *_doubts_of_stability(field),
            *_doubts_of_order(field),
            *_doubts_of_lead(field, tied, runner_up),
            *_doubts_of_winner(field, tied),
            *_doubts_of_pairing(field.leads()),
            *_doubts_of_spread(field.ranked),
            *conditions_doubts(field.measured),
        ],
    )


def undecided(records: Sequence[Record], requirements: Requirements | None = None) -> list[tuple[str, str]]:
    """The pairs of labels whose ratio further processes could still turn into another verdict; empty: none could.

    These are the best cell so far, of those that keep to the requirements, and each other such one that it has neither
    been called faster than, nor ties with for good. One with fewer than three processes does neither.
    """
    field = _Field(records, requirements)
    return [(field.ranked[0].cell.label, other.cell.label) for other, _ in field.undecided()]


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


class _Field:
    """The cells of a contest that can win, best first, and the ratios between any two of them.

    The order is that of the medians, but for a cell that is called faster than the one with the lowest median: medians
    hold whatever drift there was between the rounds that one cell was measured in and the other was not.
    """

    def __init__(self, records: Sequence[Record], requirements: Requirements | None = None) -> None:
        self.measured = [record for record in records if record.status is Status.OK and record.latency]
        self.baseline = next((record for record in self.measured if record.cell.label == BASELINE), None)
        self.unmet = {
            record.cell.label: unmet
            for record in self.measured
            if requirements is not None and (unmet := requirements.unmet(record))
        }
        self._series = {record.cell.id: series_of(record.bursts) for record in self.measured}
        self._ratios: dict[tuple[str, str], Ratio] = {}
        allowed = [record for record in self.measured if record.cell.label not in self.unmet]
        self.by_median = sorted(allowed, key=_median_ms)
        best = self._best()
        self.ranked = [best, *(record for record in self.by_median if record is not best)] if best else []

    def ratio(self, fast: Record, slow: Record) -> Ratio:
        """How many times faster `fast` is than `slow`."""
        key = (fast.cell.id, slow.cell.id)
        if key not in self._ratios:
            bridge = self._series[self.baseline.cell.id] if self.baseline else None
            self._ratios[key] = ratio_of(self._series[fast.cell.id], self._series[slow.cell.id], bridge)
        return self._ratios[key]

    def leads(self) -> list[Ratio]:
        """The best over each other one, in their order."""
        return [self.ratio(self.ranked[0], other) for other in self.ranked[1:]]

    def sharing_first_place(self) -> list[Record]:
        """The best and, walking down from it, all before the first one that it is called faster than."""
        best, *others = self.ranked
        return [
            best,
            *itertools.takewhile(lambda other: relation(self.ratio(best, other)) is not Relation.FASTER, others),
        ]

    def undecided(self) -> list[tuple[Record, Ratio]]:
        """Those that further processes may prove to be slower than the best, or not to be, and its ratios to them."""
        pairs = zip(self.ranked[1:], self.leads(), strict=True)
        return [(other, lead) for other, lead in pairs if not is_decided(lead)]

    def open_pairs(self) -> list[tuple[Record, Ratio]]:
        """The undecided ones that leave the verdict open: none that is called by a margin, none of a single process."""
        calls = (Relation.FASTER, Relation.SLOWER)
        several = [(other, lead) for other, lead in self.undecided() if lead.processes > 1]
        return [(other, lead) for other, lead in several if relation(lead) not in calls]

    def _best(self) -> Record | None:
        """The lowest median that none is called faster than; by chance there may be none such: then the lowest."""
        for record in self.by_median:
            others = [other for other in self.by_median if other is not record]
            if all(relation(self.ratio(record, other)) is not Relation.SLOWER for other in others):
                return record
        return self.by_median[0] if self.by_median else None


def _sentence(field: _Field, tied: Sequence[Record], runner_up: Record | None) -> str:
    """Without the full stop."""
    best, baseline = tied[0], field.baseline
    if len(tied) > 1:
        return _sentence_of_tie(field, tied)
    if runner_up is None:
        return f"only {best.cell.label} could be ranked, at {spell_ms(_median_ms(best))}"
    lead = field.ratio(best, runner_up)
    text = f"{best.cell.label} wins at {spell_ms(_median_ms(best))}"
    text += f", {spell_ratio(lead)} as fast as {runner_up.cell.label}"
    if baseline is not None and baseline is not runner_up and baseline is not best:
        text += f" and {spell_ratio(field.ratio(best, baseline))} as fast as {BASELINE}"
    text += _over_processes(lead)
    pays = _break_even(best, field) if baseline is not best else None
    if pays is None or not pays.is_established or not pays.calls:
        return text
    taken = f"{best.build_s:.1f} s"
    if best.settling:
        taken += f", and {best.settling.seconds:.1f} s of calls until it settled"
    return f"{text}; building it ({taken}) pays from call {pays.calls:,} on"


def _sentence_of_tie(field: _Field, tied: Sequence[Record]) -> str:
    names = [record.cell.label for record in tied]
    medians_ms = [_median_ms(record) for record in tied]
    is_open = any(other in tied for other, _ in field.open_pairs())
    text = f"{'no winner yet' if is_open else 'tie'} between {', '.join(names[:-1])} and {names[-1]}"
    text += f" ({spell_ms(min(medians_ms))} to {spell_ms(max(medians_ms))})"
    if field.baseline is not None and field.baseline.cell.label not in names:
        text += f", about {spell_ratio(field.ratio(tied[0], field.baseline))} as fast as {BASELINE}"
    return text + _over_processes(field.ratio(tied[0], tied[1]))


def _over_processes(ratio: Ratio) -> str:
    return f" over {ratio.processes} processes of each" if ratio.processes > 1 else ""


def _unstable(field: _Field) -> str:
    return "; unstable, since measuring ended before this was decided" if field.open_pairs() else ""


def _standing(record: Record, field: _Field, tied: Sequence[Record]) -> Standing:
    baseline = field.baseline
    pays = _break_even(record, field)
    return Standing(
        cell_id=record.cell.id,
        label=record.cell.label,
        rank=1 if record in tied else 1 + field.ranked.index(record),
        median_ms=_median_ms(record),
        speedup_over_baseline=field.ratio(record, baseline) if baseline else None,
        break_even_calls=pays.calls if pays and pays.is_established else None,
        break_even_established=pays is not None and pays.is_established,
    )


def _break_even(record: Record, field: _Field) -> BreakEven | None:
    """Against the baseline, from a cold start; None where one of them has no timed first call, or there is none."""
    ours, theirs = line_of(record, "cold"), line_of(field.baseline, "cold") if field.baseline else None
    if ours is None or theirs is None or field.baseline is None:
        return None
    if record is field.baseline:
        return BreakEven(calls=0, low=0, high=0, is_established=True)
    return break_even(ours, theirs, field.ratio(record, field.baseline))


def _median_ms(record: Record) -> float:
    if record.latency is None:
        raise ValueError(f"{record.cell.id} has no latency")
    return record.latency.median_ms


def _why_nothing(records: Sequence[Record], field: _Field) -> str:
    """`1 crash, 2 oom`, with those that may not win counted apart."""
    counts: dict[str, int] = {}
    for record in records:
        fate = "not as required" if record.cell.label in field.unmet else record.status.value
        counts[fate] = counts.get(fate, 0) + 1
    return ", ".join(f"{count} {fate}" for fate, count in counts.items())


def _doubts_of_absence(records: Iterable[Record]) -> list[str]:
    return [
        f"{record.cell.label} is not ranked, {record.status}{f': {record.reason}' if record.reason else ''}"
        for record in records
        if record.status is not Status.OK
    ]


def _doubts_of_requirements(field: _Field) -> list[str]:
    return [f"{label} may not win: {'; '.join(unmet)}" for label, unmet in field.unmet.items()]


def _doubts_of_numbers(ranked: Iterable[Record]) -> list[str]:
    """What the records say of themselves, once for all that say the same; then who ran elsewhere."""
    saying: dict[str, list[str]] = {}
    elsewhere: list[str] = []
    for record in ranked:
        for doubt in record.doubts:
            saying.setdefault(doubt, []).append(record.cell.label)
        elsewhere += doubts_of_placement(record)
    return [*(f"{', '.join(labels)}: {doubt}" for doubt, labels in saying.items()), *elsewhere]


def _doubts_of_stability(field: _Field) -> list[str]:
    pairs = field.open_pairs()
    if not pairs:
        return []
    best = field.ranked[0].cell.label
    named = ", ".join(f"{best} against {other.cell.label}, {spell_ratio(ratio)}" for other, ratio in pairs)
    fewest = min(ratio.processes for _, ratio in pairs)
    return [
        f"unstable: {fewest} processes of each do not decide {named}: raise --time-limit, or --processes "
        f"over {fewest}, or find a quieter machine"
    ]


def _doubts_of_order(field: _Field) -> list[str]:
    best, lowest = field.ranked[0], field.by_median[0]
    if best is lowest:
        return []
    return [
        f"{lowest.cell.label} has the lower median ({spell_ms(_median_ms(lowest))}), but measured against the same "
        f"rounds {best.cell.label} was {spell_ratio(field.ratio(best, lowest))} as fast"
    ]


def _doubts_of_lead(field: _Field, tied: Sequence[Record], runner_up: Record | None) -> list[str]:
    """Of a call on fewer processes than an interval over them can be had from."""
    if runner_up is None or len(tied) > 1:
        return []
    lead = field.ratio(tied[0], runner_up)
    if lead.processes >= FEWEST_PROCESSES or lead.value >= 1 + NARROW_LEAD:
        return []
    number = "a single process" if lead.processes == 1 else f"{lead.processes} processes"
    return [
        f"{tied[0].cell.label} leads by less than {percent(NARROW_LEAD)}, and each cell was measured in {number}: two "
        "equal processes have been seen up to 8 % apart"
    ]


def _doubts_of_winner(field: _Field, tied: Sequence[Record]) -> list[str]:
    """Those behind the runner-up that the winner is not called faster than, if the doubt of stability has not named
    them: they vary too much to be told apart from anything."""
    best = tied[0]
    named = [record for record, _ in field.open_pairs()]
    behind = [record for record in field.ranked if record not in tied and record not in named]
    doubtful = [other for other in behind if relation(field.ratio(best, other)) is not Relation.FASTER]
    if not doubtful:
        return []
    listed = ", ".join(f"{other.cell.label}, {spell_ratio(field.ratio(best, other))}" for other in doubtful)
    return [f"{best.cell.label} is not told apart from what has a longer median and varies more: {listed}"]


def _doubts_of_pairing(leads: Iterable[Ratio]) -> list[str]:
    if all(lead.paired for lead in leads):
        return []
    return [
        "some cells were not measured in the same rounds, so the machine's drift is in their ratios: "
        f"leads under {percent(MARGIN_UNPAIRED)} between those are called ties"
    ]


def _doubts_of_spread(ranked: Iterable[Record]) -> list[str]:
    spreads = {record.cell.label: (record.latency and record.latency.process_spread) or 0.0 for record in ranked}
    named = [f"{label} {percent(spread)}" for label, spread in spreads.items() if spread > SPREAD]
    return [f"slowest over fastest process of the same cell: {', '.join(named)}"] if named else []
