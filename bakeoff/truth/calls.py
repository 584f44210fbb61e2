"""Calls that can be compared: a script is played by a witness, and what came of it is a transcript.

A witness is whatever answers inputs: eager, eager with a change such as another type, or a build. Each call must begin
as its counterpart did. `AlikeCalls` restores what calls change, sets the seed of a random model, and gives copies to a
model that writes into its inputs. For other models it does nothing.
"""

import math
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from bakeoff.backends.calling import Returned, comparable, mapped, returned_by_call, sampled
from bakeoff.backends.eager import Steps
from bakeoff.backends.training import Training
from bakeoff.models import input_sets
from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.truth.choices import returns_whole_numbers, watched_call
from bakeoff.truth.matching import as_pairs
from bakeoff.truth.module_state import PARAMETER, ModuleState, is_equal, is_same, some_of_weights
from bakeoff.truth.moved_clock import begin_call

Outputs = tuple[torch.Tensor, ...]
Witness = Callable[[Inputs], Outputs]

FIRST_SEED, OTHER_SEED = 2027, 4093
"""Seeds before a call. A random model answers differently with the second one."""

MAX_COMPARED_ELEMENTS = 2**22
"""Of a larger output this many elements are compared, at random places that are always the same, and digests of all."""

BLOCK, SIGNED_SHARE = 2**12, 1 / 6
"""So many values have one digest. A share of it may have any sign, so that the digest is never nearly zero."""

ROUNDINGS, ROUNDINGS_ON_GPU = 8, 64
"""Two calls that differ by fewer roundings of their type are the same. On a GPU sums have no fixed order, which moves
float32 further than 16 bits."""


class Transcript(NamedTuple):
    outputs: tuple[Outputs, ...]  # what is compared of each answer
    given: Inputs | None  # the inputs of the last call as they are afterwards: a call may write into them


class AlikeCalls:
    """Calls that begin alike: from the state that the module has now, with the same random numbers and inputs."""

    def __init__(self, module: nn.Module | None, traits: ModelTraits) -> None:
        self.traits = traits
        self.module = module
        keeps_more = bool(traits.state or traits.grows or traits.kept_buffers)
        # of a call that changes no weights none are put back: that would take time and memory beside what is measured
        changes_weights = any(name.startswith(PARAMETER) for name in traits.state)
        self._state = ModuleState(module, changes_weights) if module is not None and keeps_more else None
        self._weights = some_of_weights(module) if module is not None else {}
        self._number = 0

    @property
    def can_restore(self) -> bool:
        return self._state is not None

    @property
    def begins_anew(self) -> bool:
        """Return True if no call depends on those before it, once a sequence has begun."""
        return self.can_restore or not self.traits.state

    def changed_weights(self) -> tuple[str, ...]:
        """Return the names of the weights that the module has still, with other values."""
        now = some_of_weights(self.module) if self.module is not None else {}
        return tuple(name for name, leaf in now.items() if not is_same(self._weights.get(name, leaf), leaf))

    def buffer(self, name: str) -> torch.Tensor:
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

    def play(self, script: Iterable[Inputs], witness: Witness | None = None, seeds_from: int = 0) -> Transcript:
        """Begin anew, and call a witness, or the module itself, with each set. No later call overwrites an answer."""
        self.begin(seeds_from)
        witness = witness or partial(call, self.module)
        outputs, given = list[Outputs](), None
        for inputs in script:
            given = self.given(inputs)
            outputs.append(thinned(witness(given)))
        return Transcript(tuple(outputs), given)


@contextmanager
def may_fail() -> Iterator[None]:
    """End the block where it raises, and show what: a model may refuse to be watched, and inputs that are changed."""
    try:
        yield
    except Exception:
        traceback.print_exc()


def call(module: Any, inputs: Inputs) -> Outputs:
    begin_call()
    return returned_by_call(inputs.call(module))


def run_eager(
    module: Any,
    sets: Sequence[Inputs],
    training: Training | None = None,
    traits: ModelTraits = NO_TRAITS,
    calls: AlikeCalls | None = None,
    known: Outputs = (),
) -> tuple[Outputs, ...]:
    """Return the outputs that are compared for every input set. Calls of a model that keeps state are one sequence.
    `known` is the answer to the first set, where that cannot have changed."""
    if training is not None:
        answers = []
        with Steps(training) as steps:
            for inputs in sets:
                steps.restore()
                steps.bind(inputs)
                steps.run()
                answers.append(steps.outputs())
            steps.restore()
        return tuple(answers)
    calls = calls or AlikeCalls(module, traits)
    if not calls.traits.begins_alike:
        return _sequences(calls, sets)
    calls.begin()
    answers, may_choose = list[Outputs](), False
    for inputs in sets:
        outputs = () if may_choose else known or call(module, calls.given(inputs))
        may_choose, known = may_choose or returns_whole_numbers(outputs), ()
        answers.append(thinned(watched_call(module, calls.given(inputs)) if may_choose else outputs))
    return tuple(answers)


def _sequences(calls: AlikeCalls, sets: Sequence[Inputs]) -> tuple[Outputs, ...]:
    answers: list[Outputs] = []
    # A build may have made as many calls with the first set, and its state cannot always be restored.
    for calls_before in range(1 + calls.traits.settles_after):
        answers += calls.play([sets[0]] * calls_before + list(sets)).outputs[calls_before:]
    for inputs in sets if calls.traits.state else ():
        answers += calls.play([inputs]).outputs
    calls.begin()  # variables of the model's file outlive the module
    return tuple(answers)


def thinned(outputs: Outputs) -> Outputs:
    """Return what is compared of a call's outputs: dense tensors, and `MAX_COMPARED_ELEMENTS` of a larger one, with
    digests of all real and complex numbers after them. No later call overwrites it."""

    def thin(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() <= MAX_COMPARED_ELEMENTS:
            return tensor.detach().clone()
        some = sampled(tensor, MAX_COMPARED_ELEMENTS)
        return torch.cat((some, digests(as_pairs(tensor)).to(some.dtype))) if is_inexact(tensor) else some

    outputs = comparable(outputs)
    if not isinstance(outputs, Returned):
        return tuple(map(thin, outputs))
    thin_outputs = outputs.map(thin)
    thin_outputs.choices = {place: replace(choice, rows=thin(choice.rows)) for place, choice in outputs.choices.items()}
    return thin_outputs


def digests(tensor: torch.Tensor) -> torch.Tensor:
    """Return for each block of values their root mean square, with a share of their sum with random signs. Values that
    are not finite count as zeros."""
    flat = tensor.detach().reshape(-1)
    order = torch.randperm(BLOCK, generator=torch.Generator().manual_seed(BLOCK))
    # their sum is the root of their number, so that an error of all values is as large in the sum
    signs = torch.where(order < (BLOCK + math.isqrt(BLOCK)) // 2, 1.0, -1.0).double().to(flat.device)

    def of_blocks(piece: torch.Tensor, is_finite: bool) -> torch.Tensor:
        blocks = nn.functional.pad(piece.double(), (0, -piece.numel() % BLOCK)).view(-1, BLOCK)
        blocks = blocks if is_finite else blocks.where(blocks.isfinite(), 0)
        sizes: torch.Tensor = torch.linalg.vector_norm(blocks, dim=1)
        # Divided by the root of their number, the sum is as large as a value: each place changes the digest.
        return (sizes + SIGNED_SHARE * (blocks @ signs)) / math.sqrt(BLOCK)

    def of_all(is_finite: bool) -> torch.Tensor:
        pieces = torch.split(flat, 64 * BLOCK)  # each stays in a CPU's cache
        return torch.cat([of_blocks(piece, is_finite) for piece in pieces])

    found = of_all(is_finite=True)
    return (found if found.isfinite().all() else of_all(is_finite=False)).to(tensor.dtype)


def owned(outputs: Outputs) -> Outputs:
    return mapped(outputs, lambda tensor: tensor.detach().clone())


def copied(inputs: Inputs) -> Inputs:
    """Return the inputs with memory of their own. What shares a tensor goes on to share it."""
    tensors = list(inputs.tensors())
    copies = dict(zip(map(id, tensors), input_sets.copied(tensors), strict=True))
    return inputs.map(lambda tensor: copies[id(tensor)])


def named_inputs(inputs: Inputs) -> dict[str, torch.Tensor]:
    return {f"input {place}": tensor for place, tensor in enumerate(inputs.tensors())}


def seed_everything(seed: int) -> None:
    """Seed the generators that a model may draw from: torch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


def random_state() -> tuple[object, ...]:
    """Return the state of these generators in a form that can be compared."""
    numpy = sys.modules.get("numpy")
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    of_gpu = torch.cuda.get_rng_state().tolist() if has_gpu else ()
    return torch.get_rng_state().tolist(), of_gpu, random.getstate(), numpy and repr(numpy.random.get_state())


def are_alike(some: Outputs, others: Outputs, roundings: int | None = None) -> bool:
    """Return True if outputs are the same, but for the order in which a device adds numbers up."""
    some, others = comparable(some), comparable(others)
    return len(some) == len(others) and all(
        _is_alike(one, other, roundings) for one, other in zip(some, others, strict=True)
    )


def _is_alike(value: torch.Tensor, other: torch.Tensor, roundings: int | None) -> bool:
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    if is_equal(value, other):
        return True
    if not is_inexact(value):
        return False
    if roundings is None:
        roundings = ROUNDINGS_ON_GPU if value.is_cuda and torch.finfo(value.dtype).bits > 16 else ROUNDINGS
    wide = torch.complex128 if value.is_complex() else torch.float64
    ours, theirs = value.to(wide), other.to(wide)
    known = torch.isfinite(ours)
    if not torch.equal(known, torch.isfinite(theirs)):
        return False
    error = (ours - theirs)[known].abs().square().sum().sqrt()
    size = theirs[known].abs().square().sum().sqrt()
    return bool(error <= roundings * torch.finfo(value.dtype).eps * size)


def is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def are_finite(outputs: Outputs) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in comparable(outputs) if is_inexact(tensor))
