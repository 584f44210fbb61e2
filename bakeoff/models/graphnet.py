"""A graph of GraphNet, `graphnet:FOLDER`: model.py computes, and weight_meta.py has the statistics of each tensor.

Source: PaddlePaddle/GraphNet on GitHub. The graph takes its weights as arguments, which are the module's own here. As
of a file of your own, the code of model.py runs. weight_meta.py is only read.
"""

import ast
import contextlib
from pathlib import Path
from types import ModuleType
from typing import Any

from bakeoff.models.base import Dimension
from bakeoff.models.lazily import torch
from bakeoff.models.source_code import functions_of, parse
from bakeoff.models.user import UserModel
from bakeoff.records.errors import UsageError

GRAPH = "GraphModule"
DEVICE = "_device_of_call"
HELPER = "def _item(value): return value.item() if hasattr(value, 'item') else value"


class GraphNet(UserModel):
    def __init__(self, folder: str) -> None:
        """Read both files. Raise UsageError where one is missing, or where a tensor of the graph has no statistics."""
        self._folder = Path(folder).expanduser()
        super().__init__(str(self._folder / "model.py"), GRAPH)
        self.name = f"graphnet:{folder}"
        self.description = f"the graph of GraphNet in {self._folder}"
        self._tensors = _described(parse(self._folder / "weight_meta.py"))
        self._arguments = [argument.arg for argument in self.definition.args.args[1:]]
        if missing := [name for name in self._arguments if name not in self._tensors]:
            raise UsageError(f"{self.name}: weight_meta.py says nothing of {missing[0]}")

    def _required(self, name: str) -> ast.FunctionDef:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return functions_of(node)["forward"]
        raise UsageError(f"{self.path} has no class {name}: graphnet: takes a folder of GraphNet's samples")

    def _dimensions(self) -> dict[str, Dimension]:
        return {}

    def _tree_for(self, dimensions: object) -> ast.Module:
        """Make what the graph makes on the device that its first tensor lies on, and not on the extractor's GPU."""
        first = next(name for name in self._arguments if self._tensors[name]["shape"])
        tree: ast.Module = _OnDeviceOf(first).visit(parse(self.path))
        tree.body[:0] = ast.parse(HELPER).body
        return ast.fix_missing_locations(tree)

    def _make(self, module: ModuleType, dimensions: object, seed: int) -> tuple[Any, tuple[Any, ...]]:
        from bakeoff.models.graphnet_module import Graph, drawn

        values = {name: drawn(name, self._tensors[name]) for name in self._arguments}
        own = {
            name: value for name, value in values.items() if name.startswith("L_self_") or not torch.is_tensor(value)
        }
        inputs = tuple(value for name, value in values.items() if name not in own)
        if not inputs:
            raise UsageError(f"{self.name}: all tensors are the module's own, and a call has none")
        return Graph(getattr(module, GRAPH)(), self._arguments, own), inputs


class _OnDeviceOf(ast.NodeTransformer):
    def __init__(self, tensor: str) -> None:
        self._tensor = tensor

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name("device"):
                return ast.Name(DEVICE, ast.Load())
            case ast.Attribute(value, "item"):  # of a number, which was a tensor for the extractor
                return ast.Call(ast.Name("_item", ast.Load()), [value], [])
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name == "forward":
            node.body[:0] = ast.parse(f"{DEVICE} = {self._tensor}.device").body
        return node


def _described(tree: ast.Module) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            attributes: dict[str, Any] = {}
            for statement in node.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        with contextlib.suppress(ValueError):  # float("nan")
                            attributes[name] = ast.literal_eval(value)
            described[attributes["name"]] = attributes
    return described
