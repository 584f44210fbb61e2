"""Makes one self-contained page of a report: a file that opens from disk, needs no network, and prints.

Templates, style sheet and script lie in templates/. Text from outside is escaped: by jinja2 in the templates, by the
module that paints the charts, and as JSON without markup characters for the script. The page's own policy allows no
script but this one, which it knows by its hash.
"""

import base64
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import jinja2
from markupsafe import Markup
from pydantic import JsonValue

from bakeoff.judging.compare import CellChange, Comparison
from bakeoff.judging.fit import by_contest
from bakeoff.judging.history import History
from bakeoff.judging.judgement import CellJudgement, ContestJudgement, Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Phase, Record, Report
from bakeoff.records.text import counted, one_line, spell_minutes, visible
from bakeoff.reports import (
    charts,
    comparison,
    cost_report,
    doubt_sentences,
    dynamic,
    headline,
    machine,
    mix,
    number_format,
    sentences,
    suite_report,
)
from bakeoff.reports.charts import Chart, Palette
from bakeoff.reports.columns import BACKEND, STATUS, answers_of, columns_of
from bakeoff.reports.first_screen import first_screen
from bakeoff.reports.further_answers import further_answers
from bakeoff.reports.tables import Column, Surface, T, TableOverSizes, shown_in

NOTE_LIMIT = 90
"""Longest note beside a value, in characters. The details of the cell hold it whole."""

Facts = list[tuple[str, str]]

USUAL_CALLS = 1_000
"""Number of calls at which the slider of the costs begins, unless the user asked for another number."""

_TEMPLATES = Path(__file__).with_name("templates")


def to_page(judgement: Judgement, folder: str = "FOLDER") -> str:
    """Return the whole report as a page. `folder` is that of the run, for the commands at its top."""
    report, contests = judgement.report, judgement.contests
    palette = Palette(row.record for contest in contests for row in contest.cells)
    sections = [
        Section(contest, name, palette, number, report)
        for number, (contest, name) in enumerate(zip(contests, sentences.names(contests), strict=True), 1)
    ]
    return whole_page(
        "report.html.jinja",
        palette,
        title=sentences.title(judgement),
        report=report,
        summary=machine.summary(report),
        answers=shown_in(Surface.PAGE, answers_of(contests), contests),
        headline=headline.first_line(contests[0]) if len(contests) == 1 else "",
        first_screen=first_screen(judgement, folder),
        sections=sections,
        suites=[
            SuiteSection(suite, palette, f"suite-{number}", report, {id(each.contest): each for each in sections})
            for number, suite in enumerate(judgement.suites, 1)
        ],
        sweeps=[
            (
                sentences.sweep_title(swept),
                [Picture(chart, palette) for chart in charts.of_sweep(swept, palette, report)],
            )
            for swept in judgement.sweeps
        ],
        tables_over_sizes=[
            *(_over_sizes(dynamic.table_of(each)) for each in judgement.dynamic_ranges),
            *(_over_sizes(mix.table_of(each)) for each in judgement.mixes),
        ],
        environment=machine.environment_facts(report.environment),
        method=[*report.notes, *machine.method_notes(report)],
        request=json.dumps(report.request, indent=1, ensure_ascii=False),
        costs_title=cost_report.TITLE,
        costs_note=cost_report.NOTE,
        name_column=BACKEND,
        status_column=STATUS,
    )


def to_cell(judgement: Judgement) -> str:
    """Return the answer, table and figure of each contest as the output of a notebook's cell, without a script."""
    report, contests = judgement.report, judgement.contests
    palette = Palette(row.record for contest in contests for row in contest.cells)
    return (
        _templates()
        .get_template("cell.html.jinja")
        .render(
            palette=palette,
            scope=f"b{zlib.crc32(repr(palette.looks).encode()):x}",  # other cells of the notebook have other palettes
            sections=[CellSection(contest, palette, report) for contest in contests],
            first_screen=first_screen(judgement, ""),
            summary=machine.summary(report),
        )
    )


class CellSection:
    """One contest in a notebook's cell: what a terminal shows of it, and its first figure."""

    def __init__(self, contest: ContestJudgement, palette: Palette, report: Report) -> None:
        self.title = contest.title
        self.headline = headline.first_line(contest)
        self.rows = contest.shown
        self.columns = shown_in(Surface.TERMINAL, columns_of([contest]), contest.shown)
        self.told = doubt_sentences.doubts(contest)
        self.pictures = [Picture(chart, palette) for chart in charts.of_contest(contest, palette, report)[:1]]


def _over_sizes(told: TableOverSizes[T]) -> tuple[TableOverSizes[T], list[Column[T]]]:
    return told, shown_in(Surface.PAGE, told.columns, told.rows)


def comparison_to_page(compared: Comparison) -> str:
    """Return two runs as a page: what became faster, slower or broken."""
    contests = by_contest(compared.cells)
    palette = Palette(record for cell in compared.cells if (record := cell.new or cell.base))
    return whole_page(
        "comparison.html.jinja",
        palette,
        title=f"{compared.base.run_id} → {compared.new.run_id}",
        comparison=compared,
        headline=comparison.headline(compared),
        warnings=list(comparison.warnings(compared)),
        sections=[Changes(cells, palette, number) for number, cells in enumerate(contests.values(), 1)],
        method=comparison.method(compared),
        name_column=comparison.CELL,
        status_column=comparison.OUTCOME,
    )


@dataclass(frozen=True)
class Index(Generic[T]):
    """The table of the answers of many runs."""

    rows: Sequence[T]
    columns: Sequence[Column[T]]
    anchor: str = "answers"
    title: str = "answers of all runs"


def site_to_page(
    section: Index[T], runs: Sequence[Any], history: History | None, name_column: Column[T], status_column: Column[T]
) -> str:
    """Return the index of a site: the answers of all runs, links to their reports, and latencies from run to run."""
    records = [record for run in history.runs for record in run.records.values()] if history else []
    palette = Palette(record for record in records if record.latency)
    return whole_page(
        "site.html.jinja",
        palette,
        title=counted(len(runs), "run"),
        summary=sorted({machine.devices(run.judgement.report) for run in runs}),
        section=section,
        runs=runs,
        pictures=[Picture(chart, palette) for chart in charts.of_history(history, palette)] if history else [],
        name_column=name_column,
        status_column=status_column,
    )


class Section:
    """One contest on the page."""

    def __init__(self, contest: ContestJudgement, name: str, palette: Palette, number: int, report: Report) -> None:
        self.contest = contest
        self.name = name
        self.title = contest.title
        self.anchor = f"contest-{number}"
        self.rows = contest.shown
        self._columns = columns_of([contest])
        self.columns = shown_in(Surface.PAGE, self._columns, contest.shown)
        calls = contest.calls or USUAL_CALLS
        self.pictures = [
            Picture(chart, palette, f"{self.anchor}-{chart.name}-calls", calls)
            for chart in charts.of_contest(contest, palette, report)
        ]
        self.finding = sentences.paragraph(contest)
        self.doubts = {
            effect.name.lower(): (
                doubt_sentences.heading(effect, contest),
                doubt_sentences.doubts_with(effect, contest),
            )
            for effect in Effect
        }
        self.remarks = sentences.remarks(contest)
        self.cost_sentences, self.costs = cost_report.sentences(contest), cost_report.table(contest)
        self.answers = further_answers(contest)

    @property
    def drawn(self) -> list[str]:
        """Return the labels that a chart has marks for."""
        return [row.label for row in self.rows if row.record.latency or row.record.phases]

    def facts(self, row: CellJudgement) -> dict[str, Facts]:
        """Return everything that is known of a cell, by groups; a group without a fact is left out."""
        record = row.record
        groups: dict[str, Facts] = {"Until the first answer": _phases(record)}
        for column in self._columns:
            if column.details and (text := column.text_of(row)) not in ("", number_format.NONE):
                groups.setdefault(column.details, []).append((column.heading, _fact(column, row, text)))
        groups |= {
            "Processes": _processes(record),
            "Stages of a call": [
                (stage.name, f"{number_format.milliseconds(stage.median_ms)} ms") for stage in record.stages
            ],
            "Precision in force": _settings(record.precision_in_force),
            "Settings": _settings(record.settings),
            "Versions": sorted(record.versions.items()),
        }
        return {title: facts for title, facts in groups.items() if facts}


class SuiteSection:
    """One suite on the page. `sections` are those of the contests, by the id of each contest's object."""

    def __init__(
        self, suite: Suite, palette: Palette, anchor: str, report: Report, sections: Mapping[int, Section]
    ) -> None:
        self.anchor = anchor
        self.title = suite_report.title(suite)
        self.finding = suite_report.finding(suite)
        self.notes = suite_report.notes(suite)
        self.failures = [suite_report.failure(suite, failures) for failures in suite.failures]
        self.rows, self.labels = suite.rows, suite.labels
        self.columns = shown_in(Surface.PAGE, suite_report.columns_of(suite), suite.rows)
        self.profile_title, self.profile_columns = suite_report.PROFILE, suite_report.profile_columns()
        self.map_title, self.map_columns = suite_report.map_title(suite), suite_report.map_columns(suite)
        self.models = [Model(contest, sections[id(contest)]) for contest in suite.contests]
        self.pictures = [
            Picture(chart, palette) for chart in charts.of_suite(suite, palette, report) if chart.name != "map"
        ]


class Model:
    """One row of the table of models."""

    def __init__(self, contest: ContestJudgement, section: Section) -> None:
        self.contest = contest
        self.name, self.anchor, self.finding = section.name, section.anchor, section.finding
        self.outcome = suite_report.outcome(contest)
        self.failures = [
            f"{cell.label}: {number_format.ending_beside_reason(cell.record)}: {cell.record.reason}"
            for cell in contest.unranked
            if not cell.record.status.is_absence and not cell.beyond
        ]

    def heat(self, label: str) -> Markup:
        """Return the attributes that colour a speed-up: the more, the further it is from 1."""
        strength = suite_report.strength(suite_report.tile(self.contest, label).speedup)
        direction = "faster" if strength > 0 else "slower"
        return Markup(f' style="--heat: var(--{direction}); --share: {abs(strength):.0%}"') if strength else Markup("")


def _fact(column: Column[CellJudgement], row: CellJudgement, text: str) -> str:
    """Return `1.85 [1.80, 1.90] ms (a note)`."""
    note = column.note_of(row)
    return " ".join(part for part in (text, column.interval_of(row), column.unit, note and f"({note})") if part)


def _origin(phase: Phase) -> str:
    """Return who took this phase, and when, if that was not the cell's own process of this run."""
    shared = f", shared with {phase.shared_with}" if phase.shared_with else ""
    return f"{shared}, of {spell_minutes(phase.built_at)}, from the cache" if phase.built_at else shared


def _phases(record: Record) -> Facts:
    warm = record.warm_start.phases if record.warm_start else []
    return [
        (f"{phase.name.replace('_', ' ')}{start}", f"{number_format.seconds(phase.seconds)} s{_origin(phase)}")
        for phases, start in ((record.phases, ""), (warm, ", warm start"))
        for phase in phases
    ]


def _processes(record: Record) -> Facts:
    """Return the median of each process, or nothing if there are fewer than two."""
    medians = [
        (f"process {process.index + 1}, {'warm' if process.warm else 'cold'}", process.median_ms)
        for process in record.processes
        if process.median_ms is not None
    ]
    if len(medians) < 2:
        return []
    spread = record.latency.process_spread if record.latency else None
    return [
        *((name, f"{number_format.milliseconds(median_ms)} ms") for name, median_ms in medians),
        ("slowest over fastest", f"{number_format.percent(spread)} %"),
    ]


def _settings(values: Mapping[str, JsonValue]) -> Facts:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    ]


class Picture:
    """A chart on the page. The costs have a slider with the number of calls, which begins at `calls`."""

    def __init__(self, chart: Chart, palette: Palette, slider: str = "", calls: int = USUAL_CALLS) -> None:
        self.chart = chart
        self.markup = Markup(charts.svg(chart, palette))
        self.slider = slider  # its id
        self.at = max((place for place, stop in enumerate(chart.stops) if stop.calls <= calls), default=0)
        self.stops = [
            {
                "x": charts.place_on_x(chart, stop.calls),
                "said": stop.text,
                "totals": [[palette(label).number, total] for label, total in stop.totals],
            }
            for stop in chart.stops
        ]


class Changes:
    """One contest of two runs on the page."""

    def __init__(self, cells: Sequence[CellChange], palette: Palette, number: int) -> None:
        self.anchor = f"contest-{number}"
        self.title = cells[0].cell.title
        self.rows = cells
        self.columns = shown_in(Surface.PAGE, comparison.columns_of(cells), cells)
        chart = charts.of_change(cells, self.title, palette)
        self.picture = Picture(chart, palette) if chart else None


def whole_page(template: str, palette: Palette, **values: Any) -> str:
    """Return a page of a template of `templates/`, with the style sheet, the script and the markers of this palette."""
    script = _asset("page.js")
    return (
        _templates()
        .get_template(template)
        .render(
            palette=palette,
            swatch=lambda label: Markup(charts.swatch(palette(label))),
            no_swatch=lambda _: "",  # the first marker imports matplotlib, which takes a second
            style=Markup(_asset("page.css")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            **values,
        )
    )


@functools.cache
def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters["visible"] = visible
    environment.filters["why"] = sentences.why
    environment.filters["difference"] = sentences.difference
    environment.filters["ms"] = number_format.milliseconds
    environment.filters["percent"] = number_format.percent
    environment.filters["note"] = lambda text: one_line(text, NOTE_LIMIT)
    return environment
