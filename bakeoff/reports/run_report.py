"""The report of a run as blocks: one list for report.md, details.md and the page, and one for a terminal.

A terminal shows the answers last, where its reader looks. A contest is the same blocks on all of them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bakeoff.judging.doubts_of_winner import TOLD_ONCE
from bakeoff.judging.judgement import CellJudgement, ContestJudgement, Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.doubts import Effect
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Status
from bakeoff.records.text import again, counted, one_line, visible
from bakeoff.reports import (
    charts,
    cost_report,
    end_to_end,
    findings,
    first_screen,
    generation,
    headline,
    load_report,
    machine,
    markdown,
    number_format,
    page,
    precisions,
    sentences,
    start_report,
    suite_report,
    terminal,
    traits,
)
from bakeoff.reports.blocks import Block, Code, Items, Links, Look, Picture, Section, Surface, Text, shown
from bakeoff.reports.cell_details import details_of
from bakeoff.reports.charts import Palette
from bakeoff.reports.charts.chart import Charts
from bakeoff.reports.columns import STATUS, anchor, answers_of, columns_of
from bakeoff.reports.over_sizes import OverSizes, over_sizes
from bakeoff.reports.tables import Column, Table, text_table

DETAILS_MD = "details.md"

MOST_CONTESTS = 6
"""So many contests have a section in the short report. `details.md` has the others."""

MOST_SECTIONS = 8
"""With suites and more contests than these, a terminal has only a line for each contest."""

COMMANDS_SHOWN = 3
"""Number of commands for one purpose that a terminal shows."""

FAILURES_SHOWN = 12
"""Number of reasons for failing that a terminal shows."""

_FILES = Surface.MARKDOWN | Surface.PAGE


def to_markdown(judgement: Judgement, figures: Sequence[Path | str] = ()) -> str:
    """Return `details.md`. `figures` are files under `figures/` beside it; those that are SVG are embedded."""
    report = Section(sentences.title(judgement), blocks_of(judgement, ".", figures=figures), level=1)
    return markdown.render([report])


def to_short_markdown(judgement: Judgement, folder: Path, figures: Sequence[Path | str] = ()) -> str:
    """Return `report.md` of the run in `folder`. Of `figures`, the one that shows most is embedded."""
    report = Section(sentences.title(judgement), blocks_of(judgement, str(folder), figures=figures), level=1)
    return markdown.render([report], Surface.SHORT)


def to_page(judgement: Judgement, folder: str = "FOLDER") -> str:
    palette = Palette(row.record for contest in judgement.contests for row in contest.cells)
    blocks = blocks_of(judgement, folder, palette)
    return page.render(sentences.title(judgement), blocks, palette, machine.summary(judgement.report))


def to_cell(judgement: Judgement) -> str:
    palette = Palette(row.record for contest in judgement.contests for row in contest.cells)
    blocks: list[Block] = [Text(said.answer, Look.STRONG) for said in over_sizes(judgement)]
    for contest in judgement.contests:
        figures = charts.of_contest(contest, palette, judgement.report)[:1]
        blocks += [
            Text(contest.title, Look.SOFT),
            Text(headline.first_line(contest), Look.STRONG),
            _cells(contest),
            Items(sentences.doubts(contest), look=Look.UNSURE),
            Charts(figures),
        ]
    blocks += [*_what_to_know(judgement), Text(" · ".join(machine.summary(judgement.report)), Look.SOFT)]
    return page.render_cell(blocks, palette)


def print_report(judgement: Judgement, console: Console, folder: str = "FOLDER", is_kept: bool = True) -> None:
    has_sections = not judgement.suites or len(judgement.contests) <= MOST_SECTIONS
    blocks: list[Block] = [
        *(Section(contest.title, _contest(contest)) for contest in judgement.contests if has_sections),
        *(Section(suite_report.title(suite), _suite(suite)) for suite in judgement.suites),
        *map(_over_sizes, over_sizes(judgement)),
        Items(traits.about_models(judgement.contests), bullet="* "),
        Text(first_screen.not_tried(judgement), Look.SOFT),
    ]
    terminal.print_blocks(blocks, console)
    print_answers(judgement, console, folder, is_kept)


def print_answers(judgement: Judgement, console: Console, folder: str = "FOLDER", is_kept: bool = True) -> None:
    contests, commands = judgement.contests, first_screen.commands(judgement, folder, is_kept)
    commands.pop(first_screen.AGAIN, None)  # it was just typed
    answers = [*map(suite_report.answer, judgement.suites), *(said.answer for said in over_sizes(judgement))]
    paths = {kind: str(Path(folder, file)) for kind, file in {"Report": "report.md", "Page": "report.html"}.items()}
    blocks: list[Block] = [
        *_commands({purpose: _first_commands(lines) for purpose, lines in commands.items()}),
        Text(machine.variables_to_set(judgement.report.environment) if commands else ""),
        Links(list(paths.items()) if is_kept else []),
        Text("" if is_kept else f"{folder} keeps the answer that it had: --keep replaces it by this one.", Look.SOFT),
        *(Text(text, Look.WARNING) for text in first_screen.unfinished(judgement)),
        Text(first_screen.whether_to_ship(contests)),
        Table(answers_of(contests), contests, look=_look_of_answer, has_headings=False),
        *(Text(text, Look.STRONG) for text in answers),
    ]
    terminal.print_blocks(blocks, console)


def blocks_of(
    judgement: Judgement, folder: str, palette: Palette | None = None, figures: Sequence[Path | str] = ()
) -> list[Block]:
    """Return the report of the run in `folder`. A page has charts in the colours of `palette`, Markdown `figures`."""
    contests, to_set = judgement.contests, machine.variables_to_set(judgement.report.environment)
    commands = _commands(first_screen.commands(judgement, folder), MOST_CONTESTS)
    summary = " · ".join(machine.summary(judgement.report))
    pictures, first_picture = _pictures(judgement, figures)
    of_contests = []
    for number, contest in enumerate(contests, 1):
        drawn = charts.of_contest(contest, palette, judgement.report) if palette else []
        on = ~Surface.TERMINAL if number <= MOST_CONTESTS else _FILES
        of_contests.append(Section(contest.title, _contest(contest, drawn), anchor=anchor(number), on=on))
    others = [
        pictures,
        Section("What failed", _failures(judgement), anchor="failed", on=Surface.MARKDOWN),
        Section("Reproduce", _reproduce(judgement), anchor="reproduce", on=Surface.MARKDOWN),
        Section("How it was measured", _method(judgement), anchor="method", on=_FILES),
        Section("Environment", _environment(judgement), anchor="environment", on=_FILES),
    ]
    over = (
        [
            Section("Over models", _over_models(judgement, palette), anchor="models"),
            Section("Over sizes", _sweeps(judgement, palette), anchor="sweeps"),
        ]
        if palette
        else []
    )
    return [
        Text(summary, Look.SOFT, on=Surface.MARKDOWN),
        *(block for suite in judgement.suites for block in _suite_answer(suite)),
        *(Text(said.answer, Look.STRONG) for said in over_sizes(judgement)),
        *_answers(contests),
        *_what_to_know(judgement),
        Section("What to run now", [*commands, Text(to_set)], on=Surface.SHORT | Surface.PAGE),
        *(_contents(contests, [*over, *others], surface) for surface in (Surface.MARKDOWN, Surface.PAGE)),
        *over,
        *(replace(_over_sizes(said), on=_FILES) for said in over_sizes(judgement)),
        *of_contests,
        *others,
        Text(f"Further contests in {DETAILS_MD}: {len(contests) - MOST_CONTESTS}."
             if len(contests) > MOST_CONTESTS else "", on=Surface.SHORT),
        *first_picture,
        Text(summary, Look.SOFT, on=Surface.SHORT),
        Links([(DETAILS_MD, DETAILS_MD)], "Everything else, as on the page report.html", on=Surface.SHORT),
    ]  # fmt: skip


def _answers(contests: Sequence[ContestJudgement]) -> list[Block]:
    if not contests:
        return [Text("No cell has ended yet.")]
    if len(contests) == 1:
        return [Text(headline.first_line(contests[0]), _look_of_answer(contests[0]))]
    label = "Who wins each contest, and how sure that is"
    return [
        Table(answers_of(contests, linked), contests, label=label, look=_look_of_answer, on=on)
        for linked, on in ((MOST_CONTESTS, Surface.SHORT), (len(contests), ~Surface.SHORT))
    ]


def _look_of_answer(contest: ContestJudgement) -> Look:
    return Look.UNSURE if headline.is_unsure(contest) else Look.STRONG


def _what_to_know(judgement: Judgement) -> list[Block]:
    cannot_run = [Items(first_screen.why_not(judgement))]
    return [
        *(Text(text, Look.WARNING) for text in first_screen.unfinished(judgement)),
        Text(first_screen.whether_to_ship(judgement.contests)),
        Items(traits.about_models(judgement.contests)),
        Text(first_screen.not_tried(judgement), Look.SOFT),
        Section("Why some backends cannot run", cannot_run, is_folded=True, on=_FILES),
    ]


def _commands(commands: Mapping[str, Sequence[str]], most: int | None = None) -> list[Block]:
    return [
        Code("\n".join(lines[:most]), "sh", f"{purpose[0].upper()}{purpose[1:]}") for purpose, lines in commands.items()
    ]


def _first_commands(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - COMMANDS_SHOWN
    return [*lines[:COMMANDS_SHOWN], *([f"and {rest} more, in report.md"] if rest > 0 else [])]


def _contents(contests: Sequence[ContestJudgement], others: Sequence[Section], surface: Surface) -> Links:
    links = [(name, f"#{anchor(number)}") for number, name in enumerate(sentences.names(contests), 1)]
    links += [(section.title, f"#{section.anchor}") for section in others if shown([section], surface)]
    return Links(links if len(contests) > 1 else [], "Contents", on=surface)


def _contest(contest: ContestJudgement, figures: Sequence[charts.Chart] = ()) -> list[Block]:
    drawn = [row.label for row in contest.shown if row.record.latency or row.record.phases]
    return [
        Text(sentences.paragraph(contest), _look_of_answer(contest), on=_FILES),
        Text(sentences.paragraph(contest), on=~_FILES),
        replace(_cells(contest), on=~Surface.TERMINAL),
        *_cells_in_terminal(contest),
        Items(sentences.remarks(contest), look=Look.SOFT, bullet="= "),
        *(block for effect in Effect for block in _doubts(contest, effect)),
        Charts(figures, drawn, contest.calls),
        *_further_answers(contest),
        *cost_report.sections(contest),
    ]


def _cells(contest: ContestJudgement) -> Table[CellJudgement]:
    columns = columns_of([contest])
    details = partial(details_of, columns=columns)
    return Table(columns, contest.shown, label=f"Cells of {contest.title}", look=_look, details=details, status=STATUS)


def _look(row: CellJudgement) -> Look:
    if row.rank:
        return Look.STRONG if row.rank == 1 else Look.PLAIN
    status = row.record.status
    return Look.FAILED if status.is_failure else Look.ABSENT if status.is_absence else Look.PLAIN


def _cells_in_terminal(contest: ContestJudgement) -> list[Block]:
    has_numbers = any(row.record.phases or row.latency for row in contest.shown)
    tried = [row for row in contest.shown if row.record.status not in TOLD_ONCE]
    failed = [row for row in contest.shown if row.record.status is not Status.OK]
    alike = grouped(failed, lambda row: (number_format.ending_beside_reason(row.record), row.record.reason))
    failures = [
        f"{', '.join(row.label for row in rows)} {': '.join(filter(None, ending))}" for ending, rows in alike.items()
    ]
    return [
        Table(columns_of([contest]), tried if has_numbers else [], look=_look, on=Surface.TERMINAL),
        Items(failures, bullet="x ", on=Surface.TERMINAL),
    ]


def _doubts(contest: ContestJudgement, effect: Effect) -> list[Block]:
    doubts, title = sentences.doubts_with(effect, contest), sentences.heading_of_doubts(effect, contest)
    if effect is not Effect.NONE:
        return [Items(doubts, title, Look.UNSURE)]
    remarks = Section(title, [Items(doubts, look=Look.UNSURE)], is_folded=True, on=_FILES)
    return [remarks, Items(doubts, title, on=Surface.TERMINAL)]


def _further_answers(contest: ContestJudgement) -> list[Section]:
    sections: list[tuple[str, list[str], list[Table[Any]]]] = []
    if contest.of_precisions:
        sections.append(("The fastest of each precision", precisions.sentences(contest), []))
    if whole := contest.end_to_end:
        sections.append(("Whole requests", end_to_end.sentences(whole), [end_to_end.table(whole)]))
    if load := contest.load:
        sections.append(("Under load", load_report.sentences(contest, load), load_report.tables(load)))
    if made := contest.generation:
        sections.append(("Whole generations", generation.sentences(made), generation.tables(made)))
    if starts := contest.starts:
        sections.append(("What it takes to start", start_report.sentences(starts), [start_report.table(starts, True)]))
    return [Section(heading, [Items(said, bullet="= "), *tables], level=3) for heading, said, tables in sections]


def _suite_answer(suite: Suite) -> list[Block]:
    """Return the answer of a suite, and in details its table, what failed, and folded away every model."""
    folded: dict[str, Table[Any]] = {
        suite_report.PROFILE: Table(suite_report.profile_columns(), suite.rows),
        suite_report.map_title(suite): Table(suite_report.map_columns(suite), suite.contests),
    }
    return [
        Text(suite_report.answer(suite), Look.STRONG),
        *(replace(block, on=block.on & _FILES) for block in _suite(suite)[1:]),
        *(Section(title, [table], is_folded=True, on=Surface.MARKDOWN) for title, table in folded.items()),
    ]


def _suite(suite: Suite) -> list[Block]:
    failures = [suite_report.failure(suite, failures) for failures in suite.failures]
    rest = len(failures) - FAILURES_SHOWN
    more = [f"and {counted(rest, 'more reason')}, which the report has"] if rest > 0 else []
    return [
        Text(f"{suite_report.finding(suite)}."),
        Table(suite_report.columns_of(suite), suite.rows, label=suite_report.title(suite)),
        Items(suite_report.notes(suite)),
        Items(failures, "What failed", on=~Surface.TERMINAL),
        Items([*failures[:FAILURES_SHOWN], *more], bullet="x ", on=Surface.TERMINAL),
    ]


def _over_models(judgement: Judgement, palette: Palette) -> list[Block]:
    names = dict(zip(map(id, judgement.contests), sentences.names(judgement.contests), strict=True))
    numbers = {id(contest): number for number, contest in enumerate(judgement.contests, 1)}

    def details(contest: ContestJudgement) -> list[Block]:
        failures = [
            f"{cell.label}: {number_format.ending_beside_reason(cell.record)}: {cell.record.reason}"
            for cell in contest.unranked
            if not cell.record.status.is_absence and not cell.beyond
        ]
        link = f"All of {names[id(contest)]}", f"#{anchor(numbers[id(contest)])}"
        return [Text(sentences.paragraph(contest)), Items(failures), Links([link])]

    def section(suite: Suite) -> Section:
        figures = [chart for chart in charts.of_suite(suite, palette, judgement.report) if chart.name != "map"]
        models = Table(suite_report.map_columns(suite), suite.contests, suite_report.map_title(suite), details=details,
                       status=Column("outcome", suite_report.outcome, surfaces=Surface.NONE))  # fmt: skip
        profile = Table(suite_report.profile_columns(), suite.rows, suite_report.PROFILE)
        return Section(suite_report.title(suite), [Charts(figures, suite.labels), profile, models], level=3)

    return list(map(section, judgement.suites))


def _sweeps(judgement: Judgement, palette: Palette) -> list[Block]:
    return [
        Section(sentences.sweep_title(sweep), [
            Charts(charts.of_sweep(sweep, palette, judgement.report), palette.labels)
        ], level=3)
        for sweep in judgement.sweeps
    ]  # fmt: skip


def _over_sizes(said: OverSizes) -> Section:
    """Return a table over sizes, and in a terminal what stands beside its values."""
    table = said.table
    notes = [
        f"{table.columns[0].text_of(row)}, {column.heading} {column.text_of(row)}: {note}"
        for row in table.rows
        for column in table.columns
        if (note := column.note_of(row))
    ]
    beside = Items(notes, bullet="~ ", on=Surface.TERMINAL)
    return Section(said.title, [Text(f"{said.finding}.", Look.STRONG), table, beside, Text(said.note, Look.SOFT)])


_OF_SUITES = ("profile", "map")

_SHOWN = ("latency", "load", "precisions", "sweep-latency", "sweep-speedup", "sweep-dynamic")
"""Figures that details.md shows, unless there are those of suites; the others fold away."""

_OF_MOST = ("load", "costs", "profile", "sweep-latency", "sweep-dynamic", "precisions", "latency")
"""The short report shows the first of these that was drawn. Costs are shown if they were asked for."""


def _pictures(judgement: Judgement, figures: Sequence[Path | str]) -> tuple[Section, list[Picture]]:
    """Return the figures that are SVG: the section of all of them, and for the short report the one that shows most."""
    said = findings.headlines(judgement.contests, judgement.sweeps)
    drawn = {path.stem: path for path in map(Path, figures) if path.suffix == ".svg"}

    def picture(stem: str, on: Surface = Surface.MARKDOWN) -> Picture:
        name, number = re.fullmatch(r"(.*?)(?:-(\d+))?", stem).groups()  # type: ignore[union-attr]  # it always matches
        caption = said.get(name, name) + (f" ({number})" if number else "")
        return Picture(f"figures/{drawn[stem].name}", f"{caption[0].upper()}{caption[1:]}", on=on)

    first = [stem for stem in drawn if stem in _OF_SUITES] or [stem for stem in drawn if stem in _SHOWN]
    others = [picture(stem) for stem in drawn if stem not in first]
    costs_were_asked = any(contest.calls for contest in judgement.contests)
    of_most = [stem for stem in _OF_MOST if stem in drawn and (costs_were_asked or stem != "costs")]
    blocks = [*map(picture, first), Section("All the others", others, is_folded=True)]
    section = Section("Figures", blocks, anchor="figures", on=Surface.MARKDOWN)
    return section, [picture(stem, Surface.SHORT) for stem in of_most[:1]]


def _failures(judgement: Judgement) -> list[Block]:
    sections: list[Block] = []
    for record in (cell.record for contest in judgement.contests for cell in contest.shown):
        reason = one_line(record.reason)
        long_reason = reason if len(reason) > markdown.REASON_LIMIT else ""
        if record.status is Status.OK or not (record.log_tail.strip() or long_reason):
            continue
        parts = long_reason, visible(record.log_tail).strip("\n"), f"logs/{record.cell.id}.log has all of it"
        title = f"{record.cell.id}: {number_format.ending(record)}"
        sections.append(Section(title, [Code("\n\n".join(filter(None, parts)))], is_folded=True))
    return sections


def _reproduce(judgement: Judgement) -> list[Block]:
    report = judgement.report
    commands = {"everything": "\n".join(again(report.command))}
    commands |= {one_line(record.cell.id): record.command for record in report.records}
    texts = [f"# {what}\n{command}" for what, command in commands.items() if command]
    to_set = Text(machine.variables_to_set(report.environment) if texts else "")
    return [Section("Commands", [Code("\n\n".join(texts), "sh"), to_set], is_folded=True)]


def _method(judgement: Judgement) -> list[Block]:
    request = json.dumps(judgement.report.request, indent=1, ensure_ascii=False)
    lines = [*judgement.report.notes, *machine.method_notes(judgement.report)]
    return [Items(lines), Section("Request", [Code(request, "json")], is_folded=True)]


def _environment(judgement: Judgement) -> list[Block]:
    facts = machine.environment_facts(judgement.report.environment)
    table = replace(text_table(["what", "value"], list(facts.items()), "ll"), label="environment")
    return [Section(machine.name(judgement.report.environment), [table], is_folded=True)]
