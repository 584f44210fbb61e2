"""Whole runs, made and read by tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bakeoff.commands import run as runs
from bakeoff.measuring.controller import progress
from bakeoff.planning.request import Request
from bakeoff.records.schema import Cell, Record, Report


class Silent(progress.Silent):
    """A progress that keeps what it was told, and shows nothing."""

    def __init__(self) -> None:
        self.cells: Sequence[Cell] = ()
        self.notes: list[str] = []
        self.ended_labels: list[str] = []
        self.left_s: list[tuple[float, float]] = []
        self.ends_s: list[tuple[float, int]] = []  # when the run ends at the latest, and how many notes there were
        self.now_s: Callable[[], float] = lambda: 0.0

    def planned(self, cells: Sequence[Cell]) -> None:
        self.cells = cells

    def ended(self, record: Record) -> None:
        self.ended_labels.append(record.cell.label)

    def time_left(self, seconds: float, at_most_s: float) -> None:
        self.left_s.append((seconds, at_most_s))
        self.ends_s.append((self.now_s() + at_most_s, len(self.notes)))

    def note(self, text: str) -> None:
        self.notes.append(text)


def measure(folder: Path, *backends: str, progress: Silent | None = None, **fields: object) -> Report:
    """Return the report of a run of `backends` into `folder`.

    It measures `mlp` on the CPU briefly, in one process per cell, unless `fields` say otherwise.
    """
    brief = {"models": ["mlp"], "devices": ["cpu"], "min_time_s": 0.05, "processes": 1}
    asked = {**brief, "backends": backends, **fields}
    report, _ = runs.run(Request(**asked), folder, "test", progress or Silent())
    return report


def by_label(report: Report) -> dict[str, Record]:
    return {record.cell.label: record for record in report.records}
