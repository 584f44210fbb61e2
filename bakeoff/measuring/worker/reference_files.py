"""The files that cells are checked against: the reference of the input sets, and those of what else must be right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bakeoff.records.traits import ModelTraits


@dataclass(frozen=True)
class ReferenceFiles:
    """The files beside a contest's reference. Most contests have the reference only."""

    reference: Path

    @property
    def probes(self) -> Path:
        """The inputs that make the model decide otherwise than its own ones."""
        return self.reference.with_suffix(".probes.pt")

    def of_probe(self, number: int) -> Path:
        """The reference of one of these inputs. Their sizes differ, so each has its own yardstick."""
        return self.reference.with_suffix(f".probe{number}.safetensors")

    @property
    def buffers(self) -> Path:
        """What a call with the first inputs leaves in the buffers of a model that keeps some."""
        return self.reference.with_suffix(".buffers.pt")

    @property
    def written_inputs(self) -> Path:
        """What a call leaves in the first inputs, of a model that writes into them."""
        return self.reference.with_suffix(".written.pt")

    @property
    def draws(self) -> Path:
        """What eager has drawn in several calls, if the model is random."""
        return self.reference.with_suffix(".draws.pt")

    @property
    def without_fast_path(self) -> ReferenceFiles:
        """What eager answers without the fast path of its transformer layers, if that is something else."""
        return ReferenceFiles(self.reference.with_suffix(".layers.safetensors"))

    def after(self, calls: int) -> Path:
        """The reference of the same sequence of calls, after so many calls with the first inputs."""
        return self.reference.with_suffix(f".after{calls}.safetensors")

    @property
    def forgetful(self) -> Path:
        """The reference of a build that forgets the state between calls."""
        return self.reference.with_suffix(".forgetful.safetensors")

    def all_after(self) -> Iterator[Path]:
        """Yield the files of `after` that there are."""
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
