"""TorchScript: the model is traced and frozen, and the profiling executor specialises it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bakeoff.backends import base, cuda_graph, memory_format, torch_kernels
from bakeoff.backends.eager import torch_available
from bakeoff.backends.profiling import Kernel, Profiler, within_flat
from bakeoff.backends.standalone import Runtime, ScriptPart, TritonBackend
from bakeoff.backends.torch_profiling import TorchProfiler, is_on_cuda
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.schema import Cell, Placement

ARTIFACT = "model.pt"

LINES = """\
with torch.no_grad():
    call = partial(torch.jit.freeze(torch.jit.trace(model, inputs, check_trace=False)), *inputs)"""

SPECIALISING_CALLS = 3
"""The profiling executor records the first call, compiles in the second, and is final by the third."""


FROZEN = base.Mode(worth_trying=base.Suits("cpu"), fast_path=True)
GRAPH = base.Mode(
    base.CUDA_GRAPH, worth_trying=base.Suits("cuda"), captures=True, built_as=base.DEFAULT, fast_path=True
)


class TorchScript(base.Backend):
    name = "torchscript"
    description = "torch.jit.trace, then torch.jit.freeze"
    usual_build_s = 2.0
    colour = "#f0e442"
    quantises = True
    writes_caches = True
    takes_sparse = True
    takes_ranges = True  # what it traces has no sizes, and the executor specialises it anew where it likes
    shared_phases = ("export",)
    modes = (FROZEN, GRAPH, FROZEN.in_channels_last(), GRAPH.in_channels_last())
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="calling thread")

    def available(self, device: Device) -> base.Availability:
        return torch_available(device)

    def times_kernels(self, cell: Cell) -> bool:
        return False

    def reason_against(self, cell: Cell) -> str:
        if cell.precision.is_quantised:
            return f"torch.jit.trace cannot record what torchao makes of a model for {cell.precision}"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        return ScriptPart(LINES, captures=self.mode(cell.mode).captures)

    def runtime(self, device: Device) -> Runtime:
        return Runtime(
            (ARTIFACT,),
            ("torch", "numpy"),
            ("torch",),
            loader="torch_programs:load_torchscript",
            triton=TritonBackend("pytorch", threads="INTRA_OP_THREAD_COUNT"),
        )

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        from bakeoff.backends.calling import FlatModule, as_called
        from bakeoff.backends.runtime.torch_programs import open_torchscript

        if self.mode(context.cell.mode).channels_last_of:
            return memory_format.build(self, module, inputs, context)
        tensors, artifact = inputs.tensors(), context.workspace / ARTIFACT
        kernels: list[Kernel] = []
        if not artifact.exists():
            with context.phase("export"):
                buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
                traced: Any = torch.jit.trace(FlatModule(module, inputs), as_called(inputs), check_trace=False)
                for buffer, value in buffers:  # tracing is a call, which changes what the model keeps
                    buffer.detach().copy_(value)
                traced = torch.jit.freeze(traced.eval())
                kernels = list(_kernels_of(traced.graph.nodes())) if context.for_profile else []
                torch.jit.save(traced, str(artifact))
                del traced
        with context.phase("load"):  # in every process, so that all of them run the same
            frozen = open_torchscript(artifact, context.cell.device)
        with context.phase("compile"):
            for _ in range(SPECIALISING_CALLS):
                frozen(*tensors)
        compiled = Traced(frozen, kernels)
        return cuda_graph.capture(compiled, inputs, context) if context.cell.mode == base.CUDA_GRAPH else compiled


class Traced(base.FlatCalls):
    def __init__(self, frozen: Any, kernels: Sequence[Kernel] = ()) -> None:
        super().__init__(frozen)
        self._frozen = frozen
        self._kernels = kernels  # with the modules that they were traced in, which a file does not keep

    def run(self) -> None:
        self._outputs = self._frozen(*self._tensors)

    def instance(self) -> base.Compiled:
        return Traced(self._frozen)

    def profiler(self, module: torch.nn.Module) -> Profiler:
        return TorchProfiler(self.run, is_on_cuda(module), [self._kernels])

    def placement(self) -> Placement:
        nodes = sum(1 for _ in self._frozen.graph.nodes())
        return torch_kernels.placement(lambda: self._frozen(*self._tensors), torchscript=nodes)


def _kernels_of(nodes: Iterable[Any]) -> Iterator[Kernel]:
    """Return the operators of a graph with the module that each was traced in, those of inner blocks too."""
    for node in nodes:
        if not node.kind().startswith("prim::"):  # constants, tuples and control flow compute nothing
            innermost = node.scopeName().rpartition("/")[2]
            yield Kernel(node.kind(), (within_flat(innermost.removeprefix("__module.")),))
        for block in node.blocks():
            yield from _kernels_of(block.nodes())
