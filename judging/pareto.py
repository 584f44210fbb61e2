"""Which configurations nothing dominates: pure functions over the records of one contest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from records.schema import Record


@dataclass(frozen=True)
class Aim:
    """Something to have little of. Two values whose ratio is at most `tie` are equal."""

    name: str
    of: Callable[[Record], float | None]
    tie: float = 1.02


@dataclass(frozen=True)
class Front:
    """`labels` are those that nothing dominates, in the order of the records; `aims` is what was compared."""

    labels: Sequence[str]
    aims: Sequence[str]
    left_out: Sequence[str]  # aims that some record has no value of


def front_of(records: Sequence[Record]) -> Front:
    """The Pareto front over latency, throughput, memory, build time and error, of records that may win.

    One dominates another if it is worse in no aim and better in at least one, where values within 2 % are equal, and
    errors within a factor of two: so far apart may be two roundings of the same precision, and so far is what passes as
    correct. An aim that some record has no value of compares nobody. Equality with a margin is not transitive: three
    that dominate each other in a circle are conceivable, and would all be missing.
    """
    known = _aims_on(records)
    aims = [aim for aim in known if all(aim.of(record) is not None for record in records)]
    values = [[aim.of(record) or 0.0 for aim in aims] for record in records]
    ties = [aim.tie for aim in aims]
    labels = [
        record.cell.label
        for record, ours in zip(records, values, strict=True)
        if not any(dominates(theirs, ours, ties) for theirs in values)
    ]
    left_out = [aim.name for aim in known if aim not in aims]
    return Front(labels, [aim.name for aim in aims], left_out)


def dominates(one: Sequence[float], other: Sequence[float], ties: Sequence[float]) -> bool:
    """Whether `one` is nowhere worse than `other` and somewhere better: less is better; `ties` are ratios of equals."""
    is_worse = any(ours > theirs * tie for ours, theirs, tie in zip(one, other, ties, strict=True))
    is_better = any(ours * tie < theirs for ours, theirs, tie in zip(one, other, ties, strict=True))
    return is_better and not is_worse


def _aims_on(records: Sequence[Record]) -> list[Aim]:
    on_device = any(record.cell.device.is_cuda for record in records)
    memory = Aim("device memory", _device_bytes) if on_device else Aim("resident memory", _resident_bytes)
    return [
        Aim("latency", lambda record: record.latency.median_ms if record.latency else None),
        Aim("throughput", lambda record: 1 / record.throughput.calls_per_s if record.throughput else None),
        memory,
        Aim("build time", lambda record: record.build_s if record.phases else None),
        Aim("error", lambda record: record.accuracy.relative_rmse if record.accuracy else None, tie=2.0),
    ]


def _device_bytes(record: Record) -> float | None:
    return record.memory.peak_device_bytes if record.memory else None


def _resident_bytes(record: Record) -> float | None:
    return record.memory.peak_resident_bytes if record.memory else None
