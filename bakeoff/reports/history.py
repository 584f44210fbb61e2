"""Reads many reports and shows the median of each cell from run to run, and where machine or software changed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bakeoff.judging.history import History, history_of
from bakeoff.records import report_file
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.text import counted, one_line
from bakeoff.reports import number_format
from bakeoff.reports.charts import draw_history
from bakeoff.reports.markdown import details, escape, table
from bakeoff.reports.number_format import NONE

HISTORY_MD = "history.md"

RUNS_SHOWN = 6
"""Number of runs that have a column: the last ones. The figure shows all runs."""


def write(folder: Path, out: Path) -> tuple[History, Path]:
    """Read every report below `folder`, and write `history.md` and its figure into the folder `out`.

    Return the history and the path of `history.md`. Raises UsageError if there is no folder, or no report in it.
    """
    history = read(folder)
    out.mkdir(parents=True, exist_ok=True)
    drawn = draw_history(history, out)
    return history, write_atomically(out / HISTORY_MD, to_markdown(history, drawn))


def read(folder: Path) -> History:
    """Return the reports below `folder` in the order of time. Those that cannot be read are named as skipped.

    Raises UsageError if there is no folder, or no report in it that can be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give one that holds runs, such as results")
    dated: dict[tuple[datetime, str], Report] = {}
    skipped = []
    for path in _find(folder):
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
    """Return the whole history. `figures` are files beside it; those that are PNG are embedded."""
    count = counted(len(history.runs), "run")
    first, last = history.runs[0].day, history.runs[-1].day
    sections = [f"# History: {count}, {first if first == last else f'{first} to {last}'}"]
    sections += [f"![Median latency from run to run]({path.name})" for path in figures if path.suffix == ".png"]
    sections.append(
        "Medians in ms with their 95 % intervals; a line is a cell, a column a run. An interval holds within "
        "one run only: `bakeoff compare` judges the difference of two runs."
    )
    for records in history.contests.values():
        sections += [f"## {escape(records[0].cell.title)}", _contest_table(history, records)]
    sections += ["## Runs", _runs_table(history)]
    if history.skipped:
        skipped = "\n".join(f"- {escape(reason)}" for reason in history.skipped)
        sections.append(details(f"{counted(len(history.skipped), 'report')} left out", skipped))
    return "\n\n".join(sections) + "\n"


def _find(folder: Path) -> list[Path]:
    """Return `folder` and the folders below it that hold a report, packed or not."""
    names = (report_file.REPORT_JSON, f"{report_file.REPORT_JSON}.gz")
    return sorted({path.parent for name in names for path in folder.rglob(name)})


def moment(text: str) -> datetime:
    """Read a date of ISO 8601; without a zone it is UTC. Raises UsageError for anything else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"a report was made at {one_line(text, 40)!r}, which is no date: it has no place") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _contest_table(history: History, records: Sequence[Record]) -> str:
    numbers = range(max(0, len(history.runs) - RUNS_SHOWN), len(history.runs))
    marks = [f"run {number + 1}{' *' if history.runs[number].changes else ''}" for number in numbers]
    rows = []
    for record in records:
        ends = [history.runs[number].records.get(record.cell.id) for number in numbers]
        present = sum(record.cell.id in run.records for run in history.runs)
        rows.append([escape(record.cell.label), str(present), *map(_median, ends)])
    return table(["cell", "runs", *map(escape, marks)], rows, "lr" + "r" * len(marks))


def _median(record: Record | None) -> str:
    """Return the median of a cell; if it failed, with what it ended as."""
    if record is None:
        return NONE
    median = number_format.median(record.latency) if record.latency else ""
    if record.status.is_failure:
        return f"{median} **{record.status}**".strip()
    return median or (NONE if record.status is Status.OK else record.status.value)


def _runs_table(history: History) -> str:
    rows = []
    for number, run in enumerate(history.runs, 1):
        changes = "; ".join(f"{each.what}: {each.base} → {each.new}" for each in run.changes)
        commit = (run.environment.git_commit or NONE)[:10]
        made = run.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
        rows.append([str(number), made, escape(run.run_id), escape(commit), escape(changes)])
    runs = table(["run", "made", "id", "commit", "what changed before it"], rows, "rllll")
    return f"`*` in a table marks a run before which the machine or its software changed.\n\n{runs}"
