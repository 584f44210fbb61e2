"""Programs that torch itself loads: TorchScript, AOTInductor's packages, and exported programs for torch.compile."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from bakeoff.backends.cuda_graph import WARMING_CALLS
from bakeoff.backends.inductor import WITH_CUDA_GRAPHS
from bakeoff.backends.loaded.contract import Artifact, Loaded, Shape
from bakeoff.backends.loaded.torch_streams import OwnStream, sample_tensors

Tensors = Sequence[torch.Tensor]
Function = Callable[[list[torch.Tensor]], Tensors]


def load_torchscript(artifact: Artifact) -> Loaded:
    module: Any = torch.jit.load(str(artifact.path), map_location=artifact.device)  # type: ignore[no-untyped-call]
    return called(artifact, lambda tensors: module(*tensors))


def load_aotinductor(artifact: Artifact) -> Loaded:
    import torch._inductor

    index = torch.device(artifact.device).index
    on_cuda = artifact.device.startswith("cuda")
    # aoti_load_package compiles test programs for a warning, which takes seconds
    package = torch._C._aoti.AOTIModelPackageLoader(
        str(artifact.path),
        "model",
        bool(artifact.settings["options"].get("run_single_threaded", False)),
        1,  # runners
        (index or 0) if on_cuda else -1,
    )
    strides: dict[int, tuple[int, ...]] = {number: tuple(each) for number, each in artifact.settings.get("strides", ())}
    if not strides:
        return called(artifact, package.run, needs_no_grad=False)

    def run(tensors: list[torch.Tensor]) -> Tensors:
        laid_out = list(tensors)
        for number, known in strides.items():
            tensor = tensors[number]
            laid_out[number] = _laid_out(tensor, strides_at(tuple(tensor.shape), known, artifact.inputs[number].shape))
        return cast("Tensors", package.run(laid_out))

    return called(artifact, run, needs_no_grad=False)


def strides_at(shape: Shape, strides: Shape, of_shape: Shape) -> Shape:
    """Return the strides of a tensor of this shape in the layout that has these strides at another shape.

    A stride grows with the sizes of the dimensions that lie within it.
    """
    dimensions = range(len(shape))
    within = [[inner for inner in dimensions if 0 < strides[inner] < strides[outer]] for outer in dimensions]
    return tuple(
        strides[outer] * math.prod(shape[inner] for inner in inners) // math.prod(of_shape[inner] for inner in inners)
        for outer, inners in enumerate(within)
    )


def _laid_out(tensor: torch.Tensor, strides: Shape) -> torch.Tensor:
    """Return the tensor in memory with these strides, which the package was compiled for."""
    if tensor.stride() == strides:
        return tensor
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    result = tensor.new_empty(length).as_strided(tensor.shape, strides)
    once = tuple(slice(None if stride else 1) for stride in strides)  # an expanded tensor holds each value once
    result[once].copy_(tensor[once])
    return result


def load_inductor(artifact: Artifact) -> Loaded:
    """Compile the program, or take what Inductor's cache on this machine has of it."""
    import torch._inductor.config

    settings = artifact.settings
    with warnings.catch_warnings():  # torch.export reads weights into memory that it does not write to
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        module: Any = torch.export.load(artifact.path).module()
    if settings["channels_last"]:
        module = module.to(memory_format=torch.channels_last)
    compiled: Any = torch.compile(module.forward, backend="inductor", **settings["options"])
    example = [_ordered(tensor, settings) for tensor in sample_tensors(artifact, torch.device(artifact.device))]
    with torch.no_grad(), torch._inductor.config.patch(freezing="TORCHINDUCTOR_FREEZING" in settings["variables"]):
        for _ in range(WARMING_CALLS):
            compiled(*example)
    if artifact.device.startswith("cuda") and settings["options"].get("mode") in WITH_CUDA_GRAPHS:
        return called(artifact, lambda tensors: [output.clone() for output in compiled(*tensors)])
    return called(artifact, lambda tensors: compiled(*tensors))


def _ordered(tensor: torch.Tensor, settings: Any) -> torch.Tensor:
    """Return the tensor, in channels_last memory if the build wants that and it has four dimensions."""
    is_image = settings["channels_last"] and tensor.dim() == 4
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor


def called(artifact: Artifact, function: Function, needs_no_grad: bool = True) -> Loaded:
    if artifact.settings["channels_last"]:
        settings, plain = artifact.settings, function

        def function(tensors: list[torch.Tensor]) -> Tensors:
            return plain([_ordered(tensor, settings) for tensor in tensors])

    return Captured(artifact, function) if artifact.settings["graph"] else Called(function, needs_no_grad)


class Called(Loaded):
    """Calls a function of torch on the caller's current stream. It must return new tensors from each call."""

    takes_arrays = False

    def __init__(self, function: Function, needs_no_grad: bool) -> None:
        self._function = function
        self._needs_no_grad = needs_no_grad

    def run(self, inputs: Tensors) -> Tensors:
        if not self._needs_no_grad:
            return self._function(list(inputs))
        with torch.no_grad():
            return self._function(list(inputs))


class Captured(Loaded):
    """Replays a CUDA graph over fixed buffers, which each call copies its inputs into and its outputs from."""

    takes_arrays = False

    def __init__(self, artifact: Artifact, function: Function) -> None:
        self._own = OwnStream(torch.device(artifact.device))
        self._function = function  # its weights and kernels are what the graph works with
        example = sample_tensors(artifact, self._own.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), self._own.ordered():
            self._buffers = [tensor.clone() for tensor in example]
            for _ in range(WARMING_CALLS):
                function(self._buffers)
            self._own.stream.synchronize()
            with torch.cuda.graph(self._graph, stream=self._own.stream):
                self._results = function(self._buffers)

    def run(self, inputs: Tensors) -> Tensors:
        with torch.no_grad():
            outputs = [torch.empty_like(result) for result in self._results]
            with self._own.ordered():
                self._own.copy(inputs, self._buffers)
                self._graph.replay()
                self._own.copy(self._results, outputs)
        return outputs
