"""What cells are checked against: the exact outputs with eager's errors, and what else must be right, in files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bakeoff.backends.calling import Returned
from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.truth.choices import Choice
from bakeoff.truth.errors import ErrorSpread
from bakeoff.truth.generating import Greedy
from bakeoff.truth.matching import (
    Outputs,
    choices_of,
    labels,
    match,
    structure_of,
    with_choices,
    with_structure,
)


@dataclass(frozen=True)
class Reference:
    """For each input set the outputs in float64, and for each output the RMSE of eager in the cells' precision."""

    outputs: tuple[Outputs, ...]
    eager_rmse: tuple[float, ...]
    eager_spread: tuple[ErrorSpread, ...] = ()  # for each output; empty: only its RMSE is known
    computed_in: str = "float64"  # a narrower type where float64 could not be had
    in_float32: tuple[str, ...] = ()  # operators that lack float64 and ran in float32
    greedy: Greedy | None = None  # the tokens that eager generates in the cells' precision
    why_narrower: str = ""  # how float64 failed
    traits: ModelTraits = NO_TRAITS
    types: tuple[tuple[torch.dtype, ...], ...] = ()  # for each input set those of eager's outputs; empty: not known
    first_greedy: Greedy | None = None  # those of a contest's first precision, if this is another one
    longest_sum: int = 1  # the number of values that the model adds up
    kept_at: str = ""  # date and time in ISO 8601, if the outputs are those of an earlier run
    sums: tuple[int, ...] = ()  # `longest_sum` of each output of the first input set; empty: of all outputs alike

    def save(self, path: Path, outputs_at: Path | None = None) -> None:
        """Write it for this machine. The file appears at `path` whole or not at all. The outputs are left out if
        `outputs_at`, the reference of another precision in the same folder, holds them."""
        kept = replace(self, outputs=() if outputs_at else tuple(map(_on_host, self.outputs)))
        save_whole({"reference": kept, "outputs_in": outputs_at.name if outputs_at else ""}, path)

    @classmethod
    def load(cls, path: Path) -> Reference:
        kept = _read(path)
        reference: Reference = kept["reference"]
        if other := kept["outputs_in"]:
            return replace(reference, outputs=cls.load(path.with_name(other)).outputs)
        return reference

    def longest_sum_of(self, label: str) -> int:
        """Return how many values the model adds up for the output of this label."""
        names = labels(self.outputs[0])
        known = dict(zip(names, self.sums, strict=True)) if len(names) == len(self.sums) else {}
        return known.get(label, self.longest_sum)


def save_whole(kept: object, path: Path) -> None:
    partial = path.with_suffix(".partial")
    torch.save(kept, partial)
    partial.replace(path)


def _read(path: Path) -> dict[str, Any]:
    # mapped, so that what asks for the traits alone reads no tensor
    kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    return kept


def _on_host(outputs: Outputs) -> Outputs:
    """Return copies in host memory: a view would bring all of its memory into a file."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", copy=True).contiguous()

    if not isinstance(outputs, Returned):
        return tuple(map(copied, outputs))
    returned = Returned.of(map(copied, outputs), outputs.places, outputs.numbers, outputs.constants)
    returned.choices = {
        place: Choice(copied(choice.source), copied(choice.rows)) for place, choice in outputs.choices.items()
    }
    return returned


def traits_in(path: Path) -> ModelTraits:
    traits: ModelTraits = _read(path)["reference"].traits if path.exists() else NO_TRAITS
    return traits


def with_answer(reference: Reference, answer: Outputs) -> Reference | None:
    """Return the reference of the first input set with a build's answer in place of the outputs, if they match."""
    first, *others = reference.outputs
    matched, problem = match([answer], [first], others)
    if problem:
        return None
    by_label = choices_of(first)
    values = (exact if own is None else own for own, exact in zip(matched[0], first, strict=True))
    choices = {number: by_label[label] for number, label in enumerate(labels(first)) if label in by_label}
    count = len(first) + len(choices)
    return replace(
        reference,
        outputs=(with_choices(with_structure(tuple(values), structure_of(first)), choices),),
        eager_rmse=reference.eager_rmse[:count],
        eager_spread=reference.eager_spread[:count],
        types=reference.types[:1],
    )


@dataclass(frozen=True)
class ReferenceFiles:
    """The files beside a contest's reference. Most contests have the reference only."""

    reference: Path

    @property
    def beyond(self) -> Path:
        """What must be right beyond the answers to the model's own inputs."""
        return self.reference.with_suffix(".beyond.pt")

    def of_probe(self, number: int) -> Path:
        """The reference of one of the probes. Their sizes differ, so each has its own yardstick."""
        return self.reference.with_suffix(f".probe{number}.pt")

    @property
    def without_fast_path(self) -> ReferenceFiles:
        """What eager answers without the fast path of its transformer layers, if that is something else."""
        return ReferenceFiles(self.reference.with_suffix(".layers.pt"))

    def witness(self, number: int) -> Path:
        """What eager answers if each operator rounds otherwise, or gives another of several right answers."""
        return self.reference.with_suffix(f".witness{number}.pt")

    def witnesses(self) -> list[tuple[Outputs, ...]]:
        """Return the answers of all of them, the least noisy ones first."""
        paths = itertools.takewhile(Path.exists, map(self.witness, itertools.count()))
        return [Reference.load(path).outputs for path in paths]

    def after(self, calls: int) -> Path:
        """The reference of the same sequence of calls, after so many calls with the first inputs."""
        return self.reference.with_suffix(f".after{calls}.pt")

    @property
    def forgetful(self) -> Path:
        """The reference of a build that forgets the state between calls."""
        return self.reference.with_suffix(".forgetful.pt")

    def all_after(self) -> Iterator[Path]:
        calls = 1
        while self.after(calls).exists():
            yield self.after(calls)
            calls += 1

    def parts(self, outputs: int, sets: int, traits: ModelTraits) -> dict[Path, range]:
        """Return which of all outputs go into which file. The reference itself comes last: with it, all are there."""
        found: dict[Path, range] = {}
        if traits.state:
            for calls in range(1, 1 + traits.settles_after):
                found[self.after(calls)] = range(calls * sets, (calls + 1) * sets)
            found[self.forgetful] = range(outputs - sets, outputs)
        else:
            for number, place in enumerate(range(sets, outputs)):
                found[self.of_probe(number)] = range(place, place + 1)
        return found | {self.reference: range(sets)}


Change = tuple["torch.Tensor", "torch.Tensor"]
"""A tensor as it was before a call, and after it."""


@dataclass(frozen=True)
class Beyond:
    """What must be right beyond the answers to the model's own inputs. Of most models that is nothing."""

    probes: tuple[Inputs, ...] = ()  # with which the model decides otherwise than with its own ones
    buffers: Mapping[str, Change] = field(default_factory=dict)  # that a call with the first inputs changes
    written_inputs: Mapping[str, Change] = field(default_factory=dict)  # of a call with the first inputs
    draws: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of a random model in several calls

    def save(self, path: Path) -> None:
        """Write a file if there is anything."""
        if any(vars(self).values()):
            torch.save(self, path)

    @classmethod
    def load(cls, path: Path, device: str) -> Beyond:
        """Return what is in a file that this run has written, with its tensors on this device, or nothing."""
        if not path.exists():
            return cls()
        beyond: Beyond = torch.load(path, map_location=torch.device(device), weights_only=False)
        return beyond
