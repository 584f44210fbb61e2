"""What `--load` asks for: the scenario, the objective, and how long a window of load lasts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bakeoff.planning.sampling_plan import MIN_PROCESSES
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.load_samples import Load, Objective, TriedSettings
from bakeoff.records.scenarios import Scenario, ScenarioSpec

PERCENTILES = ("p50", "p90", "p95", "p99", "p999")

USUAL_MIN_TIME_S = 1.5
"""With this `--min-time` a window lasts the scenario's `window_s`. Windows get shorter and longer with it."""

SHORTEST_WINDOW_S = 0.25

MIN_REQUESTS = 200
"""A window holds so many requests, so that its 99th percentile is no single request."""

MANY_REQUESTS = 1000
"""A window lasts up to twice as long as usual to hold so many requests, because a queue needs requests to grow."""

MAX_WINDOW_S = 4.0
"""A window does not get longer than this for the sake of `MIN_REQUESTS`."""

ROUNDS_OF_FEW_PROCESSES = 6
"""Turns of each cell in each of its processes, where there are too few processes for an interval."""

SOAK_PARTS = 6

USUAL_SOAK_S = 12.0
"""Unless asked for, only the winner, and a runner-up that may replace it, serve for so long at the rate found."""

WINDOWS_OF_SEARCH = 14
"""The search for settings usually takes as long as so many windows of a turn."""


@dataclass(frozen=True)
class Traffic:
    scenario: Scenario
    streams: int  # requests that come together

    @classmethod
    def parse(cls, text: str) -> Self:
        name, colon, streams = text.partition(":")
        if name not in set(Scenario):
            raise unknown(
                "scenario", name, [*Scenario], "--load takes single-stream, multi-stream:8, server or offline"
            )
        scenario = Scenario(name)
        if colon and not scenario.spec.takes_streams:
            raise UsageError(f"--load {text}: only multi-stream takes a number")
        if colon and not (streams.isdecimal() and int(streams) > 0):
            raise UsageError(f"--load {text}: write multi-stream:N with the number of requests that come together")
        return cls(scenario, int(streams) if colon else scenario.spec.usual_streams)

    def __str__(self) -> str:
        return f"{self.scenario}:{self.streams}" if self.scenario.spec.takes_streams else str(self.scenario)


@dataclass(frozen=True)
class LoadPlan:
    scenario: Scenario
    streams: int = 1
    objective: Objective | None = None
    soak_s: float = 0.0
    window_s: float = Scenario.SERVER.spec.window_s
    soaks_all: bool = True  # or only the two best

    @property
    def spec(self) -> ScenarioSpec:
        return self.scenario.spec

    @classmethod
    def of(
        cls, traffic: Traffic | None, objective: Objective | None, soak_s: float | None, min_time_s: float
    ) -> Self | None:
        """Return the plan, or None without `--load`. Raises UsageError where the two options do not fit together."""
        if traffic is None:
            if objective:
                raise UsageError("--slo limits what is measured under load: add --load server")
            return None
        spec = traffic.scenario.spec
        if spec.sends_at_rate != (objective is not None):
            missing = "needs an objective: add --slo 'p99_ms<20'" if objective is None else "takes no --slo"
            raise UsageError(f"--load {traffic} {missing}")
        window_s = max(SHORTEST_WINDOW_S, spec.window_s * min_time_s / USUAL_MIN_TIME_S)
        soaks_all, soak_s = soak_s is not None, USUAL_SOAK_S if soak_s is None else soak_s
        return cls(traffic.scenario, traffic.streams, objective, soak_s, window_s, soaks_all)

    def load(self, tried: Sequence[TriedSettings]) -> Load:
        """Return what is known of a cell that has tried these settings, and has chosen none yet."""
        return Load(scenario=self.scenario, streams=self.streams, objective=self.objective, tried=list(tried))

    def rounds_in(self, processes: int) -> int:
        return self.spec.rounds if processes >= MIN_PROCESSES else ROUNDS_OF_FEW_PROCESSES

    def turns_s(self, processes: int, call_s: float = 0.0) -> float:
        """Return how long the turns of a process take. Windows are longer where calls of `call_s` leave few of them."""
        few_s = min(MAX_WINDOW_S, MIN_REQUESTS * call_s) if self.spec.sends_at_rate else 0.0
        return self.rounds_in(processes) * self.spec.windows_per_turn * max(self.window_s, few_s)

    @property
    def search_s(self) -> float:
        return WINDOWS_OF_SEARCH * self.window_s

    @property
    def once_s(self) -> float:
        """The seconds that a cell usually takes to find its settings, and for its soak."""
        return self.search_s + self.soak_s

    def requests_of(self, rate: float, share: float) -> int:
        few = min(MIN_REQUESTS, round(rate * MAX_WINDOW_S * share))
        many = min(MANY_REQUESTS, round(rate * 2 * self.window_s * share))
        return max(20, few, many)


def parse_objective(text: str) -> Objective:
    match = re.fullmatch(r"\s*(p\d+)_ms\s*<=?\s*(\d+(?:\.\d+)?)\s*", text, re.ASCII)
    if not match or match[1] not in PERCENTILES or not float(match[2]):
        raise UsageError(f"--slo {text}: write a percentile and its limit in milliseconds, such as p99_ms<20")
    return Objective(percentile=match[1], limit_ms=float(match[2]))


def spell_objective(objective: Objective) -> str:
    return f"{objective.percentile}_ms<{objective.limit_ms:.12g}"
