"""Each surface as a reader sees it, held against a file in `golden/`. Sentences and tables are asserted here, together.

`UPDATE_GOLDEN=1 pytest -k as_before tests/reports` writes the files anew: read what `git diff` shows then.
"""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bakeoff.judging.compare import Comparison, compare, parse_fail_on
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.schema import Extent, Placement, Status
from bakeoff.reports import comparison, csv_files, junit, site, summary
from bakeoff.reports.run_report import to_cell, to_markdown, to_page, to_short_markdown
from tests.reports import samples, test_columns, test_dynamic, test_short_tables, test_sweep_tables
from tests.reports.test_page import Page
from tests.support.golden import same_as_golden
from tests.support.printed import printed, reported

FIGURES = ["figures/latency.svg", "figures/costs.svg", "figures/samples-2.svg", "latency.png"]

RUNS: dict[str, Callable[[], Judgement]] = {
    "statuses": samples.judged,
    "interrupted": lambda: samples.judged(samples.mlp_on_cuda(), complete=False, planned=40),
    "floor": lambda: samples.judged([*samples.product_on_cuda(), *samples.strictly_on_cpu()]),
    "questions": lambda: judge(
        samples.report(test_short_tables.records(test_short_tables.KINDS), request={"calls": 1000, "price": "1/h"})
    ),
    "columns": lambda: samples.judged(test_columns.a_contest()),
    "metrics": lambda: samples.judged(test_columns.with_metrics()),
    "suite": lambda: samples.judged(samples.suite(5)),
    "sizes": lambda: judge(samples.report(test_dynamic.records())),
}


def compared() -> Comparison:
    """Return two runs with a cell that became slower and differs in more, one that broke, and another environment."""
    second, onnx = samples.conv_on_cpu()[1], samples.cell("onnx")
    before: dict[str, object] = {"build_s": 2.0, "precision_in_force": {"tf32": False}}
    now: dict[str, object] = {"build_s": 3.0, "precision_in_force": {"tf32": True}}
    now |= {"accuracy": samples.accuracy(2.6e-7), "placement": Placement(extent=Extent.PARTIAL)}
    base = [samples.ok(samples.cell(), samples.over_processes(1.7)),
            samples.ok(onnx, samples.over_processes(0.9, seed=1), **before), second]  # fmt: skip
    new = [
        base[0],
        samples.ok(onnx, samples.over_processes(1.08, seed=1), **now),
        samples.failed(second.cell, Status.OOM, "out of memory", log_tail="allocating"),
    ]
    other = {"cuda": "13.0", "git_commit": "fff0000", "git_dirty": False, "hostname": "other"}
    where = samples.environment().model_copy(update=other)
    return compare(samples.report(base), samples.report(new, run_id="new", environment=where))


def read(html: str) -> str:
    """Return what a reader reads of a page, a line for each piece of text outside of charts."""
    texts = (text for tag, text in Page(html).text if tag not in ("script", "style", "text", "title"))
    return "\n".join(filter(None, (" ".join(text.split()) for text in texts)))


def csv_of(text: str) -> str:
    """Return a CSV with a line for each value, and six digits of each number: processors differ in the last ones."""
    rows = csv.DictReader(io.StringIO(text))
    values = ["".join(f"{name}: {value}\n" for name, value in row.items()) for row in rows]
    return re.sub(r"\b\d+\.\d+(e[+-]\d+)?\b", lambda number: f"{float(number[0]):.6g}", "\n".join(values))


FILES: dict[str, Callable[[], str]] = {
    "columns.csv.txt": lambda: csv_of(csv_files.to_csv(RUNS["columns"]())),
    "metrics.csv.txt": lambda: csv_of(csv_files.to_csv(RUNS["metrics"]())),
    "suite.csv.txt": lambda: csv_of(csv_files.suite_tables(RUNS["suite"]())["suite.csv"]),
    "dynamo.csv.txt": lambda: csv_of(csv_files.suite_tables(RUNS["suite"]())["dynamo.csv"]),
    **{
        f"{swept}.csv.txt": lambda records=records: csv_of(*csv_files.sweep_tables(samples.judged(records)).values())
        for swept, records in {"attention": test_sweep_tables.SWEPT, "models": test_sweep_tables.MODELS}.items()
    },
    "statuses.junit.xml": lambda: junit.of_run(RUNS["statuses"]()).replace("><", ">\n<"),
    "comparison.junit.xml": lambda: junit.of_comparison(compared(), parse_fail_on("slower")).replace("><", ">\n<"),
    "statuses.summary.md": lambda: summary.of_run(RUNS["statuses"]()),
    "suite.summary.md": lambda: summary.of_run(RUNS["suite"]()),
    "comparison.summary.md": lambda: summary.of_comparison(compared()),
}


SURFACES: dict[str, Callable[[Judgement], str]] = {
    "details.md": lambda run: to_markdown(run, FIGURES),
    "report.md": lambda run: to_short_markdown(run, Path("FOLDER"), FIGURES),
    "80.txt": lambda run: reported(run, 80, is_terminal=True),
    "160.txt": lambda run: reported(run, 160, is_terminal=True),
    "page.txt": lambda run: read(to_page(run)),
    "cell.txt": lambda run: read(to_cell(run)),
}


@pytest.mark.parametrize(
    ("run", "surface"),
    [
        *(("statuses", surface) for surface in SURFACES),
        *((run, "report.md") for run in ("interrupted", "floor")),
        *((run, "details.md") for run in ("floor", "columns", "metrics", "questions", "suite", "sizes")),
        *((run, "80.txt") for run in ("floor", "columns", "metrics", "questions", "suite", "sizes")),
        ("columns", "page.txt"),
    ],
)
def test_a_report_reads_as_before(run: str, surface: str) -> None:
    same_as_golden(f"{run}.{surface}", SURFACES[surface](RUNS[run]()))


def test_a_comparison_reads_as_before() -> None:
    same_as_golden("comparison.md", comparison.to_markdown(compared()))
    same_as_golden("comparison.80.txt", printed(comparison.blocks_of(compared())))
    same_as_golden("comparison.page.txt", read(comparison.to_page(compared())))


def test_a_site_reads_as_before() -> None:
    runs = [samples.judged(), samples.judged(samples.conv_on_cpu(), run_id="later", created_at="2026-05-02T10:00:00Z")]
    same_as_golden("site.page.txt", read(site.to_index([site.PublishedRun(run, "runs/x.html") for run in runs])))
    same_as_golden("site.card.md", site.to_card(runs))


@pytest.mark.parametrize("name", FILES)
def test_a_file_for_programs_or_ci_reads_as_before(name: str) -> None:
    same_as_golden(name, FILES[name]())
