"""Builds a cell in the tests' own process, in the surroundings that a worker gives it."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._inductor import metrics

from bakeoff import backends
from bakeoff.backends import fast_path
from bakeoff.backends.base import Backend, BuildContext, Compiled
from bakeoff.backends.calling import flatten_outputs
from bakeoff.backends.ranges import OpenAxis
from bakeoff.backends.runtime.folder import switch
from bakeoff.backends.torch_kernels import ATTENTION, CUDNN_BENCHMARK
from bakeoff.measuring.worker import precision, simulation
from bakeoff.measuring.worker.cell_model import gradients, load, move_to_device, training_of
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.records.schema import Cell
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Built:
    """A compiled model with everything that tests need. The input sets are on the device."""

    backend: Backend
    context: BuildContext
    compiled: Compiled
    clock: Clock
    module: torch.nn.Module
    sets: tuple[Inputs, ...]
    phases: tuple[str, ...]
    before: tuple[torch.Tensor, ...]  # parameters, buffers and the example's tensors as they were before building

    @property
    def cell(self) -> Cell:
        return self.context.cell

    def eager(self, inputs: Inputs) -> Outputs:
        return flatten_outputs(self.module(*inputs.args, **inputs.kwargs))

    def call(self, inputs: Inputs) -> Outputs:
        self.compiled.bind(inputs)
        return self.call_again()

    def call_again(self) -> Outputs:
        self.clock.synchronise()
        self.compiled.run()
        self.clock.synchronise()
        return self.compiled.outputs()


@contextlib.contextmanager
def built(
    cell: Cell,
    workspace: Path,
    model: LoadedModel | None = None,
    backend: Backend | None = None,
    open_axes: tuple[OpenAxis, ...] = (),
    threads: int | None = None,
    for_profile: bool = False,
) -> Iterator[Built]:
    """Build `cell`, or `model` in its place, bind the first input set, and close twice at the end.

    `backend` builds it, or else the cell's own one, for `threads` or for torch's number of them. Skip the test, with
    the reason, if the backend does not support the cell or this machine lacks the backend.
    """
    backend = backend or backends.create(cell.backend)
    for answer in (backend.supports(cell), backend.available(cell.device)):
        if not answer:
            pytest.skip(f"{cell.label} on {cell.device}: {answer.reason}")
    with _own_process(cell):
        clock = Clock(cell.device)
        model = model or load(cell)
        module, sets = move_to_device(model, cell)
        phases = RecordingPhases()
        with clock.on_stream(), gradients(cell.task):
            training = training_of(model, cell)
            context = BuildContext(
                cell,
                phases,
                workspace,
                threads or torch.get_num_threads(),
                sets,
                training=training,
                targets=model.surgical_targets,
                open_axes=open_axes,
                for_profile=for_profile,
            )
            before = tuple(tensor.clone() for tensor in tensors_of(module, sets[0]))
            with backend.build(module, sets[0], context) as compiled:
                compiled.bind(sets[0])
                yield Built(backend, context, compiled, clock, module, sets, tuple(phases.names), before)
            compiled.close()


def loaded(module: torch.nn.Module, *shape: int, sets: int = INPUT_SETS) -> LoadedModel:
    """Return a model of one tensor of this shape, with random input sets."""
    return LoadedModel(module.eval(), tuple(Inputs((torch.randn(shape),)) for _ in range(sets)))


class RecordingPhases:
    """A phase timer that only remembers names. Phases do not nest."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._open = ""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        assert not self._open, f"phase {name} begins inside {self._open}"
        self.names.append(name)
        self._open = name
        yield
        self._open = ""


def reference_of(cell: Cell) -> Reference:
    """Compute the reference as the harness does."""
    with torch.inference_mode():
        module, sets = move_to_device(load(cell), cell, torch.float64)
        exact = run_eager(module, sets)
        module, sets = move_to_device(load(cell), cell)
        with simulation.emulate_quantisation(cell.precision, module, sets):
            eager = run_eager(module, sets)
    return Reference(exact, *errors_of_eager(eager, exact))


def tensors_of(module: torch.nn.Module, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    return (*module.state_dict().values(), *inputs.tensors())


@contextlib.contextmanager
def _own_process(cell: Cell) -> Iterator[None]:
    """Reset what a worker has for itself: torch's switches, and Dynamo's caches and counters."""
    allow_tf32 = torch.backends.cudnn.allow_tf32
    matmul_precision = torch.get_float32_matmul_precision()
    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    with pytest.MonkeyPatch.context() as patch:
        for name in precision.OVERRIDES:
            patch.delenv(name, raising=False)
        precision.apply(cell.precision)
        fast_path.apply(backends.create(cell.backend), cell)
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = allow_tf32
            torch.backends.mha.set_fastpath_enabled(True)
            switch({CUDNN_BENCHMARK: False, **{path: True for mode in ATTENTION.values() for path in mode.switches}})
            torch.set_float32_matmul_precision(matmul_precision)
            torch._dynamo.reset()
            counters.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
