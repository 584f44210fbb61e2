"""One answer to any question: who is best, who may be as good, how sure that is, and by how much.

A score is what cells are ranked by: a weighted sum of latencies that were fitted to contests. A call is one term, a
generation is a prefill and many decode steps, recorded calls are one term for each size. Contests are measured one
after the other, so that their errors are independent: distances to the ends of the intervals add up as squares (Zou
and Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008). `rank` puts the
cells in order and decides what can be said of them (`judging.decision`), for every question alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bakeoff.judging.decision import (
    CLOSE_MARGIN,
    MARGIN,
    TIE_MARGIN,
    Relation,
    is_apart,
    is_decided,
    is_only_close,
    relation,
)
from bakeoff.judging.doubt import Doubt
from bakeoff.judging.fit import Fit, rounded_ms
from bakeoff.judging.intervals import around, half_width_of, interval_of_sum
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Interval, LeftEarly, Ratio


class Question(StrEnum):
    LATENCY = "latency"
    LOAD = "load"
    GENERATION = "generation"
    CALLS = "calls"
    SIZES = "recorded sizes"
    REQUEST = "whole requests"
    START = "start"


class Certainty(StrEnum):
    SURE = "sure"
    DOUBTED = "doubted"  # there is a winner, but a doubt could change who it is
    TIE = "tie"
    OPEN = "open"  # measuring ended before it was decided
    ALONE = "alone"  # only one cell could be ranked
    NOTHING = "nothing ranked"


@dataclass(frozen=True)
class Term:
    """One part of a score: so many times the latency of a contest. `left` are cells that it left as surely beaten."""

    fit: Fit
    weight: float = 1.0
    left: Mapping[str, LeftEarly] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """A part that takes the same time whichever cell is chosen, such as a stage around the model."""

    name: str
    ms: float
    ci95: Interval | None


@dataclass(frozen=True)
class Score:
    """What the cells of a question are ranked by, in milliseconds: the less, the better. Labels name the cells."""

    terms: Sequence[Term]
    shared: Sequence[Shared] = ()
    looks_once: bool = False  # the number of processes was fixed before, and not by what the first ones showed
    _ratios: dict[tuple[str, str], Ratio] = field(default_factory=dict, compare=False, repr=False)

    def ms(self, label: str) -> float:
        """Return the score of a cell, with as many digits as outputs print."""
        return rounded_ms(sum(self._parts_ms(label)))

    def value(self, label: str) -> float:
        return self.ms(label)

    def interval(self, label: str) -> Interval | None:
        if self._only is not None:
            return self._only.latency_ci95_ms(label)
        return interval_of_sum(self.ms(label), self._parts(label))

    def ratio(self, fast: str, slow: str) -> Ratio:
        """Return how many times better one cell is than another, with its 95 % interval."""
        if (fast, slow) not in self._ratios:
            only = self._only
            self._ratios[fast, slow] = only.ratio(fast, slow) if only else self._ratio_of_sums(fast, slow)
        return self._ratios[fast, slow]

    def is_beaten(self, fast: str, slow: str) -> bool:
        """Return True if the first cell is called better than the second, which then shares no first place with it."""
        is_faster = relation(self.ratio(fast, slow), self.looks_once) is Relation.FASTER
        return is_faster or self._least_lead(fast, slow) > 1 + TIE_MARGIN

    def is_apart(self, fast: str, slow: str) -> bool:
        """Return True if the first cell is before the second in rank, which takes less than to beat it."""
        return self.is_beaten(fast, slow) or is_apart(self.ratio(fast, slow), self.looks_once)

    def is_settled(self, best: str, other: str, shares_first: bool) -> bool:
        """Return True if more processes would not change whether the best cell beats the other one."""
        lead = self.ratio(best, other)
        if is_decided(lead, self.looks_once) or self._most_lead(other) < 1 + TIE_MARGIN:
            return True
        if self.looks_once and not shares_first:
            return True
        return self._left(other) is not None and lead.value < 1 + TIE_MARGIN

    def first_of(self, order: Sequence[str]) -> tuple[str, ...]:
        """Return the best of these labels and those after it, up to the first one that it beats."""
        behind = itertools.takewhile(lambda label: not self.is_beaten(order[0], label), order[1:])
        return (*order[:1], *behind)

    def ranks_of(self, order: Sequence[str]) -> dict[str, int]:
        """Return the rank of each label. The first ones share rank 1, up to one that is apart from any before it."""
        pairs = itertools.combinations(order, 2)
        first = min((order.index(slow) for fast, slow in pairs if self.is_apart(fast, slow)), default=len(order))
        return {label: 1 if place < first else 1 + place for place, label in enumerate(order)}

    @property
    def _only(self) -> Fit | None:
        """Return what the score consists of, if that is a single latency."""
        return self.terms[0].fit if len(self.terms) == 1 and not self.shared else None

    def _parts_ms(self, label: str) -> list[float]:
        own_ms = [term.weight * term.fit.latency_ms[label] for term in self.terms]
        return [*own_ms, *(part.ms for part in self.shared)]

    def _parts(self, label: str) -> list[tuple[float, float, Interval | None]]:
        own = [(term.weight, term.fit.latency_ms[label], term.fit.latency_ci95_ms(label)) for term in self.terms]
        return [*own, *((1.0, part.ms, part.ci95) for part in self.shared)]

    def _ratio_of_sums(self, fast: str, slow: str) -> Ratio:
        """Return the ratio of two sums, without an interval where a part that matters has none."""
        ratios = [term.fit.ratio(fast, slow) for term in self.terms]
        half_widths = [*(half_width_of(ratio.ci95) for ratio in ratios), *(0.0 for _ in self.shared)]
        reach: float | None = 0.0
        for ours, theirs, half, (_, _, level) in zip(
            self._shares(fast), self._shares(slow), half_widths, self._parts(fast), strict=True
        ):
            if reach is None or half is None or (level is None and ours != theirs):
                reach = None
            else:
                # a part's ratio counts by its share, and the machine's speed in it by the difference of shares
                reach = math.hypot(reach, (ours + theirs) / 2 * half, (ours - theirs) * (half_width_of(level) or 0.0))
        value = self.ms(slow) / self.ms(fast)  # of the printed sums
        return Ratio(
            value=value,
            ci95=around(value, reach),
            paired=all(ratio.paired for ratio in ratios),
            processes=min(ratio.processes for ratio in ratios),
            by_pages=max(ratio.by_pages for ratio in ratios),
        )

    def _shares(self, label: str) -> list[float]:
        return [part_ms / sum(self._parts_ms(label)) for part_ms in self._parts_ms(label)]

    def _left(self, label: str) -> list[tuple[Term, LeftEarly]] | None:
        """Return why a cell left the contest of each term, or None if it stayed in one."""
        reasons = [(term, term.left[label]) for term in self.terms if label in term.left]
        return reasons if len(reasons) == len(self.terms) else None

    def _least_lead(self, best: str, other: str) -> float:
        """Return how many times as long the other one takes at least, if it left every contest as surely beaten."""
        if (reasons := self._left(other)) is None:
            return 0.0
        shared_ms = sum(part.ms for part in self.shared)
        best_ms = sum(term.weight * term.fit.latency_ms[best] for term in self.terms)
        least_ms = 0.0
        for term, reason in reasons:
            latency_ms = term.fit.latency_ms
            than_ms = min(latency_ms[best], latency_ms.get(reason.than, math.inf))
            least_ms += term.weight * than_ms * reason.ratio
        return (least_ms + shared_ms) / (best_ms + shared_ms)

    def _most_lead(self, slow: str) -> float:
        """Return how many times as long a cell takes at most as one that takes nothing but what all cells share. It
        takes the ends of the intervals that make it large, and the margin for differences between processes."""
        shared_ms = sum(part.ci95.low if part.ci95 else part.ms for part in self.shared)
        if shared_ms <= 0:
            return math.inf
        own = self._parts(slow)[: len(self.terms)]
        own_ms = sum(weight * (interval.high if interval else ms) for weight, ms, interval in own)
        return 1 + own_ms * (1 + MARGIN) ** 2 / shared_ms


@dataclass(frozen=True, kw_only=True)
class Row:
    label: str
    value: float | None = None  # in the unit of the answer; None: it has none at this question
    interval: Interval | None = None
    rank: int | None = None  # None: it may not win
    speedup: Ratio | None = None  # over the baseline
    place: int | None = None  # in its precision, in a contest across several; those that tie for the first share it


@dataclass(frozen=True)
class Answer:
    """Who is best at one question. Labels name cells, and ratios say how many times better the best one is."""

    question: Question
    unit: str = "ms"
    rows: tuple[Row, ...] = ()  # the best first; those that may not win come last
    first: tuple[str, ...] = ()  # the best and those that share its place
    leads: Mapping[str, Ratio] = field(default_factory=dict)  # of the best over each other one that may win
    open_labels: tuple[str, ...] = ()  # measuring ended before the leads over these were decided
    baseline: str | None = None
    processes: int = 0  # in which the best one was measured
    by_precision: Mapping[Precision, tuple[str, ...]] = field(default_factory=dict)  # the best and those as good
    doubts: tuple[Doubt, ...] = ()  # what an output says beside the answer, the weightiest first
    is_doubted: bool = False  # a doubt could change who wins

    @property
    def ranked(self) -> list[Row]:
        return [row for row in self.rows if row.rank is not None]

    @property
    def best(self) -> Row | None:
        return self.rows[0] if self.first else None

    @property
    def value(self) -> float | None:
        return self.best.value if self.best else None

    @property
    def candidates(self) -> list[str]:
        """Return the best label, and then those that may prove as good."""
        return list(dict.fromkeys([*self.first, *self.open_labels]))

    @property
    def winner(self) -> str | None:
        return self.candidates[0] if len(self.candidates) == 1 else None

    @property
    def leader(self) -> str | None:
        """Return the label that shares the first place with no other one, though a further one may still be open."""
        return self.first[0] if len(self.first) == 1 else None

    @property
    def tied(self) -> tuple[str, ...]:
        return self.first if len(self.first) > 1 else ()

    @property
    def runner_up(self) -> str | None:
        return next((label for label in self.leads if label not in self.first), None)

    @property
    def lead(self) -> Ratio | None:
        """Return how much better the best one is than the runner-up, unless only waiting for cores was measured."""
        lead = self.leads[self.runner_up] if self.runner_up else None
        return lead if lead and lead.is_told else None

    @property
    def speedup(self) -> Ratio | None:
        return self.best.speedup if self.best else None

    @property
    def gain(self) -> Ratio | None:
        """Return the speed-up, or None where the baseline may be as good itself."""
        return None if self.baseline in self.candidates else self.speedup

    @property
    def doubt(self) -> Doubt | None:
        return next(iter(self.doubts), None)

    @property
    def is_open(self) -> bool:
        return bool(self.open_labels)

    @property
    def tied_within(self) -> float | None:
        """Return how close those are that share the first place, if they do so because they are close."""
        return CLOSE_MARGIN if any(is_only_close(self.leads[label]) for label in self.first[1:]) else None

    @property
    def certainty(self) -> Certainty:
        if not self.first:
            return Certainty.NOTHING
        if self.open_labels:
            return Certainty.OPEN
        if self.tied:
            return Certainty.TIE
        if not self.leads:
            return Certainty.ALONE
        return Certainty.DOUBTED if self.is_doubted else Certainty.SURE

    def row_of(self, label: str | None) -> Row | None:
        return next((row for row in self.rows if row.label == label), None)

    def doubted(self, doubts: Sequence[Doubt], always: Sequence[Doubt] = ()) -> Answer:
        """Return the answer with the doubts that could change who wins, or with those `always` said where no single
        cell wins. Both have the weightiest first."""
        answer = replace(self, is_doubted=bool(doubts))
        return replace(answer, doubts=tuple(doubts if answer.certainty is Certainty.DOUBTED else always))


def rank(
    question: Question,
    score: Score,
    may_win: Sequence[str],
    others: Sequence[str] = (),
    baseline: str | None = None,
    unit: str = "ms",
    cells: Sequence[Cell] = (),
    processes: Mapping[str, int] | None = None,
) -> Answer:
    """Return who is best by this score. `others` have values, and may not win. `cells` are given for a contest across
    several precisions, whose cells have a place in theirs."""
    order, rest = sorted(may_win, key=score.ms), sorted(others, key=score.ms)
    labels = [*order, *rest]
    leads = {label: score.ratio(order[0], label) for label in order[1:]}
    # the first place is shared by the best one and those after it, up to the first that it beats
    first, ranks = score.first_of(order), score.ranks_of(order)
    open_labels = [
        label
        for label in leads
        if not score.is_beaten(order[0], label) and not score.is_settled(order[0], label, label in first)
    ]
    precisions = {cell.label: cell.precision for cell in cells}
    groups = {
        precision: [label for label in sorted(labels, key=score.ms) if precisions.get(label) is precision]
        for precision in dict.fromkeys(precision for cell in cells for precision in cell.compared)
    }
    places = {label: place for group in groups.values() for label, place in score.ranks_of(group).items()}
    speedups = {label: score.ratio(label, baseline) for label in labels} if baseline in labels else {}
    return Answer(
        question,
        unit,
        rows=tuple(
            Row(
                label=label,
                value=score.value(label),
                interval=score.interval(label),
                rank=ranks.get(label),
                speedup=speedup if (speedup := speedups.get(label)) and speedup.is_told else None,
                place=places.get(label),
            )
            for label in labels
        ),
        first=first,
        leads=leads,
        open_labels=tuple(open_labels),
        baseline=baseline,
        processes=processes.get(order[0], 0) if processes and order else 0,
        by_precision={
            precision: score.first_of([label for label in group if label in order] or group)
            for precision, group in groups.items()
            if group
        },
    )
