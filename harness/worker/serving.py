"""A built cell at the parent's service: first call, check, warm-up, bursts when asked for, and the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from backends.base import Backend, Compiled, Settings, Wrapped
from harness import link, precision
from harness.sampling_plan import SamplingPlan
from harness.worker import accuracy, conditions, energy, memory, sampling
from harness.worker.bench import Bench
from harness.worker.clock import Clock
from harness.worker.reference import thinned
from models.base import Inputs, of_each_shape


def serve(bench: Bench, compiled: Compiled, sets: tuple[Inputs, ...]) -> None:
    """The first call, the check, the warm-up; then bursts as the parent asks for them."""
    connection, phases, clock, device_memory = bench.connection, bench.phases, bench.clock, bench.device_memory
    precision_asked = bench.cell.precision
    names = bench.training.names(sets[0]) if bench.training else ()
    golden = accuracy.Golden.load(Path(bench.job["golden"]))
    device_memory.sample()
    single, every = compiled, sets
    if len(of_each_shape(sets)) > 1:
        compiled, sets = Stream(compiled, sets), sets[:1]
    compiled.bind(sets[0])
    with phases("first_call"):
        compiled.run()
    device_memory.sample()
    with phases.announced("check"):
        right = accuracy.check(_outputs(single, every, clock), golden, precision_asked, names)
        memory.return_unused(bench.cell.device)  # what checking took is not the cell's
    plan = SamplingPlan(**bench.job["sampling"])
    with phases.announced("settle"):
        settling = sampling.settle(compiled, sets, clock)
    with phases.announced("warm-up"):
        sampling.freeze_garbage()
        is_first = not bench.job.get("further", False)
        warm_up = sampling.warm_up(compiled, sets, clock, plan.warm_up_s, is_first)
    device_memory.sample()
    link.send(
        connection,
        "ready",
        accuracy=right.model_dump(mode="json"),
        settling=settling.model_dump(mode="json") if settling else None,
        warm_up=warm_up.model_dump(mode="json"),
        placement=_placement(compiled),
        memory=bench.memory(),
        precision_in_force={**precision.in_force(), **compiled.precision()},
        settings={"threads": bench.threads, **bench.counted(), **compiled.settings()},
        versions=_versions_of(bench.backend),
        caveat=bench.backend.caveat_of(bench.cell.mode),
        reference=golden.computed_in,
    )
    compilations = compiled.compilations()
    watch = conditions.Watch(bench.cell.device)
    while (command := link.receive(connection))["kind"] == "burst":
        compiled.restore()
        with conditions.beginning_on(command.get("core")):
            sampling.rewarm(compiled, sets, clock)
        watch.begin()
        samples_ns = sampling.burst(compiled, sets, clock, plan.burst_s, plan.burst_calls, plan.wanted_calls)
        link.send(connection, "burst", samples_ns=samples_ns, conditions=watch.end().model_dump(mode="json"))
    assert command["kind"] == "finish"
    found: dict[str, Any] = {}
    with phases.announced("finish"):
        recompiled = compiled.compilations() - compilations
        if command["in_full"]:
            device_time = sampling.device_time(compiled, sets, clock)
            used = energy.measure(compiled, sets, clock, energy.counter_for(bench.cell.device))
            found = {
                "throughput": sampling.throughput(compiled, sets, clock).model_dump(mode="json"),
                "device_time": device_time.model_dump(mode="json") if device_time else None,
                "energy": used.model_dump(mode="json") if used else None,
                "stages": [one.model_dump(mode="json") for one in sampling.stages(compiled, sets, clock)],
            }
        device_memory.sample()
        # once more, with everything warm: a graph that replays over freed memory shows up here
        after = accuracy.check(_outputs(single, every, clock), golden, precision_asked, names)
    link.send(
        connection,
        "finished",
        **found,
        accuracy_after=after.model_dump(mode="json"),
        placement=_placement(compiled),
        memory=bench.memory(),
        recompiled=recompiled,
    )


class Stream(Wrapped):
    """Calls with each of several inputs in turn, as one call: what is timed where lengths differ from call to call."""

    def __init__(self, compiled: Compiled, sets: tuple[Inputs, ...]) -> None:
        super().__init__(compiled)
        self._sets = sets

    def bind(self, inputs: Inputs) -> None:
        """Nothing: `run` binds one after the other."""

    def run(self) -> None:
        for one in self._sets:
            self._inner.bind(one)
            self._inner.run()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ()

    def settings(self) -> Settings:
        return {**super().settings(), "inputs of one call": len(self._sets)}


def _placement(compiled: Compiled) -> dict[str, Any] | None:
    placement = compiled.placement()
    return placement.model_dump(mode="json") if placement else None


def _outputs(compiled: Compiled, sets: tuple[Inputs, ...], clock: Clock) -> list[accuracy.Outputs]:
    """The outputs for every input set, each taken before the next call, and from where training began."""
    found = []
    for one in sets:
        compiled.restore()
        compiled.bind(one)
        clock.synchronise()
        compiled.run()
        clock.synchronise()
        found.append(thinned(compiled.outputs()))
    return found


def _versions_of(backend: Backend) -> dict[str, str]:
    found = {}
    for library in backend.libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found
