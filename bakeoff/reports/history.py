"""Reads many reports and shows the median of each cell from run to run, and where machine or software changed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bakeoff.judging.history import History, Run, history_of
from bakeoff.judging.optional_field import OptionalField
from bakeoff.records import report_file
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.text import counted, one_line
from bakeoff.reports import markdown, number_format
from bakeoff.reports.blocks import Block, Items, Picture, Section, Text
from bakeoff.reports.charts import draw_history
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table, text_table

HISTORY_MD, HISTORY = "history.md", "History"

MARKED = "A run with * in a table is one before which the machine or its software changed."

RUNS_SHOWN = 6
"""Number of runs that have a column in one table. Earlier runs have folded tables of their own."""


def write(folder: Path, out: Path) -> tuple[History, Path]:
    """Write `history.md` and its figure from all reports below `folder` into `out`, and return the history and the
    file. Raise UsageError if there is no report, or if the file there is no history of any of these runs."""
    page, history = out / HISTORY_MD, read(folder)
    before = page.read_text(encoding="utf-8", errors="replace") if page.exists() else ""
    if before and not before.startswith(f"# {HISTORY}"):
        raise UsageError(f"{page} is not a history, and would be overwritten: name another folder by --out")
    if before and not any(f"| {markdown.escape(run.run_id)} |" in before for run in history.runs):
        raise UsageError(f"{page} is the history of other runs, and would be overwritten: name another folder by --out")
    out.mkdir(parents=True, exist_ok=True)
    drawn = draw_history(history, out)
    return history, write_atomically(page, to_markdown(history, drawn))


def read(folder: Path) -> History:
    """Return the reports below `folder` in the order of time. Those that cannot be read are named as skipped. Raise
    UsageError if there is no folder, or no report in it that can be read."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give one that holds runs, such as results")
    dated: dict[tuple[datetime, str], Report] = {}
    skipped = []
    names = (report_file.REPORT_JSON, f"{report_file.REPORT_JSON}.gz")
    for path in sorted({path.parent for name in names for path in folder.rglob(name)}):
        try:
            report = report_file.read(path, with_samples=False)
            key = (moment(report.created_at), report.run_id)
        except UsageError as error:
            skipped.append(str(error))
            continue
        if key in dated:
            skipped.append(f"{path} is the run {report.run_id} once more")
        else:
            dated[key] = report
    if not dated:
        why = f": {'; '.join(skipped)}" if skipped else ""
        raise UsageError(f"no report below {folder} can be read{why}; bakeoff run makes one")
    return history_of(dated, skipped)


def to_markdown(history: History, figures: Sequence[Path] = ()) -> str:
    first, last = history.runs[0].day, history.runs[-1].day
    blocks: list[Block] = [
        *(Picture(path.name, "Median latency from run to run") for path in figures if path.suffix == ".png"),
        Text(
            "Medians in ms with their 95 % intervals; a line is a cell, a column a run. An interval holds within "
            "one run only: bakeoff compare judges the difference of two runs."
        ),
        *(Section(records[0].cell.title, _tables(history, records)) for records in history.contests.values()),
        Section("Runs", [Text(MARKED), _runs_table(history)]),
        Section(f"{counted(len(history.skipped), 'report')} left out", [Items(history.skipped)], is_folded=True),
    ]
    days = first if first == last else f"{first} to {last}"
    return markdown.render([Section(f"{HISTORY}: {counted(len(history.runs), 'run')}, {days}", blocks, level=1)])


def _tables(history: History, records: Sequence[Record]) -> list[Block]:
    """Return a table of the last runs, and folded ones of the runs before them."""
    tables: list[Block] = []
    for end in range(len(history.runs), 0, -RUNS_SHOWN):
        runs = list(enumerate(history.runs, 1))[max(0, end - RUNS_SHOWN) : end]
        columns = [
            Column("cell", lambda record: record.cell.label, is_text=True),
            Column("runs", lambda record: sum(_was_tried(record, run) for run in history.runs)),
            *(_run_column(f"run {number}{' *' if run.changes else ''}", run) for number, run in runs),
        ]
        title = f"Runs {runs[0][0]} to {end}" if tables else ""
        tables.append(Table(columns, records, title=title, is_folded=bool(tables)))
    return tables


def _was_tried(record: Record, run: Run) -> bool:
    return record.cell.id in run.records and not run.records[record.cell.id].status.is_absence


def moment(text: str) -> datetime:
    """Read a date of ISO 8601; without a zone it is UTC. Raises UsageError for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"a report was made at {one_line(text, 40)!r}, which is no date: it has no place") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _run_column(heading: str, run: Run) -> Column[Record]:
    measured = OptionalField[Record, Record](lambda record: run.records.get(record.cell.id))

    def spelled(record: Record) -> str:
        median = number_format.milliseconds(record.latency.median_ms) if record.latency else ""
        return f"{median} {'' if record.status is Status.OK else record.status.value}".strip()

    def text(record: Record) -> str:
        return measured(spelled)(record) or NONE

    return Column(
        heading,
        text,
        write=number_format.milliseconds,
        text=text,
        interval=measured(lambda it: it.latency.median_ci95_ms if it.latency else None),
        is_bad=lambda record: bool(measured(lambda it: it.status.is_failure)(record)),
    )


def _runs_table(history: History) -> Table[Any]:
    rows = []
    for number, run in enumerate(history.runs, 1):
        changes = "; ".join(f"{change.what}: {change.base} → {change.new}" for change in run.changes)
        commit = (run.environment.git_commit or NONE)[:10]
        made = run.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
        rows.append([str(number), made, run.run_id, commit, changes])
    return text_table(["run", "made", "id", "commit", "what changed before it"], rows, "rllll")
