#!/usr/bin/env python3
"""The kernels and surgical compilation on a GPU in a minute or two: are they right, and how fast is each?

Every line is printed when it is known, so that a run that is cut off leaves what it has found.

    python3 benchmarks/kernels_probe.py                              # every workload
    python3 benchmarks/kernels_probe.py --only rope,matmul_fp8       # some
    python3 benchmarks/kernels_probe.py --only matmul_fp8 --set m=4096,n=4096,k=4096

Everything is built by the backends and timed by the harness, in one process and one after the other: for finding out,
not for reporting. `runner.py` measures the same cells as they should be.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records.schema import Ceilings, Work

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import config
from harness.worker import ceilings as machine_ceilings
from records.errors import BakeoffError
from records.schema import Cell

WORKLOADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rope": ("bf16", ("eager", "eager/cuda-graph", "inductor", "inductor/cuda-graph", "triton", "triton/cuda-graph")),
    "fused_add_relu_mul": ("bf16", ("eager", "inductor", "inductor/cuda-graph", "triton", "triton/cuda-graph")),
    "tma_copy": ("bf16", ("eager", "inductor", "triton/pointer", "triton/descriptor")),
    "matmul_fp8": ("bf16", ("eager", "triton")),
    "matmul_fp16": ("fp16", ("eager", "triton")),
    "fp8_transformer": ("bf16", ("eager", "eager/cuda-graph", "inductor/surgical", "inductor", "inductor/cuda-graph")),
}
"""Model -> precision, configurations."""

COLUMNS = (
    "build s",
    "latency ms",
    "x eager",
    "device ms",
    "queued ms",
    "x eager",
    "TFLOP/s",
    "GB/s",
    "of floor",
    "rel. error",
)

DEVICE = "cuda"

KERNELS_LISTED = 14

BURST_S, BURST_CALLS = 0.25, 20

QUEUED_CALLS = 20
QUEUES = 15
"""So many are timed: the median of three differed by 2 µs of 20 from that of more (H200)."""

AHEAD_CYCLES = 40_000_000
"""The device spins for so long (20 ms at 2 GHz) while the host enqueues `QUEUED_CALLS` calls behind it."""


@dataclass(frozen=True)
class Row:
    """One configuration of one model. Times are medians; `queued_ms` is of calls that wait in the device's queue,
    so that the host's time is in none of them."""

    configuration: str
    build_s: float
    latency_ms: float
    device_ms: float
    queued_ms: float
    relative_error: float
    notes: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="models, separated by commas")
    parser.add_argument("--backends", default="", help="configurations, separated by commas, instead of the usual ones")
    parser.add_argument("--set", default="", help="dimensions as NAME=VALUE, separated by commas")
    parser.add_argument("--surgical", default="", help="targets, separated by commas, instead of the model's own")
    parser.add_argument("--profile", action="store_true", help="list each configuration's longest kernels")
    given = parser.parse_args()
    ceilings: dict[str, Ceilings] = {}
    for name in _split(given.only):
        precision, configurations = WORKLOADS[name]
        sizes = {key: values[0] for key, values in config.parse_dimensions(_split(given.set)).items()}
        Probe(name, precision, sizes, _split(given.surgical), given.profile).table(
            _split(given.backends) or configurations, ceilings
        )


class Probe:
    """One model on the GPU, with its exact outputs for the first set of inputs."""

    def __init__(
        self, name: str, precision: str, sizes: dict[str, str], surgical: tuple[str, ...], is_profiled: bool
    ) -> None:
        import torch

        import models
        from backends.calling import flatten_outputs
        from harness import precision as precisions
        from harness.worker import counting, placing
        from harness.worker.clock import Clock

        self.begun = time.monotonic()
        self.eager: Row | None = None
        self.is_profiled = is_profiled
        self.family = models.find(name)
        dimensions = self.family.resolve(sizes)
        self.cell = Cell(model=name, dimensions=dimensions, device=DEVICE, precision=precision, backend="eager")
        precisions.apply(precision)
        self.clock = Clock(DEVICE)
        with self.clock.on_stream(), torch.inference_mode():
            model = placing.load(self.cell)
            self.step("drawn")
            module, (first,) = placing.place(
                type(model)(copy.deepcopy(model.module), model.inputs[:1]), self.cell, torch.float64
            )
            self.exact = flatten_outputs(module(*first.args, **first.kwargs))
            del module, first
            self.module, self.sets = placing.place(model, self.cell)
            self.step("golden computed")
            self.targets = surgical or model.surgical_targets
            if model.work:
                self.work = Work(flops=model.work[0], bytes_moved=model.work[1])
            else:
                self.work = counting.count(self.module, self.sets[0], precision)

    def step(self, what: str) -> None:
        say(f"# {self.cell.model}: {what} after {time.monotonic() - self.begun:.1f} s")

    def table(self, configurations: Sequence[str], ceilings: dict[str, Ceilings]) -> None:
        """Build, check and time each configuration, and print it; the variants of a kernel before any row of its."""
        import torch

        kind = self.family.products or self.cell.precision
        if kind not in ceilings:
            ceilings[kind] = machine_ceilings.measure(DEVICE, kind)
        self.step("ceilings measured")
        _print_heading(self.cell.model, self.work, ceilings[kind], kind)
        with self.clock.on_stream(), torch.inference_mode():
            for configuration in configurations:
                _forget()
                if configuration == "triton":
                    self.variants()
                try:
                    row = self.row(configuration)
                except (BakeoffError, RuntimeError) as error:
                    say(f"{self.cell.model} {configuration}: {type(error).__name__}: {str(error)[:600]}")
                    continue
                if configuration == "eager":
                    self.eager = row
                _print_row(row, self.eager, self.work, ceilings[kind])
        self.step("done")

    def row(self, configuration: str) -> Row:
        import backends
        from backends.base import BuildContext
        from harness.worker import sampling

        backend_name, _, mode = configuration.partition("/")
        cell = self.cell.model_copy(update={"backend": backend_name, "mode": mode or "default"})
        backend = backends.create(backend_name)
        for answer in (backend.supports(cell), backend.available(cell.device)):
            if not answer:
                raise BakeoffError(answer.reason)
        with tempfile.TemporaryDirectory() as folder:
            context = BuildContext(cell, _untimed, Path(folder), 1, self.sets, targets=self.targets)
            with self.clock.timed() as seconds:
                compiled = backend.build(self.module, self.sets[0], context)
            with compiled:
                compiled.bind(self.sets[0])
                compiled.run()
                self.clock.synchronise()
                error = max(map(_relative_error, compiled.outputs(), self.exact))
                sampling.warm_up(compiled, self.sets, self.clock, 0.2)
                samples = sorted(sampling.burst(compiled, self.sets, self.clock, BURST_S, BURST_CALLS))
                device_time = sampling.device_time(compiled, self.sets, self.clock)
                queued_ms = self.queued_ms(compiled)
                placement, settings = compiled.placement(), compiled.settings()
                notes = self.longest_kernels(compiled) if self.is_profiled else []
        notes += [f"{name}: {value}" for name, value in settings.items() if name in ("failed", "compiled_modules")]
        if placement and placement.fallbacks:
            notes.append(f"placement: {placement.engines}; " + "; ".join(placement.fallbacks))
        latency_ms = samples[len(samples) // 2] / 1e6
        device_ms = device_time.median_ms if device_time else math.nan
        return Row(configuration, seconds[0], latency_ms, device_ms, queued_ms, error, tuple(notes))

    def queued_ms(self, compiled: Any) -> float:
        """Milliseconds that the device takes for a call when the next one already waits.

        Inputs rotate, except over a CUDA graph, whose inputs would be copied in between.
        """
        import torch

        is_graph = "cuda_graph" in compiled.settings()
        times_ms: list[float] = []
        compiled.bind(self.sets[0])
        for _ in range(QUEUES):
            self.clock.synchronise()
            torch.cuda._sleep(AHEAD_CYCLES)
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(self.clock.stream)
            for index in range(QUEUED_CALLS):
                if not is_graph:
                    compiled.bind(self.sets[index % len(self.sets)])
                compiled.run()
            stop.record(self.clock.stream)
            self.clock.synchronise()
            times_ms.append(start.elapsed_time(stop) / QUEUED_CALLS)
        return sorted(times_ms)[QUEUES // 2]

    def longest_kernels(self, compiled: Any) -> list[str]:
        """The kernels that take the most of a call, by torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for one in self.sets:
                compiled.bind(one)
                compiled.run()
            self.clock.synchronise()
        found = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
        calls = len(self.sets)
        return [
            f"{event.self_device_time_total / calls:9.1f} us in {event.count / calls:5.1f} x {event.key[:90]}"
            for event in found[:KERNELS_LISTED]
        ]

    def variants(self) -> None:
        """Check and time every variant of the model's hand-written kernel, not only the one that was chosen."""
        from backends import kernels
        from backends.triton import Handwritten

        where = kernels.TABLE[self.cell.model].module
        kernel = importlib.import_module(where)
        for variant in kernel.VARIANTS:
            compiled = Handwritten(where, kernel.prepare, self.module, variant, {})
            try:
                compiled.bind(self.sets[0])
                compiled.run()
                self.clock.synchronise()
                error = max(map(_relative_error, compiled.outputs(), self.exact))
                taken_ms = self.queued_ms(compiled)
            except Exception as failure:
                say(f"  {variant}: {type(failure).__name__}: {str(failure)[:200]}")
                continue
            rate, moved = self.work.flops / taken_ms / 1e9, self.work.bytes_moved / taken_ms / 1e6
            spelled = " ".join(f"{name}={value}" for name, value in variant.items())
            say(f"  {taken_ms:9.4f} ms {rate:8.1f} TFLOP/s {moved:7.0f} GB/s  error {error:.2e}  {spelled}")


def _relative_error(ours: Any, exact: Any) -> float:
    """RMSE over the root mean square of the exact values, in float64 where `ours` lies."""
    truth = exact.to(ours.device)
    return float((ours.double() - truth).square().mean().sqrt() / truth.square().mean().sqrt())


def _forget() -> None:
    """Let one configuration's memory and compiled code go before the next one is built."""
    import torch

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _untimed(name: str) -> Iterator[None]:
    yield


def _print_heading(name: str, work: Work, ceilings: Ceilings, kind: str) -> None:
    peaks = f"{ceilings.flops_per_s / 1e12:.0f} TFLOP/s in {kind}, {ceilings.bytes_per_s / 1e9:.0f} GB/s"
    if nominal := ceilings.tensor_cores:
        peaks += f"; tensor cores {nominal.flops_per_s / 1e12:.0f} TFLOP/s at {nominal.sm_clock_mhz} MHz"
    say(f"\n{name}: {work.flops / 1e9:.1f} GFLOP, {work.bytes_moved / 1e6:.1f} MB a call; {peaks}")
    say(f"{'configuration':20}" + "".join(f"{heading:>11}" for heading in COLUMNS))


def _print_row(row: Row, eager: Row | None, work: Work, ceilings: Ceilings) -> None:
    """Rates and shares are of queued calls. Speed-ups are eager's time over this one's."""
    rate, moved = work.flops / row.queued_ms / 1e9, work.bytes_moved / row.queued_ms / 1e6
    share = max(rate * 1e12 / ceilings.flops_per_s, moved * 1e9 / ceilings.bytes_per_s)
    cells = [
        f"{row.build_s:.1f}",
        f"{row.latency_ms:.4f}",
        f"{eager.latency_ms / row.latency_ms:.2f}" if eager else "",
        f"{row.device_ms:.4f}",
        f"{row.queued_ms:.4f}",
        f"{eager.queued_ms / row.queued_ms:.2f}" if eager else "",
        f"{rate:.1f}",
        f"{moved:.0f}",
        f"{share:.1%}",
        f"{row.relative_error:.2e}",
    ]
    say(f"{row.configuration:20}" + "".join(f"{cell:>11}" for cell in cells))
    for note in row.notes:
        say(f"  {row.configuration} {note}")


def say(line: str) -> None:
    """Print at once: what a run that is cut off has found is kept."""
    print(line, flush=True)  # noqa: T201 - a script's output


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


if __name__ == "__main__":
    main()
