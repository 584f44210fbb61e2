"""Finds for each output of the model the one that a build returned, or says which is missing or too many.

A build that calls the module itself returns what eager returns, and outputs are matched by their places. A graph
returns a flat tuple of tensors in the same order. It may leave out numbers that are the same for every input set, as
they are constants of the graph, but no other output.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from bakeoff.backends.calling import VARIES, Returned
from bakeoff.records.text import counted, first, listed
from bakeoff.truth.choices import Choice

Outputs = tuple["torch.Tensor", ...]
Matched = tuple["torch.Tensor | None", ...]
"""The tensor of a build for each output of the model. None stands for a constant number that a graph leaves out."""


def match(
    outputs: Sequence[Outputs], reference: Sequence[Outputs], of_other_inputs: Sequence[Outputs] = ()
) -> tuple[list[Matched], str]:
    """Return the matched outputs of every input set, and what is wrong with their structure, if anything is. What is
    the same in the reference and in the outputs `of_other_inputs` is a constant, which may be left out."""
    all_known = (*reference, *of_other_inputs)
    constant = _constant_numbers(all_known)
    found: list[Matched] = []
    for index, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        matched, problem = _match_call(ours, theirs, constant)
        problem = problem or _other_constants(ours, theirs, all_known) or _shape_problem(matched, theirs, index)
        if problem:
            return [], problem
        found.append(matched)
    return found, ""


def labels(outputs: Outputs) -> list[str]:
    """Return how each output is called in sentences: `output[1].boxes`, or `output 1` if its place is not known."""
    if (structure := _structure(outputs)) is not None:
        return [f"output{place}" for place in structure.places]
    return [f"output {number}" for number in range(len(outputs))]


def empty_outputs(answers: Sequence[Outputs]) -> set[str]:
    sizes = [
        (label, tensor.numel()) for answer in answers for label, tensor in zip(labels(answer), answer, strict=True)
    ]
    return {label for label, _ in sizes} - {label for label, size in sizes if size}


def with_structure_of(known: Outputs, outputs: Iterable[torch.Tensor]) -> Outputs:
    """Return the outputs with the places, numbers and constants of those that are known."""
    if (structure := _structure(known)) is None:
        return tuple(outputs)
    return Returned.of(outputs, structure.places, structure.numbers, structure.constants)


def combined(
    outputs: Outputs, others: Outputs, choose: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Outputs:
    """Return the outputs with what `choose` makes of the label of each, of itself and of that among `others`."""
    return with_structure_of(outputs, map(choose, labels(outputs), outputs, others))


def choices_of(outputs: Outputs) -> Mapping[str, Choice]:
    structure = _structure(outputs)
    return {} if structure is None else {f"output{place}": choice for place, choice in structure.choices.items()}


def without_numbers(outputs: Outputs) -> Outputs:
    """Return the outputs that a graph surely has."""
    return tuple(outputs[number] for number in places_of_tensors(outputs))


def places_of_tensors(outputs: Outputs) -> list[int]:
    """Return at which places in the flat tuple there are tensors, and no numbers."""
    if (structure := _structure(outputs)) is None:
        return list(range(len(outputs)))
    return [index for index, place in enumerate(structure.places) if place not in structure.numbers]


def with_choices(outputs: Outputs, choices: Mapping[int, Choice]) -> Outputs:
    if (structure := _structure(outputs)) is None:
        return outputs
    structure.choices = {structure.places[number]: choice for number, choice in choices.items()}
    return structure


def _structure(outputs: Outputs) -> Returned | None:
    return outputs if isinstance(outputs, Returned) else None


def _constant_numbers(reference: Sequence[Outputs]) -> set[str]:
    structures = [structure for outputs in reference if (structure := _structure(outputs)) is not None]
    if not structures or len(structures) < len(reference):
        return set()
    values = [dict(zip(structure.places, structure, strict=True)) for structure in structures]
    first = values[0]
    return {
        place
        for place in structures[0].numbers
        if all(place in value and torch.equal(value[place], first[place]) for value in values)
    }


def _match_call(ours: Outputs, theirs: Outputs, constant: set[str]) -> tuple[Matched, str]:
    structure, expected = _structure(ours), _structure(theirs)
    if structure is not None and expected is not None and set(structure.places) & set(expected.places):
        known = dict(zip(structure.places, structure, strict=True))
        missing = [place for place in expected.places if place not in known]
        extra = [place for place in structure.places if place not in expected.places]
        if missing or extra:
            return (), _difference(missing, extra)
        return tuple(known[place] for place in expected.places), ""
    if len(ours) == len(theirs):
        return ours, ""
    places = expected.places if expected is not None else tuple(f" {number}" for number in range(len(theirs)))
    pairs = _aligned(ours, theirs, {number for number, place in enumerate(places) if place in constant})
    matched = tuple(None if pairs[number] is None else ours[pairs[number] or 0] for number in range(len(theirs)))
    missing = [place for place, tensor in zip(places, matched, strict=True) if tensor is None and place not in constant]
    unused = len(ours) - sum(tensor is not None for tensor in matched)
    if not missing and not unused:
        return matched, ""
    problem = _difference(missing, [f" {number}" for number in range(len(ours)) if number not in pairs.values()])
    return (), f"{counted(len(ours), 'output')} where the model has {len(theirs)}: {problem}"


def _aligned(ours: Outputs, theirs: Outputs, optional: set[int]) -> dict[int, int | None]:
    """Return the number of our output of the same shape for each of the model's, in order, so that most required ones
    have a partner. `optional` ones count less than required ones."""
    best: list[list[tuple[float, dict[int, int | None]]]] = [
        [(0.0, {}) for _ in range(len(ours) + 1)] for _ in range(len(theirs) + 1)
    ]
    for place in range(len(theirs) - 1, -1, -1):
        best[place][len(ours)] = (0.0, {**best[place + 1][len(ours)][1], place: None})
        for number in range(len(ours) - 1, -1, -1):
            score, pairs = best[place + 1][number]
            options = [best[place][number + 1], (score, {**pairs, place: None})]
            if _same_shape(ours[number], theirs[place]):
                score, pairs = best[place + 1][number + 1]
                options.insert(0, (score + (0.5 if place in optional else 1.0), {**pairs, place: number}))
            best[place][number] = max(options, key=lambda option: option[0])
    return best[0][0][1]


def _difference(missing: Iterable[str], extra: Iterable[str]) -> str:
    """Say which outputs there are on one side only: the first ones of each kind, and how many others."""
    of_each = {
        "missing": [f"output{place}" for place in missing],
        "not the model's": [f"output{place}" for place in extra],
    }
    return ", ".join(
        f"{listed(first(names))} {'is' if len(names) == 1 else 'are'} {what}"
        for what, names in of_each.items()
        if names
    )


def _other_constants(ours: Outputs, theirs: Outputs, reference: Sequence[Outputs]) -> str:
    """Say which None or text differs. A graph has none, and can be right only if the model's are always the same."""
    expected = _structure(theirs)
    if expected is None:
        return ""
    structure = _structure(ours)
    if structure is not None and set(structure.places) == set(expected.places):
        for place, wanted in sorted(expected.constants.items()):
            if wanted not in (VARIES, got := structure.constants.get(place, "missing")):
                return f"output{place} is {got}, and the model's is {wanted}"
        return ""
    if varying := [place for place, text in expected.constants.items() if text == VARIES]:
        return f"output{varying[0]} is no tensor and changes from call to call, and the build returns tensors only"
    for other in reference:
        if (known := _structure(other)) is not None and known.constants != expected.constants:
            changing = {*known.constants.items()} ^ {*expected.constants.items()}
            place = min(place for place, _ in changing)
            return f"output{place} is no tensor and depends on the inputs, and the build returns tensors only"
    return ""


class OtherTypes(NamedTuple):
    """How the types of a build's outputs differ from eager's: in kind, such as int64 for bool, or in width."""

    kinds: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()  # such as `output[1] as int32 in place of int64`


def other_types(
    outputs: Sequence[Matched], reference: Sequence[Outputs], types: Sequence[Sequence[torch.dtype]]
) -> OtherTypes:
    """Return which outputs have other types than eager's outputs of the same input sets, which have these `types`."""
    kinds, widths = dict[str, None](), dict[str, None]()
    for ours, theirs, wanted in zip(outputs, reference, types, strict=False):
        names = labels(theirs)
        for place in places_of_tensors(theirs):
            tensor = ours[place]
            if tensor is None or tensor.dtype == wanted[place]:
                continue
            came, expected = tensor.dtype, wanted[place]
            if expected.is_complex and not came.is_complex:
                expected = expected.to_real()  # the numbers of pairs
            if came != expected:
                text = f"{names[place]} as {type_name(came)} in place of {type_name(wanted[place])}"
                (widths if _kind(came) == _kind(expected) else kinds)[text] = None
    return OtherTypes(tuple(kinds), tuple(widths))


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "complex"
    return "real" if dtype.is_floating_point else "boolean" if str(dtype) == "torch.bool" else "whole"


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs of real ones, and other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _shape_problem(matched: Matched, theirs: Outputs, index: int) -> str:
    for label, tensor, other in zip(labels(theirs), matched, theirs, strict=True):
        if tensor is not None and not _same_shape(tensor, other):
            return f"{label} of input set {index} has shape {_shape(tensor)}, not {_shape(other)}"
        if tensor is not None and tensor.is_complex() and not other.is_complex():
            return f"{label} has complex numbers, and the model's are real"
    return ""


def _same_shape(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True for equal shapes. Engines without complex numbers return these as pairs of real ones."""
    if other.is_complex() and not tensor.is_complex():
        return tensor.shape == (*other.shape, 2)
    return tensor.shape == other.shape


def _shape(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)}{' of complex numbers' if tensor.is_complex() else ''}"
