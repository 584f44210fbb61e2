"""Parts of a model that are called alone: modules and operators, with the inputs that they get in float64."""

from __future__ import annotations

import copy
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from bakeoff.backends.calling import FlatModule, flatten_outputs
from bakeoff.backends.inductor_profiling import module_of_node
from bakeoff.models.base import Inputs
from bakeoff.records.package import PACKAGE
from bakeoff.truth.calls import copied
from bakeoff.truth.witnesses import KeepFloat64, is_cast

OPERATOR = "operator"
"""The kind of a part that is a single operator."""

MASK = 1e30
"""A value beyond this stands for infinity, as in the masks of attention. In each type it is that type's largest."""


@dataclass(frozen=True)
class ModelPart:
    """A part of the model: in the cell's precision, in float64 with the model's own weights, and its inputs."""

    name: str
    kind: str
    module: torch.nn.Module
    exact: torch.nn.Module
    inputs: Inputs  # in float64
    path: str = ""  # of its module in the whole model
    line: str = ""  # of the user's code that calls the operator
    operator: str = ""  # of a part that is a single one, as source: `torch.ops.aten.addmm.default`
    outputs: tuple[torch.Tensor, ...] = ()  # those that have a floating point, in float64, if they are known

    def given(self, dtype: torch.dtype) -> Inputs:
        """Return its inputs as a cell of this type gets them, in memory of their own."""
        return self.inputs.map(lambda tensor: rounded(tensor, dtype))


@dataclass(frozen=True)
class Form:
    """How a flat list of tensors becomes the arguments of a call."""

    leaves: tuple[Any, ...]
    structure: Any

    @classmethod
    def of(cls, args: Any, kwargs: Mapping[str, Any]) -> Form:
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        return cls(tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), structure)

    @property
    def tensors(self) -> int:
        return sum(leaf is TENSOR for leaf in self.leaves)

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        remaining = iter(tensors)
        filled = [next(remaining) if leaf is TENSOR else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(filled, self.structure)
        return args, kwargs


TENSOR = "<tensor>"


class OneOperator(torch.nn.Module):
    """A single operator, with the arguments that are no tensors as constants."""

    def __init__(self, target: Callable[..., Any], form: Form) -> None:
        super().__init__()
        self.target, self.form = target, form
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self.form.arguments(tensors)
        return self.target(*args, **kwargs)


class Beside(torch.nn.Module):
    """Parts of a model beside each other, each with arguments of its own: one build shows the errors of all. It takes
    all their tensors by position, and returns those of their outputs that have a floating point."""

    def __init__(self, parts: Sequence[ModelPart]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(part.module for part in parts)
        self._forms = [Form.of(part.inputs.args, part.inputs.kwargs) for part in parts]
        self.training = False  # the parts stay in the modes that they are in

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs: list[torch.Tensor] = []
        returned: Any = None
        begin = 0
        for module, form in zip(self.parts, self._forms, strict=True):
            own = [tensor.clone() for tensor in tensors[begin : begin + form.tensors]]  # a part may write into them
            begin += form.tensors
            args, kwargs = form.arguments(own)
            returned = module(*args, **kwargs)
            outputs += floats(returned)
        if not outputs:
            flatten_outputs(returned)  # where it holds no tensor, this raises an error that says what was returned
        return tuple(outputs)


class Watched(torch.nn.Module):
    """A model that takes flat tensors and returns what calls of some of its modules return, in order. It is a context
    manager: leaving it takes the hooks off the model."""

    def __init__(self, module: torch.nn.Module, form: Form, paths: Collection[str]) -> None:
        super().__init__()
        self.module = module
        self._form = form
        self._seen: list[torch.Tensor] = []
        self._handles = [module.get_submodule(path).register_forward_hook(self._note) for path in paths]
        self.training = False

    def _note(self, _: torch.nn.Module, args: Any, outputs: Any) -> None:
        self._seen.extend([tensor.clone() for tensor in floats(outputs)])

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._seen.clear()
        args, kwargs = self._form.arguments(tensors)
        self.module(*args, **kwargs)
        seen = tuple(self._seen)
        self._seen.clear()  # torch.export warns of attributes that have changed
        return seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


@dataclass
class CallOf:
    """A call of a module inside of a part: which one, what it called, with which inputs, and what it returned."""

    path: str
    number: int  # of the calls of this module, from 0
    inputs: Inputs
    outputs: tuple[torch.Tensor, ...] = ()
    children: list[CallOf] = field(default_factory=list)
    passes_on: bool = False  # it returns what it got, as dropout does

    def named(self, prefix: str) -> str:
        path = f"{prefix}.{self.path}" if prefix else self.path
        return f"{path} (call {self.number + 1})" if self.number else path

    @property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)

    def within(self) -> Iterator[CallOf]:
        """Return all calls below this one, in the order in which they end."""
        for child in self.children:
            yield from child.within()
            yield child


def calls_in(part: ModelPart, keeps: Callable[[str], bool] = lambda path: True) -> CallOf:
    """Run a part in float64, and return the tree of the calls of its modules, with the inputs and outputs of those that
    `keeps` names. Lists of modules are not called, so they are no part of it."""
    root = CallOf("", 0, part.inputs)
    stack, counts = [root], dict[str, int]()

    def enter(path: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, args: Any, kwargs: Any) -> None:
            number = counts.get(path, 0)
            counts[path] = number + 1
            call = CallOf(path, number, copied(Inputs(args, kwargs)) if keeps(path) else Inputs())
            stack[-1].children.append(call)
            stack.append(call)

        return hook

    def leave(path: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            call = stack.pop()
            returned = floats(outputs)
            given = {id(tensor) for tensor in Inputs(args, kwargs).tensors()}
            call.passes_on = not returned or all(id(tensor) in given for tensor in returned)
            if keeps(path):
                call.outputs = tuple(tensor.clone() for tensor in returned)

        return hook

    handles = []
    for path, module in part.exact.named_modules():
        if path:
            handles.append(module.register_forward_pre_hook(enter(path), with_kwargs=True))
            handles.append(module.register_forward_hook(leave(path), with_kwargs=True))
    try:
        root.outputs = tuple(floats(run_exactly(part.exact, part.inputs)))
    finally:
        for handle in handles:
            handle.remove()
    return root


def run_exactly(module: torch.nn.Module, inputs: Inputs) -> Any:
    """Run a module in float64 with everything in float64, casts to narrower types too."""
    own = copied(inputs)
    with torch.no_grad(), KeepFloat64(widens_16_bits=True):
        return module(*own.args, **own.kwargs)


def part_of_call(part: ModelPart, call: CallOf) -> ModelPart:
    module, exact = part.module.get_submodule(call.path), part.exact.get_submodule(call.path)
    return ModelPart(
        call.named(part.name),
        type(module).__name__,
        module,
        exact,
        without_objects(exact, call),
        f"{part.path}.{call.path}" if part.path else call.path,
        outputs=call.outputs,
    )


PLAIN = (torch.Tensor, type(None), bool, int, float, complex, str, torch.dtype, torch.device)


def without_objects(exact: torch.nn.Module, call: CallOf) -> Inputs:
    """Return the inputs of a call, with None in place of objects if it then returns the same. A cache, for example, was
    filled in float64 by the call itself, so that another call cannot take it."""
    leaves, structure = pytree.tree_flatten((call.inputs.args, dict(call.inputs.kwargs)))
    if all(isinstance(leaf, PLAIN) for leaf in leaves):
        return call.inputs
    args, kwargs = pytree.tree_unflatten([leaf if isinstance(leaf, PLAIN) else None for leaf in leaves], structure)
    try:
        returned = floats(run_exactly(exact, Inputs(args, kwargs)))
        pairs = zip(returned, call.outputs, strict=True)
        is_same = all(torch.allclose(ours, theirs, equal_nan=True) for ours, theirs in pairs)
    except Exception:  # the module needs the object
        return call.inputs
    return Inputs(args, kwargs) if is_same else call.inputs


def children_of(part: ModelPart) -> list[ModelPart]:
    """Return the modules that a part's own code calls, in that order. Those that return what they get are left out."""
    if part.operator:
        return []
    wanted = {call.path for call in calls_in(part, keeps=lambda path: False).children}
    calls = calls_in(part, keeps=wanted.__contains__).children
    return [part_of_call(part, call) for call in calls if not call.passes_on]


def along_depth(part: ModelPart, enough: int, at_most: int) -> list[CallOf]:
    """Return calls of modules that together are the whole forward pass, in order. Until there are `enough`, the largest
    and all of its class are replaced by the modules that they call, unless that makes more than `at_most`."""
    chosen = list(calls_in(part, keeps=lambda path: False).children)
    kinds = {path: type(module) for path, module in part.module.named_modules()}
    whole_kinds: set[type] = set()  # that are not replaced
    while len(chosen) < enough:
        larger = [call for call in chosen if call.children and kinds[call.path] not in whole_kinds]
        if not larger:
            break
        kind = kinds[max(larger, key=lambda call: call.size).path]
        smaller = [
            each
            for call in chosen
            for each in (call.children if call.children and kinds[call.path] is kind else [call])
        ]
        whole_kinds |= {kind} if len(smaller) > at_most else set()
        chosen = smaller if len(smaller) <= at_most else chosen
    return [call for call in chosen if not call.passes_on]


def exported(part: ModelPart, dtype: torch.dtype) -> torch.fx.GraphModule:
    """Return the graph of a part. Raises what torch.export raises."""
    given = part.given(dtype)
    with torch.inference_mode(False), torch.no_grad():
        program = torch.export.export(part.module, copied(given).args, dict(copied(given).kwargs))
    is_guarded = "check_guards" in inspect.signature(program.module).parameters  # from torch 2.9 on
    return program.module(**({"check_guards": False} if is_guarded else {}))


def operators_of(part: ModelPart, dtype: torch.dtype) -> list[ModelPart]:
    """Return the operators of a module's own code, and not of its children, with the inputs that each gets in float64.
    Raises what torch.export raises."""
    graph = copy.deepcopy(exported(part, dtype)).double()
    interpreter = Recorder(graph)
    own = copied(part.inputs)
    with torch.no_grad(), KeepFloat64(widens_16_bits=True):
        interpreter.run(*pytree.tree_leaves((own.args, dict(own.kwargs))))
    return [
        operator_part(part, node, *interpreter.arguments[node.name])
        for node in graph.graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and is_own(node)
    ]


def is_own(node: torch.fx.Node) -> bool:
    """Return True if the exported module itself calls the operator, which returns a tensor, and no child does."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves):
        return False
    return not module_of_node(node)


class Recorder(torch.fx.Interpreter):
    """Runs a graph, and keeps the arguments of each operator."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.arguments: dict[str, tuple[Any, Any]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        if is_assertion(n):  # of types, which are others in float64
            return None
        if n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.arguments[n.name] = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, (args, kwargs))
        return super().run_node(n)


def is_assertion(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and str(node.target).startswith("aten._assert")


def operator_part(part: ModelPart, node: torch.fx.Node, args: Any, kwargs: Any) -> ModelPart:
    form = Form.of(args, kwargs)
    tensors = Inputs(args, kwargs).map(in_float64).tensors()
    single = OneOperator(node.target, form)  # type: ignore[arg-type]
    named = f"{part.name}: {node.target}" if part.name else str(node.target)
    return replace(
        part,
        name=named,
        kind=OPERATOR,
        module=single,
        exact=single,
        inputs=Inputs(tensors),
        line=user_line(node),
        operator=f"torch.ops.{node.target}",
        outputs=(),
    )


def user_line(node: torch.fx.Node) -> str:
    """Return the innermost line of the user's code that calls an operator, as `mine.py, line 12, in forward`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', node.meta.get("stack_trace") or "")
    for file, line, function in reversed(frames):
        path = Path(file)
        if "site-packages" not in path.parts and not path.resolve().is_relative_to(PACKAGE):
            return f"{path.name}, line {line}, in {function}"
    return ""


def floats(outputs: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors that a module has returned, or nothing if it returned no tensor."""
    try:
        return [tensor for tensor in flatten_outputs(outputs) if tensor.is_floating_point()]
    except TypeError:  # there is no tensor in it
        return []


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if is_cast(tensor) else tensor


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of a tensor of float64 in `dtype`, and of any other tensor as it is."""
    if tensor.dtype is not torch.float64:
        return tensor.clone()
    is_mask = tensor.abs() >= MASK
    if not is_mask.any():
        return tensor.to(dtype, copy=True)
    largest = torch.finfo(dtype).max
    return torch.where(is_mask, tensor.clamp(-largest, largest), tensor).to(dtype)


# --- a part as Python that needs torch alone

HEAD = """from math import inf, nan

import torch
from torch import device


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()"""


def source_of(part: ModelPart, dtype: torch.dtype) -> str:
    """Return the source of a part that takes and returns flat tensors, or nothing for one that has none."""
    try:
        flat = replace(part, module=FlatModule(part.module, part.inputs), inputs=Inputs(part.inputs.tensors()))
        graph = exported(flat, dtype)
        inputs = [source_of_tensor(tensor) for tensor in flat.given(dtype).tensors()]
        return f"{source_of_graph(graph)}\n\n\nmodel = Model().eval()\ninputs = ({', '.join(inputs)},)"
    except Exception:  # the user's own code may keep it from being exported
        return ""


def source_of_graph(module: torch.fx.GraphModule) -> str:
    """Return torch's printout of a graph as the class `Model`, with its weights under flat names. Raises TypeError for
    a graph that holds other graphs."""
    graph, weights = module.graph, dict[str, str]()
    for node in list(graph.nodes):
        if is_assertion(node):
            graph.erase_node(node)
        elif node.op == "get_attr":
            weight = operator.attrgetter(str(node.target))(module)
            if not isinstance(weight, torch.Tensor):
                raise TypeError(f"{node.target} is no tensor")
            node.target = weights.setdefault(str(node.target), f"weight_{len(weights)}")
            setattr(module, node.target, weight)
    graph.set_codegen(torch.fx.graph.CodeGen())
    made = [(name, source_of_tensor(getattr(module, name))) for name in weights.values()]
    buffers = [f"        self.register_buffer({name!r}, {value})" for name, value in made]
    forward = [f"    {line}".rstrip() for line in graph.python_code("self").src.strip().splitlines()]
    return "\n".join([HEAD, *buffers, "", *forward])


def source_of_tensor(tensor: torch.Tensor) -> str:
    """Return the source of a tensor like this one: of its shape and type, with other values."""
    shape = tuple(tensor.shape)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return f"torch.randn({shape}).to({tensor.dtype})"
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}, dtype={tensor.dtype})"
    if tensor.dtype == torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    low, high = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
    return f"torch.randint({low}, {high}, {shape}, dtype={tensor.dtype})"
