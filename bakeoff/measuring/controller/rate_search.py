"""Finds the highest rate at which latencies stay under a limit: pure, so that tests need no load."""

import math
from dataclasses import dataclass, field

NARROW = 1.05
"""The search ends when the lowest rate that is too high is at most this many times the highest that is not."""

EDGE = 0.2
"""The next rate stays this share of a bracket, in logarithms, away from both of its ends."""

MOST_DOWN = 2.0
MOST_UP = 1.25
"""The latency of a window moves the next rate at most this many times down or up. Only `step` can move it farther."""

RISE = 4.0
"""Near the limit a percentile rises about this many times as fast as the rate, in logarithms. So it shows how far off
the rate is, and small steps are not wasted on that."""

GIVE_UP_SHARE = 0.02
"""No rate meets the objective if even this share of the first rate does not. A search goes on until here: a cell that
one bad second robs of its number would leave the place to the next one."""

GIVE_UP_SHARE_OF_TURN = 0.1
"""The same for a turn, whose first rate has met the objective before. Lower rates take seconds each, and no bad second
lasts so long."""


@dataclass
class RateSearch:
    """Say `next_rate`, take the latency at it by `add`, until `next_rate` is None. Then `result` is the rate."""

    limit_ms: float
    start: float
    step: float = 1.25
    most_windows: int = 8  # more are taken only while no rate has met the objective
    highest: float = math.inf  # no higher rate is tried
    give_up_share: float = GIVE_UP_SHARE
    seen: list[tuple[float, float]] = field(default_factory=list)  # each rate with its latency in ms

    def add(self, rate: float, latency_ms: float) -> None:
        self.seen.append((rate, latency_ms))

    @property
    def too_high(self) -> tuple[float, float] | None:
        return min((point for point in self.seen if point[1] >= self.limit_ms), default=None)

    @property
    def held(self) -> tuple[float, float] | None:
        """The highest rate that met the objective, below all that were too high."""
        above = self.too_high
        return max(
            (point for point in self.seen if point[1] < self.limit_ms and (above is None or point[0] < above[0])),
            default=None,
        )

    def next_rate(self) -> float | None:
        if not self.seen:
            return min(self.start, self.highest)
        held, too_high = self.held, self.too_high
        is_late = len(self.seen) >= self.most_windows
        if is_late and held is not None:
            return None
        if too_high is None:
            assert held is not None
            following = min(held[0] * self._step(held[1], MOST_UP), self.highest)
            return following if following > held[0] else None
        if held is None:
            following = too_high[0] / (MOST_DOWN if is_late else self._step(too_high[1], MOST_DOWN))
            return following if following > self.give_up_share * self.start else None
        if too_high[0] / held[0] <= NARROW:
            return None
        width = math.log(too_high[0] / held[0])
        share = min(1 - EDGE, max(EDGE, math.log(self._crossing(held, too_high) / held[0]) / width))
        return held[0] * math.exp(share * width)

    def result(self) -> float | None:
        """Return the highest rate within the objective, between two rates that were tried; None if none was."""
        held, too_high = self.held, self.too_high
        if held is None or too_high is None:
            return held[0] if held else None
        return self._crossing(held, too_high)

    def _step(self, latency_ms: float, most: float) -> float:
        """Return the factor to the next rate, where all windows had one answer. Steps get longer with each of them."""
        far = abs(math.log(latency_ms / self.limit_ms)) / RISE
        return max(self.step ** min(3, len(self.seen)), min(most, math.exp(far)))

    def _crossing(self, held: tuple[float, float], too_high: tuple[float, float]) -> float:
        """Return where latency would cross the limit on a line between two rates, in logarithms."""
        rise = math.log(too_high[1] / held[1])
        share = math.log(self.limit_ms / held[1]) / rise if rise > 0 else 0.5
        return held[0] * math.exp(share * math.log(too_high[0] / held[0]))
