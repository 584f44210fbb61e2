"""What a user's factory returns, as a model with its sets of inputs, and with what a request does around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeGuard

from bakeoff.models.base import INPUT_SETS, Around, Call, Inputs, LoadedModel, Pipeline, call_of
from bakeoff.models.lazily import nn, pytree, torch
from bakeoff.models.seeding import seeded
from bakeoff.models.unwrapping import (
    form_by_mode,
    form_by_types,
    mixes_types,
    real_types,
    require_weights,
    training_layers,
    with_modes,
)
from bakeoff.records.errors import UsageError

MAX_CALIBRATION = 512
"""So many calls of `calibrate` are used. Further ones are not asked for."""


MAX_CALLS = 16
"""So many example calls of a factory are sets of inputs. Further ones are not asked for."""


BolderInputs = Callable[[tuple[str, ...]], tuple[Inputs, ...]]


def with_own_inputs(
    model: str, module: torch.nn.Module, example: object, taken: tuple[str, ...] = (), code: str = ""
) -> LoadedModel:
    """Return a user's module, made ready, with the input sets that its example inputs give. `taken` was taken off the
    module already. `code` is a digest of the code that lies in no file."""
    require_weights(module)
    sets: tuple[Inputs, ...] = ()
    bolder: BolderInputs | None = None
    if example is not None:
        calls = _calls(example)
        sets = sets_of_calls(model, calls) if calls else input_sets(as_inputs(model, example))
        bolder = None if len(calls) > 1 else partial(input_sets, sets[0])
    training = training_layers(module)
    module = with_modes(module).to("cpu").eval()
    of_weights, of_inputs = real_types(module.parameters()), real_types(pytree.tree_leaves(example))
    forms = (*form_by_types("weights", of_weights), *form_by_types("inputs", of_inputs - of_weights))
    forms += form_by_mode(training)
    module = module if mixes_types(module) else module.float()
    named = getattr(module, "surgical_targets", ())
    if not isinstance(named, tuple | list) or not all(isinstance(pattern, str) for pattern in named):
        raise UsageError(f"{model}: surgical_targets is {_describe(named)}: expected names like ['layers.*.rope']")
    targets = tuple(named)
    return LoadedModel(
        module, sets, surgical_targets=targets, unwrapped=taken, forms=forms, code=code, bolder_inputs=bolder
    )


def with_stages(
    model: str,
    returned: torch.nn.Module | Pipeline,
    given: object,
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    example: Callable[[], Any] | None = None,
) -> tuple[torch.nn.Module, object, Around | None]:
    """Return the module, its example inputs, and what a request does around it. `given` are its inputs, or the raw
    example that `before` makes them from. Raise UsageError where `before` has no example."""
    module = returned
    if isinstance(returned, Pipeline):
        module, before, after = returned.model, returned.before, returned.after
    assert not isinstance(module, Pipeline)
    if before is None and after is None:
        return module, given, None
    if before is None:
        return module, given, Around(None, after)
    raw = given if example is None else example()
    if raw is None:
        raise UsageError(
            f"{model}: before() has no example: return it beside the module, or add a function example() that does"
        )
    return module, before(raw), Around(before, after, raw)


def answer_request(around: Around, model: Callable[..., Any], raw: Any) -> Any:
    inputs = as_inputs("before()", around.before(raw) if around.before else raw)
    answer = inputs.call(model)
    return around.after(answer) if around.after else answer


def module_in(model: str, returned: object, example: object) -> tuple[torch.nn.Module | Pipeline, object]:
    """Return what a factory returned, if its inputs are not given, or else the module in it and `example`."""
    module, own_example = unpacked(model, returned)
    return module, own_example if example is None else example


def unpacked(model: str, returned: object) -> tuple[torch.nn.Module | Pipeline, object]:
    if _is_model(returned):
        return returned, None
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not _is_model(returned[0]):
        raise UsageError(f"{model} returned {_describe(returned)}: expected (nn.Module, example inputs)")
    return returned[0], returned[1]


def _is_model(value: object) -> TypeGuard[torch.nn.Module | Pipeline]:
    return isinstance(value.model if isinstance(value, Pipeline) else value, nn.Module)


def calibration_of(model: str, calibrate: Callable[[], Any], seed: int) -> list[Inputs]:
    """Return the calls that a user's `calibrate` returns or yields: each is as the example inputs of a factory are."""
    with seeded((seed + 1) % 2**32):  # random data are others than the factory's
        calls = list(islice(iter(calibrate()), MAX_CALIBRATION))
    if not calls:
        raise UsageError(f"{model}: calibrate() returned nothing: expected the inputs of several calls")
    return [as_inputs(f"calibrate() of {model}", call) for call in calls]


def sets_of_calls(model: str, calls: Sequence[Call]) -> tuple[Inputs, ...]:
    """Return these example calls as sets of inputs, or sets that are made from the only one. Raise UsageError for calls
    that differ by more than the values of their tensors."""
    sets = tuple(as_inputs(model, call) for call in calls)
    for number, inputs in enumerate(sets[1:], 1):
        if problem := difference_of(inputs, sets[0]):
            raise UsageError(
                f"{model}: example call {number} {problem}: calls may differ in the values of tensors only. "
                "For several sizes, give the factory a dimension, and set it to stream:LOW:HIGH"
            )
    return sets if len(sets) > 1 else input_sets(sets[0])


def require_fitting(model: Callable[..., Any], example: object) -> None:
    """Raise UsageError for example inputs that cannot be the arguments of a module's call. Nothing is called."""
    if example is None:
        return
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the factory")
    given: list[object] = [*_calls(example)]
    calls = [as_inputs(name, call) for call in given or [example]]
    if not isinstance(model, nn.Module) or model._forward_pre_hooks or type(model).__call__ is not nn.Module.__call__:
        return  # hooks and a call of its own may change the arguments
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # what is scripted may have none
        return
    for call in calls:
        try:
            signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            advice = ": a list is several arguments, and ([...],) is one" if isinstance(example, list) else ""
            raise UsageError(f"the inputs do not fit {name}.forward{signature}: {error}{advice}") from None


def _calls(example: object) -> list[Call]:
    if isinstance(example, Call):
        return [example]
    if isinstance(example, Mapping) or not isinstance(example, Iterable) or hasattr(example, "layout"):
        return []
    first_ones = list(islice(example, MAX_CALLS)) if isinstance(example, Iterator) else list(example)[:MAX_CALLS]
    return first_ones if all(isinstance(element, Call) for element in first_ones) else []


def difference_of(call: Inputs, first: Inputs) -> str:
    """Return how a call differs from the first one by more than the values of its tensors, or an empty text."""
    (leaves, structure), (wanted_leaves, wanted_structure) = (
        pytree.tree_flatten((inputs.args, dict(sorted(inputs.kwargs.items())))) for inputs in (call, first)
    )
    if structure != wanted_structure:
        return "has other arguments"
    for leaf, wanted in zip(leaves, wanted_leaves, strict=True):
        if not isinstance(leaf, torch.Tensor) or not isinstance(wanted, torch.Tensor):
            if type(leaf) is not type(wanted) or leaf != wanted:
                return f"has {leaf!r} for {wanted!r}"
        elif leaf.shape != wanted.shape:
            return f"has a tensor of shape {tuple(leaf.shape)} for {tuple(wanted.shape)}"
        elif (leaf.dtype, leaf.layout) != (wanted.dtype, wanted.layout):
            return f"has a tensor of {leaf.dtype}, {leaf.layout} for {wanted.dtype}, {wanted.layout}"
    return ""


def as_inputs(model: str, example: object) -> Inputs:
    """Return `example` as the arguments of one call, with tensors on the CPU and floating-point ones in float32."""
    call = call_of(example)
    if not isinstance(example, torch.Tensor) and any(argument is example for argument in call.args):
        raise UsageError(
            f"{model}: the example inputs are {_describe(example)}: "
            "expected a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of bakeoff.Call"
        )
    inputs = Inputs(call.args, call.kwargs)
    for leaf in pytree.tree_leaves((call.args, call.kwargs)):
        if not isinstance(leaf, torch.Tensor | int | float | complex | str | None):
            raise UsageError(f"{model}: {_describe(leaf)} among the example inputs: expected tensors and plain values")
    if any(tensor.is_nested or tensor.is_quantized for tensor in inputs.tensors()):
        raise UsageError(f"{model}: a nested or quantised tensor among the example inputs: give a padded or float one")
    if not inputs.tensors():
        raise UsageError(f"{model}: no tensor among the example inputs: expected at least one")
    if not any(tensor.numel() for tensor in inputs.tensors()):
        raise UsageError(f"{model}: the example inputs have no elements: is a dimension 0 that is a size?")
    moved: dict[int, torch.Tensor] = {}

    def to_float32_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:  # one that is given twice stays one
            own = tensor.detach().to("cpu")
            if own.is_complex() or own.is_floating_point():
                own = own.to(torch.complex64 if own.is_complex() else torch.float32)
            moved[id(tensor)] = own.requires_grad_(tensor.requires_grad)
        return moved[id(tensor)]

    return inputs.map(to_float32_on_cpu)


def input_sets(inputs: Inputs, bolder: tuple[str, ...] = ()) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets, of which the first has the values of `inputs`. `bolder` names what changes besides."""
    from bakeoff.models.input_sets import input_sets_of

    sets = input_sets_of((inputs.args, dict(inputs.kwargs)), INPUT_SETS, bolder)
    return tuple(Inputs(args, kwargs) for args, kwargs in sets)


def _describe(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of ({', '.join(type(item).__name__ for item in value)})"
    return f"a value of type {type(value).__name__}"
