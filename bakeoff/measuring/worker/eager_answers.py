"""What eager shows in the cell's precision: its answers, the model's traits, and the work of a call."""

import functools
import hashlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bakeoff.backends import fast_path
from bakeoff.backends.calling import flatten_outputs
from bakeoff.backends.training import Training
from bakeoff.measuring.messages import EagerCall
from bakeoff.measuring.worker import cell_model, counting, simulation
from bakeoff.measuring.worker.cell_model import move_to_device, training_of
from bakeoff.measuring.worker.fingerprint import digest_of_weights, digests_of_data, fingerprint
from bakeoff.measuring.worker.sample import Sample, sizes_depend_on_values
from bakeoff.measuring.worker.subject import Subject
from bakeoff.measuring.worker.worker_context import explain
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.generation import caches_in_place
from bakeoff.models.input_sets import MASKS, NOISE, PAIRS, SCALES, WHOLES, ZEROS, is_strided
from bakeoff.models.unwrapping import form_by_types, real_types
from bakeoff.records.device import CPU
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, INFERENCE, Cell, Work
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.truth import distribution, global_settings, rounding_limits
from bakeoff.truth.calls import AlikeCalls, Outputs, call, copied, may_fail, named_inputs, run_eager, thinned
from bakeoff.truth.decisions import MAX_PROBES, ReadingWatch, answers_like_first, decisions_of
from bakeoff.truth.generating import Greedy, generate, steps_in_place
from bakeoff.truth.matching import empty_outputs, labels
from bakeoff.truth.module_state import is_equal
from bakeoff.truth.moved_clock import clock_at, is_clock_stopped
from bakeoff.truth.reference import Beyond
from bakeoff.truth.tiny_weights import tiny_weights_of
from bakeoff.truth.traits import (
    OUTSIDE,
    Understood,
    are_equal,
    inputs_with_another_answer,
    inputs_without_effect,
    leaves_more_behind,
    names_of_written,
    not_finite_in,
    outputs_alike,
    recall_of,
    understand,
)
from bakeoff.truth.user_code import noting_reads, users_data
from bakeoff.truth.witnesses import RoundingNoise

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
    moved: tuple[Outputs, ...] = ()  # the same with noise in each operator and input, if nothing may jump by that


def as_it_is(subject: Subject, inputs: Path | None = None, wants_fingerprint: bool = False) -> AsItIs:
    """Return what eager shows in the cell's precision. The model's traits go into `subject`, and the input sets into
    the file `inputs`. This comes first: what fails here is the model itself."""
    cell = subject.cell
    model = subject.load()
    before = global_settings.read()
    module, sets = move_to_device(model, cell)
    weights = digest_of_weights(module) if wants_fingerprint else ""
    kinds, sets = sets_that_differ_most(model, cell, module, sets, subject.load)
    if inputs is not None:
        cell_model.save_inputs(sets, inputs)
    training = training_of(model, cell)
    calibration = cell_model.calibration_of(model, cell)
    model_fingerprint = ""
    if wants_fingerprint:
        model_fingerprint = fingerprint(module, (*sets, *calibration), model.code, subject.data_files, weights)
    subject.announce("call")
    shown = calibration or cell_model.shown_to_builds(sets, cell)

    def answer(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return flatten_outputs(inputs.call(module))

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
    keeps_types = subject.traits.keeps_types
    untrue = (
        form_by_types("weights", real_types(model.module.parameters())) if keeps_types else ()
    )  # that they are cast
    forms = [form for form in model.forms if form not in untrue]
    changed = {each.name: each for each in (*subject.changed_by_loading, *global_settings.changed_since(before))}
    subject.traits = found.traits.but(
        keeps_types=keeps_types,
        needs_autograd=subject.needs_autograd,
        settings=tuple(changed.values()),
        threads=torch.get_num_threads(),
        changed_kinds=kinds,
        unvaried_inputs=inputs_that_stay((*sets, *subject.probes)) if cell.task == INFERENCE else (),
        unwrapped=model.unwrapped,
        forms=(*forms, *((COMPILES_ITSELF,) if compiled_something() else ())),
    )
    return replace(found, traits=subject.traits, greedy=greedy, weights=weights, fingerprint=model_fingerprint)


def _inference(
    subject: Subject, model: LoadedModel, module: torch.nn.Module, sets: tuple[Inputs, ...], understood: Understood
) -> AsItIs:
    """Return what eager shows in inference. The fingerprint is that of what it calls."""
    cell, traits, answer = subject.cell, understood.traits, understood.answer
    if traits.needs_autograd and not subject.needs_autograd:
        raise RuntimeError("the model answers otherwise in inference mode, where its gradients are zeros")
    calls = AlikeCalls(module, traits)

    def note(**found: object) -> None:
        calls.traits = calls.traits.but(**found)

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
    is_plain = traits.but(accesses=(), autocasts=()) == NO_TRAITS
    if watch.kept(tensors) and is_plain and leaves_more_behind(module, sets[0], calls):
        note(grows=(OUTSIDE,))
    if not traits.state:
        note(recall=recall_of(module, sets[0], calls))
    deciding = decisions_of(watch, module, sets, calls)
    note(decisions=deciding.decisions)
    probes = () if traits.state else deciding.probes
    given = tuple(map(copied, (*sets, *probes)))
    eager = run_eager(module, given, calls=calls, known=answer)
    written = [
        name for own, after in zip((*sets, *probes), given, strict=True) for name in names_of_written(own, after)
    ]
    if written:  # for values that the first inputs do not have
        note(written_inputs=tuple(dict.fromkeys(written)))
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
    can_move = not (traits.is_random or sums.jumps or cell.precision.is_quantised)
    moved = moved_by_rounding(module, (*sets, *probes), calls) if can_move else ()
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
        moved=moved,
    )


def moved_by_rounding(module: torch.nn.Module, sets: Sequence[Inputs], calls: AlikeCalls) -> tuple[Outputs, ...]:
    """Return the answers to inputs that are moved by a rounding, with noise in each operator, or nothing if the model
    fails then, as where it asserts that inputs are at most 1."""
    noise = RoundingNoise(0)

    def moved(tensor: torch.Tensor) -> torch.Tensor:  # whole numbers stay, such as those of a mask
        return noise.moved(tensor.detach()).requires_grad_(tensor.requires_grad)

    with may_fail():
        own = [inputs.map(moved) for inputs in sets]
        with noise:
            return run_eager(module, own, calls=calls)
    return ()


def sums_of_outputs(
    module: torch.nn.Module, inputs: Inputs, calls: AlikeCalls, longest: int, precision: Precision
) -> tuple[int, ...]:
    """Return for each output how many values the longest sum in it adds up, or nothing if none is long."""
    if not (calls.traits.begins_alike and rounding_limits.error_of_sum(precision, longest)):
        return ()
    with may_fail():
        with counting.LongestSum() as sums:
            outputs = call(module, calls.given(inputs))
        return tuple(sums.of([output]) for output in outputs)
    return ()


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
    given_sets, another = [sets], functools.cache(load_anew)

    def accepted(kinds: tuple[str, ...]) -> tuple[Inputs, ...] | None:
        """Return the sets in which these kinds differ, if they are new and eager takes them."""
        with torch.inference_mode(False):  # as a cell's own inputs are made
            given = make(kinds)
        if any(are_equal(given, others) for others in (model.inputs, *given_sets[1:])):
            return None
        given_sets.append(given)
        # Indices that may be out of their range are tried on the CPU, as they end a GPU's process.
        if {ZEROS, PAIRS} & set(kinds) and cell.device.is_cuda:
            on_cpu = cell.but(device=CPU)
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
        work = counting.total(counting.count(module, inputs, precision, training) for inputs in called)
        return work.but(bytes_moved=work.bytes_moved - model.spared_bytes), ""
    except Exception as error:
        # A model whose work cannot be counted can still be compared.
        traceback.print_exc()
        return None, explain(error)[1].sentence
