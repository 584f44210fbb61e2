"""A report on disk: `report.json` is the truth; everything beside it is rendered from that and can be made again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bakeoff.judging.environment_changes import bear_on_speed
from bakeoff.judging.fit import by_contest
from bakeoff.judging.judgement import Judgement, judge, judge_together
from bakeoff.judging.start_times import JudgedStart, StartsJudgement, judge_starts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.report_file import REPORT_JSON, folder_of, write_json
from bakeoff.records.schema import Record, Report
from bakeoff.records.start_samples import Starts
from bakeoff.records.store import Store
from bakeoff.reports import charts, markdown, number_format, start_report
from bakeoff.reports.blocks import Block, Items, Look, Picture, Section, Surface, Text
from bakeoff.reports.csv_files import question_tables, suite_tables, sweep_tables, to_csv
from bakeoff.reports.run_report import DETAILS_MD, to_markdown, to_page, to_short_markdown
from bakeoff.reports.sentences import with_verdicts
from bakeoff.reports.tables import Table, text_table


def write(report: Report, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Write `report.json` first, so that no failed rendering costs numbers, and then all that `render` writes."""
    judgement = judge(report)
    return {REPORT_JSON: write_json(with_verdicts(judgement), folder)} | render(judgement, folder, figures)


def render(judgement: Judgement, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Write `cells.csv`, the tables of suites and sweeps, `report.html`, `figures/`, `details.md` and `report.md`.
    Return the files by their names within `folder`, such as `figures/latency.svg`."""
    tables = {"cells.csv": to_csv(judgement), **suite_tables(judgement), **sweep_tables(judgement)}
    texts = tables | question_tables(judgement) | {"report.html": to_page(judgement, str(folder))}
    written = {name: write_atomically(folder / name, text) for name, text in texts.items()}
    drawn: list[Path] = []
    if figures:
        drawn = charts.draw(judgement, folder / "figures")
        written |= {f"figures/{path.name}": path for path in drawn}
    written[DETAILS_MD] = write_atomically(folder / DETAILS_MD, to_markdown(judgement, figures=drawn))
    written["report.md"] = write_atomically(folder / "report.md", to_short_markdown(judgement, folder, drawn))
    return written


def draw_together(reports: Sequence[Report], paths: Sequence[Path], folder: Path | None) -> Path:
    """Draw the figures of these reports as if they were one, as PNG and SVG, into `folder` or beside a single report,
    and return that folder. Raise UsageError for several without a folder, and for nothing to draw."""
    if folder is None and len(paths) > 1:
        raise UsageError("--figures of several reports go together: name a folder for them by --out")
    target = folder or folder_of(paths[0]) / "figures"
    if not charts.draw(judge_together(reports), target, png=True):
        raise UsageError(f"nothing to draw in {', '.join(map(str, paths))}: no cell has numbers or phases")
    return target


def join(reports: Sequence[Report], folder: Path) -> Report:
    """Return one report of all records, for `folder`, which is made, with notes of environments that differ. Raise
    UsageError for a folder of a run, for two results of a contest, and for different requirements."""
    if Store.is_run(folder):
        raise UsageError(f"--out {folder}: it holds a run of its own; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    first = reports[0]
    holders: dict[str, str] = {}
    for report in reports:
        for contest_id in by_contest(report.records):
            if contest_id in holders:
                raise UsageError(f"{contest_id} is in {holders[contest_id]} and in {report.run_id}: join runs without "
                                 "a contest in common")  # fmt: skip
            holders[contest_id] = report.run_id
    for option in ("require", "calls"):
        if len({str(report.request.get(option) or "") for report in reports}) > 1:
            raise UsageError(f"these runs have different --{option}: give the one to judge all of them by")
    notes = [f"{part.run_id}: {note}" for part in reports for note in part.notes]
    for other in reports[1:]:
        if differing := bear_on_speed(first.environment, other.environment):
            listing = "; ".join(map(str, differing))
            notes.insert(0, f"{other.run_id} was measured in another environment than {first.run_id}: {listing}")
    if any(record.artifact for part in reports for record in part.records):
        notes.append("What the cells built is kept in the folders of their runs.")
    return first.but(
        run_id=folder.resolve().name,
        created_at=min(part.created_at for part in reports),
        complete=all(part.complete for part in reports),
        planned=sum(part.planned for part in reports),
        command="\n".join(part.command for part in reports if part.command),
        request={key: value for key, value in first.request.items() if key != "shard"},
        own_files={},  # each run has folders of its own
        weights={name: digest for part in reports for name, digest in part.weights.items()},
        records=[without_artifact(record) for part in reports for record in part.records],
        notes=notes,
        elapsed_s=sum(part.elapsed_s for part in reports),
    )


def without_artifact(record: Record) -> Record:
    """Return the record of a cell whose build is not in its run's folder, so that nothing offers to export it."""
    return record.but(artifact="")


STARTS_MD, STARTS_JSON = "starts.md", "starts.json"


def write_starts(starts: Starts, require: str, folder: Path) -> tuple[StartsJudgement, list[Path]]:
    """Write the starts as JSON and as Markdown with its figure. Return what they come to, and the files."""
    judged = judge_starts(starts.cells, require)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = charts.draw_starts(judged, starts, folder / "figures") if judged.cells else []
    files = [
        write_atomically(folder / STARTS_MD, markdown.render(starts_blocks(judged, starts, bool(drawn)))),
        write_atomically(folder / STARTS_JSON, starts.model_dump_json(indent=1)),
    ]
    return judged, [*files, *drawn]


def starts_blocks(judged: StartsJudgement, starts: Starts, has_figure: bool = False) -> list[Block]:
    unmet = [doubt for cell in judged.cells for doubt in cell.unmet]
    figure = [Picture("figures/starts.svg", "Stages until the first answer")] if has_figure else []
    blocks: list[Block] = [
        Text(f"{start_report.headline(judged)}.", Look.STRONG),
        start_report.table(judged),
        Items([doubt.say() for doubt in unmet]),
        Items(list(map(start_report.why_not_started, judged.without_starts))),
        *figure,
        *(replace(table, is_folded=on is Surface.MARKDOWN, on=on)
          for table in map(_distributions, judged.cells) for on in (Surface.MARKDOWN, Surface.TERMINAL)),
        Items(start_report.notes(starts)),
    ]  # fmt: skip
    return [Section(f"Starting {starts.title}", blocks, level=1)]


def _distributions(judged: JudgedStart) -> Table[Any]:
    cell = judged.cell
    kind = "library" if cell.script.endswith(".cpp") else "distribution"  # which a program in C++ does not need
    rows = [[name, number_format.mebibytes(size)] for name, size in (cell.distributions or {}).items()]
    return text_table([kind, "MiB"], rows, "lr", f"What {cell.label} needs installed")
