"""A file with a class `Model`, as those of KernelBench: `path/to/file.py`, without a factory (docs/recipes.md).

The file runs with what is set in place of its dimensions, so that what it computes from them follows. Where all calls
of `get_inputs` return equal inputs, further sets are made from the first.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from bakeoff.models import source_code
from bakeoff.models.base import INPUT_SETS, Call, Dimension, Inputs, Sizes, call_of
from bakeoff.models.lazily import torch
from bakeoff.models.user import UserModel
from bakeoff.records.errors import UsageError
from bakeoff.records.text import listed

FORM = ("Model", "get_inputs", "get_init_inputs")


def has_form(path: Path) -> bool:
    """Return True for a file with the class and the two functions. Raise UsageError for one that cannot be parsed."""
    return not _lacking(path)


def require_whole_form(path: Path) -> None:
    """Raise UsageError where a file has some of the three, and where no function can be its factory instead."""
    lacking, functions = _lacking(path), source_code.functions_of(source_code.parse(path))
    if "get_inputs" in lacking and "get_init_inputs" in lacking:
        return
    if lacking and not any(
        source_code.may_return_model_and_inputs(function) for name, function in functions.items() if name not in FORM
    ):
        parts = {name: f"{'class' if name == FORM[0] else 'function'} {name}" for name in FORM}
        has = listed([text for name, text in parts.items() if name not in lacking])
        raise UsageError(f"{path} has the {has}, and lacks the {listed([parts[name] for name in lacking])}")


def _lacking(path: Path) -> list[str]:
    tree = source_code.parse(path)
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return [name for name in FORM if name not in classes | source_code.functions_of(tree).keys()]


class ModelFile(UserModel):
    """The class `Model` of a file, with what its functions return."""

    dimensions_stand_in = "dimensions are the names that the file assigns whole numbers and texts at its top level"

    def __init__(self, source: str) -> None:
        super().__init__(source, "get_inputs")
        self.name = source
        (model,) = [node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == FORM[0]]
        self.description = (ast.get_docstring(model) or "a model of your own").partition("\n")[0]

    def _dimensions(self) -> dict[str, Dimension]:
        constants = source_code.constants_of(self.tree)
        return {name: source_code.dimension_of(self.name, name, value) for name, value in constants.items()}

    def _tree_for(self, dimensions: Sizes) -> ast.Module:
        return source_code.with_constants(self.tree, dimensions)

    def _make(self, module: ModuleType, dimensions: Sizes, seed: int) -> tuple[Any, list[Call]]:
        initial = module.get_init_inputs()
        match initial:
            case [list() | tuple() as args, Mapping() as kwargs]:
                arguments = Call(tuple(args), kwargs)
            case _:
                arguments = call_of(initial)
        model = module.Model(*arguments.args, **arguments.kwargs)
        calls = [call_of(module.get_inputs()) for _ in range(INPUT_SETS)]
        first, *others = (Inputs(call.args, call.kwargs).tensors() for call in calls)
        differ = any(
            not torch.equal(ours, theirs) for other in others for ours, theirs in zip(first, other, strict=False)
        )
        return model, calls if differ else calls[:1]
