"""Makes Markdown of all that a report has, for GitHub: the winners, then each contest, then how it was measured."""

import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bakeoff.judging.judgement import ContestJudgement, Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.doubts import Effect
from bakeoff.records.schema import Environment, Record, Report, Status
from bakeoff.records.text import one_line, visible
from bakeoff.reports import cost_report, doubt_sentences, dynamic, machine, mix, number_format, sentences, suite_report
from bakeoff.reports.columns import answers_of, columns_of
from bakeoff.reports.first_screen import FirstScreen, first_screen
from bakeoff.reports.further_answers import FurtherAnswer, further_answers
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Surface, T, Table, TableOverSizes, shown_in

REASON_LIMIT = 160
"""Longest reason in a table, in characters. The whole reason is printed below the tables."""

_SHOWN_FIGURES = {"latency", "load", "precisions", "sweep-latency", "sweep-speedup", "sweep-dynamic"}
"""Figures that are shown; the others fold away."""

_SHOWN_OF_SUITES = {"profile", "map"}
"""Figures that are shown instead if there are any of them."""

_FIGURE_CAPTIONS = {
    "load": "Latency against the rate of requests",
    "latency": "Median latency with its 95 % interval",
    "speedup": "Speed-up over eager with its 95 % interval",
    "phases": "Where the time before the second call goes",
    "samples": "Distribution of the latency of single calls",
    "costs": "Total time over n calls from a cold start",
    "sweep-latency": "Median latency over the sizes that were swept",
    "sweep-speedup": "Speed-up over eager over the sizes that were swept",
    "profile": "Share of the models on which a backend is within a factor of the best latency",
    "map": "Speed-up of each backend on each model",
    "sweep-dynamic": "Latency of one build for all sizes over that of a build for each",
    "precisions": "Speed against error, or the metric, over all precisions",
    "pareto": "Latency against build time, and what nothing dominates",
    "starts": "Stages from the start of a process to its first answer",
    "sweep-seq": "Speed-up of compiled attention over the length of a sequence",
    "sweep-size": "Speed-up of compiled language models over their size",
}


def to_markdown(judgement: Judgement, figures: Sequence[Path | str] = ()) -> str:
    """Return `details.md`. `figures` are files under `figures/` beside it; those that are SVG are embedded."""
    report, contests = judgement.report, judgement.contests
    others = {
        "Figures": _figures(figures),
        "What failed": _failures(cell.record for contest in contests for cell in contest.shown),
        "Reproduce": _reproduce(report),
        "How it was measured": _method(report),
        "Environment": _environment(report.environment),
    }
    sections = [
        _head(judgement, first_screen(judgement, ".")),
        _contents(contests, [heading for heading, text in others.items() if text]),
        *(_table_over_sizes(dynamic.table_of(each)) for each in judgement.dynamic_ranges),
        *(_table_over_sizes(mix.table_of(each)) for each in judgement.mixes),
        *(_contest(contest, number) for number, contest in enumerate(contests, 1)),
        *(f"## {heading}\n\n{text}" for heading, text in others.items() if text),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def escape(text: str, limit: int | None = None) -> str:
    """Return text from outside as one line of Markdown that shows it literally, also within a table."""
    line = html.escape(one_line(text, limit), quote=False)
    line = re.sub(r"([\\`*_\[\]|~])", r"\\\1", line).replace("$", "&#36;")  # GitHub takes $...$ for mathematics
    line = re.sub(r"^([-+#=])", r"\\\1", line)  # a list or a heading at the beginning of a line
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def _head(judgement: Judgement, screen: FirstScreen) -> str:
    """Return what was compared, the answers, and what cannot run here."""
    contests = judgement.contests
    parts = [
        f"# {escape(sentences.title(judgement))}",
        f"<sub>{escape(' · '.join(machine.summary(judgement.report)))}</sub>",
        *map(_suite, judgement.suites),
        *(f"**{escape(text)}**" for text in screen.over_sizes),
        answers_table(contests) if contests else "No cell has ended yet.",
        *map(escape, screen.unfinished),
        escape(screen.whether_to_ship),
        items(screen.about_models),
        escape(screen.not_tried),
        details("Why they cannot", items(screen.why_not)) if screen.why_not else "",
    ]
    return "\n\n".join(part for part in parts if part)


def items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escape(text)}" for text in texts)


def answers_table(contests: Sequence[ContestJudgement], linked: int | None = None) -> str:
    """Return the table of winners. The names of the first `linked` contests, or of all, lead to their sections."""
    columns = shown_in(Surface.MARKDOWN, answers_of(contests), contests)
    rows = [[_written(column, contest) for column in columns] for contest in contests]
    for number, row in enumerate(rows[:linked], 1):
        row[0] = f"[{row[0]}](#{anchor(number)})"
    return table([_heading(column) for column in columns], rows, _alignment(columns))


def _suite(suite: Suite) -> str:
    """Return the table of backends, what failed, and folded away the performance profile and every model."""
    failed = items(suite_report.failure(suite, failures) for failures in suite.failures)
    profile, every_model = suite_report.profile_columns(), suite_report.map_columns(suite)
    parts = [
        f"**{escape(suite_report.answer(suite))}**",
        table_of(shown_in(Surface.MARKDOWN, suite_report.columns_of(suite), suite.rows), suite.rows),
        items(suite_report.notes(suite)),
        f"What failed:\n\n{failed}" if failed else "",
        details(suite_report.PROFILE, table_of(profile, suite.rows)),
        details(suite_report.map_title(suite), table_of(every_model, suite.contests)),
    ]
    return "\n\n".join(part for part in parts if part)


def anchor(number: int) -> str:
    return f"contest-{number}"


def _contents(contests: Sequence[ContestJudgement], others: Sequence[str]) -> str:
    """Return links to all sections if there are several contests."""
    if len(contests) < 2:
        return ""
    links = [f"[{escape(name)}](#{anchor(number)})" for number, name in enumerate(sentences.names(contests), 1)]
    links += [f"[{heading}](#{heading.lower().replace(' ', '-')})" for heading in others]
    return f"Contents: {' · '.join(links)}"


def _table_over_sizes(sizes: TableOverSizes[Any]) -> str:
    table = table_of(shown_in(Surface.MARKDOWN, sizes.columns, sizes.rows), sizes.rows)
    return "\n\n".join([f"## {escape(sizes.title)}", f"**{escape(sizes.finding)}.**", table, escape(sizes.note)])


def _contest(contest: ContestJudgement, number: int) -> str:
    parts = [
        f'## <a id="{anchor(number)}"></a>{escape(contest.title)}',
        f"**{escape(sentences.paragraph(contest))}**",
        _contest_table(contest),
        *map(_answer, further_answers(contest)),
        *(_doubts(contest, effect) for effect in Effect),
        items(sentences.remarks(contest)),
        _lifetime(contest),
    ]
    return "\n\n".join(part for part in parts if part)


def _doubts(contest: ContestJudgement, effect: Effect) -> str:
    """Return the doubts that have this effect on the answer, below what it is."""
    doubts = "\n".join(f"- {escape(doubt, 3 * REASON_LIMIT)}" for doubt in doubt_sentences.doubts_with(effect, contest))
    if not doubts:
        return ""
    heading = doubt_sentences.heading(effect, contest)
    return details(heading, doubts) if effect is Effect.NONE else f"{heading}:\n\n{doubts}"


def _contest_table(contest: ContestJudgement) -> str:
    return table_of(shown_in(Surface.MARKDOWN, columns_of([contest]), contest.shown), contest.shown)


def table_of(columns: Sequence[Column[T]], rows: Sequence[T], notes: bool = True) -> str:
    """Return these columns of these rows as a table, with the notes beside numbers where they are wanted."""
    return table(
        [_heading(column) for column in columns],
        [[_written(column, row, notes) for column in columns] for row in rows],
        _alignment(columns),
    )


def _alignment(columns: Sequence[Column[T]]) -> str:
    return "".join("l" if column.is_text else "r" for column in columns)


def _heading(column: Column[T]) -> str:
    """Return `median latency (ms) [95 %]`."""
    unit = f" ({escape(column.unit)})" if column.unit else ""
    return f"{escape(column.heading)}{unit}{' [95 %]' if column.interval else ''}"


def _written(column: Column[T], row: T, notes: bool = True) -> str:
    """Return `1.85 [1.80, 1.90] (a note)`, or `crash: a note` in a column of text; what is bad is set in bold."""
    if (text := column.text_of(row)) == NONE:
        return text
    text = f"**{escape(text)}**" if column.is_bad_of(row) else escape(text)
    note = escape(column.note_of(row), REASON_LIMIT) if notes or column.is_text else ""
    if column.is_text:
        return f"{text}: {note}" if note else text
    return " ".join(part for part in (text, column.interval_of(row), note and f"({note})") if part)


def _answer(answer: FurtherAnswer) -> str:
    return "\n\n".join([f"### {answer.heading}", items(answer.sentences), *map(written_table, answer.tables)])


def _lifetime(contest: ContestJudgement) -> str:
    """Return what the cells cost from building to the last call."""
    if (costs := cost_report.table(contest)) is None:
        return ""
    body = "\n\n".join([cost_report.NOTE, items(cost_report.sentences(contest)), written_table(costs)])
    return f"### {cost_report.TITLE}\n\n{body}" if contest.calls else details(cost_report.TITLE, body)


def written_table(texts: Table) -> str:
    headings = [escape(name) for name in (*texts.text_columns, *texts.number_columns)]
    rows = [[text if text == NONE else escape(text) for text in row] for row in texts.rows]
    body = table(headings, rows, "l" * len(texts.text_columns) + "r" * len(texts.number_columns))
    return details(texts.title, body) if texts.is_folded else f"{escape(texts.title)}:\n\n{body}"


def _figures(figures: Sequence[Path | str]) -> str:
    pictures = [Path(figure) for figure in figures if Path(figure).suffix == ".svg"]
    if not pictures:
        return ""
    of_suites = [path for path in pictures if path.stem in _SHOWN_OF_SUITES]
    first = of_suites or [path for path in pictures if path.stem in _SHOWN_FIGURES]
    others = [path for path in pictures if path not in first]
    parts = [*map(picture, first)]
    if others:
        parts.append(details("All the others", "\n\n".join(map(picture, others))))
    return "\n\n".join(parts)


def picture(path: Path) -> str:
    return f"![{_caption(path.stem)}](figures/{path.name})"


def _caption(stem: str) -> str:
    name, page = re.fullmatch(r"(.*?)(?:-(\d+))?", stem).groups()  # type: ignore[union-attr]  # it matches anything
    return f"{_FIGURE_CAPTIONS.get(name, escape(name))}{f' ({page})' if page else ''}"


def _failures(records: Iterable[Record]) -> str:
    """Return the whole reasons that were cut in the tables, and the last lines of the logs."""
    parts = []
    for record in records:
        reason = one_line(record.reason)
        long_reason = reason if len(reason) > REASON_LIMIT else ""
        if record.status is Status.OK or not (record.log_tail.strip() or long_reason):
            continue
        printed = visible(record.log_tail).strip("\n")
        text = "\n\n".join(part for part in (long_reason, printed, f"logs/{record.cell.id}.log has all of it") if part)
        parts.append(details(f"{record.cell.id}: {number_format.ending(record)}", fenced(text)))
    return "\n\n".join(parts)


def _reproduce(report: Report) -> str:
    commands = [
        f"# {one_line(record.cell.id)}\n{visible(record.command)}" for record in report.records if record.command
    ]
    text = "\n\n".join([*([f"# everything\n{visible(report.command)}"] if report.command else []), *commands])
    to_set = escape(machine.variables_to_set(report.environment))
    return details("Commands", "\n\n".join(filter(None, [fenced(text, "sh"), to_set]))) if text else ""


def _method(report: Report) -> str:
    lines = [f"- {escape(line)}" for line in (*report.notes, *machine.method_notes(report))]
    request = json.dumps(report.request, indent=1, ensure_ascii=False)
    return "\n\n".join(["\n".join(lines), details("Request", fenced(request, "json"))])


def _environment(environment: Environment) -> str:
    facts = machine.environment_facts(environment)
    rows = [[escape(name), escape(value)] for name, value in facts.items()]
    return details(machine.name(environment), table(["what", "value"], rows, "ll"))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], alignment: str) -> str:
    """Return a table of cells that are Markdown already. `lrr` sets the first of three columns to the left."""
    rule = [":--" if side == "l" else "--:" for side in alignment]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *rows])


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], alignment: str) -> str:
    """Return a table of cells that are plain text, each in one line."""
    heading, *written = ([text if text == NONE else escape(text) for text in row] for row in (headings, *rows))
    return table(heading, written, alignment)


def details(summary: str, body: str) -> str:
    """Return a fold. GitHub reads `body` as Markdown, because of the blank lines, and `summary` as HTML."""
    summary = re.sub(r"[*_`\[\]~$\\]", lambda match: f"&#{ord(match[0])};", html.escape(one_line(summary), quote=False))
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def fenced(text: str, language: str = "text") -> str:
    """Return a code block. Its fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
