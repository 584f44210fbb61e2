"""Compares a fake with the real library by the syntax of both: the fake must not take more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Definitions = dict[str, list[ast.stmt]]
"""Each public name with its definitions; an overloaded name has several."""


@dataclass(frozen=True)
class Parameter:
    name: str
    keyword_only: bool
    required: bool
    type: str


def public(body: list[ast.stmt]) -> Definitions:
    """Return the names that the body of a module or class defines, without those that begin with an underscore."""
    found: Definitions = {}
    for node in body:
        for name in _names(node):
            if name in ("__init__", "__version__") or not name.startswith("_"):
                found.setdefault(name, []).append(node)
    return found


def excess(ours: Definitions, theirs: Mapping[str, list[ast.stmt]], types: bool, where: str = "") -> Iterator[str]:
    """Yield a line for each thing that `ours` has or takes and `theirs` does not. With `types`, compare annotations."""
    for name, (node, *_) in ours.items():
        label = f"{where}{name}"
        if name not in theirs:
            yield f"{label} does not exist"
            continue
        real = theirs[name]
        if isinstance(node, ast.ClassDef):
            (their_class,) = (other for other in real if isinstance(other, ast.ClassDef))
            yield from excess(public(node.body), public(their_class.body), types, f"{label}.")
        elif isinstance(node, ast.FunctionDef) and not _is_property(node):
            functions = [other for other in real if isinstance(other, ast.FunctionDef) and not _is_property(other)]
            if not any(_takes(other, node, types) for other in functions):
                taken = [ast.unparse(other.args) for other in functions]
                yield f"{label}({ast.unparse(node.args)}) fits none of {taken}"
        elif isinstance(node, ast.FunctionDef):
            if not any(_is_property(other) or isinstance(other, ast.AnnAssign) for other in real):
                yield f"{label} is a method, not a property"
        elif isinstance(node, ast.AnnAssign) and _is_instances(node) and not any(map(_is_settable, real)):
            yield f"{label} cannot be set"


def parameters(function: ast.FunctionDef) -> list[Parameter]:
    """Return the named parameters of `function`, without `self`, `cls`, `*args` and `**kwargs`."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    optional = len(given.defaults)
    found = [
        Parameter(arg.arg, False, index < len(positional) - optional, _type(arg.annotation))
        for index, arg in enumerate(positional)
    ]
    found += [
        Parameter(arg.arg, True, default is None, _type(arg.annotation))
        for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return [one for one in found if one.name not in ("self", "cls")]


def _takes(theirs: ast.FunctionDef, ours: ast.FunctionDef, types: bool) -> bool:
    """Return whether `theirs` takes every call that `ours` takes."""
    real = {one.name: one for one in parameters(theirs)}
    mine = {one.name: one for one in parameters(ours)}
    if not mine.keys() <= real.keys() or any(one.required and one.name not in mine for one in real.values()):
        return False
    in_order = [name for name, one in mine.items() if not one.keyword_only]
    if in_order != [name for name, one in real.items() if not one.keyword_only][: len(in_order)]:
        return False
    if any(real[name].required and not one.required for name, one in mine.items()):
        return False
    if not types:
        return True
    returned = _type(ours.returns).removesuffix(" | None")  # no signature of the bindings says that it may be None
    return returned == _type(theirs.returns) and all(real[name].type == one.type for name, one in mine.items())


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [ast.unparse(node.target)]
    return [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []


def _type(annotation: ast.expr | None) -> str:
    """Return an annotation in the form that both sides share."""
    return re.sub(r"\btyping\.|\b_(?=bool\b)", "", ast.unparse(annotation)) if annotation else ""


def _decorators(node: ast.stmt) -> list[str]:
    return [ast.unparse(one) for one in node.decorator_list] if isinstance(node, ast.FunctionDef) else []


def _is_property(node: ast.stmt) -> bool:
    return any(one == "property" or one.endswith(".setter") for one in _decorators(node))


def _is_instances(node: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(node.annotation)


def _is_settable(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) or any(one.endswith(".setter") for one in _decorators(node))
