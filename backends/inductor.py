"""torch.compile with Inductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from backends import cuda_graph
from backends.base import YES, Availability, Backend, BuildContext, Compiled
from backends.eager import Callables, torch_available
from reports.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

TRIGGERING_CALLS = 3
"""The first call compiles; with CUDA graphs the second warms up on the graph's pool and the third is recorded."""


class Inductor(Backend):
    name = "inductor"
    description = "torch.compile(backend='inductor')"
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "default": {},
        "reduce-overhead": {"mode": "reduce-overhead"},
        "max-autotune": {"mode": "max-autotune"},
        "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
        "freezing": {"options": {"freezing": True}},
        cuda_graph.MODE: {},
    }

    def available(self, device: str) -> Availability:
        if not (available := torch_available(device)):
            return available
        if device.startswith("cuda"):
            return _triton_available()
        return _compiler_available()

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if not cell.device.startswith("cuda") and cell.mode == "reduce-overhead":
            return Availability(f"mode {cell.mode} is CUDA graphs, and {cell.device} has none: use inductor")
        if not cell.device.startswith("cuda") and cell.mode == "max-autotune-no-cudagraphs":
            return Availability(f"on {cell.device} this mode is max-autotune itself: use inductor/max-autotune")
        return cuda_graph.supports_capture(cell)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        import torch

        # imported here because importing is in no phase, and torch.compile would do it inside of one
        import torch._dynamo
        import torch._inductor.config

        # torch.compile is lazy: it compiles in the first call, so that call belongs into this phase
        with context.phase("compile"):
            options = self.modes[context.cell.mode]
            compiled = torch.compile(module, backend="inductor", dynamic=False, **options)  # type: ignore[call-overload]
            for _ in range(TRIGGERING_CALLS):
                compiled(*inputs.args, **inputs.kwargs)
            optimised = Optimised(compiled, context.cell.device)
            return cuda_graph.capture(optimised, inputs) if context.cell.mode == cuda_graph.MODE else optimised


class Optimised(Callables):
    """What torch.compile made. CUDA-graph modes hand out memory that the next call overwrites, so `outputs` clones."""

    def __init__(self, function: Callable[..., object], device: str) -> None:
        super().__init__(function)
        self._device = device

    def placement(self) -> Placement:
        """Read off Dynamo's and Inductor's own counters, which start at zero in the cell's process."""
        from torch._dynamo.utils import counters

        graphs = counters["stats"]["unique_graphs"]
        broken = [f"graph break: {_title_and_explanation(reason)}" for reason in counters["graph_break"]]
        skipped = counters["inductor"]["cudagraph_skips"]
        # max-autotune asks for them on every device, and counts a CPU's having none as a skip
        if skipped and self._device.startswith("cuda"):
            broken.append(f"CUDA graphs skipped {skipped} time(s)")
        extent = Extent.FALLBACK if graphs == 0 else Extent.PARTIAL if broken else Extent.FULL
        return Placement(extent=extent, engines={"inductor graphs": graphs}, fallbacks=broken)

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"]) + int(
            counters["inductor"]["cudagraph_recorded_non_static_inputs"]
        )


def _triton_available() -> Availability:
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return Availability(f"Inductor needs Triton on CUDA: {error}")
    return YES


def _compiler_available() -> Availability:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return Availability("Inductor needs a C++ compiler on the CPU, and none was found: install g++ or set CXX")
    return YES


def _title_and_explanation(reason: str) -> str:
    """Dynamo's reason in one line: its title says what kind of thing broke the graph, its explanation which one."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()] or ["unknown"]
    explained = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    return ": ".join([lines[0], *explained[:1]])[:300]
