"""Every chart is described once, as plain values, and painted by matplotlib for the page and for files.

`paint` and `clean_svg` import matplotlib, only when something is painted: importing the writer must not.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.history import History
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.start_times import StartsJudgement
from bakeoff.judging.suites import Suite
from bakeoff.judging.sweeps import Sweep
from bakeoff.records.schema import Report
from bakeoff.records.start_samples import Starts
from bakeoff.reports import findings, machine
from bakeoff.reports.charts import fronts, rates, rows
from bakeoff.reports.charts.chart import Chart, Charts, Stop
from bakeoff.reports.charts.costs import costs
from bakeoff.reports.charts.history import of_history
from bakeoff.reports.charts.palette import Look, Palette
from bakeoff.reports.charts.rows import of_change
from bakeoff.reports.charts.suite import profile, speedup_map
from bakeoff.reports.charts.sweep import compiled_attention, compiled_language_models, sweep_charts
from bakeoff.reports.start_report import headline

__all__ = ["CHARTS_PER_FILE", "Chart", "Charts", "Palette", "Stop", "draw", "draw_history", "draw_starts",
           "latencies_svg", "of_change", "of_contest", "of_history", "of_suite", "of_sweep", "place_on_x", "svg",
           "swatch"]  # fmt: skip

CHARTS_PER_FILE = 12
"""More contests than these go to a further file: `latency-2.svg`."""

_ON_PAGES = {"drift", "roofline"}
"""Charts that are drawn on the page only."""

_IN_SWEEPS = {"latency", "speedup"}
"""Charts of a contest that say what those of its sweep say."""

_MAKERS: list[Callable[[ContestJudgement, Palette], Chart | None]] = [
    rates.load,
    rows.latency,
    rows.speedup,
    fronts.speed_over_error,
    fronts.pareto,
    costs,
    rows.phases,
    rows.samples,
    rows.drift,
    rates.roofline,
    rows.starts,
]


def of_contest(contest: ContestJudgement, palette: Palette, report: Report) -> list[Chart]:
    return [_of_report(chart, report) for make in _MAKERS if (chart := make(contest, palette))]


def of_sweep(sweep: Sweep, palette: Palette, report: Report) -> list[Chart]:
    return [_of_report(chart, report) for chart in sweep_charts(sweep, palette)]


def of_suite(suite: Suite, palette: Palette, report: Report) -> list[Chart]:
    return [_of_report(chart, report) for make in (profile, speedup_map) if (chart := make(suite, palette))]


def svg(chart: Chart, palette: Palette) -> str:
    from bakeoff.reports.charts.paint import page_svg

    return page_svg(chart, palette.variables)


def swatch(look: Look) -> str:
    from bakeoff.reports.charts.paint import marker_svg

    path = marker_svg(look.marker)
    return f'<svg viewBox="-8 -8 16 16" class="swatch k{look.number}" aria-hidden="true">{path}</svg>'


def place_on_x(chart: Chart, value: float) -> float:
    from bakeoff.reports.charts import paint

    return paint.place_on_x(chart, value)


def draw(judgement: Judgement, folder: Path, png: bool = False) -> list[Path]:
    """Write all figures that have something to show into `folder` as SVG, also as PNG if asked, and return the files.
    The contests of a sweep have no figures of their own, because the sweep's show them."""
    contests, sweeps = judgement.contests, judgement.sweeps
    palette = Palette(cell.record for contest in contests for cell in contest.cells)
    subjects = findings.subjects(contests)
    swept = {id(contest) for sweep in sweeps for contest in sweep.contests}
    charts: defaultdict[str, list[Chart]] = defaultdict(list)
    for place, contest in enumerate(contests):
        left_out = _ON_PAGES | (_IN_SWEEPS if id(contest) in swept else set())
        for chart in of_contest(contest, palette, _report_of(contest, judgement)):
            if chart.name not in left_out:
                charts[chart.name].append(replace(chart, subject=subjects[place]))
    for suite in judgement.suites:
        for chart in of_suite(suite, palette, _report_of(suite.contests[0], judgement)):
            charts[chart.name].append(chart)
    for sweep in sweeps:
        for chart in of_sweep(sweep, palette, _report_of(sweep.contests[0], judgement)):
            charts[chart.name].append(chart)
    for chart in (*compiled_attention(contests), *compiled_language_models(contests)):
        charts[chart.name].append(_of_report(chart, judgement.report))
    headlines = findings.headlines(contests, sweeps)
    titles = {name: findings.so_far(text, *judgement.reports) for name, text in headlines.items()}
    return _draw(charts, {name: title[0].upper() + title[1:] for name, title in titles.items()}, folder, png)


def draw_history(history: History, folder: Path) -> list[Path]:
    """Write `history.png` and `history.svg`, and further files for many contests; nothing if no run has a latency."""
    return _draw({"history": of_history(history)}, {"history": ""}, folder, png=True)


def draw_starts(judged: StartsJudgement, measured: Starts, folder: Path) -> list[Path]:
    origin = f"{measured.machine}, Python {measured.python}, {measured.created_at[:10]}"
    chart = rows.starts_chart(judged, measured.title, headline(judged), origin)
    return _draw({"starts": [chart]}, {"starts": ""}, folder, png=False)


def latencies_svg(judgement: Judgement) -> str | None:
    from bakeoff.reports.charts.paint import file_svg

    palette = Palette(cell.record for contest in judgement.contests for cell in contest.cells)
    subjects = findings.subjects(judgement.contests)
    drawn = [
        replace(_of_report(chart, _report_of(contest, judgement)), subject=subjects[place])
        for place, contest in enumerate(judgement.contests)
        if (chart := rows.latency(contest, palette))
    ]
    return file_svg(drawn[:CHARTS_PER_FILE], "") if drawn else None


def _of_report(chart: Chart, report: Report) -> Chart:
    where = machine.origin(report.environment, report.records, report.created_at[:10])
    return replace(chart, finding=findings.so_far(chart.finding, report), origin=where)


def _report_of(contest: ContestJudgement, judgement: Judgement) -> Report:
    return next(
        report
        for report in judgement.reports
        if contest.run_id in (None, report.run_id)
        and any(record.cell.contest_id == contest.contest_id for record in report.records)
    )


def _draw(charts: dict[str, list[Chart]], headlines: dict[str, str], folder: Path, png: bool) -> list[Path]:
    if not charts:
        return []
    from bakeoff.reports.charts import paint

    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, charts_of_name in charts.items():
        for page, start in enumerate(range(0, len(charts_of_name), CHARTS_PER_FILE), 1):
            shown, stem = charts_of_name[start : start + CHARTS_PER_FILE], name if page == 1 else f"{name}-{page}"
            files += [paint.save_png(shown, headlines[name], folder / f"{stem}.png")] if png else []
            files.append(paint.save_svg(shown, headlines[name], folder / f"{stem}.svg"))
    return files
