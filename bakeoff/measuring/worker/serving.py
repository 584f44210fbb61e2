"""What a worker does with a built cell: first call, check, warm-up, bursts on command, and a last check."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bakeoff.backends.base import Compiled, Settings, Wrapped
from bakeoff.measuring import messages
from bakeoff.measuring.versions import versions_of
from bakeoff.measuring.worker import conditions, energy, evaluating, memory, precision, sampling
from bakeoff.measuring.worker.ceilings import cache_bytes_of
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.engine_memory import engine_resident_bytes
from bakeoff.measuring.worker.host_memory import FromHost
from bakeoff.measuring.worker.load_server import LoadServer
from bakeoff.measuring.worker.worker_context import WorkerContext
from bakeoff.models.base import Inputs, of_each_shape
from bakeoff.planning.sampling_plan import ENOUGH_CALLS
from bakeoff.records.schema import DECODE, DEVICE, PINNED, Generated, Memory, Placement
from bakeoff.truth.calls import Outputs
from bakeoff.truth.checking import Checker, KeptInputs, with_traits
from bakeoff.truth.generating import WithCaches, compare, generate
from bakeoff.truth.global_settings import threads_for_untimed_work
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.reference import Reference


def serve(
    worker: WorkerContext, compiled: Compiled, sets: tuple[Inputs, ...], unchanged: tuple[KeptInputs, ...]
) -> None:
    """Check and time what was built for the sets, which were `unchanged` before."""
    connection, phases, clock, device_memory = worker.connection, worker.phases, worker.clock, worker.device_memory
    if worker.cell.inputs_from != DEVICE:
        compiled = FromHost(compiled, worker.cell.inputs_from == PINNED)
    compiled = with_traits(compiled, sets, worker.traits, worker.frozen_choices)
    device_memory.sample()
    single, every = compiled, sets
    if len(of_each_shape(sets)) > 1:
        compiled, sets = Stream(compiled, sets), sets[:1]
    if worker.cell.task == DECODE:
        compiled = single = WithCaches(compiled, sets)
    checker = Checker(
        worker.job.reference,
        worker.cell,
        worker.calls,
        single,
        every,
        synchronise=clock.synchronise,
        training=worker.training,
        frozen_choices=worker.frozen_choices,
        unchanged=unchanged,
    )
    memory.return_unused(worker.cell.device)  # comparing inputs took some, which is not the cell's
    reference = checker.reference
    compiled.bind(sets[0])
    with phases("first_call"), clock_at(worker.traits.clock_s):
        compiled.run()
    device_memory.sample()
    phases.announce("check")
    with threads_for_untimed_work(worker.job.is_machine_busy):
        check_begun_s = time.monotonic()
        right = checker.check()
        check_s = time.monotonic() - check_begun_s
        generated = _generated(compiled, sets, worker, reference) if worker.job.is_first else None
        memory.return_unused(worker.cell.device)  # the memory that checking took is not the cell's
    is_repeated = worker.await_warm_up().is_repeated
    plan, is_cold = worker.job.sampling, worker.cell.cold_cache
    phases.announce("settle")
    settle = sampling.call_until_final(compiled, sets, clock)
    timed = ColdCalls(compiled, clock) if is_cold else compiled
    phases.announce("warm-up")
    sampling.freeze_garbage()
    warm_up = sampling.warm_up(timed, sets, clock, plan.warm_up_s, not is_repeated, plan.warm_up_limit_s)
    device_memory.sample()

    def placement() -> Placement | None:
        """Return where the build runs. Only the first process of a build reports that, as some ask a second session."""
        return compiled.placement() if worker.job.is_first or plan.builds > 1 else None

    ready = messages.Ready(
        accuracy=right,
        generated=generated,
        settle=settle,
        warm_up=warm_up,
        placement=placement(),
        memory=worker.memory(),
        precision_in_force={**precision.in_force(), **compiled.precision()},
        settings={"threads": worker.threads, **worker.counted(), **timed.settings()},
        versions=versions_of(worker.backend.libraries),
        caveat=worker.backend.mode(worker.cell.mode).caveat or worker.backend.caveat,
        reference_type=reference.computed_in,
        reference_in_float32=reference.in_float32,
        why_reference_is_narrower=reference.why_narrower,
        recompiled=list(compiled.recompiled()) if worker.job.open_axes else [],
        has_around=worker.around is not None,
        check_s=check_s,
    )
    messages.send(connection, ready)
    compilations = compiled.compilations()
    watch = conditions.Watch(worker.cell.device)
    server = LoadServer(worker, every, reference)
    own: tuple[Memory, Placement | None] | None = None  # before builds for load, and what checking takes
    core: int | None = None
    medians_ms: list[float] = []  # of the bursts
    while isinstance(
        command := messages.receive_command(connection),
        messages.TakeBurst | messages.TakeLoad | messages.MeasureFurther,
    ):
        if not isinstance(command, messages.TakeBurst):
            already = compiled.compilations()
            if isinstance(command, messages.TakeLoad):
                own = own or (worker.memory(), placement())
                messages.send(connection, server.take(command))
            else:
                server.close()
                usual_ms = statistics.median(medians_ms) if medians_ms else None
                measured = _measured(command, worker, timed, sets, core, usual_ms)
                device_memory.sample()
                own = own or (worker.memory(), placement())
                messages.send(connection, measured)
            compilations += compiled.compilations() - already  # they disturbed no burst
            continue
        compiled.restore()
        worker.calls.begin()
        core = command.core
        sampling.rewarm(timed, sets, clock, core)
        watch.begin()
        samples_ns = sampling.burst(
            timed, sets, clock, plan.burst_s, plan.burst_calls, plan.wanted_calls, ENOUGH_CALLS, watch
        )
        medians_ms.append(statistics.median(samples_ns) / 1e6)
        seen = watch.end(() if is_cold else samples_ns)
        if is_cold:  # most of the burst is eviction, and so is its waiting
            seen = seen.but(wait_share=None)
        messages.send(connection, messages.BurstMeasured(samples_ns=samples_ns, conditions=seen))
    last = command if isinstance(command, messages.Finish) else messages.Finish()
    phases.announce("last check")
    server.close()
    recompilations = compiled.compilations() - compilations
    if own is None:
        device_memory.sample()
    # check again when everything is warm: that finds a graph that replays over freed memory
    after = checker.check()
    memory_now, placement_now = own or (worker.memory(), placement())
    if last.with_engine_memory:
        phases.announce("memory without torch")
        engine_bytes = engine_resident_bytes(worker, single, sets[0])
        memory_now = memory_now.but(engine_resident_bytes=engine_bytes)
    finished = messages.Finished(
        accuracy_after=after, placement=placement_now, memory=memory_now, recompilations=recompilations
    )
    messages.send(connection, finished)
    if last.with_metrics:
        phases.announce("evaluate")
        messages.send(connection, messages.Evaluated(metrics=evaluating.of_build(worker, single, every)))
    if last.with_trace:
        messages.send(connection, messages.KernelsTraced(times=sampling.trace_kernels(compiled, sets, clock)))


def _measured(
    order: messages.MeasureFurther,
    worker: WorkerContext,
    compiled: Compiled,
    sets: tuple[Inputs, ...],
    core: int | None,
    usual_ms: float | None,
) -> messages.FurtherMeasured:
    """Measure what is asked for. The bursts have begun on `core`, and calls took `usual_ms` in them."""
    clock, blocks, announce = worker.clock, order.throughput_blocks, worker.phases.announce
    counter = energy.counter_for(worker.cell.device) if order.with_energy else None
    measured: dict[str, Any] = {}
    if order.with_device_time:
        announce("device time")
        measured["device_time"] = sampling.device_time(compiled, sets, clock)
        measured["stages"] = sampling.stages(compiled, sets, clock)
    if blocks:
        announce("throughput")
        measured["throughput"] = sampling.throughput(compiled, sets, clock, core, usual_ms, blocks)
    if counter:
        announce("energy")
        measured["energy"] = energy.measure(compiled, sets, clock, counter)
    if worker.around and order.with_around:
        announce("before and after the model")
        measured["around"] = worker.around.measure(clock)
    return messages.FurtherMeasured(**measured)


class ColdCalls(Wrapped):
    """Evicts the last-level cache after inputs are bound, which is not timed. The next synchronisation waits for it."""

    TIMES_CACHE, LEAST_BYTES = 2, 64 * 2**20

    def __init__(self, inner: Compiled, clock: Clock) -> None:
        super().__init__(inner)
        size = max(self.LEAST_BYTES, self.TIMES_CACHE * cache_bytes_of(clock.device))
        # nvbench and KernelBench write a buffer of twice the cache's size, too.
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=clock.device)
        # On a CPU by NumPy, in this thread: threads of torch would go on spinning beside those of another engine.
        self._written: Any = self._buffer if self._buffer.is_cuda else self._buffer.numpy()

    def bind(self, inputs: Inputs) -> None:
        super().bind(inputs)
        self._written += 1

    def settings(self) -> Settings:
        return {**super().settings(), "MiB written before each call": self._buffer.nbytes // 2**20}


class Stream(Wrapped):
    """Calls with each of several inputs in turn, as one call. It is timed where lengths differ from call to call."""

    def __init__(self, compiled: Compiled, sets: tuple[Inputs, ...]) -> None:
        super().__init__(compiled)
        self._sets = sets

    def bind(self, inputs: Inputs) -> None:
        """Bind nothing: `run` binds one input after the other."""

    def run(self) -> None:
        for one in self._sets:
            self._inner.bind(one)
            self._inner.run()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ()

    def settings(self) -> Settings:
        return {**super().settings(), "inputs of one call": len(self._sets)}


def _generated(
    compiled: Compiled, sets: tuple[Inputs, ...], worker: WorkerContext, reference: Reference
) -> Generated | None:
    def call(inputs: Inputs) -> Outputs:
        compiled.bind(inputs)
        worker.clock.synchronise()
        compiled.run()
        worker.clock.synchronise()
        return compiled.outputs()

    if reference.greedy is None:
        return None
    ours = generate(call, sets, worker.cell)
    return compare(ours, reference.greedy, reference.first_greedy) if ours else None
