"""Finds out what a model does beside computing outputs from its inputs, with eager and before any backend.

Where answers are compared, each call must begin as its counterpart did: `AlikeCalls` restores what calls change, sets
the seed of a random model, and gives copies to a model that writes into its inputs. For other models it does nothing.
"""

import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from bakeoff.backends.calling import Returned, comparable, returned_by_call
from bakeoff.measuring.worker.matching import choices_of, labels
from bakeoff.measuring.worker.memory import keeps_memory
from bakeoff.measuring.worker.module_state import BUFFER, GENERATOR, LENGTH, ModuleState, is_equal
from bakeoff.measuring.worker.moved_clock import clock_at, is_clock_stopped, time_seen
from bakeoff.measuring.worker.outside import CLOCK, OutsideWatch, of_attributes
from bakeoff.measuring.worker.value_reads import ReadingWatch, Values
from bakeoff.models import input_sets
from bakeoff.models.base import Inputs
from bakeoff.records.errors import first_line
from bakeoff.records.precision import Precision
from bakeoff.records.text import counted
from bakeoff.records.traits import Decision, ModelTraits, NotFinite

Outputs = tuple[torch.Tensor, ...]

FIRST_SEED, OTHER_SEED = 2027, 4093
"""Seeds before a call. A random model answers differently with the second one."""

MAX_PROBES = 2
"""So many further sets of inputs are kept that make the model go another way."""

ROUNDING_OF_32_BITS, ROUNDING_OF_16_BITS = 64, 8
"""Two calls that differ by fewer roundings of their type are the same: sums on a GPU have no fixed order."""

UNUSUAL_ERRORS = {Precision.FP32: 1e-4, Precision.BF16: 0.1, Precision.FP16: 0.1}
"""A larger error of eager relative to float64 must be explained. In float32 it is 1e3 times that of one operation."""

MAX_ROUNDING = 1e-2
"""An error of float32 relative to float64 with which the answer is told to be lost to rounding."""

MIN_EXPLAINED_SHARE = 0.1
"""Rounding explains an error if noise of about a rounding moves the answer by at least this share of it."""

MAX_CALLS_BEFORE = 8
"""A build may have called a model that keeps state so often with the first inputs before it is checked."""


class AlikeCalls:
    """Calls that begin alike: from the state that the module has now, with the same random numbers and inputs."""

    def __init__(self, module: nn.Module | None, traits: ModelTraits) -> None:
        self.traits = traits
        self.module = module
        keeps_more = bool(traits.state or traits.grows or traits.kept_buffers)
        self._state = ModuleState(module) if module is not None and keeps_more else None
        self._number = 0

    @property
    def can_restore(self) -> bool:
        """Return True if this holds the state of a module."""
        return self._state is not None

    @property
    def begins_anew(self) -> bool:
        """Return True if no call depends on those before it, once a sequence has begun."""
        return self.can_restore or not self.traits.state

    def buffer(self, name: str) -> torch.Tensor:
        """Return a buffer of the module, which must be here."""
        assert self.module is not None
        return self.module.get_buffer(name)

    def give_up_restoring(self) -> None:
        """Leave the module alone from now on: what was built from it has a state of its own."""
        self._state = None

    def begin(self, seeds_from: int = 0) -> None:
        """Begin a sequence of calls anew. Other `seeds_from` give other random numbers."""
        self._number = 1000 * seeds_from
        if self._state is not None:
            self._state.restore()

    def given(self, inputs: Inputs) -> Inputs:
        """Return the inputs for the next call, whose random numbers are set by its number in the sequence."""
        self._number += 1
        if self.traits.is_random:
            seed_everything(FIRST_SEED + self._number)
        return copied(inputs) if self.traits.written_inputs else inputs


@dataclass(frozen=True)
class Understood:
    """What is known of a model after a few calls with eager."""

    traits: ModelTraits
    answer: Outputs  # of the first call, whole


def understand(module: nn.Module, sets: Sequence[Inputs]) -> Understood:
    """Call the module with eager until its traits are known, and leave it in the state in which it was.

    If its answer depends on the time, the other traits are known once it is loaded and called with a stopped clock.
    A model without traits is called twice. How it decides is found by `decisions_of`. What fails in looking at the
    module is no fault of the model's: then it is called once, and `unexamined` says why.
    """
    try:
        return _understood(module, sets)
    except Exception as error:
        answer = owned(call(module, copied(sets[0])))  # raises what the model itself raises
        traceback.print_exc()
        text = f"{type(error).__name__}: {first_line(error)}"
        return Understood(ModelTraits(unexamined=text), answer)


def _understood(module: nn.Module, sets: Sequence[Inputs]) -> Understood:
    state = ModuleState(module)
    seed_everything(FIRST_SEED)
    given = copied(sets[0])
    first = owned(call(module, given))
    written = _written(sets[0], given)
    changed = state.changed()
    between = ModuleState(module) if changed else state
    seed_everything(OTHER_SEED)
    with OutsideWatch() as watch:
        second = owned(call(module, copied(sets[0])))
    grows = _grown(module, state, between) if changed else ()
    accesses = watch.accesses
    clock_s = _time_that_decides(module, sets[0], state) if CLOCK in accesses else None
    if clock_s is None:
        accesses = tuple(access for access in accesses if access != CLOCK)
    elif not is_clock_stopped():  # the other traits are known only then
        state.restore()
        return Understood(ModelTraits(accesses=accesses, clock_s=clock_s), first)
    on_gpu = next((tensor.device for tensor in sets[0].tensors() if tensor.is_cuda), None)
    if not grows and on_gpu is not None:
        # what the module does not hold itself, such as a list of its file
        calls = partial(call, module, copied(sets[0]))
        grows = ("GPU memory",) if keeps_memory(calls, partial(torch.cuda.memory_allocated, on_gpu)) else ()
    known: dict[str, Any] = {}
    if not are_alike(first, second) or (changed and _answer_depends(module, sets, state, first)):
        known = _told_apart(module, sets, state, first, changed)
    if changed and not known.get("state"):
        again = _changed_again(module, sets, state)
        buffers = tuple(name.removeprefix(BUFFER) for name in changed if name.startswith(BUFFER) and name in again)
        known.setdefault("kept_buffers", () if known else buffers)
        accesses += tuple(access for access in of_attributes(changed) if access in of_attributes(again))
    if changed:
        state.restore()
    known |= {"accesses": accesses, "clock_s": clock_s, "autocasts": watch.autocasts}
    return Understood(ModelTraits(written_inputs=written, grows=grows, **known), first)


LATER_S = (1.0, 61.0, 3_601.0, 90_061.0, 4e6, 4e7)
"""Another second, minute, hour, day, month and year, in which a model that reads the clock may answer otherwise."""


def _time_that_decides(module: nn.Module, inputs: Inputs, state: ModuleState) -> float | None:
    """Return the time that it is if the model answers otherwise later, or while time goes on, and None if not."""
    if is_clock_stopped():
        return time_seen()
    now_s = time.time()

    def at(seconds: float | None) -> Outputs:
        state.restore()
        seed_everything(FIRST_SEED)
        with clock_at(seconds):
            return owned(call(module, copied(inputs)))

    first = at(now_s)
    if not are_alike(first, at(now_s)):
        return None  # something else decides
    is_later = (not are_alike(first, at(seconds)) for seconds in (None, *(now_s + later for later in LATER_S)))
    return now_s if any(is_later) else None


def _told_apart(
    module: nn.Module, sets: Sequence[Inputs], state: ModuleState, first: Outputs, changed: tuple[str, ...]
) -> dict[str, Any]:
    """Tell randomness from state, by calls that restore the one and set the other."""

    def again(seed: int) -> Outputs:
        state.restore()
        seed_everything(seed)
        return owned(call(module, copied(sets[0])))

    repeats = are_alike(first, again(FIRST_SEED))
    has_generator = any(name.startswith(GENERATOR) for name in changed)
    is_random = has_generator or not repeats or not are_alike(first, again(OTHER_SEED))
    varying = _varying(first, again) if is_random else ()
    is_kept = has_generator or not repeats or _answer_depends(module, sets, state, first)
    if not is_kept:
        return {"is_random": is_random, "varying": varying, "repeats_with_seed": repeats}
    settles_after = _calls_until_settled(module, sets[0], state)
    return {
        "is_random": is_random,
        "varying": varying,
        "repeats_with_seed": repeats,
        "state": _named(changed),
        "settles_after": settles_after,
    }


SEEDS_TRIED = 4
"""An output of a random model that is the same with so many seeds does not vary."""


def _varying(first: Outputs, again: Callable[[int], Outputs]) -> tuple[str, ...]:
    """Return the labels of the outputs that differ between seeds: all, if their number does, or if none is found."""
    first = comparable(first)
    known, varying = labels(first), set[str]()
    others = [comparable(again(OTHER_SEED + number)) for number in range(SEEDS_TRIED)]
    for other in others:
        if len(other) != len(first):
            return tuple(known)
        pairs = zip(known, first, other, strict=True)
        varying.update(label for label, first, second in pairs if not are_alike((first,), (second,)))
    return tuple(label for label in known if label in varying) or tuple(known)


def _calls_until_settled(module: nn.Module, inputs: Inputs, state: ModuleState) -> int:
    """Return how many calls with the same inputs change the state, up to `MAX_CALLS_BEFORE`."""
    state.restore()
    for calls in range(MAX_CALLS_BEFORE):
        before = ModuleState(module)
        call(module, copied(inputs))
        if not before.changed():
            return calls
    return MAX_CALLS_BEFORE


def _answer_depends(module: nn.Module, sets: Sequence[Inputs], state: ModuleState, first: Outputs) -> bool:
    """Return True if calls before it change the answer to the first inputs."""
    for before in (sets[-1], sets[0]):
        state.restore()
        seed_everything(OTHER_SEED)
        call(module, copied(before))
        seed_everything(FIRST_SEED)
        if not are_alike(first, owned(call(module, copied(sets[0])))):
            return True
    return False


def _changed_again(module: nn.Module, sets: Sequence[Inputs], state: ModuleState) -> tuple[str, ...]:
    """Return what a call changes though one was before it. What is filled once and for all is a cache."""
    state.restore()
    call(module, copied(sets[0]))
    between = ModuleState(module)
    call(module, copied(sets[-1]))
    return between.changed()


OUTSIDE = "what the code holds outside of the module"


def leaves_more_behind(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> bool:
    """Return True if each of two calls leaves tensors behind, and the second one those of the first one, too."""
    watches = []
    for _ in range(2):
        given = calls.given(inputs)
        with ReadingWatch(given.tensors()) as watch:
            call(module, given)
        watches.append((watch, given))
    return all(watch.kept(given.tensors()) for watch, given in watches)


def _named(changed: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out lengths where what is in the list or dict is named, too."""
    whole = [name.removesuffix(LENGTH) for name in changed if name.endswith(LENGTH)]
    return tuple(whole) + tuple(
        name for name in changed if not name.endswith(LENGTH) and not any(name.startswith(f"{kept}[") for kept in whole)
    )


def _grown(module: nn.Module, before: ModuleState, between: ModuleState) -> tuple[str, ...]:
    """Return what became longer in the first call and in the second one."""
    again = ModuleState(module).grown(between)
    return tuple(name for name in between.grown(before) if name in again)


def _written(inputs: Inputs, given: Inputs) -> tuple[str, ...]:
    """Return the names of the inputs whose values a call has changed."""
    after = named_inputs(given)
    return tuple(name for name, tensor in named_inputs(inputs).items() if not _has_kept(tensor, after[name]))


def named_inputs(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return the tensors by the names that traits give them."""
    return {f"input {place}": tensor for place, tensor in enumerate(inputs.tensors())}


def _has_kept(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.layout is not torch.strided or before.is_nested:
        return True
    return are_alike((before,), (after,), roundings=0)


# --- how it decides


@dataclass(frozen=True)
class Deciding:
    """Where a model decides by values, and inputs with which it goes another way than with its own ones."""

    decisions: tuple[Decision, ...] = ()
    probes: tuple[Inputs, ...] = ()


def decisions_of(watch: ReadingWatch, module: nn.Module, sets: Sequence[Inputs], calls: AlikeCalls) -> Deciding:
    """Return where the watched calls decided by values, and search for inputs that make the model go another way."""
    if not watch.decisions:
        return Deciding()
    try:
        return _searched(watch, module, sets, calls)
    except Exception:  # what was changed in the search may be anything to a model
        traceback.print_exc()
        return Deciding(watch.decisions)


def _searched(watch: ReadingWatch, module: nn.Module, sets: Sequence[Inputs], calls: AlikeCalls) -> Deciding:
    own = [way for inputs in sets if (way := _way(module, inputs, calls)) is not None]
    known, probes = {watched.way for watched in own}, list[Inputs]()
    values = [watched.values for watched in own]
    for changed in changed_inputs(sets[0]):
        if len(probes) == MAX_PROBES:
            break
        watched = _way(module, changed, calls)
        is_new = watched is not None and (watched.way not in known or _reads_another_value(watched.values, values))
        if watched is not None and is_new and _answers_with_numbers(module, changed, calls):
            known.add(watched.way)
            values.append(watched.values)
            probes.append(changed)
    both = {
        line for each in values for line in each if any(line in other and other[line] != each[line] for other in values)
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
        read != values[0][line] and all(each.get(line) == values[0][line] for each in values)
        for line, read in read_values.items()
        if values and line in values[0]
    )


def _way(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> ReadingWatch | None:
    """Return what was watched in a call, or None if the model does not take these inputs."""
    calls.begin()
    given = copied(calls.given(inputs))
    try:
        with ReadingWatch(given.tensors()) as watch:
            outputs = call(module, given)
    except Exception:  # a model may raise anything for inputs that make no sense to it
        traceback.print_exc()
        return None
    return watch if _are_finite(outputs) else None


def _answers_with_numbers(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> bool:
    """Return True if all values of an answer are finite where nothing watches the call.

    A watched call does not take the fast path of torch's encoder layers. With every token masked only that path gives
    NaN.
    """
    calls.begin()
    try:
        return _are_finite(call(module, copied(calls.given(inputs))))
    except Exception:  # as in a watched call
        traceback.print_exc()
        return False


def answers_like_first(module: nn.Module, sets: Sequence[Inputs]) -> bool:
    """Return True if eager answers each set, and with finite values if it does so for the first one."""
    state = ModuleState(module)
    try:
        is_finite = _are_finite(call(module, copied(sets[0])))
        return all(_are_finite(call(module, copied(inputs))) or not is_finite for inputs in sets[1:])
    except Exception:  # a model may raise anything for inputs that make no sense to it
        traceback.print_exc()
        return False
    finally:
        state.restore()


def _are_finite(outputs: Outputs) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in outputs if tensor.is_floating_point())


def not_finite_in(outputs: Outputs) -> tuple[NotFinite, ...]:
    """Return which outputs have values that are NaN or infinite, and how many."""
    found = []
    for label, tensor in zip(labels(outputs), outputs, strict=True):
        if tensor.is_floating_point() or tensor.is_complex():
            values = tensor.float() if tensor.element_size() == 1 else tensor
            nan, infinite = int(values.isnan().sum()), int(values.isinf().sum())
            if nan or infinite:
                found.append(NotFinite(output=label, nan=nan, infinite=infinite, values=values.numel()))
    return tuple(found)


def changed_inputs(inputs: Inputs) -> Iterator[Inputs]:
    """Yield inputs of the same shapes and types with other values, which may make a model decide otherwise.

    Whole numbers stay between the smallest and the largest one that the model was given.
    """
    changes: tuple[tuple[Change, Change], ...] = (
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
        (_as_it_was, partial(_as_mask, _half)),
        (_as_it_was, partial(_as_mask, lambda mask: 1 - _half(mask))),
    )
    for of_real, of_whole in changes:
        yield inputs.map(partial(changed_tensor, of_real, of_whole))


Change = Callable[[torch.Tensor], torch.Tensor]


def _as_it_was(real: torch.Tensor) -> torch.Tensor:
    return real


def _as_mask(of_mask: Change, whole: torch.Tensor) -> torch.Tensor:
    """Return a mask of zeros and ones with other values. Other whole numbers stay."""
    is_mask = bool(((whole == 0) | (whole == 1)).all()) and (whole.dtype is torch.uint8 or bool(whole.any()))
    return of_mask(whole) if is_mask else whole


def _half(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask whose rows are ones in their first half, and zeros in the second one."""
    if not mask.dim():
        return mask
    place = torch.arange(mask.shape[-1], device=mask.device)
    return (place < (mask.shape[-1] + 1) // 2).to(mask.dtype).expand(mask.shape)


def _with_one_peak(real: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one value that is a thousand times the largest one."""
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


# --- rounding


def decided_by_rounding(eager: Sequence[Outputs], exact: Sequence[Outputs], precision: Precision) -> str:
    """Return which shapes, whole numbers or places of finite values differ between eager and float64, or nothing.

    Float64 is no reference then: rounding has decided what there is to compare. Rounding to 8 or 4 bits may change
    every value, but no shape.
    """
    for ours, theirs in zip(eager, exact, strict=True):
        chosen = choices_of(theirs)  # indices of equal values are the same
        for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            is_choice = labels(theirs)[place] in chosen and one.shape == other.shape
            if not is_choice and (told := _of_other_kind(one, other, only_shapes=precision.is_quantised)):
                return f"output {place} {told} in {precision} and in float64"
        if len(ours) != len(theirs):
            return f"{counted(len(ours), 'output')} in {precision}, and {len(theirs)} in float64"
    return ""


def far_from_float64(eager: Sequence[Outputs], exact: Sequence[Outputs], precision: Precision, most: float = 0) -> str:
    """Return how far eager's values are from float64's if that is more than `most` or else than usual, or nothing.

    Types that round only the operands of some operators are not judged by this.
    """
    most = most or UNUSUAL_ERRORS.get(precision, math.inf)
    for ours, theirs in zip(eager, exact, strict=True):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if (error := _relative_error(one, other)) > most:
                return f"output {place} in {precision} is {error:.2g} times its own size off what float64 gives"
    return ""


def is_explained_by_rounding(
    eager: Sequence[Outputs], exact: Sequence[Outputs], noisy: Sequence[Sequence[Outputs]], precision: Precision
) -> bool:
    """Return True if rounding noise moves eager's values about as far as they are from float64's, where that is far.

    Where it does not, float64 gives another answer for another reason: it draws other random numbers from the same
    seed, or the model asks for the type. Then float64 is no reference for eager.
    """
    most = UNUSUAL_ERRORS.get(precision, math.inf)
    return all(
        any(_moves_so_far(one, run[number], place, MIN_EXPLAINED_SHARE * _distance(one, other)) for run in noisy)
        for number, (ours, theirs) in enumerate(zip(eager, exact, strict=True))
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True))
        if _relative_error(one, other) > most
    )


def _moves_so_far(value: torch.Tensor, moved: Outputs, place: int, distance: float) -> bool:
    """Return True if noise moves a value that far, or gives another shape."""
    return len(moved) <= place or moved[place].shape != value.shape or _distance(value, moved[place]) >= distance


def _of_other_kind(value: torch.Tensor, other: torch.Tensor, only_shapes: bool) -> str:
    if value.shape != other.shape:
        return f"has other shapes, {tuple(value.shape)} and {tuple(other.shape)},"
    if only_shapes:
        return ""
    if not (value.is_floating_point() or value.is_complex()):
        changed = int((value != other.to(value.dtype)).sum()) if value.numel() else 0
        return f"has {changed} of {value.numel()} whole numbers different" if changed else ""
    if value.layout is not torch.strided or value.is_nested:
        return ""
    if value.element_size() > 2 and not torch.equal(torch.isfinite(value), torch.isfinite(other)):
        return "is not finite at the same places"
    return ""


def _relative_error(value: torch.Tensor, other: torch.Tensor) -> float:
    size = _distance(torch.zeros_like(other), other) if _has_distance(other) else 0.0
    return _distance(value, other) / size if size else 0.0


def _distance(value: torch.Tensor, other: torch.Tensor) -> float:
    """Return the norm of the difference of two tensors of real or complex numbers, over what is finite in both."""
    if not _has_distance(value):
        return 0.0
    wide = torch.complex128 if value.is_complex() else torch.float64
    known = torch.isfinite(value) & torch.isfinite(other)
    return float((value.to(wide)[known] - other.to(wide)[known]).abs().square().sum().sqrt())


def _has_distance(value: torch.Tensor) -> bool:
    is_plain = value.layout is torch.strided and not value.is_nested
    return is_plain and (value.is_floating_point() or value.is_complex())


# --- calls


def call(module: nn.Module, inputs: Inputs) -> Outputs:
    """Return everything that eager returns, with numbers as tensors."""
    return returned_by_call(module(*inputs.args, **inputs.kwargs))


def copied(inputs: Inputs) -> Inputs:
    """Return the inputs with memory of their own. What shares a tensor goes on to share it."""
    tensors = list(inputs.tensors())
    copies = dict(zip(map(id, tensors), input_sets.copied(tensors), strict=True))
    return inputs.map(lambda tensor: copies[id(tensor)])


def owned(outputs: Outputs) -> Outputs:
    """Return outputs that no later call overwrites."""
    if isinstance(outputs, Returned):
        return outputs.map(lambda tensor: tensor.detach().clone())
    return tuple(tensor.detach().clone() for tensor in outputs)


def seed_everything(seed: int) -> None:
    """Seed the generators that a model may draw from: torch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def are_alike(some: Outputs, others: Outputs, roundings: int | None = None) -> bool:
    """Return True if outputs are the same, but for the order in which a device adds numbers up."""
    return len(some) == len(others) and all(
        _is_alike(one, other, roundings) for one, other in zip(some, others, strict=True)
    )


def _is_alike(value: torch.Tensor, other: torch.Tensor, roundings: int | None) -> bool:
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if value.layout is not torch.strided:
        value, other = value.to_dense(), other.to_dense()
    if value.is_nested or value.is_quantized or is_equal(value, other):
        return True
    if not (value.is_floating_point() or value.is_complex()):
        return False
    if roundings is None:
        roundings = ROUNDING_OF_16_BITS if torch.finfo(value.dtype).bits <= 16 else ROUNDING_OF_32_BITS
    wide = torch.complex128 if value.is_complex() else torch.float64
    ours, theirs = value.to(wide), other.to(wide)
    known = torch.isfinite(ours)
    if not torch.equal(known, torch.isfinite(theirs)):
        return False
    error = (ours - theirs)[known].abs().square().sum().sqrt()
    size = theirs[known].abs().square().sum().sqrt()
    return bool(error <= roundings * torch.finfo(value.dtype).eps * size)
