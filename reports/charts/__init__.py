"""Every chart is described once, as plain values, and painted by matplotlib for the page and for files.

`paint` and `clean_svg` import matplotlib, only when something is painted: importing the writer must not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from judging.contest import ContestJudgement
from judging.costs import STARTS
from judging.history import History
from judging.judgement import Judgement
from reports import findings
from reports.charts import building, calls, speed
from reports.charts.change import of_change
from reports.charts.chart import Chart, Stop
from reports.charts.costs import costs
from reports.charts.palette import Look, Palette
from reports.charts.roofline import roofline
from reports.charts.sweep import compiled_attention, compiled_language_models, of_sweep

__all__ = ["CHARTS_PER_FILE", "Chart", "Palette", "Stop", "draw", "draw_history", "of_change", "of_contest", "of_sweep",
           "place_on_x", "svg", "swatch"]  # fmt: skip

CHARTS_PER_FILE = 12
"""More contests than these go to a further file: `latency-2.png`."""

_ON_PAGES = {"drift", "roofline"}
"""Charts that are drawn on the page only."""

_MAKERS: list[Callable[[ContestJudgement, Palette], Chart | None]] = [
    speed.latency,
    speed.speedup,
    building.build_vs_speedup,
    building.pareto,
    *(partial(costs, start=start) for start in STARTS),
    building.phases,
    calls.samples,
    calls.drift,
    roofline,
]


def of_contest(contest: ContestJudgement, palette: Palette) -> list[Chart]:
    """Return the charts of a contest that have something to show."""
    return [chart for make in _MAKERS if (chart := make(contest, palette))]


def svg(chart: Chart, palette: Palette) -> str:
    """Return a chart for the page, whose style sheet names the colours."""
    from reports.charts.paint import page_svg

    return page_svg(chart, palette.variables)


def swatch(look: Look) -> str:
    """Return the marker of a configuration in its colour, for a legend of the page and beside a name."""
    from reports.charts.paint import marker_svg

    path = marker_svg(look.marker)
    return f'<svg viewBox="-8 -8 16 16" class="swatch k{look.number}" aria-hidden="true">{path}</svg>'


def place_on_x(chart: Chart, value: float) -> float:
    """Return where a value of the x axis stands in the chart's SVG."""
    from reports.charts import paint

    return paint.place_on_x(chart, value)


def draw(judgement: Judgement, folder: Path) -> list[Path]:
    """Write all figures that have something to show into `folder` as PNG and SVG, and return the files."""
    contests = judgement.contests
    palette = Palette(cell.label for contest in contests for cell in contest.cells)
    charts: dict[str, list[Chart]] = {}
    for chart in (chart for contest in contests for chart in of_contest(contest, palette)):
        if chart.name not in _ON_PAGES:
            charts.setdefault(chart.name, []).append(chart)
    for chart in (chart for sweep in judgement.sweeps for chart in of_sweep(sweep, palette)):
        charts.setdefault(chart.name, []).append(chart)
    headlines = findings.headlines(contests, judgement.sweeps)
    files = _draw(charts, headlines, folder)
    worth = {"sweep-seq": compiled_attention(contests), "sweep-size": compiled_language_models(contests)}
    return files + _draw({name: found for name, found in worth.items() if found}, headlines, folder)


def draw_history(history: History, folder: Path) -> list[Path]:
    """Write `history.png` and `history.svg`, and further files for many contests; nothing if no run has a latency."""
    from reports.charts.history import of_history

    return _draw({"history": of_history(history)}, {"history": ""}, folder)


def _draw(charts: dict[str, list[Chart]], headlines: dict[str, str], folder: Path) -> list[Path]:
    from reports.charts.paint import save

    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, found in charts.items():
        for page, start in enumerate(range(0, len(found), CHARTS_PER_FILE), 1):
            stem = name if page == 1 else f"{name}-{page}"
            files += save(found[start : start + CHARTS_PER_FILE], headlines[name], folder / stem)
    return files
