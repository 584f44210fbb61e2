"""The controller of one place: it measures the contests that it is handed, one after the other."""

import contextlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bakeoff.measuring import isolation, session
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.contests import measure_ceilings, measure_contest
from bakeoff.measuring.controller.environment import Machine, calibrate_ms
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.messages import CeilingsMeasured, MeasureCeilings
from bakeoff.measuring.probes import ask, launchers_for
from bakeoff.planning.places import Place
from bakeoff.planning.plan import Contest
from bakeoff.planning.request import Request
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Environment
from bakeoff.records.store import Store
from bakeoff.scaling.controller_process import ProgressEvent, Relay, Send, starter

CALIBRATIONS = 200
"""A core's rate is the best of so many repetitions of a fixed piece of work, which take a third of a second."""


@dataclass(frozen=True)
class StartController:
    place: Place
    request: Request
    contests: tuple[Contest, ...]  # all that it may be handed
    sharers: int  # places of this machine that share its memory


@dataclass(frozen=True)
class MeasureContest:
    """A reply: measure this contest, and have its records in the run's folder by this time of the monotonic clock."""

    contest: Contest
    folder: Path
    ends_s: float = math.inf


@dataclass(frozen=True)
class ControllerStarted:
    environment: Environment
    rates: dict[str, float]  # what the place can do, by a fixed piece of work


@dataclass(frozen=True)
class ContestEnded:
    """The contest that it was handed has come to its records."""


Message = ProgressEvent | ControllerStarted | ContestEnded
"""What it reports. The replies to the last two are a `MeasureContest`, or None where nothing is left."""


def main() -> None:
    """Serve the process that started this one until it says None."""
    connection, send = starter()
    isolation.die_with_parent()
    with contextlib.suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        serve(connection.recv(), send)


def serve(begin: StartController, send: Send) -> None:
    place = begin.place
    if place.cores:
        os.sched_setaffinity(0, place.cores)
    cores_rate = rate_of_cores(place.cores)
    with launchers_for(begin.request) as launchers, BuildCache(is_fresh=begin.request.fresh) as cache:
        _, captured = session.describe_machine(launchers, begin.request)
        reply: MeasureContest | None = send(
            ControllerStarted(captured, {"one core": cores_rate, **rates_of_gpu(place, launchers)})
        )
        if reply is None:
            return
        store, progress = Store.open(reply.folder), Relay(send)
        time_plan = session.time_plan_of((), begin.request, store, math.inf)
        headers = session.prepare(
            launchers, session.cells_to_build(begin.contests, store), begin.request, store, progress
        )
        machine = Machine(begin.sharers)
        measurement = session.measurement_of(
            launchers, begin.request, store, progress, time_plan, headers, cache, machine, place.name
        )
        while reply is not None:
            time_plan.budget_ends_s = reply.ends_s
            measure_contest(measurement, reply.contest, session.pending(reply.contest, store))
            measure_ceilings(measurement, [reply.contest])
            reply = send(ContestEnded())


def rate_of_cores(cores: Sequence[int]) -> float:
    """Return how often the slowest of these cores does a fixed piece of work in a second."""
    slowest_ms = 0.0 if cores else _best_ms()
    for core in cores:
        os.sched_setaffinity(0, {core})
        slowest_ms = max(slowest_ms, _best_ms())
        os.sched_setaffinity(0, cores)
    return 1e3 / slowest_ms


def _best_ms() -> float:
    return min(calibrate_ms() for _ in range(CALIBRATIONS))


def rates_of_gpu(place: Place, launchers: Launchers) -> dict[str, float]:
    if place.gpu is None:
        return {}
    job = MeasureCeilings(device=place.device, precision=Precision.FP32)
    ceilings = ask(launchers.first, job, CeilingsMeasured).ceilings
    return {"matrix products": ceilings.flops_per_s, "memory": ceilings.bytes_per_s}
