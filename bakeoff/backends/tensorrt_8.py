"""What TensorRT before 9 needs besides: it has no strongly typed networks, and reads no ONNX after opset 17.

The types of the graph are kept by flags and by constraints. Later versions have none of these names, so nothing here
is checked against their API.
"""

from pathlib import Path
from typing import Any

from bakeoff.models.lazily import onnx, trt

OPSET = 17
"""The newest opset that the parser of TensorRT 8.6 reads rightly."""


def create_network(builder: Any) -> Any:
    return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))


def keep_types(network: Any, config: Any, path: Path) -> None:
    """Let layers compute in the types that the ONNX graph in the file has. A layer in float16 may use float32, which is
    more accurate."""
    import tensorrt

    trt: Any = tensorrt  # stubs of later versions lack some names
    inferred = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False)).graph
    values = [*inferred.input, *inferred.value_info, *inferred.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {weight.name: weight.data_type for weight in inferred.initializer}
    if INT8_TYPE in types.values():
        config.set_flag(trt.BuilderFlag.INT8)
    if FLOAT16_TYPE in types.values():
        config.set_flag(trt.BuilderFlag.FP16)
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        for number in range(network.num_layers):
            layer = network.get_layer(number)
            outputs = [layer.get_output(place) for place in range(layer.num_outputs)]
            if layer.type in (trt.LayerType.CAST, trt.LayerType.CONSTANT, trt.LayerType.SHAPE):
                continue  # they have a type already
            if outputs and all(types.get(output.name) == FLOAT_TYPE for output in outputs):
                layer.precision = trt.float32
                for place in range(layer.num_outputs):
                    layer.set_output_type(place, trt.float32)
    # otherwise only one context can use the profile of a range
    config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
    if not _has_cublas_and_cudnn():
        own = (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS)
        config.set_tactic_sources(sum(1 << int(source) for source in own))


FLOAT_TYPE, INT8_TYPE, INT64_TYPE, FLOAT16_TYPE = 1, 3, 7, 10
"""ONNX's numbers of types."""


def long_inputs(path: Path) -> tuple[str, ...]:
    """Return the names of an ONNX file's inputs in int64, which the engine takes as int32."""
    graph = onnx.load(path, load_external_data=False).graph
    return tuple(value.name for value in graph.input if value.type.tensor_type.elem_type == INT64_TYPE)


def _has_cublas_and_cudnn() -> bool:
    import ctypes

    try:
        return all(
            hasattr(ctypes.CDLL(library), function)
            for library, function in (("libcublas.so.12", "cublasCreate_v2"), ("libcudnn.so.8", "cudnnCreate"))
        )
    except OSError:
        return False
