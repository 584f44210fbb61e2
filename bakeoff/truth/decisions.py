"""Where Python reads the value of a tensor while a model is called, and which choices a trace froze by that."""

import ast
import hashlib
import linecache
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, product
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from bakeoff.backends.plain_dispatch import Uncompiled
from bakeoff.models import input_sets
from bakeoff.models.base import Inputs
from bakeoff.records.package import PACKAGE
from bakeoff.records.traits import Decision
from bakeoff.truth.calls import AlikeCalls, are_finite, call, copied, may_fail
from bakeoff.truth.module_state import ModuleState

READS = frozenset(
    {
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__contains__",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "is_nonzero",
        "equal",
        "allclose",
    }
)
"""Functions of torch and of its tensors that give Python a value to decide by."""

SIZE_READS = frozenset({"numel", "nelement", "__len__", "size", "__get__"})
"""Functions that give Python a size. `__get__` gives a shape, or another attribute."""

SIZED_BY_VALUES = frozenset(
    {"nonzero", "argwhere", "where", "masked_select", "unique", "unique_consecutive", "bincount", "__getitem__"}
)
"""Functions of torch whose results may have sizes that depend on values, such as how many of them are true."""

COMPARING = {"eq": 0, "ne": 0, "gt": 0, "lt": 0, "ge": -1, "le": 1}
"""Comparisons with a constant, and the distance from it of a number that may compare otherwise than the others."""

HANDING_ON = frozenset(
    {"to", "long", "int", "contiguous", "clone", "detach", "view", "reshape", "flatten", "squeeze", "unsqueeze"}
    | {"__getitem__"}
)
"""Functions whose results hold the numbers that they are given."""

MAX_PROBES = 2
"""So many further sets of inputs are kept that make the model go another way."""

MAX_SEARCH_S = 60.0
"""The search for them begins no further call after so long, as where a call generates text."""

SHOWN_CHARACTERS = 1000
"""So much of a value that was read tells it from another one."""

_TORCH = Path(torch.__file__).parent
_OURS = (PACKAGE / "measuring", PACKAGE / "truth", PACKAGE / "backends", PACKAGE / "models" / "onnx_module.py")
_NOT_THE_MODELS = (str(_TORCH), *map(str, _OURS), "<")

Line = tuple[str, int]
Values = dict[Line, tuple[str, ...]]
"""What each line has read in a call."""


@dataclass
class _Read:
    function: str
    values: list[str] = field(default_factory=list)


class ReadingWatch(Uncompiled, TorchFunctionMode):
    """Notes where Python reads values that come from inputs in calls in the block, and which way the calls take."""

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # A value that comes from weights alone is the same in each call, so that it decides nothing.
        self._from_inputs = WeakIdKeyDictionary()
        # How many values fulfil a condition is such a value, too: the length of `x[x > 0]`.
        self._sized_by_values = WeakIdKeyDictionary()
        self._places = WeakIdKeyDictionary()
        inputs = list(inputs)
        self._places.update({tensor: place for place, tensor in enumerate(inputs) if is_whole(tensor)})
        self.compared: dict[tuple[int, int], None] = {}  # places of inputs, with numbers that may compare otherwise
        # Memory that such a value was written into holds it in each of its views. The references keep the keys unique.
        self._written: dict[int, StorageWeakRef] = {}
        self._note(inputs)
        self._reads: dict[Line, _Read] = {}
        self._way = hashlib.sha256()
        self._functions = hashlib.sha256()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        given = list(_tensors_in((args, kwargs)))
        weights = [id(tensor) for tensor in given if isinstance(tensor, nn.Parameter)]  # another expert is another way
        self._way.update(f"{name} {weights}\n".encode())
        shapes = [tuple(tensor.shape) for tensor in given if tensor.layout is torch.strided and not tensor.is_nested]
        # A model may have read these from a file.
        constants = [str(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if _is_constant(leaf)]
        self._functions.update(f"{getattr(function, '__name__', '')} {shapes} {constants}\n".encode())
        result = function(*args, **(kwargs or {}))
        if any(map(self._is_from_inputs, given)):
            self._note(_tensors_in(result))
            if (result is None or result is given[0]) and (written := _storage_of(given[0])):
                self._written[written.cdata] = written
            self._note_comparison(name.strip("_"), args, result)
            if name in HANDING_ON and is_whole(result) and args and is_whole(args[0]) and args[0] in self._places:
                self._places[result] = self._places[args[0]]
            if is_sized_by_values(name, args) or (keeps_rows(name, args) and given[0] in self._sized_by_values):
                for tensor in _tensors_in(result):
                    self._sized_by_values[tensor] = True
            has_size = name in SIZE_READS and (name != "__get__" or isinstance(result, torch.Size))
            is_size = has_size and given[0] in self._sized_by_values
            if (name in READS or is_size) and (frame := _deciding_frame(sys._getframe(1))):
                read = self._reads.setdefault((frame.f_code.co_filename, frame.f_lineno), _Read(frame.f_code.co_name))
                read.values.append(str(result)[:SHOWN_CHARACTERS])
        return result

    def _note(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            self._from_inputs[tensor] = True

    def _is_from_inputs(self, tensor: torch.Tensor) -> bool:
        if tensor in self._from_inputs:
            return True
        return bool(self._written) and (of := _storage_of(tensor)) is not None and of.cdata in self._written

    def _note_comparison(self, name: str, args: Any, result: Any) -> None:
        if name not in COMPARING or len(args) != 2 or not is_whole(args[0]) or args[0] not in self._places:
            return
        tensor, constant = args
        if is_whole(constant) and constant.numel() == 1 and constant not in self._from_inputs:
            with suppress(RuntimeError):  # of a tensor without values, as in vmap
                constant = constant.item()
        if isinstance(constant, int) or (isinstance(constant, float) and constant.is_integer()):
            self.compared[self._places[tensor], int(constant) + COMPARING[name]] = None

    def kept(self, inputs: Iterable[torch.Tensor]) -> set[int]:
        """Return the `id` of each tensor that was made from these inputs and is still alive: something holds it."""
        return {id(tensor) for tensor in self._from_inputs} - {id(tensor) for tensor in inputs}

    @property
    def way(self) -> str:
        """Return a hash of the functions that were called with their weights, in order: another one is another way."""
        return self._way.hexdigest()

    @property
    def functions(self) -> str:
        """Return a hash of the functions called, of the shapes and numbers given to them, equal in each process."""
        return self._functions.hexdigest()

    @property
    def values(self) -> Values:
        return {line: tuple(read.values) for line, read in self._reads.items()}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return the lines that read values, without those that only check them, or drop them."""
        return tuple(
            Decision(file=file, line=line, function=read.function, code=linecache.getline(file, line).strip())
            for (file, line), read in self._reads.items()
        )


def _storage_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    with suppress(NotImplementedError, RuntimeError):  # a sparse tensor has none, for example
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return None


def is_whole(value: Any) -> bool:
    """Return True for a tensor of whole numbers, which are no booleans."""
    is_number = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
    return is_number and not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)


def is_sized_by_values(name: str, args: Any) -> bool:
    """Return True if the size of what this call returns depends on values: of a condition, or of a mask as an index."""
    if name == "where":
        return len(args) == 1
    if name == "__getitem__":
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors_in(args[1:]))
    return name in SIZED_BY_VALUES


def keeps_rows(name: str, args: Any) -> bool:
    """Return True if this call returns the tensor that it is given, perhaps in another form, or a column of it."""
    index = args[1] if name == "__getitem__" else slice(None)
    return name in HANDING_ON and isinstance(index[0] if isinstance(index, tuple) and index else index, slice)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_constant(leaf: Any) -> bool:
    if isinstance(leaf, slice):
        return all(map(_is_constant, (leaf.start, leaf.stop, leaf.step)))
    return leaf is None or isinstance(leaf, bool | int | float | complex | str | torch.dtype)


@lru_cache
def _decides_nothing(file: str, line: int) -> bool:
    """Return True for an assertion, an `if` that only raises, and a statement such as `print(x.max().item())`."""
    statements = [node for node in _statements(file) if node.lineno <= line <= (node.end_lineno or node.lineno)]
    if not statements:
        return False
    innermost = max(statements, key=lambda node: (node.lineno, -(node.end_lineno or node.lineno)))
    if isinstance(innermost, ast.If):
        if innermost.orelse or not all(isinstance(node, ast.Raise) for node in innermost.body):
            return False
        return not _has(innermost.test, ast.NamedExpr)
    # One of two ways, or a named value, decides: `outs.append(a(x) if x.max() < 50 else b(x))`.
    if isinstance(innermost, ast.Expr):
        return not (isinstance(innermost.value, ast.BoolOp) or _has(innermost, ast.IfExp, ast.NamedExpr))
    return isinstance(innermost, ast.Assert | ast.Raise) and not _has(innermost, ast.NamedExpr)


def _has(tree: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(node, kinds) for node in ast.walk(tree))


@lru_cache
def _statements(file: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


UNWARNED = ("equal", "allclose", "is_nonzero")  # reads of which a trace does not warn


class FrozenChoices:
    def __init__(self) -> None:
        self.lines: set[Line] = set()

    def note(self) -> None:
        if frame := _models_frame(sys._getframe(1)):
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))

    @contextmanager
    def noting_unwarned(self) -> Iterator[None]:
        def noting(own: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*args: Any, **kwargs: Any) -> Any:
                self.note()
                return own(*args, **kwargs)

            return noted

        with ExitStack() as held:
            for owner, name in product((torch, torch.Tensor), UNWARNED):
                own = getattr(owner, name)
                held.callback(setattr, owner, name, own)
                setattr(owner, name, noting(own))
            yield

    def among(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        # The trace also warns where a size is read. Sizes do not change in a contest, and decide nothing.
        return tuple(decision for decision in decisions if (decision.file, decision.line) in self.lines)


@contextmanager
def noting_frozen_choices() -> Iterator[FrozenChoices]:
    """Note what torch.jit.trace freezes inside the block, by its warnings. Other warnings are shown as before."""
    frozen = FrozenChoices()
    with warnings.catch_warnings():
        warnings.simplefilter("always", TracerWarning)
        show, trace = warnings.showwarning, torch.jit.trace

        def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, TracerWarning):
                frozen.note()
            else:
                show(message, category, *where, **more)

        warnings.showwarning, torch.jit.trace = note, frozen.noting_unwarned()(trace)
        try:
            yield frozen
        finally:
            torch.jit.trace = trace


def _models_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is neither torch's nor of what measures: a line of the model's own code."""
    while frame is not None and (
        frame.f_code.co_filename.startswith(_NOT_THE_MODELS) or frame.f_code.co_filename == warnings.__file__
    ):
        frame = frame.f_back
    return frame


def _deciding_frame(reader: FrameType) -> FrameType | None:
    """Return the line of the model's own that reads a value here, unless it or a line of torch's below it only checks
    the value, or drops it, as recurrent layers and distributions check their arguments."""
    own = _models_frame(reader)
    frame: FrameType | None = reader
    while own and frame:
        if _decides_nothing(frame.f_code.co_filename, frame.f_lineno):
            return None
        frame = frame.f_back if frame is not own else None
    return own


@dataclass(frozen=True)
class Deciding:
    """Where a model decides by values, and inputs with which it goes another way than with its own ones."""

    decisions: tuple[Decision, ...] = ()
    probes: tuple[Inputs, ...] = ()


def decisions_of(watch: ReadingWatch, module: nn.Module, sets: Sequence[Inputs], calls: AlikeCalls) -> Deciding:
    """Return where the watched calls decided by values, and search for inputs that make the model go another way."""
    with may_fail():
        # Inputs that hold a number with which the model compares them, as for padding, may do so, too.
        answered = (probe for probe in _with_compared(watch, sets) if _answers_with_numbers(module, probe, calls))
        compared = tuple(islice(answered, 1))
        found = _searched(watch, module, (*sets, *compared), calls) if watch.decisions else Deciding()
        return Deciding(found.decisions, (*found.probes, *compared))
    return Deciding(watch.decisions)


def _with_compared(watch: ReadingWatch, sets: Sequence[Inputs]) -> Iterator[Inputs]:
    """Yield the first inputs with all numbers that they are compared with and that no set holds, then with each."""
    missing = []
    for place, number in watch.compared:
        if place < len(sets[0].tensors()) and all(len(inputs.tensors()) == len(sets[0].tensors()) for inputs in sets):
            given = [inputs.tensors()[place] for inputs in sets]
            info = torch.iinfo(given[0].dtype)
            # An index outside of a table's range ends a GPU's process.
            is_safe = not given[0].is_cuda or 0 <= number <= int(given[0].max())
            if info.min <= number <= info.max and is_safe and not any(bool((seen == number).any()) for seen in given):
                missing.append((place, number))
    for numbers in (missing, *([number] for number in missing)) if missing else ():
        inputs = copied(sets[0])
        for end, (place, number) in enumerate(numbers):
            tensor = input_sets.own_values(inputs.tensors()[place])
            if tensor.dim():
                tensor[..., -1 - end % tensor.shape[-1]] = number
            else:
                tensor.fill_(number)
        yield inputs


def _searched(watch: ReadingWatch, module: nn.Module, sets: Sequence[Inputs], calls: AlikeCalls) -> Deciding:
    own = [way for inputs in sets if (way := _way(module, inputs, calls)) is not None]
    known, probes = {watched.way for watched in own}, list[Inputs]()
    values = [watched.values for watched in own]
    ends_s = time.monotonic() + MAX_SEARCH_S
    for changed in changed_inputs(sets[0]):
        if len(probes) == MAX_PROBES or time.monotonic() > ends_s:
            break
        watched = _way(module, changed, calls)
        is_new = watched is not None and (watched.way not in known or _reads_another_value(watched.values, values))
        if watched is not None and is_new and _answers_with_numbers(module, changed, calls):
            known.add(watched.way)
            values.append(watched.values)
            probes.append(changed)
    both = {
        line
        for value in values
        for line in value
        if any(line in other and other[line] != value[line] for other in values)
    }
    has_other = len(known) > 1 or bool(probes)
    decisions = tuple(
        decision.model_copy(update={"goes_both_ways": has_other and (decision.file, decision.line) in both})
        for decision in watch.decisions
    )
    return Deciding(decisions, tuple(probes))


def _reads_another_value(read_values: Values, values: Sequence[Values]) -> bool:
    """Return True if a line reads what it has not read yet, where all calls before have read the same."""
    return any(
        read != values[0][line] and all(value.get(line) == values[0][line] for value in values)
        for line, read in read_values.items()
        if values and line in values[0]
    )


def _way(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> ReadingWatch | None:
    calls.begin()
    given = copied(calls.given(inputs))
    with may_fail():
        with ReadingWatch(given.tensors()) as watch:
            outputs = call(module, given)
        return watch if are_finite(outputs) else None
    return None


def _answers_with_numbers(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> bool:
    """Return True if all values of an answer are finite where nothing watches the call."""
    # With every token masked, only the fast path of torch's encoder layers gives NaN. Watched calls do not take it.
    calls.begin()
    with may_fail():
        return are_finite(call(module, copied(calls.given(inputs))))
    return False


def answers_like_first(module: nn.Module, sets: Sequence[Inputs]) -> bool:
    """Return True if eager answers each set, and with finite values if it does so for the first one."""
    state = ModuleState(module)
    is_alike = False
    with may_fail():
        is_finite = are_finite(call(module, copied(sets[0])))
        is_alike = all(are_finite(call(module, copied(inputs))) or not is_finite for inputs in sets[1:])
    state.restore()
    return is_alike


def changed_inputs(inputs: Inputs) -> Iterator[Inputs]:
    """Yield inputs of the same shapes and types with other values, which may make a model decide otherwise. Whole
    numbers stay between the smallest and the largest one that the model was given."""
    # Masks of one half come first: where a mask hides everything, engines rightly differ.
    changes: tuple[tuple[Change, Change], ...] = (
        (_as_it_was, partial(_as_mask, _half)),
        (_as_it_was, partial(_as_mask, lambda mask: 1 - _half(mask))),
        (lambda real: real * 100, lambda whole: torch.full_like(whole, whole.max().item())),
        (torch.zeros_like, lambda whole: torch.full_like(whole, whole.min().item())),
        (lambda real: -real, lambda whole: whole.flip(tuple(range(whole.dim())))),
        (lambda real: real / 100, lambda whole: 1 - whole.clamp(0, 1)),
        (lambda real: real * 10_000, lambda whole: whole),
        (torch.abs, lambda whole: whole),
        (lambda real: -real.abs(), lambda whole: whole),
        (lambda real: real + 1, lambda whole: whole),
        (lambda real: real - 1, lambda whole: whole),
        (torch.ones_like, lambda whole: whole),
        (lambda real: real.flip(tuple(range(real.dim()))), lambda whole: whole),
        (_with_one_peak, lambda whole: whole),
        (_as_it_was, partial(_as_mask, lambda mask: torch.ones_like(mask))),
        (_as_it_was, partial(_as_mask, lambda mask: torch.zeros_like(mask))),
    )
    for of_real, of_whole in changes:
        yield inputs.map(partial(changed_tensor, of_real, of_whole))


Change = Callable[[torch.Tensor], torch.Tensor]


def _as_it_was(real: torch.Tensor) -> torch.Tensor:
    return real


def _as_mask(of_mask: Change, whole: torch.Tensor) -> torch.Tensor:
    is_mask = bool(((whole == 0) | (whole == 1)).all()) and (whole.dtype is torch.uint8 or bool(whole.any()))
    return of_mask(whole) if is_mask else whole


def _half(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask whose rows are ones in their first half, and zeros in the second one."""
    if not mask.dim():
        return mask
    place = torch.arange(mask.shape[-1], device=mask.device)
    return (place < (mask.shape[-1] + 1) // 2).to(mask.dtype).expand(mask.shape)


def _with_one_peak(real: torch.Tensor) -> torch.Tensor:
    flat = real.flatten().clone()
    flat[0] = 1000 * flat.abs().max()
    return flat.view(real.shape)


def changed_tensor(of_real: Change, of_whole: Change, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with other values in the same memory layout. Some kinds of tensors stay as they are."""
    if tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel() or tensor.is_complex():
        return tensor
    if tensor.dtype is torch.bool:
        return of_whole(tensor.to(torch.uint8)).to(torch.bool)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor
    (changed,) = input_sets.copied([tensor])
    values = input_sets.own_values(changed)
    values.copy_((of_real if tensor.is_floating_point() else of_whole)(values))
    return changed
