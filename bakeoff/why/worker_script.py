"""Writes a part of a model as Python that needs torch alone: it defines `model` and `inputs`.

An operator is written as its call, and a module of torch.nn by its arguments. A module of the user's own is written
with the source of its class, and of what that refers to; its attributes are set without calling `__init__`. Any module
that torch.export takes is also written as the graph that this traces.
"""

import ast
import builtins
import inspect
import math
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.records.package import PACKAGE
from bakeoff.why.worker_parts import TENSOR, Form, OneOperator, Part, exported, is_assertion


class NotWritten(Exception):
    """Something has no source that stands alone."""


def sources_of(part: Part, dtype: torch.dtype) -> list[tuple[str, str]]:
    """Return ways to write a part, the best first: what each was made from, and the source."""
    made = []
    for made_from, write in WAYS.items():
        try:
            takes_flat = write in (of_operator, of_graph)
            made.append((made_from, f"{write(part, dtype)}\n{inputs_of(part, dtype, takes_flat)}"))
        except Exception:  # the user's own code may keep anything from being written, or from being exported
            continue
    return made


def of_operator(part: Part, dtype: torch.dtype) -> str:
    """Return a module that calls the part's operator."""
    if not isinstance(part.module, OneOperator):
        raise NotWritten
    form = part.module.form
    names = [f"x{number}" for number in range(form.tensors)]
    return "\n".join(
        [
            "class Model(torch.nn.Module):",
            f"    def forward({', '.join(['self', *names])}):",
            f"        return {part.operator}({spelled_call(form)})",
            "",
            "",
            "model = Model().eval()",
        ]
    )


def of_torch(part: Part, dtype: torch.dtype) -> str:
    """Return a module of torch.nn by its arguments."""
    return f"model = {made_by_torch(part.module)}.eval().to({dtype})"


def made_by_torch(module: torch.nn.Module) -> str:
    """Return the call that makes a module of torch.nn that holds no others, as its `repr` tells it."""
    words = repr(module)
    if not is_torchs(module) or list(module.children()) or "\n" in words:
        raise NotWritten
    source = f"torch.nn.{words}"
    again = eval(source, {"torch": torch})
    theirs, ours = again.state_dict(), module.state_dict()
    if {name: value.shape for name, value in theirs.items()} != {name: value.shape for name, value in ours.items()}:
        raise NotWritten
    return source


def is_torchs(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def of_source(part: Part, dtype: torch.dtype) -> str:
    """Return the source of a module's classes, and lines that set the attributes of its instances."""
    if isinstance(part.module, OneOperator):
        raise NotWritten
    written = Written()
    lines = list(lines_of_module(part.module, "model", written, set()))
    return "\n".join([*written.imports, "", *written.definitions, "", *lines, "model.eval()"])


class Written:
    """Imports and definitions that code refers to, each once, in an order in which they can be carried out."""

    def __init__(self) -> None:
        self.imports: dict[str, None] = {}
        self.definitions: list[str] = []
        self._known: dict[str, Any] = {"torch": torch}

    def add(self, thing: Any) -> str:
        """Add a class or a function of the user's own with all that it refers to. Return its name."""
        name: str = thing.__name__
        if name in self._known:
            if self._known[name] is not thing:
                raise NotWritten(f"two things are called {name}")
            return name
        self._known[name] = thing
        source = textwrap.dedent(inspect.getsource(thing))
        scope = vars(inspect.getmodule(thing) or types)
        if thing.__qualname__ != name:
            raise NotWritten(f"{name} is defined inside of something else")
        for used in names_in(source):
            if used in scope:
                self._refer(used, scope[used])
            elif not hasattr(builtins, used) and used != name:
                raise NotWritten(f"{used} is not known")
        self.definitions += [source.rstrip(), "", ""]
        return name

    def _refer(self, name: str, value: Any) -> None:
        if self._known.get(name) is value:
            return
        if isinstance(value, types.ModuleType):
            require_installed(value)
            self.imports[f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"] = None
        elif isinstance(value, type | types.FunctionType) and is_users(value):
            if self.add(value) != name:
                self.definitions.append(f"{name} = {value.__name__}\n")
        elif getattr(value, "__module__", None) and hasattr(value, "__name__"):
            require_installed(inspect.getmodule(value))
            self.imports[f"from {value.__module__} import {value.__name__} as {name}"] = None
        elif type(value).__module__ == "__future__":
            self.imports[f"from __future__ import {name}"] = None
        else:
            self.definitions.append(f"{name} = {literal(value)}\n")
        self._known[name] = value


def names_in(source: str) -> Iterator[str]:
    """Return the names that a definition reads and does not make itself, each once."""
    tree = ast.parse(source)
    made = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    read = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    yield from (name for name in read if name not in made)


def is_users(thing: Any) -> bool:
    """Return True for what is defined in a file that is neither installed nor ours."""
    try:
        path = Path(inspect.getsourcefile(thing) or "")
    except TypeError:
        return False
    return bool(path.name) and not {"site-packages", "dist-packages"} & set(path.parts) and not is_standard(path)


def is_standard(path: Path) -> bool:
    return path.is_relative_to(Path(inspect.getsourcefile(ast) or "").parent) or path.resolve().is_relative_to(PACKAGE)


def require_installed(module: types.ModuleType | None) -> None:
    """Raise NotWritten for a module that is not torch's, NumPy's or the standard library's."""
    top = (module.__name__ if module else "").partition(".")[0]
    if top not in ("torch", "numpy", "builtins", "_operator") and not is_standard(
        Path(getattr(module, "__file__", ""))
    ):
        raise NotWritten(f"it uses {top}")


def lines_of_module(module: torch.nn.Module, name: str, written: Written, seen: set[int]) -> Iterator[str]:
    """Return lines that make a module like this one under a name, with other values in its tensors."""
    if id(module) in seen:
        raise NotWritten("a module stands in two places")
    seen.add(id(module))
    if is_torchs(module) and not list(module.children()):
        yield f"{name} = {made_by_torch(module)}"
        if dtypes := {str(tensor.dtype) for tensor in module.parameters()} - {"torch.float32"}:
            yield f"{name} = {name}.to({dtypes.pop()})"
        return
    if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList) and is_torchs(module):
        yield f"{name} = torch.nn.{type(module).__name__}()"
    elif is_users(type(module)):
        yield f"{name} = {written.add(type(module))}.__new__({type(module).__name__})"
        yield f"torch.nn.Module.__init__({name})"
    else:
        raise NotWritten(f"{type(module).__name__} is not the user's own")
    for key, value in vars(module).items():
        if key not in vars(torch.nn.Module()):
            yield f"{name}.{key} = {literal(value)}"
    for key, weight in module._parameters.items():
        value = f"torch.nn.Parameter({source_of_tensor(weight)})" if weight is not None else "None"
        yield f"{name}.register_parameter({key!r}, {value})"
    for key, buffer in module._buffers.items():
        yield f"{name}.register_buffer({key!r}, {source_of_tensor(buffer) if buffer is not None else None})"
    for number, (key, child) in enumerate(module._modules.items()):
        if child is None:
            yield f"{name}.{key} = None"
            continue
        own = f"{name}_{number}"
        yield from lines_of_module(child, own, written, seen)
        yield f"{name}.add_module({key!r}, {own})"


def of_graph(part: Part, dtype: torch.dtype) -> str:
    """Return the graph that torch.export traces, as a module of plain operators."""
    if isinstance(part.module, OneOperator):
        raise NotWritten
    graph = exported(part, dtype)
    lines = ["class Model(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    renamed: dict[str, str] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target not in renamed:
            value: Any = graph
            for step in node.target.split("."):
                value = getattr(value, step)
            if not isinstance(value, torch.Tensor):
                raise NotWritten("its graph holds other graphs")
            renamed[node.target] = f"weight_{len(renamed)}"
            lines.append(f"        self.register_buffer({renamed[node.target]!r}, {source_of_tensor(value)})")
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    lines += ["", f"    def forward({', '.join(['self', *names])}):"]
    for node in graph.graph.nodes:
        if is_assertion(node):
            continue
        if node.op == "get_attr":
            lines.append(f"        {node.name} = self.{renamed[node.target]}")
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            args = [literal(each) for each in node.args]
            kwargs = [f"{key}={literal(each)}" for key, each in node.kwargs.items()]
            lines.append(f"        {node.name} = torch.ops.{node.target}({', '.join(args + kwargs)})")
        elif node.op == "call_function" and node.target.__name__ == "getitem":
            lines.append(f"        {node.name} = {literal(node.args[0])}[{literal(node.args[1])}]")
        elif node.op == "output":
            outputs = [each for each in pytree.tree_leaves(node.args[0]) if isinstance(each, torch.fx.Node)]
            lines.append(f"        return {', '.join(map(literal, outputs))}")
        elif node.op not in ("placeholder", "call_module"):  # the only modules are guards
            raise NotWritten(f"its graph has {node.target}")
    return "\n".join([*lines, "", "", "model = Model().eval()"])


WAYS = {"the operator": of_operator, "torch.nn": of_torch, "its source": of_source, "its traced graph": of_graph}


def inputs_of(part: Part, dtype: torch.dtype, takes_flat: bool) -> str:
    """Return lines that make inputs of the part's shapes and types. They are a tuple of tensors, so that a module with
    other arguments gets a module around it that passes them on."""
    form = Form.of(part.inputs.args, part.inputs.kwargs)
    tensors = part.given(dtype).tensors()
    made = [source_of_tensor(tensor) for tensor in tensors]
    inputs = f"inputs = ({', '.join(made)}{',' if len(made) == 1 else ''})"
    is_plain = not part.inputs.kwargs and all(leaf is TENSOR for leaf in form.leaves)
    if takes_flat or (is_plain and len(part.inputs.args) == len(tensors)):
        return inputs
    names = [f"x{number}" for number in range(len(tensors))]
    lines = [
        "",
        "",
        "class Flat(torch.nn.Module):",
        "    def __init__(self, inner):",
        "        super().__init__()",
        "        self.inner = inner",
        "",
        f"    def forward({', '.join(['self', *names])}):",
        f"        return self.inner({spelled_call(form)})",
        "",
        "",
        "model = Flat(model).eval()",
    ]
    return "\n".join([*lines, inputs])


def spelled_call(form: Form) -> str:
    """Return the arguments of a call, with its tensors as x0, x1 and so on."""
    numbers = iter(range(form.tensors))
    args, kwargs = pytree.tree_unflatten(
        [Name(f"x{next(numbers)}" if leaf is TENSOR else literal(leaf)) for leaf in form.leaves], form.structure
    )
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])


class Name(str):
    """A text that stands for itself in source."""

    def __repr__(self) -> str:
        return str(self)


def literal(value: Any) -> str:
    """Return the source of a constant, or of what holds constants. Raises NotWritten for anything else."""
    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(map(literal, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items()) + "}"
    raise NotWritten(f"a {type(value).__name__} has no short source")


def source_of_tensor(tensor: torch.Tensor) -> str:
    """Return the source of a tensor like this one: of its shape and type, with other values."""
    shape = tuple(tensor.shape)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return f"torch.randn({shape}).to({tensor.dtype})"
    if tensor.is_floating_point() or tensor.is_complex():
        return (
            f"torch.randn({shape})" if tensor.dtype is torch.float32 else f"torch.randn({shape}, dtype={tensor.dtype})"
        )
    if tensor.dtype == torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    low, high = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
    return f"torch.randint({low}, {high}, {shape}, dtype={tensor.dtype})"
