"""`runner.py report`, which renders what is there: also by other requirements, or over another number of calls."""

import sys
from pathlib import Path

import pytest

import runner
from judging.judgement import Judgement
from records import report_file
from records.schema import Report, Status
from reports import writer
from tests.reports.samples import cell, conv_on_cpu, failed, report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_signals: None) -> Path:
    """Holds a report; no figures are drawn, which would take longer than all else."""
    render = writer.render
    monkeypatch.setattr(writer, "render", lambda found, folder, figures=False: render(found, folder, figures=False))
    writer.write(report(conv_on_cpu()), tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["runner.py", "report", *map(str, arguments)])
    return runner.main()


def test_requirements_judge_a_report_anew_and_none_judge_it_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = report_file.read(folder)
    assert before.verdicts[0].winner == "onnx"
    assert call(monkeypatch, folder, "--require", "median_ms<2, build_s>5") == 0
    after = report_file.read(folder)
    assert after.verdicts[0].winner == "inductor/max-autotune"
    assert after.records == before.records and after.request["require"] == "median_ms<2, build_s>5"
    said = capsys.readouterr().out
    assert "- onnx may not win: build_s is 0.9, not > 5" in said
    assert call(monkeypatch, folder, "--require", "") == 0
    assert report_file.read(folder).verdicts == before.verdicts


def test_the_verdict_is_said_before_anything_is_drawn_and_after_it_is_on_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(found: Report, folder: Path) -> dict[str, Path]:
        assert report_file.read(folder).verdicts[0].winner == "onnx"
        assert "onnx wins" in capsys.readouterr().out
        return {"report.md": folder / "report.md", "report.html": folder / "report.html"}

    monkeypatch.setattr(writer, "render", draw)
    assert call(monkeypatch, folder) == 0
    assert "Report: " in capsys.readouterr().out


def test_a_reader_who_leaves_costs_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(1)  # what rich does where the pipe is closed

    (folder / "report.md").unlink()
    monkeypatch.setattr(runner, "print_report", leave)
    with pytest.raises(SystemExit):
        call(monkeypatch, folder)
    assert (folder / "report.md").exists() and (folder / "report.html").exists()


def test_costs_are_told_over_so_many_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, folder, "--calls", 100_000) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "= onnx over 100,000 calls from a cold start: onnx wins, 1.8" in said
    assert "Over 100,000 calls, against eager:" in (folder / "report.md").read_text(encoding="utf-8")
    assert call(monkeypatch, folder) == 0  # the number is kept
    assert "onnx wins, 1.8" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--calls", "0", "'--calls'"), ("--require", "p9_ms<5", "did you mean 'p99_ms'?")],
)
def test_what_cannot_be_asked_is_refused_and_nothing_is_written(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    said: str,
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert call(monkeypatch, folder, option, value) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_figures_of_several_reports_go_together_into_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[tuple[list[str], Path]] = []

    def draw(judgement: Judgement, target: Path) -> list[Path]:
        drawn.append(([each.run_id for each in judgement.reports], target))
        return [target / "latency.png"]

    monkeypatch.setattr("reports.charts.draw", draw)
    name = report_file.read(folder).run_id
    assert call(monkeypatch, folder, "--figures") == 0
    assert call(monkeypatch, folder, folder / "report.json", "--figures", "--out", folder / "paper") == 0
    assert drawn == [([name], folder / "figures"), ([name, name], folder / "paper")]
    assert f"Figures: {folder / 'paper'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--figures"], "name a folder for them by --out"), (["--out", "paper"], "so give --figures too")],
)
def test_a_folder_of_figures_is_asked_for_where_it_is_needed_and_nowhere_else(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    assert call(monkeypatch, folder, folder, *options) == 2
    assert said in capsys.readouterr().err


def test_a_report_with_nothing_to_draw_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], restored_signals: None
) -> None:
    writer.write(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path, figures=False)
    assert call(monkeypatch, tmp_path, "--figures") == 2
    assert "nothing to draw" in capsys.readouterr().err
