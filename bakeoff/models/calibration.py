"""The data that int8 fixes its ranges with: given by the user where possible, and never what a build is judged by."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.models.example_inputs import difference_of, input_sets
from bakeoff.models.lazily import torch
from bakeoff.records.errors import UsageError
from bakeoff.records.text import counted

OWN = (
    "is calibrated for int8 with its own input sets, all but the last one: a function `calibrate` in its file, or "
    "several recorded calls, would be data that nothing is judged by"
)


def with_calibration(model: LoadedModel) -> LoadedModel:
    """Return the model with its calibration data, and with input sets that are not among them. Raise UsageError if
    nothing is left to calibrate with."""
    if model.calibrate is None:
        return replace(model, forms=(*model.forms, OWN))
    given = tuple(model.calibrate())
    for number, inputs in enumerate(given):
        if problem := difference_of(inputs, model.inputs[0]):
            raise UsageError(f"{model.calibrates_with}: call {number} {problem} of the call that is judged")
    judged = tuple(inputs for inputs in model.inputs if not any(inputs is other for other in given))
    kept = tuple(inputs for inputs in given if not any(_is_equal(inputs, other) for other in judged))
    if not kept:
        raise UsageError(f"{model.calibrates_with}: every call is also judged, and nothing is left to calibrate with")
    left_out = len(given) - len(kept)
    also = f", without {left_out} that are judged" if left_out else ", none of which is judged"
    form = f"is calibrated for int8 with {counted(len(kept), 'call')} from {model.calibrates_with}{also}"
    model = replace(model, inputs=judged, calibration=kept, forms=(*model.forms, form))
    if len(judged) > 1:
        return model
    return replace(model, inputs=input_sets(judged[0]), bolder_inputs=partial(input_sets, judged[0]))


def without_calibrating_calls(model: LoadedModel) -> LoadedModel:
    """Return the model with the input sets that int8 is judged by, for the other precisions of its contest. The user's
    own function is not called, because only recorded calls are shared out."""
    if not (isinstance(model.calibrate, partial) and model.calibrate.func is second_half):
        return model
    return replace(with_calibration(model), calibration=(), forms=model.forms)


def second_half(sets: Sequence[Inputs]) -> Sequence[Inputs]:
    """Return the recorded calls that calibrate. The others, of which there is one more if the number is odd, judge."""
    return sets[(len(sets) + 1) // 2 :]


def _is_equal(inputs: Inputs, other: Inputs) -> bool:
    pairs = list(zip(inputs.tensors(), other.tensors(), strict=False))
    return all(ours.shape == theirs.shape and torch.equal(ours, theirs) for ours, theirs in pairs)
