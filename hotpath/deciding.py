"""When compiling, and switching, is worth what it costs: arithmetic on measured seconds, and nothing else.

Nobody knows how many calls will come. The estimate is as many again as there have been, as for somebody who rents skis
and wonders when to buy: who buys once the rent paid has reached the price never pays more than twice what the best
choice would have cost.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Expectation:
    """What is known of a path, in seconds."""

    calls: int
    eager_s: float
    """Of one call."""
    speedup: float | None = None
    """Of the compiled version, measured now or in an earlier run; None where nobody has compiled it yet."""

    @property
    def spent_s(self) -> float:
        """What the calls so far have taken."""
        return self.calls * self.eager_s

    @property
    def saving_s(self) -> float:
        """What compiled calls would save over as many calls again."""
        share = SAVED_IF_UNKNOWN if self.speedup is None else 1 - 1 / self.speedup
        return self.spent_s * share

    def is_worth(self, delay_s: float) -> bool:
        """Whether to accept that the calls are delayed by `delay_s` for the sake of the compiled version."""
        if self.speedup is not None and self.speedup < FASTER:
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
