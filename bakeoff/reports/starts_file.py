"""Writes what `bakeoff start` has measured into a folder: the samples as JSON, a page of Markdown, and its figure."""

from pathlib import Path

from bakeoff.judging.start_times import StartsJudgement, judge_starts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.start_samples import StartedCell, Starts
from bakeoff.reports import markdown, number_format
from bakeoff.reports.blocks import Block, Items, Look, Picture, Section, Text
from bakeoff.reports.charts import draw_starts
from bakeoff.reports.start_report import columns_of, headline, notes, why_not_started
from bakeoff.reports.tables import Table, text_table

STARTS_MD, STARTS_JSON = "starts.md", "starts.json"


def write(starts: Starts, require: str, folder: Path) -> tuple[StartsJudgement, list[Path]]:
    """Write the starts as JSON and as Markdown with its figure. Return what they come to, and the files."""
    judged = judge_starts(starts.cells, require)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw_starts(judged, starts, folder / "figures") if judged.cells else []
    files = [
        write_atomically(folder / STARTS_MD, to_markdown(judged, starts, bool(drawn))),
        write_atomically(folder / STARTS_JSON, starts.model_dump_json(indent=1)),
    ]
    return judged, [*files, *drawn]


def to_markdown(judged: StartsJudgement, starts: Starts, has_figure: bool = False) -> str:
    """Return the answer, the table, why cells have no numbers, and what the numbers mean."""
    unmet = [doubt for cell in judged.cells for doubt in cell.unmet]
    figure = [Picture("figures/starts.svg", "Stages until the first answer")] if has_figure else []
    blocks: list[Block] = [
        Text(f"{headline(judged)}.", Look.STRONG),
        Table(columns_of(), judged.cells),
        Items([doubt.say() for doubt in unmet]),
        Items(list(map(why_not_started, judged.without_starts))),
        *figure,
        *(_distributions(cell.cell) for cell in judged.cells),
        Items(notes(starts)),
    ]
    return markdown.render([Section(f"Starting {starts.title}", blocks, level=1)])


def _distributions(cell: StartedCell) -> Section:
    """Return what is installed for a cell, or the libraries that its program loads, in a fold."""
    kind = "library" if cell.is_program else "distribution"
    rows = [[name, number_format.mebibytes(size)] for name, size in (cell.distributions or {}).items()]
    return Section(f"What {cell.label} needs installed", [text_table([kind, "MiB"], rows, "lr")], is_folded=True)
