"""The doubts about what cells carried under load. Each kind finds itself in a cell."""

from collections.abc import Collection, Iterator
from typing import ClassVar, Self

import numpy as np

from bakeoff.judging.doubt import OfCell
from bakeoff.judging.loaded_cell import MISSED, LoadedCell, SoakSummary
from bakeoff.records.doubts import Effect
from bakeoff.records.scenarios import Scenario
from bakeoff.records.text import counted, listed, spell_ms, spell_rate, spell_seconds

NEAR_CEILING = 0.5
"""A value over this share of what the generator can do may be the generator's. It is ranked, and the answer doubted."""

DRIFT = 0.10
"""Latencies that change by more over the soak have drifted."""

LONG_WINDOW_S = 1.8
LONG_WINDOW_REQUESTS = 900
"""In a shorter window with fewer requests a queue can hardly grow. In simulated queues, rates found in half a second
were 5 to 18 % too high, and those found in two seconds 1 to 7 %."""


class OfLoad(OfCell):
    """A doubt about what one cell carried. It could change the winner if the cell is the best one."""

    worst: ClassVar[Effect] = Effect.WINNER

    def is_about_place(self, ranked: Collection[str], best: float) -> bool:
        """Return True if the cell may carry more than the best one, whose value is `best`, whichever that is."""
        return False


class NearCeiling(OfLoad):
    """The generator can hardly do more than a cell carried."""

    value: float
    ceiling: float  # of the generator, in the unit of `value`
    scenario: Scenario

    @classmethod
    def find(cls, cell: LoadedCell) -> Iterator[Self]:
        value, ceiling, scenario = cell.value, cell.load.ceiling, cell.load.scenario
        if value is None or ceiling is None:
            return
        ours, most = (value, ceiling) if scenario.spec.is_rate else (ceiling, value)
        if ours > NEAR_CEILING * most:
            yield cls(cell.label, value, ceiling, scenario)

    def is_about_place(self, ranked: Collection[str], best: float) -> bool:
        return self.label in ranked

    @property
    def brief(self) -> str:
        return f"the load generator may be the limit of {self.label}"

    def say(self) -> str:
        spell = self.scenario.spec.spell
        return (
            f"The load generator itself reaches {spell(self.ceiling)} here with empty answers, so it may be the limit "
            f"of {self.label}'s {spell(self.value)}."
        )


class SoakMissed(OfLoad):
    """The objective does not hold over the soak. Only the scenario `server` has an objective."""

    missed: tuple[SoakSummary, ...]  # at the rate found, and at lower ones that did not hold, either
    held: SoakSummary | None  # at the first lower rate that held
    below: float | None  # the rate that the cell is ranked with, where the soak's was clearly lower
    has_value: bool  # False: the cell is not ranked, since it held no soak
    limit_ms: float

    @classmethod
    def find(cls, cell: LoadedCell) -> Iterator[Self]:
        if cell.soak and cell.soak.has_missed:
            missed = tuple(soak for soak in cell.soaks if soak.has_missed)
            below = cell.rate if cell.is_soaked_below else None
            assert cell.load.objective is not None  # it is missed
            yield cls(cell.label, missed, cell.held, below, cell.value is not None, cell.load.objective.limit_ms)

    @property
    def lowest(self) -> float:
        return min(soak.rate for soak in self.missed)

    def is_about_place(self, ranked: Collection[str], best: float) -> bool:
        return self.held is None and self.lowest > best

    @property
    def brief(self) -> str:
        if self.held:
            return f"it holds only {spell_rate(self.held.rate)} requests/s for long"
        if self.has_value:
            return f"it does not hold even {spell_rate(self.lowest)} requests/s for long"
        return f"{self.label} may carry more, at a rate that was not soaked"

    def say(self) -> str:
        missed = listed([_spell_soak(soak) for soak in self.missed])
        held = f" It held at {_spell_soak(self.held)}." if self.held else ""
        below = (
            f" It missed at less than the {spell_rate(self.below)} requests/s of all its turns." if self.below else ""
        )
        is_late = self.held and self.held.objective_ms and self.held.objective_ms > self.limit_ms
        most = f" Over so long, up to {spell_ms(MISSED * self.limit_ms)} counts as held." if is_late else ""
        return f"{self.label} does not hold the objective for long at {missed}.{held}{below}{most}"


class LatencyDrifted(OfLoad):
    """Latencies changed over the soak."""

    brief: ClassVar[str] = "its latency drifted under load"
    share: float  # of the first third's median that the last third's is longer
    rate: float  # of the soak, in requests per second

    @classmethod
    def find(cls, cell: LoadedCell) -> Iterator[Self]:
        if cell.soak and cell.soak.drift is not None and abs(cell.soak.drift) > DRIFT:
            yield cls(cell.label, cell.soak.drift, cell.soak.rate)

    def say(self) -> str:
        change = f"{100 * self.share:+.0f} %"
        return (
            f"{self.label}'s time for a request changed by {change} over the soak at {spell_rate(self.rate)} "
            "requests/s."
        )


class ShortWindows(OfLoad):
    """The windows were so short that no long queue could grow."""

    brief: ClassVar[str] = "its windows were short"
    seconds: float

    @classmethod
    def find(cls, cell: LoadedCell) -> Iterator[Self]:
        windows = cell.windows_of_turns
        if not windows or not cell.load.scenario.spec.sends_at_rate:
            return
        seconds = float(np.median([window.seconds for window in windows]))
        requests = float(np.median([window.requests for window in windows]))
        if seconds < LONG_WINDOW_S and requests < LONG_WINDOW_REQUESTS:
            yield cls(cell.label, seconds)

    def say(self) -> str:
        return (
            f"{self.label}'s windows lasted {spell_seconds(self.seconds)} s, in which no long queue can grow: its "
            "rate may be up to 18 % too high."
        )


class RequestsFailed(OfLoad):
    """Requests raised errors or were left out."""

    brief: ClassVar[str] = "some of its requests failed"
    failed: int
    requests: int
    example: str  # of the errors

    @classmethod
    def find(cls, cell: LoadedCell) -> Iterator[Self]:
        windows = [*cell.load.soak, *cell.load.lower_soak, *cell.windows_of_turns]
        if failed := sum(window.failed for window in windows):
            example = next((window.failure for window in windows if window.failure), "")
            yield cls(cell.label, failed, sum(window.requests for window in windows), example)

    def say(self) -> str:
        return f"{self.label} failed {self.failed} of {counted(self.requests, 'request')} under load: {self.example}."


KINDS = (NearCeiling, SoakMissed, LatencyDrifted, ShortWindows, RequestsFailed)
"""Every kind of doubt about load, in order of weight."""


def doubts_of(cell: LoadedCell) -> list[OfLoad]:
    return [doubt for kind in KINDS for doubt in kind.find(cell)]


def _spell_soak(soak: SoakSummary) -> str:
    assert soak.objective_ms is not None  # it is missed or held
    return f"{spell_rate(soak.rate)} requests/s ({spell_ms(soak.objective_ms)} over {spell_seconds(soak.seconds)} s)"
