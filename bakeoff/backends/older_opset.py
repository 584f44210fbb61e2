"""Graphs in ONNX's opset 17, for engines that read no later one, such as TensorRT 8.6.

The exporter writes opset 18. ONNX's own version converter leaves an attribute of opset 18 at reductions, has no older
form of Split, and drops the names of modules. Few operators differ, so the difference is written down here
(https://onnx.ai/onnx/operators, version 18).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bakeoff.models.lazily import ir, onnx
from bakeoff.records.errors import Unsupported


def lower_file(path: Path, opset: int) -> None:
    """Do for a model in a file what `lower` does. Its weights may lie in a file beside it."""
    model = ir.load(path)
    if model.graph.opset_imports[""] > opset:
        lower(model, opset)
        ir.save(model, path)


def lower(model: ir.Model, opset: int) -> None:
    """Change the model, in place, from opset 18 to 17. Raise Unsupported, with the operators, if one has no form
    there."""
    own = model.graph.opset_imports[""]
    without_form = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain or onnx.defs.get_schema(node.op_type, own).since_version <= opset:
            continue
        rewrite = REWRITES.get(node.op_type)
        if rewrite is None or own > 18 or not rewrite(node):
            without_form.add(node.op_type)
    if without_form:
        raise Unsupported(
            f"the graph is in ONNX's opset {own}, and this engine reads {opset}: "
            f"{', '.join(sorted(without_form))} cannot be written in that"
        )
    model.graph.opset_imports[""] = opset


def _axes_as_attribute(node: ir.Node) -> bool:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None:
        constant = ir.convenience.get_const_tensor(axes)  # an initialiser, or what a node Constant gives
        if constant is None:
            return False
        node.attributes.add(ir.AttrInt64s("axes", [int(axis) for axis in constant.numpy()]))
        node.resize_inputs(1)
    elif _whole_number(node, "noop_with_empty_axes", 0):
        return False
    node.attributes.pop("noop_with_empty_axes", None)
    return True


def _without_number_of_outputs(node: ir.Node) -> bool:
    """An older Split without sizes divides equally, and cannot have a smaller last part."""
    number = node.attributes.pop("num_outputs", None)
    if number is None or len(node.inputs) > 1:
        return True
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    size = shape[_whole_number(node, "axis", 0)] if shape is not None else None
    return isinstance(size, int) and size % number.as_int() == 0


def _without_axes(node: ir.Node) -> bool:
    """Pad and Resize take no axes before opset 18, and Resize neither smooths nor keeps proportions."""
    has_axes = node.attributes.get("axes") is not None or (node.op_type == "Pad" and len(node.inputs) > 3)
    keeps = node.attributes.get("keep_aspect_ratio_policy")
    if has_axes or _whole_number(node, "antialias", 0) or (keeps is not None and keeps.as_string() != "stretch"):
        return False
    for name in ("antialias", "keep_aspect_ratio_policy"):
        node.attributes.pop(name, None)
    return True


def _adds_or_multiplies(node: ir.Node) -> bool:
    reduction = node.attributes.get("reduction")
    return reduction is None or reduction.as_string() in ("none", "add", "mul")


def _whole_number(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

REWRITES: dict[str, Callable[[ir.Node], bool]] = {
    **{f"Reduce{name}": _axes_as_attribute for name in REDUCTIONS},
    "Split": _without_number_of_outputs,
    "Pad": _without_axes,
    "Resize": _without_axes,
    "ScatterElements": _adds_or_multiplies,
    "ScatterND": _adds_or_multiplies,
}
"""What writes an operator in opset 17. It returns False where that is not possible."""
