"""A report on disk: `report.json` is the truth; everything beside it is rendered from that and can be made again."""

from collections.abc import Sequence
from pathlib import Path

from bakeoff.judging.judgement import Judgement, judge, judge_together
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.report_file import REPORT_JSON, write_json
from bakeoff.records.schema import Report
from bakeoff.reports import charts, generation, load_report
from bakeoff.reports.csv_files import csv_text, suite_tables, sweep_tables, to_csv
from bakeoff.reports.run_report import DETAILS_MD, to_markdown, to_page, to_short_markdown
from bakeoff.reports.sentences import with_verdicts


def write(report: Report, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Write `report.json` first, so that no failed rendering costs numbers, and then all that `render` writes."""
    judgement = judge(report)
    return {REPORT_JSON: write_json(with_verdicts(judgement), folder)} | render(judgement, folder, figures)


def render(judgement: Judgement, folder: Path, figures: bool = True) -> dict[str, Path]:
    """Write `cells.csv`, the tables of suites and sweeps, `report.html`, `figures/`, `details.md` and `report.md` into
    `folder`.

    Return the files by their names within `folder`, such as `figures/latency.svg`.
    """
    tables = {"cells.csv": to_csv(judgement), **suite_tables(judgement), **sweep_tables(judgement)}
    texts = tables | {"report.html": to_page(judgement, str(folder))}
    if rows := load_report.rows_of(judgement):
        texts["load.csv"] = csv_text(rows)
    if rows := generation.rows_of(judgement):
        texts["generation.csv"] = csv_text(rows)
    written = {name: write_atomically(folder / name, text) for name, text in texts.items()}
    drawn: list[Path] = []
    if figures:
        drawn = charts.draw(judgement, folder / "figures")
        written |= {f"figures/{path.name}": path for path in drawn}
    written[DETAILS_MD] = write_atomically(folder / DETAILS_MD, to_markdown(judgement, figures=drawn))
    written["report.md"] = write_atomically(folder / "report.md", to_short_markdown(judgement, folder, drawn))
    return written


def draw_together(reports: Sequence[Report], paths: Sequence[Path], folder: Path | None) -> Path:
    """Draw the figures of these reports as if they were one, as PNG and SVG, into `folder`, and return it.

    `paths` are where they were read from: without a folder it is `figures/` beside a single one. Raises UsageError
    where several have no folder, or nothing in them can be drawn.
    """
    if folder is None and len(paths) > 1:
        raise UsageError("--figures of several reports go together: name a folder for them by --out")
    beside = paths[0] if paths[0].is_dir() else paths[0].parent
    target = folder or beside / "figures"
    if not charts.draw(judge_together(reports), target, png=True):
        raise UsageError(f"nothing to draw in {', '.join(map(str, paths))}: no cell has numbers or phases")
    return target
