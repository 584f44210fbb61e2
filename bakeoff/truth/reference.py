"""What cells are checked against: the exact outputs with eager's errors, and what else must be right, in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bakeoff.backends.calling import Returned
from bakeoff.models.base import Inputs
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.truth import matching
from bakeoff.truth.choices import Choice
from bakeoff.truth.errors import EagerErrors, ErrorSpread
from bakeoff.truth.generating import Greedy
from bakeoff.truth.matching import Outputs


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
    others: tuple[Reference, ...] = ()
    """Of each probe, since their sizes differ. If the model keeps state: of the same calls after one with the first
    inputs, two and so on, and at last of a build that forgets the state between calls."""
    witnesses: tuple[tuple[Outputs, ...], ...] = ()
    """What eager answers if each operator rounds otherwise, or gives another of several right answers, the least noisy
    ones first."""
    without_fast_path: Reference | None = None
    """What eager answers without the fast path of its transformer layers, if that is something else."""
    without_own_casts: EagerErrors | None = None
    """How far the answers move if the model's own casts to 16 bits are left out, if it has such casts."""

    @classmethod
    def with_others(cls, of: Callable[[range], Reference], count: int, sets: int, traits: ModelTraits) -> Reference:
        """Return the reference `of` the first `sets` of `count` outputs, with those of the others."""
        size = sets if traits.state else 1
        others = (of(range(place, place + size)) for place in range(sets, count, size))
        return replace(of(range(sets)), others=tuple(others))

    def save(self, path: Path, outputs_at: Path | None = None) -> None:
        """Write it for this machine. The file appears at `path` whole or not at all. The outputs are left out if
        `outputs_at`, the reference of another precision in the same folder, holds them."""
        kept = (replace(self, outputs=()) if outputs_at else self)._on_host()
        save_whole({"reference": kept, "outputs_in": outputs_at.name if outputs_at else ""}, path)

    def _on_host(self) -> Reference:
        return replace(
            self,
            outputs=tuple(map(_on_host, self.outputs)),
            others=tuple(other._on_host() for other in self.others),
            witnesses=tuple(tuple(map(_on_host, run)) for run in self.witnesses),
            without_fast_path=self.without_fast_path._on_host() if self.without_fast_path else None,
        )

    @classmethod
    def load(cls, path: Path) -> Reference:
        kept = _read(path)
        reference: Reference = kept["reference"]
        if other := kept["outputs_in"]:
            return replace(reference, outputs=cls.load(path.with_name(other)).outputs)
        return reference

    def longest_sum_of(self, label: str) -> int:
        names = matching.labels(self.outputs[0])
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
    matched, problem = matching.match([answer], [first], others)
    if problem:
        return None
    by_label = matching.choices_of(first)
    values = (exact if own is None else own for own, exact in zip(matched[0], first, strict=True))
    choices = {number: by_label[label] for number, label in enumerate(matching.labels(first)) if label in by_label}
    count = len(first) + len(choices)
    return replace(
        reference,
        outputs=(matching.with_choices(matching.with_structure_of(first, values), choices),),
        eager_rmse=reference.eager_rmse[:count],
        eager_spread=reference.eager_spread[:count],
        types=reference.types[:1],
    )


Change = tuple["torch.Tensor", "torch.Tensor"]
"""A tensor as it was before a call, and after it."""

BEYOND = ".beyond.pt"


@dataclass(frozen=True)
class Beyond:
    """What must be right beyond the answers to the model's own inputs. Of most models that is nothing."""

    probes: tuple[Inputs, ...] = ()  # with which the model decides otherwise than with its own ones
    buffers: Mapping[str, Change] = field(default_factory=dict)  # that a call with the first inputs changes
    written_inputs: Mapping[str, Change] = field(default_factory=dict)  # of a call with the first inputs
    draws: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of a random model in several calls

    def save(self, reference: Path) -> None:
        if any(vars(self).values()):
            torch.save(self, reference.with_suffix(BEYOND))

    @classmethod
    def load(cls, reference: Path, device: str) -> Beyond:
        """Return what is in that file, which this run has written, with its tensors on this device, or nothing."""
        if not (path := reference.with_suffix(BEYOND)).exists():
            return cls()
        beyond: Beyond = torch.load(path, map_location=torch.device(device), weights_only=False)
        return beyond
