"""PyTorch as it is: the baseline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from backends import cuda_graph, quantising
from backends.base import TASKS, YES, Availability, Backend, BuildContext, Compiled
from records.device import Device
from records.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from backends.training import Training
    from models.base import Inputs


class Eager(Backend):
    name = "eager"
    description = "PyTorch eager, torch.inference_mode"
    tasks = TASKS
    takes_streams = True
    quantises = True
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {"default": {}, cuda_graph.MODE: {}}
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")

    def available(self, device: Device) -> Availability:
        return torch_available(device)

    def supports(self, cell: Cell) -> Availability:
        return super().supports(cell) and cuda_graph.supports_capture(cell)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        if context.training is not None:
            return self._build_training(context.training, inputs, context)
        prepared = quantising.prepare(module, inputs, context, lower=True)
        compiled = prepared.adapt(Callables(prepared.sparing(prepared.module)))
        if context.cell.mode != cuda_graph.MODE:
            return compiled
        with context.phase("compile"):
            return cuda_graph.capture(compiled, inputs, context.calibration)

    def _build_training(self, training: Training, inputs: Inputs, context: BuildContext) -> Compiled:
        from backends.training import Steps

        steps = Steps(training)
        if context.cell.mode != cuda_graph.MODE:
            return steps
        training.make_capturable()
        with context.phase("compile"):
            return cuda_graph.capture(steps, inputs, context.calibration)


class Callables(Compiled):
    """A callable with a model's own arguments and outputs: eager, and what torch.compile makes."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._call: Callable[[], object] = function
        self._outputs: object = None

    def bind(self, inputs: Inputs) -> None:
        self._call = functools.partial(self._function, *inputs.args, **inputs.kwargs)

    def run(self) -> None:
        self._outputs = self._call()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        from backends.calling import flatten_outputs

        return tuple(tensor.clone() for tensor in flatten_outputs(self._outputs))

    def placement(self) -> Placement:
        return Placement(extent=Extent.FULL)

    def close(self) -> None:
        self._outputs = None


def torch_available(device: Device) -> Availability:
    """Whether this machine's torch can run on `device`."""
    import torch

    if not device.is_cuda:
        return YES
    if torch.version.cuda is None:
        return Availability(f"torch {torch.__version__} is a build without CUDA")
    if not torch.cuda.is_available():
        return Availability("torch sees no CUDA device")
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        return Availability(f"there is no {device}: this machine has {torch.cuda.device_count()} CUDA device(s)")
    return YES
