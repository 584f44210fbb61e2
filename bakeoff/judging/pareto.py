"""Finds the cells of a contest that no other cell dominates."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bakeoff.judging.constraints import QUANTITIES
from bakeoff.records.schema import Record


@dataclass(frozen=True)
class Aim:
    """A quantity of which less is better. Two values with a ratio of at most `tie` are equal."""

    name: str
    of: Callable[[Record], float | None]
    tie: float = 1.02


@dataclass(frozen=True)
class Front:
    """The labels that nothing dominates, in the order of the records, and the quantities that were compared."""

    labels: Sequence[str]
    aims: Sequence[str]
    left_out: Sequence[str]  # quantities that some record does not have


def front_of(records: Sequence[Record], undecided: Collection[str] = ()) -> Front:
    """Return the Pareto front over latency, throughput, memory, build time and error, of records that may win.

    A cell dominates another if it is nowhere worse and somewhere better. Values within 2 % are equal. So are errors
    within a factor of two, because two roundings of the same precision may differ that much. A quantity that some
    record does not have is not compared. Equality with a margin is not transitive: three cells could dominate each
    other in a circle, and would all be missing.
    A cell in `undecided` may be the fastest, so none dominates it.
    """
    all_aims = _aims_on(records)
    aims = [aim for aim in all_aims if all(aim.of(record) is not None for record in records)]
    values = [[aim.of(record) or 0.0 for aim in aims] for record in records]
    ties = [aim.tie for aim in aims]
    labels = [
        record.cell.label
        for record, ours in zip(records, values, strict=True)
        if record.cell.label in undecided or not any(dominates(theirs, ours, ties) for theirs in values)
    ]
    left_out = [aim.name for aim in all_aims if aim not in aims]
    return Front(labels, [aim.name for aim in aims], left_out)


def dominates(one: Sequence[float], other: Sequence[float], ties: Sequence[float]) -> bool:
    """Return True if `one` is nowhere worse than `other` and somewhere better. Less is better."""
    is_worse = any(ours > theirs * tie for ours, theirs, tie in zip(one, other, ties, strict=True))
    is_better = any(ours * tie < theirs for ours, theirs, tie in zip(one, other, ties, strict=True))
    return is_better and not is_worse


def _aims_on(records: Sequence[Record]) -> list[Aim]:
    kind = "device" if any(record.cell.device.is_cuda for record in records) else "resident"
    return [
        Aim("latency", QUANTITIES["median_ms"].of),
        Aim("throughput", lambda record: 1 / record.throughput.calls_per_s if record.throughput else None),
        Aim(f"{kind} memory", QUANTITIES[f"peak_{kind}_bytes"].of),
        Aim("build time", QUANTITIES["build_s"].of),
        Aim("error", QUANTITIES["relative_rmse"].of, tie=2.0),
    ]
