"""Torch-TensorRT: the parts of a torch graph that TensorRT takes, as engines inside of a torch module.

Written for Torch-TensorRT 2.8 to 2.14. The typing is always explicit, that is, the module's own: the versions differ in
what `enabled_precisions` does (used, asserted against, ignored), so it is never passed.

Two ways lead in, and both are measured because they leave different things in the path of a call. `default` exports
the module ahead of time and compiles the whole graph: a call is a plain torch module's. `torch-compile` is
torch.compile(backend="tensorrt"): Dynamo traces at the first call, may break the graph where an export would fail, and
checks its guards in every call. What partitions and converts the graph is the same code in both.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from backends import cuda_graph
from backends.base import YES, Availability, Backend, BuildContext, Compiled, Settings
from backends.eager import torch_available
from backends.tensorrt import layer_types
from records.device import Device
from records.precision import Precision
from records.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from models.base import Inputs

OLDEST = (2, 8)
JUST_IN_TIME = "torch-compile"

ENGINE, TORCH = "_run_on_acc", "_run_on_gpu"
"""What the names of a compiled graph's children hold: TensorRT's engines, and the parts that stayed in torch."""

TRIGGERING_CALLS = 3
"""torch.compile compiles in the first; a CUDA graph is recorded in the first as well, after a warm-up of its own."""


class TorchTensorRT(Backend):
    name = "torch-tensorrt"
    description = "Torch-TensorRT through torch.export"
    quantises = True
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {"default": {}, cuda_graph.MODE: {}, JUST_IN_TIME: {}}
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torch-tensorrt", "tensorrt")
    caveat = (
        "Bakeoff's authors never ran this backend on real TensorRT: it was only held against Torch-TensorRT's sources"
    )

    def available(self, device: Device) -> Availability:
        if not device.is_cuda:
            return Availability(f"TensorRT runs on NVIDIA GPUs, and {device} is none")
        if not (matching := _version_matches_torch()):
            return matching
        if not (available := torch_available(device)):
            return available
        try:
            import torch_tensorrt  # noqa: F401
        except Exception as error:  # it raises plain Exceptions where TensorRT's libraries are missing
            first_line = str(error).strip().partition("\n")[0]
            return Availability(f"torch-tensorrt does not import ({first_line}): pip install {_requirement()}")
        return YES

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if cell.precision.is_quantised:
            return Availability(
                f"Torch-TensorRT takes {cell.precision} from modules that NVIDIA's ModelOpt quantised, and none is here"
            )
        return cuda_graph.supports_capture(cell)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        # importing is in no phase
        import torch._dynamo  # noqa: F401
        import torch_tensorrt  # noqa: F401

        settings = compilation_settings(context)
        if context.cell.mode == JUST_IN_TIME:
            with context.phase("compile"):
                return _just_in_time(module, inputs, settings)
        return _ahead_of_time(module, inputs, context, settings)


def compilation_settings(context: BuildContext) -> dict[str, Any]:
    """What is passed to Torch-TensorRT, by both ways: keywords of its `compile`, fields of its CompilationSettings."""
    import torch
    import torch_tensorrt

    device = torch.device(context.cell.device)
    settings: dict[str, Any] = {
        # it takes the index from here, and one that is not given as None
        "device": torch.device(device.type, device.index or 0),
        "disable_tf32": context.cell.precision is not Precision.TF32,
        # otherwise a file that all cells share
        "timing_cache_path": str(context.workspace / "timing_cache.bin"),
        # an engine that cannot be built is this record's reason, not a silent return to torch
        "pass_through_build_failures": True,
    }
    # a switch in 2.8, on by default in 2.11, gone in 2.13, where there is no other typing
    if "use_explicit_typing" in {field.name for field in fields(torch_tensorrt.dynamo.CompilationSettings)}:
        settings["use_explicit_typing"] = True
    return settings


def _ahead_of_time(
    module: torch.nn.Module, inputs: Inputs, context: BuildContext, settings: dict[str, Any]
) -> Partitioned:
    """torch.export, then Torch-TensorRT over the whole graph.

    `torch_tensorrt.dynamo.compile` is what `torch_tensorrt.compile(ir="dynamo")` calls after exporting by itself; taken
    apart, the two are timed as the two phases they are.
    """
    import torch
    import torch_tensorrt

    from backends.calling import FlatModule

    with _plain_tensors():
        examples = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs.tensors())
        with context.phase("export"):
            program = torch.export.export(FlatModule(module, inputs), examples)
    with context.phase("compile"):
        with _plain_tensors():
            graph = torch_tensorrt.dynamo.compile(program, arg_inputs=examples, **settings)
        graphs = context.cell.mode == cuda_graph.MODE
        switch = torch_tensorrt.runtime.enable_cudagraphs(graph) if graphs else None
        return _triggered(Partitioned(graph, [graph], switch, flat=True), inputs)


def _just_in_time(module: torch.nn.Module, inputs: Inputs, settings: dict[str, Any]) -> Partitioned:
    import torch
    import torch_tensorrt

    parts: list[Any] = []

    def remembering(graph: torch.fx.GraphModule, sample_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend that torch.compile knows as "tensorrt"; what it made of each graph is kept for its placement."""
        part = torch_tensorrt.dynamo.backend.torch_tensorrt_backend(graph, sample_inputs, options=dict(settings))
        parts.append(part)
        compiled: Callable[..., Any] = part
        return compiled

    function = torch.compile(module, backend=remembering, dynamic=False)
    return _triggered(Partitioned(function, parts, None, flat=False), inputs)


def _triggered(compiled: Partitioned, inputs: Inputs) -> Partitioned:
    compiled.bind(inputs)
    for _ in range(TRIGGERING_CALLS):
        compiled.run()
    return compiled


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Exporting and lowering do not take inference tensors: in no_grad, as a user's own script would."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        yield


class Partitioned(Compiled):
    """A callable with engines inside; `parts` are the graphs they are in. `flat`: it takes tensors, not arguments."""

    def __init__(
        self, function: Callable[..., object], parts: list[Any], switch: AbstractContextManager[Any] | None, flat: bool
    ) -> None:
        self._parts = parts
        self._flat = flat
        self._switches = ExitStack()
        # where parts stayed in torch, CUDA graphs need a module around the whole, and this is it
        self._function = self._switches.enter_context(switch) if switch is not None else function
        self._args: tuple[Any, ...] = ()
        self._kwargs: Mapping[str, Any] = {}
        self._outputs: object = None

    def bind(self, inputs: Inputs) -> None:
        self._args, self._kwargs = (inputs.tensors(), {}) if self._flat else (inputs.args, inputs.kwargs)

    def run(self) -> None:
        self._outputs = self._function(*self._args, **self._kwargs)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        from backends.calling import flatten_outputs

        return tuple(tensor.clone() for tensor in flatten_outputs(self._outputs))

    def placement(self) -> Placement | None:
        return coverage(self._parts, [] if self._flat else _graph_breaks())

    def compilations(self) -> int:
        from torch._dynamo.utils import counters

        return 0 if self._flat else int(counters["stats"]["unique_graphs"])

    def precision(self) -> Settings:
        engines = engines_of(self._parts)
        if not engines:
            return {}
        switches = engines[0].settings  # the same for all: those passed, and the library's defaults
        return {"tensorrt_tf32": not switches.disable_tf32, "tensorrt_fp32_acc": bool(switches.use_fp32_acc)}

    def settings(self) -> Settings:
        import torch_tensorrt

        engines = engines_of(self._parts)
        # built without details, an engine tells its layers' names and not what they compute in
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
    """What of `parts` runs in TensorRT, by the names the partitioner gives; None where a part is no graph."""
    if not all(hasattr(part, "graph") for part in parts):
        return None
    engines = len(engines_of(parts))
    left: Counter[str] = Counter()
    for part in parts:
        # at the top level too: all of the graph where it had no block worth an engine
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
    """The modules among the parts' children that are TensorRT engines."""
    graphs = (part for part in parts if hasattr(part, "named_children"))
    return [child for part in graphs for name, child in part.named_children() if ENGINE in name]


def _operators(graph: Any) -> Iterator[str]:
    """The work in a graph's own nodes; taking an item out of a tuple is none."""
    for node in graph.graph.nodes:
        if node.op in ("call_function", "call_method") and node.target is not operator.getitem:
            yield str(node.target)


def _graph_breaks() -> list[str]:
    from torch._dynamo.utils import counters

    return [f"graph break: {str(reason).strip().partition(chr(10))[0]}"[:300] for reason in counters["graph_break"]]


def _version_matches_torch() -> Availability:
    """Torch-TensorRT is linked against one minor version of torch, and another one can crash at import."""
    import torch

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
    return YES


def _requirement() -> str:
    import torch

    major, minor = _minor(torch.__version__)
    return f"'torch-tensorrt=={major}.{minor}.*'"


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
