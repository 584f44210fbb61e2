"""Each surface as a reader sees it, held against a file in `golden/`. Sentences and tables are asserted here, together.

`UPDATE_GOLDEN=1 pytest -k as_before tests/reports` writes the files anew: read what `git diff` shows then.
"""

import csv
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bakeoff.judging.compare import Comparison, compare, parse_fail_on
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.report_file import read
from bakeoff.records.schema import Extent, Placement, Record, Report, Status
from bakeoff.reports import comparison, csv_files, junit, site, summary
from bakeoff.reports.run_report import to_cell, to_markdown, to_page, to_short_markdown
from bakeoff.reports.sentences import with_verdicts
from bakeoff.reports.writer import write
from tests.reports import samples, test_columns, test_suite_report
from tests.reports.samples import HOSTILE, bursts, cell, conv_on_cpu, failed, judged, ok, report, steady, sweep, under
from tests.reports.test_page import Page
from tests.support.golden import same_as_golden
from tests.support.printed import printed, reported

FIGURES = ["figures/latency.svg", "figures/costs.svg", "figures/samples-2.svg", "latency.png"]

RUNS: dict[str, Callable[[], Judgement]] = {
    "statuses": samples.judged,
    "interrupted": lambda: samples.judged(samples.mlp_on_cuda(), complete=False, planned=40),
    "floor": lambda: samples.judged([*samples.product_on_cuda(), *samples.strictly_on_cpu()]),
    "questions": lambda: judge(
        samples.report(test_columns.records(test_columns.KINDS), request={"calls": 1000, "price": "1/h"})
    ),
    "columns": lambda: samples.judged(test_columns.a_contest()),
    "metrics": lambda: samples.judged(test_columns.with_metrics()),
    "suite": lambda: samples.judged(samples.suite(5)),
    "sizes": lambda: judge(samples.report(test_suite_report.records())),
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
    where = samples.environment().but(**other)
    return compare(samples.report(base), samples.report(new, run_id="new", environment=where))


def visible_text(html: str) -> str:
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
        for swept, records in {"attention": test_columns.SWEPT, "models": test_columns.MODELS}.items()
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
    "page.txt": lambda run: visible_text(to_page(run)),
    "cell.txt": lambda run: visible_text(to_cell(run)),
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
    same_as_golden("comparison.page.txt", visible_text(comparison.to_page(compared())))


def test_a_site_reads_as_before() -> None:
    runs = [samples.judged(), samples.judged(samples.conv_on_cpu(), run_id="later", created_at="2026-05-02T10:00:00Z")]
    same_as_golden(
        "site.page.txt", visible_text(site.to_index([site.PublishedRun(run, "runs/x.html") for run in runs]))
    )
    same_as_golden("site.card.md", site.to_card(runs))


@pytest.mark.parametrize("name", FILES)
def test_a_file_for_programs_or_ci_reads_as_before(name: str) -> None:
    same_as_golden(name, FILES[name]())


LEVELS = [1.0, 1.0, 1.0]


def compared_statuses(*statuses: Status | None, factor: float = 1.0, copies: int = 1) -> Comparison:
    """Two runs of eager and a cell for each status, which in the new run ended so; None is `ok`."""
    base: list[Record] = [ok(cell(), steady(LEVELS))]
    new: list[Record] = [ok(cell(), steady(LEVELS))]
    for number, status in enumerate(statuses * copies):
        one = cell("onnx", f"mode-{number}")
        base.append(ok(one, steady(LEVELS)))
        slower = steady([factor * level for level in LEVELS])
        new.append(failed(one, status, HOSTILE) if status else ok(one, slower))
    return compare(report(base), report(new))


def cases(xml: str) -> dict[str, list[str]]:
    """Return the names of what each test case holds."""
    root = ElementTree.fromstring(xml)
    return {case.attrib["name"]: [child.tag for child in case] for case in root.iter("testcase")}


def test_the_time_of_a_suite_is_what_passed_and_not_the_sum_of_cells_that_share_rounds() -> None:
    def lasted(label: str, began: str, elapsed_s: float, model: str = "conv") -> Record:
        update = {"started_at": f"2026-11-27T08:00:{began}+00:00", "elapsed_s": elapsed_s}
        return ok(cell(label, model=model), steady(LEVELS)).but(**update)

    both = [lasted("eager", "00", 20.0), lasted("onnx", "02", 18.5), lasted("inductor", "05", 5.0)]
    alone = [lasted("eager", "30", 5.0, "mlp"), lasted("onnx", "40", 4.0, "mlp")]  # it was resumed in between
    found = report([*both, *alone]).but(elapsed_s=31.0)
    for xml in (junit.of_run(judge(found)), junit.of_comparison(compare(found, found), parse_fail_on("broken"))):
        root = ElementTree.fromstring(xml)
        assert [root.attrib["time"], *(suite.attrib["time"] for suite in root)] == ["31.000", "20.500", "9.000"]


def test_text_that_xml_cannot_hold_is_left_out() -> None:
    found = report([failed(cell("onnx"), Status.CRASH, "\x00\x1b[31mred\x1b[0m \ud800 & <b>")])
    (error,) = ElementTree.fromstring(junit.of_run(judge(found))).iter("error")
    assert error.attrib["message"] == "red  & <b>"


@pytest.mark.parametrize(("words", "tag"), [("slower,broken", "failure"), ("broken", "system-out")])
def test_a_comparison_fails_the_cases_that_fail_its_gate(words: str, tag: str) -> None:
    xml = junit.of_comparison(compared_statuses(None, factor=1.2), parse_fail_on(words))
    assert cases(xml) == {"onnx/mode-0": [tag], "eager": ["system-out"]}


def test_a_case_of_which_nothing_can_be_reported_is_skipped() -> None:
    one = report([ok(cell(), steady([1.0]))])
    assert cases(junit.of_comparison(compare(one, one), parse_fail_on("slower"))) == {"eager": ["skipped"]}


def test_the_summary_names_the_libraries_that_gave_a_number() -> None:
    gave = ok(cell("theirs"), steady([1.0]), versions={"torch": "2.9.0", "theirs-lib": "1.2"})
    lost = failed(cell("lost"), Status.CRASH, "signal 11", versions={"lost-lib": "3.4"})
    text = summary.of_run(judged([gave, lost]))
    assert "torch 2.9.0, theirs-lib 1.2" in text and "lost-lib" not in text


@pytest.mark.parametrize(
    "found",
    [
        report(),
        sweep(40, 2),
        report([failed(cell("onnx", f"mode-{number}"), Status.CRASH, HOSTILE) for number in range(50)]),
        sweep(40, 2).but(complete=False),
    ],
    ids=["three contests", "a sweep", "failures", "interrupted"],
)
def test_the_summary_of_a_run_is_short(found: Report) -> None:
    lines = summary.of_run(judge(found)).splitlines()
    assert len(lines) <= 30 and lines[-1].startswith(("NVIDIA H200", "AMD EPYC"))


@pytest.mark.parametrize("statuses", [(None, Status.CRASH), (None, None)])
def test_the_summary_of_a_comparison_is_short(statuses: tuple[Status | None, ...]) -> None:
    found = compared_statuses(*statuses, factor=1.2 if any(statuses) else 1.0, copies=16)
    text = summary.of_comparison(found)
    assert len(text.splitlines()) <= 30
    assert f"Not shown: {len(found.cells) - 14} cells" in text


SHOWCASE = Path(__file__).parents[2] / "docs" / "showcase"


def test_every_file_is_written_and_pictures_are_embedded_by_their_relative_path(tmp_path: Path) -> None:
    made = report([ok(cell(), bursts(1.0))])
    written = write(made, tmp_path / "new" / "run")
    texts = ["report.json", "cells.csv", "report.html", "details.md", "report.md"]
    assert [name for name in written if not name.startswith("figures/")] == texts
    assert "figures/latency.svg" in written
    assert all(path == tmp_path / "new" / "run" / name and path.is_file() for name, path in written.items())
    assert "](figures/latency.svg)" in written["report.md"].read_text(encoding="utf-8")
    assert read(tmp_path / "new" / "run") == with_verdicts(judge(made))


def test_a_failed_rendering_loses_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()  # no file can take its place
    with pytest.raises(OSError, match=r"report\.md"):
        write(report(), tmp_path, figures=False)
    assert read(tmp_path) == with_verdicts(judge(report()))


@pytest.mark.parametrize("folder", ["cpu", pytest.param("h200", marks=pytest.mark.slow)])
def test_a_showcase_is_still_read_and_rendered(folder: str, tmp_path: Path) -> None:
    found = read(SHOWCASE / folder)
    written = write(found, tmp_path, figures=False)
    assert found.records[0].cell.label in written["report.md"].read_text(encoding="utf-8")


def test_no_file_has_a_ratio_that_measures_waiting(tmp_path: Path) -> None:
    """Eager took 48 ms beside other programs, and 0.5 ms were measured of onnx: 96.246 times."""
    at_work = {"wait_share": 1.4, "cpu_share": 1.2, "caller_share": 0.6, "others_cores": 2.0}
    waited = under(steady([48.123] * 3, rounds=12), **at_work)
    write(report([ok(cell("onnx"), steady([0.5] * 3, rounds=12)), ok(cell("eager"), waited)]), tmp_path)
    for name in ("report.md", "details.md", "report.html", "cells.csv"):
        text = (tmp_path / name).read_text()
        assert not re.search(r"96\.2|\b96x", text), name
        assert name == "cells.csv" or "the machine was busy" in text, name


ROOT = Path(__file__).parents[2]

RENDER = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, NoTorch())
from io import StringIO
from pathlib import Path
from rich.console import Console
from bakeoff.records.report_file import read
from bakeoff.reports.writer import write
assert "matplotlib" not in sys.modules  # which the harness need not wait for
from bakeoff.judging.judgement import judge
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.run_report import print_report
source, target = map(Path, sys.argv[1:])
report = read(source)
write(report, target)
print_report(judge(report), Console(file=StringIO()))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_report_renders_where_there_is_no_torch_and_its_writer_comes_without_matplotlib(tmp_path: Path) -> None:
    write(report(conv_on_cpu()), tmp_path / "measured", figures=False)
    done = subprocess.run(
        [sys.executable, "-c", RENDER, tmp_path / "measured", tmp_path / "rendered"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("report.json", "cells.csv"):
        assert (tmp_path / "rendered" / name).read_bytes() == (tmp_path / "measured" / name).read_bytes()
    assert "](figures/samples.svg)" in (tmp_path / "rendered" / "details.md").read_text(encoding="utf-8")
