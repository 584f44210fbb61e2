"""A report as figures: PNG to embed, SVG to keep; a file for each figure. One colour per backend throughout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judging.judgement import judge_together
from records.schema import Report
from reports.figure_style import Looks, save, styled
from reports.figures import build_vs_speedup, costs, latency, pareto, phases, samples, speedup, sweep
from reports.figures.panels import PANELS_PER_FIGURE, Drawing, figure_of


def draw(reports: Report | Sequence[Report], folder: Path) -> list[Path]:
    """Writes every figure that has something to show into `folder`, as PNG and SVG, and returns the files written.

    Several reports are drawn together, as if they were one.
    """
    judged = judge_together([reports] if isinstance(reports, Report) else reports)
    looks = Looks(row.label for contest in judged.contests for row in contest.cells)
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        files = [file for drawing in _OF_CONTESTS for file in _draw(drawing, judged.contests, looks, folder)]
        return files + [file for drawing in sweep.DRAWINGS for file in _draw(drawing, judged.sweeps, looks, folder)]


_OF_CONTESTS = [
    latency.DRAWING,
    speedup.DRAWING,
    build_vs_speedup.DRAWING,
    costs.drawing_of("cold"),
    costs.drawing_of("warm"),
    pareto.DRAWING,
    phases.DRAWING,
    samples.DRAWING,
]


def _draw(drawing: Drawing[Any], subjects: Sequence[Any], looks: Looks, folder: Path) -> list[Path]:
    shown = [subject for subject in subjects if drawing.shows(subject)]
    files: list[Path] = []
    for page, start in enumerate(range(0, len(shown), PANELS_PER_FIGURE), 1):
        stem = drawing.name if page == 1 else f"{drawing.name}-{page}"
        files += save(figure_of(drawing, shown[start : start + PANELS_PER_FIGURE], looks), folder / stem)
    return files
