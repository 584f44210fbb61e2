"""Which big libraries a user's file imports. Fork servers import them once for all workers.

Importing transformers takes 2.6 s of a core (version 5, an AMD EPYC), which each process of each cell took again.
"""

import ast
import sys
from collections.abc import Collection

MODULES = {
    "diffusers": "diffusers.models.modeling_utils",
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers.modeling_utils",
}
"""The libraries, and the module of each that imports most of it."""

_HARMLESS = {*sys.stdlib_module_names, *MODULES, "bakeoff", "numpy", "torch"}
_MEDDLING = {"__import__", "environ", "exec", "importlib", "putenv", "setattr", "sys"}


def imported_by(tree: ast.Module) -> tuple[str, ...]:
    """Return what a parsed file imports of big libraries, at its top or in a function, as dotted names.

    These are the module of each library, and what the file takes from it: transformers imports a model's own module
    when the model is first asked for.

    There are none if the file may change what such an import does: if it imports other modules than these libraries'
    and Python's, names what steers imports, or sets an attribute of what it imports.
    """
    nodes = list(ast.walk(tree))
    names: list[tuple[str, str]] = []  # what the file imports from a module, and that module
    modules: dict[str, str] = {}  # that the file imports or imports from, by the names in the file
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            modules |= {alias.asname or alias.name: source for alias in node.names}
            names += [(alias.name, source) for alias in node.names]
        elif isinstance(node, ast.Import):
            modules |= {(alias.asname or alias.name).partition(".")[0]: alias.name for alias in node.names}
    libraries = {module.partition(".")[0] for module in modules.values()}
    if libraries - _HARMLESS or any(_meddles(node, modules) for node in nodes):
        return ()
    taken = {f"{source}.{name}" for name, source in names if name != "*" and source.partition(".")[0] in MODULES}
    return (*(module for library, module in MODULES.items() if library in libraries), *sorted(taken))


def _meddles(node: ast.AST, imported: Collection[str]) -> bool:
    match node:
        case ast.Name(id=name) if name in _MEDDLING:
            return True
        case ast.Attribute(attr=name) | ast.alias(name=name) if name in _MEDDLING:
            return True
        case ast.Attribute(ctx=ast.Store()):
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                base = base.value
            return isinstance(base, ast.Name) and base.id in imported
    return False
