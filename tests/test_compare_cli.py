"""`bakeoff compare` and `history`, from what a user types to the exit status."""

import shutil
from pathlib import Path

import pytest

from bakeoff.records.schema import Burst, Status
from bakeoff.reports import writer
from tests.conftest import CommandLine
from tests.reports.samples import cell, failed, ok, report, steady


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `base`, `slower` and `crashed`."""
    folder = tmp_path_factory.mktemp("runs")
    for place, (name, onnx_ms) in enumerate({"base": 0.9, "slower": 1.08}.items(), 1):
        records = [ok(cell(), in_three_processes(1.7)), ok(cell("onnx"), in_three_processes(onnx_ms))]
        found = report(records, run_id=name, created_at=f"2026-05-0{place}T10:00:00Z")
        writer.write(found, folder / name, figures=False)
    records = [ok(cell(), in_three_processes(1.7)), failed(cell("onnx"), Status.CRASH, "died in load, signal 11")]
    found = report(records, run_id="crashed", created_at="2026-05-03T10:00:00Z")
    writer.write(found, folder / "crashed", figures=False)
    return folder


@pytest.fixture(autouse=True)
def runs(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)


def in_three_processes(median_ms: float) -> list[Burst]:
    return steady([median_ms * off for off in (1.0, 1.01, 0.99)], rounds=1)


def test_a_run_compared_with_itself_passes(command_line: CommandLine) -> None:
    status, out, err = command_line("compare", "base", "base/report.json")
    assert (status, err) == (0, "")
    assert out.startswith("No regression over 5 % was found: 2 same.\n")


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("slower", "1 regression: onnx on conv on cpu, fp32 is slower, +20 %"),
        ("crashed", "1 regression: onnx on conv on cpu, fp32: ok -> crash: died in load, signal 11."),
    ],
)
def test_a_regression_ends_in_4(command_line: CommandLine, new: str, said: str) -> None:
    status, out, err = command_line("compare", "base", new)
    assert (status, err) == (4, "")
    assert out.startswith(said)


def test_what_is_allowed_can_be_said(command_line: CommandLine) -> None:
    status, out, _ = command_line("compare", "base", "slower", "--fail-above", "25%")
    assert status == 0
    assert " slower   onnx " in out


def test_the_comparison_goes_into_a_file_too(command_line: CommandLine, tmp_path: Path) -> None:
    status, out, _ = command_line("compare", "base", "slower", "--out", "new/comparison.md", "--html", "page/new.html")
    assert status == 4
    written = (tmp_path / "new" / "comparison.md").read_text(encoding="utf-8")
    assert written.startswith("**1 regression: onnx on conv") and "| verdict | cell |" in written
    assert out.startswith("1 regression: onnx on conv") and "|" not in out
    assert "onnx on conv on cpu, fp32 is slower" in (tmp_path / "page" / "new.html").read_text(encoding="utf-8")


def test_a_gate_fails_on_what_it_is_reported_to_and_leaves_files_for_a_ci_system(
    command_line: CommandLine, tmp_path: Path
) -> None:
    files = ("--junit", "ci/junit.xml", "--summary", "ci/summary.md")
    assert command_line("compare", "base", "slower", "--fail-on", "broken", *files)[0] == 0
    assert "<failure" not in (tmp_path / "ci" / "junit.xml").read_text(encoding="utf-8")
    assert command_line("compare", "base", "slower", "--fail-on", "slower,incorrect", *files)[0] == 4
    assert '<failure type="slower"' in (tmp_path / "ci" / "junit.xml").read_text(encoding="utf-8")
    assert (tmp_path / "ci" / "summary.md").read_text(encoding="utf-8").startswith("**1 regression: onnx on conv")


def test_a_report_leaves_files_for_a_ci_system_too(command_line: CommandLine, tmp_path: Path) -> None:
    assert command_line("report", "crashed", "--junit", "junit.xml", "--summary", "summary.md")[0] == 0
    assert 'errors="1"' in (tmp_path / "junit.xml").read_text(encoding="utf-8")
    assert "onnx on conv on cpu, fp32: crash" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_a_history_goes_into_the_current_folder(command_line: CommandLine, tmp_path: Path) -> None:
    assert command_line("history", "base")[:2] == (0, "History: history.md\n")
    assert (tmp_path / "history.md").exists() and not (tmp_path / "base" / "history.md").exists()
    assert command_line("history", "base")[:2] == (0, "History: history.md, in place of an earlier one\n")
    (tmp_path / "history.md").write_text("# Changes of our service\n", encoding="utf-8")
    status, _, err = command_line("history", "base")
    assert status == 2 and "history.md is not a history, and would be overwritten: name another folder by --out" in err
    assert (tmp_path / "history.md").read_text(encoding="utf-8") == "# Changes of our service\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "base", "base", "--fail-on", "slow"], "did you mean 'slower'?"),
        (["report", "base", "slower", "--junit", "x.xml"], "--junit and --summary are of one report"),
        (["compare", "base"], "new"),
        (["compare", "base", "nowhere"], "no report at nowhere"),
        (["compare", "base", "base", "--fail-above", "0.05"], "--fail-above 0.05: write a percentage over 0"),
        (["history"], "folder"),
        (["history", "nowhere"], "nowhere is no folder"),
    ],
)
def test_wrong_usage_is_one_line_and_ends_in_2(command_line: CommandLine, arguments: list[str], said: str) -> None:
    status, out, err = command_line(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and said in line


def test_a_history_is_written_and_what_it_left_out_is_named(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{", encoding="utf-8")
    status, out, err = command_line("history", ".", "--out", "told")
    assert (status, out) == (0, "History: told/history.md\n")
    assert err.startswith("left out: ") and "is not JSON" in err
    assert "| onnx | 3 | 0.900" in (tmp_path / "told" / "history.md").read_text(encoding="utf-8")
