"""Writes a static site of many runs, and their answers as Markdown for a model card."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.history import History, history_of
from bakeoff.judging.judgement import Judgement
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.text import again, counted, one_line, with_option
from bakeoff.reports import charts, headline, machine, markdown, page, sentences
from bakeoff.reports.answers import gain, named
from bakeoff.reports.blocks import Block, Code, Items, Links, Look, Section, Text
from bakeoff.reports.charts import Palette
from bakeoff.reports.charts.chart import Charts
from bakeoff.reports.history import moment
from bakeoff.reports.run_report import to_page
from bakeoff.reports.tables import Column, Table

INDEX, CARD, PAGES = "index.html", "model-card.md", "runs.json"
"""`runs.json` lists the pages of runs, so that the next `publish` removes those of runs that are published no more."""


@dataclass(frozen=True)
class PublishedRun:
    judgement: Judgement
    link: str  # of its report, from the index

    @property
    def title(self) -> str:
        return sentences.title(self.judgement)

    @property
    def machine(self) -> str:
        return machine.devices(self.judgement.report)

    @property
    def day(self) -> str:
        return self.judgement.report.created_at[:10]


@dataclass(frozen=True)
class IndexRow:
    contest: ContestJudgement
    run: PublishedRun


OF_HISTORY = (
    "Medians with their 95 % intervals, which hold within one run only: bakeoff compare judges the difference of two."
)

CONTEST = Column[IndexRow]("contest", lambda row: row.contest.title, write=one_line, is_text=True)
SURE = Column[IndexRow](
    "how sure",
    lambda row: headline.certainty(row.contest),
    is_text=True,
    is_bad=lambda row: headline.is_unsure(row.contest),
)
COLUMNS = [
    CONTEST,
    Column[IndexRow]("machine", lambda row: row.run.machine, is_text=True),
    Column[IndexRow]("best", lambda row: named(row.contest.answer), is_text=True),
    Column[IndexRow]("measured", lambda row: headline.value(row.contest)),
    Column[IndexRow]("speed-up", lambda row: gain(row.contest.answer)),
    SURE,
    Column[IndexRow]("on", lambda row: row.run.day, is_text=True),
]


@dataclass(frozen=True)
class Site:
    """The files of a site, the index first, and the pages of an earlier one here that were removed."""

    files: list[Path]
    removed: list[Path]


def write(judgements: Sequence[Judgement], out: Path, card: bool = False) -> Site:
    """Write the index, a page for each run, and a model card if it is asked for. Pages that an earlier site wrote here
    for other runs are removed, and other files are left alone."""
    names = unique_names(judgement.report.run_id for judgement in judgements)
    runs = [PublishedRun(judgement, f"runs/{name}.html") for judgement, name in zip(judgements, names, strict=True)]
    (out / "runs").mkdir(parents=True, exist_ok=True)
    files = [write_atomically(out / INDEX, to_index(runs))]
    files += [write_atomically(out / run.link, to_page(run.judgement)) for run in runs]
    if card:
        files.append(write_atomically(out / CARD, to_card(judgements)))
    links = [run.link for run in runs]
    removed = [file for link, file in _pages_in(out).items() if link not in links and file.is_file()]
    for file in removed:
        file.unlink()
    files.append(write_atomically(out / PAGES, json.dumps(links, indent=1)))
    return Site(files, removed)


def _pages_in(out: Path) -> dict[str, Path]:
    try:
        links = json.loads((out / PAGES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    known = links if isinstance(links, list) else []
    return {link: out / link for link in map(str, known) if re.fullmatch(r"runs/[\w.-]+\.html", link)}


def to_index(runs: Sequence[PublishedRun]) -> str:
    history = _history(runs)
    records = [record for run in history.runs for record in run.records.values()] if history else []
    palette = Palette(record for record in records if record.latency)
    figures = charts.of_history(history, palette, least_runs=2) if history else []
    answers = Table(COLUMNS, _rows(runs), label="Answers of all runs", details=_details, status=SURE)
    reports = [(f"{run.title}, {run.day}: {run.judgement.report.run_id}", run.link) for run in runs]
    blocks = [
        Section("Answers", [answers]),
        Section("Reports", [Links(reports)]),
        Section("From run to run", [Text(OF_HISTORY, Look.SOFT), Charts(figures, palette.labels)] if figures else []),
    ]
    machines = sorted({machine.devices(run.judgement.report) for run in runs})
    return page.render(counted(len(runs), "run"), blocks, palette, machines)


def _details(row: IndexRow) -> list[Block]:
    return [
        Links([("The whole report", row.run.link)]),
        Text(sentences.paragraph(row.contest)),
        Items(sentences.doubts(row.contest), look=Look.UNSURE),
    ]


def _rows(runs: Sequence[PublishedRun]) -> list[IndexRow]:
    return [IndexRow(contest, run) for run in runs for contest in run.judgement.contests]


def to_card(judgements: Sequence[Judgement]) -> str:
    rows = _rows([PublishedRun(judgement, "") for judgement in judgements])
    *columns, _ = COLUMNS  # a text says the days
    days = sorted({judgement.report.created_at[:10] for judgement in judgements})
    commands = dict.fromkeys(
        with_option(command, "--out") for judgement in judgements for command in again(judgement.report.command)
    )
    blocks: list[Block] = [
        Table(columns, rows),
        Text(
            "Unless it says otherwise, the best passed a check against the model in float64. Builds were "
            f"measured in turns with Bakeoff, {' to '.join(dict.fromkeys([days[0], days[-1]]))}."
        ),
        Code("\n".join(map(one_line, commands)), "sh", "To measure it again"),
    ]
    return markdown.render([Section("Inference speed", blocks)])


def unique_names(run_ids: Iterable[str]) -> list[str]:
    names: list[str] = []
    for run_id in run_ids:
        plain = re.sub(r"[^\w.-]+", "-", run_id).strip(".-") or "run"
        number = sum(re.fullmatch(rf"{re.escape(plain)}(--\d+)?", name) is not None for name in names)
        names.append(f"{plain}--{number + 1}" if number else plain)
    return names


def _history(runs: Sequence[PublishedRun]) -> History | None:
    """Return the runs in the order of time, or None where no contest was measured twice."""
    measured = [contest.contest_id for run in runs for contest in run.judgement.contests]
    if len(set(measured)) == len(measured):
        return None
    reports = [run.judgement.report for run in runs]
    return history_of({(moment(report.created_at), report.run_id): report for report in reports}, [])
