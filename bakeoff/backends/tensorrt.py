"""TensorRT: an engine built ahead of time from ONNX, run over the memory of torch tensors.

It supports TensorRT 8.6 to 11. The network is strongly typed, and the graph has the precision: the module has it
already, or is quantised in ONNX. The only switch is TF32. TensorRT 8.6 has no strong typing, so that its flags and its
layers are set to the types of the graph (`bakeoff.backends.tensorrt_8`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.backends import base, cuda_graph, tensorrt_8
from bakeoff.backends.base import Availability, BuildContext, Compiled, Mode, Settings
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import OnnxModel, export_onnx, exported_before
from bakeoff.backends.onnx_quantising import static_onnx
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import lowest_and_highest, of_tensor
from bakeoff.backends.runtime import tensorrt as runtime
from bakeoff.backends.runtime.onnx import ELEMENTS
from bakeoff.backends.standalone import Names, Runtime, ScriptPart, Threads, TritonBackend
from bakeoff.backends.tensorrt_profiling import LayerProfiler, layers_in
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import onnx, torch, trt
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError, first_line
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent, Placement

OLDEST, TOO_NEW = (8, 6), (12, 0)
"""This backend was written for versions from the first, and below the second."""
REMEDY = "pip install 'tensorrt>=10.13,<12'"

LINES = """\
logger = tensorrt.Logger(tensorrt.Logger.WARNING)
tensorrt.init_libnvinfer_plugins(logger, "")
builder = tensorrt.Builder(logger)
network = builder.create_network(1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = tensorrt.OnnxParser(network, logger)
with torch.no_grad(), TemporaryDirectory() as folder:
    torch.onnx.export(model, inputs, f"{{folder}}/model.onnx", dynamo=True, verbose=False)
    assert parser.parse_from_file(f"{{folder}}/model.onnx"), parser.get_error(0).desc()
config = builder.create_builder_config()
config.{tf32}_flag(tensorrt.BuilderFlag.TF32){level}
engine = tensorrt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
call = engine.create_execution_context"""

TIMING_CACHE = "timing.cache"
"""A file that `package` leaves in the workspace, beside the exported graph and the engine."""


def _names_in(path: Path) -> Names:
    """Return the names of an engine's tensors. Raise UsageError if the server would pass it another type."""
    manifest = runtime.Manifest.read(path.parent)
    if manifest.narrowed:
        raise UsageError(
            f"TensorRT before 10 has no int64, and this engine takes int32 as {', '.join(manifest.narrowed)}: Triton "
            "casts no inputs"
        )
    return manifest.input_names, manifest.output_names


class TensorRT(base.AheadOfTime):
    name = "tensorrt"
    takes_complex = False
    description = "TensorRT engine built from the torch.export-based ONNX exporter"
    devices = ("cuda",)
    usual_build_s = 60.0
    colour = "#009e73"
    quantises = True
    takes_onnx = True
    profiles_artefact = True
    takes_ranges = True
    shared_phases = ("export", "compile")
    tunes_beside_builds = True
    tunes_late = True
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="execution context")
    modes = (
        Mode(worth_trying=base.Suits("cuda")),
        Mode(base.CUDA_GRAPH, worth_trying=base.Suits("cuda"), captures=True, built_as=base.DEFAULT),
        Mode("opt-5", {"builder_optimization_level": 5}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "tensorrt")
    module: ClassVar[str] = "tensorrt"

    def available(self, device: Device) -> Availability:
        if not device.is_cuda:
            return Availability(f"TensorRT runs on NVIDIA GPUs, and {device} is none")
        return library_available() and torch_available(device)

    def reason_against(self, cell: Cell) -> str:
        if cell.precision is Precision.FP8:
            return "TensorRT takes FP8 from a graph quantised to it, and nothing here makes one"
        if cell.precision.is_weight_only:
            return f"TensorRT takes {cell.precision} from a graph with rounded weights, and nothing makes one"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        level = self.mode(cell.mode).options.get("builder_optimization_level")
        lines = LINES.format(
            tf32="set" if cell.precision.allows_tf32 else "clear",
            level="" if level is None else f"\nconfig.builder_optimization_level = {level}",
        )
        return ScriptPart(lines, ("from tempfile import TemporaryDirectory", "import tensorrt"))

    def runtime(self, device: Device) -> Runtime:
        return Runtime(
            (runtime.ENGINE,),
            ("tensorrt", "torch", "numpy"),
            ("tensorrt", "torch"),
            loader="tensorrt:load",
            binds_outputs=True,
            threads=Threads.TURNS,
            triton=TritonBackend("tensorrt", names=_names_in),
            note="It loads with the same version of TensorRT on the same kind of GPU: build it again for another one.",
            holds_quantised=True,
        )

    def package(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> None:
        import tensorrt  # before the phases, which do not time imports

        opset = tensorrt_8.OPSET if is_weakly_typed(tensorrt) else None
        with context.phase("export"):
            exported = export_onnx(module, inputs, context.workspace, opset, axes=context.open_axes)
            if context.cell.precision is Precision.INT8:
                exported = static_onnx(
                    exported, context.calibration, context.workspace, symmetric=True, kept=context.kept_in_float32
                )
        context.await_quiet()
        with context.phase("compile"):
            write_engine(exported, context, [tuple(tensor.shape) for tensor in inputs.tensors()])

    def load(self, inputs: Inputs, context: BuildContext) -> Compiled:
        import tensorrt  # noqa: F401 - before the phases, which do not time imports

        with context.phase("load"):
            engine = runtime.Engine(context.workspace, str(context.cell.device))
            execution = BoundEngine(engine, context.workspace)
        return cuda_graph.capture(execution, inputs, context) if context.cell.mode == base.CUDA_GRAPH else execution


def is_weakly_typed(tensorrt: Any) -> bool:
    return not hasattr(tensorrt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def library_available() -> Availability:
    try:
        import tensorrt as trt
    except (ImportError, OSError) as error:  # tensorrt opens its libraries itself, which raises OSError
        return Availability(f"tensorrt does not import ({first_line(error)}): {REMEDY}")
    version = tuple(int(number) for number in re.findall(r"\d+", trt.__version__)[:2])
    if not OLDEST <= version < TOO_NEW:
        return Availability(f"TensorRT {trt.__version__} is not one that this backend was written for: {REMEDY}")
    return base.AVAILABLE


def write_engine(exported: OnnxModel, context: BuildContext, shapes: Sequence[tuple[int, ...]] = ()) -> None:
    """Build an engine from ONNX into the workspace; with open axes, tune it for inputs of these `shapes`. Raise
    BakeoffError or MemoryError with TensorRT's words."""
    complaints = runtime.Complaints()
    logger = runtime.logger_for(complaints)
    trt.init_libnvinfer_plugins(logger, "")
    with complaints.explain("TensorRT made no builder"):
        builder = trt.Builder(logger)
    weakly_typed = is_weakly_typed(trt)
    if weakly_typed:
        network = tensorrt_8.create_network(builder)
    else:  # TensorRT 11 is always strongly typed, and ignores the flag
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    # parse the file, so that weights in a file beside it are found
    if not parser.parse_from_file(str(exported.path)):
        reasons = [_reason_of(parser.get_error(index)) for index in range(parser.num_errors)]
        raise complaints.failure("TensorRT's ONNX parser refused the graph", *reasons)
    config = _config(builder, context)
    if weakly_typed:
        tensorrt_8.keep_types(network, config, exported.path)
    if context.open_axes:
        _add_profile(builder, config, dict(zip(exported.input_names, shapes, strict=True)), context, complaints)
    # The cell's own, which is empty unless the file exists: no cell shortens another's build.
    timing_cache = context.workspace / TIMING_CACHE
    cache = config.create_timing_cache(timing_cache.read_bytes() if timing_cache.exists() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise complaints.failure("TensorRT took no timing cache")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise complaints.failure("TensorRT built no engine")
    (context.workspace / runtime.ENGINE).write_bytes(plan)
    timing_cache.write_bytes(cache.serialize())
    runtime.Manifest(
        input_names=exported.input_names,
        output_names=exported.output_names,
        output_types=output_types(exported.path),
        narrowed=tensorrt_8.long_inputs(exported.path) if weakly_typed else (),
        tf32=config.get_flag(trt.BuilderFlag.TF32),
        builder_optimization_level=config.builder_optimization_level,
    ).write(context.workspace)


def _config(builder: trt.Builder, context: BuildContext) -> trt.IBuilderConfig:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # otherwise the inspector reports no types of layers
    # TF32 is on by default, and float32 layers would multiply with ten bits of mantissa
    if context.cell.precision.allows_tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    level = TensorRT.mode(context.cell.mode).options.get("builder_optimization_level")
    if isinstance(level, int):
        config.builder_optimization_level = level
    return config


def _add_profile(
    builder: trt.Builder,
    config: trt.IBuilderConfig,
    shapes: Mapping[str, tuple[int, ...]],
    context: BuildContext,
    complaints: runtime.Complaints,
) -> None:
    profile = builder.create_optimization_profile()
    axes = context.open_axes
    for place, (name, shape) in enumerate(shapes.items()):
        if of_tensor(axes, place):
            low, high = lowest_and_highest(axes, place, shape)
            profile.set_shape(name, low, shape, high)
    if config.add_optimization_profile(profile) < 0:
        raise complaints.failure("TensorRT took no optimisation profile")


class BoundEngine(Compiled):
    """An engine with an execution context of its own, run in the stream of each call."""

    def __init__(self, engine: runtime.Engine, folder: Path, owns_engine: bool = True) -> None:
        self._engine, self._folder, self._owns_engine = engine, folder, owns_engine
        self._execution = runtime.Execution(engine)

    def bind(self, inputs: Inputs) -> None:
        self._execution.bind(inputs.tensors())

    def refresh(self) -> None:
        self._execution.refresh()

    def run(self) -> None:
        self._execution.enqueue(runtime.current_stream_handle(self._engine.device))

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(output.clone() for output in self.results())

    def results(self) -> list[torch.Tensor]:
        return self._execution.results()

    def instance(self) -> Compiled:
        return BoundEngine(self._engine, self._folder, owns_engine=False)

    def placement(self) -> Placement:
        """Return a full placement: TensorRT has nothing to fall back to, and would have failed to build."""
        engines = {f"TensorRT {dtype}".strip(): count for dtype, count in self._layer_types().items()}
        return Placement(extent=Extent.FULL, engines=engines, evidence=["TensorRT's engine inspector"])

    def profiler(self, module: torch.nn.Module) -> Profiler | None:
        exported = exported_before(self._folder)
        if exported is None:
            return None
        return LayerProfiler(self._execution.context, self._run_to_end, self._information(), exported.path)

    def _run_to_end(self) -> None:
        self.run()
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)

    def precision(self) -> Settings:
        types = [f"{dtype or 'unknown'} ({count})" for dtype, count in self._layer_types().most_common()]
        return {"tensorrt_tf32": self._engine.manifest.tf32, "tensorrt_layers": ", ".join(types)}

    def settings(self) -> Settings:
        manifest = self._engine.manifest
        settings: Settings = {
            "tensorrt_version": str(trt.__version__),
            "builder_optimization_level": manifest.builder_optimization_level,
            "timing_cache": "the cell's own, empty before the build",
        }
        if manifest.narrowed:
            settings["int64_inputs_cast_to_int32_before_calls"] = ", ".join(manifest.narrowed)
        return settings

    def close(self) -> None:
        self._execution.close()
        if self._owns_engine:
            self._engine.close()

    def _layer_types(self) -> Counter[str]:
        return layer_types(self._information()) or Counter({"": self._engine.engine.num_layers})

    def _information(self) -> str:
        inspector = self._engine.engine.create_engine_inspector()
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


TYPE_NAMES = {
    "bf16": ("bf16", "bfloat16"),
    "fp16": ("fp16", "half", "float16"),
    "fp8": ("fp8",),
    "fp4": ("fp4",),
    "uint8": ("uint8",),
    "int8": ("int8",),
    "int4": ("int4",),
    "int32": ("int32",),
    "int64": ("int64",),
    "bool": ("bool",),
    "fp32": ("fp32", "float"),
}
"""Our name of a type, and its names in TensorRT's `Format/Datatype`. A name that contains another one comes first."""


NOT_COMPUTED_IN = ("bool", "int32", "int64", "uint8")


def layer_types(information: str) -> Counter[str]:
    """Count an engine's layers by the type that they compute in, as the inspector's JSON says; "" stands for an
    unknown type."""
    return Counter(map(_layer_type, layers_in(information)))


def _layer_type(layer: Mapping[str, Any]) -> str:
    tensors = [*layer.get("Inputs", []), *layer.get("Outputs", [])]
    formats = [str(tensor.get("Format/Datatype", "")).lower() for tensor in tensors]
    named = (next((ours for ours, words in TYPE_NAMES.items() if any(map(text.count, words))), "") for text in formats)
    kinds = [kind for kind in named if kind]
    # a layer that takes indices, such as a whole network in one layer, computes in another type
    return next((kind for kind in kinds if kind not in NOT_COMPUTED_IN), kinds[0] if kinds else "")


def output_types(path: Path) -> tuple[str, ...]:
    names = {number: name for name, number in ELEMENTS.items()}
    graph = onnx.load(path, load_external_data=False).graph
    return tuple(names.get(value.type.tensor_type.elem_type, "float32") for value in graph.output)


def _reason_of(error: trt.ParserError) -> str:
    operator = getattr(error, "node_operator", None)  # since version 10
    named = f"{operator()} {error.node_name()}: " if operator else ""
    return f"{named}{error.desc()}".strip(" :")
