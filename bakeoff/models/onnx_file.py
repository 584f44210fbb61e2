"""A model in an ONNX file: `onnx:FILE`. Only backends that take ONNX can run it, so it has no eager row.

Its dimensions are the axes of inputs that the file leaves open, by the names that it gives them. Integers are drawn
below the length of the table that they index. This file imports no torch; `bakeoff.models.onnx_module` computes.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes, axis_name
from bakeoff.models.lazily import onnx, torch
from bakeoff.models.seeding import padded_at_the_end, seeded
from bakeoff.records.errors import UsageError, first_line
from bakeoff.records.precision import Precision

INPUT_TYPES = {"FLOAT": "float32", "INT64": "int64", "INT32": "int32", "INT8": "int8", "UINT8": "uint8", "BOOL": "bool"}
"""Element types that an input may have, and torch's names for them."""

DEFAULTS = {"batch": 4, "seq": 128, "height": 224, "width": 224}
OTHER_DEFAULT = 16
IDS_BELOW = 2
"""Integers that index no table are 0 or 1."""


class OnnxFile(Family):
    imports = ("onnx",)

    def __init__(self, file: str) -> None:
        """Read the graph. Raises UsageError if it is cut short, invalid, or takes inputs that are no plain tensors."""
        self.name = f"onnx:{file}"
        self.path = Path(file).expanduser()
        self.model = _read(self.name, self.path)
        self.description = f"the graph in {self.path}"
        self.dimensions = {}
        for value in inputs_of(self.model):
            kind = value.type.tensor_type
            if _type_name(kind.elem_type) not in INPUT_TYPES or not value.type.HasField("tensor_type"):
                raise UsageError(
                    f"{self.name}: input '{value.name}' is of type {_type_name(kind.elem_type)}: "
                    f"Bakeoff makes inputs of {', '.join(INPUT_TYPES)}"
                )
            for axis, size in enumerate(kind.shape.dim):
                if not size.dim_value:
                    dimension = Dimension(_default(value, axis), "an axis that the file leaves open")
                    self.dimensions.setdefault(dimension_of(value, axis), dimension)

    def precision_reason(self, precision: Precision) -> str:
        """An ONNX file brings the types that it computes in. Those with 16-bit weights have no fp32 to be called."""
        if precision not in (Precision.FP32, Precision.TF32):
            return f"an ONNX file brings its own types: {self.name} is not cast to {precision}"
        halves = {_type_name(weight.data_type) for weight in self.model.graph.initializer} & {"FLOAT16", "BFLOAT16"}
        return f"the weights of {self.name} are {', '.join(sorted(halves))}, not {precision}" if halves else ""

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from bakeoff.models.onnx_module import OnnxModule

        sizes = {name: int(size) for name, size in dimensions.items()}
        with seeded(seed):
            inputs = tuple(
                Inputs(tuple(self._drawn(value, shape_of(value, sizes)) for value in inputs_of(self.model)))
                for _ in range(INPUT_SETS)
            )
        module = OnnxModule(self.path, static(self.model, sizes))
        return LoadedModel(module.eval(), inputs, work=_work(module.model))

    def _drawn(self, value: onnx.ValueInfoProto, shape: list[int]) -> torch.Tensor:
        dtype = getattr(torch, INPUT_TYPES[_type_name(value.type.tensor_type.elem_type)])
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=dtype)
        if "mask" in value.name and len(shape) == 2:  # all but the first row are padded at their end
            return padded_at_the_end(*shape).to(dtype)
        tables = {weight.name: weight.dims for weight in self.model.graph.initializer}
        lengths = [
            int(tables[node.input[0]][0])
            for node in self.model.graph.node
            if node.op_type == "Gather" and list(node.input[1:]) == [value.name] and node.input[0] in tables
        ]
        return torch.randint(min(lengths, default=IDS_BELOW), shape).to(dtype)


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {weight.name for weight in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def dimension_of(value: onnx.ValueInfoProto, axis: int) -> str:
    """Return the name of the dimension that sets an open axis: the file's own, or a likely one."""
    kind = value.type.tensor_type
    own = re.sub(r"\W+", "_", kind.shape.dim[axis].dim_param)
    return own or axis_name(value.name, axis, len(kind.shape.dim), _type_name(kind.elem_type) == "FLOAT", ())


def shape_of(value: onnx.ValueInfoProto, sizes: dict[str, int]) -> list[int]:
    axes = enumerate(value.type.tensor_type.shape.dim)
    return [size.dim_value or sizes[dimension_of(value, axis)] for axis, size in axes]


def static(model: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """Return a copy of the model with inputs of these sizes, and with the shapes that follow from them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in inputs_of(copy):
        for axis, size in enumerate(shape_of(value, sizes)):
            value.type.tensor_type.shape.dim[axis].dim_value = size
    del copy.graph.value_info[:]  # they name the sizes that are no longer open
    for value in copy.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            if (name := re.sub(r"\W+", "_", dimension.dim_param)) in sizes:
                dimension.dim_value = sizes[name]
    return onnx.shape_inference.infer_shapes(copy, data_prop=True)


def _default(value: onnx.ValueInfoProto, axis: int) -> int:
    kind = value.type.tensor_type
    likely = axis_name(value.name, axis, len(kind.shape.dim), _type_name(kind.elem_type) == "FLOAT", ())
    return DEFAULTS.get(likely, OTHER_DEFAULT)


def _work(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the floating-point operations of matrix products and convolutions, and the bytes of weights and ends."""
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in values}
    shapes |= {weight.name: list(weight.dims) for weight in model.graph.initializer}
    flops = 0
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm", "Conv") or not shapes.get(node.output[0]):
            continue
        first, second = (shapes.get(name, []) for name in node.input[:2])
        if node.op_type == "Conv":
            summed = math.prod(second[1:])
        else:
            is_transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
            summed = first[0] if is_transposed and first else first[-1] if first else 0
        flops += 2 * math.prod(shapes[node.output[0]]) * summed
    widths = {
        weight.name: onnx.helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize
        for weight in model.graph.initializer
    }
    ends = {value.name: 4 for value in (*inputs_of(model), *model.graph.output)}
    return flops, sum(math.prod(shapes[name]) * width for name, width in (widths | ends).items())


def _type_name(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number))


@functools.cache
def _read(name: str, path: Path) -> onnx.ModelProto:
    """Read and check the graph, without the weights that lie beside it."""
    try:
        import onnx
    except ImportError as error:
        raise UsageError(f"{name} needs onnx: pip install onnx") from error
    if not path.is_file():
        raise UsageError(f"{name}: no file {path}: onnx: takes an ONNX model")
    try:
        onnx.checker.check_model(str(path))
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own, or the checker's
        raise UsageError(f"{name} is no whole ONNX model: {type(error).__name__}: {first_line(error)}") from error
