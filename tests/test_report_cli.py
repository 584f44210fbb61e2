"""`bakeoff report`, which renders what is there: also by other requirements, or over another number of calls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bakeoff import cli
from bakeoff.records import report_file
from bakeoff.records.schema import Status
from bakeoff.reports import writer
from tests.reports.samples import cell, conv_on_cpu, failed, report
from tests.support.checkout import ROOT


@pytest.fixture
def folder(tmp_path: Path, restored_signals: None) -> Path:
    """Holds a report, without figures."""
    writer.write(report(conv_on_cpu()), tmp_path, figures=False)
    return tmp_path


def without_verdicts(folder: Path) -> None:
    """Take the verdicts out of the report on disk, so that new ones can be told from them."""
    report_file.write_json(report_file.read(folder).model_copy(update={"verdicts": []}), folder)


def call(*arguments: object) -> int:
    return cli.main(["report", *map(str, arguments)])


def test_requirements_judge_a_report_anew_and_none_judge_it_as_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = report_file.read(folder)
    assert before.verdicts[0].winner == "onnx"
    assert call(folder, "--keep", "--require", "median_ms<2, build_s>5") == 0
    after = report_file.read(folder)
    assert after.verdicts[0].winner == "inductor/max-autotune"
    assert after.records == before.records and after.request["require"] == "median_ms<2, build_s>5"
    said = capsys.readouterr().out
    assert "- onnx may not win: build_s is 0.9, not > 5" in said
    assert call(folder, "--keep", "--require", "") == 0
    assert report_file.read(folder).verdicts == before.verdicts


def test_a_build_that_is_not_in_the_folder_is_not_offered_for_export(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = report_file.read(folder)
    kept = [each.model_copy(update={"artifact": f"artifacts/{each.cell.id}"}) for each in made.records]
    for has_builds in (True, False):
        report_file.write_json(made.model_copy(update={"records": kept}), folder)
        for record in kept:
            path = folder / record.artifact
            path.mkdir(parents=True) if has_builds else path.rmdir()
        assert call(folder) == 0
        assert ("bakeoff export" in capsys.readouterr().out) is has_builds


def test_figures_that_cannot_be_drawn_cost_neither_the_verdict_nor_the_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is said before anything is drawn."""
    without_verdicts(folder)
    (folder / "figures").write_text("in the way")
    assert call(folder) == 1
    assert report_file.read(folder).verdicts[0].winner == "onnx"
    assert "onnx wins" in capsys.readouterr().out


def test_a_reader_who_leaves_costs_no_file(folder: Path) -> None:
    without_verdicts(folder)
    (folder / "report.md").unlink()
    reader, writing_end = os.pipe()
    os.close(reader)
    with open(writing_end, "wb") as closed:
        subprocess.run([sys.executable, str(ROOT / "runner.py"), "report", str(folder)], stdout=closed, timeout=120)
    assert report_file.read(folder).verdicts[0].winner == "onnx"
    assert (folder / "report.md").exists() and (folder / "report.html").exists()


def test_costs_are_told_over_so_many_calls(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--keep", "--calls", 100_000) == 0
    said = " ".join(capsys.readouterr().out.split())
    answer = re.search(r"→ onnx (\S+) s for 100,000 calls (1\.8\dx) eager", said)
    assert answer and "= From a cold start eager costs least up to call" in said
    for name in ("report.md", "details.md"):
        row = re.search(r"^\| 100,000 \| (.*)$", (folder / name).read_text(encoding="utf-8"), flags=re.M)
        assert row and f"{answer[1]}\\*" in row[1]  # one number for one thing
    assert call(folder) == 0  # the number is kept
    assert answer[0] in " ".join(capsys.readouterr().out.split())
    assert call(folder, "--keep", "--calls", 0) == 0
    assert "for 100,000 calls" not in capsys.readouterr().out


@pytest.mark.parametrize("asked", [("--calls", "100000"), ("--require", "median_ms<2, build_s>5")])
def test_a_question_changes_nothing_on_disk(
    folder: Path, asked: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder) == 0
    plain = capsys.readouterr().out
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert call(folder, *asked) == 0
    answer = capsys.readouterr().out
    assert answer != plain and "--keep" in answer and "report.md" not in answer
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--calls", "-1", "'--calls'"), ("--require", "p9_ms<5", "did you mean 'p99_ms'?")],
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_written(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    said: str,
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert call(folder, option, value) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_figures_of_several_reports_go_together_into_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--figures") == 0
    assert call(folder, folder / "report.json", "--figures", "--out", folder / "paper") == 0
    alone, together = (folder / name / "latency.svg" for name in ("figures", "paper"))
    assert together.stat().st_size > 1.5 * alone.stat().st_size
    assert f"Figures: {folder / 'paper'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--figures"], "name a folder for them by --out"), (["--out", "paper"], "join runs without a contest in common")],
)
def test_several_reports_need_a_folder_for_their_figures_and_no_contest_in_common(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    assert call(folder, folder, *options) == 2
    assert said in capsys.readouterr().err


def test_a_report_with_nothing_to_draw_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], restored_signals: None
) -> None:
    writer.write(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path, figures=False)
    assert call(tmp_path, "--figures") == 2
    assert "nothing to draw" in capsys.readouterr().err
