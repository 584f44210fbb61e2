"""What a ratio with its interval allows to be said: faster, slower, a tie, or not decided yet. Pure functions.

The thresholds come from simulating the whole procedure, looks after every process included (benchmarks/coverage.py; the
table is in docs/method.md).
"""

from __future__ import annotations

from enum import StrEnum

from judging.estimate import interval_at
from records.schema import Interval, Ratio

TIE_MARGIN = 0.02
"""A smaller difference is a tie, however narrow its interval."""

CALL_CONFIDENCE = 0.999
"""A winner by less than `NARROW_LEAD` is called when the interval of this confidence excludes 1: at a look after each
of 3 to 20 processes, a 95 % interval would exclude it by chance in 20 % of the contests between equals (repeated
significance testing: Armitage, McPherson and Rowe, JRSS A 132, 1969). A constant, stricter confidence for all looks is
Pocock's remedy (Biometrika 64, 1977)."""

TIE_CONFIDENCE = 0.80
"""Measuring goes on until the interval of this confidence lies within the tie's margin: what is missed by stopping too
early is a difference hardly larger than the margin."""

NARROW_ENOUGH = 0.01
"""A 95 % interval narrower than this, end to end, is an answer wherever it lies."""

FEWEST_PROCESSES = 3
"""From fewer, no interval over processes is worth a decision: at two, Student's t is 12.7 standard errors wide."""

NARROW_LEAD = 0.10
"""Ten equal processes were seen to spread over 7.9 %: a lead over this is more than their layouts can make."""

WIDE_LEAD_CONFIDENCE = 0.99
"""Enough for a lead over `NARROW_LEAD`, however often it is looked at: between equals such a lead hardly comes up to be
called. At `CALL_CONFIDENCE` three processes seldom told a lead of 24 % (31 % of the contests drawn from the quiet
transformer's pairs, instead of 92)."""

FEWEST_FOR_NARROW_LEAD = 5
"""A smaller lead is called from so many processes on. Where processes come in two kinds (data aligned or not), three of
one cell are of the one kind and three of its equal of the other in up to 3 % of the contests, each as steady as can be;
five in 0.2 %."""

MARGIN = 0.04
"""With fewer processes a lead is called only if the low end of its 95 % interval is over this: two identical processes
can differ by 4 % for as long as they live (memory layout), which no interval over rounds shows."""

MARGIN_UNPAIRED = 0.25
"""The same between cells that were not measured in the same rounds, by however many processes: the machine may have
drifted in between."""


class Relation(StrEnum):
    """What a ratio says of the first cell against the second."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"  # the 95 % interval includes 1, or the difference is within the margin
    UNDECIDED = "undecided"  # the 95 % interval excludes 1, but one cannot be as sure of that as a call has to be


def relation(ratio: Ratio) -> Relation:
    """The call as of now. `UNDECIDED` shares a place like a tie, and says that more processes may change that."""
    if _is_faster(ratio):
        return Relation.FASTER
    if _is_faster(_inverse(ratio)):
        return Relation.SLOWER
    if not _is_over_processes(ratio) or _contains_one(ratio) or not _is_beyond_tie(ratio.value):
        return Relation.TIE
    return Relation.UNDECIDED


def is_decided(ratio: Ratio) -> bool:
    """Whether measuring in further processes can end: a winner is called, a tie is as good as sure, or the interval is
    narrow. Never with fewer than `FEWEST_PROCESSES`; never for a ratio that is `UNDECIDED`."""
    if ratio.ci95 is None or ratio.processes < FEWEST_PROCESSES:
        return False
    call = relation(ratio)
    if call is not Relation.TIE:
        return call is not Relation.UNDECIDED
    if not ratio.paired:
        return _is_within(ratio.ci95, MARGIN_UNPAIRED)
    return _is_narrow(ratio.ci95) or _is_within(interval_at(ratio, TIE_CONFIDENCE), TIE_MARGIN)


def _is_faster(ratio: Ratio) -> bool:
    if ratio.ci95 is None:
        return False
    if not _is_over_processes(ratio):
        return ratio.ci95.low > 1 + (MARGIN if ratio.paired else MARGIN_UNPAIRED)
    is_wide = ratio.value >= 1 + NARROW_LEAD
    if not is_wide and (ratio.value < 1 + TIE_MARGIN or ratio.processes < FEWEST_FOR_NARROW_LEAD):
        return False
    confidence = WIDE_LEAD_CONFIDENCE if is_wide else CALL_CONFIDENCE
    return interval_at(ratio, confidence).low > 1 or _is_narrow(ratio.ci95)


def _is_over_processes(ratio: Ratio) -> bool:
    """Whether the interval knows how far equal processes are apart, with nothing else between the two cells."""
    return ratio.paired and ratio.processes >= FEWEST_PROCESSES


def _inverse(ratio: Ratio) -> Ratio:
    interval = ratio.ci95 and Interval(low=1 / ratio.ci95.high, high=1 / ratio.ci95.low)
    return ratio.model_copy(update={"value": 1 / ratio.value, "ci95": interval})


def _is_beyond_tie(value: float) -> bool:
    return max(value, 1 / value) >= 1 + TIE_MARGIN


def _contains_one(ratio: Ratio) -> bool:
    return ratio.ci95 is None or ratio.ci95.low <= 1 <= ratio.ci95.high


def _is_within(interval: Interval, margin: float) -> bool:
    return interval.low > 1 / (1 + margin) and interval.high < 1 + margin


def _is_narrow(interval: Interval) -> bool:
    return interval.high / interval.low - 1 < NARROW_ENOUGH
