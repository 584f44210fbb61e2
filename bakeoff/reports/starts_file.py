"""Writes what `bakeoff start` has measured into a folder: the samples as JSON, a page of Markdown, and its figure."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bakeoff.judging.start_times import JudgedStart, StartsJudgement, judge_starts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.start_samples import Starts
from bakeoff.reports import markdown, number_format
from bakeoff.reports.blocks import Block, Items, Look, Picture, Section, Surface, Text
from bakeoff.reports.charts import draw_starts
from bakeoff.reports.start_report import TITLE, columns_of, headline, notes, why_not_started
from bakeoff.reports.tables import Table, text_table

STARTS_MD, STARTS_JSON = "starts.md", "starts.json"


def write(starts: Starts, require: str, folder: Path) -> tuple[StartsJudgement, list[Path]]:
    """Write the starts as JSON and as Markdown with its figure. Return what they come to, and the files."""
    judged = judge_starts(starts.cells, require)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw_starts(judged, starts, folder / "figures") if judged.cells else []
    files = [
        write_atomically(folder / STARTS_MD, markdown.render(blocks_of(judged, starts, bool(drawn)))),
        write_atomically(folder / STARTS_JSON, starts.model_dump_json(indent=1)),
    ]
    return judged, [*files, *drawn]


def blocks_of(judged: StartsJudgement, starts: Starts, has_figure: bool = False) -> list[Block]:
    unmet = [doubt for cell in judged.cells for doubt in cell.unmet]
    figure = [Picture("figures/starts.svg", "Stages until the first answer")] if has_figure else []
    blocks: list[Block] = [
        Text(f"{headline(judged)}.", Look.STRONG),
        Table(columns_of(), judged.cells, TITLE),
        Items([doubt.say() for doubt in unmet]),
        Items(list(map(why_not_started, judged.without_starts))),
        *figure,
        *(replace(table, is_folded=on is Surface.MARKDOWN, on=on)
          for table in map(_distributions, judged.cells) for on in (Surface.MARKDOWN, Surface.TERMINAL)),
        Items(notes(starts)),
    ]  # fmt: skip
    return [Section(f"Starting {starts.title}", blocks, level=1)]


def _distributions(judged: JudgedStart) -> Table[Any]:
    cell = judged.cell
    kind = "library" if cell.script.endswith(".cpp") else "distribution"  # which a program in C++ does not need
    rows = [[name, number_format.mebibytes(size)] for name, size in (cell.distributions or {}).items()]
    return text_table([kind, "MiB"], rows, "lr", f"What {cell.label} needs installed")
