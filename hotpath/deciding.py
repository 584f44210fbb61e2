"""When compiling, and switching, is worth what it costs: arithmetic on measured seconds, and nothing else.

Nobody knows how many calls will come. The estimate is as many again as there have been, as for somebody who rents skis
and wonders when to buy: who buys once the rent paid has reached the price never pays more than twice what the best
choice would have cost.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

SAVED_IF_UNKNOWN = 0.4
"""Share of an eager call that a compiled one is expected to save, before anything was compiled."""

COMPILE_IF_UNKNOWN_S = 20.0
"""What a compilation is expected to take before one was timed on this machine."""

BURDEN_SPARE = 0.02
"""Share of the compiler's time by which it delays the calls beside it, where it has cores of its own."""

BURDEN_SHARED = 1.0
"""The same where it competes with the calls for every core: what it computes, they wait for. Measured on two cores,
with calls of two threads: 0.72 and 0.96."""

REGRET = 0.2
"""No step may cost more than this share of what the calls have taken so far, however much it promises."""

FASTER = 1.03
"""A compiled version that is less than this many times as fast is not worth an exchange."""

CLEARLY_SLOWER = 0.8
"""What is less than this many times as fast, as the compiling process timed it, is not even tried. Anything between
this and `FASTER` promises nothing either way, and the trial decides: that process times both versions beside the calls
it works for, and where both wait for the same cores or the same GPU, the wait hides which one is faster."""

TRIAL_PAIRS = 10, 50
"""A trial has so many pairs of calls, one of either version: the fewest, and the most where they do not decide it."""

TRIAL_ERROR = 0.01
"""A trial's interval misses the median in at most so many cases, each time it is looked at. As that is after each pair,
up to four in a hundred trials of equals are misled (drawn: log-normal calls, 15 % of them twice as long)."""


@dataclass(frozen=True)
class Expectation:
    """What is known of a path, in seconds."""

    calls: int
    eager_s: float
    """Of one call."""
    speedup: float | None = None
    """Of the compiled version, as the compiling process or an earlier trial timed it; None where nobody has."""

    @property
    def spent_s(self) -> float:
        """What the calls so far have taken."""
        return self.calls * self.eager_s

    @property
    def saving_s(self) -> float:
        """What compiled calls would save over as many calls again."""
        if self.speedup is None or self.speedup < FASTER:
            return self.spent_s * SAVED_IF_UNKNOWN
        return self.spent_s * (1 - 1 / self.speedup)

    def is_worth(self, delay_s: float) -> bool:
        """Whether to accept that the calls are delayed by `delay_s` for the sake of the compiled version."""
        if self.speedup is not None and self.speedup < CLEARLY_SLOWER:
            return False
        return self.saving_s >= delay_s and delay_s <= REGRET * self.spent_s


def delay_of_compiling_s(
    compile_s: float | None, start_s: float, has_spare_cores: bool, burden: float | None = None
) -> float:
    """By how much calls are delayed by a compilation beside them, of `compile_s` and with `burden` (None: unknown).

    `start_s` is what starting it takes, during which no call is made.
    """
    expected_s = COMPILE_IF_UNKNOWN_S if compile_s is None else compile_s
    if burden is None:
        burden = BURDEN_SPARE if has_spare_cores else BURDEN_SHARED
    return start_s + burden * expected_s


def burden_of(before_s: float, meanwhile_s: float) -> float:
    """The share of a compilation's time by which it delayed the calls beside it.

    From what an eager call took before it, and meanwhile.
    """
    return min(1.0, max(0.0, 1 - before_s / max(meanwhile_s, 1e-9)))


def faster_by(eager_s: float, compiled_s: float) -> float:
    """How many times as fast the compiled version is."""
    return eager_s / max(compiled_s, 1e-9)


@dataclass(frozen=True)
class Trial:
    """What pairs of calls that followed one another say: how many times as fast the compiled one was.

    Ratios of neighbours, since the machine's speed may change from one second to the next and is in both.
    """

    ratio: float
    """The median over pairs."""
    low: float
    high: float
    """The true median lies between them but for `TRIAL_ERROR` of cases, however the ratios are distributed."""
    is_over: bool
    """Whether the pairs decide, or are as many as there may be."""

    @property
    def is_won(self) -> bool:
        """By the compiled version: it is faster, and by enough for an exchange. What was not told apart stays eager."""
        return self.low > 1 and self.ratio >= FASTER

    @property
    def is_lost(self) -> bool:
        return self.high < FASTER


def trial_of(eager_s: Sequence[float], compiled_s: Sequence[float]) -> Trial | None:
    """What the seconds of calls in turns say, where `eager_s[i]` was beside `compiled_s[i]`; None before the fewest.

    The interval is between order statistics of the ratios (the sign test's; Conover, Practical Nonparametric
    Statistics, 1999, section 3.2).
    """
    fewest, most = TRIAL_PAIRS
    ratios = sorted(faster_by(eager, compiled) for eager, compiled in zip(eager_s, compiled_s, strict=False))
    if len(ratios) < fewest:
        return None
    cut = _ratios_beyond(len(ratios))
    trial = Trial(statistics.median(ratios), ratios[cut], ratios[-1 - cut], is_over=len(ratios) >= most)
    return replace(trial, is_over=trial.is_over or trial.is_won or trial.is_lost)


@functools.cache
def _ratios_beyond(count: int) -> int:
    """So many of `count` sorted values lie outside of the interval of their median, on either side."""
    beyond, tail = 0, 0.5**count
    while 2 * (tail + math.comb(count, beyond + 1) * 0.5**count) <= TRIAL_ERROR:
        beyond += 1
        tail += math.comb(count, beyond) * 0.5**count
    return beyond
