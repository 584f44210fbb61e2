"""A fake of NVIDIA's `tensorrt`, for what can be tested without a GPU. It computes nothing.

Its objects are mocks, which record their calls: a test changes what one answers. tests/gpu/test_tensorrt.py has real
engines, and tests/backends/test_tensorrt_api.py holds the backend against the real signatures.
"""

import ctypes
from collections.abc import Mapping
from enum import IntEnum
from typing import Any
from unittest.mock import Mock, call

import numpy

Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""The shape of each tensor, with -1 for an open axis, and its `DataType`."""

NUMPY_TYPES = {"FLOAT": "f4", "HALF": "f2", "INT32": "i4", "INT64": "i8", "BOOL": "?"}


class TensorRT:
    """Stands for the module of one version. Its one engine has the given inputs and outputs."""

    DataType = IntEnum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64", start=0)
    BuilderFlag = IntEnum("BuilderFlag", "FP16 INT8 TF32 OBEY_PRECISION_CONSTRAINTS", start=0)
    ProfilingVerbosity = IntEnum("ProfilingVerbosity", "LAYER_NAMES_ONLY NONE DETAILED", start=0)
    LayerInformationFormat = IntEnum("LayerInformationFormat", "ONELINE JSON", start=0)
    TensorLocation = IntEnum("TensorLocation", "DEVICE HOST", start=0)
    # only before version 9
    LayerType = IntEnum("LayerType", "CONVOLUTION CAST CONSTANT SHAPE", start=0)
    PreviewFeature = IntEnum("PreviewFeature", "PROFILE_SHARING_0806", start=0)
    TacticSource = IntEnum("TacticSource", "CUBLAS CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS", start=0)
    float32 = DataType["FLOAT"]

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

    class IProfiler:
        pass

    def __init__(self, inputs: Tensors, outputs: Tensors, version: str = "10.13.3.9") -> None:
        self.__version__ = version
        self.is_old = version.startswith("8.")
        typing = "EXPLICIT_BATCH" if self.is_old else "EXPLICIT_BATCH STRONGLY_TYPED"
        self.NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", typing, start=0)
        self.init_libnvinfer_plugins = Mock()
        self.config = Mock(builder_optimization_level=3)
        self.config.add_optimization_profile.return_value = 0
        self.config.create_timing_cache.return_value.serialize.return_value = b"timed"
        self.config.get_flag.side_effect = lambda flag: call(flag) in self.config.set_flag.mock_calls
        self.network = Mock(num_layers=0)
        self.builder = Mock()
        self.builder.create_builder_config.return_value = self.config
        self.builder.create_network.return_value = self.network
        self.builder.build_serialized_network.return_value = b"engine"
        self.Builder = Mock(return_value=self.builder)
        self.parser = Mock(num_errors=0)
        self.OnnxParser = Mock(return_value=self.parser)
        self.contexts = [self._context(number) for number in range(2)]
        self.engine = _engine(self, {**outputs, **inputs})  # not in the graph's order
        self.engine.create_execution_context.side_effect = self.contexts
        self.runtime = Mock()
        self.runtime.deserialize_cuda_engine.return_value = self.engine
        self.Runtime = Mock(return_value=self.runtime)
        self.inputs, self.outputs = inputs, outputs

    def log(self, words: str) -> None:
        """Log an error, to the last logger."""
        self.init_libnvinfer_plugins.call_args.args[0].log(self.ILogger.ERROR, words)

    def _context(self, number: int) -> Mock:
        """Return an execution context. Before version 10 only the first one has a profile from the start."""
        profile = -1 if number and self.is_old else 0
        context = Context(self)
        return Mock(wraps=context, active_optimization_profile=profile, profiler=None, read=context.read)


def _engine(library: TensorRT, tensors: Tensors) -> Mock:
    engine = Mock(num_io_tensors=len(tensors), num_layers=3)
    engine.get_tensor_name.side_effect = list(tensors).__getitem__
    engine.get_tensor_shape.side_effect = lambda name: tensors[name][0]
    engine.get_tensor_dtype.side_effect = lambda name: library.DataType[tensors[name][1]]
    engine.get_tensor_location.return_value = library.TensorLocation["DEVICE"]
    product = '{"Layers": [{"Name": "product", "Inputs": [{"Format/Datatype": "Float"}]}]}'
    engine.create_engine_inspector.return_value.get_engine_information.return_value = product
    return engine


class Context:
    """Reads the inputs where a call of the engine would, and writes 0, 1, 2 and so on to the outputs."""

    def __init__(self, library: TensorRT) -> None:
        self._library = library
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self.read: dict[str, Any] = {}
        """The inputs as the last call has read them."""

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape with all open axes as long as the first axis of the first input."""
        shape, _ = {**self._library.inputs, **self._library.outputs}[name]
        rows = next(iter(self._shapes.values()), (-1,))[0]
        return self._shapes.get(name) or tuple(rows if size < 0 else size for size in shape)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        return True

    def execute_async_v3(self, stream: int) -> bool:
        inputs = self._library.inputs.items()
        self.read.update({name: self._memory(name, kind).tolist() for name, (_, kind) in inputs})
        for name, (_, kind) in self._library.outputs.items():
            values = self._memory(name, kind)
            values[...] = numpy.arange(values.size).reshape(values.shape)
        return True

    def _memory(self, name: str, kind: str) -> numpy.ndarray[Any, Any]:
        dtype, shape = numpy.dtype(NUMPY_TYPES[kind]), self.get_tensor_shape(name)
        size_bytes = int(numpy.prod(shape)) * dtype.itemsize
        memory = (ctypes.c_byte * size_bytes).from_address(self._addresses[name])
        return numpy.frombuffer(memory, dtype).reshape(shape)
