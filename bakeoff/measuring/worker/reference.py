"""The job of computing a contest's reference: the model is loaded for each witness, and what they say is written."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bakeoff.backends import fast_path
from bakeoff.backends.calling import flatten_outputs, mapped
from bakeoff.backends.reasons import is_out_of_memory
from bakeoff.backends.training import Training
from bakeoff.measuring.messages import ComputeReference, EagerCall, PhaseBegun, ReferenceComputed, send
from bakeoff.measuring.worker import counting, loading, memory, precision, simulation
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.fingerprint import (
    digest_of_weights,
    digests_of_data,
    fingerprint,
    named_variables,
    own_files,
)
from bakeoff.measuring.worker.loading import move_to_device, training_of
from bakeoff.measuring.worker.sample import Sample, sizes_depend_on_values
from bakeoff.measuring.worker.worker_context import explain
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.generation import caches_in_place
from bakeoff.models.input_sets import MASKS, NOISE, PAIRS, SCALES, WHOLES, ZEROS, is_strided
from bakeoff.records.device import CPU
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, INFERENCE, TRAIN_STEP, Cell, Work
from bakeoff.records.traits import MILDER_SETS, NO_TRAITS, FastPath, ModelTraits, Setting
from bakeoff.truth import accuracy, distribution, global_settings, kept_reference, rounding_limits
from bakeoff.truth.calls import AlikeCalls, Outputs, are_alike, call, copied, named_inputs, run_eager, thinned
from bakeoff.truth.decisions import MAX_PROBES, ReadingWatch, answers_like_first, decisions_of
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
from bakeoff.truth.generating import Greedy, generate, steps_in_place
from bakeoff.truth.matching import empty_outputs, labels
from bakeoff.truth.module_state import is_equal
from bakeoff.truth.moved_clock import clock_at, is_clock_stopped
from bakeoff.truth.reference import Beyond, Reference
from bakeoff.truth.tiny_weights import tiny_weights_of
from bakeoff.truth.traits import (
    OUTSIDE,
    Understood,
    are_equal,
    inputs_with_another_answer,
    inputs_without_effect,
    leaves_more_behind,
    not_finite_in,
    outputs_alike,
    recall_of,
    understand,
)
from bakeoff.truth.user_code import noting_reads, users_data, weights_beside, weights_named_in
from bakeoff.truth.witnesses import (
    RUNS_WITH_NOISE,
    STRONG_NOISE,
    KeepFloat64,
    RoundingNoise,
    jolt,
    layer_by_layer,
    type_in,
    use_plain_experts,
)


def outputs_in(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
    """Return the outputs of every input set in `dtype`. The model's module must not be used afterwards."""
    if not (model.is_layerwise and cell.task == INFERENCE):
        return run_eager(*move_to_device(model, cell, dtype), training_of(model, cell), model.traits)
    module, sets = move_to_device(model, cell, loading.drawn_type(cell))
    with layer_by_layer(module, dtype):
        cast = tuple(inputs.map(lambda tensor: tensor.to(type_in(tensor, dtype))) for inputs in sets)
        return run_eager(module, cast, traits=model.traits)


class Exact(NamedTuple):
    outputs: tuple[Outputs, ...] | None
    computed_in: str
    in_float32: tuple[str, ...] = ()  # operators that lack float64
    why_narrower: str = ""  # how float64 failed
    kept_at: str = ""  # when an earlier run kept them, if it did


WeightsAt = Mapping[str, int] | None
"""The sizes whose weights the model has, if that is said."""

OutputsIn = Callable[[LoadedModel, Cell, "torch.dtype"], tuple[Outputs, ...]]

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
    other end of `connection` is told the phases."""
    subject = Subject(job.cell, cwd, workspace, connection, job.weights_at, outputs_in)
    try:
        return _compute(job, subject)
    except Exception:
        if job.cell.task != INFERENCE or subject.phase != "call":
            raise
        if (other := that_answers(subject)) is None:
            subject.announce("call")
            raise
    return _compute(job, other)


def that_answers(subject: Subject) -> Subject | None:
    """Return the subject with gradients in forward, or with milder input sets, if that lets a failing model answer.
    Return None if nothing does, or if it does not even answer its own example."""

    def changed(needs_autograd: bool, *kinds: str) -> Subject:
        traits = NO_TRAITS.model_copy(update={"changed_kinds": kinds})
        return replace(subject, needs_autograd=needs_autograd, traits=traits, probes=(), runs_with_noise={})

    others = [changed(needs_autograd, kind) for needs_autograd in (False, True) for kind in MILDER_SETS]
    failing = first_set_that_fails(with_autograd := changed(True))
    if not failing:
        return with_autograd if failing is None else None
    return next((other for other in others if first_set_that_fails(other) is None), None)


def first_set_that_fails(subject: Subject) -> int | None:
    answered = 0
    with Clock(subject.cell.device).on_stream(), subject.gradients():
        try:
            module, sets = move_to_device(subject.load(), subject.cell)
            for inputs in sets:
                call(module, copied(inputs))
                answered += 1
        except Exception:  # a model may raise anything
            traceback.print_exc()
            return answered
    return None


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
        first = Reference.load(job.known) if job.known else None
        shared = known_outputs(first, subject, as_is.sets) if first else None
        file = kept_reference.kept_at(job.kept_in, as_is.fingerprint, cell) if job.kept_in else None
        stored = kept_reference.load(file) if file and not (shared or job.is_fresh) else None
        kept = kept_outputs(stored.reference, subject, as_is.outputs) if stored else None
        exact, noisy = trusted(subject, as_is, shared or kept)
        layers = exact_without_fast_path(subject, as_is, exact.outputs) if exact.outputs is not None else None
        yardstick = Yardstick.of(subject, as_is, exact, noisy)
        witnesses = rounded_otherwise(subject, as_is)
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
        )

    reference = replace(
        Reference.with_others(expected, len(yardstick.expected), as_is.sets, traits),
        witnesses=tuple(run[: as_is.sets] for run in witnesses),
        without_own_casts=casts,
        without_fast_path=Reference.with_others(without_fast_path, len(layers), as_is.sets, traits) if layers else None,
    )
    if job.sample is not None and as_is.sample is not None:
        errors = EagerErrors(reference.eager_rmse, reference.eager_spread)
        allowed = errors.or_of_sums(cell.precision, as_is.longest_sum)
        as_is.sample.save(job.sample, reference.outputs[0], allowed.rmse, cell.precision)
    as_is.beyond.save(job.reference)  # before the reference, with which all are there
    reference.save(job.reference, job.known if shared and yardstick.expected is shared.outputs else None)
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


@dataclass
class Subject:
    """The model of a contest, which is loaded anew for each witness, and what the first of them finds out."""

    cell: Cell
    cwd: Path
    workspace: Path
    connection: Connection | None = None
    weights_at: WeightsAt = None
    outputs_in: OutputsIn = outputs_in
    needs_autograd: bool = False
    phase: str = ""  # the one that was announced last
    traits: ModelTraits = NO_TRAITS
    probes: tuple[Inputs, ...] = ()  # in the cell's precision, on its device
    changed_by_loading: tuple[Setting, ...] = ()  # global settings
    data_files: Sequence[Path] = ()  # of the user's, which were read while the model was loaded
    runs_with_noise: dict[int, tuple[tuple[Outputs, ...], ...]] = field(default_factory=dict)  # by their roundings

    def announce(self, phase: str) -> None:
        """Tell the phase that begins: `model` while the model is loaded, `call` while it is called as it is, and
        `reference` while exact outputs are computed."""
        self.phase = phase
        if self.connection is not None:
            send(self.connection, PhaseBegun(name=phase))

    def gradients(self) -> AbstractContextManager[object]:
        return loading.gradients(self.cell.task, self.needs_autograd)

    @property
    def files_read(self) -> list[Path]:
        """The user's files that must be as they are when the run is resumed. Those in the workspace go with it."""
        files = [path for path in self.data_files if not path.is_relative_to(self.workspace.resolve())]
        return sorted({*files, *weights_beside(files), *weights_named_in(own_files())})

    def load(self) -> LoadedModel:
        """Load the model after freeing the memory of the one before it: a large one does not fit beside another."""
        gc.collect()
        if self.cell.device.is_cuda:
            torch.cuda.empty_cache()
        self.announce("model")
        before = global_settings.read()
        with torch.inference_mode(False), noting_reads() as read:  # as the cells' own processes load it
            model = loading.load(self.cell, self.cwd, self.weights_at)
            turned_off = () if torch.is_grad_enabled() else (Setting(name="gradients", before="on", after="off"),)
        if not self.cell.is_live:  # which lies in a file of Bakeoff's
            self.data_files = users_data(read)
        os.chdir(self.workspace)
        self.changed_by_loading = self.changed_by_loading or (*global_settings.changed_since(before), *turned_off)
        precision.apply(self.cell.precision)  # the model's file may have changed it
        self.announce("reference")
        model = model.understood(self.traits)
        return replace(model, inputs=(*model.inputs, *self.probes))

    def perturbed(self) -> tuple[Outputs, ...]:
        """Return what eager answers from weights and inputs that are moved by up to one rounding."""
        model = self.load()
        module, sets = move_to_device(model, self.cell)
        return run_eager(module, jolt(module, sets), training_of(model, self.cell), self.traits)

    def noisy(self, roundings: int = 1) -> tuple[tuple[Outputs, ...], ...]:
        """Return eager's answers in some runs in which each operator's result is moved by up to so many roundings."""
        if roundings not in self.runs_with_noise:
            module, sets = move_to_device(self.load(), self.cell)
            runs = []
            for seed in range(RUNS_WITH_NOISE):
                with RoundingNoise(seed, roundings):
                    runs.append(run_eager(module, sets, traits=self.traits))
            self.runs_with_noise[roundings] = tuple(runs)
        return self.runs_with_noise[roundings]

    def repeats(self, answers: Sequence[Outputs]) -> bool:
        """Return True if eager, loaded anew, gives these answers again: then their type alone can differ."""
        module, sets = move_to_device(self.load(), self.cell)
        again = run_eager(module, sets[: len(answers)], traits=self.traits)
        return all(map(are_alike, answers, again))

    def loads_other_weights(self) -> bool:
        return digest_of_weights(self.load().module) != digest_of_weights(self.load().module)

    def exact(self) -> Exact:
        """Return the outputs in the widest type that the model can be computed in: float64, then float64 with the plain
        implementation of a mixture of experts, then float32. They are None if no type wider than the cell's will do."""
        errors: list[Exception] = []
        for name, has_plain_experts in (("float64", False), ("float64", True), ("float32", False)):
            is_pointless = has_plain_experts and is_out_of_memory(errors[-1])
            # beside 16 bits float32 is as good as exact
            if is_pointless or (name == "float32" and not self.cell.precision.is_16_bit):
                continue
            try:
                if exact := self._exact_in(name, has_plain_experts):
                    why = explain(errors[0])[1].sentence if name == "float32" else ""
                    return exact._replace(why_narrower=why)
            except Exception as error:
                traceback.print_exc()
                errors.append(error.with_traceback(None))  # its frames would keep the model, and so fill the device
        # A weight's type rounds both of two runs of a step, so their difference would tell nothing.
        if self.cell.task == TRAIN_STEP:
            raise errors[0]
        return Exact(None, self.cell.precision, why_narrower=explain(errors[0])[1].sentence)

    def _exact_in(self, name: str, has_plain_experts: bool) -> Exact | None:
        model = self.load()
        if has_plain_experts and not use_plain_experts(model.module):
            return None
        with KeepFloat64() if name == "float64" else nullcontext() as mode:
            outputs = self.outputs_in(model, self.cell, getattr(torch, name))
        return Exact(outputs, name, tuple(mode.in_float32) if mode else ())


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
    answers = as_is.outputs[: as_is.sets], exact.outputs[: as_is.sets], cell.precision
    decided, lost = decided_by_rounding(*answers), ""
    far_off = "" if decided else far_from_float64(*answers)
    noisy = subject.noisy() if far_off else ()
    if (decided or far_off) and not traits.is_random and not subject.repeats(as_is.outputs[: as_is.sets]):
        varying = tuple(labels(as_is.outputs[0]))
        subject.traits = traits.model_copy(
            update={
                "is_random": True,
                "repeats_with_seed": False,
                "varying": varying,
                "loads_other_weights": subject.loads_other_weights(),
            }
        )
        return nothing(NO_REPEAT), ()
    if decided:
        exact = nothing(f"what the model decides depends on rounding: {decided}")
    elif far_off and not is_explained(subject, *answers, noisy):
        exact = nothing(f"{far_off}, and not by rounding")
    elif far_off and not cell.precision.is_16_bit:  # which rounds as coarsely itself
        lost = far_from_float64(*answers, MAX_ROUNDING)
    subject.traits = traits.model_copy(update={"depends_on_rounding": decided or lost})
    if exact.outputs is not None:
        exact = exact._replace(outputs=within_float32(exact.outputs, as_is.outputs))
    return exact, noisy if lost else ()


def is_explained(
    subject: Subject,
    eager: Sequence[Outputs],
    exact: Sequence[Outputs],
    precision: Precision,
    noisy: Sequence[Sequence[Outputs]],
) -> bool:
    """Return True if rounding explains how far eager is from float64, by runs with noise, and by those with more."""
    if is_explained_by_rounding(eager, exact, noisy, precision):
        return True
    return not precision.is_16_bit and is_explained_by_rounding(eager, exact, subject.noisy(STRONG_NOISE), precision)


def rounded_otherwise(subject: Subject, as_is: AsItIs) -> tuple[tuple[Outputs, ...], ...]:
    """Return what eager answers with noise, the weakest first, if an operator's result may jump by it."""
    precision = subject.cell.precision
    if not (as_is.may_jump and subject.traits.begins_alike) or precision.is_quantised:
        return ()
    return subject.noisy() + (() if precision.is_16_bit else subject.noisy(STRONG_NOISE))


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
    subject.traits = subject.traits.model_copy(update={"fast_path": difference})
    return layers


@dataclass
class Yardstick:
    """The outputs that builds are compared with, and the witnesses whose distance from them is rounding."""

    subject: Subject
    expected: tuple[Outputs, ...]  # exact ones, or eager's own
    eager: tuple[Outputs, ...]  # from weights that are moved, where eager's own are expected
    noisy: Sequence[Sequence[Outputs]]
    longest_sum: int
    is_exact: bool
    perturbed: tuple[Outputs, ...] = ()

    @classmethod
    def of(cls, subject: Subject, as_is: AsItIs, exact: Exact, noisy: Sequence[Sequence[Outputs]]) -> Yardstick:
        eager, varying = as_is.outputs, subject.traits.varying
        if exact.outputs is None:
            return cls(subject, eager, subject.perturbed(), noisy, as_is.longest_sum, is_exact=False)
        if varying:
            eager = with_varying(eager, subject.perturbed(), varying) or eager
        return cls(subject, exact.outputs, eager, noisy, as_is.longest_sum, is_exact=True)

    def errors(self, places: Sequence[int]) -> EagerErrors:
        traits, precision = self.subject.traits, self.subject.cell.precision
        depends = bool(traits.depends_on_rounding)

        def beside(witness: Sequence[Outputs], rounding_decides: bool) -> EagerErrors:
            ours, theirs = ([outputs[place] for place in places] for outputs in (witness, self.expected))
            return yardsticks(ours, theirs, rounding_decides)

        errors = beside(self.eager, depends)
        for run in self.noisy:
            errors = errors.or_larger(beside(run, True))
        allowed = errors.or_of_sums(precision, self.longest_sum)
        if self.is_exact and traits.begins_alike and allowed.differs_in_parts(precision):
            self.perturbed = self.perturbed or self.subject.perturbed()
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

    outputs = tuple(mapped(each, placed) for each in reference.outputs)
    return Exact(outputs, reference.computed_in, kept_at=reference.kept_at)


def kept_outputs(reference: Reference, subject: Subject, eager: Sequence[Outputs]) -> Exact | None:
    """Return the exact outputs that an earlier run has kept, or None if they are not those of this model for sure."""
    exact = known_outputs(reference, subject, len(eager))
    if exact is None or exact.outputs is None:
        return None
    return exact if kept_reference.has_same_error(eager, exact.outputs, reference.eager_rmse) else None


def is_other_model(reference: Reference, subject: Subject, eager: Sequence[Outputs]) -> bool:
    """Return True if eager's outputs do not pass the check against the reference that an interrupted run computed."""
    # Outputs tell nothing of a training step, and of a model that is random or keeps a state.
    if subject.cell.task != INFERENCE or not (subject.traits.begins_alike and reference.traits.begins_alike):
        return False
    return not accuracy.check(eager, reference, subject.cell.precision).passed


COMPILES_ITSELF = "compiles parts of itself with torch.compile when it is called, so that not all of eager is eager"


def compiled_something() -> bool:
    """Return True if Inductor has compiled something in this process, which only the model can have asked for."""
    if "torch._inductor" not in sys.modules:
        return False
    from torch._dynamo.utils import counters

    return any(counters["inductor"].values())


@dataclass(frozen=True)
class AsItIs:
    traits: ModelTraits
    outputs: tuple[Outputs, ...]  # of the model's own sets, and then of further calls
    sets: int  # of the model's own
    beyond: Beyond = field(default_factory=Beyond)
    work: Work | None = None
    uncounted: str = ""  # why there is no work
    sample: Sample | None = None  # if this is inference
    greedy: Greedy | None = None  # if this generates tokens
    weights: str = ""  # digest of them, if it was asked for
    fingerprint: str = ""  # if it was asked for
    eager_call: EagerCall | None = None  # on a GPU
    longest_sum: int = 1  # the number of values that it adds up
    sums: tuple[int, ...] = ()  # that number for each output, if they may differ
    narrows: bool = False  # it casts to 16 bits itself
    may_jump: bool = False  # where rounding moves what an operator gets
    without_fast_path: tuple[Outputs, ...] = ()  # the outputs again, if eager's layers have a fast path


def as_it_is(subject: Subject, inputs: Path | None = None, wants_fingerprint: bool = False) -> AsItIs:
    """Return what eager tells in the cell's precision. The model's traits go into `subject`, and the input sets into
    the file `inputs`. This comes first: what fails here is the model itself."""
    cell = subject.cell
    model = subject.load()
    before = global_settings.read()
    module, sets = move_to_device(model, cell)
    weights = digest_of_weights(module) if wants_fingerprint else ""
    kinds, sets = sets_that_differ_most(model, cell, module, sets, subject.load)
    if inputs is not None:
        loading.save_inputs(sets, inputs)
    training = training_of(model, cell)
    calibration = loading.calibration_of(model, cell)
    model_fingerprint = ""
    if wants_fingerprint:
        model_fingerprint = fingerprint(module, (*sets, *calibration), model.code, subject.data_files, weights)
    subject.announce("call")
    shown = calibration or loading.shown_to_builds(sets, cell)

    def answer(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return flatten_outputs(module(*inputs.args, **inputs.kwargs))

    with simulation.emulate_quantisation(cell.precision, module, map(copied, shown)), noting_reads() as read:
        if cell.task == INFERENCE:
            understood = understand(module, sets)
            if understood.traits.clock_s is not None and not is_clock_stopped():
                with clock_at(understood.traits.clock_s):  # also for loading, as in the cells' own processes
                    return as_it_is(subject, inputs, wants_fingerprint)
            found = _inference(subject, model, module, sets, understood)
        else:
            is_in_place = cell.task == DECODE and caches_in_place(module, sets[0])
            steps = steps_in_place(answer, sets) if is_in_place else ()
            eager = tuple(thinned(tuple(outputs)) for outputs in steps) or run_eager(module, sets, training)
            found = AsItIs(NO_TRAITS, eager, len(sets))
        greedy = generate(answer, sets, cell)
    if model_fingerprint:  # a call may load what a function then keeps
        data = [path for path in users_data(read) if not path.is_relative_to(subject.workspace.resolve())]
        seen = f"{model_fingerprint} {found.fingerprint} {digests_of_data(data)}"
        model_fingerprint = hashlib.sha256(seen.encode()).hexdigest()
    if cell.task != INFERENCE:
        work, uncounted = count_work(model, module, sets, cell.precision, training)
        found = replace(found, work=work, uncounted=uncounted)
    changed = {each.name: each for each in (*subject.changed_by_loading, *global_settings.changed_since(before))}
    subject.traits = found.traits.model_copy(
        update={
            "needs_autograd": subject.needs_autograd,
            "settings": tuple(changed.values()),
            "threads": torch.get_num_threads(),
            "changed_kinds": kinds,
            "unvaried_inputs": inputs_that_stay((*sets, *subject.probes)) if cell.task == INFERENCE else (),
            "unwrapped": model.unwrapped,
            "forms": (*model.forms, *((COMPILES_ITSELF,) if compiled_something() else ())),
        }
    )
    return replace(found, traits=subject.traits, greedy=greedy, weights=weights, fingerprint=model_fingerprint)


def _inference(
    subject: Subject, model: LoadedModel, module: torch.nn.Module, sets: tuple[Inputs, ...], understood: Understood
) -> AsItIs:
    """Return what eager tells of inference. The fingerprint is that of what it calls."""
    cell, traits, answer = subject.cell, understood.traits, understood.answer
    calls = AlikeCalls(module, traits)

    def note(**found: object) -> None:
        calls.traits = calls.traits.model_copy(update=found)

    given = tuple(map(calls.given, sets))
    tensors = [tensor for inputs in given for tensor in inputs.tensors()]
    try:
        with ReadingWatch(tensors) as watch:
            with counting.LongestSum() as sums:
                work, uncounted = count_work(model, module, given, cell.precision, None)
                if model.work is not None:
                    call(module, given[0])
            if work is None:  # counting failed, perhaps since the model refuses to be watched
                call(module, given[0])
    except Exception:  # it may refuse to be watched at all, as FlexAttention does
        traceback.print_exc()
        watch = ReadingWatch(tensors)
        call(module, given[0])
    is_plain = traits.model_copy(update={"accesses": (), "autocasts": ()}) == NO_TRAITS
    if watch.kept(tensors) and is_plain and leaves_more_behind(module, sets[0], calls):
        note(grows=(OUTSIDE,))
    if not traits.state:
        note(recall=recall_of(module, sets[0], calls))
    deciding = decisions_of(watch, module, sets, calls)
    note(decisions=deciding.decisions)
    probes = () if traits.state else deciding.probes
    eager = run_eager(module, (*sets, *probes), calls=calls, known=answer)
    alike = outputs_alike(module, sets, eager) if traits.begins_alike else ()
    if alike and len(alike) < len(eager[0]):
        note(constant_outputs=alike)
    elif alike:
        others, one_answer = inputs_with_another_answer(module, sets[0], calls, eager[0])
        note(one_answer=one_answer)
        others = others[: max(0, MAX_PROBES - len(probes))]
        probes += others
        eager += run_eager(module, others, calls=calls)
    if traits.begins_alike and len(alike) < len(eager[0]):
        note(inputs_without_effect=inputs_without_effect(module, (*sets, *probes), calls, eager))
    note(writes_in_any_order=sums.writes_in_any_order)
    note(not_finite=not_finite_in(eager[0]), tiny_weights=tiny_weights_of(module, sets[0], calls))
    if traits.begins_alike and work is not None and not (sums.may_size_by_values or watch.values):
        note(empty_by_shape=tuple(sorted(empty_outputs(eager))))
    without_fast_path: tuple[Outputs, ...] = ()
    if traits.begins_alike and fast_path.in_force(module).get(fast_path.SWITCH):
        with fast_path.switched_off():
            without_fast_path = run_eager(module, (*sets, *probes), calls=calls)
    beyond = beyond_answers(sets[0], calls, probes)
    is_timed = cell.device.is_cuda and len(of_each_shape(sets)) == 1
    eager_call = time_of_call(module, sets[0], calls) if is_timed else None
    calls.begin()  # variables of the model's file outlive this module
    subject.probes = probes
    return AsItIs(
        calls.traits,
        eager,
        len(sets),
        beyond,
        work,
        uncounted,
        replace(Sample.of(module, sets[0], answer), sizes_vary=sizes_depend_on_values(sets, eager)),
        fingerprint=watch.functions,
        eager_call=eager_call,
        longest_sum=sums.length,
        sums=sums_of_outputs(module, sets[0], calls, sums.length, cell.precision) if len(answer) > 1 else (),
        narrows=sums.narrows,
        may_jump=sums.jumps,
        without_fast_path=without_fast_path,
    )


def sums_of_outputs(
    module: torch.nn.Module, inputs: Inputs, calls: AlikeCalls, longest: int, precision: Precision
) -> tuple[int, ...]:
    """Return for each output how many values the longest sum in it adds up, or nothing if none is long."""
    if not (calls.traits.begins_alike and rounding_limits.error_of_sum(precision, longest)):
        return ()
    try:
        with counting.LongestSum() as sums:
            outputs = call(module, calls.given(inputs))
    except Exception:  # a model may refuse to be watched
        traceback.print_exc()
        return ()
    return tuple(sums.of([output]) for output in outputs)


def beyond_answers(inputs: Inputs, calls: AlikeCalls, probes: tuple[Inputs, ...]) -> Beyond:
    """Return what a build must do beyond answering the model's own inputs, from eager's call with the first ones."""
    traits, draws = calls.traits, Beyond().draws
    if traits.draws_independently:
        ends_s = time.monotonic() + distribution.MAX_SECONDS
        drawn = range(distribution.CALLS)
        script = (inputs for number in drawn if number < distribution.MIN_CALLS or time.monotonic() < ends_s)
        answers = calls.play(script, seeds_from=2).outputs
        if all(len(answer) == len(answers[0]) for answer in answers):
            draws = distribution.draws_of(answers, labels(answers[0]), traits.varying)
    if not (traits.kept_buffers or traits.written_inputs):
        return Beyond(probes, draws=draws)

    def buffers() -> dict[str, torch.Tensor]:
        return {name: calls.buffer(name).detach().clone() for name in traits.kept_buffers}

    calls.begin()
    before = {**buffers(), **named_inputs(inputs)}
    given = calls.play([inputs]).given
    assert given is not None
    after = {**buffers(), **named_inputs(given)}
    changes = {name: (before[name], after[name]) for name in (*traits.kept_buffers, *traits.written_inputs)}
    return Beyond(
        probes,
        {name: changes[name] for name in traits.kept_buffers},
        {name: changes[name] for name in traits.written_inputs},
        draws,
    )


TIMED_CALLS = 3


def time_of_call(module: Any, inputs: Inputs, calls: AlikeCalls) -> EagerCall:
    """Return how long the quickest of a few calls on a GPU takes. It has been called before."""

    def timed() -> EagerCall:
        calls.begin()
        given = calls.given(inputs)
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        call(module, given)
        handed_over_s = time.perf_counter()
        torch.cuda.synchronize()
        return EagerCall(call_ms=1e3 * (time.perf_counter() - begun_s), host_ms=1e3 * (handed_over_s - begun_s))

    return min((timed() for _ in range(TIMED_CALLS)), key=lambda each: each.call_ms)


def sets_that_differ_most(
    model: LoadedModel, cell: Cell, module: Any, sets: tuple[Inputs, ...], load_anew: Callable[[], LoadedModel]
) -> tuple[tuple[str, ...], tuple[Inputs, ...]]:
    """Return the kinds of values that differ between the boldest input sets that eager takes, and these sets. Eager
    takes a set if it answers, with finite values where those for the first set are."""
    make = model.bolder_inputs
    if cell.task != INFERENCE or make is None or model.traits.changed_kinds:
        return model.traits.changed_kinds, sets
    known, another = [sets], functools.cache(load_anew)

    def accepted(kinds: tuple[str, ...]) -> tuple[Inputs, ...] | None:
        """Return the sets in which these kinds differ, if they are new and eager takes them."""
        given = make(kinds)
        if any(are_equal(given, others) for others in (model.inputs, *known[1:])):
            return None
        known.append(given)
        # Indices that may be out of their range are tried on the CPU, as they end a GPU's process.
        if {ZEROS, PAIRS} & set(kinds) and cell.device.is_cuda:
            on_cpu = cell.model_copy(update={"device": CPU})
            if not answers_like_first(*move_to_device(replace(another(), inputs=given), on_cpu, torch.float32)):
                return None
        _, bolder = move_to_device(replace(model, inputs=given), cell)
        return bolder if answers_like_first(module, bolder) else None

    found: tuple[tuple[str, ...], tuple[Inputs, ...]] = (), sets
    for kinds in ((MASKS, WHOLES), (MASKS, WHOLES, SCALES), (MASKS,), (WHOLES,)):
        if (bolder := accepted(kinds)) is not None:
            found = kinds, bolder
            break
    for kind in (ZEROS, PAIRS, NOISE):
        with_kind = (*found[0], kind)
        if (bolder := accepted(with_kind)) is not None:
            found = with_kind, bolder
    return found


def inputs_that_stay(sets: Sequence[Inputs]) -> tuple[str, ...]:
    """Return the inputs that have the same values in all sets, of which there are several in one shape."""
    if len(sets) < 2 or len(of_each_shape(sets)) > 1:
        return ()
    first, *others = map(named_inputs, sets)
    return tuple(
        name
        for name, tensor in first.items()
        if tensor.numel() and is_strided(tensor) and all(is_equal(tensor, other[name]) for other in others)
    )


def count_work(
    model: LoadedModel, module: Any, sets: tuple[Inputs, ...], precision: Precision, training: Training | None
) -> tuple[Work | None, str]:
    """Return the work of what is timed as one call, or None and why it cannot be counted."""
    if model.work is not None:
        flops, bytes_moved = model.work
        return Work(flops=flops, bytes_moved=bytes_moved), ""
    try:
        # All lengths of a stream are one call.
        called = sets if len(of_each_shape(sets)) > 1 else sets[:1]
        work = counting.total(counting.count(module, each, precision, training) for each in called)
        return work.model_copy(update={"bytes_moved": work.bytes_moved - model.spared_bytes}), ""
    except Exception as error:
        # A model whose work cannot be counted can still be compared.
        traceback.print_exc()
        return None, explain(error)[1].sentence
