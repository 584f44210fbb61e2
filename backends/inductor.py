"""torch.compile with Inductor."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

from backends import cuda_graph, quantising
from backends.base import YES, Availability, Backend, BuildContext, Compiled
from backends.eager import Callables, torch_available
from reports.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

TRIGGERING_CALLS = 3
"""The first call compiles; with CUDA graphs the second warms up on the graph's pool and the third is recorded."""


ATTENTION = "aten._scaled_dot_product"
"""Inductor leaves fused attention to PyTorch's kernels by design: counted, and not called a fallback."""


class Inductor(Backend):
    name = "inductor"
    description = "torch.compile(backend='inductor')"
    quantises = True
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "default": {},
        "reduce-overhead": {"mode": "reduce-overhead"},
        "max-autotune": {"mode": "max-autotune"},
        "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
        "freezing": {"options": {"freezing": True}},
        cuda_graph.MODE: {},
    }
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")

    def available(self, device: str) -> Availability:
        if not (available := torch_available(device)):
            return available
        if device.startswith("cuda"):
            return _triton_available()
        return compiler_available()

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if not cell.device.startswith("cuda") and cell.mode == "reduce-overhead":
            return Availability(f"mode {cell.mode} is CUDA graphs, and {cell.device} has none: use inductor")
        if not cell.device.startswith("cuda") and cell.mode == "max-autotune-no-cudagraphs":
            return Availability(f"on {cell.device} this mode is max-autotune itself: use inductor/max-autotune")
        if not cell.device.startswith("cuda") and cell.precision == "int8" and cell.mode == "freezing":
            return Availability(f"on {cell.device}, int8 is always frozen: use inductor")
        return cuda_graph.supports_capture(cell)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        import torch

        # imported here because importing is in no phase, and torch.compile would do it inside of one
        import torch._dynamo
        import torch._inductor.config

        prepared = quantising.prepare(module, inputs, context, lower=False)
        # torch.compile is lazy: it compiles in the first call, so that call belongs into this phase
        with context.phase("compile"), prepared.compiling(), InductorLog() as log:
            options = self.modes[context.cell.mode]
            # `dynamic` stays at its default: any other value is entered and left as a context in every call (5 µs)
            compiled = torch.compile(prepared.module, backend="inductor", **options)  # type: ignore[call-overload]
            example = prepared.example()
            for _ in range(TRIGGERING_CALLS):
                compiled(*example.args, **example.kwargs)
            optimised = prepared.adapt(Optimised(prepared.sparing(compiled), context.cell.device, log))
            return cuda_graph.capture(optimised, inputs) if context.cell.mode == cuda_graph.MODE else optimised


class Optimised(Callables):
    """What torch.compile made. CUDA-graph modes hand out memory that the next call overwrites, so `outputs` clones."""

    def __init__(self, function: Callable[..., object], device: str, log: InductorLog) -> None:
        super().__init__(function)
        self._device = device
        self._log = log
        self._compiled_before: int | None = None  # when placement was asked first: after the warm-up

    def placement(self) -> Placement:
        """Read off Dynamo's and Inductor's own counters, which start at zero in the cell's process, and their logs."""
        from torch._dynamo.utils import counters

        graphs = counters["stats"]["unique_graphs"]
        broken = [f"graph break: {_title_and_explanation(reason)}" for reason in counters["graph_break"]]
        broken += self._log.kept_by_pytorch
        skipped = counters["inductor"]["cudagraph_skips"]
        # max-autotune asks for them on every device, and counts a CPU's having none as a skip
        if skipped and self._device.startswith("cuda"):
            reasons = self._log.cuda_graph_skips or ["no reason logged"]
            broken += [f"CUDA graph skipped: {reason}" for reason in dict.fromkeys(reasons)]
        if self._compiled_before is None:
            self._compiled_before = self.compilations()
        if again := self.compilations() - self._compiled_before:
            broken.append(f"compiled {again} more time(s) after the warm-up")
        extent = Extent.FALLBACK if graphs == 0 else Extent.PARTIAL if broken else Extent.FULL
        engines = {"inductor graphs": graphs, **generated_and_called()}
        return Placement(
            extent=extent,
            engines=engines,
            fallbacks=broken,
            evidence=[
                "Dynamo's and Inductor's counters (kernels count with those that autotuning tried)",
                "Inductor's logs of kept operators and skipped CUDA graphs",
            ],
        )

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"]) + int(
            counters["inductor"]["cudagraph_recorded_non_static_inputs"]
        )


def generated_and_called() -> dict[str, int]:
    """How many kernels Inductor generated in this process, and how many calls into libraries it left in its code."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    return {"generated kernels": metrics.generated_kernel_count, "library calls": counters["inductor"]["extern_calls"]}


class InductorLog(logging.Handler):
    """A context manager that keeps what Inductor says, while it compiles, of work it does not take on.

    Two of its loggers say it and nothing else does: which operators stay PyTorch's kernels (a performance hint,
    off unless asked for), and why a CUDA graph was skipped (a warning; the counter has only the number).
    """

    FALLBACKS = "torch._inductor.graph.__perf_hints"
    SKIPS = "torch._inductor.cudagraph_utils.__cudagraphs"

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: Counter[str] = Counter()
        self.cuda_graph_skips: list[str] = []
        self._level = logging.NOTSET

    @property
    def kept_by_pytorch(self) -> list[str]:
        """Operators for which no kernel was generated, with how often; fused attention is not among them."""
        return [
            f"{name} stayed PyTorch's kernel ({count})"
            for name, count in self._kept.items()
            if not name.startswith(ATTENTION)
        ]

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name == self.SKIPS:
            first_line = message.strip().partition("\n")[0]
            self.cuda_graph_skips.append(first_line.removeprefix("skipping cudagraphs due to ")[:300])
        elif found := re.fullmatch(r"Using FallbackKernel: (?:torch\.ops\.)?(\S+)", message):
            self._kept[found[1].removesuffix(".default")] += 1

    def __enter__(self) -> Self:
        hints = logging.getLogger(self.FALLBACKS)
        self._level = hints.level
        hints.setLevel(logging.INFO)
        for name in (self.FALLBACKS, self.SKIPS):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger(self.FALLBACKS).setLevel(self._level)
        for name in (self.FALLBACKS, self.SKIPS):
            logging.getLogger(name).removeHandler(self)


def _triton_available() -> Availability:
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return Availability(f"Inductor needs Triton on CUDA: {error}")
    return YES


def compiler_available() -> Availability:
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
