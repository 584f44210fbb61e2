"""Makes the short report, `report.md`: the answer, what to run next, one table, what could change it, and one figure.

Everything else is in `details.md` and on the page.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import Judgement
from bakeoff.records.doubts import Effect
from bakeoff.reports import cost_report, doubt_sentences, further_answers, headline, machine, sentences
from bakeoff.reports.columns import columns_of
from bakeoff.reports.first_screen import first_screen
from bakeoff.reports.markdown import anchor, answers_table, escape, fenced, items, picture, table_of, written_table
from bakeoff.reports.tables import Surface, Table, shown_in

DETAILS_MD = "details.md"

FIGURES = ("load", "costs", "profile", "sweep-latency", "sweep-dynamic", "precisions", "latency")
"""The figure that is shown is the first of these that was drawn. Costs are shown if they were asked for."""

MOST_COLUMNS = 9

LEFT_OUT_FIRST = (
    "throughput",
    "place in its precision",
    "of floor",
    "caches",
    "drift",
    "device memory",
    "GPU memory",
    "place",
    "peak memory",
    "memory",
    "median over the soak",
    "build",
    "relative RMSE",
)
"""A table of more than `MOST_COLUMNS` leaves these out, in this order, and then those before its last one."""

MOST_CONTESTS = 6
"""So many contests get a table each. `details.md` has the others."""


def to_short_markdown(judgement: Judgement, folder: Path, figures: Sequence[Path] = ()) -> str:
    """Return the short report of the run in `folder`. Of `figures`, the one that tells most is shown."""
    report, contests, screen = judgement.report, judgement.contests, first_screen(judgement, str(folder))
    commands = [line for purpose, lines in screen.commands.items() for line in (f"# {purpose}", *lines[:MOST_CONTESTS])]
    parts = [
        f"# {escape(sentences.title(judgement))}",
        *(f"**{escape(text)}**" for text in (*screen.of_suites, *screen.over_sizes)),
        _answer(contests),
        *map(escape, screen.unfinished),
        escape(screen.whether_to_ship),
        escape(screen.not_tried),
        items(screen.about_models),
        f"## What to run now\n\n{fenced(chr(10).join(commands), 'sh')}" if commands else "",
        escape(screen.variables_to_set) if commands else "",
        *(_contest(contest, number) for number, contest in enumerate(contests[:MOST_CONTESTS], 1)),
        f"Further contests in details.md: {len(contests) - MOST_CONTESTS}." if len(contests) > MOST_CONTESTS else "",
        _figure([path for path in figures if path.stem != "costs" or any(each.calls for each in contests)]),
        f"<sub>{escape(' · '.join(machine.summary(report)))}. Everything else is in [details.md]({DETAILS_MD}) and "
        "on the page report.html.</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(contests: Sequence[ContestJudgement]) -> str:
    """Return the answer as one line, or as a table where there are several."""
    if not contests:
        return "No cell has ended yet."
    if len(contests) > 1:
        return answers_table(contests, MOST_CONTESTS)
    return f"**{escape(headline.first_line(contests[0]))}**"


def _contest(contest: ContestJudgement, number: int) -> str:
    remarks = sentences.pays(contest), sentences.no_floor(contest), *sentences.builds_made_elsewhere(contest)
    parts = [
        f'## <a id="{anchor(number)}"></a>{escape(contest.title)}',
        items(further_answers.sentences(contest)),
        *map(written_table, _short_tables(contest)),
        escape(sentences.paragraph(contest)),
        _cells(contest),
        _doubts(contest),
        " ".join(map(escape, filter(None, remarks))),
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(contest: ContestJudgement) -> str:
    columns = shown_in(Surface.SHORT, columns_of([contest]), contest.shown)
    kept = _kept([column.heading for column in columns])
    return table_of([columns[place] for place in kept], contest.shown, notes=False)


def _short_tables(contest: ContestJudgement) -> list[Table]:
    """Return the tables of what was asked beside the latency of a call, with at most `MOST_COLUMNS`."""
    costs = cost_report.table(contest) if contest.calls else None
    return [_narrowed(each) for each in (*further_answers.short_tables(contest), costs) if each]


def _narrowed(table: Table) -> Table:
    headings = [*table.text_columns, *table.number_columns]
    kept, texts = _kept([heading.partition(" (")[0] for heading in headings]), len(table.text_columns)
    return replace(
        table,
        text_columns=[headings[place] for place in kept if place < texts],
        number_columns=[headings[place] for place in kept if place >= texts],
        rows=[[row[place] for place in kept] for row in table.rows],
    )


def _kept(headings: Sequence[str]) -> list[int]:
    """Return the places of the columns that a table of the short report has room for."""
    kept = list(range(len(headings)))
    for left_out in LEFT_OUT_FIRST:
        if len(kept) > MOST_COLUMNS:
            kept = [place for place in kept if headings[place] != left_out]
    return kept if len(kept) <= MOST_COLUMNS else [*kept[: MOST_COLUMNS - 1], kept[-1]]


def _doubts(contest: ContestJudgement) -> str:
    """Return what could change the winner, or its numbers."""
    lists = [
        f"{doubt_sentences.heading(effect, contest)}:\n\n" + items(doubts)
        for effect in (Effect.WINNER, Effect.NUMBER)
        if (doubts := doubt_sentences.doubts_with(effect, contest))
    ]
    return "\n\n".join(lists)


def _figure(figures: Sequence[Path]) -> str:
    drawn = {path.stem: path for path in figures if path.suffix == ".svg"}
    chosen = next((drawn[name] for name in FIGURES if name in drawn), None)
    return picture(chosen) if chosen else ""
