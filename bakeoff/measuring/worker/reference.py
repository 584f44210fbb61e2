"""The job of computing a contest's reference: the model is loaded for each witness, and what they say is written."""

import contextlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import torch

from bakeoff.backends import fast_path
from bakeoff.backends.calling import mapped
from bakeoff.measuring.messages import ComputeReference, ReferenceComputed
from bakeoff.measuring.worker import memory, precision
from bakeoff.measuring.worker.cell_model import move_to_device
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.eager_answers import AsItIs, as_it_is
from bakeoff.measuring.worker.fingerprint import named_variables, own_files
from bakeoff.measuring.worker.subject import Exact, OutputsIn, Subject, outputs_in
from bakeoff.models.unwrapping import mixes_types
from bakeoff.records.precision import Precision
from bakeoff.records.schema import INFERENCE
from bakeoff.records.traits import MILDER_SETS, NO_TRAITS, FastPath
from bakeoff.truth import accuracy, kept_reference
from bakeoff.truth.calls import Outputs, call, copied, may_fail
from bakeoff.truth.errors import (
    MAX_ROUNDING,
    EagerErrors,
    decided_by_rounding,
    errors_of_eager,
    far_from_float64,
    is_explained_by_rounding,
    with_varying,
    within_float32,
    yardsticks,
)
from bakeoff.truth.matching import labels
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.reference import Reference
from bakeoff.truth.witnesses import STRONG_NOISE, KeepFloat64

RANDOM = "the model is random, and draws other numbers in another type"
NO_REPEAT = "the model's answers change from call to call"


def compute(
    job: ComputeReference,
    cwd: Path,
    workspace: Path,
    outputs_in: OutputsIn = outputs_in,
    connection: Connection | None = None,
) -> ReferenceComputed:
    """Write a contest's outputs in float64 and the error of eager in the cell's precision to a file. What is at the
    other end of `connection` receives the phases."""
    subject = Subject(job.cell, cwd, workspace, connection, job.weights_at, outputs_in)
    try:
        return _compute(job, subject)
    except Exception as error:
        if job.cell.task != INFERENCE or subject.phase != "call":
            raise
        if (other := that_answers(subject)) is None:
            for form in subject.forms:  # a cell casts weights in float64, for example, and the model's code does not
                error.add_note(f"the model {form}")
            subject.announce("call")
            raise
    return _compute(job, other)


def that_answers(subject: Subject) -> Subject | None:
    """Return the subject with gradients in forward, with weights of several types as they came, or with milder input
    sets, if that lets a failing model answer. Return None if nothing does, or if it fails for its own example."""

    def changed(needs_autograd: bool, *kinds: str) -> Subject:
        traits = NO_TRAITS.but(changed_kinds=kinds)
        return replace(subject, needs_autograd=needs_autograd, traits=traits, probes=(), runs_with_noise={})

    as_it_came = replace(changed(False), traits=NO_TRAITS.but(keeps_types=True))
    mixes = subject.cell.precision is Precision.FP32 and mixes_types(subject.load().module)
    if mixes and first_set_that_fails(as_it_came) is None:
        return as_it_came
    others = [changed(needs_autograd, kind) for needs_autograd in (False, True) for kind in MILDER_SETS]
    failing = first_set_that_fails(with_autograd := changed(True))
    if not failing:
        return with_autograd if failing is None else None
    return next((other for other in others if first_set_that_fails(other) is None), None)


def first_set_that_fails(subject: Subject) -> int | None:
    answered = 0
    with Clock(subject.cell.device).on_stream(), subject.gradients(), may_fail():
        module, sets = move_to_device(subject.load(), subject.cell)
        for inputs in sets:
            call(module, copied(inputs))
            answered += 1
        return None
    return answered


def _compute(job: ComputeReference, subject: Subject) -> ReferenceComputed:
    cell = job.cell
    precision.apply(cell.precision)
    device_memory = memory.DeviceMemory(cell.device.cuda_index)
    clock = Clock(cell.device)
    with clock.on_stream(), subject.gradients(), contextlib.ExitStack() as held:
        as_is = as_it_is(subject, None if job.is_resumed else job.inputs, job.kept_in is not None)
        if job.is_resumed:
            subject.announce("reference")
            is_changed = is_other_model(Reference.load(job.reference), subject, as_is.outputs[: as_is.sets])
            return ReferenceComputed(work=as_is.work, uncounted=as_is.uncounted, is_changed=is_changed)
        held.enter_context(clock_at(as_is.traits.clock_s))
        first = Reference.load(job.first_reference) if job.first_reference else None
        shared = known_outputs(first, subject, as_is.sets) if first else None
        file = kept_reference.kept_at(job.kept_in, as_is.fingerprint, cell) if job.kept_in else None
        stored = kept_reference.load(file) if file and not (shared or job.is_fresh) else None
        kept = kept_outputs(stored.reference, subject, as_is.outputs) if stored else None
        exact, noisy = trusted(subject, as_is, shared or kept)
        layers = exact_without_fast_path(subject, as_is, exact.outputs) if exact.outputs is not None else None
        witnesses = rounded_otherwise(subject, as_is, exact.outputs)
        yardstick = Yardstick.of(subject, as_is, exact, noisy, bool(witnesses))
        casts = errors_without_own_casts(subject, as_is, exact)
        clock.synchronise()
    traits = subject.traits

    def without_fast_path(places: range) -> Reference:
        ours, theirs = ([row[place] for place in places] for row in (as_is.without_fast_path, layers or ()))
        return Reference(tuple(theirs), *errors_of_eager(ours, theirs), types=types_of(ours))

    def expected(places: range) -> Reference:
        with clock.on_stream(), subject.gradients():
            errors = yardstick.errors(places)
        return Reference(
            tuple(yardstick.expected[place] for place in places),
            *errors,
            computed_in=exact.computed_in,
            in_float32=exact.in_float32,
            greedy=as_is.greedy,
            why_narrower=exact.why_narrower,
            traits=traits,
            types=types_of([as_is.outputs[place] for place in places]),
            first_greedy=first.greedy if first else None,
            longest_sum=as_is.longest_sum,
            sums=as_is.sums,
            kept_at=exact.kept_at,
            witnesses=tuple(tuple(run[place] for place in places) for run in witnesses),
        )

    reference = replace(
        Reference.with_others(expected, len(yardstick.expected), as_is.sets, traits),
        without_own_casts=casts,
        without_fast_path=Reference.with_others(without_fast_path, len(layers), as_is.sets, traits) if layers else None,
    )
    if job.sample is not None and as_is.sample is not None:
        errors = EagerErrors(reference.eager_rmse, reference.eager_spread)
        allowed = errors.or_of_sums(cell.precision, as_is.longest_sum)
        as_is.sample.save(job.sample, reference.outputs[0], allowed.rmse, cell.precision)
    as_is.beyond.save(job.reference)  # before the reference, with which all are there
    reference.save(job.reference, job.first_reference if shared and yardstick.expected is shared.outputs else None)
    device_memory.sample()
    size = device_memory.peaks()
    is_alike = traits.begins_alike and not as_is.beyond.probes
    if file and is_alike and not (shared or kept) and exact.computed_in == "float64" and not exact.in_float32:
        kept_reference.keep(job.reference, file, size)
    return ReferenceComputed(
        work=as_is.work,
        uncounted=as_is.uncounted,
        traits=traits,
        memory=stored.memory if stored and kept else size,
        weights="" if job.weights_at else as_is.weights,
        fingerprint=as_is.fingerprint,
        is_changed=stored is not None and kept is None,
        named_variables=named_variables(),
        own_files=(*own_files(), *subject.files_read),
        eager_call=as_is.eager_call,
    )


def types_of(answers: Sequence[Outputs]) -> tuple[tuple[torch.dtype, ...], ...]:
    return tuple(tuple(tensor.dtype for tensor in outputs) for outputs in answers)


def trusted(subject: Subject, as_is: AsItIs, known: Exact | None) -> tuple[Exact, Sequence[Sequence[Outputs]]]:
    """Return the exact outputs, `known` or computed, if float64 can be a reference for eager, and eager's with noise
    where they matter. Whether rounding decides goes into the model's traits."""
    cell, traits = subject.cell, subject.traits

    def nothing(why: str) -> Exact:
        return Exact(None, cell.precision, why_narrower=why)

    if traits.is_random and set(labels(as_is.outputs[0])) <= set(traits.varying):
        return nothing(RANDOM), ()
    exact = known or subject.exact()
    if exact.outputs is not None and traits.varying:
        varied = with_varying(exact.outputs, as_is.outputs, traits.varying)
        exact = exact._replace(outputs=varied) if varied else nothing(RANDOM)
    if exact.outputs is None or cell.task != INFERENCE:
        return exact, ()
    exact = exact._replace(outputs=(outputs := within_float32(exact.outputs, as_is.outputs)))
    answers = as_is.outputs[: as_is.sets], outputs[: as_is.sets], cell.precision
    decided, lost = decided_by_rounding(*answers), ""
    far_off = "" if decided else far_from_float64(*answers)
    noisy = subject.noisy() if far_off else ()
    if (decided or far_off) and not traits.is_random and not subject.repeats(as_is.outputs[: as_is.sets]):
        varying = tuple(labels(as_is.outputs[0]))
        subject.traits = traits.but(
            is_random=True, repeats_with_seed=False, varying=varying, loads_other_weights=subject.loads_other_weights()
        )
        return nothing(NO_REPEAT), ()
    if decided:
        exact = nothing(f"what the model decides depends on rounding: {decided}")
    elif far_off and not is_explained(subject, as_is, *answers, noisy):
        exact = nothing(f"{far_off}, and not by rounding")
    elif far_off and not cell.precision.is_16_bit:  # which rounds as coarsely itself
        lost = far_from_float64(*answers, MAX_ROUNDING)
        if lost and as_is.may_jump:  # to another sign, for example: then builds are compared with eager
            exact, decided = nothing(f"what the model decides depends on rounding: {lost}"), lost
    subject.traits = traits.but(depends_on_rounding=decided or lost)
    return exact, noisy if lost and not decided else ()


def is_explained(
    subject: Subject,
    as_is: AsItIs,
    eager: Sequence[Outputs],
    exact: Sequence[Outputs],
    precision: Precision,
    noisy: Sequence[Sequence[Outputs]],
) -> bool:
    """Return True if rounding explains how far eager is from float64, by runs with noise, with inputs that are moved as
    well, or with more noise."""
    if is_explained_by_rounding(eager, exact, noisy, precision):
        return True
    if as_is.moved and is_explained_by_rounding(eager, exact, [as_is.moved], precision):
        return True
    return not precision.is_16_bit and is_explained_by_rounding(eager, exact, subject.noisy(STRONG_NOISE), precision)


def rounded_otherwise(
    subject: Subject, as_is: AsItIs, exact: Sequence[Outputs] | None
) -> tuple[tuple[Outputs, ...], ...]:
    """Return what eager answers with noise, the weakest first, if an operator's result may jump by it, as a cast to 16
    bits does, if it is not finite at the same places, or if eager is far off in a few places, as a build is in others.
    """
    precision = subject.cell.precision
    if subject.traits.is_random or precision.is_quantised:
        return ()
    pairs = [zip(*answers, strict=False) for answers in zip(as_is.outputs, as_is.moved, strict=False)]
    are_finite_alike = all(one.isfinite().equal(other.isfinite()) for answers in pairs for one, other in answers)
    jumps = as_is.may_jump or (as_is.narrows and not precision.is_16_bit) or not are_finite_alike
    if not jumps and not (exact and errors_of_eager(as_is.outputs, exact).is_far_off_by_chance(precision)):
        return ()
    weak = subject.noisy()
    return weak + subject.noisy(STRONG_NOISE) if weak and not precision.is_16_bit else weak


def errors_without_own_casts(subject: Subject, as_is: AsItIs, exact: Exact) -> EagerErrors | None:
    """Return how far the answers move if the model's own casts to 16 bits are left out, or None if it has none."""
    is_plain = subject.traits.begins_alike and not (
        subject.cell.precision.is_16_bit or subject.cell.precision.is_quantised
    )
    if not (as_is.narrows and is_plain) or exact.outputs is None or exact.computed_in != "float64":
        return None
    try:
        with KeepFloat64(widens_16_bits=True):
            wide = subject.outputs_in(subject.load(), subject.cell, torch.float64)
    except RuntimeError:  # its weights may be of 16 bits
        traceback.print_exc()
        return None
    return errors_of_eager(wide[: as_is.sets], exact.outputs[: as_is.sets])


def exact_without_fast_path(subject: Subject, as_is: AsItIs, exact: Sequence[Outputs]) -> tuple[Outputs, ...] | None:
    """Return the exact outputs without the fast path of eager's transformer layers, if it matters. How it matters goes
    into the model's traits."""
    if not as_is.without_fast_path:
        return None
    with_it = Reference(tuple(exact), *errors_of_eager(as_is.outputs, exact))
    if accuracy.check(as_is.without_fast_path, with_it, subject.cell.precision).passed:
        return None
    with fast_path.switched_off():
        layers = subject.exact().outputs
    if layers is None or list(map(len, exact)) != list(map(len, layers)):
        return None
    count = of = 0
    are_zeros = True
    for ours, theirs in zip(exact, layers, strict=True):
        for fast, plain in zip(ours, theirs, strict=True):
            if fast.is_floating_point() and fast.shape == plain.shape:
                differs = ~torch.isclose(fast, plain, equal_nan=True)
                count, of = count + int(differs.sum()), of + fast.numel()
                are_zeros = are_zeros and not bool(fast[differs].any())
    difference = FastPath(differing=count, values=of, are_zeros=are_zeros)
    subject.traits = subject.traits.but(fast_path=difference)
    return layers


@dataclass
class Yardstick:
    """The outputs that builds are compared with, and the witnesses whose distance from them is rounding."""

    subject: Subject
    expected: tuple[Outputs, ...]  # exact ones, or eager's own
    eager: tuple[Outputs, ...]  # moved by rounding, where eager's own are expected and no witness shows what jumps
    noisy: Sequence[Sequence[Outputs]]
    longest_sum: int
    is_exact: bool
    moved: tuple[Outputs, ...] = ()  # by rounding, which counts up to a share of each part's size
    perturbed: tuple[Outputs, ...] = ()

    @classmethod
    def of(
        cls, subject: Subject, as_is: AsItIs, exact: Exact, noisy: Sequence[Sequence[Outputs]], has_witnesses: bool
    ) -> Self:
        eager, varying = as_is.outputs, subject.traits.varying
        if exact.outputs is None and has_witnesses and not subject.cell.precision.is_16_bit:  # they show what jumps
            return cls(subject, eager, eager, noisy, as_is.longest_sum, is_exact=False, moved=subject.perturbed())
        if exact.outputs is None:
            of_eager = as_is.moved or subject.perturbed() or eager
            return cls(subject, eager, of_eager, noisy, as_is.longest_sum, is_exact=False)
        if varying:
            eager = with_varying(eager, subject.perturbed() or eager, varying) or eager
        return cls(subject, exact.outputs, eager, noisy, as_is.longest_sum, is_exact=True, moved=as_is.moved)

    def errors(self, places: Sequence[int]) -> EagerErrors:
        traits, precision = self.subject.traits, self.subject.cell.precision
        depends = bool(traits.depends_on_rounding)

        def beside(witness: Sequence[Outputs], rounding_decides: bool) -> EagerErrors:
            ours, theirs = ([outputs[place] for place in places] for outputs in (witness, self.expected))
            return yardsticks(ours, theirs, rounding_decides)

        errors = beside(self.eager, depends)
        for run in self.noisy:
            errors = errors.or_larger(beside(run, True))
        if self.moved:
            return errors.or_perturbed(beside(self.moved, True), only_parts=False)
        if not self.is_exact:
            return errors
        allowed = errors.or_of_sums(precision, self.longest_sum)
        if not traits.is_random and allowed.differs_in_parts(precision):
            self.perturbed = self.perturbed or self.subject.perturbed() or self.eager
            errors = errors.or_perturbed(beside(self.perturbed, True))
        return errors


def known_outputs(reference: Reference, subject: Subject, sets: int) -> Exact | None:
    """Return the exact outputs of the reference of another precision, or None if they need not be those of this one."""
    ours, theirs = subject.traits, reference.traits
    # State and random numbers depend on the calls, and probes are looked for in each precision.
    if not (ours.begins_alike and theirs.begins_alike) or subject.probes or len(reference.outputs) != sets:
        return None
    # Operators without float64 obey the switches of TF32.
    if reference.computed_in != "float64" or reference.in_float32 or ours.changed_kinds != theirs.changed_kinds:
        return None

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(subject.cell.device)

    outputs = tuple(mapped(output, placed) for output in reference.outputs)
    return Exact(outputs, reference.computed_in, kept_at=reference.kept_at)


def kept_outputs(reference: Reference, subject: Subject, eager: Sequence[Outputs]) -> Exact | None:
    """Return the exact outputs that an earlier run has kept, or None if they are not those of this model for sure."""
    exact = known_outputs(reference, subject, len(eager))
    if exact is None or exact.outputs is None:
        return None
    return exact if kept_reference.has_same_error(eager, exact.outputs, reference.eager_rmse) else None


def is_other_model(reference: Reference, subject: Subject, eager: Sequence[Outputs]) -> bool:
    """Return True if eager's outputs do not pass the check against the reference that an interrupted run computed."""
    # Outputs say nothing of a training step, and of a model that is random or keeps a state.
    if subject.cell.task != INFERENCE or not (subject.traits.begins_alike and reference.traits.begins_alike):
        return False
    return not accuracy.check(eager, reference, subject.cell.precision).passed
