"""The export to ONNX, shared by every backend that starts from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.backends import older_opset
from bakeoff.backends.base import Settings
from bakeoff.backends.ranges import OpenAxes, exported, naming_the_form
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import ir, onnx, torch

EXPORTED = "model.onnx"
QUANTISED = "int8.onnx"

BFLOAT16_OPSET = 22
"""The first opset that allows bfloat16 in convolutions, pooling, sines and cosines.

Other graphs keep the default, since an engine may lack kernels for a newer version of an operator
(github.com/microsoft/onnxruntime, issue 26393)."""

OLDEST_EXPORTED_OPSET = 18
"""The exporter has implementations for this opset and later ones."""

FOLDED_INTO = ("Conv", "ConvTranspose", "Gemm")
"""Operators into which the exporter folds a batch normalisation that follows them."""


@dataclass(frozen=True)
class OnnxModel:
    """An exported model on disk. Its inputs have the order of `Inputs.tensors`."""

    path: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    output_shapes: tuple[tuple[int | None, ...], ...] = ()
    """As the exporter gives them, with None for a size that it leaves open."""


def export_onnx(
    module: torch.nn.Module, inputs: Inputs, folder: Path, opset: int | None = None, axes: OpenAxes = ()
) -> OnnxModel:
    """Export `module` through torch.export to `folder`/model.onnx, with the shapes of `inputs`, but with `axes` open.

    A module that is an ONNX graph is only written. `opset` is the version of ONNX's operators; None stands for the
    exporter's default, or for `BFLOAT16_OPSET` if the graph needs it. A version before `OLDEST_EXPORTED_OPSET` is made
    by `bakeoff.backends.older_opset`. Weights over protobuf's limit of 2 GB go into a file beside it. Raise what
    torch.onnx.export raises, and Unsupported, with the operators, if the graph has no form in an older version.
    """
    from bakeoff.backends.calling import FlatModule, as_called, plain_tensors, tensor_names
    from bakeoff.models.onnx_module import OnnxModule

    path = folder / EXPORTED
    if isinstance(module, OnnxModule):
        if axes:
            module.write_open(path)
        else:
            module.write(path, *inputs.tensors())
        if opset is not None and opset < OLDEST_EXPORTED_OPSET:
            older_opset.lower_file(path, opset)
        return model_at(path)
    with plain_tensors(), naming_the_form(module):
        flat = FlatModule(module, inputs)
        program = torch.onnx.export(
            exported(module, inputs, axes) if axes else flat,
            as_called(inputs),
            input_names=tensor_names(module, inputs),
            opset_version=opset if opset is None else max(opset, OLDEST_EXPORTED_OPSET),
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    _round_folded_weights(program.model)
    if opset is None and _needs_bfloat16_opset(program.model):
        from onnxscript import version_converter

        version_converter.convert_version(program.model, BFLOAT16_OPSET)
    if opset is not None and opset < OLDEST_EXPORTED_OPSET:
        older_opset.lower(program.model, opset)
    program.save(str(path))
    graph = program.model.graph
    return OnnxModel(
        path=path,
        input_names=tuple(str(value.name) for value in graph.inputs),
        output_names=tuple(str(value.name) for value in graph.outputs),
        output_shapes=tuple(
            tuple(size if isinstance(size, int) else None for size in value.shape or ()) for value in graph.outputs
        ),
    )


def _round_folded_weights(model: ir.Model) -> None:
    """Round float32 weights of nodes in bfloat16 to bfloat16: the exporter folds a batch normalisation in float32, and
    leaves the weights in that type."""
    for node in _nodes_in_bfloat16(model):
        for weight in node.inputs[1:] if node.op_type in FOLDED_INTO else ():
            if weight is not None and weight.const_value is not None and weight.dtype == ir.DataType.FLOAT:
                rounded = weight.const_value.numpy().astype(ir.DataType.BFLOAT16.numpy())
                weight.const_value = ir.tensor(rounded, name=weight.name)
                weight.dtype = ir.DataType.BFLOAT16


def _needs_bfloat16_opset(model: ir.Model) -> bool:
    opset = model.graph.opset_imports[""]
    return opset < BFLOAT16_OPSET and any(
        not _allows_bfloat16(node, opset) and _allows_bfloat16(node, BFLOAT16_OPSET)
        for node in _nodes_in_bfloat16(model)
        if not node.domain
    )


def _allows_bfloat16(node: ir.Node, opset: int) -> bool:
    inputs = zip(onnx.defs.get_schema(node.op_type, opset).inputs, node.inputs, strict=False)
    return all(
        "tensor(bfloat16)" in allowed.types
        for allowed, value in inputs
        if value is not None and value.dtype == ir.DataType.BFLOAT16
    )


def _nodes_in_bfloat16(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if any(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in node.inputs)
    ]


def convolves(path: Path) -> bool:
    def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            yield node
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    yield from nodes_of(graph.node)

    model = onnx.load(path, load_external_data=False)
    nodes = (node for part in (model.graph, *model.functions) for node in nodes_of(part.node))
    return any("Conv" in node.op_type for node in nodes)


def use_exportable_experts(module: torch.nn.Module) -> Settings:
    """Let transformers compute a mixture of experts as batched products, and return what was changed for the record.
    Its default calls an operator that engines for ONNX lack."""
    changed: Settings = {}
    for part in module.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "_experts_implementation", "") == "grouped_mm":
            choose: Any = getattr(part, "set_experts_implementation", None)
            if choose is not None:
                choose("batched_mm")
                changed = {"experts_implementation": "batched_mm"}
    return changed


def exported_before(folder: Path) -> OnnxModel | None:
    """Return the model, quantised or not, that an earlier process of the cell left in `folder`, for a warm start; None
    in the first process."""
    path = next((folder / name for name in (QUANTISED, EXPORTED) if (folder / name).exists()), None)
    return None if path is None else model_at(path)


def model_at(path: Path) -> OnnxModel:
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}  # which old files list among the inputs
    return OnnxModel(
        path=path,
        input_names=tuple(value.name for value in graph.input if value.name not in weights),
        output_names=tuple(value.name for value in graph.output),
        output_shapes=tuple(
            tuple(size.dim_value if size.HasField("dim_value") else None for size in value.type.tensor_type.shape.dim)
            for value in graph.output
        ),
    )
