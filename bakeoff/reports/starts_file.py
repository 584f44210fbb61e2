"""Writes what `bakeoff start` has measured into a folder: the samples as JSON, a page of Markdown, and its figure."""

from pathlib import Path

from bakeoff.judging.starts import StartsJudgement, judge_starts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.starts import StartedCell, Starts
from bakeoff.reports import number_format
from bakeoff.reports.charts import draw_starts
from bakeoff.reports.markdown import details, escape, items, table, table_of
from bakeoff.reports.starts import columns_of, headline, notes, why_not_started
from bakeoff.reports.tables import Surface, shown_in

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
    columns = shown_in(Surface.MARKDOWN, columns_of(), judged.cells)
    unmet = [doubt for cell in judged.cells for doubt in cell.unmet]
    parts = [
        f"# Starting {escape(starts.title)}",
        f"**{escape(headline(judged))}.**",
        table_of(columns, judged.cells) if judged.cells else "",
        items(doubt.say() for doubt in unmet),
        items(map(why_not_started, judged.without_starts)),
        "![Stages until the first answer](figures/starts.svg)" if has_figure else "",
        *(_distributions(cell.cell) for cell in judged.cells),
        items(notes(starts)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _distributions(cell: StartedCell) -> str:
    """Return what is installed for a cell, or the libraries that its program loads, in a fold."""
    if not cell.distributions:
        return ""
    kind = "library" if cell.is_program else "distribution"
    rows = [[escape(name), number_format.mebibytes(size)] for name, size in cell.distributions.items()]
    return details(f"What {cell.label} needs installed", table([kind, "MiB"], rows, "lr"))
