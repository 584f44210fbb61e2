"""TensorRT: an engine built ahead of time from ONNX, run over the memory of torch tensors.

Written for TensorRT 10 (from 10.13) and 11. TensorRT 11 has no weak typing and no flags for precision any more. So in
both versions the network is strongly typed, and the graph has the precision: the module has it already, or is quantised
in ONNX. The only switch is TF32.
"""
# If TensorRT is not installed, mypy takes its ILogger for Any.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bakeoff.backends import cuda_graph
from bakeoff.backends.base import (
    AVAILABLE,
    CUDA_GRAPH,
    DEFAULT,
    AheadOfTime,
    Availability,
    BuildContext,
    Compiled,
    Mode,
    Settings,
    Suits,
)
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import OnnxModel, export_onnx, exported_before
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import lowest_and_highest, of_tensor
from bakeoff.backends.tensorrt_profiling import LayerProfiler
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unsupported, first_line
from bakeoff.records.frozen import Frozen
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import tensorrt as trt
    import torch

    from bakeoff.models.base import Inputs

OLDEST, TOO_NEW = (10, 13), (12, 0)
"""This file is checked against the API of versions from the first, and below the second."""
REMEDY = "pip install 'tensorrt>=10.13,<12'"

ENGINE, TIMING_CACHE, MANIFEST = "model.engine", "timing.cache", "engine.json"
"""Files that `package` leaves in the workspace, beside the exported graph."""


class TensorRT(AheadOfTime):
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
    modes = (
        Mode(worth_trying=Suits("cuda")),
        Mode(CUDA_GRAPH, worth_trying=Suits("cuda"), captures=True, built_as=DEFAULT),
        Mode("opt-5", {"builder_optimization_level": 5}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "tensorrt")
    module: ClassVar[str] = "tensorrt"
    caveat = "Bakeoff's authors never ran this backend on real TensorRT: it was only held against TensorRT's Python API"

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

    def package(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> None:
        import tensorrt  # noqa: F401 - before the phases, which do not time imports

        with context.phase("export"):
            exported = export_onnx(module, inputs, context.workspace, axes=context.open_axes)
            if context.cell.precision is Precision.INT8:
                from bakeoff.backends.onnx_quantising import static_onnx

                exported = static_onnx(
                    exported, context.calibration, context.workspace, symmetric=True, kept=context.kept_in_float32
                )
        with context.phase("compile"):
            write_engine(exported, context, [tuple(tensor.shape) for tensor in inputs.tensors()])

    def load(self, inputs: Inputs, context: BuildContext) -> Compiled:
        import tensorrt  # noqa: F401 - before the phases, which do not time imports

        with context.phase("load"):
            engine = Engine(context.workspace, context.cell.device, self.stream_handle, bool(context.open_axes))
        return cuda_graph.capture(engine, inputs, context) if context.cell.mode == CUDA_GRAPH else engine

    def stream_handle(self) -> int:
        """Return the current CUDA stream in the form that TensorRT takes."""
        import torch

        return int(torch.cuda.current_stream().cuda_stream)


def library_available() -> Availability:
    """Return whether a TensorRT is installed that this backend was written for."""
    try:
        import tensorrt as trt
    except (ImportError, OSError) as error:  # tensorrt opens its libraries itself, which raises OSError
        return Availability(f"tensorrt does not import ({first_line(error)}): {REMEDY}")
    if not OLDEST <= _version(trt.__version__) < TOO_NEW:
        return Availability(f"TensorRT {trt.__version__} is not one that this backend was written for: {REMEDY}")
    return AVAILABLE


class Manifest(Frozen):
    """Facts about an engine that it does not report itself.

    Its tensors have the ONNX graph's names, but not the graph's order (github.com/pytorch/TensorRT, pull 1646).
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    tf32: bool
    builder_optimization_level: int


class Complaints:
    """The last errors that TensorRT logged. Its functions return None or False, and only its log says why."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)

    def failure(self, what: str, *reasons: str) -> Exception:
        """Return an error of one line that says what failed, and why: from `reasons`, or else from the log."""
        why = "; ".join(reasons or self.errors) or "TensorRT logged no error"
        message = " ".join(f"{what}: {why}".split())
        # by the error's type the harness sees that a cell ran out of memory
        return MemoryError(message) if re.search("out ?of ?memory", message, re.IGNORECASE) else BakeoffError(message)

    @contextmanager
    def explain(self, what: str) -> Iterator[None]:
        """Say why a constructor failed. The bindings raise only TypeError if the library returned nothing."""
        try:
            yield
        except TypeError as error:
            raise self.failure(what, *self.errors, first_line(error)) from error


def logger_for(complaints: Complaints) -> trt.ILogger:
    """Return a logger that keeps TensorRT's errors, and sends errors and warnings to the process's log."""
    import tensorrt as trt

    log = logging.getLogger("tensorrt")

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                complaints.errors.append(msg)
                log.error(msg)
            elif severity == trt.ILogger.WARNING:
                log.warning(msg)

    return Logger()


def write_engine(exported: OnnxModel, context: BuildContext, shapes: Sequence[tuple[int, ...]] = ()) -> None:
    """Build an engine from ONNX into the workspace. Raise BakeoffError or MemoryError with TensorRT's words.

    With open axes, it is tuned for inputs of these `shapes`.
    """
    import tensorrt as trt

    complaints = Complaints()
    logger = logger_for(complaints)
    trt.init_libnvinfer_plugins(logger, "")
    with complaints.explain("TensorRT made no builder"):
        builder = trt.Builder(logger)
    # TensorRT 11 is always strongly typed, and ignores the flag
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    # parse the file, so that weights in a file beside it are found
    if not parser.parse_from_file(str(exported.path)):
        reasons = [_told(parser.get_error(index)) for index in range(parser.num_errors)]
        raise complaints.failure("TensorRT's ONNX parser refused the graph", *reasons)
    config = _config(builder, context)
    if context.open_axes:
        _add_profile(builder, config, dict(zip(exported.input_names, shapes, strict=True)), context, complaints)
    cache = _timing_cache(config, context.workspace / TIMING_CACHE, complaints)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise complaints.failure("TensorRT built no engine")
    (context.workspace / ENGINE).write_bytes(plan)
    (context.workspace / TIMING_CACHE).write_bytes(cache.serialize())
    manifest = Manifest(
        input_names=exported.input_names,
        output_names=exported.output_names,
        tf32=config.get_flag(trt.BuilderFlag.TF32),
        builder_optimization_level=config.builder_optimization_level,
    )
    (context.workspace / MANIFEST).write_text(manifest.model_dump_json())


def _config(builder: trt.Builder, context: BuildContext) -> trt.IBuilderConfig:
    import tensorrt as trt

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
    complaints: Complaints,
) -> None:
    """Tell the builder which shapes the engine must take, and which ones it is tuned for."""
    profile = builder.create_optimization_profile()
    axes = context.open_axes
    for place, (name, shape) in enumerate(shapes.items()):
        if of_tensor(axes, place):
            low, high = lowest_and_highest(axes, place, shape)
            profile.set_shape(name, low, shape, high)
    if config.add_optimization_profile(profile) < 0:
        raise complaints.failure("TensorRT took no optimisation profile")


def _timing_cache(config: trt.IBuilderConfig, path: Path, complaints: Complaints) -> trt.ITimingCache:
    """Set and return the cell's own timing cache, which is empty unless `path` exists. No cell shortens another's
    build."""
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise complaints.failure("TensorRT took no timing cache")
    return cache


class Engine(Compiled):
    """An execution context that reads and writes the memory of torch tensors on `device`, in the stream of each call.

    Inputs are bound as they are. Outputs are allocated once for inputs of one shape, as the engine says. The log, the
    runtime and the engine live until `close`.
    """

    def __init__(self, folder: Path, device: Device, stream_handle: Callable[[], int], is_open: bool = False) -> None:
        import tensorrt as trt
        import torch

        self._stream_handle = stream_handle
        self._folder = folder
        self._manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        self._complaints = Complaints()
        self._logger = logger_for(self._complaints)
        trt.init_libnvinfer_plugins(self._logger, "")
        with self._complaints.explain("TensorRT made no runtime"):
            self._runtime = trt.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine((folder / ENGINE).read_bytes())
        if engine is None:
            raise self._complaints.failure("TensorRT could not read its engine back")
        self._engine = engine
        execution = engine.create_execution_context()
        if execution is None:
            raise self._complaints.failure("TensorRT made no execution context")
        self._context = execution
        names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        for name in names:
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise BakeoffError(f"TensorRT wants tensor '{name}' in host memory, which this backend does not bind")
        if missing := [name for name in self._manifest.output_names if name not in names]:
            raise BakeoffError(f"the engine has no output {', '.join(missing)}")
        # None stands for an input that nothing reads, since the engine may not have it
        self._inputs = tuple(self._wanted(name) if name in names else None for name in self._manifest.input_names)
        self._device = torch.device(device)
        self._bound: tuple[torch.Tensor, ...] = ()
        self._buffers: tuple[torch.Tensor, ...] = ()
        self._allocated: dict[tuple[tuple[int, ...], ...], tuple[torch.Tensor, ...]] = {}
        self._is_open = is_open
        if not is_open:
            self._bind_outputs(())

    def bind(self, inputs: Inputs) -> None:
        tensors = tuple(tensor.contiguous() for tensor in inputs.tensors())
        for name, wanted, tensor in zip(self._manifest.input_names, self._inputs, tensors, strict=True):
            if wanted is None:
                continue
            shape = tuple(tensor.shape)
            if not _fits(shape, wanted[0]) or tensor.dtype != wanted[1]:
                raise BakeoffError(f"input '{name}' is {tensor.dtype} {shape}, the engine takes {wanted}")
            if self._is_open and not self._context.set_input_shape(name, shape):
                raise self._complaints.failure(f"TensorRT did not take the shape {shape} of input '{name}'")
            self._set_address(name, tensor)
        if self._is_open:
            self._bind_outputs(tuple(tuple(tensor.shape) for tensor in tensors))
        self._bound = tensors  # TensorRT holds only their addresses

    def run(self) -> None:
        if not self._context.execute_async_v3(self._stream_handle()):
            raise self._complaints.failure("TensorRT enqueued nothing")

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(buffer.clone() for buffer in self._buffers)

    def placement(self) -> Placement:
        """Return a full placement: TensorRT has nothing to fall back to, and would have failed to build."""
        engines = {f"TensorRT {dtype}".strip(): count for dtype, count in self._layer_types().items()}
        return Placement(extent=Extent.FULL, engines=engines, evidence=["TensorRT's engine inspector"])

    def profiler(self, module: torch.nn.Module) -> Profiler | None:
        exported = exported_before(self._folder)
        if exported is None:
            return None
        return LayerProfiler(self._context, self._run_to_end, self._information(), exported.path)

    def _run_to_end(self) -> None:
        import torch

        self.run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def precision(self) -> Settings:
        types = [f"{dtype or 'unknown'} ({count})" for dtype, count in self._layer_types().most_common()]
        return {"tensorrt_tf32": self._manifest.tf32, "tensorrt_layers": ", ".join(types)}

    def settings(self) -> Settings:
        import tensorrt as trt

        return {
            "tensorrt_version": str(trt.__version__),
            "builder_optimization_level": self._manifest.builder_optimization_level,
            "timing_cache": "the cell's own, empty before the build",
        }

    def close(self) -> None:
        self._bound = ()
        # free each object before the one that it depends on; a second call finds nothing to free
        for held in ("_context", "_engine", "_runtime", "_logger"):
            vars(self).pop(held, None)
        self._buffers = ()
        self._allocated.clear()

    def _bind_outputs(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Bind outputs, whose shapes follow from those of the inputs if the engine leaves axes open."""
        import torch

        if shapes not in self._allocated:
            buffers = []
            for name in self._manifest.output_names:
                shape, dtype = self._wanted(name)
                if self._is_open:
                    shape = tuple(self._context.get_tensor_shape(name))
                if any(size < 0 for size in shape):
                    raise Unsupported(
                        f"output '{name}' has no static shape ({shape}): values in the inputs decide its size, "
                        "and here TensorRT writes to memory of one size"
                    )
                buffers.append(torch.empty(shape, dtype=dtype, device=self._device))
            self._allocated[shapes] = tuple(buffers)
        self._buffers = self._allocated[shapes]
        for name, buffer in zip(self._manifest.output_names, self._buffers, strict=True):
            self._set_address(name, buffer)

    def _wanted(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        return tuple(self._engine.get_tensor_shape(name)), torch_type(self._engine.get_tensor_dtype(name))

    def _set_address(self, name: str, tensor: torch.Tensor) -> None:
        if not self._context.set_tensor_address(name, tensor.data_ptr()):
            raise self._complaints.failure(f"TensorRT did not take the address of tensor '{name}'")

    def _layer_types(self) -> Counter[str]:
        return layer_types(self._information()) or Counter({"": self._engine.num_layers})

    def _information(self) -> str:
        import tensorrt as trt

        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return True if the engine takes this shape: -1 stands for an open axis."""
    return len(shape) == len(wanted) and all(size in (own, -1) for own, size in zip(shape, wanted, strict=True))


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


def layer_types(information: str) -> Counter[str]:
    """Count an engine's layers by the type that they read, from the inspector's JSON; "" if a layer does not say.

    A layer counts under the type of its first input that has one, or else of its output. Return nothing if
    `information` is not JSON, since TensorRT does not escape what it quotes from the model.
    """
    try:
        layers = json.loads(information, strict=False).get("Layers", [])
    except ValueError:
        return Counter()
    return Counter(_layer_type(layer) for layer in layers)


def _layer_type(layer: Any) -> str:
    if not isinstance(layer, dict):  # the engine was built without details, so this is only a name
        return ""
    tensors = [*layer.get("Inputs", []), *layer.get("Outputs", [])]
    formats = [str(tensor.get("Format/Datatype", "")).lower() for tensor in tensors]
    known = (ours for text in formats for ours, words in TYPE_NAMES.items() if any(word in text for word in words))
    return next(known, "")


def torch_type(dtype: trt.DataType) -> torch.dtype:
    """Return the torch type of a TensorRT type. Raise BakeoffError if torch has none."""
    import tensorrt as trt
    import torch

    types = {
        trt.DataType.FLOAT: torch.float32,
        trt.DataType.HALF: torch.float16,
        trt.DataType.BF16: torch.bfloat16,
        trt.DataType.INT8: torch.int8,
        trt.DataType.UINT8: torch.uint8,
        trt.DataType.INT32: torch.int32,
        trt.DataType.INT64: torch.int64,
        trt.DataType.BOOL: torch.bool,
    }
    if dtype not in types:
        raise BakeoffError(f"torch has no type for TensorRT's {dtype.name}")
    return types[dtype]


def _told(error: trt.ParserError) -> str:
    return f"{error.node_operator()} {error.node_name()}: {error.desc()}".strip(" :")


def _version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
