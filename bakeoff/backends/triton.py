"""Hand-written Triton kernels (backends/kernels). They show what compilers and the vendor's library leave to gain."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bakeoff.backends import base, cuda_graph, kernels
from bakeoff.backends.base import Availability, Mode, Settings
from bakeoff.backends.eager import torch_available
from bakeoff.backends.kernels import Launch, Variant
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.schema import Cell, Extent, Placement
from bakeoff.records.text import listed

DESCRIPTOR = "descriptor"
MIN_DESCRIPTOR_CAPABILITY = (9, 0)
"""The first compute capability with the copy engine (TMA) that tensor descriptors need: Hopper."""

CHOSEN = "variant.json"
"""The file in the artefact with the fastest variant that the first process found. Later processes start from it."""

VARIANT_WARM_UP_MS, VARIANT_REPEAT_MS = 10, 40

Prepare = Callable[["torch.nn.Module", Sequence["torch.Tensor"], Variant], Launch]


class Triton(base.Backend):
    name = "triton"
    takes_complex = False
    description = "hand-written Triton kernels, for the models that have one"
    devices = ("cuda",)
    colour = "#332288"
    shared_phases = ("compile",)
    modes = (
        Mode(worth_trying=base.Suits("cuda")),
        Mode("pointer", {"loads": "pointer"}),
        Mode(DESCRIPTOR, {"loads": DESCRIPTOR}),
        Mode(base.CUDA_GRAPH, worth_trying=base.Suits("cuda"), captures=True, built_as=base.DEFAULT),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "triton")
    trial: ClassVar[tuple[str, Mapping[str, str]]] = ("fused_add_relu_mul", {"elements": "65536"})

    def available(self, device: Device) -> Availability:
        if not (available := torch_available(device)):
            return available
        if not device.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
            return Availability(
                "Triton's kernels run on CUDA (TRITON_INTERPRET=1 interprets them on the CPU, for tests)"
            )
        try:
            import triton.tools.tensor_descriptor  # noqa: F401
        except ImportError as error:
            return Availability(f"the kernels need Triton 3.4 or later: {error}")
        return base.AVAILABLE

    def reason_against(self, cell: Cell) -> str:
        row = kernels.TABLE.get(cell.model)
        if row is None:
            models = listed(list(kernels.TABLE))
            return f"only {models} have hand-written kernels; inductor makes Triton kernels of other models"
        loads = self.mode(cell.mode).options.get("loads")
        if loads and len(row.loads) == 1:
            return f"the kernel of {cell.model} loads by {row.loads[0]} only: use {self.name}"
        return ""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        row = kernels.TABLE[context.cell.model]
        kernel = importlib.import_module(row.module)
        variants = possible_variants(kernel.VARIANTS, self.mode(context.cell.mode).options.get("loads"), context.cell)
        with context.phase("compile"):
            chosen, settings = choose_variant(kernel.prepare, variants, module, inputs, context)
            handwritten = Handwritten(row.module, kernel.prepare, module, chosen, settings)
        return cuda_graph.capture(handwritten, inputs, context) if context.cell.mode == base.CUDA_GRAPH else handwritten


@dataclass(eq=False)
class Handwritten(base.Compiled):
    """Runs one variant of a kernel. Binding allocates the outputs and describes the tensors. A call is one launch."""

    where: str
    prepare: Prepare
    module: torch.nn.Module
    variant: Variant
    chosen: Settings  # how the variant was chosen
    _launch: Launch | None = None

    def bind(self, inputs: Inputs) -> None:
        self._launch = self.prepare(self.module, inputs.tensors(), self.variant)

    def run(self) -> None:
        assert self._launch is not None
        self._launch.run()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in self.results())

    def results(self) -> Sequence[torch.Tensor]:
        assert self._launch is not None
        return self._launch.outputs

    def placement(self) -> Placement:
        return Placement(
            extent=Extent.FULL, engines={"hand-written kernels": 1}, evidence=[f"the launch itself ({self.where})"]
        )

    def settings(self) -> Settings:
        return {**self.chosen, **self.variant}

    def close(self) -> None:
        self._launch = None


def possible_variants(variants: Sequence[Variant], loads: object, cell: Cell) -> list[Variant]:
    """Return the variants that load as the mode says and that this GPU can run. Raise Unavailable if there are none."""
    possible_variants = [variant for variant in variants if loads in (None, variant["loads"])]
    if cell.device.is_cuda:
        capability = torch.cuda.get_device_capability(cell.device)
        if capability < MIN_DESCRIPTOR_CAPABILITY:
            possible_variants = [variant for variant in possible_variants if variant["loads"] != DESCRIPTOR]
        if not possible_variants:
            raise Unavailable(
                f"its tensor descriptors need compute capability {_dotted(MIN_DESCRIPTOR_CAPABILITY)}, "
                f"and {cell.device} has {_dotted(capability)}"
            )
    return possible_variants


def choose_variant(
    prepare: Prepare, variants: Sequence[Variant], module: torch.nn.Module, inputs: Inputs, context: base.BuildContext
) -> tuple[Variant, Settings]:
    """Compile and time the variants with single calls. Return the fastest one, and how it was chosen. Raise
    BakeoffError if no variant compiles and runs."""
    remembered = context.workspace / CHOSEN
    if remembered.exists():
        chosen = json.loads(remembered.read_text(encoding="utf-8"))
        prepare(module, inputs.tensors(), chosen).run()
        return chosen, {"chosen": "by the cell's first process"}
    if not context.cell.device.is_cuda:
        return variants[0], {"chosen": "interpreted: the first one, no time means anything"}
    import triton
    from triton.runtime.errors import OutOfResources, PTXASError

    milliseconds: list[tuple[float, int]] = []
    failed: list[str] = []
    for number, variant in enumerate(variants):
        launch = prepare(module, inputs.tensors(), variant)
        try:
            launch.run()
        except (OutOfResources, PTXASError, RuntimeError) as error:
            failed.append(f"{_spelled(variant)}: {type(error).__name__}")
            continue
        call_ms = triton.testing.do_bench(
            launch.run, warmup=VARIANT_WARM_UP_MS, rep=VARIANT_REPEAT_MS, return_mode="median"
        )
        milliseconds.append((float(call_ms), number))
    torch.cuda.empty_cache()  # do_bench's buffer for clearing the L2 is not the cell's memory
    if not milliseconds:
        raise BakeoffError(f"no variant of its kernel runs: {'; '.join(failed)}")
    chosen = dict(variants[min(milliseconds)[1]])
    remembered.write_text(json.dumps(chosen), encoding="utf-8")
    tried = ", ".join(f"{call_ms:.4g} ms for {_spelled(variants[number])}" for call_ms, number in sorted(milliseconds))
    settings: Settings = {"chosen": f"the fastest of {len(variants)}", "tried": tried}
    return chosen, {**settings, **({"failed": "; ".join(failed)} if failed else {})}


def _spelled(variant: Variant) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items())


def _dotted(version: tuple[Any, ...]) -> str:
    return ".".join(map(str, version))
