"""Checks a build's answers, each call beginning as its counterpart of the reference did.

docs/method.md lists what is done for models whose outputs do not follow from their inputs alone. State in an artefact
cannot be restored, so such a build is compared with eager after as many calls as it has made. Where rounding may make a
result jump, a build may answer otherwise as often as eager with noise does.
A model may depend on something that is not found, such as the process or another clock. So a build fails only if eager,
called in the same process at the same time, passes, or if it has changed the model's weights.
"""

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from bakeoff.backends.base import Compiled, Wrapped
from bakeoff.backends.training import Training
from bakeoff.models.base import Inputs
from bakeoff.models.input_sets import is_strided, without_repeats
from bakeoff.records.doubts import EAGER_DIFFERS
from bakeoff.records.precision import Precision
from bakeoff.records.schema import INFERENCE, Accuracy, Cell, Extent, Placement
from bakeoff.records.text import counted, first, listed
from bakeoff.records.traits import Access, AccessKind, Decision, ModelTraits
from bakeoff.truth import accuracy, distribution
from bakeoff.truth.calls import AlikeCalls, Outputs, are_alike, are_finite, call, copied, may_fail, named_inputs
from bakeoff.truth.errors import MAX_FLIPPED_SHARE, MIN_WHOLE_NUMBERS, EagerErrors, SliceSums, errors_of_eager
from bakeoff.truth.global_settings import few_threads
from bakeoff.truth.matching import as_pairs, empty_outputs, labels, match, with_structure_of
from bakeoff.truth.module_state import PARAMETER, is_equal
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.outside import OutsideWatch, dropped
from bakeoff.truth.padding import without_hidden
from bakeoff.truth.reference import Beyond, Reference, with_answer
from bakeoff.truth.steps import without_jumps
from bakeoff.truth.tensor_content import content
from bakeoff.truth.traits import GPU_MEMORY, OUTSIDE, names_of_written
from bakeoff.truth.witnesses import RUNS_WITH_NOISE

MORE_CALLS = 256
"""Of a model that often repeats its answer, so many further calls show whether a build draws numbers at all."""

FORGETS = "it does not keep the state that the model keeps from call to call ({})"
LEAVES_OUT = "it does not change buffer '{}' as the model's own call does"
OVERWRITES = "it writes into its inputs ({}), and the model does not"
REWRITES = "it changes the weights of the model ({})"
STALE = "it answers new values in the memory of earlier inputs wrongly"
UNREAD = "what a call leaves in the buffers of the model ({}) cannot be read from this build"
NOT_RANDOM = "the model is random, but this build answers the same inputs alike each time"
ALWAYS_ALIKE = "the model answers the same inputs differently from call to call, and this build answers them alike"
VARIES = "this build answers the same inputs differently from call to call, and the model answers them alike"
OWN_NUMBERS = "the model is random, and this build draws other numbers than eager does from the same seed"
LIKE_EAGERS = "their mean and spread over {} calls of each are alike"
UNWRITTEN = "the model answers with memory that it has not written, in {}"
ANY_ORDER = "the model writes several values to one place, of which any may stay"
NO_SEED = "the model's answers change from call to call, or when it is loaded again, though the same seed is set"
OTHER_WEIGHTS = "the model has other weights each time that it is loaded"
WITHOUT_FAST_PATH = "as eager answers without its fast path"
BY_ROUNDING = "what the model decides depends on rounding ({}): eager differs as much if its operators round otherwise"
HIDDEN = "it is wrong only where {}: if that is padding, its values mean nothing"
LEAVES_OUT_CASTS = "the model's own casts to 16 bits move its answer as far: the build may leave some of them out"
FROZEN = "the trace froze a choice by values at {}"


@dataclass(frozen=True)
class KeptInputs:
    """One input set as it was before a build: its values on the host, where no memory is measured."""

    values: Inputs
    digests: tuple[bytes, ...]
    """Of a set on a GPU, whose values would take longer to copy to the host and to compare."""

    @classmethod
    def of(cls, inputs: Inputs) -> Self:
        return cls(inputs.map(lambda tensor: tensor.to("cpu", copy=True)), cls._digests(inputs))

    def written_in(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the names of the inputs whose values are others now."""
        if self.digests and self.digests == self._digests(inputs):
            return ()
        return names_of_written(inputs.map(torch.Tensor.cpu), self.values)

    @staticmethod
    def _digests(inputs: Inputs) -> tuple[bytes, ...]:
        tensors = inputs.tensors()
        is_on_gpu = all(tensor.is_cuda and is_strided(tensor) for tensor in tensors)
        return tuple(map(content, tensors)) if is_on_gpu else ()


def unchanged_inputs(cell: Cell, traits: ModelTraits, sets: Sequence[Inputs]) -> tuple[KeptInputs, ...]:
    """Return what inputs are that no build may write into."""
    # a decode step may write into its caches, and other tasks are not examined
    may_write = cell.task != INFERENCE or traits.written_inputs or traits.unexamined
    return () if may_write else tuple(map(KeptInputs.of, sets))


class Checker:
    """Checks one build, when it was built and again when everything is warm."""

    def __init__(
        self,
        reference: Path,
        cell: Cell,
        calls: AlikeCalls,
        compiled: Compiled,
        sets: Sequence[Inputs],
        *,
        synchronise: Callable[[], None],
        training: Training | None = None,
        frozen_choices: Sequence[Decision] = (),
        unchanged: Sequence[KeptInputs] = (),
    ) -> None:
        """`sets` are all input sets, which are put back to `unchanged`, and `calls` hold the module, if it is here."""
        self.reference = Reference.load(reference)
        self._cell = cell
        self._calls = calls
        self._compiled = compiled
        self._sets = sets
        self._synchronise = synchronise
        self._frozen = FROZEN.format(places_of(frozen_choices)) if frozen_choices else ""
        self._beyond = Beyond.load(reference, cell.device)
        self._training_outputs = training.describe_outputs(sets[0]) if training else ()
        self._first: Accuracy | None = None
        self._unchanged = unchanged
        self._put_back()

    @property
    def _traits(self) -> ModelTraits:
        return self._calls.traits

    def check(self) -> Accuracy:
        """Compare the answers. A state that cannot be restored is known only once, after building."""
        traits, beyond = self._traits, self._beyond
        if self._first is not None and traits.state and not self._calls.can_restore:
            return self._first
        right = self._check_sets()
        overwritten = self._put_back() or self._overwritten_beside()
        self._unchanged = ()
        changed = self._calls.changed_weights() if not (right.passed or self._training_outputs) else ()
        rewritten = [name for name in changed if f"{PARAMETER}{name}" not in traits.state]
        if rewritten:
            right = wrong(right, f"{REWRITES.format(listed(first(rewritten)))} ({right.rule})")
        elif not right.passed and self._traits.writes_in_any_order:
            right = not_compared(right, ANY_ORDER)
        elif not right.passed and self._eager_fails():
            right = not_compared(self._first or right, EAGER_DIFFERS)
        if overwritten:
            cause = "" if right.passed else f" ({right.rule})"
            right = wrong(right, OVERWRITES.format(", ".join(overwritten)) + cause)
        if traits.is_random or traits.state or traits.kept_buffers or self._frozen or beyond.probes:
            right = right.model_copy(update={"is_only_inexact": False})
        for needed, check in (
            (beyond.probes, self._check_other_ways),
            (beyond.buffers, self._check_buffers),
            (traits.one_answer, self._note_one_answer),
            (not self._training_outputs, self._note_empty),
        ):
            if needed and right.passed and not right.unchecked:
                right = check(right)
        if self._first is None and (right.passed or right.is_only_inexact):  # which a metric may accept
            right = right.model_copy(update={"unwritten_inputs": self._unwritten_inputs(), "dropped": self._dropped()})
        self._first = self._first or right
        return right

    def _put_back(self) -> tuple[str, ...]:
        """Give the sets the values that they had, and return the inputs that the build has changed in any of them."""
        if not self._unchanged:
            return ()
        overwritten = [kept.written_in(inputs) for kept, inputs in zip(self._unchanged, self._sets, strict=True)]
        for names, inputs, kept in zip(overwritten, self._sets, self._unchanged, strict=True):
            tensors, values = named_inputs(inputs), named_inputs(kept.values)
            with torch.inference_mode():
                for name in names:
                    tensors[name].copy_(values[name])
        return tuple(dict.fromkeys(itertools.chain.from_iterable(overwritten)))

    def _check_sets(self) -> Accuracy:
        traits = self._traits
        answers = self._answers(self._sets)
        layers, compare = self.reference.without_fast_path, self._compared
        if layers and not compare(answers, self.reference).passed and (found := compare(answers, layers)).passed:
            self.reference, right = layers, noted(found, WITHOUT_FAST_PATH)
        else:
            right = self._beside_witnesses(answers, self.reference)
        if not right.passed:
            right = self._with_cause(right, answers)
        if traits.is_random:
            return self._of_random(right, answers)
        # a frozen choice is right for the first inputs, which a trace is made of: other forms there have another reason
        known = self.reference.outputs
        if not right.passed and self._frozen and not match(answers[:1], known[:1], known)[1]:
            return wrong(right, f"{self._frozen} ({right.rule})")
        if not traits.state:
            return right if self._first else self._with_new_values(self._repeated(right, answers), answers)
        return self._later(right, answers) if right.passed else self._after_other_calls(right, answers)

    def _with_cause(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Name in the reason what explains all that is wrong, if it is found."""
        casts = self.reference.without_own_casts
        moved = casts and replace(self.reference, eager_rmse=casts.rmse, eager_spread=casts.spread)
        if moved and self._compared(answers, moved).passed:
            return noted(right, LEAVES_OUT_CASTS)
        answers = with_constants(answers, self.reference.outputs)
        for where, shown in without_hidden(answers, self.reference.outputs, self._sets):
            if self._compared(shown, self.reference).passed:
                return noted(right, HIDDEN.format(where))
        return right

    def _eager_fails(self) -> bool:
        """Return True if eager, called now, fails the check as well, where it would pass in the reference's process."""
        if self._traits.is_random or self._traits.fast_path:
            return False
        return self._is_true_of_eager(self._sets, lambda found: not self._compared(found, self.reference).passed)

    def _is_true_of_eager(self, script: Sequence[Inputs], is_true: Callable[[Sequence[Outputs]], bool]) -> bool:
        """Return True if that is true of eager's answers to a script in this process."""
        calls, cell = self._calls, self._cell
        is_plain = cell.task == INFERENCE and not cell.precision.is_quantised
        if calls.module is None or not is_plain or not calls.begins_anew:
            return False
        with may_fail():  # what was done to the module while it was built may be anything
            with clock_at(self._traits.clock_s):
                answers = calls.play(script, seeds_from=1 if self._traits.is_random else 0).outputs
            return is_true(answers)
        return False

    def _repeated(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Call the build with the first inputs again, and compare the answer with its first one."""
        if self._training_outputs:
            return right
        again = self._answers([self._sets[0]])
        if are_alike(answers[0], again[0]):
            return right
        own, others = with_answer(self.reference, answers[0]), self.reference.outputs[1:]
        if own is None or (repeated := self._compared(again, own, of_other_inputs=others)).passed:
            return right
        differs = repeated if right.passed else right
        return wrong(differs, f"{VARIES} ({differs.rule})")

    def _with_new_values(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Put the second inputs into the memory of the first ones, and compare a call with the second answer."""
        is_plain = self._cell.task == INFERENCE and not self._traits.written_inputs
        if not (right.passed and is_plain) or right.unchecked or len(self._sets) < 2:
            return right
        inputs, other = self._sets[:2]
        if [form_of(tensor) for tensor in inputs.tensors()] != [form_of(tensor) for tensor in other.tensors()]:
            return right
        kept = copied(inputs)
        try:
            # A build may keep answers by the addresses of inputs.
            fill(inputs, other)
            again = self._answers([inputs.map(lambda tensor: tensor)])[0]
        finally:
            fill(inputs, kept)
        if are_alike(answers[1], again):
            return right
        found = self._compared([answers[0], again, *answers[2:]], self.reference)
        return right if found.passed else wrong(found, f"{STALE} ({found.rule})")

    def _later(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Compare again after as many calls as the state takes to settle: a queue gives back what came long before."""
        calls = self._traits.settles_after
        if self._first or not calls:
            return right
        again = self._answers([*[self._sets[0]] * calls, *self._sets])[calls:]
        expected = self.reference.others[calls - 1]
        # an artefact has made more calls, but forgets if it answers as at first, where eager does not
        eager_repeats = all(map(are_alike, self.reference.outputs, expected.outputs))
        if not self._calls.can_restore and (eager_repeats or not all(map(are_alike, answers, again))):
            return right
        later = self._beside_witnesses(again, expected)
        forgets = FORGETS.format(", ".join(self._traits.state))
        return right if later.passed else wrong(later, f"{forgets}: {later.rule}")

    def _after_other_calls(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Compare with what eager answers after as many calls as the build may have made, and without its state."""
        *after, forgetful = self.reference.others
        forgets = self._compared(answers, forgetful).passed
        for expected in after if not forgets else ():
            if (later := self._beside_witnesses(answers, expected)).passed:
                self._calls.give_up_restoring()
                return later
        names = ", ".join(self._traits.state)
        rule = f"{right.rule}; the model keeps state from call to call ({names})"
        return wrong(right, FORGETS.format(names) if forgets else rule)

    def _of_random(self, right: Accuracy, answers: Sequence[Outputs]) -> Accuracy:
        """Return what can be said of a build of a random model whose answers were `right` or not with eager's seed."""
        traits, reference, draws = self._traits, self.reference, self._beyond.draws
        is_matched = not match(answers, reference.outputs)[1]
        if not is_matched or (traits.repeats_with_seed and right.passed):
            return right
        has_others = bool(set(labels(reference.outputs[0])) - set(traits.varying))
        if has_others and not (right := self._compared(answers, reference, traits.varying)).passed:
            return right
        if traits.loads_other_weights:
            return not_compared(right, OTHER_WEIGHTS)
        if traits.unwritten:
            return not_compared(right, UNWRITTEN.format(listed(first(traits.unwritten))), but_others=has_others)
        count = max(map(len, draws.values()), default=2)
        calls = self._answers([self._sets[0]] * count, seeds_from=1)
        if self._answers_alike(calls):
            twice = [self._sets[0]] * 2
            if not traits.repeats_with_seed and self._is_true_of_eager(
                twice, lambda found: are_alike(found[0], found[1])
            ):
                return not_compared(right, EAGER_DIFFERS, but_others=has_others)
            return wrong(right, NOT_RANDOM if traits.repeats_with_seed else ALWAYS_ALIKE)
        are_numbers = all(map(are_finite, answers)) or not all(map(are_finite, reference.outputs))
        if not are_numbers and traits.repeats_with_seed:
            return right.model_copy(update={"passed": False})
        why = OWN_NUMBERS if traits.repeats_with_seed else NO_SEED
        if draws and not self._cell.precision.is_quantised:
            difference = self._draws_differ(calls)
            if (
                difference
                and not traits.repeats_with_seed  # it counts its calls, for example
                and self._is_true_of_eager(
                    [self._sets[0]] * (2 * count),  # a count may just be where it was in the reference's process
                    lambda found: any(self._draws_differ(found[at : at + count]) for at in (0, count)),
                )
            ):
                why = EAGER_DIFFERS
            elif difference:
                return wrong(right, difference)
            else:
                why += f"; {LIKE_EAGERS.format(count)}"
        return not_compared(right, why, but_others=has_others)

    def _answers_alike(self, calls: Sequence[Outputs]) -> bool:
        """Return True if equal calls get one answer. A model that skips a layer in one call in twenty often does."""
        if not are_alike(calls[0], calls[1]):
            return False
        ends_s = time.monotonic() + distribution.MAX_SECONDS
        draws = self._beyond.draws.values()
        repeats = bool(draws) and all(len(torch.unique(rows, dim=0)) < len(rows) for rows in draws)
        seeds = range(3, 3 + MORE_CALLS) if repeats else ()
        more = (self._answers([self._sets[0]], seeds_from=seed)[0] for seed in seeds if time.monotonic() < ends_s)
        return all(are_alike(calls[0], other) for other in itertools.chain(calls[2:], more))

    def _draws_differ(self, answers: Sequence[Outputs]) -> str:
        """Say how the answers to equal calls are distributed otherwise than eager's in the reference's process."""
        first, draws = self.reference.outputs[0], self._beyond.draws
        found, problem = match(answers, [first] * len(answers))
        return problem or distribution.difference(
            distribution.draws_of(found, labels(first), self._traits.varying), draws, self._cell.precision
        )

    def _check_other_ways(self, right: Accuracy) -> Accuracy:
        """Check inputs with which the model decides otherwise. `right` is what is known of its own inputs."""
        probes = self._beyond.probes
        # eager's random numbers are those of the calls after the model's own sets
        script = (*self._sets, *probes) if self._traits.is_random else probes
        answers = self._answers(script)[-len(probes) :]
        for answer, reference in zip(answers, self.reference.others, strict=True):
            of_probe = self._beside_witnesses([answer], reference, of_other_inputs=self.reference.outputs)
            if not of_probe.passed:
                does = "answers" if self._traits.one_answer else "decides"
                cause = f": {self._frozen}" if self._frozen else ""
                where = f"wrong for inputs with which the model {does} otherwise{cause}"
                return wrong(of_probe, f"{where} ({of_probe.rule})")
        return right

    def _check_buffers(self, right: Accuracy) -> Accuracy:
        """Check what a call leaves in the buffers that the model keeps, in the module or in what was made of it."""
        calls, expected = self._calls, self._beyond.buffers
        if not calls.can_restore:
            return right.model_copy(update={"unchecked": UNREAD.format(", ".join(expected))})
        own = {name: list(buffers_in(self._compiled, name)) for name in expected}
        for name, (before, _) in expected.items():
            for buffer in own[name]:  # no restored module holds these
                buffer.copy_(before)
        self._answers([self._sets[0]])
        for name, change in expected.items():
            if not any(is_kept(buffer, *change) for buffer in (calls.buffer(name), *own[name])):
                return wrong(right, LEAVES_OUT.format(name))
        return right

    def _note_one_answer(self, right: Accuracy) -> Accuracy:
        assert self._traits.one_answer is not None
        why = f"the model gives one answer {self._traits.one_answer.how}"
        return right.model_copy(update={"unchecked": why, "rule": f"{right.rule}; {why}"})

    def _note_empty(self, right: Accuracy) -> Accuracy:
        """Note outputs of which no input set and no inputs of another way have shown a value, unless by their shape."""
        empty = empty_outputs(self.reference.outputs) - set(self._traits.empty_by_shape)
        for reference in self.reference.others if empty and self._beyond.probes else ():
            empty &= empty_outputs(reference.outputs)
        if not empty:
            return right
        why = f"the model's own {listed(first(sorted(empty)))} had no element for any inputs"
        return right.model_copy(update={"unchecked": why, "rule": f"{right.rule}; {why}", "others_compared": True})

    def _overwritten_beside(self) -> tuple[str, ...]:
        writable = self._beyond.written_inputs
        if not writable:
            return ()
        self._calls.begin()
        before, after = named_inputs(self._sets[0]), named_inputs(self._call(self._sets[0]))
        return tuple(name for name in after if name not in writable and not is_equal(after[name], before[name]))

    def _unwritten_inputs(self) -> list[str]:
        traits, expected = self._traits, self._beyond.written_inputs
        if not expected:
            return []
        self._calls.begin()
        written = named_inputs(self._call(self._sets[0]))
        # of some models only that they change can be told
        is_other = traits.is_random or (traits.state and not self._calls.can_restore)

        def is_written(name: str, before: torch.Tensor, after: torch.Tensor) -> bool:
            if is_other:
                return not is_equal(written[name], before)
            return is_equal(written[name], after) or is_kept(*map(as_pairs, (written[name], before, after)))

        return [name for name, change in expected.items() if not is_written(name, *change)]

    def _dropped(self) -> list[Access]:
        held_outside = [name for name in self._traits.grows if name in (OUTSIDE, GPU_MEMORY)]
        if not (self._traits.accesses or held_outside):
            return []
        own, expected = self._calls.module, self._traits.accesses
        if own is not None and any(access.kind is AccessKind.ATTRIBUTE for access in expected):
            of_eager = self._accesses_of(lambda inputs: call(own, self._calls.given(inputs)), [own]).accesses
            # a model may keep nothing of inputs that come again
            expected = tuple(read for read in expected if read.kind is not AccessKind.ATTRIBUTE or read in of_eager)
        watch = self._accesses_of(self._call, [*([own] if own is not None else []), *modules_in(self._compiled)])
        not_held = [] if watch.ran_users_code else held_outside  # which only the model's own code does
        return [
            *dropped(expected, watch.accesses),
            *(Access(kind=AccessKind.ATTRIBUTE, name=name) for name in not_held),
        ]

    def _accesses_of(self, answer: Callable[[Inputs], object], modules: Iterable[torch.nn.Module]) -> OutsideWatch:
        """Watch one call. In the call before it, what a call keeps of its inputs was another value."""
        self._calls.begin()
        answer(self._sets[-1])
        with OutsideWatch(modules) as watch:
            answer(self._sets[0])
        return watch

    def _compared(
        self,
        answers: Sequence[Outputs],
        reference: Reference,
        left_out: Sequence[str] = (),
        of_other_inputs: Sequence[Outputs] = (),
    ) -> Accuracy:
        # for a GPU, others may build or check beside this; a CPU's cells do so alone
        with few_threads() if self._cell.device.is_cuda else contextlib.nullcontext():
            return accuracy.check(
                answers, reference, self._cell.precision, self._training_outputs, left_out, of_other_inputs
            )

    def _beside_witnesses(
        self, answers: Sequence[Outputs], reference: Reference, of_other_inputs: Sequence[Outputs] = ()
    ) -> Accuracy:
        compare = partial(self._compared, of_other_inputs=of_other_inputs)
        return beside_witnesses(answers, reference, self._cell.precision, compare)

    def _answers(self, sets: Sequence[Inputs], seeds_from: int = 0) -> tuple[Outputs, ...]:
        seeds = random.Random(seeds_from)

        def answer(inputs: Inputs) -> Outputs:
            if self._traits.is_random:
                self._compiled.seed(seeds.getrandbits(31))
            self._run(inputs)
            return self._compiled.outputs()

        return self._calls.play(sets, answer, seeds_from).outputs

    def _call(self, inputs: Inputs) -> Inputs:
        """Make the next call, and return what it was given, which it may have written into."""
        given = self._calls.given(inputs)
        self._run(given)
        return given

    def _run(self, given: Inputs) -> None:
        self._compiled.restore()
        self._compiled.bind(given)
        self._synchronise()
        with clock_at(self._traits.clock_s):
            self._compiled.run()
            self._synchronise()


def beside_witnesses(
    answers: Sequence[Outputs],
    reference: Reference,
    precision: Precision,
    compare: Callable[[Sequence[Outputs], Reference], Accuracy],
) -> Accuracy:
    """Compare all, or the rest where a build answers otherwise than eager, but no more than eager does with noise."""
    right, exact = compare(answers, reference), reference.outputs
    if right.passed or not (witnesses := reference.witnesses):
        return right
    answers = with_constants(answers, exact)
    rest, others = without_jumps(answers, exact, witnesses, precision.epsilon)
    known = EagerErrors(reference.eager_rmse, reference.eager_spread)
    for noisy in witnesses[:RUNS_WITH_NOISE]:
        known = known.or_larger(errors_of_eager(without_jumps(noisy, exact, [noisy], precision.epsilon)[0], exact))
    of_rest = compare(rest, replace(reference, eager_rmse=known.rmse, eager_spread=known.spread))
    if not of_rest.passed or of_rest.unchecked:
        return right
    values = listed([f"{counted(count, 'value')} of {label}" for label, count in others.items()])
    why = BY_ROUNDING.format(values or "how far an answer is off")
    count, number = sum(others.values()), sum(as_pairs(tensor).numel() for outputs in exact for tensor in outputs)
    are_few = number >= MIN_WHOLE_NUMBERS and count <= MAX_FLIPPED_SHARE * number  # as at blurred edges of an image
    if values and are_few:
        return noted(of_rest, why)
    return not_compared(of_rest, why, but_others=count < number)


def with_constants(answers: Sequence[Outputs], known: Sequence[Outputs]) -> Sequence[Outputs]:
    """Return the answers with the numbers that a graph leaves out, so that they are as long as the known ones."""
    matched, _ = match(answers, known)
    filled = [
        with_structure_of(exact, (right if own is None else own for own, right in zip(ours, exact, strict=True)))
        for ours, exact in zip(matched, known, strict=False)
    ]
    return filled or answers


def wrong(found: Accuracy, rule: str) -> Accuracy:
    return found.model_copy(update={"passed": False, "rule": rule, "is_only_inexact": False, "unchecked": ""})


def noted(found: Accuracy, note: str) -> Accuracy:
    return found.model_copy(update={"rule": f"{found.rule}; {note}"})


def not_compared(found: Accuracy, why: str, *, but_others: bool = False) -> Accuracy:
    """Say that outputs could not be compared: all of them, or all but the others whose errors were `found`."""
    errors = {} if but_others else dict.fromkeys(("rmse", "relative_rmse", "max_abs_error"), math.nan)
    rule = f"{'not all' if but_others else 'not'} compared: {why}"
    said = {"passed": True, "unchecked": why, "rule": rule, "others_compared": but_others, "times_limit": None}
    return found.model_copy(update={**said, **errors})


def form_of(tensor: torch.Tensor) -> object:
    """Return what two inputs must share so that one can take the values of the other. Some can never do so."""
    return (tensor.shape, tensor.dtype, tensor.stride()) if is_strided(tensor) else object()


def fill(inputs: Inputs, other: Inputs) -> None:
    with torch.no_grad():
        for tensor, values in zip(inputs.tensors(), other.tensors(), strict=True):
            once = without_repeats(tensor)
            tensor.detach()[once].copy_(values.detach()[once])


MAX_BUFFER_ERROR = 0.1
"""What a call leaves in a buffer or in an input, and in each channel or row of it, may be off by this share of the
change."""

MAX_BUFFER_ROUNDINGS = 16
"""It may also be off by so many roundings of the size of the whole."""


def is_kept(buffer: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return True if a buffer or an input that was `before` is what eager has made of it, up to rounding."""
    if buffer.shape != after.shape:
        return False
    if not after.is_floating_point():
        return torch.equal(buffer.to(after), after)
    rounding = (
        MAX_BUFFER_ROUNDINGS * torch.finfo(after.dtype).eps * after.double().norm() / math.sqrt(after.numel() or 1)
    )
    change, error = (
        (values.to(after.device).double() - other.double()).square()
        for values, other in ((before.where(before.isfinite(), 0), after), (buffer, after))
    )
    changes, errors = SliceSums(), SliceSums()
    changes.add(change)
    errors.add(error)
    pairs = [(errors.root_mean_squares[place], size) for place, size in changes.root_mean_squares.items()]
    pairs += [(error.mean().sqrt(), change.mean().sqrt())] if after.numel() else []
    return all(bool((off <= MAX_BUFFER_ERROR * size + rounding).all()) for off, size in pairs)


def buffers_in(compiled: object, name: str) -> Iterator[torch.Tensor]:
    for module in modules_in(compiled):
        yield from (buffer for own, buffer in module.named_buffers() if f".{own}".endswith(f".{name}"))


def modules_in(compiled: object, depth: int = 4) -> Iterator[torch.nn.Module]:
    for value in vars(compiled).values() if depth and hasattr(compiled, "__dict__") else ():
        if isinstance(value, torch.nn.Module):
            yield value
        elif type(value).__module__.startswith("bakeoff."):
            yield from modules_in(value, depth - 1)


class WithFreshInputs(Wrapped):
    """Calls a build of a model that writes into its inputs. Each binding restores the values that the set had at first,
    which is not timed. Calls without a binding, as for throughput, go on with what was written."""

    def __init__(self, compiled: Compiled, sets: Sequence[Inputs]) -> None:
        super().__init__(compiled)
        self._given = {id(own): (own, copied(own)) for own in sets}

    def bind(self, inputs: Inputs) -> None:
        known = self._given.get(id(inputs))
        if known is None:
            super().bind(inputs)
            return
        first, written = known
        for tensor, kept in zip(written.tensors(), first.tensors(), strict=True):
            if tensor.shape != kept.shape:  # as after `x.t_()`
                tensor.as_strided_(kept.shape, kept.stride())
            tensor.copy_(kept)
        super().bind(written)


class WithFrozenChoices(Wrapped):
    def __init__(self, compiled: Compiled, choices: Sequence[Decision]) -> None:
        super().__init__(compiled)
        self._choices = choices

    def placement(self) -> Placement | None:
        placement = super().placement() or Placement(extent=Extent.FULL)
        extent = Extent.PARTIAL if placement.extent is Extent.FULL else placement.extent
        return placement.model_copy(
            update={"extent": extent, "frozen_choices": [choice.place for choice in self._choices]}
        )


def places_of(choices: Sequence[Decision]) -> str:
    """Return where choices are made, such as `early_exit.py, line 20 (if x.max() > 0.9)`."""
    return "; ".join(
        f"{choice.place} ({choice.code.rstrip(':')})" if choice.code else choice.place for choice in choices
    )


def with_traits(
    compiled: Compiled, sets: Sequence[Inputs], traits: ModelTraits, choices: Sequence[Decision]
) -> Compiled:
    if traits.written_inputs:
        compiled = WithFreshInputs(compiled, sets)
    return WithFrozenChoices(compiled, choices) if choices else compiled
