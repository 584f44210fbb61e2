"""OpenVINO on the CPU, from torch.export, over memory shared with torch."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.backends import base, onnx_quantising, weight_only
from bakeoff.backends.base import Availability, BuildContext, Compiled, Settings
from bakeoff.backends.exporting import QUANTISED, export_onnx, exported_before, use_exportable_experts
from bakeoff.backends.openvino_profiling import Converted, RequestProfiler, converted_from_onnx, noting_modules
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import OpenAxes, exported, lowest_and_highest
from bakeoff.backends.runtime import openvino as runtime
from bakeoff.backends.standalone import CppRuntime, Names, Runtime, ScriptPart, TritonBackend, literal
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import openvino, torch
from bakeoff.models.unwrapping import is_scripted
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent, Placement

PRECISION_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16", Precision.INT8: "f32"}
"""Without a hint OpenVINO computes a float32 model in bfloat16 on CPUs that have it. For int8 the hint applies to the
layers that are not quantised."""

INPUTS_PER_SCALE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""The property that rounds inputs of products with rounded weights. 0 is off; OpenVINO's default depends on the CPU."""

LINES = """\
with torch.no_grad():
    converted = openvino.convert_model(torch.export.export(model, inputs))
converted.reshape({{index: list(tensor.shape) for index, tensor in enumerate(inputs)}})
compiled = openvino.Core().compile_model(converted, "CPU", {properties})
call = partial(compiled, [{array} for tensor in inputs])"""

BF16_ARRAY = (
    "openvino.Tensor(tensor.view(torch.int16).numpy(), openvino.Shape(list(tensor.shape)), openvino.Type.bf16)"
    " if tensor.dtype is torch.bfloat16 else tensor.numpy()"
)

BYTES = (("Const", "i8"), ("Const", "u8"))
MULTIPLYING = ("FullyConnected", "Convolution", "MatMul")
"""Layer types that a quantised layer can have in the runtime model."""


class OpenVINO(base.Backend):
    name = "openvino"
    takes_complex = False
    description = "OpenVINO on the CPU, converted from torch.export (int8: from quantised ONNX), latency hint"
    devices = ("cpu",)
    usual_build_s = 5.0
    colour = "#56b4e9"
    quantises = True
    takes_onnx = True
    takes_ranges = True
    modes = (
        base.Mode(options={"PERFORMANCE_HINT": "LATENCY"}, worth_trying=base.Suits("cpu")),
        base.int8_products({"PERFORMANCE_HINT": "LATENCY", INPUTS_PER_SCALE: "32"}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "openvino", "nncf")
    module: ClassVar[str] = "openvino"
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(
        instance="stream with a request of its own", options={"hint": ("LATENCY", "THROUGHPUT")}
    )

    def available(self, device: Device) -> Availability:
        if device.is_cuda:
            return Availability(f"OpenVINO runs on the CPU here, not on {device}")
        _keep_telemetry_out()
        if not (imports := base.installed("openvino", "pip install openvino", "openvino")):
            return imports
        if "CPU" not in openvino.Core().available_devices:
            return Availability(f"openvino {openvino.__version__} finds no CPU plugin")
        return base.AVAILABLE

    def reason_against(self, cell: Cell) -> str:
        if cell.precision.products not in PRECISION_HINTS:
            return f"OpenVINO does not compute in {cell.precision} on the CPU"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        properties = {"INFERENCE_PRECISION_HINT": PRECISION_HINTS[cell.precision.products], **self._options(cell)}
        array = BF16_ARRAY if cell.precision is Precision.BF16 else "tensor.numpy()"
        return ScriptPart(LINES.format(properties=literal(properties), array=array), ("import openvino",))

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> Mapping[str, object]:
        return {"options": self._options(cell), "hint": PRECISION_HINTS[cell.precision.products]}

    def _options(self, cell: Cell) -> Mapping[str, object]:
        unrounded = {INPUTS_PER_SCALE: "0"} if cell.precision.is_weight_only else {}
        return {**unrounded, **self.mode(cell.mode).options}

    def runtime(self, device: Device) -> Runtime:
        return Runtime(
            ("int8.onnx", "model.xml", "model.onnx"),
            ("openvino", "numpy"),
            ("openvino",),
            loader="openvino:load",
            binds_outputs=True,
            triton=TRITON,
            cpp=CPP,
            holds_quantised=True,
        )

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        _keep_telemetry_out()
        precision = context.cell.precision
        core = openvino.Core()
        # asked for f16 on a CPU without it, OpenVINO takes bf16 silently
        capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision.products.upper() not in capabilities:
            raise Unavailable(
                f"this CPU computes in {', '.join(capabilities)}, says OpenVINO: not in {precision.products}"
            )
        if precision is Precision.INT8:
            purpose = "int8 starts from a model that ONNX Runtime quantised"
            base.require(purpose, "onnxscript onnxruntime", "onnxruntime.quantization.shape_inference", "onnxscript")
        if precision.is_weight_only:
            base.require("OpenVINO's weights are rounded by NNCF", "nncf", "nncf")
        hint = PRECISION_HINTS[precision.products]
        if precision.is_16_bit and context.kept_in_float32:
            hint = "dynamic"  # each operator in the type that the graph has there: any other hint is for all of them
        experts = use_exportable_experts(module)
        naming = noting_modules() if context.for_profile else contextlib.nullcontext(Converted())
        with context.phase("export"), naming as converted:  # or reading what was exported
            model, quantised = _converted(core, module, inputs, context)
        if precision is Precision.INT8 and context.for_profile:
            converted = converted_from_onnx(context.workspace / QUANTISED)
        options = {**self._options(context.cell), **_serving_options(context)}
        properties = runtime.properties(hint, context.threads, options)
        with context.phase("compile"):
            compiled = core.compile_model(model, "CPU", properties)
            request = BoundRequest(compiled, precision, quantised, experts, is_open=bool(context.open_axes))
            if context.for_profile:
                request.counted = core.compile_model(model, "CPU", {**properties, "PERF_COUNT": True})
                request.converted = converted
        in_force = request.precision()["inference_precision_hint"]
        if in_force != hint:
            raise Unavailable(f"OpenVINO was asked for {hint} and took {in_force}")
        if precision is Precision.INT8 and not request.int8_layers():
            raise Unavailable("OpenVINO runs none of the quantised layers in int8 on this CPU")
        return request


def _keep_telemetry_out() -> None:
    """Have OpenVINO not report to Intel that it is used. It would fork this process for each import and conversion."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def _names_in(path: Path) -> Names:
    model = openvino.Core().read_model(path)
    return [port.any_name for port in model.inputs], [port.any_name for port in model.outputs]


TRITON = TritonBackend("openvino", names=_names_in, threads="INFERENCE_NUM_THREADS")
CPP = CppRuntime("openvino", "CMAKE_PREFIX_PATH", "import openvino.utils as utils; print(utils.get_cmake_path())")


def _serving_options(context: BuildContext) -> dict[str, str | int]:
    """Return the properties of a model that several requests use at the same time: a stream for each of them."""
    if context.serving is None:
        return {}
    instances = context.serving.instances
    return {
        "INFERENCE_NUM_THREADS": instances * context.threads,
        "NUM_STREAMS": instances,
        "PERFORMANCE_HINT": context.serving.options.get("hint", "LATENCY"),
    }


def _converted(core: Any, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> tuple[Any, Settings]:
    """Return the module as an OpenVINO model with static shapes, and how many of its layers were quantised. A process
    that starts warm reads what the first one left."""
    from bakeoff.backends.calling import FlatModule, as_called, plain_tensors
    from bakeoff.models.onnx_module import OnnxModule

    if context.cell.precision is Precision.INT8:
        quantised = exported_before(context.workspace)
        if quantised is None:
            in_float = export_onnx(module, inputs, context.workspace)
            quantised = onnx_quantising.static_onnx(
                in_float, context.calibration, context.workspace, kept=context.kept_in_float32
            )
        return core.read_model(quantised.path), onnx_quantising.onnx_layers(quantised, Precision.INT8)
    path, precision = context.workspace / "model.xml", context.cell.precision
    if path.exists():
        model = core.read_model(path)
        return model, weight_only.openvino_layers(model, precision) if precision.is_weight_only else {}
    axes = context.open_axes
    if isinstance(module, OnnxModule):
        model = core.read_model(export_onnx(module, inputs, context.workspace, axes=axes).path)
        if axes:
            model.reshape(_shapes(inputs, axes))
        return _with_rounded_weights(model, precision)
    with plain_tensors():
        if is_scripted(module):
            flat, tensors = FlatModule(module, inputs), as_called(inputs)
            traced: Any = torch.jit.trace(flat, tensors, check_trace=False)  # type: ignore[no-untyped-call]
            model = openvino.convert_model(traced, example_input=tensors)
        else:
            model = _from_torch_export(module, inputs, axes)
    model.reshape(_shapes(inputs, axes))
    model, layers = _with_rounded_weights(model, precision)
    openvino.save_model(model, path, compress_to_fp16=False)
    return model, layers


def _from_torch_export(module: torch.nn.Module, inputs: Inputs, axes: OpenAxes) -> Any:
    """Return the module as an OpenVINO model. OpenVINO converts no program that returns a tensor twice, so repeated
    outputs are added afterwards."""
    program = exported(module, inputs, axes)
    names = list(program.graph_signature.user_outputs)
    distinct = list(dict.fromkeys(names))
    if len(distinct) == len(names):
        return openvino.convert_model(program)
    model = openvino.convert_model(exported(module, inputs, axes, kept=[names.index(name) for name in distinct]))
    sources = [result.input_value(0) for result in model.get_results()]
    return openvino.Model([sources[distinct.index(name)] for name in names], model.get_parameters(), "model")


def _with_rounded_weights(model: Any, precision: Precision) -> tuple[Any, Settings]:
    if not precision.is_weight_only:
        return model, {}
    rounded = weight_only.openvino_weights(model, precision)
    return rounded, weight_only.openvino_layers(rounded, precision)


def _shapes(inputs: Inputs, axes: OpenAxes) -> dict[int, Any]:
    shapes = {}
    for index, tensor in enumerate(inputs.tensors()):
        ends = zip(*lowest_and_highest(axes, index, tensor.shape), strict=True)
        shapes[index] = openvino.PartialShape([openvino.Dimension(low, high) for low, high in ends])
    return shapes


class BoundRequest(Compiled):
    """An inference request that reads and writes the memory of torch tensors. Outputs go to OpenVINO's own memory if
    the model `is_open`, or if the values in the inputs decide their size."""

    def __init__(
        self, compiled: Any, precision: Precision, quantised: Settings, changed: Settings, is_open: bool = False
    ) -> None:
        self._compiled = compiled
        self._precision = precision
        self._quantised = quantised
        self._changed = changed
        self.counted: Any = None  # the same with performance counters, if the build will be profiled
        self.converted = Converted()  # what is known of torch's graph, for a profile
        self._is_open = is_open
        self._buffers: dict[int, torch.Tensor] = {}
        self._bound: list[Any] = []
        for index, port in enumerate([] if is_open else compiled.outputs):
            if port.partial_shape.is_static:
                self._buffers[index] = torch.empty(tuple(port.shape), dtype=_torch_type(port.element_type))
        arrays = {index: _array(buffer) for index, buffer in self._buffers.items()}
        self._request: Any = runtime.BoundRequest(compiled, arrays)
        self._infer = self._request.request.infer

    def bind(self, inputs: Inputs) -> None:
        self._bound = [_array(tensor.contiguous()) for tensor in inputs.tensors()]
        self._request.bind(self._bound)

    def run(self) -> None:
        self._infer(share_outputs=True)  # as `BoundRequest.run` does, without another call in between

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(
            self._buffers[index].clone() if index in self._buffers else _copied(tensor)
            for index, tensor in enumerate(self._request.request.output_tensors)
        )

    def instance(self) -> Compiled:
        return BoundRequest(self._compiled, self._precision, self._quantised, self._changed, self._is_open)

    def profiler(self, module: torch.nn.Module) -> Profiler:
        return RequestProfiler(self.counted, self._bind_as_here, self.converted)

    def _bind_as_here(self, request: Any) -> None:
        runtime.bind(request, self._bound)
        for index, buffer in self._buffers.items():
            request.set_output_tensor(index, runtime.shared(_array(buffer)))

    def placement(self) -> Placement:
        return Placement(extent=Extent.FULL, engines={f"CPU {name}": count for name, count in self._nodes().items()})

    def precision(self) -> Settings:
        hint = _plain(self._compiled.get_property("INFERENCE_PRECISION_HINT"))
        nodes = {f"nodes in {name}": count for name, count in self._nodes().items()}
        ran: Settings = {}
        if self._precision is Precision.INT8:
            ran["layers run in int8"] = self.int8_layers()
        elif self._precision.is_weight_only:
            ran[INPUTS_PER_SCALE.lower()] = _plain(self._compiled.get_property(INPUTS_PER_SCALE))
        return {"inference_precision_hint": hint, **nodes, **self._quantised, **ran}

    def int8_layers(self) -> int:
        layers = 0
        for node in self._compiled.get_runtime_model().get_ops():
            kind, name = _kind(node)
            if kind in MULTIPLYING:
                layers += name in ("i8", "u8")
            # on some CPUs one node has several layers, whose weights are bytes where the CPU multiplies bytes
            elif kind == "Subgraph":
                constants = [port.get_node() for port in node.input_values() if _kind(port.get_node()) in BYTES]
                layers += sum(len(constant.get_output_shape(0)) >= 2 for constant in constants)
        return layers

    def settings(self) -> Settings:
        names = ("EXECUTION_DEVICES", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT")
        return {name.lower(): _plain(self._compiled.get_property(name)) for name in names} | self._changed

    def _nodes(self) -> Counter[str]:
        kinds = map(_kind, self._compiled.get_runtime_model().get_ops())
        return Counter(name for kind, name in kinds if kind not in ("Const", "Input", "Output"))

    def close(self) -> None:
        self._bound = []
        self._request = self._infer = None
        self._compiled = None


def _kind(node: Any) -> tuple[str, str]:
    info = node.get_rt_info()
    return info["layerType"].astype(str), info["runtimePrecision"].astype(str)


def _plain(value: Any) -> str | int:
    if isinstance(value, list):
        return ", ".join(str(element) for element in value)
    if isinstance(value, int):
        return value
    return value.get_type_name() if hasattr(value, "get_type_name") else str(getattr(value, "name", value))


def _array(tensor: torch.Tensor) -> Any:
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _copied(tensor: Any) -> torch.Tensor:
    copy = torch.empty(tuple(tensor.shape), dtype=_torch_type(tensor.element_type))
    tensor.copy_to(runtime.shared(_array(copy)))
    return copy


def _torch_type(element_type: Any) -> torch.dtype:
    types = {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "i64": torch.int64,
        "i32": torch.int32,
        "i16": torch.int16,
        "i8": torch.int8,
        "u8": torch.uint8,
        "boolean": torch.bool,
    }
    name = element_type.get_type_name()
    if name not in types:
        raise BakeoffError(f"torch has no type for OpenVINO's {name}")
    return types[name]
