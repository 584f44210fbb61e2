"""What is read from a user's file without running it: its functions, what it imports, and a factory's dimensions."""

import ast
import copy
import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from bakeoff.models.base import Dimension
from bakeoff.models.importing import spec_of
from bakeoff.records.errors import UsageError, os_reason


def parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError:
        folder = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise UsageError(f"no file {path}{folder}: write path/to/file.py:FUNCTION") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os_reason(error)}") from None
    except (SyntaxError, ValueError) as error:  # before Python 3.12 a null byte raises ValueError
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}{f', line {line}' if line else ''}: {getattr(error, 'msg', error)}") from None


def function_in(
    tree: ast.Module, name: str, package: str, places: Sequence[str], seen: tuple[str, ...] = ()
) -> ast.FunctionDef | None:
    """Return the function that a parsed file of this package has under a name, wherever it is written, or None."""
    if name in (functions := functions_of(tree)) or (imported := imports_of(tree).get(name)) is None:
        return functions.get(name)
    module, original = imported
    if module.startswith("."):
        if not package:
            return None
        module = importlib.util.resolve_name(module, package)
    spec = spec_of(module, places)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py") or spec.origin in seen:
        return None
    return function_in(parse(Path(spec.origin)), original, spec.parent or "", places, (*seen, spec.origin))


def imports_of(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the modules from which a file imports names, and the names that they have there."""
    return {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def functions_of(tree: ast.Module | ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def others_of(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what else a file has by name: classes, what it assigns, and functions inside of an `if` or `try`."""
    others: dict[str, ast.stmt] = {}
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                others[name] = statement
            case ast.Assign(targets=targets):
                others |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                others[name] = statement
            case ast.If() | ast.Try():
                inside = ast.Module(
                    [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)], []
                )
                others |= others_of(inside) | functions_of(inside)
    return others


def constants_of(tree: ast.Module) -> dict[str, int | str]:
    """Return the whole numbers and texts that a file assigns to names at its top level. `2 * 64` is one, too."""
    values = {name: _constant(statement.value) for name, statement in _assignments(tree) if statement.value}
    return {name: value for name, value in values.items() if value is not None and not name.startswith("_")}


def with_constants(tree: ast.Module, values: Mapping[str, int | str]) -> ast.Module:
    """Return the file with these values in place of the constants that it assigns to their names."""
    tree = copy.deepcopy(tree)
    for name, statement in _assignments(tree):
        if name in values and statement.value:
            statement.value = ast.copy_location(ast.Constant(values[name]), statement.value)
    return tree


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign]]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, statement


def _constant(expression: ast.expr) -> int | str | None:
    arithmetic = ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
    if not all(isinstance(node, arithmetic) for node in ast.walk(expression)):
        return None
    try:
        value = eval(compile(ast.Expression(expression), "", "eval"), {"__builtins__": {}})
    except (ArithmeticError, TypeError, ValueError):
        return None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def parameters_of(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    by_position = list(zip(positional, defaults, strict=True))
    yield from by_position[len(arguments.posonlyargs) :]
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def dimensions_of(model: str, function: ast.FunctionDef) -> dict[str, Dimension]:
    if function.args.posonlyargs:
        parameter = function.args.posonlyargs[0].arg
        raise UsageError(f"{model}: parameter '{parameter}' is positional-only: remove the '/' after it")
    return {
        parameter.arg: _dimension(model, parameter.arg, default)
        for parameter, default in parameters_of(function)
        if parameter.arg != "seed"
    }


def _dimension(model: str, parameter: str, default: ast.expr | None) -> Dimension:
    try:
        value = ast.literal_eval(default) if default is not None else None
    except (ValueError, TypeError):  # TypeError for a set or dict with unhashable items
        value = None
    return dimension_of(model, parameter, value, ast.unparse(default) if default is not None else "")


def dimension_of(model: str, parameter: str, value: object, written: str = "") -> Dimension:
    """Return the dimension of a factory's parameter with this default, which may be written in another way. Raise
    UsageError where it has no default, or one that is no size."""
    remedy = f"give it a whole number or a string, like {parameter}=8"
    if value is None and not written:
        raise UsageError(f"{model}: parameter '{parameter}' has no default: {remedy}")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{model}: parameter '{parameter}' has the default {written or repr(value)}: {remedy}")
    # a count such as that of extra layers may be 0; a parameter whose default is no count may be anything
    minimum = 0 if isinstance(value, str) or value >= 1 else -sys.maxsize
    return Dimension(value, "a size or a choice of the file", minimum)


def refuse_relative_imports(source: str, factory: str, tree: ast.Module) -> None:
    """Raise UsageError if the file imports from the package that it lies in, which a file alone cannot do."""
    path = Path(source).resolve()
    packages = [folder.name for folder in takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents)]
    parts = [*packages[::-1], path.stem] if packages else Path(source).with_suffix("").parts
    holder = path.parents[len(packages)]
    where = f" ({holder})" if packages and holder != Path.cwd() else ""  # as in a src/ layout
    module = ".".join(parts) if all(part.isidentifier() for part in parts) else f"package.{parts[-1]}"
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            raise UsageError(
                f"{source}, line {node.lineno}, imports from its own package: stand in the folder that holds the "
                f"package{where}, and write {module}:{factory}"
            )


def likely_factory(path: Path) -> str:
    """Return the name of the function in the file that most likely is the factory, or `factory` if there is none."""
    try:
        tree = parse(path)
    except UsageError:
        return "factory"
    functions = {name: function for name, function in functions_of(tree).items() if not name.startswith("_")}
    names = [name for name, function in functions.items() if may_return_model_and_inputs(function)]
    names += {"factory"} & imports_of(tree).keys()
    others = {name: node for name, node in others_of(tree).items() if not name.startswith("_") and not functions}
    names = names or [
        name for name, node in others.items() if not isinstance(getattr(node, "value", None), NO_FUNCTION)
    ]
    return "factory" if "factory" in names or not names else names[-1]


NO_FUNCTION = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.BinOp, ast.UnaryOp)
"""What surely makes no function."""


def may_return_model_and_inputs(function: ast.FunctionDef) -> bool:
    """Return False for a function that surely returns something else, such as a list of inputs."""
    other = ast.List | ast.ListComp | ast.Dict | ast.DictComp | ast.Set | ast.Constant | ast.JoinedStr
    return not any(isinstance(node, ast.Return) and isinstance(node.value, other) for node in ast.walk(function))


MODULES = {
    "diffusers": "diffusers.models.modeling_utils",
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers.modeling_utils",
}
"""The libraries, and the module of each that imports most of it."""

_HARMLESS = {*sys.stdlib_module_names, *MODULES, "bakeoff", "numpy", "torch"}
_MEDDLING = {"__import__", "environ", "exec", "importlib", "putenv", "setattr", "sys"}


def big_libraries_of(tree: ast.Module) -> tuple[str, ...]:
    """Return what a parsed file imports of big libraries, at its top or in a function, as dotted names: the modules,
    and what is taken from them. There are none if the file may change what such an import does."""
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
