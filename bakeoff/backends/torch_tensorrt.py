"""Torch-TensorRT 2.8 to 2.14: a torch module in which TensorRT engines replace the parts of the graph that they can.

Typing is always explicit, which means the module's own. `enabled_precisions` is never passed, because the versions use
it, assert against it, or ignore it. There are two modes, since they leave different work in a call. `default` exports
the module ahead of time, so a call is that of a plain torch module. `torch-compile` is
torch.compile(backend="tensorrt"): Dynamo traces the first call, may break the graph where an export would fail, and
checks its guards in every call.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields
from importlib import metadata
from typing import Any, ClassVar

from bakeoff.backends import base
from bakeoff.backends.base import Availability, BuildContext, Mode
from bakeoff.backends.eager import torch_available
from bakeoff.backends.ranges import exported, mark, refusing_guards
from bakeoff.backends.tensorrt import layer_types
from bakeoff.backends.traps import Facts, Finding, Weight, minor_version
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import dynamo_utils, torch, torch_tensorrt
from bakeoff.records.device import Device
from bakeoff.records.errors import first_line
from bakeoff.records.schema import Cell, Extent, Placement

OLDEST = (2, 8)
JUST_IN_TIME = "torch-compile"

ENGINE, TORCH = "_run_on_acc", "_run_on_gpu"
"""The names of a compiled graph's children contain these: TensorRT engines, and parts that stayed in torch."""

TRIGGERING_CALLS = 3
"""torch.compile compiles in the first call. A CUDA graph is recorded there too, after a warm-up of its own."""


def torch_tensorrt_of_another_minor(facts: Facts) -> Iterator[Finding]:
    """Torch-TensorRT is compiled against one minor version of torch."""
    ours, theirs = facts.version("torch"), facts.version("torch-tensorrt")
    if ours and theirs and minor_version(ours) != minor_version(theirs):
        yield Finding(
            weight=Weight.PROBLEM,
            text=(
                f"torch-tensorrt {theirs} is compiled against torch {minor_version(theirs)}, "
                f"and torch {ours} is installed"
            ),
            remedy=f"pip install 'torch-tensorrt=={minor_version(ours)}.*'",
            backends=["torch-tensorrt"],
            devices=["cuda"],
        )


class TorchTensorRT(base.Backend):
    name = "torch-tensorrt"
    description = "Torch-TensorRT through torch.export"
    devices = ("cuda",)
    usual_build_s = 60.0
    colour = "#cc79a7"
    traps = (torch_tensorrt_of_another_minor,)
    quantises = True
    takes_ranges = True
    modes = (
        Mode(worth_trying=base.Suits("cuda")),
        Mode(base.CUDA_GRAPH, worth_trying=base.Suits("cuda"), captures=True),
        Mode(JUST_IN_TIME),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torch-tensorrt", "tensorrt")
    module: ClassVar[str] = "torch_tensorrt"
    caveat = (
        "Bakeoff's authors never ran this backend on real TensorRT: it was only held against Torch-TensorRT's sources"
    )

    def available(self, device: Device) -> Availability:
        if not device.is_cuda:
            return Availability(f"TensorRT runs on NVIDIA GPUs, and {device} is none")
        return version_matches_torch() and torch_available(device) and library_imports()

    def reason_against(self, cell: Cell) -> str:
        if cell.precision.is_quantised:
            return (
                f"Torch-TensorRT takes {cell.precision} from modules that NVIDIA's ModelOpt quantised, and none is here"
            )
        return ""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> base.Compiled:
        # imported before the phases, which do not time imports
        import torch._dynamo  # noqa: F401
        import torch_tensorrt  # noqa: F401

        settings = compilation_settings(context)
        if context.cell.mode == JUST_IN_TIME:
            with context.phase("compile"):
                return _just_in_time(module, inputs, context, settings)
        return _ahead_of_time(module, inputs, context, settings)


def compilation_settings(context: BuildContext) -> dict[str, Any]:
    """Return what both ways pass to Torch-TensorRT: keywords of `compile`, and fields of CompilationSettings."""
    settings: dict[str, Any] = {
        # with its index, which would otherwise be None
        "device": torch.device(context.cell.device.kind, context.cell.device.cuda_index or 0),
        "disable_tf32": not context.cell.precision.allows_tf32,
        # not the default file, which all cells would share
        "timing_cache_path": str(context.workspace / "timing_cache.bin"),
        # if an engine cannot be built, the cell fails with the reason and does not silently return to torch
        "pass_through_build_failures": True,
    }
    # off by default in 2.8, on in 2.11, and gone in 2.13, which has no other typing
    if "use_explicit_typing" in {field.name for field in fields(torch_tensorrt.dynamo.CompilationSettings)}:
        settings["use_explicit_typing"] = True
    return settings


def _ahead_of_time(
    module: torch.nn.Module, inputs: Inputs, context: BuildContext, settings: dict[str, Any]
) -> Partitioned:
    """Export the module with torch.export, and compile the whole graph with Torch-TensorRT. These are the two steps of
    `torch_tensorrt.compile(ir="dynamo")`, timed apart."""
    from bakeoff.backends.calling import plain_tensors

    with plain_tensors():
        examples = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs.tensors())
        with context.phase("export"):
            # the engines get their ranges from the program's
            program = exported(module, inputs.map(lambda tensor: tensor.contiguous()), context.open_axes)
    with context.phase("compile"):
        with plain_tensors():
            graph = torch_tensorrt.dynamo.compile(program, arg_inputs=examples, **settings)
        graphs = context.cell.mode == base.CUDA_GRAPH
        switch = torch_tensorrt.runtime.enable_cudagraphs(graph) if graphs else None
        return _triggered(Partitioned(graph, [graph], switch, flat=True), inputs)


def _just_in_time(
    module: torch.nn.Module, inputs: Inputs, context: BuildContext, settings: dict[str, Any]
) -> Partitioned:
    parts: list[Any] = []

    def remembering(graph: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Act as torch.compile's backend "tensorrt", and keep what it made of each graph for the placement."""
        part = torch_tensorrt.dynamo.backend.torch_tensorrt_backend(graph, sample_inputs, options=dict(settings))
        parts.append(part)
        compiled: Callable[..., Any] = part
        return compiled

    axes = context.open_axes
    mark(inputs, axes)
    # without open axes nothing may become dynamic; with them, only what was marked
    function = torch.compile(module, backend=remembering, dynamic=None if axes else False)
    with refusing_guards(axes):
        return _triggered(Partitioned(function, parts, None, flat=False), inputs)


def _triggered(compiled: Partitioned, inputs: Inputs) -> Partitioned:
    compiled.bind(inputs)
    for _ in range(TRIGGERING_CALLS):
        compiled.run()
    return compiled


class Partitioned(base.Compiled):
    """A callable that contains engines, in the graphs `parts`. If `flat`, it takes flat tensors."""

    def __init__(
        self, function: Callable[..., object], parts: list[Any], switch: AbstractContextManager[Any] | None, flat: bool
    ) -> None:
        self._parts = parts
        self._flat = flat
        self._switches = ExitStack()
        # the switch returns a module around the whole, which CUDA graphs need if parts stayed in torch
        self._function = self._switches.enter_context(switch) if switch is not None else function
        self._args: tuple[Any, ...] = ()
        self._kwargs: Mapping[str, Any] = {}
        self._outputs: object = None

    def bind(self, inputs: Inputs) -> None:
        self._args, self._kwargs = (inputs.tensors(), {}) if self._flat else (inputs.args, inputs.kwargs)

    def run(self) -> None:
        self._outputs = self._function(*self._args, **self._kwargs)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in self.results())

    def results(self) -> tuple[torch.Tensor, ...]:
        from bakeoff.backends.calling import flatten_outputs

        return flatten_outputs(self._outputs)

    def placement(self) -> Placement | None:
        reasons = [] if self._flat else dynamo_utils.counters["graph_break"]
        return coverage(self._parts, [f"graph break: {first_line(reason)}"[:300] for reason in reasons])

    def compilations(self) -> int:
        return 0 if self._flat else int(dynamo_utils.counters["stats"]["unique_graphs"])

    def precision(self) -> base.Settings:
        engines = engines_of(self._parts)
        if not engines:
            return {}
        switches = engines[0].settings  # all engines have the same settings
        return {"tensorrt_tf32": not switches.disable_tf32, "tensorrt_fp32_acc": bool(switches.use_fp32_acc)}

    def settings(self) -> base.Settings:
        engines = engines_of(self._parts)
        # the engines were built without details, so they know their layers' names and not the types
        layers = sum(layer_types(engine.get_layer_info()).total() for engine in engines)
        chosen = engines[0].settings if engines else torch_tensorrt.dynamo.CompilationSettings()
        return {
            "torch_tensorrt_version": str(torch_tensorrt.__version__),
            "min_block_size": int(chosen.min_block_size),
            "tensorrt_layers": layers,
            "timing_cache": "the cell's own, empty before the build",
        }

    def close(self) -> None:
        self._switches.close()
        self._outputs = None
        self._args = ()
        self._kwargs = {}
        self._parts = []
        vars(self).pop("_function", None)


def coverage(parts: Sequence[Any], graph_breaks: Sequence[str] = ()) -> Placement | None:
    """Return how much of `parts` runs in TensorRT, by the partitioner's names; None if a part is not a graph."""
    if not all(hasattr(part, "graph") for part in parts):
        return None
    engines = len(engines_of(parts))
    left: Counter[str] = Counter()
    for part in parts:
        # operators stay at the top level too, and all of them if no block was worth an engine
        left.update(_operators(part))
        for name, child in part.named_children():
            if TORCH in name:
                left.update(_operators(child))
    fallbacks = [*(f"{name} in torch ({count})" for name, count in left.items()), *graph_breaks]
    extent = Extent.FALLBACK if not engines else Extent.PARTIAL if fallbacks else Extent.FULL
    counts = {"TensorRT engines": engines, "torch operators": left.total()}
    return Placement(
        extent=extent,
        engines={name: count for name, count in counts.items() if count},
        fallbacks=fallbacks,
        evidence=["Torch-TensorRT's partitions, by name"],
    )


def engines_of(parts: Sequence[Any]) -> list[Any]:
    graphs = (part for part in parts if hasattr(part, "named_children"))
    return [child for part in graphs for name, child in part.named_children() if ENGINE in name]


def _operators(graph: Any) -> Iterator[str]:
    """Yield the operators in a graph's own nodes, without those that only take an item from a tuple."""
    for node in graph.graph.nodes:
        if node.op in ("call_function", "call_method") and node.target is not operator.getitem:
            yield str(node.target)


def version_matches_torch() -> Availability:
    """Check the versions. Torch-TensorRT is linked to one minor version of torch, and can crash with another."""
    try:
        version = metadata.version("torch-tensorrt")
    except metadata.PackageNotFoundError:
        return Availability(f"torch-tensorrt is not installed: pip install {_requirement()}")
    if _minor(version) < OLDEST:
        return Availability(f"torch-tensorrt {version} is older than 2.8: pip install {_requirement()}")
    if _minor(version) != _minor(torch.__version__):
        return Availability(
            f"torch-tensorrt {version} is not for torch {torch.__version__}: pip install {_requirement()}"
        )
    return base.AVAILABLE


def library_imports() -> Availability:
    try:
        import torch_tensorrt  # noqa: F401
    except Exception as error:  # torch_tensorrt raises Exception if TensorRT's libraries are missing
        return Availability(f"torch-tensorrt does not import ({first_line(error)}): pip install {_requirement()}")
    return base.AVAILABLE


def _requirement() -> str:
    major, minor = _minor(torch.__version__)
    return f"'torch-tensorrt=={major}.{minor}.*'"


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
