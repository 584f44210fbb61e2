"""Says what a cell's error or failure comes from."""

from __future__ import annotations

from bakeoff.records.blame import Blame, Found, Trial
from bakeoff.records.text import one_line
from bakeoff.reports.explanation import THE_MODEL
from bakeoff.reports.markdown import escape, table
from bakeoff.reports.number_format import NONE, error, ratio


def to_markdown(blame: Blame) -> str:
    """Return what was found, and every part that was tried."""
    return f"{escape(conclusion(blame))}\n\n{trials_table(blame)}\n"


def conclusion(blame: Blame) -> str:
    """Say which part is to blame, or that none is."""
    whole = blame.trials[0]
    if blame.found is Found.NOTHING:
        if blame.looks_for_failure:
            return f"{blame.label}: the whole model builds and runs now, so that nothing can be blamed."
        return f"{blame.label}: {figures(whole)}. No part is to blame."
    place = blame.place or whole
    name = place.name or THE_MODEL
    where = f" ({blame.line})" if blame.line else ""
    if blame.looks_for_failure:
        failure = one_line(place.failure)
        return f"{blame.label}: the smallest part that fails alone is {name}, {place.kind}{where}: {failure}"
    if blame.found is Found.SPREAD:
        return (
            f"{blame.label}: the error has no single place. {name} is beyond its limit ({figures(place)}), and no part "
            "of it is: the error grows from part to part."
        )
    said = f"{blame.label}: precision is lost in {name}, {place.kind}{where}: {figures(place)}."
    if place.eager_error is not None and place.error and place.eager_error > place.error / 2:
        said += " Eager loses as much, so that the model itself does it."
    return said


def figures(trial: Trial) -> str:
    """Return `its own error is 1.7e-03, and 1.2e-06 is rounding`."""
    return f"its own error is {error(trial.error)}, and up to {error(trial.limit)} is rounding"


def trials_table(blame: Blame) -> str:
    """Return a row for each part that was tried, in the order in which it was."""
    rows = [
        [
            trial.name or THE_MODEL,
            trial.kind,
            error(trial.error),
            error(trial.eager_error),
            error(trial.limit),
            one_line(trial.failure, 120) if trial.failure else NONE if trial.error is None else ratio(trial.excess),
        ]
        for trial in blame.trials
    ]
    headings = ["part, built alone", "kind", "error", "eager's", "limit", "error / limit"]
    return table(headings, [list(map(escape, row)) for row in rows], "llrrrr")
