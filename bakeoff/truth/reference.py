"""What cells are checked against: the exact outputs with eager's errors, and what else must be right, in files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.truth.choices import Choice
from bakeoff.truth.errors import ErrorSpread
from bakeoff.truth.generating import Greedy
from bakeoff.truth.magnitudes import EagerOctaves
from bakeoff.truth.matching import (
    Outputs,
    as_pairs,
    choices_of,
    labels,
    match,
    structure_of,
    type_name,
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
        """Write it as safetensors. The file appears at `path` whole or not at all. The outputs are left out if
        `outputs_at`, the reference of another precision in the same folder, holds them."""
        tensors, known = ({}, {"outputs_in": outputs_at.name}) if outputs_at else self._outputs_to_save()
        for number, spread in enumerate(self.eager_spread):
            tensors |= {f"slices.{number}.{dimension}": rows for dimension, rows in spread.slices.items()}
            tensors |= {f"octaves.{number}": torch.stack(spread.octaves)} if spread.octaves else {}
        known |= {
            "eager_rmse": json.dumps(self.eager_rmse),
            "eager_largest": json.dumps([spread.largest for spread in self.eager_spread]),
            "computed_in": self.computed_in,
            "in_float32": json.dumps(self.in_float32),
            "why_narrower": self.why_narrower,
            "longest_sum": str(self.longest_sum),
            "sums": json.dumps(self.sums),
            "kept_at": self.kept_at,
            "traits": self.traits.model_dump_json(),
            "types": json.dumps([list(map(type_name, each)) for each in self.types]),
        }
        generated = {"greedy": self.greedy, "first_greedy": self.first_greedy}
        known |= {name: each.to_json() for name, each in generated.items() if each}
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata=known)
        partial.replace(path)

    def _outputs_to_save(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        tensors, complex_places = {}, []
        for index, outputs in enumerate(self.outputs):
            chosen = choices_of(outputs)
            for number, (label, tensor) in enumerate(zip(labels(outputs), outputs, strict=True)):
                place = f"{index}.{number}"
                # copied, because two outputs may share a tensor, which safetensors refuses
                tensors[place] = as_pairs(tensor).to("cpu", copy=True).contiguous()
                complex_places += [place] if tensor.is_complex() else []
                if (choice := chosen.get(label)) is not None:
                    tensors[f"source.{place}"] = choice.source.to("cpu", copy=True).contiguous()
                    tensors[f"rows.{place}"] = choice.rows.to("cpu", copy=True).contiguous()
        structures = json.dumps([structure_of(outputs) for outputs in self.outputs])
        return tensors, {"complex": json.dumps(complex_places), "structures": structures}

    @classmethod
    def load(cls, path: Path) -> Reference:
        with safe_open(path, framework="pt") as file:
            known = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        if other := known.get("outputs_in"):
            outputs = cls.load(path.with_name(other)).outputs
        else:
            outputs = _outputs_of(tensors, known)
        slices: dict[int, dict[int, torch.Tensor]] = {}
        for key, rows in tensors.items():
            kind, _, place = key.partition(".")
            if kind == "slices":
                number, _, dimension = place.partition(".")
                slices.setdefault(int(number), {})[int(dimension)] = rows
        octaves = {key: EagerOctaves(*rows) for key, rows in tensors.items() if key.startswith("octaves.")}
        return cls(
            outputs,
            tuple(json.loads(known["eager_rmse"])),
            tuple(
                ErrorSpread(error, slices.get(number, {}), octaves.get(f"octaves.{number}"))
                for number, error in enumerate(json.loads(known["eager_largest"]))
            ),
            known.get("computed_in", "float64"),
            tuple(json.loads(known.get("in_float32", "[]"))),
            _greedy(known, "greedy"),
            known.get("why_narrower", ""),
            _traits(known),
            tuple(tuple(getattr(torch, name) for name in each) for each in json.loads(known.get("types", "[]"))),
            _greedy(known, "first_greedy"),
            int(known.get("longest_sum", 1)),
            known.get("kept_at", ""),
            tuple(json.loads(known.get("sums", "[]"))),
        )

    def longest_sum_of(self, label: str) -> int:
        """Return how many values the model adds up for the output of this label."""
        names = labels(self.outputs[0])
        known = dict(zip(names, self.sums, strict=True)) if len(names) == len(self.sums) else {}
        return known.get(label, self.longest_sum)


def _outputs_of(tensors: Mapping[str, torch.Tensor], known: Mapping[str, str]) -> tuple[Outputs, ...]:
    complex_places, by_set = set(json.loads(known["complex"])), []
    for index, structure in enumerate(json.loads(known["structures"])):
        outputs, chosen = list[torch.Tensor](), {}
        while (place := f"{index}.{len(outputs)}") in tensors:
            if f"source.{place}" in tensors:
                chosen[len(outputs)] = Choice(tensors[f"source.{place}"], tensors[f"rows.{place}"])
            tensor = tensors[place]
            outputs.append(torch.view_as_complex(tensor) if place in complex_places else tensor)
        returned = with_structure(tuple(outputs), structure)
        by_set.append(with_choices(returned, chosen) if chosen else returned)
    return tuple(by_set)


def _greedy(metadata: Mapping[str, str], name: str) -> Greedy | None:
    return Greedy.from_json(metadata[name]) if name in metadata else None


def traits_in(path: Path) -> ModelTraits:
    if not path.exists():
        return NO_TRAITS
    with safe_open(path, framework="pt") as file:
        return _traits(file.metadata())


def _traits(metadata: Mapping[str, str]) -> ModelTraits:
    return ModelTraits.model_validate_json(metadata["traits"]) if "traits" in metadata else NO_TRAITS


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
        return self.reference.with_suffix(f".probe{number}.safetensors")

    @property
    def without_fast_path(self) -> ReferenceFiles:
        """What eager answers without the fast path of its transformer layers, if that is something else."""
        return ReferenceFiles(self.reference.with_suffix(".layers.safetensors"))

    def witness(self, number: int) -> Path:
        """What eager answers if each operator rounds otherwise, or gives another of several right answers."""
        return self.reference.with_suffix(f".witness{number}.safetensors")

    def witnesses(self) -> list[tuple[Outputs, ...]]:
        """Return the answers of all of them, the least noisy ones first."""
        paths = itertools.takewhile(Path.exists, map(self.witness, itertools.count()))
        return [Reference.load(path).outputs for path in paths]

    @property
    def with_own_casts(self) -> Path:
        """The reference with the errors of a model whose own casts to 16 bits are left out, if it has such casts."""
        return self.reference.with_suffix(".casts.safetensors")

    def after(self, calls: int) -> Path:
        """The reference of the same sequence of calls, after so many calls with the first inputs."""
        return self.reference.with_suffix(f".after{calls}.safetensors")

    @property
    def forgetful(self) -> Path:
        """The reference of a build that forgets the state between calls."""
        return self.reference.with_suffix(".forgetful.safetensors")

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
