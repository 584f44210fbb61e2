"""The winners of a pipeline's parts, as one folder, and what puts them in place."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bakeoff.models.pipeline_parts import part_of, replace_parts
from bakeoff.records.errors import UsageError, first_line
from bakeoff.shipping.export import export
from bakeoff.shipping.loading import ShippedModel, load

PARTS = "parts.json"


def ship(chosen: Mapping[str, tuple[Path, list[str]]], folder: Path) -> dict[str, str]:
    """Export these cells of each part's run into `folder`, one for each size, and return why a part could not be.
    `chosen` has for each part the folder of its run and the ids of its cells."""
    shutil.rmtree(folder, ignore_errors=True)
    shipped, not_exported = {}, {}
    for part, (run, cells) in chosen.items():
        places = [f"{part}/{number}" for number in range(len(cells))]
        try:
            for cell, place in zip(cells, places, strict=True):
                export(run, cell, folder / place)
        except UsageError as error:
            not_exported[part] = first_line(error)
        else:
            shipped[part] = places
    folder.mkdir(parents=True, exist_ok=True)
    # this comes last, so that `has_winners` knows a folder of an interruption to be unfinished
    (folder / PARTS).write_text(json.dumps(shipped, indent=2) + "\n", encoding="utf-8")
    return not_exported


def has_winners(folder: Path) -> bool:
    return (folder / PARTS).exists()


def places_in(folder: Path) -> dict[str, list[str]]:
    """Return the folders of each part's builds within this folder, the most frequent size first. Raise UsageError where
    `ship` has not finished it."""
    try:
        places: dict[str, list[str]] = json.loads((folder / PARTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no winners of a pipeline's parts: {first_line(error)}") from None
    return places


def winners_in(folder: Path, pipeline: object) -> dict[str, Callable[..., Any]]:
    """Load the winner of each part in a folder. A call that no build of a part serves goes to the part's own code."""
    winners: dict[str, Callable[..., Any]] = {}
    for part, places in places_in(folder).items():
        answers: Callable[..., Any] = part_of(pipeline, part).forward
        while (
            isinstance(answers, ShippedModel) and answers.fallback is not None
        ):  # of winners that are in place already
            answers = answers.fallback
        for place in reversed(places):  # the most frequent size is asked first
            answers = load(folder / place, fallback=answers)
        winners[part] = answers
    return winners


def load_parts(folder: str | Path, pipeline: object) -> None:
    """Put the winners that `Result.save` wrote in place of the parts of a pipeline.

    Each part stays the module that it is, with its attributes and weights: only its `forward` is replaced.
    """
    replace_parts(winners_in(Path(folder), pipeline), pipeline)
