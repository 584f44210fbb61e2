"""Has a worker find which axes of a model's inputs a dynamic build must leave open, before anything is measured."""

import dataclasses
from collections.abc import Sequence

from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.messages import AxesFound, Failed, FindOpenAxes
from bakeoff.planning.plan import Contest, refusal
from bakeoff.planning.ranges import spell
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell

LIMIT_S = 300.0


def with_open_axes(contests: Sequence[Contest], launchers: Launchers) -> list[Contest]:
    """Return the contests with what a worker finds of those that have cells built for a range: the axes to leave open,
    and the sizes whose weights all cells have, if weights vary with sizes.

    Raises UsageError, in one line, if a model refuses its range.
    """
    known: dict[str, AxesFound] = {}
    return [_completed(contest, launchers, known) for contest in contests]


def _completed(contest: Contest, launchers: Launchers, known: dict[str, AxesFound]) -> Contest:
    dynamic = [planned.cell for planned in contest.cells if planned.cell.dynamic]
    cell = next((cell for cell in dynamic if not refusal(cell)[1]), None)
    if cell is None:
        return contest
    key = cell.range_id
    if key not in known:
        known[key] = _asked(cell, launchers)
    sizes = {name: each.built_at for name, each in cell.dynamic.items()} if known[key].weights_vary else {}
    cells = [
        dataclasses.replace(each, open_axes=known[key].axes if each.cell.dynamic else (), weights_at=sizes)
        for each in contest.cells
    ]
    return dataclasses.replace(contest, cells=tuple(cells))


def _asked(cell: Cell, launchers: Launchers) -> AxesFound:
    launcher = launchers.of_epoch(0)
    log = launcher.temporary / "open-axes.log"
    try:
        event = launcher.ask(FindOpenAxes(cell=cell), log, LIMIT_S)
    except (WorkerEnded, DeadlinePassed) as error:
        raise UsageError(f"{_option(cell)}: {cell.model} was not loaded at these sizes: {error}") from None
    if isinstance(event, Failed):
        raise UsageError(f"{_option(cell)}: {event.failure.sentence}")
    assert isinstance(event, AxesFound)
    return event


def _option(cell: Cell) -> str:
    return f"--dynamic {spell(cell.dynamic)}"
