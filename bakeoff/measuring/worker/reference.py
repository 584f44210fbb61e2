"""What a contest's cells are checked against: the model's outputs in float64, and eager's error to them."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bakeoff.backends import fast_path
from bakeoff.backends.calling import Returned, comparable, flatten_outputs, sampled
from bakeoff.backends.eager import Steps
from bakeoff.backends.training import Training
from bakeoff.measuring.messages import ComputeReference, EagerCall, ReferenceComputed
from bakeoff.measuring.worker import (
    accuracy,
    counting,
    distribution,
    global_settings,
    kept_reference,
    memory,
    precision,
    simulation,
)
from bakeoff.measuring.worker.choices import returns_whole_numbers, watched_call
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.fingerprint import (
    digest_of_weights,
    digests_of_data,
    fingerprint,
    named_variables,
    own_files,
)
from bakeoff.measuring.worker.float64 import KeepFloat64
from bakeoff.measuring.worker.generating import Greedy, generate, steps_in_place
from bakeoff.measuring.worker.loading import (
    calibration_of,
    drawn_type,
    gradients,
    is_cast,
    load,
    move_to_device,
    save_inputs,
    shown_to_builds,
    training_of,
    type_in,
)
from bakeoff.measuring.worker.matching import choices_of, labels, structure_of, with_structure
from bakeoff.measuring.worker.moved_clock import clock_at, is_clock_stopped
from bakeoff.measuring.worker.recall import recall_of
from bakeoff.measuring.worker.reference_files import ReferenceFiles
from bakeoff.measuring.worker.rounding_noise import RoundingNoise
from bakeoff.measuring.worker.sample import Sample, sizes_depend_on_values
from bakeoff.measuring.worker.understanding import (
    MAX_PROBES,
    MAX_ROUNDING,
    OUTSIDE,
    AlikeCalls,
    answers_like_first,
    are_alike,
    call,
    changed_inputs,
    copied,
    decided_by_rounding,
    decisions_of,
    far_from_float64,
    is_explained_by_rounding,
    leaves_more_behind,
    named_inputs,
    not_finite_in,
    understand,
)
from bakeoff.measuring.worker.user_code import noting_reads, users_data, weights_beside, weights_named_in
from bakeoff.measuring.worker.value_reads import ReadingWatch
from bakeoff.measuring.worker.worker_context import explain
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.generation import caches_in_place
from bakeoff.models.input_sets import MASKS, WHOLES
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, INFERENCE, TRAIN_STEP, Cell, Status, Work
from bakeoff.records.traits import NO_TRAITS, FastPath, ModelTraits, OneAnswer, Setting

Outputs = tuple["torch.Tensor", ...]

MAX_COMPARED_ELEMENTS = 2**22
"""Of a larger output this many elements are compared, at random places that are always the same."""


def outputs_in(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
    """Return the outputs of every input set in `dtype`. The model's module must not be used afterwards."""
    if not (model.is_layerwise and cell.task == INFERENCE):
        return run_eager(*move_to_device(model, cell, dtype), training_of(model, cell), model.traits)
    module, sets = move_to_device(model, cell, drawn_type(cell))
    with layer_by_layer(module, dtype):
        cast = tuple(each.map(lambda tensor: _cast(tensor, dtype)) for each in sets)
        return run_eager(module, cast, traits=model.traits)


class Exact(NamedTuple):
    """What cells are checked against."""

    outputs: tuple[Outputs, ...] | None
    computed_in: str
    in_float32: tuple[str, ...] = ()  # operators that lack float64
    why_narrower: str = ""  # how float64 failed
    kept_at: str = ""  # when an earlier run kept them, if it did


WeightsAt = Mapping[str, int] | None
"""The sizes whose weights the model has, if that is said."""

OutputsIn = Callable[[LoadedModel, Cell, "torch.dtype"], tuple[Outputs, ...]]
Announce = Callable[[str], None]
"""Is told the phase that begins: `model` while the model is loaded, `call` while it is called as it is, and `reference`
while exact outputs are computed."""


def compute(
    job: ComputeReference,
    cwd: Path,
    workspace: Path,
    outputs_in: OutputsIn = outputs_in,
    announce: Announce = lambda phase: None,
) -> ReferenceComputed:
    """Write a contest's outputs in float64 and the error of eager in the cell's precision to a file.

    The precisions of a contest have the same outputs in float64, so that the first of them computes these for all.
    """
    known = Known(job.cell, cwd, workspace, announce, job.weights_at)
    try:
        return _compute(job, known, outputs_in)
    except Exception:
        if job.cell.task != INFERENCE or known.phase != "call":
            raise
        if not answers_with_autograd(known):
            known.announce("call")
            raise
    known = Known(job.cell, cwd, workspace, announce, job.weights_at, needs_autograd=True)
    return _compute(job, known, outputs_in)


def answers_with_autograd(known: Known) -> bool:
    """Return True if the model, which fails in inference mode, can be called where only gradients are off."""
    with Clock(known.cell.device).on_stream(), torch.no_grad():
        try:
            module, sets = move_to_device(known.load(), known.cell)
            call(module, copied(sets[0]))
        except Exception:
            traceback.print_exc()
            return False
    return True


def _compute(job: ComputeReference, known: Known, outputs_in: OutputsIn) -> ReferenceComputed:
    cell, announce = job.cell, known.announce
    precision.apply(cell.precision)
    device_memory = memory.DeviceMemory(cell.device.cuda_index)
    clock = Clock(cell.device)
    with clock.on_stream(), known.gradients(), contextlib.ExitStack() as held:
        if job.is_resumed:
            as_is = as_it_is(known)
            announce("reference")
            is_changed = is_other_model(accuracy.Reference.load(job.reference), known, as_is.outputs[: as_is.sets])
            return ReferenceComputed(work=as_is.work, uncounted=as_is.uncounted, is_changed=is_changed)
        as_is = as_it_is(known, job.inputs, ReferenceFiles(job.reference), job.kept_in is not None)
        traits, eager = as_is.traits, as_is.outputs
        held.enter_context(clock_at(traits.clock_s))
        first = accuracy.Reference.load(job.known) if job.known else None
        shared = known_outputs(first, known, as_is.sets) if first else None
        file = kept_reference.kept_at(job.kept_in, as_is.fingerprint, cell) if job.kept_in else None
        stored = kept_reference.load(file) if file and not (shared or job.is_fresh) else None
        kept = kept_outputs(stored.reference, known, eager) if stored else None
        exact_ones = shared or kept
        if exact_ones is None and has_outputs_to_compare(traits, eager):
            exact_ones = exact_outputs(known, outputs_in)
        computed = exact_ones or Exact(None, cell.precision, why_narrower=RANDOM)
        if computed.outputs is not None and traits.varying:
            varied = with_varying(computed.outputs, eager, traits.varying)
            computed = computed._replace(outputs=varied) if varied else Exact(None, cell.precision, why_narrower=RANDOM)
        noisy: tuple[tuple[Outputs, ...], ...] = ()
        lost = ""
        if computed.outputs is not None and cell.task == INFERENCE:
            answers = eager[: as_is.sets], computed.outputs[: as_is.sets], cell.precision
            if decided := decided_by_rounding(*answers):
                computed = Exact(
                    None, cell.precision, why_narrower=f"what the model decides depends on rounding: {decided}"
                )
            far_off = "" if decided else far_from_float64(*answers)
            may_flip = not traits.is_random and has_rounded_whole_numbers(answers[0], cell.precision)
            noisy = outputs_with_noise(known) if far_off or may_flip else ()
            if far_off and not is_explained(known, *answers, noisy):
                computed = Exact(None, cell.precision, why_narrower=f"{far_off}, and not by rounding")
            elif far_off and not cell.precision.is_16_bit:  # which rounds as coarsely itself
                lost = far_from_float64(*answers, MAX_ROUNDING)
            noisy = noisy if lost or may_flip else ()
            traits = traits.model_copy(update={"depends_on_rounding": decided or lost})
        exact, layers = computed.outputs, None
        if exact is not None:
            exact = within_float32(exact, eager)
        if exact is not None and as_is.without_fast_path:
            layers, difference = exact_without_fast_path(known, as_is, exact, outputs_in)
            traits = traits.model_copy(update={"fast_path": difference})
        if exact is None:
            exact, eager = eager, outputs_with_perturbed_weights(known)
        elif traits.varying:
            eager = with_varying(eager, outputs_with_perturbed_weights(known), traits.varying) or eager
        clock.synchronise()
    parts, perturbed = ReferenceFiles(job.reference).parts(len(exact), as_is.sets, traits), tuple[Outputs, ...]()
    if layers is not None and layers.outputs is not None:  # before the reference, with which all are there
        for path, places in (
            ReferenceFiles(job.reference).without_fast_path.parts(len(exact), as_is.sets, traits).items()
        ):
            ours = [as_is.without_fast_path[place] for place in places]
            theirs = tuple(layers.outputs[place] for place in places)
            accuracy.Reference(theirs, *accuracy.errors_of_eager(ours, theirs), types=types_of(ours)).save(path)
    for path, places in parts.items():
        ours, theirs = [eager[place] for place in places], tuple(exact[place] for place in places)
        errors = yardsticks(ours, theirs, rounding_decides=bool(traits.depends_on_rounding))
        errors = errors.or_of_sums(cell.precision, as_is.longest_sum)
        for each in noisy:
            noise = [each[place] for place in places]
            errors = errors.or_larger(yardsticks(noise, theirs, rounding_decides=True, only_whole=not lost))
        if computed.outputs is not None and traits.begins_alike and errors.differs_in_parts(cell.precision):
            if not perturbed:
                with clock.on_stream(), known.gradients():
                    perturbed = outputs_with_perturbed_weights(known)
            change = yardsticks([perturbed[place] for place in places], theirs, rounding_decides=True)
            errors = errors.or_perturbed(change)
        if path == job.reference and job.sample is not None and as_is.sample is not None:
            as_is.sample.save(job.sample, theirs[0], errors.rmse, cell.precision)
        accuracy.Reference(
            theirs,
            *errors,
            computed.computed_in,
            computed.in_float32,
            as_is.greedy,
            computed.why_narrower,
            traits,
            types_of([as_is.outputs[place] for place in places]),
            first.greedy if first else None,
            computed.kept_at,
        ).save(path, job.known if shared and exact is shared.outputs else None)
    device_memory.sample()
    size = device_memory.peaks()
    is_alike = traits.begins_alike and not known.probes
    if file and is_alike and not (shared or kept) and computed.computed_in == "float64" and not computed.in_float32:
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
        own_files=(*own_files(), *known.files_read),
        eager_call=as_is.eager_call,
    )


def types_of(answers: Sequence[Outputs]) -> tuple[tuple[torch.dtype, ...], ...]:
    return tuple(tuple(tensor.dtype for tensor in outputs) for outputs in answers)


def exact_without_fast_path(
    known: Known, as_is: AsItIs, exact: Sequence[Outputs], outputs_in: OutputsIn
) -> tuple[Exact | None, FastPath | None]:
    """Return the exact outputs without the fast path of eager's transformer layers, if it matters, and how."""
    with_it = accuracy.Reference(tuple(exact), *accuracy.errors_of_eager(as_is.outputs, exact))
    if accuracy.check(as_is.without_fast_path, with_it, known.cell.precision).passed:
        return None, None
    with fast_path.switched_off():
        layers = exact_outputs(known, outputs_in)
    if layers.outputs is None or any(
        len(ours) != len(theirs) for ours, theirs in zip(exact, layers.outputs, strict=True)
    ):
        return None, None
    count = of = 0
    are_zeros = True
    for ours, theirs in zip(exact, layers.outputs, strict=True):
        for fast, plain in zip(ours, theirs, strict=True):
            if fast.is_floating_point() and fast.shape == plain.shape:
                differs = ~torch.isclose(fast, plain, equal_nan=True)
                count, of = count + int(differs.sum()), of + fast.numel()
                are_zeros = are_zeros and not bool(fast[differs].any())
    return layers, FastPath(differing=count, values=of, are_zeros=are_zeros)


def known_outputs(reference: accuracy.Reference, known: Known, sets: int) -> Exact | None:
    """Return the exact outputs of the reference of another precision, or None if they need not be those of this one.

    Calls of a model with state depend on how many there are, a random model draws other numbers, and inputs that make
    a model decide otherwise are looked for in each precision. Operators without float64 obey the switches of TF32.
    """
    ours, theirs = known.traits, reference.traits
    if not (ours.begins_alike and theirs.begins_alike) or known.probes or len(reference.outputs) != sets:
        return None
    if reference.computed_in != "float64" or reference.in_float32 or ours.changed_kinds != theirs.changed_kinds:
        return None

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(known.cell.device)

    outputs = (
        each.map(placed) if isinstance(each, Returned) else tuple(map(placed, each)) for each in reference.outputs
    )
    return Exact(tuple(outputs), reference.computed_in, kept_at=reference.kept_at)


def kept_outputs(reference: accuracy.Reference, known: Known, eager: Sequence[Outputs]) -> Exact | None:
    """Return the exact outputs that an earlier run has kept, or None if they are not those of this model for sure."""
    exact = known_outputs(reference, known, len(eager))
    if exact is None or exact.outputs is None:
        return None
    return exact if kept_reference.has_same_error(eager, exact.outputs, reference.eager_rmse) else None


def is_other_model(reference: accuracy.Reference, known: Known, eager: Sequence[Outputs]) -> bool:
    """Return True if eager's outputs do not pass the check against the reference that an interrupted run computed.

    They tell nothing of a training step, and of a model that is random or keeps a state.
    """
    if known.cell.task != INFERENCE or not (known.traits.begins_alike and reference.traits.begins_alike):
        return False
    return not accuracy.check(eager, reference, known.cell.precision).passed


def has_outputs_to_compare(traits: ModelTraits, outputs: Sequence[Outputs]) -> bool:
    """Return True unless every output is random, so that it draws other numbers in another type."""
    return not traits.is_random or not set(labels(outputs[0])) <= set(traits.varying)


def with_varying(
    outputs: Sequence[Outputs], drawn: Sequence[Outputs], varying: Sequence[str]
) -> tuple[Outputs, ...] | None:
    """Return the outputs with those that vary from `drawn`, or None if they are not the same ones."""
    if any(labels(ours) != labels(theirs) for ours, theirs in zip(outputs, drawn, strict=True)):
        return None
    return tuple(
        with_structure(
            tuple(
                drawn_value if label in varying else value
                for label, value, drawn_value in zip(labels(ours), ours, theirs, strict=True)
            ),
            structure_of(ours),
        )
        for ours, theirs in zip(outputs, drawn, strict=True)
    )


RANDOM = "the model is random, and draws other numbers in another type"


@dataclass
class Known:
    """What the steps of a reference have in common, and what the first step finds out for the next ones."""

    cell: Cell
    cwd: Path
    workspace: Path
    tell: Announce = lambda phase: None
    weights_at: WeightsAt = None
    needs_autograd: bool = False
    phase: str = ""  # the one that was announced last
    traits: ModelTraits = NO_TRAITS
    probes: tuple[Inputs, ...] = ()  # in the cell's precision, on its device
    changed_by_loading: tuple[Setting, ...] = ()  # global settings
    data_files: Sequence[Path] = ()  # of the user's, which were read while the model was loaded

    def announce(self, phase: str) -> None:
        self.phase = phase
        self.tell(phase)

    def gradients(self) -> AbstractContextManager[object]:
        return gradients(self.cell.task, self.needs_autograd)

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
            model = load(self.cell, self.cwd, self.weights_at)
            turned_off = () if torch.is_grad_enabled() else (Setting(name="gradients", before="on", after="off"),)
        if not self.cell.is_live:  # which lies in a file of Bakeoff's
            self.data_files = users_data(read)
        os.chdir(self.workspace)
        self.changed_by_loading = self.changed_by_loading or (*global_settings.changed_since(before), *turned_off)
        precision.apply(self.cell.precision)  # the model's file may have changed it
        self.announce("reference")
        model = model.understood(self.traits)
        return replace(model, inputs=(*model.inputs, *self.probes))


COMPILES_ITSELF = "compiles parts of itself with torch.compile when it is called, so that not all of eager is eager"


def compiled_something() -> bool:
    """Return True if Inductor has compiled something in this process, which only the model can have asked for."""
    if "torch._inductor" not in sys.modules:
        return False
    from torch._dynamo.utils import counters

    return any(counters["inductor"].values())


@dataclass(frozen=True)
class AsItIs:
    """What eager tells in the cell's precision."""

    traits: ModelTraits
    outputs: tuple[Outputs, ...]  # of the model's own sets, and then of further calls
    sets: int  # of the model's own
    work: Work | None
    uncounted: str  # why there is no work
    sample: Sample | None  # if this is inference
    greedy: Greedy | None  # if this generates tokens
    weights: str = ""  # digest of them, if it was asked for
    fingerprint: str = ""  # if it was asked for
    eager_call: EagerCall | None = None  # on a GPU
    longest_sum: int = 1  # the number of values that it adds up
    without_fast_path: tuple[Outputs, ...] = ()  # the outputs again, if eager's layers have a fast path


def as_it_is(
    known: Known, inputs: Path | None = None, files: ReferenceFiles | None = None, wants_fingerprint: bool = False
) -> AsItIs:
    """Return what eager tells in the cell's precision, with the model's traits, which `known` keeps for later steps.

    The input sets are kept in the file `inputs`. Those that make the model go another way, and what a call leaves in
    buffers and in its inputs, are kept among the `files`.
    This comes first: what fails here is the model itself, whatever it is compiled with.
    """
    cell = known.cell
    model = known.load()
    before = global_settings.read()
    module, sets = move_to_device(model, cell)
    weights = digest_of_weights(module) if wants_fingerprint else ""
    kinds, sets = sets_that_differ_most(model, cell, module, sets)
    if inputs is not None:
        save_inputs(sets, inputs)
    training = training_of(model, cell)
    calibration = calibration_of(model, cell)
    model_fingerprint = ""
    if wants_fingerprint:
        model_fingerprint = fingerprint(module, (*sets, *calibration), model.code, known.data_files, weights)
    known.announce("call")
    sample = eager_call = None
    longest_sum = 1
    without_fast_path: tuple[Outputs, ...] = ()
    shown = calibration or shown_to_builds(sets, cell)

    def answer(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return flatten_outputs(module(*inputs.args, **inputs.kwargs))

    with simulation.emulate_quantisation(cell.precision, module, map(copied, shown)), noting_reads() as read:
        if cell.task == INFERENCE:
            understood = understand(module, sets)
            if understood.traits.clock_s is not None and not is_clock_stopped():
                with clock_at(understood.traits.clock_s):  # also for loading, as in the cells' own processes
                    return as_it_is(known, inputs, files, wants_fingerprint)
            traits, sample = understood.traits, Sample.of(module, sets[0], understood.answer)
            calls = AlikeCalls(module, traits)
            given = tuple(map(calls.given, sets))
            with ReadingWatch(tensor for each in given for tensor in each.tensors()) as watch:
                with counting.LongestSum() as sums:
                    counted = count_work(model, module, given, cell.precision, training)
                    if model.work is not None:
                        call(module, given[0])
                if counted[0] is None:  # counting failed, perhaps since the model refuses to be watched
                    call(module, given[0])
            longest_sum = sums.length
            if model_fingerprint:
                model_fingerprint = hashlib.sha256(f"{model_fingerprint} {watch.functions}".encode()).hexdigest()
            held = watch.kept(tensor for each in given for tensor in each.tensors())
            is_plain = traits.model_copy(update={"accesses": (), "autocasts": ()}) == NO_TRAITS
            if held and is_plain and leaves_more_behind(module, sets[0], calls):
                traits = traits.model_copy(update={"grows": (OUTSIDE,)})
            if not traits.state:
                traits = traits.model_copy(update={"recall": recall_of(module, sets[0], calls)})
            deciding = decisions_of(watch, module, sets, calls)
            if not traits.state:
                known.probes = deciding.probes
            traits = traits.model_copy(update={"decisions": deciding.decisions})
            eager = run_eager(module, (*sets, *known.probes), calls=calls, known=understood.answer)
            alike = outputs_alike(module, sets, eager) if traits.begins_alike else ()
            if alike and len(alike) < len(eager[0]):
                traits = traits.model_copy(update={"constant_outputs": alike})
            elif alike:
                others, one_answer = inputs_with_another_answer(module, sets[0], calls, eager[0])
                traits = traits.model_copy(update={"one_answer": one_answer})
                others = others[: MAX_PROBES - len(known.probes)]
                known.probes += others
                eager += run_eager(module, others, calls=calls)
            if traits.begins_alike and fast_path.in_force(module).get(fast_path.SWITCH):
                with fast_path.switched_off():
                    without_fast_path = run_eager(module, (*sets, *known.probes), calls=calls)
            traits = traits.model_copy(update={"not_finite": not_finite_in(eager[0])})
            sample = replace(sample, sizes_vary=sizes_depend_on_values(sets, eager))
            if files is not None and traits.draws_independently:
                save_draws(module, sets[0], calls, files.draws)
            if cell.device.is_cuda and len(of_each_shape(sets)) == 1:
                eager_call = time_of_call(module, sets[0], calls)
            if files is not None and traits.kept_buffers:
                save_buffers(module, sets[0], calls, files.buffers)
            if files is not None and traits.written_inputs:
                save_written_inputs(module, sets[0], calls, files.written_inputs)
        else:
            traits, is_in_place = NO_TRAITS, cell.task == DECODE and caches_in_place(module, sets[0])
            steps = steps_in_place(answer, sets) if is_in_place else ()
            eager = tuple(map(thinned, steps)) or run_eager(module, sets, training)
        greedy = generate(answer, sets, cell)
    if model_fingerprint:  # a call may load what a function then keeps
        data = [path for path in users_data(read) if not path.is_relative_to(known.workspace.resolve())]
        model_fingerprint = hashlib.sha256(f"{model_fingerprint} {digests_of_data(data)}".encode()).hexdigest()
    if cell.task != INFERENCE:
        counted = count_work(model, module, sets, cell.precision, training)
    changed = {setting.name: setting for setting in (*known.changed_by_loading, *global_settings.changed_since(before))}
    compiles = (COMPILES_ITSELF,) if compiled_something() else ()
    known.traits = traits.model_copy(
        update={
            "needs_autograd": known.needs_autograd,
            "settings": tuple(changed.values()),
            "threads": torch.get_num_threads(),
            "changed_kinds": kinds,
            "unwrapped": model.unwrapped,
            "forms": (*model.forms, *compiles),
        }
    )
    if files is not None and known.probes:
        save_inputs(known.probes, files.probes)
    return AsItIs(
        known.traits,
        eager,
        len(sets),
        *counted,
        sample,
        greedy,
        weights,
        model_fingerprint,
        eager_call,
        longest_sum,
        without_fast_path,
    )


def outputs_alike(module: Any, sets: Sequence[Inputs], answers: Sequence[Outputs]) -> tuple[str, ...]:
    """Return the outputs that are the same for all input sets, which differ.

    Where others vary, single numbers do not count, such as a scale, and neither do weights.
    """
    first, *others = answers[: len(sets)]
    if all(are_equal(sets[:1], (other,)) for other in sets[1:]) or any(len(other) != len(first) for other in others):
        return ()
    alike = [
        place
        for place, value in enumerate(first)
        if all(are_alike((value,), (other[place],), roundings=0) for other in others)
    ]
    names, weights = labels(first), [*module.parameters(), *module.buffers()]
    return tuple(
        names[place]
        for place in alike
        if len(alike) == len(first)
        or (first[place].numel() > 1 and not any(are_alike((first[place],), (weight,)) for weight in weights))
    )


def inputs_with_another_answer(
    module: Any, inputs: Inputs, calls: AlikeCalls, answer: Outputs
) -> tuple[tuple[Inputs, ...], OneAnswer]:
    """Return inputs of other scales and signs that eager answers otherwise than these, and how many it took."""
    tried, others = 0, list[Inputs]()
    for changed in changed_inputs(inputs):
        if not answers_like_first(module, (inputs, changed)):
            continue
        tried += 1
        (other,) = run_eager(module, (changed,), calls=calls)
        others += [] if are_alike(answer, other, roundings=0) else [changed]
    return tuple(others), OneAnswer(tried=tried, differing=len(others))


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
    model: LoadedModel, cell: Cell, module: Any, sets: tuple[Inputs, ...]
) -> tuple[tuple[str, ...], tuple[Inputs, ...]]:
    """Return the kinds of values that differ between the boldest input sets that eager takes, and these sets.

    Eager takes a set if it answers, with finite values where those for the first set are.
    """
    if cell.task != INFERENCE or model.bolder_inputs is None:
        return (), sets
    known = [sets]
    for kinds in ((MASKS, WHOLES), (MASKS,), (WHOLES,)):
        given = model.bolder_inputs(kinds)
        if any(are_equal(given, others) for others in (model.inputs, *known[1:])):
            continue
        known.append(given)
        _, bolder = move_to_device(replace(model, inputs=given), cell)
        if answers_like_first(module, bolder):
            return kinds, bolder
    return (), sets


def are_equal(some: Sequence[Inputs], others: Sequence[Inputs]) -> bool:
    """Return True if all dense tensors of two rows of input sets are the same."""
    return all(
        left.layout is not torch.strided or left.is_nested or torch.equal(left, right)
        for ours, theirs in zip(some, others, strict=True)
        for left, right in zip(ours.tensors(), theirs.tensors(), strict=True)
    )


def save_draws(module: Any, inputs: Inputs, calls: AlikeCalls, path: Path) -> None:
    """Write what eager draws in several calls."""
    calls.begin(seeds_from=2)
    answers: list[Outputs] = []
    ends_s = time.monotonic() + distribution.MAX_SECONDS
    while len(answers) < distribution.MIN_CALLS or (len(answers) < distribution.CALLS and time.monotonic() < ends_s):
        answers.append(thinned(call(module, calls.given(inputs))))
    if all(len(answer) == len(answers[0]) for answer in answers):
        torch.save(distribution.draws_of(answers, labels(answers[0]), calls.traits.varying), path)


def save_buffers(module: Any, inputs: Inputs, calls: AlikeCalls, path: Path) -> None:
    """Write for each buffer that the model keeps its values before and after a call."""

    def values() -> dict[str, torch.Tensor]:
        return {name: calls.buffer(name).detach().clone() for name in calls.traits.kept_buffers}

    calls.begin()
    before = values()
    call(module, calls.given(inputs))
    torch.save({name: (before[name], after) for name, after in values().items()}, path)


def save_written_inputs(module: Any, inputs: Inputs, calls: AlikeCalls, path: Path) -> None:
    """Write for each input that the model writes into its values before and after a call."""
    calls.begin()
    given = calls.given(inputs)
    call(module, given)
    before, after = named_inputs(inputs), named_inputs(given)
    torch.save({name: (before[name], after[name]) for name in calls.traits.written_inputs}, path)


def outputs_with_perturbed_weights(known: Known) -> tuple[Outputs, ...]:
    """Return eager's outputs after `jolt`."""
    model = known.load()
    module, sets = move_to_device(model, known.cell)
    sets = jolt(module, sets)
    return run_eager(module, sets, training_of(model, known.cell), known.traits)


RUNS_WITH_NOISE = 2
"""So many noisy runs, beside eager's own, tell how far rounding alone can move an answer that is lost to it."""


STRONG_NOISE = 16
"""So many roundings show in float32 whether something is near to going another way. In 16 bits, one is as coarse."""


def is_explained(
    known: Known,
    eager: Sequence[Outputs],
    exact: Sequence[Outputs],
    precision: Precision,
    noisy: Sequence[Sequence[Outputs]],
) -> bool:
    """Return True if rounding explains how far eager is from float64, by runs with noise, and by those with more."""
    if is_explained_by_rounding(eager, exact, noisy, precision):
        return True
    return not precision.is_16_bit and is_explained_by_rounding(
        eager, exact, outputs_with_noise(known, STRONG_NOISE), precision
    )


def outputs_with_noise(known: Known, roundings: int = 1) -> tuple[tuple[Outputs, ...], ...]:
    """Return eager's outputs of some runs in which every operator's result is moved by up to so many roundings."""
    runs = []
    for seed in range(RUNS_WITH_NOISE):
        model = known.load()
        module, sets = move_to_device(model, known.cell)
        with RoundingNoise(seed, roundings):
            runs.append(run_eager(module, sets, traits=known.traits))
    return tuple(runs)


MIN_WHOLE_NUMBERS = 512
"""Of so many whole numbers of one output, rounding may well move one over an edge, such as a pixel of a picture."""

MAX_FLIPPED_SHARE = 1e-2
"""If rounding moves more of an output's whole numbers, it decides what the answer is, and does not blur its edges."""


def has_rounded_whole_numbers(outputs: Sequence[Outputs], precision: Precision) -> bool:
    """Return True if an output has many whole numbers that are no indices. They may be real numbers that were rounded.

    Narrow types round so coarsely that noise would tell of other answers.
    """
    return not (precision.is_16_bit or precision.is_quantised) and any(
        tensor.numel() >= MIN_WHOLE_NUMBERS and is_whole(tensor) and label not in choices_of(each)
        for each in outputs
        for label, tensor in zip(labels(each), each, strict=True)
    )


def is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def yardsticks(
    eager: Sequence[Outputs], exact: Sequence[Outputs], rounding_decides: bool, only_whole: bool = False
) -> accuracy.EagerErrors:
    """Return eager's error of each output over all input sets, or the errors of whole numbers only.

    Where rounding decides, moving values by one rounding gives other shapes and whole numbers. They are no errors of
    eager's, and a cell must have them exactly, but for a few of many whole numbers that lie on an edge.
    """
    if not rounding_decides:
        return accuracy.errors_of_eager(eager, exact)
    alike = [
        with_structure(
            tuple(
                value if may_differ(value, exact_value, only_whole) else exact_value
                for value, exact_value in zip(ours, theirs, strict=True)
            ),
            structure_of(theirs),
        )
        if len(ours) == len(theirs)
        else theirs
        for ours, theirs in zip(eager, exact, strict=True)
    ]
    return accuracy.errors_of_eager(alike, exact)


def may_differ(value: torch.Tensor, exact: torch.Tensor, only_whole: bool) -> bool:
    """Return True if the difference of two outputs is an error: that of real numbers, or of few of many whole ones."""
    if value.shape != exact.shape:
        return False
    if not is_whole(exact):
        return not only_whole
    is_large = exact.numel() >= MIN_WHOLE_NUMBERS
    return is_large and float((value != exact.to(value.dtype)).double().mean()) <= MAX_FLIPPED_SHARE


def exact_outputs(known: Known, outputs_in: OutputsIn = outputs_in) -> Exact:
    """Return the outputs in the widest type that the model can be computed in.

    In float64, the model's own casts to float32 are widened, and operators that lack float64 run in float32. If that
    fails, a mixture of experts of transformers is asked for its plain implementation. Then come narrower types. The
    outputs are None, and the type the cell's precision, if no wider type will do. `train_step` raises then: how a
    weight's type rounds a step is in both of two runs, so their difference tells nothing.
    """
    cell = known.cell

    def attempt(name: str, has_plain_experts: bool = False) -> Exact | None:
        model = known.load()
        if has_plain_experts and not use_plain_experts(model.module):
            return None
        if name != "float64":
            return Exact(outputs_in(model, cell, getattr(torch, name)), name)
        with KeepFloat64() as mode:
            return Exact(outputs_in(model, cell, torch.float64), name, tuple(mode.in_float32))

    errors: list[Exception] = []
    for name, has_plain_experts in (("float64", False), ("float64", True), ("float32", False)):
        is_pointless = has_plain_experts and explain(errors[-1])[0] is Status.OOM
        if name not in reference_types(cell.precision) or is_pointless:
            continue
        try:
            if exact := attempt(name, has_plain_experts):
                return exact if name == "float64" else exact._replace(why_narrower=explain(errors[0])[1].sentence)
        except Exception as error:
            traceback.print_exc()
            errors.append(error.with_traceback(None))  # its frames would keep the model, and so fill the device
    if cell.task == TRAIN_STEP:
        raise errors[0]
    return Exact(None, cell.precision, why_narrower=explain(errors[0])[1].sentence)


def use_plain_experts(module: torch.nn.Module) -> bool:
    """Ask transformers for the plain implementation of a mixture of experts. Return False for any other model."""
    for part in module.modules():
        if (choose := getattr(part, "set_experts_implementation", None)) is not None:
            choose("eager")
            return True
    return False


def reference_types(precision: Precision) -> tuple[str, ...]:
    """Return the types that a reference may be computed in, best first: beside 16 bits float32 is as good as exact."""
    return ("float64", "float32") if precision.is_16_bit else ("float64",)


def within_float32(exact: tuple[Outputs, ...], eager: Sequence[Outputs]) -> tuple[Outputs, ...]:
    """Return the reference with eager's values where it leaves the range of float32, as `finfo(x.dtype).min` does.

    The reference itself comes back if it stays within that range.
    """
    largest = torch.finfo(torch.float32).max

    def is_beyond(value: torch.Tensor) -> torch.Tensor:
        return value.isfinite() & (value.abs() > largest)

    def within(value: torch.Tensor, of_eager: torch.Tensor) -> torch.Tensor:
        is_double = value.dtype is torch.float64 and value.shape == of_eager.shape
        return torch.where(is_beyond(value), of_eager.to(value), value) if is_double else value

    if not any(value.dtype is torch.float64 and is_beyond(value).any() for values in exact for value in values):
        return exact
    return tuple(tuple(map(within, values, of_eager)) for values, of_eager in zip(exact, eager, strict=True))


def count_work(
    model: LoadedModel, module: Any, sets: tuple[Inputs, ...], precision: Precision, training: Training | None
) -> tuple[Work | None, str]:
    """Return the work of what is timed as one call, or None and why it cannot be counted.

    All lengths of a stream are one call. A model whose work cannot be counted can still be compared.
    """
    if model.work is not None:
        flops, bytes_moved = model.work
        return Work(flops=flops, bytes_moved=bytes_moved), ""
    try:
        called = sets if len(of_each_shape(sets)) > 1 else sets[:1]
        work = counting.total(counting.count(module, each, precision, training) for each in called)
        return work.model_copy(update={"bytes_moved": work.bytes_moved - model.spared_bytes}), ""
    except Exception as error:
        traceback.print_exc()
        return None, explain(error)[1].sentence


def jolt(module: torch.nn.Module, sets: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
    """Change each weight of `module` in place, and each input, by up to one rounding of its type. Return the inputs.

    The changes are random and always the same. Where eager itself has to be the reference, the change of its outputs is
    an estimate of its error: every operation rounds once, as this does, and the model passes both on.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return torch.view_as_complex(moved(torch.view_as_real(tensor).contiguous()))
        generator = torch.Generator(tensor.device).manual_seed(tensor.numel())
        by = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
        return tensor + tensor * by * torch.finfo(tensor.dtype).eps

    def moved_input(tensor: torch.Tensor) -> torch.Tensor:
        return moved(tensor.detach()).requires_grad_(tensor.requires_grad) if is_rounded(tensor) else tensor

    def is_rounded(tensor: torch.Tensor) -> bool:
        return is_cast(tensor) or tensor.is_complex()

    with torch.no_grad():
        for weight in module.parameters():
            if is_rounded(weight):
                weight.copy_(moved(weight))
        return tuple(each.map(moved_input) for each in sets)


def run_eager(
    module: Any,
    sets: tuple[Inputs, ...],
    training: Training | None = None,
    traits: ModelTraits = NO_TRAITS,
    calls: AlikeCalls | None = None,
    known: Outputs = (),
) -> tuple[Outputs, ...]:
    """Return the outputs that are compared for every input set. Each set of a training task begins anew.

    The calls of a model that keeps state are one sequence. It comes again after so many calls with the first set as a
    build may have made, and then each set is called from the first state (`ReferenceFiles`). `known` is the answer to
    the first set, where that cannot have changed.
    """
    answers: list[Outputs] = []
    if training is None:
        calls = calls or AlikeCalls(module, traits)
        for calls_before in range(1 + calls.traits.settles_after):
            calls.begin()
            for _ in range(calls_before):
                call(module, calls.given(sets[0]))
            may_choose = False
            for inputs in sets:
                is_known = known and not answers and calls.traits.begins_alike
                outputs = () if may_choose else known if is_known else call(module, calls.given(inputs))
                may_choose = may_choose or (calls.traits.begins_alike and returns_whole_numbers(outputs))
                answers.append(thinned(watched_call(module, calls.given(inputs)) if may_choose else outputs))
        for inputs in sets if calls.traits.state else ():
            calls.begin()
            answers.append(thinned(call(module, calls.given(inputs))))
        return tuple(answers)
    with Steps(training) as steps:
        for inputs in sets:
            steps.restore()
            steps.bind(inputs)
            steps.run()
            answers.append(steps.outputs())
        steps.restore()
    return tuple(answers)


def thinned(outputs: Outputs) -> Outputs:
    """Return what is compared of a call's outputs: dense tensors, and `MAX_COMPARED_ELEMENTS` of a larger one. No later
    call overwrites it."""

    def thin(tensor: torch.Tensor) -> torch.Tensor:
        is_large = tensor.numel() > MAX_COMPARED_ELEMENTS
        return sampled(tensor, MAX_COMPARED_ELEMENTS) if is_large else tensor.detach().clone()

    outputs = comparable(outputs)
    if not isinstance(outputs, Returned):
        return tuple(map(thin, outputs))
    thin_outputs = outputs.map(thin)
    thin_outputs.choices = {place: replace(choice, rows=thin(choice.rows)) for place, choice in outputs.choices.items()}
    return thin_outputs


@contextlib.contextmanager
def layer_by_layer(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Compute each part of `module` in `dtype` inside the block, widening its weights only while it is called.

    So a model whose weights fill half of a device is computed exactly. Weights must be used by the parts that own them.
    """

    def widen(part: torch.nn.Module, _: Any) -> None:
        for name, tensor in _own(part).items():
            part.__dict__[name] = _cast(tensor, dtype)  # which is found before the weight of that name

    def put_back(part: torch.nn.Module, *_: Any) -> None:
        for name in _own(part):
            part.__dict__.pop(name, None)

    hooks = []
    for part in module.modules():
        if _own(part):
            hooks += [part.register_forward_pre_hook(widen), part.register_forward_hook(put_back, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _own(part: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(type_in(tensor, dtype))
