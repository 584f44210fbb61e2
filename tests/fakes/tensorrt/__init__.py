"""A fake of NVIDIA's `tensorrt`: the classes that backends/tensorrt.py uses, with ONNX Runtime as the engine.

Addresses are those of host memory. The fake copies the awkward parts of the real library. An engine's tensors come in
another order than the graph's, failures are None or False and a line in the log, and TF32 is on until cleared.

Unlike the real signatures, these say which results can be None, so mypy shows that the backend checks each of them.
tests/backends/test_tensorrt_api.py runs mypy, and compares every public name and signature with the real bindings.
Names that begin with an underscore belong to the fake only. What the fake does is changed in behaviour.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy
import onnx
import onnxruntime

from .behaviour import VERSION as _VERSION
from .behaviour import addresses as _addresses
from .behaviour import replaceable as _replaceable
from .behaviour import watch as _watch

if TYPE_CHECKING:
    import collections.abc

    import typing_extensions

__version__ = _VERSION

_FORMATS = {
    onnx.TensorProto.FLOAT: "Row major linear FP32 format",
    onnx.TensorProto.FLOAT16: "Half",
    onnx.TensorProto.INT8: "Int8",
    onnx.TensorProto.INT64: "Int64",
    onnx.TensorProto.BOOL: "Bool",
}


class _Enum:
    """The used part of a pybind11 enum: hashable members with a name and a number."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self._number = number

    def __int__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return self.name


class DataType(_Enum):
    FLOAT: ClassVar[DataType]
    HALF: ClassVar[DataType]
    BF16: ClassVar[DataType]
    INT8: ClassVar[DataType]
    UINT8: ClassVar[DataType]
    INT32: ClassVar[DataType]
    INT64: ClassVar[DataType]
    BOOL: ClassVar[DataType]


class BuilderFlag(_Enum):
    TF32: ClassVar[BuilderFlag]


class NetworkDefinitionCreationFlag(_Enum):
    STRONGLY_TYPED: ClassVar[NetworkDefinitionCreationFlag]


class ProfilingVerbosity(_Enum):
    LAYER_NAMES_ONLY: ClassVar[ProfilingVerbosity]
    DETAILED: ClassVar[ProfilingVerbosity]


class LayerInformationFormat(_Enum):
    JSON: ClassVar[LayerInformationFormat]


class TensorLocation(_Enum):
    DEVICE: ClassVar[TensorLocation]
    HOST: ClassVar[TensorLocation]


def _number_members() -> None:
    for kind in (
        DataType,
        BuilderFlag,
        NetworkDefinitionCreationFlag,
        ProfilingVerbosity,
        LayerInformationFormat,
        TensorLocation,
    ):
        for number, name in enumerate(kind.__annotations__):
            setattr(kind, name, kind(name, number))


_number_members()

_TYPES = {
    onnx.TensorProto.FLOAT: DataType.FLOAT,
    onnx.TensorProto.FLOAT16: DataType.HALF,
    onnx.TensorProto.INT8: DataType.INT8,
    onnx.TensorProto.UINT8: DataType.UINT8,
    onnx.TensorProto.INT32: DataType.INT32,
    onnx.TensorProto.INT64: DataType.INT64,
    onnx.TensorProto.BOOL: DataType.BOOL,
}


class _Made:
    """A class that only other objects create. Calling it is an error."""

    def __init__(self) -> None:
        raise TypeError("No constructor defined!")

    @classmethod
    def _make(cls) -> Self:
        made = cls.__new__(cls)
        _watch(made)
        return made


class ILogger:
    class Severity(_Enum):
        """The severity of a message. Lower is worse."""

    INTERNAL_ERROR: ClassVar[ILogger.Severity] = Severity("INTERNAL_ERROR", 0)
    ERROR: ClassVar[ILogger.Severity] = Severity("ERROR", 1)
    WARNING: ClassVar[ILogger.Severity] = Severity("WARNING", 2)
    INFO: ClassVar[ILogger.Severity] = Severity("INFO", 3)

    def __init__(self) -> None:
        self._constructed = True  # the bindings refuse a subclass that did not call this

    def log(self, severity: ILogger.Severity, msg: str) -> None:
        raise NotImplementedError


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    return _checked(logger) is not None


class IHostMemory(bytes):
    """Memory that supports the buffer protocol."""


class ITimingCache(_Made):
    def serialize(self) -> IHostMemory:
        return IHostMemory(b"timed: " + self._content)

    _content: bytes


class Dims(tuple[int, ...]):
    """A shape."""


class INetworkDefinition(_Made):
    _flags: int
    _model: Any


class IOptimizationProfile(_Made):
    def set_shape(
        self,
        input: str,
        min: Dims | collections.abc.Sequence[int],
        opt: Dims | collections.abc.Sequence[int],
        max: Dims | collections.abc.Sequence[int],
    ) -> None:
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))

    _shapes: dict[str, tuple[tuple[int, ...], ...]]


class IBuilderConfig(_Made):
    builder_optimization_level: int
    profiling_verbosity: ProfilingVerbosity

    def set_flag(self, flag: BuilderFlag) -> None:
        self._flags.add(flag)

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags.discard(flag)

    def get_flag(self, flag: BuilderFlag) -> bool:
        return flag in self._flags

    def create_timing_cache(self, serialized_timing_cache: typing_extensions.Buffer) -> ITimingCache | None:
        cache = ITimingCache._make()
        cache._content = bytes(serialized_timing_cache)
        return cache

    @_replaceable
    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        """Return its number, or -1 for a profile whose shapes do not rise."""
        self._profile = profile
        in_order = all(
            low <= best <= high for shapes in profile._shapes.values() for low, best, high in zip(*shapes, strict=True)
        )
        return 0 if in_order else -1

    @_replaceable
    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    _flags: set[BuilderFlag]
    _cache: ITimingCache
    _profile: IOptimizationProfile | None


class Builder:
    @_replaceable
    def __init__(self, logger: ILogger) -> None:
        self._logger = _checked(logger)

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        network = INetworkDefinition._make()
        network._flags = flags
        network._model = None
        return network

    def create_builder_config(self) -> IBuilderConfig:
        config = IBuilderConfig._make()
        config.builder_optimization_level = 3
        config.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        config._flags = {BuilderFlag.TF32}
        config._profile = None
        return config

    def create_optimization_profile(self) -> IOptimizationProfile:
        profile = IOptimizationProfile._make()
        profile._shapes = {}
        return profile

    @_replaceable
    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        """Return the ONNX model with its weights as the "engine", after a header for the inspector."""
        assert network._flags >> int(NetworkDefinitionCreationFlag.STRONGLY_TYPED) & 1
        shapes = config._profile._shapes if config._profile else {}
        for value in network._model.graph.input:
            if -1 in _shape_of(value) and value.name not in shapes:
                _complain(self._logger, f"Network has dynamic inputs, but no optimization profile for {value.name}")
                return None
        header = {"detailed": config.profiling_verbosity is ProfilingVerbosity.DETAILED, "profile": shapes}
        return IHostMemory(json.dumps(header).encode() + b"\n" + network._model.SerializeToString())


class ParserError(_Made):
    def desc(self) -> str:
        return self._description

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator

    _description: str
    _name: str
    _operator: str


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network
        self._logger = _checked(logger)
        self._errors: list[ParserError] = []

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        """Return False if ONNX Runtime has no kernel for a node."""
        loaded = onnx.load(model)
        for node in loaded.graph.node:
            if node.domain not in ("", "ai.onnx", "com.microsoft"):
                error = ParserError._make()
                error._description = f"Plugin not found, domain {node.domain}"
                error._name, error._operator = node.name, node.op_type
                self._errors.append(error)
        self._network._model = loaded
        return not self._errors


class IProfiler:
    def __init__(self) -> None:
        self._constructed = True  # as of a logger

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError


class IExecutionContext(_Made):
    enqueue_emits_profile: bool
    profiler: IProfiler | None

    @_replaceable
    def set_input_shape(self, name: str, shape: Dims | collections.abc.Sequence[int]) -> bool:
        low, _, high = self._engine._profile.get(name, (shape, shape, shape))
        if not all(least <= size <= most for least, size, most in zip(low, shape, high, strict=True)):
            return _complain(self._engine._logger, f"setInputShape: {shape} is outside of the profile of {name}")
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        """Return what follows from the shapes of the inputs, by a call with zeros."""
        if name in self._shapes:
            return Dims(self._shapes[name])
        told = {value.name: value for value in self._engine._session.get_inputs()}
        types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
        zeros = {
            each: numpy.zeros(self._shapes.get(each, value.shape), types[value.type]) for each, value in told.items()
        }
        return Dims(self._engine._session.run([name], zeros)[0].shape)

    @_replaceable
    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine._tensors:
            return _complain(self._engine._logger, f"setTensorAddress: no tensor {name}")
        self._addresses[name] = _addresses[name] = memory
        return True

    @_replaceable
    def execute_async_v3(self, stream_handle: int) -> bool:
        """Run at once, since host memory has no stream."""
        if missing := self._engine._tensors.keys() - self._addresses.keys():
            return _complain(self._engine._logger, f"enqueueV3: no address for {', '.join(sorted(missing))}")
        binding = self._engine._session.io_binding()
        for name, address in self._addresses.items():
            bind = binding.bind_input if name in self._engine._input_names else binding.bind_output
            tensor = self._engine._tensors[name]
            shape = self.get_tensor_shape(name) if self._shapes else self._engine.get_tensor_shape(name)
            bind(name, "cpu", 0, tensor.elem_type, list(shape), address)
        self._engine._session.run_with_iobinding(binding)
        if self.profiler is not None and self.enqueue_emits_profile:
            for node in self._engine._model.graph.node:
                self.profiler.report_layer_time(node.name, 0.01)
        return True

    _engine: ICudaEngine
    _addresses: dict[str, int]
    _shapes: dict[str, tuple[int, ...]]


class EngineInspector(_Made):
    @_replaceable
    def get_engine_information(self, format: LayerInformationFormat) -> str:
        assert format is LayerInformationFormat.JSON
        return json.dumps({"Layers": [self._engine._layer(node) for node in self._engine._model.graph.node]})

    _engine: ICudaEngine


class ICudaEngine(_Made):
    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_layers(self) -> int:
        return len(self._model.graph.node)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    @_replaceable
    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(size.dim_value if size.HasField("dim_value") else -1 for size in self._tensors[name].shape.dim)

    def get_tensor_dtype(self, name: str) -> DataType:
        return _TYPES[self._tensors[name].elem_type]

    @_replaceable
    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    @_replaceable
    def create_execution_context(self) -> IExecutionContext | None:
        context = IExecutionContext._make()
        context._engine = self
        context._addresses = {}
        context._shapes = {}
        context.enqueue_emits_profile = True
        context.profiler = None
        return context

    def create_engine_inspector(self) -> EngineInspector:
        inspector = EngineInspector._make()
        inspector._engine = self
        return inspector

    def _layer(self, node: Any) -> dict[str, Any] | str:
        if not self._detailed:
            return str(node.name)
        inferred = {value.name: value.type.tensor_type.elem_type for value in self._model.graph.value_info}
        inferred |= {name: tensor.elem_type for name, tensor in self._tensors.items()}
        inferred |= {tensor.name: tensor.data_type for tensor in self._model.graph.initializer}

        def described(names: list[str]) -> list[dict[str, str]]:
            known = [name for name in names if name in inferred]
            return [{"Name": name, "Format/Datatype": _FORMATS.get(inferred[name], "")} for name in known]

        return {
            "Name": node.name,
            "LayerType": node.op_type,
            "Metadata": f"[ONNX Layer: {node.name}]",
            "Inputs": described(node.input),
            "Outputs": described(node.output),
        }

    _detailed: bool
    _profile: dict[str, list[list[int]]]
    _logger: ILogger
    _model: Any
    _session: Any
    _input_names: set[str]
    _tensors: dict[str, Any]


class Runtime:
    @_replaceable
    def __init__(self, logger: ILogger) -> None:
        self._logger = _checked(logger)
        _watch(self)

    @_replaceable
    def deserialize_cuda_engine(self, serialized_engine: typing_extensions.Buffer) -> ICudaEngine | None:
        header, _, content = bytes(serialized_engine).partition(b"\n")
        try:
            model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content))
            told = json.loads(header)
        except Exception as error:
            _complain(self._logger, f"deserializeCudaEngine: magicTag does not match ({type(error).__name__})")
            return None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        engine = ICudaEngine._make()
        engine._detailed = told["detailed"]
        engine._profile = told["profile"]
        engine._logger = self._logger
        engine._model = model
        engine._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        engine._input_names = {value.name for value in model.graph.input}
        values = [*model.graph.input, *model.graph.output]
        engine._tensors = {value.name: value.type.tensor_type for value in reversed(values)}
        return engine


def _shape_of(value: Any) -> list[int]:
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_value if size.HasField("dim_value") else -1 for size in sizes]


def _checked(logger: ILogger) -> ILogger:
    assert isinstance(logger, ILogger) and getattr(logger, "_constructed", False)
    return logger


def _complain(logger: ILogger, message: str) -> bool:
    logger.log(ILogger.ERROR, message)
    return False
