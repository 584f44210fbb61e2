"""Contests across several precisions: the best of each, and such contests in several reports. Pure functions."""

import itertools
from collections.abc import Callable, Collection, Sequence

from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Report

IsBeaten = Callable[[str, str], bool]
"""Whether the first of two labels is called better than the second."""


def sharing_first_place(order: Sequence[str], is_beaten: IsBeaten) -> list[str]:
    """Return the first of these labels and those after it, up to the first one that it is called better than."""
    return [*order[:1], *itertools.takewhile(lambda label: not is_beaten(order[0], label), order[1:])]


def ranks_of(order: Sequence[str], is_apart: IsBeaten) -> dict[str, int]:
    """Return the rank of each label. The first ones share rank 1, up to one that is apart from any before it."""
    pairs = itertools.combinations(order, 2)
    first = min((order.index(slow) for fast, slow in pairs if is_apart(fast, slow)), default=len(order))
    return {label: 1 if place < first else 1 + place for place, label in enumerate(order)}


def places_of(order: Sequence[Cell], is_apart: IsBeaten) -> dict[str, int]:
    """Return the place of each cell among those of its precision, by label. `order` has the best first.

    A contest of one precision has no such places.
    """
    places: dict[str, int] = {}
    for labels in _by_precision(order).values():
        places |= ranks_of(labels, is_apart)
    return places


def best_of_each(
    order: Sequence[Cell], may_win: Sequence[str], is_beaten: IsBeaten
) -> dict[Precision, tuple[str, ...]]:
    """Return the best cell of each precision with those that may be as good, of those that may win if there are any."""
    best = {}
    for precision, labels in _by_precision(order).items():
        among = [label for label in labels if label in may_win] or labels
        best[precision] = tuple(sharing_first_place(among, is_beaten))
    return best


def grouped_alike(reports: Sequence[Report]) -> list[Report]:
    """Return the reports with a contest for each precision where one has precisions together that another has apart."""
    contests: dict[str, set[str]] = {}
    for cell in (record.cell for report in reports for record in report.records):
        contests.setdefault(cell.id, set()).add(cell.contest_id)
    differing = {contest_id for ids in contests.values() if len(ids) > 1 for contest_id in ids}
    return [_apart(report, differing) for report in reports]


def _apart(report: Report, contest_ids: Collection[str]) -> Report:
    records = [
        record.model_copy(update={"cell": record.cell.model_copy(update={"compared": ()})})
        if record.cell.contest_id in contest_ids
        else record
        for record in report.records
    ]
    return report.model_copy(update={"records": records})


def _by_precision(order: Sequence[Cell]) -> dict[Precision, list[str]]:
    """Return the labels of each precision, in the order in which precisions were asked for."""
    asked = order[0].compared if order else ()
    found = {precision: [cell.label for cell in order if cell.precision is precision] for precision in asked}
    return {precision: labels for precision, labels in found.items() if labels}
