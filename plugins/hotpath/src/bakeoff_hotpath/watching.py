"""Recording what calls execute, for a bounded share of the time. Imports torch."""

import hashlib
import itertools
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff_hotpath.detector import HotPathDetector
from bakeoff_hotpath.flattening import REPEATABLE

MAX_CONSTANT_ELEMENTS = 256
"""The values of a tensor of unknown origin become a part of the path. A path with a larger one is not compiled."""


class Recorder(TorchDispatchMode):
    """A context that records every operator that PyTorch executes in this thread.

    The detector gets names and shapes. `fingerprint` also covers the constants of each operation, and the earlier
    results that it takes. Two calls with the same fingerprint and kinds of inputs compute the same function. `known`
    names weights and inputs.
    """

    def __init__(self, detector: HotPathDetector, known: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().__init__()
        self._detector = detector
        # a later tensor may have the same id, and the reference tells the two apart. Keeping all tensors alive
        # instead takes ten times as long, since each then comes from fresh pages
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        for name, tensor in known:
            self._name(tensor, name)
        self._all = hashlib.sha256()
        self.operations = 0
        self.obstacle = ""
        """The reason why compiled code could not do what the call did. It is empty where there is none."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: for True torch imports Dynamo, which takes seconds. A compiled call is never recorded."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = pytree.tree_leaves((args, kwargs or {}))
        # before the operator runs, since it may write into its input
        spelled = [self._spell(leaf) for leaf in leaves]
        shapes = tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))
        outputs = func(*args, **(kwargs or {}))
        self._detector.record_operation(str(func), shapes)
        self._all.update(f"{func}({', '.join(spelled)}){shapes};".encode())
        for place, output in enumerate(pytree.tree_leaves(outputs)):
            if isinstance(output, torch.Tensor):
                self._name(output, f"%{self.operations}.{place}")
        self.operations += 1
        if _draws(func, args, kwargs or {}):
            self.obstacle = self.obstacle or "it draws random numbers, and compiled code would draw others"
        if torch.Tag.data_dependent_output in func.tags:
            self.obstacle = self.obstacle or f"it reads values out of tensors ({func}), which compiled code would keep"
        return outputs

    def note_returned(self, outputs: Any) -> None:
        """Add the returned values beside tensors to the fingerprint, since compiled code would return them again."""
        leaves, structure = pytree.tree_flatten(outputs)
        spelled = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                spelled.append("tensor")
            elif isinstance(leaf, REPEATABLE):
                spelled.append(repr(leaf))
            else:
                self.obstacle = self.obstacle or f"it returns a {type(leaf).__name__}, which compiled code cannot make"
        self._all.update(f"{structure}({', '.join(spelled)})".encode())

    @property
    def fingerprint(self) -> str:
        """The hash of all that was recorded. It is the same in every process."""
        return self._all.hexdigest()[:24]

    def _spell(self, leaf: object) -> str:
        if isinstance(leaf, torch.Tensor):
            reference, name = self._names.get(id(leaf), (None, ""))
            return name if reference is not None and reference() is leaf else self._spell_stranger(leaf)
        return repr(leaf)

    def _spell_stranger(self, tensor: torch.Tensor) -> str:
        """Spell a tensor that is no weight, input or result: a constant of the program, known by its values."""
        if (
            tensor.is_meta
            or tensor.is_nested
            or tensor.layout is not torch.strided
            or tensor.numel() > MAX_CONSTANT_ELEMENTS
        ):
            self.obstacle = self.obstacle or (
                f"it uses a tensor of {tensor.numel()} elements that is no weight, buffer or argument: "
                "register it as a buffer"
            )
            return "a large constant"
        return f"constant {tensor.dtype} {tensor.tolist()!r}"

    def _name(self, tensor: torch.Tensor, name: str) -> None:
        self._names[id(tensor)] = weakref.ref(tensor), name


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if an operator draws random numbers. Attention with a dropout of zero does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given)
    return True


class WatchBudget:
    """Decides which iterations are watched, so that watching adds at most `share` to the time of the others.

    Watching a small model takes several times as long as the model. So one iteration is watched, then another after
    2, 4, 8, ... more, and each only when the time that passed unwatched pays for it. The cost of a watched iteration is
    measured. Before the first one it is taken to be that of `first_costs` plain ones.
    """

    def __init__(self, share: float = 0.03, first_costs: float = 4.0) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, not {share}")
        self.share = share
        self.plain_s = 0.0
        """The time of iterations that were not watched."""
        self.extra_s = 0.0
        """The time that watched iterations took beyond plain ones."""
        self.plain = 0
        """The number of iterations that were not watched."""
        self.watched = 0
        self._first_costs = first_costs
        self._calls_since = 0
        self._gap = 1
        self.usual_s: float | None = None
        """The time of the fastest plain iteration, or None before the first."""

    def wants_to_watch(self) -> bool:
        """Return True if the next iteration should be watched."""
        if self.usual_s is None or self._calls_since < self._gap:
            return False
        each_s = self.extra_s / self.watched if self.watched else self._first_costs * self.usual_s
        return self.extra_s + each_s <= self.share * self.plain_s

    def add_plain(self, seconds: float, iterations: int = 1) -> None:
        """Count iterations that were not watched. The last took `seconds`; the others are taken to be usual ones."""
        # the fastest one is the usual one, since the first calls of a process are slow for other reasons
        self.usual_s = seconds if self.usual_s is None else min(self.usual_s, seconds)
        self.plain_s += seconds + (iterations - 1) * self.usual_s
        self.plain += iterations
        self._calls_since += iterations

    def add_watched(self, seconds: float) -> None:
        """Count a watched iteration that took `seconds`."""
        self.extra_s += max(0.0, seconds - (self.usual_s or 0.0))
        self.plain_s += min(seconds, self.usual_s or 0.0)
        self.watched += 1
        self._calls_since = 0
        self._gap *= 2


def tensors_known(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a call begins with: weights and buffers by name, inputs by place."""
    yield from module.named_parameters()
    yield from module.named_buffers()
    for place, leaf in enumerate(pytree.tree_leaves(inputs)):
        if isinstance(leaf, torch.Tensor):
            yield f"input {place} {leaf.dtype} {leaf.device.type}", leaf


def record(
    detector: HotPathDetector, module: torch.nn.Module, function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Any, Recorder]:
    """Call a function as an iteration of the detector. Return its result, and what was recorded.

    An iteration that raises is not counted.
    """
    recorder = Recorder(detector, tensors_known(module, (args, kwargs)))
    held = _held_by(module)
    detector.begin_iteration()
    try:
        with recorder:
            outputs = function(*args, **kwargs)
    except BaseException:
        detector.abandon_iteration()
        raise
    detector.end_iteration()
    recorder.note_returned(outputs)
    if changed := _changed(held, _held_by(module)):
        recorder.obstacle = recorder.obstacle or f"its forward changes {changed}, which compiled code would not"
    return outputs, recorder


Held = tuple[torch.nn.Module | None, str, object, tuple[object, ...]]
"""A module, the name of an attribute, its value, and the entries of a container."""


def _held_by(module: torch.nn.Module) -> list[Held]:
    """Return the attributes of a module and its submodules: the objects, since another one may get the same address."""
    held: list[Held] = []
    for part in module.modules():
        for name, value in vars(part).items():
            if name == "forward":  # a switch may leave it while another one is watching
                continue
            entries: tuple[object, ...] = ()
            if isinstance(value, dict):
                entries = tuple(value.values())
            elif isinstance(value, (list, set, deque)):
                entries = tuple(value)
            held.append((part, name, value, entries))
    return held


def _changed(before: list[Held], after: list[Held]) -> str:
    """Return the first attribute that is another one, or holds something else, or an empty text."""
    for was, now in itertools.zip_longest(before, after, fillvalue=(None, "", None, ())):
        is_same = was[0] is now[0] and was[1] == now[1] and was[2] is now[2] and len(was[3]) == len(now[3])
        if not is_same or not all(map(operator.is_, was[3], now[3])):
            # the longer list has what was added or taken away
            part, name, *_ = now if len(after) > len(before) else was
            return f"the attribute {name} of {type(part).__name__}"
    return ""
