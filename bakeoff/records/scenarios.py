"""The load scenarios: how requests arrive, and what is measured, compared and shown in each of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bakeoff.records.text import spell_ms, spell_rate


class Scenario(StrEnum):
    """How requests arrive. These are MLPerf's four scenarios."""

    SINGLE_STREAM = "single-stream"  # one request after the other
    MULTI_STREAM = "multi-stream"  # several requests together, one group after the other
    SERVER = "server"  # at random times of a fixed mean rate, whether or not earlier ones are answered
    OFFLINE = "offline"  # all at once

    @property
    def spec(self) -> ScenarioSpec:
        return SPECS[self]


@dataclass(frozen=True)
class ScenarioSpec:
    """Everything that differs between scenarios. A turn's value is a rate or the median latency of its window."""

    generator_name: str
    """What MLPerf's load generator calls it."""
    is_rate: bool
    """True if a turn's value is in requests per second, and False if it is a latency in ms."""
    sends_at_rate: bool = False
    """True if requests are sent at a given mean rate. The highest rate that meets the objective is then searched."""
    requests_wait_for_all: bool = False
    """True if a request waits for all before it, so that single latencies mean nothing."""
    puts_requests_together: bool = True
    """True if several requests can be there at once, so that they can share a call."""
    usual_streams: int = 1
    takes_streams: bool = False
    """True if `--load NAME:N` says how many requests come together."""
    window_s: float = 1.0
    rounds: int = 6
    """Turns of each cell in each process, where enough processes give an interval. With fewer it takes six turns."""
    windows_per_turn: int = 1
    """Usual number of windows in a turn."""

    @property
    def unit(self) -> str:
        return "requests/s" if self.is_rate else "ms"

    @property
    def verb(self) -> str:
        """The verb between a cell and its value: `onnx carries 400 requests/s`, or `onnx answers in 5 ms`."""
        return "carries" if self.is_rate else "answers in"

    def spell(self, value: float) -> str:
        """Return `410 requests/s`, or `5.000 ms`."""
        return f"{self.spell_number(value)} {self.unit}"

    def spell_number(self, value: float) -> str:
        return spell_rate(value) if self.is_rate else spell_ms(value).removesuffix(" ms")

    def ms_per_request(self, value: float) -> float:
        """Return the value as the milliseconds for a request, in which less is always better."""
        return 1e3 / value if self.is_rate else value

    def value_from_ms(self, ms_per_request: float) -> float:
        """Return the value of which `ms_per_request` is the other form."""
        return 1e3 / ms_per_request if self.is_rate else ms_per_request

    def rate_from(self, value: float, streams: int) -> float:
        """Return the value as requests per second, of which `streams` come together."""
        return value if self.is_rate else 1e3 * streams / value


SPECS = {
    Scenario.SINGLE_STREAM: ScenarioSpec("SingleStream", is_rate=False, puts_requests_together=False),
    Scenario.MULTI_STREAM: ScenarioSpec("MultiStream", is_rate=False, usual_streams=8, takes_streams=True),
    # A window begins without a queue, and a rate that is a little too high needs requests to build one. So windows
    # last longer where few requests come in a second (`MANY_REQUESTS`). In simulated queues, rates found in windows of
    # 2 s are 1 to 7 % above those of a long run, and 5 to 18 % above them with half a second. A turn is a search of
    # several windows.
    Scenario.SERVER: ScenarioSpec(
        "Server", is_rate=True, sends_at_rate=True, window_s=1.0, rounds=2, windows_per_turn=3
    ),
    Scenario.OFFLINE: ScenarioSpec("Offline", is_rate=True, requests_wait_for_all=True),
}
