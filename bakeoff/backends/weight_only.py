"""Rounding the weights of linear layers alone, to 8 or 4 bits: `w8a16`, `w4a16`, `w8a32` and `w4a32`.

Each engine gets what its own library makes: ONNX Runtime's MatMulNBits, NNCF for OpenVINO, ai-edge-quantizer for
LiteRT, torchao for torch. The mode `int8-products` lets an engine round inputs to 8 bits, OpenVINO's default on a CPU.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bakeoff.backends.base import Settings
from bakeoff.backends.exporting import OnnxModel
from bakeoff.backends.onnx_profiling import keep_modules, nodes_at
from bakeoff.backends.onnx_quantising import MAX_PROTOBUF_BYTES, attributes_of, layers_of
from bakeoff.backends.quantising import Layer, counted_layers
from bakeoff.models.lazily import onnx
from bakeoff.records.precision import GROUP_WEIGHTS, Precision

IN_FLOAT32 = 1
"""MatMulNBits' accuracy_level for products in float32. It has no such level for the type of its inputs."""

FEW_BITS = ("i4", "u4", "i8", "u8")
"""OpenVINO's types of rounded weights."""


def onnx_weights(exported: OnnxModel, precision: Precision, options: Mapping[str, object]) -> None:
    """Replace the model's products with a constant matrix by MatMulNBits, in its own file. They are in float32 unless
    `options` have another accuracy_level. Raise Unsupported if too few weights are rounded."""
    import logging

    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(exported.path)
    exported_nodes = nodes_at(exported.path)
    _split_gemms(model.graph)
    quantiser = MatMulNBitsQuantizer(
        model,
        bits=4 if precision.has_4_bit_weights else 8,
        block_size=GROUP_WEIGHTS,
        is_symmetric=True,
        accuracy_level=options.get("accuracy_level", IN_FLOAT32 if precision.products is Precision.FP32 else None),
    )
    logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.WARNING)  # it logs two lines for each layer
    quantiser.process()
    rounded = quantiser.model.model
    counted_layers(layers_of(rounded.graph), precision, library="ONNX Runtime")
    for file in exported.path.parent.glob(f"{exported.path.name}*"):
        file.unlink()
    onnx.save(rounded, exported.path, save_as_external_data=rounded.ByteSize() > MAX_PROTOBUF_BYTES)
    keep_modules(exported.path, exported_nodes)


def openvino_weights(model: Any, precision: Precision) -> Any:
    import nncf

    groups: dict[str, Any] = {}
    mode = nncf.CompressWeightsMode.INT8_SYM
    if precision.has_4_bit_weights:
        mode = nncf.CompressWeightsMode.INT4_SYM
        # a layer with another number of inputs gets smaller groups
        adjusting = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
        groups = {"group_size": GROUP_WEIGHTS, "all_layers": True, "advanced_parameters": adjusting}
    tables = nncf.IgnoredScope(types=["Gather"], validate=False)
    return nncf.compress_weights(model, mode=mode, ignored_scope=tables, **groups)


def openvino_layers(model: Any, precision: Precision) -> Settings:
    """Count the layers of a model of `openvino_weights`. Raise Unsupported if too few of its weights are rounded."""
    return counted_layers(_layers_of_openvino(model), precision, library="NNCF")


def litert_weights(path: Path, precision: Precision, rounds_inputs: bool) -> Settings:
    """Round the weights of linear layers in a .tflite file to 8 bits, in place, and return their number. With
    `rounds_inputs`, each row of a call has a scale. Raise Unsupported if too few weights are rounded."""
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.quantizer import Quantizer

    quantiser = Quantizer(str(path))
    add = quantiser.add_dynamic_config if rounds_inputs else quantiser.add_weight_only_config
    add(regex=".*", operation_name=TFLOperationName.FULLY_CONNECTED, num_bits=8)
    made = bytes(quantiser.quantize().quantized_model or b"")
    layers = counted_layers(_layers_of_tflite(made), precision, library="ai-edge-quantizer")
    path.write_bytes(made)
    return layers


def _split_gemms(graph: Any) -> None:
    """Write each Gemm over a constant matrix as a MatMul and an Add, since the quantiser sees no Gemm."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = attributes_of(node)
        if node.op_type != "Gemm" or node.input[1] not in constants or attributes.get("transA", 0):
            nodes.append(node)
            continue
        weight = onnx.numpy_helper.to_array(constants[node.input[1]])
        matrix = f"{node.output[0]}.weight"
        scaled = weight.T if attributes.get("transB", 0) else weight
        graph.initializer.append(
            onnx.numpy_helper.from_array((scaled * scaled.dtype.type(attributes.get("alpha", 1.0))).copy(), matrix)
        )
        has_bias = len(node.input) > 2 and node.input[2]
        product = f"{node.output[0]}.product" if has_bias else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], matrix], [product], name=f"{node.name}.matmul"))
        if has_bias:
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], node.output, name=f"{node.name}.add"))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _layers_of_openvino(model: Any) -> Iterator[Layer]:
    for operation in model.get_ops():
        kind = operation.get_type_name()
        if kind not in ("MatMul", "Convolution"):
            continue
        weight = operation.input_value(1).get_node()
        while weight.get_type_name() in ("Convert", "Multiply", "Subtract", "Reshape", "Transpose"):
            weight = weight.input_value(0).get_node()
        if weight.get_type_name() == "Constant":
            is_rounded = weight.get_element_type().get_type_name() in FEW_BITS
            yield Layer("linear" if kind == "MatMul" else "convolution", math.prod(weight.shape), is_rounded)


def _layers_of_tflite(model: bytes) -> Iterator[Layer]:
    from ai_edge_litert import schema_py_generated as schema

    operators = schema.BuiltinOperator
    kinds = {
        operators.FULLY_CONNECTED: "linear",
        operators.CONV_2D: "convolution",
        operators.DEPTHWISE_CONV_2D: "convolution",
    }
    read = schema.ModelT.InitFromPackedBuf(model, 0)
    codes = [code.builtinCode for code in read.operatorCodes]
    for graph in read.subgraphs:
        # weights for products in float32 are widened by an operator of their own
        rounded = {
            operator.outputs[0]: operator.inputs[0]
            for operator in graph.operators
            if codes[operator.opcodeIndex] == operators.DEQUANTIZE
        }
        for operator in graph.operators:
            if (kind := kinds.get(codes[operator.opcodeIndex])) is not None:
                weight = graph.tensors[rounded.get(operator.inputs[1], operator.inputs[1])]
                yield Layer(kind, math.prod(map(int, weight.shape)), weight.type == schema.TensorType.INT8)
