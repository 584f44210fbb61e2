"""Post-training quantisation of an ONNX model to int8 by ONNX Runtime, for every engine that takes ONNX."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bakeoff.backends.base import Settings
from bakeoff.backends.exporting import QUANTISED, OnnxModel
from bakeoff.backends.onnx_profiling import keep_modules, nodes_at, owners_of
from bakeoff.backends.quantising import Layer, counted_layers
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import onnx, torch
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision

MAX_PROTOBUF_BYTES = 1_500_000_000
"""Protobuf holds 2 GB at most. The weights of a larger model go into a file of their own."""

ONNX_LAYERS = ("Conv", "Gemm", "MatMul")


def static_onnx(
    exported: OnnxModel, calibration: Iterable[Inputs], folder: Path, symmetric: bool = False, kept: Sequence[str] = ()
) -> OnnxModel:
    """Quantise `exported` with ONNX Runtime's quantize_static into `folder`/int8.onnx, with Q/DQ pairs around layers.

    docs/backends.md has the recipe: `symmetric=False` is for CPUs, and True for TensorRT. Layers of modules at the
    paths in `kept` stay in float32. If `exported` lies in `folder`, it is removed, so that only what would be deployed
    stays there. Raise Unsupported if the model has no layer to quantise.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = (
        sum(file.stat().st_size for file in exported.path.parent.glob(f"{exported.path.name}*")) > MAX_PROTOBUF_BYTES
    )
    prepared, quantised = folder / "prepared.onnx", folder / QUANTISED
    # shapes are static, so ONNX's own shape inference is enough; the symbolic one would need sympy
    quant_pre_process(exported.path, prepared, skip_symbolic_shape=True, save_as_external_data=large)
    graph = onnx.load(prepared, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    candidates = [node for node in graph.node if node.op_type in ONNX_LAYERS]
    activations_only = [node.name for node in candidates if node.input[1] not in constants]
    left = _nodes_of(kept, exported.path, prepared, candidates)
    if len(activations_only) == len(candidates):
        raise Unsupported("there is nothing to quantise: the model has no linear layer and no convolution")
    extra: dict[str, Any] = {"WeightSymmetric": True, "ActivationSymmetric": symmetric}
    if symmetric:
        extra |= {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": list(ONNX_LAYERS)}
    quantize_static(
        prepared,
        quantised,
        _reader(exported.input_names, calibration),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(ONNX_LAYERS),
        nodes_to_exclude=[*activations_only, *left],
        per_channel=True,
        # without VNNI, products of unsigned and signed bytes saturate in between
        reduce_range=not symmetric and not torch.cpu._is_vnni_supported(),
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        use_external_data_format=large,
        extra_options=extra,
    )
    keep_modules(quantised, nodes_at(exported.path))
    for path in (prepared, exported.path):
        for file in folder.glob(f"{path.name}*") if path.parent == folder else ():
            file.unlink()
    return replace(exported, path=quantised)


def _nodes_of(modules: Sequence[str], exported: Path, prepared: Path, candidates: Sequence[Any]) -> list[str]:
    if not modules:
        return []
    owners = owners_of(nodes_at(exported), nodes_at(prepared))
    inside = tuple(f"{module}." for module in modules)
    return [
        node.name
        for node in candidates
        if node.name in owners and any(path in modules or path.startswith(inside) for path in owners[node.name].modules)
    ]


def onnx_layers(model: OnnxModel, precision: Precision) -> Settings:
    graph = onnx.load(model.path, load_external_data=False).graph
    may_be_few = precision is Precision.INT8  # some are left in float32 when that is asked for
    layers = counted_layers(layers_of(graph), precision, library="ONNX Runtime", may_be_few=may_be_few)
    if precision.is_weight_only:
        few_bits = [node for node in graph.node if node.op_type == "MatMulNBits"]
        levels = {attributes_of(node).get("accuracy_level", 0) for node in few_bits}
        layers["accuracy_level"] = ", ".join(map(str, sorted(levels)))
    return layers


def attributes_of(node: Any) -> dict[str, Any]:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def layers_of(graph: Any) -> Iterator[Layer]:
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    dequantised = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            columns, rows = (onnx.helper.get_node_attr_value(node, name) for name in ("K", "N"))
            yield Layer("linear", columns * rows, True)
        elif node.op_type in ONNX_LAYERS and (weight := dequantised.get(node.input[1], node.input[1])) in sizes:
            kind = "convolution" if node.op_type == "Conv" else "linear"
            yield Layer(kind, sizes[weight], node.input[0] in dequantised and node.input[1] in dequantised)


def _reader(names: tuple[str, ...], calibration: Iterable[Inputs]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._remaining = iter(list(calibration))

        def get_next(self) -> dict[str, Any] | None:
            inputs = next(self._remaining, None)
            if inputs is None:
                return None
            return {name: tensor.cpu().numpy() for name, tensor in zip(names, inputs.tensors(), strict=True)}

    return Reader()
