"""A report as one self-contained page: no network, no libraries, one file that opens from disk and prints.

Templates, style sheet and script lie in templates/. Everything from outside is escaped: text by jinja2's autoescaping,
charts by the element tree they are built as, data for the script as JSON without markup characters. Should anything get
past that, the page's own policy runs no script but ours, which it knows by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from judging.compare import CellChange, Change, Comparison
from judging.costs import STARTS, Start
from judging.judgement import CellJudgement, ContestJudgement, contests_of
from judging.sweeps import sweeps_of
from judging.verdict import BASELINE, title_of
from records.schema import Record, Report
from records.text import visible
from reports import compare_words, cost_report, format, machine, sentences
from reports.charts import Chart, Key, change, charts_of, costs, sweep
from reports.charts.key import DARK, LIGHT
from reports.page_details import Details, details_of
from reports.page_table import Column, Field, columns_of, rank, status

DOUBTS_SHOWN = 4
"""More doubts than these fold away."""

USUAL_CALLS = 1_000
"""Where the slider of the costs stands, unless the run was asked about another number."""

_TEMPLATES = Path(__file__).with_name("templates")


def to_html(report: Report) -> str:
    """The whole report."""
    contests = contests_of(report)
    key = Key([row.label for contest in contests for row in contest.cells])
    return _page(
        "report.html.jinja",
        key,
        title=report.run_id,
        report=report,
        summary=_summary(report),
        incomplete=machine.incomplete(report),
        sections=[Section(contest, key, number) for number, contest in enumerate(contests, 1)],
        sweeps=[(sentences.sweep_title(swept), sweep.charts(swept, key)) for swept in sweeps_of(contests)],
        environment=machine.environment(report.environment),
        method=[*report.notes, *machine.method(report)],
        request=json.dumps(report.request, indent=1, ensure_ascii=False),
        lifetime_note=cost_report.NOTE,
    )


def comparison_to_html(comparison: Comparison) -> str:
    """Two runs: what became faster, slower or broken."""
    contests: dict[str, list[CellChange]] = {}
    for cell in comparison.cells:
        contests.setdefault(cell.cell.contest_id, []).append(cell)
    key = Key([cell.cell.label for cell in comparison.cells])
    return _page(
        "comparison.html.jinja",
        key,
        title=f"{comparison.base.run_id} → {comparison.new.run_id}",
        comparison=comparison,
        headline=compare_words.headline(comparison),
        warnings=list(compare_words.warnings(comparison)),
        sections=[Changes(cells, key, number) for number, cells in enumerate(contests.values(), 1)],
        method=compare_words.method(comparison),
    )


class Section:
    """One contest on the page."""

    def __init__(self, contest: ContestJudgement, key: Key, number: int) -> None:
        self.contest = contest
        self.anchor = f"contest-{number}"
        self.columns: Sequence[Column] = columns_of(contest)
        self.rows = [
            TableRow(row, self.columns, f"{self.anchor}-row-{place}") for place, row in enumerate(contest.cells)
        ]
        self.charts: list[Chart] = charts_of(contest, key)
        self.sliders = [
            Slider(contest, chart, start, key, f"{self.anchor}-calls-{start}")
            for start in STARTS
            if (chart := costs.chart(contest, key, start))
        ]
        self.floor = format.floor(contest.roofline) if contest.roofline else ""
        self.tensor_cores = machine.tensor_cores(contest)
        self.sentences = [*cost_report.sentences(contest), *cost_report.plain_verdicts(contest)]
        self.tables = cost_report.tables(contest)

    @property
    def drawn(self) -> list[str]:
        """Labels that a chart has marks for."""
        return [row.label for row in self.contest.cells if row.record.latency or row.record.phases]


@dataclass(frozen=True)
class TableRow:
    row: CellJudgement
    columns: Sequence[Column]
    anchor: str

    @property
    def rank(self) -> Field:
        return rank(self.row)

    @property
    def status(self) -> Field:
        return status(self.row.record)

    @property
    def fields(self) -> list[tuple[Column, Field]]:
        return [(column, column.field(self.row)) for column in self.columns]

    @property
    def details(self) -> Details:
        return details_of(self.row)


class Slider:
    """The chart of the costs, with the number of calls to be moved along it."""

    def __init__(self, contest: ContestJudgement, chart: Chart, start: Start, key: Key, anchor: str) -> None:
        self.chart = chart
        self.anchor = anchor
        self.stops = costs.stops(contest, start)
        calls = contest.calls or USUAL_CALLS
        self.at = max(place for place, stop in enumerate(self.stops) if place == 0 or stop.calls <= calls)
        across = costs.scale_of_calls()
        self.data: list[dict[str, Any]] = [
            {
                "x": round(across(stop.calls), 1),
                "said": stop.said,
                "totals": [[key.number(label), total] for label, total in stop.totals],
            }
            for stop in self.stops
        ]


class Changes:
    """One contest of two runs on the page."""

    def __init__(self, cells: Sequence[CellChange], key: Key, number: int) -> None:
        self.anchor = f"contest-{number}"
        self.title = title_of(cells[0].cell)
        self.chart = change.chart(cells, self.title, key)
        self.rows = [(cell, _change_fields(cell)) for cell in cells]


def _change_fields(cell: CellChange) -> list[Field]:
    return [
        _median(cell.base),
        _median(cell.new),
        _change(cell.raw),
        _change(cell.normalised),
        _between(*(format.seconds(each.build_s) if each and each.phases else "" for each in (cell.base, cell.new))),
        _between(*(_peak(each) for each in (cell.base, cell.new))),
    ]


def _median(record: Record | None) -> Field:
    latency = record.latency if record else None
    return Field(format.milliseconds(latency.median_ms), latency.median_ms) if latency else Field(format.NONE)


def _change(found: Change | None) -> Field:
    if found is None:
        return Field(format.NONE)
    spelt, _, interval = compare_words.spell_change(found).partition(" [")
    return Field(spelt, found.log, f"[{interval}" if interval else "")


def _between(base: str, new: str) -> Field:
    if not base and not new:
        return Field(format.NONE)
    return Field(new if base == new else f"{base or format.NONE} → {new or format.NONE}")


def _peak(record: Record | None) -> str:
    return format.mebibytes(format.peak_memory(record)[0]) if record and record.memory else ""


def _summary(report: Report) -> list[str]:
    """Where and when, in a line."""
    found = report.environment
    torch = f"torch {found.versions['torch']}" if "torch" in found.versions else ""
    return [part for part in (machine.machine(found), torch, f"Python {found.python}", report.created_at) if part]


def _page(template: str, key: Key, **values: Any) -> str:
    script = _asset("page.js")
    return (
        _templates()
        .get_template(template)
        .render(
            key=key,
            style=Markup(_asset("page.css")),
            light=key.colours(LIGHT),
            dark=key.colours(DARK),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            doubts_shown=DOUBTS_SHOWN,
            none=format.NONE,
            baseline=BASELINE,
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
    return environment
