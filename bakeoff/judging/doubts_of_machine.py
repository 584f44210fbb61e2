"""The doubts about the machine: what disturbed the measurements, from the conditions that each burst carries."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from bakeoff.judging.decision import MARGIN_UNPAIRED, Relation, relation
from bakeoff.judging.disturbance import (
    MAX_WAIT_SHARE,
    THROTTLED_CLOCK,
    WAIT_SHARE,
    Usual,
    conditions_of,
    usual_of,
    waited,
    was_robbed,
)
from bakeoff.judging.doubt import Doubt, FirstPlace, OfValues
from bakeoff.judging.doubts_of_winner import MachineBusy
from bakeoff.judging.estimate import compares_disturbed_rounds, series_of, undisturbed
from bakeoff.judging.fit import fit
from bakeoff.judging.ranking import Evidence
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Burst, Conditions
from bakeoff.records.text import percent

NAMED_SHARE = 0.05
"""What disturbed a smaller share of the bursts is no doubt: it does not move a median over rounds."""

DRIFT = 0.05
"""A drift of the machine's speed over the run is a doubt if it is more than this."""

DRIFT_WINDOW = 5
"""The machine's speed at a time is the median calibration of this many rounds."""


def _bursts(evidence: Evidence) -> dict[str, list[Burst]]:
    records = evidence.ranking.measured if evidence.ranking.ranked else ()
    return {record.cell.label: record.bursts for record in records if conditions_of(record.bursts)}


def _conditions(evidence: Evidence) -> list[Conditions]:
    return [seen for bursts in _bursts(evidence).values() for seen in conditions_of(bursts)]


class ClockHeldDown(Doubt):
    """The GPU says that its clock was held down in this share of the bursts."""

    share: float
    reasons: tuple[str, ...]  # in NVML's words
    temperature_c: int | None  # the highest one

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        conditions = _conditions(evidence)
        held = [seen for seen in conditions if seen.throttle_reasons]
        if held and len(held) >= NAMED_SHARE * len(conditions):
            yield cls(len(held) / len(conditions), *_causes(held))

    @property
    def clock(self) -> str:
        return "was held down"

    def say(self) -> str:
        heat = [] if self.temperature_c is None else [f"at up to {self.temperature_c} °C"]
        why = ", ".join([*self.reasons, *heat])
        return (
            f"the GPU's clock {self.clock} in {_share(self.share)} of the measurements{f' ({why})' if why else ''}. "
            "The latencies are those of a slowed GPU: check its cooling and its power limit"
        )


class ClockFell(ClockHeldDown):
    """The GPU's clock fell in this share of the bursts."""

    lowest_mhz: int

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Compare with each cell's highest clock, since a clock that was low most of the time has a low median."""
        slow = []
        for bursts in _bursts(evidence).values():
            clocks_mhz = [(seen, seen.sm_clock_mhz) for seen in conditions_of(bursts) if seen.sm_clock_mhz is not None]
            highest_mhz = max((clock for _, clock in clocks_mhz), default=0)
            slow += [(clock, seen) for seen, clock in clocks_mhz if clock < THROTTLED_CLOCK * highest_mhz]
        if slow:
            lowest_mhz = min(clock for clock, _ in slow)
            yield cls(len(slow) / len(_conditions(evidence)), *_causes([seen for _, seen in slow]), lowest_mhz)

    @property
    def clock(self) -> str:
        return f"fell to {self.lowest_mhz:,} MHz"


def _causes(slowed: Sequence[Conditions]) -> tuple[tuple[str, ...], int | None]:
    reasons = {reason for seen in slowed for reason in seen.throttle_reasons}
    hottest_c = max((seen.temperature_c for seen in slowed if seen.temperature_c is not None), default=None)
    return tuple(sorted(reasons)), hottest_c


class CoresTaken(Doubt):
    """Other processes kept the cores busy in this share of the bursts."""

    share: float
    is_counted: bool = False  # the winner depends on such rounds; else it is the same without them
    brief = "the machine was busy"
    cause = "other processes kept the machine busy"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if not any(MachineBusy.find(evidence)):  # which says more
            yield from cls._where(waited, evidence)

    @classmethod
    def _where(cls, is_disturbed: Callable[[Conditions, Usual], bool], evidence: Evidence) -> Iterator[Self]:
        """Yield a doubt if enough bursts were disturbed so, each compared with what is usual for its cell."""
        cells = [(conditions_of(bursts), usual_of(bursts)) for bursts in _bursts(evidence).values()]
        are_disturbed = [is_disturbed(seen, usual) for conditions, usual in cells for seen in conditions]
        if are_disturbed and (share := sum(are_disturbed) / len(are_disturbed)) >= NAMED_SHARE:
            yield cls(share, _depends_on_disturbed_rounds(evidence))

    @property
    def worst(self) -> Effect:
        return Effect.WINNER if self.is_counted else Effect.NONE

    def say(self) -> str:
        which = (
            "They count, and without them the answer is open: measure again while the machine is quiet"
            if self.is_counted
            else "No narrow lead depends on them"
        )
        return f"{self.cause} in {_share(self.share)} of the measurements. {which}"


class CoresStolen(CoresTaken):
    """The hypervisor gave the cores to others in this share of the bursts."""

    cause = "the hypervisor gave our cores to others"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        yield from cls._where(was_robbed, evidence)


def _depends_on_disturbed_rounds(evidence: Evidence) -> bool:
    """Return True if a narrow lead was measured over disturbed rounds too, and the others do not say the same alone."""
    ranking = evidence.ranking
    series = {record.cell.label: series_of(record.bursts) for record in ranking.ranked}
    best = ranking.labels[0]
    rivals = [
        rival for rival in _close_rivals(evidence.first) if compares_disturbed_rounds(series[best], series[rival])
    ]
    calm = fit({label: undisturbed(turns) for label, turns in series.items()}) if rivals else None
    return calm is not None and not all(
        {best, rival} <= calm.latency_ms.keys()
        and (said := relation(calm.ratio(best, rival))) is not Relation.UNDECIDED
        and said is relation(ranking.fit.ratio(best, rival))
        for rival in rivals
    )


def _close_rivals(first: FirstPlace) -> list[str]:
    return [label for label, lead in first.leads.items() if lead.value < 1 + MARGIN_UNPAIRED]


def _share(share: float) -> str:
    return percent(max(0.01, share))


class AlwaysWaited(OfValues):
    """The threads of these cells never all had a core: the time that they waited / the time of the calls, summed over
    threads. They are too many, or a neighbour never rests."""

    have_one_thread: bool = False  # so that it is others who keep the cores busy
    brief = "the machine was busy"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        shares = {label: usual_of(bursts).wait_share or 0.0 for label, bursts in _bursts(evidence).items()}
        threads = {record.cell.label: record.settings.get("threads") for record in evidence.ranking.measured}
        if waiting := {label: share for label, share in shares.items() if share > WAIT_SHARE}:
            yield cls(waiting, all(threads[label] == 1 for label in waiting))

    def effect(self, first: FirstPlace) -> Effect:
        """Without waiting, a rival takes at most so much less."""
        shares = {label: self.values.get(label, 0.0) for label in (first.labels[0], *first.leads)}
        could_win = any(lead.value * (1 - shares[other]) < 1 for other, lead in first.leads.items())
        return Effect.WINNER if could_win or max(shares.values()) >= MAX_WAIT_SHARE else super().effect(first)

    def say(self) -> str:
        shares = ", ".join(f"{label} {share:.2g} s" for label, share in self.values.items())
        why = (
            "another process never rests. Stop it"
            if self.have_one_thread
            else "there are more threads than cores, or another process never rests. Stop it, or lower OMP_NUM_THREADS"
        )
        return (
            "threads waited for a core all the time (in each second of calls, and summed over threads, "
            f"{shares}): {why}"
        )


class SpeedDrifted(Doubt):
    """The machine's speed changed over the run."""

    share: float  # slowest time / fastest time - 1, of the calibration

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Compare medians of windows of calibrations, one for each round: a single slow one is no drift."""
        calibrations: dict[tuple[int, int, int], tuple[float, float]] = {}
        for burst in itertools.chain.from_iterable(_bursts(evidence).values()):
            if burst.conditions is not None and burst.conditions.calibration_ms is not None:
                key = (burst.process, burst.group, burst.round)
                calibrations.setdefault(key, (burst.started_s, burst.conditions.calibration_ms))
        in_time = [calibration_ms for _, calibration_ms in sorted(calibrations.values())]
        windows = [in_time[begin : begin + DRIFT_WINDOW] for begin in range(0, len(in_time), DRIFT_WINDOW)]
        levels_ms = [statistics.median(window) for window in windows if len(window) == DRIFT_WINDOW]
        if len(levels_ms) > 1 and max(levels_ms) > (1 + DRIFT) * min(levels_ms):
            yield cls(max(levels_ms) / min(levels_ms) - 1)

    def say(self) -> str:
        by = f"by {percent(self.share)}" if self.share <= 1 else f"by a factor of {1 + self.share:.2g}"
        return (
            f"the machine's speed drifted {by} over the run. Ratios are taken within rounds, so that a slower clock "
            "divides out; the latencies are an average"
        )


class GpuShared(Doubt):
    """Other processes used the GPU."""

    processes: int
    brief = "the GPU was shared"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if most := max((seen.foreign_gpu_processes or 0 for seen in _conditions(evidence)), default=0):
            yield cls(most)

    def effect(self, first: FirstPlace) -> Effect:
        return Effect.WINNER if _close_rivals(first) else super().effect(first)

    def say(self) -> str:
        others, them = ("processes", "them") if self.processes > 1 else ("process", "it")
        return f"{self.processes} other {others} used the GPU meanwhile. Stop {them} and measure again"
