"""Profiles a cell: it is built with kernels that keep the names of modules, and called with and without a profiler."""

import contextlib
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from bakeoff.backends.base import AheadOfTime, Compiled
from bakeoff.backends.model_changes import attention_of, unaligned_layers
from bakeoff.backends.profiling import WARMING_CALLS, CompilerWork, TracedSpan, in_order
from bakeoff.backends.vector_instructions import trust_vector_instructions
from bakeoff.measuring.versions import COMMON, versions_of
from bakeoff.measuring.worker import sampling
from bakeoff.measuring.worker.compiler_checks import CompilerChecks
from bakeoff.measuring.worker.counting import count_modules
from bakeoff.measuring.worker.worker_context import Phases, WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Work
from bakeoff.why.records import CellProfile, ThreadUse

CALLS_S = 0.6
"""Seconds of calls without the profiler, and about as many with it."""
MIN_CALLS, MAX_CALLS = 8, 100
"""Profiled calls that are not left out."""
LEAST_BUSY = 0.02
"""A thread that was on a core for less than this share of the time did not work for the calls."""
MIN_CHOSEN = 2
"""Calls that the mean is of."""


def profile(worker: WorkerContext, kept: str = "") -> CellProfile:
    """Build the worker's cell, profile calls of it, and return what they consist of. The build starts from the folder
    that a run has `kept`, if any. Raises Unsupported where the backend has no profiler."""
    worker = announcing(worker)
    module, sets = worker.model()
    classes = {path: type(child).__name__ for path, child in module.named_modules()}
    first_paths = first_paths_of(module)
    unaligned, attention = list(unaligned_layers(module)), attention_of(module)  # before a build changes the module
    given = worker.to_build_with(sets)
    with worker.running():
        context = replace(worker.context(given), for_profile=True)
        if kept:
            shutil.copytree(kept, worker.artifact, dirs_exist_ok=True)
        backend = worker.backend
        if kept and isinstance(backend, AheadOfTime):
            build = backend.load(given[0], context)
        else:
            build = backend.build(module, given[0], context)
        with build as compiled:
            compiled.bind(sets[0])
            worker.phases.announce("warm-up")
            sampling.call_until_final(compiled, sets[:1], worker.clock)
            plain_ns, threads = unprofiled_calls(compiled, sets[0], worker)
            call_ns = statistics.fmean(plain_ns[place] for place in undisturbed(plain_ns))
            profiler = compiled.profiler(module)
            if profiler is None:
                raise Unsupported(f"{worker.backend.name} has no profiler that Bakeoff knows")
            worker.phases.announce("profile")
            with profiler:
                wanted = max(MIN_CALLS, min(MAX_CALLS, int(CALLS_S * 1e9 / call_ns)))
                walls_ns = []
                for _ in range(WARMING_CALLS + wanted):
                    worker.clock.synchronise()
                    begun_ns = worker.clock.now_ns()
                    profiler.run()
                    worker.clock.synchronise()
                    walls_ns.append(worker.clock.now_ns() - begun_ns)
                calls = profiler.calls()
                chosen = undisturbed(walls_ns, range(WARMING_CALLS, len(walls_ns)))
                spans = [calls[place] for place in chosen] if profiler.tells_calls_apart else calls
                spans = [under_first_paths(span, first_paths) for span in spans]
                parts = profiler.parts(spans)
                work = profiler.work()
            needs, uncounted = needs_of(module, sets[0], worker)
            return CellProfile(
                label=worker.cell.label,
                cell_id=worker.cell.id,
                source=profiler.source,
                call_ms=call_ns / 1e6,
                median_ms=statistics.median(plain_ns) / 1e6,
                profiled_ms=statistics.fmean(walls_ns[place] for place in chosen) / 1e6,
                calls=len(chosen) if profiler.tells_calls_apart else len(walls_ns) - WARMING_CALLS,
                parts=[part for part in parts if part.ms > 0],
                spans=spans[len(spans) // 2],
                classes=classes,
                work=with_placement(work, compiled, uncounted),
                threads=threads,
                needs=needs,
                unaligned=unaligned,
                attention=attention,
                is_of_artefact=bool(kept),
                versions=versions_of((*COMMON, *worker.backend.libraries)),
            )


def first_paths_of(module: Any) -> dict[str, str]:
    """Return the first path of each module by each of its paths: a module may be part of several others."""
    first: dict[int, str] = {}
    return {path: first.setdefault(id(child), path) for path, child in module.named_modules(remove_duplicate=False)}


def under_first_paths(spans: Sequence[TracedSpan], first_paths: Mapping[str, str]) -> list[TracedSpan]:
    """Return spans whose modules have their first paths, so that all engines have one name for a shared module."""
    named = [in_order(first_paths.get(path, path) for path in span.modules) for span in spans]
    return [
        span if span.modules == modules else span.but(modules=modules)
        for span, modules in zip(spans, named, strict=True)
    ]


def unprofiled_calls(compiled: Compiled, inputs: Inputs, worker: WorkerContext) -> tuple[list[int], ThreadUse | None]:
    """Return the latencies in nanoseconds of warm calls without the profiler, and how the threads worked."""
    sampling.burst(compiled, [inputs], worker.clock, CALLS_S / 4, WARMING_CALLS)
    before, begun_ns = cpu_seconds_of_threads(), worker.clock.now_ns()
    latencies_ns = sampling.burst(compiled, [inputs], worker.clock, CALLS_S, MIN_CALLS)
    if worker.clock.stream is not None:
        # On a GPU, threads of the host share no work.
        return latencies_ns, None
    lasted_s = (worker.clock.now_ns() - begun_ns) / 1e9
    shares = [(now_s - before.get(thread, 0.0)) / lasted_s for thread, now_s in cpu_seconds_of_threads().items()]
    busy = sorted((min(1.0, share) for share in shares if share >= LEAST_BUSY), reverse=True)
    return latencies_ns, ThreadUse(allowed=worker.threads, busy=busy)


def cpu_seconds_of_threads() -> dict[int, float]:
    """Return for how many seconds each thread of this process was on a core so far. Kernels count in hundredths."""
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def needs_of(module: Any, inputs: Inputs, worker: WorkerContext) -> tuple[dict[str, Work], str]:
    try:
        return count_modules(module, inputs, worker.cell.precision), ""
    except Exception as error:  # the model's own code may raise anything under the counter
        return {}, explain(error)[1].sentence


def undisturbed(walls_ns: Sequence[int], among: Sequence[int] | None = None) -> list[int]:
    """Return the places of the fastest quarter of the calls `among`, by default of all, in order. Something else may
    have held up the others."""
    by_time = sorted(range(len(walls_ns)) if among is None else among, key=lambda place: walls_ns[place])
    return sorted(by_time[: max(MIN_CHOSEN, len(by_time) // 4)])


def with_placement(work: CompilerWork, compiled: Compiled, uncounted: str) -> CompilerWork:
    """Return what the compiler did, with what left it for another engine, and why no work of modules is known."""
    placement = compiled.placement()
    broken = {graph_break.reason for graph_break in work.breaks}
    left = (
        [fallback for fallback in placement.fallbacks if fallback.removeprefix("graph break: ") not in broken]
        if placement
        else []
    )
    facts = [*work.facts, *([f"The work of its modules could not be counted: {uncounted}."] if uncounted else [])]
    return work.but(fallbacks=[*work.fallbacks, *left], facts=facts)


def announcing(worker: WorkerContext) -> WorkerContext:
    """Return the worker with phases that are not timed. It trusts what is known of the machine's compiler, which torch
    would find out anew."""
    if checks := CompilerChecks.known(worker.cell.backend, worker.cell.device):
        trust_vector_instructions(checks.answers)
    return replace(worker, phases=AnnouncedPhases(worker.connection))


class AnnouncedPhases(Phases):
    """Announces phases and times none of them: nothing here is measured for a record."""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.announce(name)
        yield
