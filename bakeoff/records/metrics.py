"""What the user's own `evaluate` says of one build, or of the float reference: its metrics, or why there are none."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field

from bakeoff.records.failure import Failure
from bakeoff.records.frozen import Frozen

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Metric(Frozen):
    """One metric. With scores it is their mean, and otherwise the number that `evaluate` returned."""

    value: Finite
    samples: int = 0  # that were scored; 0: it is a plain number
    packed: str = ""  # the scores as float64, lowest byte first, through zlib and base64

    @classmethod
    def of_scores(cls, scores: Sequence[float]) -> Self:
        """Return the mean of these scores, and keep each of them."""
        packed = base64.b64encode(zlib.compress(struct.pack(f"<{len(scores)}d", *scores), 9)).decode()
        return cls(value=sum(scores) / len(scores), samples=len(scores), packed=packed)

    @property
    def scores(self) -> tuple[float, ...]:
        """The score of each sample, in the order of `evaluate`, or nothing for a plain number."""
        return (
            struct.unpack(f"<{self.samples}d", zlib.decompress(base64.b64decode(self.packed))) if self.samples else ()
        )


class Metrics(Frozen):
    """All metrics of one call of `evaluate`, or why it has none."""

    values: dict[str, Metric] = Field(default_factory=dict)
    higher_is_better: dict[str, bool] = Field(default_factory=dict)  # as far as `evaluate` declares it
    failure: Failure | None = None
    seconds: float = 0.0
    judged: int = 0  # different samples that `evaluate` gave the reference, where int8 has calibration data of its own
    calibrating: int = 0  # of these, that int8 is calibrated with

    def beside(self, reference: Metrics) -> Metrics:
        """Return the metrics of a build, or why they cannot be compared with those of the reference."""
        if self.failure or reference.failure:
            return self
        problem = ""
        if self.values.keys() != reference.values.keys():
            ours, theirs = (", ".join(sorted(metrics.values)) for metrics in (self, reference))
            problem = f"evaluate returned {ours}, and for the reference {theirs}"
        for name, metric in self.values.items() if not problem else ():
            if metric.samples != reference.values[name].samples:
                theirs = f"{reference.values[name].samples:,}"
                problem = f"evaluate returned {metric.samples:,} scores of {name}, and for the reference {theirs}"
        if not problem:
            return self
        return self.but(values={}, failure=Failure(kind="other metrics", text=problem))
