"""When compiling, and switching, is worth its cost: arithmetic on measured seconds, and nothing else.

Nobody knows how many calls will come. The estimate is as many again as there have been. This is the ski rental problem:
who buys once the rent paid has reached the price never pays more than twice the best choice.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

SAVED_SHARE_IF_UNKNOWN = 0.4
"""The share of an eager call that a compiled one is expected to save before anything was compiled."""

COMPILE_IF_UNKNOWN_S = 20.0
"""The expected time of a compilation before one was timed on this machine."""

BURDEN_ON_SPARE_CORES = 0.02
"""The share of a compilation's time by which it delays the calls beside it, where it has cores of its own."""

BURDEN_ON_SHARED_CORES = 1.0
"""The same share where the compiler competes with the calls for every core. Two cores and calls of two threads gave
0.72 and 0.96."""

MAX_COST_SHARE = 0.2
"""No step may cost more than this share of the time of the calls so far, however much it promises."""

MIN_SPEEDUP = 1.03
"""A compiled version with a smaller speed-up is not worth the exchange."""

CLEARLY_SLOWER = 0.8
"""A version with a smaller speed-up in the compiling process is not even tried. That process timed both versions beside
the calls. Waiting for the same cores or GPU hides which one is faster, so the trial decides all other cases."""

MIN_TRIAL_PAIRS, MAX_TRIAL_PAIRS = 10, 50
"""A pair is one call of each version."""

TRIAL_ERROR = 0.01
"""The share of cases in which a trial's interval misses the true median, each time it is computed. A trial computes it
after each pair, so up to 4 % of trials between equals end wrongly (simulated: log-normal calls, 15 % of them slow)."""


@dataclass(frozen=True)
class Expectation:
    """The calls of a path so far, and the speed-up to expect from compiling it."""

    calls: int
    eager_s: float  # of one call
    speedup: float | None = None  # as the compiling process or an earlier trial measured it

    @property
    def spent_s(self) -> float:
        """The time of the calls so far."""
        return self.calls * self.eager_s

    @property
    def saving_s(self) -> float:
        """The time that compiled calls would save over as many calls again."""
        if self.speedup is None or self.speedup < MIN_SPEEDUP:
            return self.spent_s * SAVED_SHARE_IF_UNKNOWN
        return self.spent_s * (1 - 1 / self.speedup)

    def is_worth(self, delay_s: float) -> bool:
        """Return True if the compiled version is worth a delay of the calls by `delay_s`."""
        if self.speedup is not None and self.speedup < CLEARLY_SLOWER:
            return False
        return self.saving_s >= delay_s and delay_s <= MAX_COST_SHARE * self.spent_s


def delay_of_compiling_s(
    compile_s: float | None, start_s: float, has_spare_cores: bool, burden: float | None = None
) -> float:
    """Return the time by which a compilation is expected to delay the calls beside it.

    No call is made during `start_s`. None for `compile_s` or `burden` means that nobody has measured it.
    """
    expected_s = COMPILE_IF_UNKNOWN_S if compile_s is None else compile_s
    if burden is None:
        burden = BURDEN_ON_SPARE_CORES if has_spare_cores else BURDEN_ON_SHARED_CORES
    return start_s + burden * expected_s


def burden_of(before_s: float, meanwhile_s: float) -> float:
    """Return the share of a compilation's time by which it delayed the calls, from eager's times before and beside."""
    return min(1.0, max(0.0, 1 - before_s / max(meanwhile_s, 1e-9)))


def has_spare_core(usable_cores: int, cores: int, load: float, wanted: int) -> bool:
    """Return True if one core is left for a compiler beside a model that uses `wanted` of them.

    `load` is that of all `cores` of the machine, of which this process may use `usable_cores`.
    """
    busy_share = min(1.0, load / cores)
    # the calls themselves are part of the load
    return usable_cores > wanted and usable_cores * (1 - busy_share) >= 1


def speedup_of(eager_s: float, compiled_s: float) -> float:
    return eager_s / max(compiled_s, 1e-9)


@dataclass(frozen=True)
class TrialResult:
    """The speed-up of the compiled version, from pairs of neighbouring calls.

    Each pair gives a ratio. The machine's speed may change from one second to the next, and cancels in it.
    """

    speedup: float  # the median over pairs
    low: float  # the true median lies between low and high but for `TRIAL_ERROR` of cases, for any distribution
    high: float
    is_over: bool  # the pairs decide, or are as many as there may be

    @property
    def is_won(self) -> bool:
        """The compiled version is surely faster, and by enough for an exchange. Undecided trials stay eager."""
        return self.low > 1 and self.speedup >= MIN_SPEEDUP

    @property
    def is_lost(self) -> bool:
        return self.high < MIN_SPEEDUP


def trial_result(eager_s: Sequence[float], compiled_s: Sequence[float]) -> TrialResult | None:
    """Return what pairs of calls say, `eager_s[i]` beside `compiled_s[i]`. None for fewer than `MIN_TRIAL_PAIRS`.

    The interval lies between order statistics of the ratios (the sign test's; Conover, Practical Nonparametric
    Statistics, 1999, section 3.2).
    """
    ratios = sorted(speedup_of(eager, compiled) for eager, compiled in zip(eager_s, compiled_s, strict=False))
    if len(ratios) < MIN_TRIAL_PAIRS:
        return None
    cut = _ratios_beyond(len(ratios))
    result = TrialResult(
        statistics.median(ratios), ratios[cut], ratios[-1 - cut], is_over=len(ratios) >= MAX_TRIAL_PAIRS
    )
    return replace(result, is_over=result.is_over or result.is_won or result.is_lost)


@functools.cache
def _ratios_beyond(count: int) -> int:
    """Return how many of `count` sorted values lie outside the interval of their median, on either side."""
    beyond, tail = 0, 0.5**count
    while 2 * (tail + math.comb(count, beyond + 1) * 0.5**count) <= TRIAL_ERROR:
        beyond += 1
        tail += math.comb(count, beyond) * 0.5**count
    return beyond
