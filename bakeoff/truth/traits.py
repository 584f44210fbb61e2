"""Finds out what a model does beside computing outputs from its inputs, with eager and before any backend.

A trait is a difference between two calls that differ in one thing only: the seed, the time, the calls before, or
nothing at all. What a call leaves behind is a trait as well.
"""

import gc
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from bakeoff.backends.calling import VARIES, VARYING_TEXTS, Returned, comparable
from bakeoff.backends.plain_dispatch import OperatorWatch
from bakeoff.models.base import Inputs, of_each_shape
from bakeoff.models.input_sets import by_memory, is_strided, memory_of
from bakeoff.records.errors import first_line
from bakeoff.records.traits import ModelTraits, NotFinite, OneAnswer, Recall
from bakeoff.truth import distribution
from bakeoff.truth.calls import (
    FIRST_SEED,
    OTHER_SEED,
    AlikeCalls,
    Outputs,
    are_alike,
    call,
    copied,
    is_inexact,
    may_fail,
    named_inputs,
    owned,
    random_state,
    run_eager,
    seed_everything,
)
from bakeoff.truth.decisions import ReadingWatch, answers_like_first, changed_inputs, changed_tensor
from bakeoff.truth.matching import labels
from bakeoff.truth.module_state import BUFFER, GENERATOR, LENGTH, ModuleState, is_equal
from bakeoff.truth.moved_clock import clock_at, is_clock_stopped, time_seen
from bakeoff.truth.outside import CLOCK, OutsideWatch, of_attributes
from bakeoff.truth.witnesses import FillUnwritten

MAX_CALLS_BEFORE = 8
"""A build may have called a model that keeps state so often with the first inputs before it is checked."""

SEEDS_TRIED = 4
"""An output of a random model that is the same with so many seeds does not vary."""

SEEDS_FOR_BRANCHES = 32
"""A model that draws numbers is tried with so many seeds, or fewer if it is slow: it may compare the numbers, and skip
a layer in one call in ten."""

HOUR_S, DAY_S, MONTH_S = 3_600.0, 86_400.0, 2_629_746.0

LATER_S = (
    *(1.0, 61.0),
    *(1 + hours * HOUR_S for hours in range(1, 24)),
    *(1 + days * DAY_S for days in range(1, 7)),
    *(1 + months * MONTH_S for months in range(1, 12)),
    4e7,
)
"""Another second and minute, each hour, weekday and month, and another year: then a model may answer otherwise."""

OUTSIDE, GPU_MEMORY = "what the code holds outside of the module", "GPU memory"
"""What grows that the module does not hold itself."""

UNNAMED = "something that has no name"
"""A state that is put back, though no value was seen to change: a member of a set, for example."""


@dataclass(frozen=True)
class Understood:
    traits: ModelTraits
    answer: Outputs  # of the first call, whole


class ReplayableModule:
    """A module whose calls can begin again from the state that it has when this is made."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.state = ModuleState(module)

    def answer(
        self, inputs: Inputs, seed: int = FIRST_SEED, clock_s: float | None = None, after: Sequence[Inputs] = ()
    ) -> Outputs:
        """Return the answer to inputs in the first state, or `after` calls with another seed."""
        self.state.restore()
        with clock_at(clock_s):
            for earlier in after:
                seed_everything(OTHER_SEED)
                call(self.module, copied(earlier))
            seed_everything(seed)
            return owned(call(self.module, copied(inputs)))

    def changes(self, script: Sequence[Inputs]) -> Iterator[tuple[str, ...]]:
        """Yield the names of what each call changes, from the first state on."""
        self.state.restore()
        for inputs in script:
            before = ModuleState(self.module)
            call(self.module, copied(inputs))
            yield before.changed()


def understand(module: nn.Module, sets: Sequence[Inputs]) -> Understood:
    """Call the module with eager until its traits are known, and leave it in the state in which it was. If looking at
    it fails, it is called once, and `unexamined` says why. Raises what the model raises."""
    try:
        return _understood(ReplayableModule(module), sets)
    except Exception as error:
        answer = owned(call(module, copied(sets[0])))  # raises what the model itself raises
        traceback.print_exc()
        text = f"{type(error).__name__}: {first_line(error)}"
        return Understood(ModelTraits(unexamined=text), answer)


def _understood(stage: ReplayableModule, sets: Sequence[Inputs]) -> Understood:
    module, state = stage.module, stage.state
    seed_everything(FIRST_SEED)
    given = copied(sets[0])
    first = owned(call(module, given))
    written = names_of_written(sets[0], given)
    changed = state.changed()
    between = ModuleState(module) if changed else state
    seed_everything(OTHER_SEED)
    drawn_from = random_state()
    with OutsideWatch() as watch:
        second = _with_unwritten(math.nan, module, sets[0])
    draws = random_state() != drawn_from
    _note_varying_texts(first, second)
    again = ModuleState(module).grown(between) if changed else ()
    grows = tuple(name for name in between.grown(state) if name in again)
    accesses = watch.accesses
    clock_s = _time_that_decides(stage, sets[0]) if CLOCK in accesses else None
    if clock_s is None:
        accesses = tuple(access for access in accesses if access != CLOCK)
    elif not is_clock_stopped():  # the other traits are known only then
        state.restore()
        return Understood(ModelTraits(accesses=accesses, clock_s=clock_s), first)
    known: dict[str, Any] = {}
    repeats = are_alike(first, second)
    seeds = range(OTHER_SEED, OTHER_SEED + (SEEDS_FOR_BRANCHES if draws and repeats else 1))
    if draws and repeats:
        repeats = not _varies(stage, sets[0], first, seeds)
    if not repeats and (unwritten := _unwritten(stage, sets[0], first)):
        known = {"is_random": True, "repeats_with_seed": False, "varying": unwritten, "unwritten": unwritten}
    elif not repeats or (changed and _answer_depends(stage, sets, first)):
        known = _told_apart(stage, sets, first, changed, seeds)
    if changed and not known.get("state"):
        *_, again = stage.changes((sets[-1], sets[0]))  # what is filled once and for all is a cache
        buffers = tuple(name.removeprefix(BUFFER) for name in changed if name.startswith(BUFFER) and name in again)
        known.setdefault("kept_buffers", () if known else buffers)
        accesses += tuple(access for access in of_attributes(changed) if access in of_attributes(again))
    grows = grows or _grown_on_gpu(module, sets[0])
    if watch.enables_gradients and _needs_gradients(stage, sets[0], first):
        known["needs_autograd"] = True
    if changed:
        state.restore()
    known |= {"accesses": accesses, "clock_s": clock_s, "autocasts": watch.autocasts}
    return Understood(ModelTraits(written_inputs=written, grows=grows, **known), first)


def _needs_gradients(stage: ReplayableModule, inputs: Inputs, first: Outputs) -> bool:
    """Return True if a model that enables gradients answers otherwise outside of inference mode, where they exist."""
    if not torch.is_inference_mode_enabled():
        return False
    with may_fail(), torch.inference_mode(False), torch.no_grad():
        return not are_alike(first, stage.answer(inputs))
    return False


def _note_varying_texts(first: Outputs, second: Outputs) -> None:
    VARYING_TEXTS.clear()
    if isinstance(first, Returned) and isinstance(second, Returned):
        VARYING_TEXTS.update(place for place, _ in first.constants.items() ^ second.constants.items())
        first.constants = {**first.constants, **dict.fromkeys(VARYING_TEXTS, VARIES)}


def _unwritten(stage: ReplayableModule, inputs: Inputs, first: Outputs) -> tuple[str, ...]:
    """Return the outputs that hold memory that nothing wrote. They become NaN with it, and another number with one:
    what is multiplied by 0, as what a mask hides, stays."""
    answers = []
    for value in (math.nan, 1.0):
        stage.state.restore()
        seed_everything(FIRST_SEED)
        answers.append(comparable(_with_unwritten(value, stage.module, inputs)))
    first = comparable(first)
    return tuple(
        name
        for name, own, with_nan, with_one in zip(labels(first), first, *answers, strict=False)
        if with_nan.isnan().sum() > own.isnan().sum() and not are_alike((own,), (with_one,))
    )


def _with_unwritten(value: float, module: nn.Module, inputs: Inputs) -> Outputs:
    with may_fail(), FillUnwritten(value):
        return owned(call(module, copied(inputs)))
    return owned(call(module, copied(inputs)))


def _time_that_decides(stage: ReplayableModule, inputs: Inputs) -> float | None:
    """Return the time that it is if the model answers otherwise later, or while time goes on, and None if not."""
    if is_clock_stopped():
        return time_seen()
    now_s = time.time()
    first = stage.answer(inputs, clock_s=now_s)
    if not are_alike(first, stage.answer(inputs, clock_s=now_s)):
        return None  # something else decides
    times_s = (None, *(now_s + later for later in LATER_S))
    if any(not are_alike(first, stage.answer(inputs, clock_s=at_s)) for at_s in times_s):
        return now_s
    with clock_at(now_s, still_reads=0):  # a model may go on until a time
        if not are_alike(first, stage.answer(inputs)):
            return now_s
    answers = []
    for at_s in (now_s, now_s + DAY_S):  # a model may keep the time of its first call
        stage.answer(inputs, clock_s=now_s)
        with clock_at(at_s):
            seed_everything(FIRST_SEED)
            answers.append(owned(call(stage.module, copied(inputs))))
    return None if are_alike(answers[0], answers[1]) else now_s


def _told_apart(
    stage: ReplayableModule, sets: Sequence[Inputs], first: Outputs, changed: tuple[str, ...], seeds: Iterable[int]
) -> dict[str, Any]:
    """Tell randomness from state, by calls that restore the one and set the other."""
    repeats = are_alike(first, stage.answer(sets[0]))
    has_generator = any(name.startswith(GENERATOR) for name in changed)
    is_random = has_generator or not repeats or _varies(stage, sets[0], first, seeds)
    varying = _varying(first, partial(stage.answer, sets[0])) if is_random else ()
    known = {"is_random": is_random, "varying": varying, "repeats_with_seed": repeats}
    if not (has_generator or not repeats or _answer_depends(stage, sets, first)):
        return known
    changes = stage.changes([sets[0]] * MAX_CALLS_BEFORE)
    settles_after = next((calls for calls, names in enumerate(changes) if not names), MAX_CALLS_BEFORE)
    return {**known, "state": _named(changed) or ((UNNAMED,) if repeats else ()), "settles_after": settles_after}


def _varies(stage: ReplayableModule, inputs: Inputs, first: Outputs, seeds: Iterable[int]) -> bool:
    ends_s = time.monotonic() + distribution.MAX_SECONDS
    in_time = (seed for number, seed in enumerate(seeds) if number < SEEDS_TRIED or time.monotonic() < ends_s)
    return any(not are_alike(first, stage.answer(inputs, seed)) for seed in in_time)


def _varying(first: Outputs, again: Callable[[int], Outputs]) -> tuple[str, ...]:
    """Return the labels of the outputs that differ between seeds: all, if their number does, or if none is found."""
    first = comparable(first)
    names, varying = labels(first), set[str]()
    for number in range(SEEDS_TRIED):
        other = comparable(again(OTHER_SEED + number))
        if len(other) != len(first):
            return tuple(names)
        pairs = zip(names, first, other, strict=True)
        varying.update(label for label, first, second in pairs if not are_alike((first,), (second,)))
    return tuple(label for label in names if label in varying) or tuple(names)


def _answer_depends(stage: ReplayableModule, sets: Sequence[Inputs], first: Outputs) -> bool:
    """Return True if calls before it change the answer to the first inputs, or one with these that to the last ones."""
    scripts = ((sets[-1],), (sets[0],), (sets[-1],) * MAX_CALLS_BEFORE)
    if any(not are_alike(first, stage.answer(sets[0], after=script)) for script in scripts):
        return True
    # Other sets lie within the range of the first, so that a kept maximum shows in their answers alone.
    return not are_alike(stage.answer(sets[-1]), stage.answer(sets[-1], after=(sets[0],)))


def _named(changed: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out lengths where what is in the list or dict is named, too."""
    whole = [name.removesuffix(LENGTH) for name in changed if name.endswith(LENGTH)]
    others = (name for name in changed if not name.endswith(LENGTH))
    parts = (name for name in others if not any(name.startswith(f"{kept}[") for kept in whole))
    return tuple(dict.fromkeys((*whole, *parts)))  # what was None has its own name before it is a tuple


def names_of_written(inputs: Inputs, given: Inputs) -> tuple[str, ...]:
    """Return the names of inputs whose values are others in what a call was given."""
    after = named_inputs(given)
    return tuple(
        name
        for name, tensor in named_inputs(inputs).items()
        if tensor.layout is torch.strided
        and not tensor.is_nested
        and not are_alike((tensor,), (after[name],), roundings=0)
    )


# --- what calls leave behind


GROWING_CALLS = 4
"""A cache that is filled once grows in the first call, and one for two kinds of calls perhaps in the next one."""


def _grown_on_gpu(module: nn.Module, inputs: Inputs) -> tuple[str, ...]:
    """Return what grows that the module does not hold itself, such as a list of its file."""
    device = next((tensor.device for tensor in inputs.tensors() if tensor.is_cuda), None)
    if device is None:
        return ()
    calls = partial(call, module, copied(inputs))
    return (GPU_MEMORY,) if keeps_memory(calls, partial(torch.cuda.memory_allocated, device)) else ()


def keeps_memory(call: Callable[[], object], allocated_bytes: Callable[[], int]) -> bool:
    """Return True if each of some calls leaves more memory allocated, although nobody keeps its outputs."""
    after: list[int] = []
    for _ in range(GROWING_CALLS):
        call()
        gc.collect()  # of cycles
        after.append(allocated_bytes())
    return all(later > earlier for earlier, later in pairwise(after))


def leaves_more_behind(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> bool:
    """Return True if each of two calls leaves tensors of its own behind. One that each call fills does not grow."""
    watches = []
    for _ in range(2):
        given = calls.given(inputs)
        with ReadingWatch(given.tensors()) as watch:
            call(module, given)
        watches.append((watch, given))
    first, second = (watch.kept(given.tensors()) for watch, given in watches)
    return bool(first - second and second - first)


# --- what the answers are


def not_finite_in(outputs: Outputs) -> tuple[NotFinite, ...]:
    found = []
    for label, tensor in zip(labels(outputs), outputs, strict=True):
        if is_inexact(tensor):
            nan, infinite = int(tensor.isnan().sum()), int(tensor.isinf().sum())
            if nan or infinite:
                found.append(NotFinite(output=label, nan=nan, infinite=infinite, values=tensor.numel()))
    return tuple(found)


def outputs_alike(module: nn.Module, sets: Sequence[Inputs], answers: Sequence[Outputs]) -> tuple[str, ...]:
    """Return the outputs that are the same for all input sets, which differ."""
    first, *others = answers[: len(sets)]
    if all(are_equal(sets[:1], (other,)) for other in sets[1:]) or any(len(other) != len(first) for other in others):
        return ()
    alike = [
        place
        for place, value in enumerate(first)
        if all(are_alike((value,), (other[place],), roundings=0) for other in others)
    ]
    names, weights = labels(first), [*module.parameters(), *module.buffers()]

    # Where others vary, single numbers other than zero do not count, such as a scale, nor do weights.
    def may_be_constant(value: torch.Tensor) -> bool:
        is_zero = value.dtype is not torch.bool and are_alike((value,), (torch.zeros_like(value),), roundings=0)
        is_number = value.numel() == 1 and not is_zero
        return is_number or any(are_alike((value,), (weight,)) for weight in weights)

    return tuple(names[place] for place in alike if len(alike) == len(first) or not may_be_constant(first[place]))


def are_equal(some: Sequence[Inputs], others: Sequence[Inputs]) -> bool:
    return all(
        left.layout is not torch.strided or left.is_nested or torch.equal(left, right)
        for ours, theirs in zip(some, others, strict=True)
        for left, right in zip(ours.tensors(), theirs.tensors(), strict=True)
    )


def inputs_with_another_answer(
    module: nn.Module, inputs: Inputs, calls: AlikeCalls, answer: Outputs
) -> tuple[tuple[Inputs, ...], OneAnswer]:
    """Return inputs of other scales and signs that eager answers otherwise than these, and how many it took."""
    taken = [changed for changed in changed_inputs(inputs) if answers_like_first(module, (inputs, changed))]
    answers = run_eager(module, taken, calls=calls)
    others = tuple(
        changed for changed, other in zip(taken, answers, strict=True) if not are_alike(answer, other, roundings=0)
    )
    return others, OneAnswer(tried=len(taken), differing=len(others))


AUDITED_INPUTS = 8
"""Of so many inputs, the first ones, it is found out whether any output moves with them."""

AUDIT_S = 5.0
"""No call begins so long after the first one."""

MOVED = 4
"""An output moves if one of its values changes by more than so many times the distance to the next number."""


def inputs_without_effect(
    module: nn.Module, sets: Sequence[Inputs], calls: AlikeCalls, answers: Sequence[Outputs]
) -> tuple[str, ...]:
    """Return the inputs that the model uses and that vary, though no output moves with one of them alone."""
    if len(of_each_shape(sets)) > 1:
        return ()
    ends_s, names = time.monotonic() + AUDIT_S, list[str]()
    named, used = [named_inputs(inputs) for inputs in sets], set[Any]()

    def note(_func: object, args: Any, kwargs: Any, _found: object) -> None:
        used.update(by_memory(leaf for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)))

    given = calls.given(sets[0])  # copies, perhaps, whose making is no use
    tensors = named_inputs(given)
    with may_fail(), OperatorWatch(note):
        call(module, given)
    for name, tensor in islice(tensors.items(), AUDITED_INPUTS):
        if time.monotonic() > ends_s:
            break
        # A whole number of another set may be an index out of range beside the others, which ends a GPU's process.
        is_safe = not tensor.is_cuda or tensor.is_floating_point() or tensor.dtype is torch.bool
        if not (is_strided(tensor) and tensor.numel() and is_safe and memory_of(tensor) in used):
            continue
        ways = [
            (inputs, answer, own[name], other)
            for inputs, own, answer in zip(sets, named, answers, strict=True)
            for other in islice((tensors[name] for tensors in named if not is_equal(tensors[name], own[name])), 1)
        ]
        if ways and not any(_moves(module, calls, *way) or time.monotonic() > ends_s for way in ways):
            names.append(name)
    return tuple(names)


def _moves(
    module: nn.Module, calls: AlikeCalls, inputs: Inputs, answer: Outputs, own: torch.Tensor, other: torch.Tensor
) -> bool:
    """Return True if the answer is another one with the `other` values in place of the inputs' `own` tensor."""
    mixed = inputs.map(lambda tensor: other if tensor is own else tensor)
    with may_fail():  # inputs that belong together may make no sense apart
        (found,) = run_eager(module, (mixed,), calls=calls)
        eps = [torch.finfo(value.dtype).eps if is_inexact(value) else 0.0 for value in found]
        return len(found) != len(answer) or any(
            value.shape != before.shape or not torch.allclose(value, before, MOVED * rounding, 0, equal_nan=True)
            for value, before, rounding in zip(found, answer, eps, strict=True)
        )
    return True


# --- whether it keeps what it has answered


CHANGE = 2**-6
"""New real numbers are larger by this share, so that a model is unlikely to decide otherwise for them."""


def recall_of(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> Recall | None:
    """Return how many operators a call takes for new values, and for these again, if that is fewer."""
    for change_whole in (lambda whole: whole.flip(tuple(range(whole.dim()))), lambda whole: whole):
        # Timed calls repeat a few input sets. A model that looks its answers up then seems faster than it is.
        new = copied(inputs.map(partial(changed_tensor, lambda real: real * (1 + CHANGE), change_whole)))
        with may_fail():
            # It was called with such sizes before, so that tables for a size are no difference.
            first, again = _operators(module, new, calls), _operators(module, new, calls)
            # a third call shows that it is not only one call in two that does less
            is_kept = again < first and _operators(module, new, calls) < first
            return Recall(operators=first, again=again) if is_kept else None
    return None


def _operators(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> int:
    if calls.traits.is_random:
        calls.begin()  # with the same numbers
    operators: list[Any] = []
    with OperatorWatch(lambda func, *_: operators.append(func)):
        call(module, calls.given(inputs))
    return len(operators)
