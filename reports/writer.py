"""A report on disk: `report.json` is the truth, everything beside it is rendered from that and can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from records.atomic_file import write_atomically
from records.errors import UsageError
from records.report_file import REPORT_JSON, write_json
from records.schema import Report
from reports.cells_csv import to_csv
from reports.markdown import to_markdown
from reports.page import to_html
from reports.sweep_csv import sweep_tables


def write(report: Report, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Writes `report.json`, `cells.csv`, `report.html`, `figures/` and `report.md` into `folder`, in this order.

    Returns the files written by their name within `folder` (`report.md`, `figures/latency.png`). The JSON goes first:
    should a rendering fail, the numbers are safe.
    """
    return {REPORT_JSON: write_json(report, folder)} | render(report, folder, figures)


def render(report: Report, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Writes what is made from `report.json`, and returns it as `write` does."""
    written = {"cells.csv": write_atomically(folder / "cells.csv", to_csv(report))}
    for name, table in sweep_tables(report).items():
        written[name] = write_atomically(folder / name, table)
    written["report.html"] = write_atomically(folder / "report.html", to_html(report))
    drawn: list[Path] = []
    if figures:
        from reports.figures import draw  # matplotlib takes a while to import, and the harness imports this module
        from reports.sweep_figures import draw as draw_sweeps

        drawn = [*draw(report, folder / "figures"), *draw_sweeps(report, folder / "figures")]
        written |= {f"figures/{path.name}": path for path in drawn}
    written["report.md"] = write_atomically(folder / "report.md", to_markdown(report, figures=drawn))
    return written


def draw_together(reports: Sequence[Report], paths: Sequence[Path], folder: Path | None) -> Path:
    """Draws the figures of these reports, as if they were one, into `folder` and returns it.

    `paths` are where they were read from: without a folder it is `figures/` beside a single one. Raises UsageError
    where several have no folder, or nothing in them can be drawn.
    """
    if folder is None and len(paths) > 1:
        raise UsageError("--figures of several reports go together: name a folder for them by --out")
    beside = paths[0] if paths[0].is_dir() else paths[0].parent
    target = folder or beside / "figures"
    from reports.figures import draw

    if not draw(reports, target):
        raise UsageError(f"nothing to draw in {', '.join(map(str, paths))}: no cell has numbers or phases")
    return target
