"""Compares a fake with the real library by the syntax of both: the fake must not take more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Parameter(NamedTuple):
    name: str
    keyword_only: bool
    required: bool


def public(definition: ast.ClassDef) -> dict[str, ast.stmt]:
    """Return what a class defines, without names that begin with an underscore."""
    found: dict[str, ast.stmt] = {}
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def excess(ours: ast.stmt, theirs: ast.stmt, label: str) -> Iterator[str]:
    """Yield a line for each thing that our class or function has or takes, and theirs does not."""
    if isinstance(ours, ast.ClassDef) and isinstance(theirs, ast.ClassDef):
        real = public(theirs)
        for name, node in public(ours).items():
            if name in real:
                yield from excess(node, real[name], f"{label}.{name}")
            else:
                yield f"{label}.{name} does not exist"
    elif isinstance(ours, ast.FunctionDef) and not (isinstance(theirs, ast.FunctionDef) and _takes(theirs, ours)):
        yield f"{label}({ast.unparse(ours.args)}) does not fit {ast.unparse(theirs).splitlines()[0]}"


def parameters(function: ast.FunctionDef) -> list[Parameter]:
    """Return the named parameters of `function`, without `self`, `cls`, `*args` and `**kwargs`."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    optional = len(given.defaults)
    found = [Parameter(arg.arg, False, index < len(positional) - optional) for index, arg in enumerate(positional)]
    found += [
        Parameter(arg.arg, True, default is None)
        for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return [one for one in found if one.name not in ("self", "cls")]


def _takes(theirs: ast.FunctionDef, ours: ast.FunctionDef) -> bool:
    """Return whether `theirs` takes every call that `ours` takes."""
    real = {one.name: one for one in parameters(theirs)}
    mine = {one.name: one for one in parameters(ours)}
    if not mine.keys() <= real.keys() or any(one.required and one.name not in mine for one in real.values()):
        return False
    in_order = [name for name, one in mine.items() if not one.keyword_only]
    if in_order != [name for name, one in real.items() if not one.keyword_only][: len(in_order)]:
        return False
    return all(one.required or not real[name].required for name, one in mine.items())
