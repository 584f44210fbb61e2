"""Decides what a ratio and its interval allow to say: faster, slower, a tie, or not decided yet.

The thresholds come from simulations of the whole procedure, which looks after every process (benchmarks/coverage.py,
with the table in docs/method.md).
"""

import math
from enum import StrEnum

from bakeoff.judging.estimate import interval_at
from bakeoff.judging.intervals import around, student_quantile
from bakeoff.records.schema import MAX_PROCESSES as MAX_PROCESSES
from bakeoff.records.schema import Interval, Ratio

TIE_MARGIN = 0.02
"""A smaller difference is a tie, however narrow its interval is."""

CALL_CONFIDENCE = 0.999
"""A lead under `NARROW_LEAD` is called if the interval of this confidence excludes 1. With a look after each of 3 to
20 processes, a 95 % interval would exclude 1 by chance in 20 % of the contests between equals (repeated significance
testing: Armitage, McPherson and Rowe, JRSS A 132, 1969). Pocock's remedy is a stricter confidence, the same for all
looks (Biometrika 64, 1977)."""

TIE_CONFIDENCE = 0.80
"""Measuring goes on until the interval of this confidence is within the tie's margin. Stopping too early can only
miss a difference that is hardly larger than the margin."""

NARROW_WIDTH = 0.01
"""A 95 % interval narrower than this, from end to end, decides."""

FEWEST_PROCESSES = 3
"""Fewer processes do not end a measurement. Where it has to end, two are judged as one is, by `MARGIN`."""

CLOSE_MARGIN = 0.05
"""After `ENOUGH_PROCESSES`, two cells tie if the 95 % interval includes 1 and is within this. Which of them is a little
faster would take longer to find out than it is worth."""

ENOUGH_PROCESSES = 3 * FEWEST_PROCESSES

NARROW_LEAD = 0.25
"""A larger lead is more than chance gives to three processes of each cell. With 10 %, two of 13 contests between equals
called a winner on a machine where the pairs of their processes differed by 12.5 % (standard deviation). PyTorch's
allocations there got new pages from the kernel in every call, and each process other ones. With 25 %, contests drawn
from these pairs call 1.2 % instead of 5.1 %."""

NARROW_LEAD_ONCE = 0.10
"""The same where measuring looks once, as under load: a confidence of 99 % is wrong in 1 % then."""

WIDE_LEAD_CONFIDENCE = 0.99
"""The confidence for a lead over `NARROW_LEAD`, which hardly ever occurs between equals, so that many looks do no harm.
With `CALL_CONFIDENCE`, three processes would show a lead of 30 % in 63 % of the simulated contests (processes differ by
1 %), and not in all."""

FEWEST_FOR_NARROW_LEAD = 5
"""A narrow lead needs this many processes. Some processes come in two kinds, with aligned data or not. Three of one
cell are all of one kind, and three of its equal of the other kind, in up to 3 % of the contests; five only in 0.2 %.
In some the C library gives memory back after each call. Such processes may take twice as long, so that a lead over them
is narrow up to that factor: of 45 trials with two equal cells, three processes of each called one 1.66 times faster."""

MARGIN = 0.04
"""With fewer processes, the low end of the 95 % interval must be over this. Two identical processes can differ by 4 %
for as long as they live, because of their memory layout, and no interval over rounds shows that. Some differ more, so
that a lead under `NARROW_LEAD` comes with a doubt."""

MARGIN_UNPAIRED = 0.25
"""The low end must be over this if the cells were not measured in the same rounds, because the machine may have drifted
in between."""


class Relation(StrEnum):
    """What a ratio says about the first cell, compared with the second."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"  # the 95 % interval over processes includes 1, or the difference is within the margin
    UNDECIDED = "undecided"  # too few processes, or the interval excludes 1, but not as surely as a call needs


CALLED = (Relation.FASTER, Relation.SLOWER)


def relation(ratio: Ratio, looks_once: bool = False) -> Relation:
    """Return what can be said now. `UNDECIDED` shares a place like a tie, but more processes may change that. With
    `looks_once`, the number of processes was fixed before the first ones were seen."""
    narrow = NARROW_LEAD_ONCE if looks_once else NARROW_LEAD
    if _is_faster(ratio, narrow):
        return Relation.FASTER
    interval = ratio.ci95 and Interval(low=1 / ratio.ci95.high, high=1 / ratio.ci95.low)
    inverse = ratio.model_copy(update={"value": 1 / ratio.value, "ci95": interval})
    if _is_faster(inverse, narrow):
        return Relation.SLOWER
    if ratio.ci95 is None or ratio.processes < FEWEST_PROCESSES:
        return Relation.UNDECIDED
    if not ratio.paired:
        return Relation.TIE if _is_within(ratio.ci95, MARGIN_UNPAIRED) else Relation.UNDECIDED
    is_small = max(ratio.value, 1 / ratio.value) < 1 + TIE_MARGIN
    return Relation.TIE if is_small or ratio.ci95.low <= 1 <= ratio.ci95.high else Relation.UNDECIDED


def is_decided(ratio: Ratio, looks_once: bool = False) -> bool:
    """Return True if no further processes are needed: a winner is called, a tie is sure, or the interval is narrow. It
    is never True with fewer than `FEWEST_PROCESSES`, or for a ratio that is `UNDECIDED`."""
    if ratio.ci95 is None or ratio.processes < FEWEST_PROCESSES:
        return False
    call = relation(ratio, looks_once)
    if call is not Relation.TIE:
        return call is not Relation.UNDECIDED
    return _is_tie_for_good(ratio) or _is_close_enough(ratio)


def is_only_close(ratio: Ratio) -> bool:
    """Return True for a tie that ended because both are within `CLOSE_MARGIN`, and that more processes might break."""
    return relation(ratio) is Relation.TIE and _is_close_enough(ratio) and not _is_tie_for_good(ratio)


def may_be_decided(ratio: Ratio) -> bool:
    """Return False where `ENOUGH_PROCESSES` show that not even `MAX_PROCESSES` are likely to decide: more of them
    narrow the interval, and rarely move its middle by more than one standard error."""
    if ratio.ci95 is None or not ENOUGH_PROCESSES <= ratio.processes < MAX_PROCESSES:
        return True
    half = math.log(ratio.ci95.high / ratio.ci95.low) / 2
    error = half / student_quantile(0.95, ratio.processes - 1)
    expected = error * math.sqrt(ratio.processes / MAX_PROCESSES) * student_quantile(0.95, MAX_PROCESSES - 1)
    middles = (ratio.value * math.exp(moved) for moved in (-error, 0.0, error))
    return any(
        is_decided(Ratio(value=middle, ci95=around(middle, expected), paired=ratio.paired, processes=MAX_PROCESSES))
        for middle in middles
    )


def is_apart(ratio: Ratio, looks_once: bool = False) -> bool:
    """Return True where the first cell is before the second in rank. A winner needs a stricter interval than that."""
    said = relation(ratio, looks_once)
    excludes_one = is_over_processes(ratio) and ratio.ci95 is not None and ratio.ci95.low > 1
    return said is Relation.FASTER or (said is Relation.UNDECIDED and excludes_one)


def is_covered_by_waiting(ratio: Ratio) -> bool:
    """Return True if waiting for cores alone may have made this difference, or hidden one. It has not where the
    interval excludes 1, because that contains the waiting of either cell."""
    waiting_counts = ratio.waiting >= 1 + TIE_MARGIN and ratio.waiting >= max(ratio.value, 1 / ratio.value)
    excludes_one = ratio.ci95 is not None and not ratio.ci95.low <= 1 <= ratio.ci95.high
    return ratio.is_of_busy_machine or (waiting_counts and not excludes_one)


def narrow_lead(ratio: Ratio, by_chance: float = NARROW_LEAD) -> float:
    """Return the largest lead that chance, with the memory that the slower cell gets from the kernel, may give to three
    processes of each cell."""
    return (1 + by_chance) * ratio.by_pages - 1


def fewest_processes(ratio: Ratio) -> int:
    """Return with how many processes this ratio can be decided at the earliest."""
    is_narrow = 1 + TIE_MARGIN <= max(ratio.value, 1 / ratio.value) < 1 + narrow_lead(ratio)
    return FEWEST_FOR_NARROW_LEAD if is_narrow else FEWEST_PROCESSES


def _is_faster(ratio: Ratio, narrow: float) -> bool:
    if ratio.ci95 is None:
        return False
    if not is_over_processes(ratio):
        return ratio.ci95.low > 1 + (MARGIN if ratio.paired else MARGIN_UNPAIRED)
    is_wide = ratio.value >= 1 + narrow_lead(ratio, narrow)
    if not is_wide and (ratio.value < 1 + TIE_MARGIN or ratio.processes < FEWEST_FOR_NARROW_LEAD):
        return False
    confidence = WIDE_LEAD_CONFIDENCE if is_wide else CALL_CONFIDENCE
    return interval_at(ratio, confidence).low > 1 or _is_narrow(ratio.ci95)


def is_over_processes(ratio: Ratio) -> bool:
    """Return True if the interval contains the differences between equal processes, and the cells shared rounds."""
    return ratio.paired and ratio.processes >= FEWEST_PROCESSES


def _is_tie_for_good(ratio: Ratio) -> bool:
    if not ratio.paired or ratio.ci95 is None:
        return ratio.ci95 is not None
    return _is_narrow(ratio.ci95) or _is_within(interval_at(ratio, TIE_CONFIDENCE), TIE_MARGIN)


def _is_close_enough(ratio: Ratio) -> bool:
    if ratio.ci95 is None or not is_over_processes(ratio) or ratio.processes < ENOUGH_PROCESSES:
        return False
    return ratio.ci95.low <= 1 <= ratio.ci95.high and _is_within(ratio.ci95, CLOSE_MARGIN)


def _is_within(interval: Interval, margin: float) -> bool:
    return interval.low > 1 / (1 + margin) and interval.high < 1 + margin


def _is_narrow(interval: Interval) -> bool:
    return interval.high / interval.low - 1 < NARROW_WIDTH
