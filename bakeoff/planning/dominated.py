"""Which cells of `best` need not be built, by what is known before anything is: pure."""

from collections.abc import Sequence

from bakeoff import backends
from bakeoff.backends.base import Mode
from bakeoff.judging.ranking import baseline_of
from bakeoff.planning.plan import PlannedCell
from bakeoff.records.errors import BakeoffError

SHORT_CALL_MS = 1.0
"""Where eager's call is shorter, launching kernels is a large part of it. A CUDA graph launches them at once."""

LONG_CALL_MS = 10.0
"""Where eager's call is longer and the GPU never waits for the host, a CUDA graph saves microseconds of it."""

HIDDEN_SHARE = 0.5
"""The GPU never waits for a host that takes at most this share of the call to hand its work over."""


def dominated(cells: Sequence[PlannedCell], call_ms: float, host_ms: float) -> dict[str, tuple[str, str]]:
    """Return by id the cells of `best` that need not be built, each with the cell that is built instead and why.

    Of a mode and the CUDA graphs of its code, one is left out on a GPU, but never the baseline. Eager's call takes
    `call_ms`, and the host hands its work over in `host_ms`.
    """
    found = {}
    baseline = baseline_of([planned.cell for planned in cells])
    a_graph_saves_nothing = call_ms >= LONG_CALL_MS and host_ms <= HIDDEN_SHARE * call_ms
    for planned in cells:
        mode = _mode_of(planned)
        if mode is None or not planned.of_best or not planned.cell.device.is_cuda or planned.cell.label == baseline:
            continue
        for other in cells:
            its = _mode_of(other)
            if its is None or other.cell.backend != planned.cell.backend or its.code_of != mode.code_of:
                continue
            if a_graph_saves_nothing and _replays(mode) and not _replays(its):
                why = f"a call of eager takes {call_ms:.3g} ms, of which a CUDA graph could save next to nothing"
            elif mode.replays and its.captures and not a_graph_saves_nothing:
                why = f"{other.cell.label} replays the same code, without what the library does before each replay"
            elif its.captures and not _replays(mode) and call_ms < SHORT_CALL_MS:
                why = f"{other.cell.label} replays the same code, and a call of eager takes {call_ms:.2g} ms"
            else:
                continue
            found[planned.cell.id] = (other.cell.label, why)
    return found


def _replays(mode: Mode) -> bool:
    return mode.captures or bool(mode.replays)


def _mode_of(planned: PlannedCell) -> Mode | None:
    """Return the mode of a cell that builds for one size in our own environment, or None."""
    cell = planned.cell
    try:
        return None if cell.dynamic or cell.environment else backends.create(cell.backend).mode(cell.mode)
    except BakeoffError:
        return None
