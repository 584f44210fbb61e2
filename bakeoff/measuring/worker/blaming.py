"""Finds the smallest part of a model in which a cell loses precision, or that fails.

Parts are built alone by the cell's backend, on the inputs that they get in float64. Both a part and its reference get
the same inputs, rounded to the cell's precision, so that an error is the part's own. The search descends into the part
that is furthest beyond its limit. Of modules in a row it tries halves, and not each.
"""

from __future__ import annotations

import contextlib
import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.backends.base import Compiled
from bakeoff.backends.calling import returned_by_call
from bakeoff.measuring.worker import precision, tolerance
from bakeoff.measuring.worker.float64 import KeepFloat64
from bakeoff.measuring.worker.loading import is_cast
from bakeoff.measuring.worker.profiling import AnnouncedPhases
from bakeoff.measuring.worker.worker_context import WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.records.blame import Blame, Found, Trial
from bakeoff.records.errors import BakeoffError
from bakeoff.records.package import PACKAGE

ROW_AT_LEAST = 3
"""Modules in a row are tried in halves if they are at least so many."""

MAX_OPERATORS = 64
SEARCH_LIMIT_S = 600.0
"""After so long no further operator is tried."""


@dataclass(frozen=True)
class Part:
    """A part of the model, with the inputs that it gets in float64."""

    name: str
    kind: str
    module: torch.nn.Module  # in the cell's precision
    inputs: Inputs  # in float64
    line: str = ""
    operator: str = ""  # of a part that is a single one, as source: `torch.ops.aten.addmm.default`


@dataclass(frozen=True)
class CallOf:
    """A call of a module: with which inputs, and what it returned."""

    path: str
    inputs: Inputs
    outputs: Any


class InARow(torch.nn.Module):
    """Modules of which each gets what the one before returns."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.row = torch.nn.Sequential(*modules)
        self.train(modules[0].training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first, *others = self.row
        found = first(*args, **kwargs)
        for module in others:
            found = module(found)
        return found


class OneOperator(torch.nn.Module):
    """A single operator, with the arguments that are no tensors as constants."""

    def __init__(self, target: Callable[..., Any], leaves: Sequence[Any], structure: Any) -> None:
        super().__init__()
        self._target, self._leaves, self._structure = target, list(leaves), structure
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is TENSOR else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return self._target(*args, **kwargs)


TENSOR = "<tensor>"


def find_blame(worker: WorkerContext, looks_for_failure: bool) -> Blame:
    """Return the smallest part of the worker's cell that is beyond its limit, or that fails alone."""
    worker = replace(worker, phases=AnnouncedPhases(worker.connection))
    module, sets = worker.model()
    with worker.clock.on_stream(), torch.no_grad():
        search = Search(worker, looks_for_failure)
        whole = Part("", type(module).__name__, module, sets[0].map(in_float64))
        return search.descend_from(whole)


class Search:
    """The search in one cell's model."""

    def __init__(self, worker: WorkerContext, looks_for_failure: bool) -> None:
        self._worker, self._looks_for_failure = worker, looks_for_failure
        self._trials: list[Trial] = []
        self._begun_s = time.monotonic()
        self._left_out = 0

    def descend_from(self, whole: Part) -> Blame:
        trial = self._try(whole)
        if trial.failure and not self._looks_for_failure:
            raise BakeoffError(f"the whole model fails now: {trial.failure}")
        if not self._is_bad(trial):
            return self._blame(Found.NOTHING)
        part, worst = whole, trial
        while below := self._worst_child(part):
            part, worst = below
        if part.kind != OPERATOR and (found := self._worst_operator(part)):
            part, worst = found
            return self._blame(Found.PLACE, worst, part)
        found_as = Found.SPREAD if self._is_shared(part, worst) else Found.PLACE
        return self._blame(found_as, worst, part)

    def _is_bad(self, trial: Trial) -> bool:
        """Return True if a part is what is looked for."""
        return trial.fails if self._looks_for_failure else trial.excess > 1.0

    def _is_shared(self, part: Part, worst: Trial) -> bool:
        """Return True if the children's errors explain most of a module's error, though none is beyond its limit."""
        if self._looks_for_failure or worst.error is None:
            return False
        inside = [each.error for each in self._trials if each.error is not None and is_below(each.name, part.name)]
        return sum(inside) >= worst.error / 2

    def _worst_child(self, part: Part) -> tuple[Part, Trial] | None:
        """Return the child of a part that is furthest beyond its limit, or None if none is."""
        tried = []
        for row in rows_of(children_of(part)):
            tried += self._halves(row) if len(row) >= ROW_AT_LEAST else [(child, self._try(child)) for child in row]
            if self._looks_for_failure and any(self._is_bad(trial) for _, trial in tried):
                break
        bad = [pair for pair in tried if self._is_bad(pair[1])]
        return max(bad, key=lambda pair: pair[1].excess) if bad else None

    def _halves(self, row: Sequence[Part]) -> list[tuple[Part, Trial]]:
        """Try a row of modules by halves. Return those single ones that the search came to."""
        if len(row) == 1:
            return [(row[0], self._try(row[0]))]
        middle = len(row) // 2
        halves = [row[:middle], row[middle:]]
        tried = [(half, self._try(joined(half))) for half in halves]
        found = []
        for half, trial in tried:
            if self._is_bad(trial):
                found += [(half[0], trial)] if len(half) == 1 else self._halves(half)
        return found

    def _worst_operator(self, part: Part) -> tuple[Part, Trial] | None:
        """Return the operator of a module that is furthest beyond its limit alone, or None."""
        try:
            operators = operators_of(part)
        except Exception:  # what cannot be exported has no list of operators, and the module is named
            return None
        worst: tuple[Part, Trial] | None = None
        tried = 0
        for each in operators:
            if tried >= MAX_OPERATORS or time.monotonic() - self._begun_s > SEARCH_LIMIT_S:
                self._left_out += 1
                continue
            tried += 1
            trial = self._try(each)
            if self._is_bad(trial) and (worst is None or trial.excess > worst[1].excess):
                worst = each, trial
                if self._looks_for_failure:
                    break
        return worst

    def _try(self, part: Part) -> Trial:
        """Build a part alone and compare it with float64."""
        trial = self._tried(part)
        self._trials.append(trial)
        return trial

    def _tried(self, part: Part) -> Trial:
        known = Trial(name=part.name, kind=part.kind)
        dtype = precision.dtype_of(self._worker.cell.precision)
        given = part.inputs.map(lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float64 else tensor)
        try:
            with torch.inference_mode():
                eager = floats(part.module(*copied(given).args, **copied(given).kwargs))
            exact = floats(run_in_float64(part.module, given.map(in_float64))[0])
        except Exception as error:
            failure = f"eager: {explain(error)[1].sentence}"
            return known.model_copy(update={"failure": failure, "eager_fails": True})
        try:
            outputs = self._outputs_of(part.module, given)
        except Exception as error:
            return known.model_copy(update={"failure": explain(error)[1].sentence})
        if self._looks_for_failure or not exact or len(exact) != len(outputs):
            return known
        return known.model_copy(update=errors_of(outputs, eager, exact, self._worker))

    def _outputs_of(self, module: torch.nn.Module, given: Inputs) -> list[torch.Tensor]:
        worker = self._worker
        folder = worker.workspace / f"part-{len(self._trials)}"
        folder.mkdir()
        with torch.inference_mode(False), torch.no_grad():
            own = copied(given)
        context = replace(worker.context((own,)), workspace=folder)
        with worker.running(), worker.backend.build(module, own, context) as compiled:
            return called(compiled, own, worker.clock.synchronise)

    def _blame(self, found: Found, place: Trial | None = None, part: Part | None = None) -> Blame:
        cell = self._worker.cell
        return Blame(
            label=cell.label,
            cell_id=cell.id,
            looks_for_failure=self._looks_for_failure,
            found=found,
            place=place,
            line=part.line if part else "",
            trials=self._trials,
            source=source_of(part, precision.dtype_of(cell.precision)) if part and self._looks_for_failure else "",
            left_out=self._left_out,
        )


OPERATOR = "operator"


def called(compiled: Compiled, inputs: Inputs, synchronise: Callable[[], None]) -> list[torch.Tensor]:
    """Call a build twice, and return its floating-point outputs: some builds are final with the second call only."""
    compiled.bind(inputs)
    for _ in range(2):
        compiled.run()
        synchronise()
    return [tensor for tensor in compiled.outputs() if tensor.is_floating_point()]


def errors_of(
    outputs: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], worker: WorkerContext
) -> dict[str, float]:
    """Return the errors of the output that is furthest beyond its limit, relative to its size."""
    found: list[dict[str, float]] = []
    for mine, theirs, right in zip(outputs, eager, exact, strict=True):
        size = root_mean_square(right)
        if not size or not right.numel() or mine.shape != right.shape:
            continue
        error, eager_error = (root_mean_square(each.to(right.device, torch.float64) - right) for each in (mine, theirs))
        limit = tolerance.blame_limit(worker.cell.precision, eager_error, size)
        found.append({"error": error / size, "eager_error": eager_error / size, "limit": limit / size})
    return max(found, key=lambda each: each["error"] / each["limit"], default={})


def root_mean_square(tensor: torch.Tensor) -> float:
    """Return the root mean square of all values, which is not finite if one of them is not."""
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def floats(outputs: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors that a module has returned."""
    return [tensor.detach() for tensor in returned_by_call(outputs) if tensor.is_floating_point()]


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if is_cast(tensor) else tensor


def copied(inputs: Inputs) -> Inputs:
    """Return the inputs with tensors of their own, since a part may write into them."""
    return inputs.map(lambda tensor: tensor.clone())


@contextlib.contextmanager
def noting_calls(module: torch.nn.Module, wanted: Mapping[str, torch.nn.Module]) -> Iterator[list[CallOf]]:
    """Note the first call of each of the wanted modules."""
    calls: list[CallOf] = []
    known: set[str] = set()

    def note(path: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            if path not in known:
                known.add(path)
                calls.append(CallOf(path, Inputs(args, kwargs), outputs))

        return hook

    handles = [each.register_forward_hook(note(path), with_kwargs=True) for path, each in wanted.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def run_in_float64(module: torch.nn.Module, inputs: Inputs, wanted: Sequence[str] = ()) -> tuple[Any, list[CallOf]]:
    """Run a copy of the module with everything in float64, casts to narrower types too. Note the calls of children."""
    exact = copy.deepcopy(module).double()
    own = copied(inputs)
    children = {path: exact.get_submodule(path) for path in wanted}
    with noting_calls(exact, children) as calls, torch.no_grad(), KeepFloat64(widens_16_bits=True):
        outputs = exact(*own.args, **own.kwargs)
    return outputs, calls


def children_of(part: Part) -> list[tuple[Part, Any]]:
    """Return the children of a part that its forward pass calls, in that order, each with what it returns."""
    wanted = list(called_children(part.module))
    if not wanted or part.kind == OPERATOR:
        return []
    _, calls = run_in_float64(part.module, part.inputs, wanted)
    found = []
    for call in calls:
        child = part.module.get_submodule(call.path)
        name = f"{part.name}.{call.path}" if part.name else call.path
        found.append((Part(name, type(child).__name__, child, call.inputs), call.outputs))
    return found


def called_children(module: torch.nn.Module, prefix: str = "") -> Iterator[str]:
    """Return the paths of children that can be called. A list or a dict of modules stands for those in it."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from called_children(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def rows_of(children: Sequence[tuple[Part, Any]]) -> list[list[Part]]:
    """Return the parts in rows: in a row, each gets what the one before returned and nothing else."""
    rows: list[list[Part]] = []
    before: Any = None
    for part, outputs in children:
        follows = rows and not part.inputs.kwargs and len(part.inputs.args) == 1 and part.inputs.args[0] is before
        if follows:
            rows[-1].append(part)
        else:
            rows.append([part])
        before = outputs
    return rows


def joined(row: Sequence[Part]) -> Part:
    """Return a row of modules as one part."""
    if len(row) == 1:
        return row[0]
    name = f"{row[0].name} to {row[-1].name}"
    return Part(name, "modules in a row", InARow([each.module for each in row]), row[0].inputs)


def is_below(name: str, above: str) -> bool:
    return bool(name) and name != above and (not above or name.startswith(f"{above}."))


def operators_of(part: Part) -> list[Part]:
    """Return the operators of a module's own code, and not of its children, with the inputs that each gets."""
    given = part.inputs.map(lambda tensor: tensor.to(next(iter(floats_of(part.module)), tensor).dtype))
    with torch.inference_mode(False), torch.no_grad():
        program = torch.export.export(part.module, copied(given).args, dict(copied(given).kwargs))
    graph = program.module()
    interpreter = Recorder(graph)
    with torch.no_grad():
        own = copied(given)
        interpreter.run(*pytree.tree_leaves((own.args, dict(own.kwargs))))
    return [
        operator_part(part, node, *interpreter.arguments[node.name])
        for node in graph.graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and is_own(node)
    ]


def is_own(node: torch.fx.Node) -> bool:
    """Return True if the exported module itself calls the operator, which returns a tensor, and no child does."""
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(node.meta.get("val"))):
        return False
    stack = node.meta.get("nn_module_stack") or {}
    return not stack or not list(stack.values())[-1][0]


def floats_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return the floating-point weights of a module."""
    return (tensor for tensor in module.parameters() if tensor.is_floating_point())


class Recorder(torch.fx.Interpreter):
    """Runs a graph, and keeps the arguments of each operator."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.arguments: dict[str, tuple[Any, Any]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.arguments[n.name] = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, (args, kwargs))
        return super().run_node(n)


def operator_part(part: Part, node: torch.fx.Node, args: Any, kwargs: Any) -> Part:
    """Return one operator of a module as a part."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    tensors = tuple(in_float64(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
    constants = [TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    single = OneOperator(node.target, constants, structure)  # type: ignore[arg-type]
    named = f"{part.name}: {node.target}" if part.name else str(node.target)
    return Part(named, OPERATOR, single, Inputs(tensors), user_line(node), f"torch.ops.{node.target}")


def user_line(node: torch.fx.Node) -> str:
    """Return the innermost line of the user's code that calls an operator, as `mine.py, line 12, in forward`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', node.meta.get("stack_trace") or "")
    for file, line, function in reversed(frames):
        path = Path(file)
        if "site-packages" not in path.parts and not path.resolve().is_relative_to(PACKAGE):
            return f"{path.name}, line {line}, in {function}"
    return ""


def source_of(part: Part, dtype: torch.dtype) -> str:
    """Return Python that makes the part and inputs like its own, or nothing where that takes the user's code."""
    tensors = part.inputs.tensors()
    made = [source_of_tensor(tensor, dtype) for tensor in tensors]
    inputs = f"inputs = ({', '.join(made)}{',' if len(made) == 1 else ''})"
    if isinstance(part.module, OneOperator):
        leaves = part.module._leaves
        names = iter(f"x{number}" for number in range(len(tensors)))
        spelled = [Name(next(names)) if leaf is TENSOR else Name(source_of_constant(leaf)) for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(spelled, part.module._structure)
        words = [repr(each) for each in args] + [f"{name}={each!r}" for name, each in kwargs.items()]
        parameters = "".join(f", x{number}" for number in range(len(tensors)))
        lines = [
            "class Model(torch.nn.Module):",
            f"    def forward(self{parameters}):",
            f"        return {part.operator}({', '.join(words)})",
            "",
            "",
            "model = Model().eval()",
        ]
        return "\n".join([*lines, inputs])
    is_torchs_own = type(part.module).__module__.startswith("torch.nn.modules.")
    if is_torchs_own and not list(part.module.children()) and "\n" not in repr(part.module):
        return f"model = torch.nn.{part.module!r}.eval().to({dtype})\n{inputs}"
    return ""


class Name(str):
    """A text that stands for itself in source."""

    def __repr__(self) -> str:
        return str(self)


def source_of_constant(value: Any) -> str:
    """Return the source of a constant argument of an operator."""
    return f"torch.device({str(value)!r})" if isinstance(value, torch.device) else str(value)


def source_of_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> str:
    """Return the source of a tensor like this one: of its shape and type, with other values."""
    shape = tuple(tensor.shape)
    if tensor.dtype == torch.float64:
        return f"torch.randn({shape}).to({dtype})"
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}, dtype={tensor.dtype})"
    if tensor.dtype == torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    low, high = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
    return f"torch.randint({low}, {high}, {shape}, dtype={tensor.dtype})"
