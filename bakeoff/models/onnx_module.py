"""An ONNX graph as a torch module, for the reference. This file imports torch, so only workers import it.

Cast to float64, it computes with ONNX's own reference evaluator, in float64 throughout. Else ONNX Runtime computes in
the types of the file.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.models.lazily import onnx, onnxruntime


class OnnxModule(nn.Module):
    """The graph of `model`, with static shapes. Weights that lie beside `path` are read when they are needed."""

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        super().__init__()
        self.path = path.resolve()
        self.model = model
        self.register_buffer("computes_in", torch.zeros(1))  # which a cast of the module casts, too

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = [value.name for value in self.model.graph.input][: len(tensors)]
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}
        runner = self._exact if self.computes_in.dtype is torch.float64 else self._session
        outputs = runner.run(None, arrays)
        return tuple(torch.as_tensor(output).to(tensors[0].device) for output in outputs)

    def write(self, path: Path, *tensors: Tensor) -> None:
        """Write the graph to `path`, and copy weights that lie beside it. A call tells shapes that are not known."""
        ends = self.model.graph.output
        if not all(size.dim_value for value in ends for size in value.type.tensor_type.shape.dim):
            for value, output in zip(ends, self(*tensors), strict=True):
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, list(output.shape)))
        self._copy_weights(path.parent)
        path.write_bytes(self.model.SerializeToString())

    def write_open(self, path: Path) -> None:
        """Write the graph as it is in the file, with its open axes, and copy weights that lie beside it."""
        model = onnx.load(str(self.path), load_external_data=False)
        self._copy_weights(path.parent)
        path.write_bytes(model.SerializeToString())

    def _copy_weights(self, folder: Path) -> None:
        entries = [entry for weight in self.model.graph.initializer for entry in weight.external_data]
        for location in {entry.value for entry in entries if entry.key == "location"}:
            (folder / location).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.path.parent / location, folder / location)

    @functools.cached_property
    def _session(self) -> Any:
        return onnxruntime.InferenceSession(self._whole().SerializeToString(), providers=["CPUExecutionProvider"])

    @functools.cached_property
    def _exact(self) -> Any:
        from onnx.reference import ReferenceEvaluator

        model = self._whole()
        _widen(model.graph)
        return ReferenceEvaluator(model)

    def _whole(self) -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        onnx.load_external_data_for_model(copy, str(self.path.parent))
        return copy


def _widen(graph: onnx.GraphProto) -> None:
    """Turn every float32 of the graph into float64: weights, constants, casts, and the types of values."""
    from onnx import AttributeProto, TensorProto, helper, numpy_helper

    def widened(tensor: TensorProto) -> TensorProto:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float64"), tensor.name)

    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            weight.CopyFrom(widened(weight))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                _widen(attribute.g)
            elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(widened(attribute.t))
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                array = torch.tensor(values, dtype=torch.float64).numpy()
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
