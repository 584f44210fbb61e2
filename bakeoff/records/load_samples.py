"""What a cell carried under load: the settings it served with, the windows of load, and what was counted in them."""

from typing import Annotated

from pydantic import Field

from bakeoff.records.conditions import Conditions
from bakeoff.records.frozen import Frozen
from bakeoff.records.scenarios import Scenario

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Objective(Frozen):
    """The latency that so many of the requests must stay under."""

    percentile: str  # "p99"
    limit_ms: Positive

    @property
    def quantile(self) -> float:
        """0.99 for `p99`, and 0.999 for `p999`."""
        return float(f"0.{self.percentile.removeprefix('p')}")


class ServingSettings(Frozen):
    """How a backend serves requests."""

    instances: int = 1  # that answer requests at the same time, each in a thread of its own
    threads: int = 1  # of each instance
    batch: int = 1  # so many requests go into one call at most
    wait_ms: float = 0.0  # a request waits at most so long for others to fill its batch
    options: dict[str, str] = Field(default_factory=dict)  # of the backend's own


class LoadWindow(Frozen):
    """One stretch of load. Latencies count from the time at which a request was to be sent."""

    asked_rate: Positive | None = None  # requests per second that the generator was to send; None without a schedule
    rate: Positive  # requests per second: sent, in the scenario `server`, and answered in all others
    requests: int
    failed: int = 0  # the call raised an error
    shed: int = 0  # not called any more, because they had waited for much longer than the objective allows
    seconds: Seconds
    p50_ms: Positive
    p90_ms: Positive
    p99_ms: Positive
    objective_ms: Positive | None = None  # the percentile that the objective names
    latencies_us: list[int] = Field(default_factory=list)  # in the order of sending; empty if they were not kept
    joules: float | None = None  # that the machine's counter counted meanwhile, what it takes idle included
    energy_source: str = ""
    resident_bytes: int | None = None  # memory of the process at the end
    device_bytes: int | None = None
    conditions: Conditions | None = None
    failure: str = ""  # what the first request that failed raised
    stages: list[str] = Field(default_factory=list)  # around the model, that each request had: `before`, `after`


class LoadTurn(Frozen):
    """One turn of one cell under load. Turns with the same `group` and `round` saw the same pattern of requests."""

    group: int
    round: int
    process: int
    started_s: float
    value: Positive | None  # requests per second, or the median latency in ms; None: no rate met the objective
    windows: list[LoadWindow]
    calibration_ms: float | None = None  # as in `Conditions`


class TriedSettings(Frozen):
    """What a cell reached with some settings, in the search for the best ones."""

    settings: ServingSettings
    value: Positive | None  # as in `LoadTurn`
    windows: list[LoadWindow] = Field(default_factory=list)
    reason: str = ""  # why there is no value


class Load(Frozen):
    """What a cell carried under load."""

    scenario: Scenario
    streams: int = 1  # requests that come together, in the scenario `multi-stream`
    objective: Objective | None = None
    settings: ServingSettings | None = None  # the best ones found; None if there are none
    tried: list[TriedSettings] = Field(default_factory=list)
    turns: list[LoadTurn] = Field(default_factory=list)
    ceiling: Positive | None = None  # a value that the generator reaches where answering takes no time
    soak: list[LoadWindow] = Field(default_factory=list)  # at the rate found, one after the other
    lower_soak: list[LoadWindow] = Field(default_factory=list)  # at lower rates until one held, where the soak missed
    left_out: list[str] = Field(default_factory=list)  # knobs that were not tried, and why
    reason: str = ""  # why it carried nothing
