"""A small fake of NVIDIA's `tensorrt` 10, for what can be tested without a GPU. It computes nothing.

Its objects are mocks, which record their calls: a test changes what one answers. tests/gpu/test_tensorrt.py has real
engines, and tests/backends/test_tensorrt_api.py holds the backend against the real signatures.
"""

from collections.abc import Mapping
from enum import IntEnum
from unittest.mock import Mock, call

Tensors = Mapping[str, tuple[tuple[int, ...], str]]
"""The shape of each tensor, with -1 for an open axis, and its `DataType`."""


class TensorRT:
    """Stands for the module. Its one engine has the given inputs and outputs."""

    DataType = IntEnum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64", start=0)
    BuilderFlag = IntEnum("BuilderFlag", "FP16 TF32", start=0)
    NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH STRONGLY_TYPED", start=0)
    ProfilingVerbosity = IntEnum("ProfilingVerbosity", "LAYER_NAMES_ONLY NONE DETAILED", start=0)
    LayerInformationFormat = IntEnum("LayerInformationFormat", "ONELINE JSON", start=0)
    TensorLocation = IntEnum("TensorLocation", "DEVICE HOST", start=0)

    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING, INFO = range(4)

    def __init__(self, inputs: Tensors, outputs: Tensors, version: str = "10.13.3.9") -> None:
        self.__version__ = version
        self.init_libnvinfer_plugins = Mock()
        self.config = Mock(builder_optimization_level=3)
        self.config.add_optimization_profile.return_value = 0
        self.config.create_timing_cache.return_value.serialize.return_value = b"timed"
        self.config.get_flag.side_effect = lambda flag: call(flag) in self.config.set_flag.mock_calls
        self.builder = Mock()
        self.builder.create_builder_config.return_value = self.config
        self.builder.build_serialized_network.return_value = b"engine"
        self.Builder = Mock(return_value=self.builder)
        self.parser = Mock(num_errors=0)
        self.OnnxParser = Mock(return_value=self.parser)
        self.context = Mock(active_optimization_profile=0)
        self.context.get_tensor_shape.side_effect = lambda name: tuple(abs(size) for size in tensors[name][0])
        tensors = {**outputs, **inputs}  # not in the graph's order
        self.engine = Mock(num_io_tensors=len(tensors), num_layers=3)
        self.engine.create_execution_context.return_value = self.context
        self.engine.get_tensor_name.side_effect = list(tensors).__getitem__
        self.engine.get_tensor_shape.side_effect = lambda name: tensors[name][0]
        self.engine.get_tensor_dtype.side_effect = lambda name: self.DataType[tensors[name][1]]
        self.engine.get_tensor_location.return_value = self.TensorLocation["DEVICE"]
        product = '{"Layers": [{"Name": "product", "Inputs": [{"Format/Datatype": "Float"}]}]}'
        self.engine.create_engine_inspector.return_value.get_engine_information.return_value = product
        self.runtime = Mock()
        self.runtime.deserialize_cuda_engine.return_value = self.engine
        self.Runtime = Mock(return_value=self.runtime)

    def log(self, words: str) -> None:
        """Log an error, to the last logger."""
        self.init_libnvinfer_plugins.call_args.args[0].log(self.ILogger.ERROR, words)
