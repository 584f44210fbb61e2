"""The terminal while a run goes on, its report, and what is written where somebody ends it then."""

import os
import re
import signal
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff.commands import run as runs
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.schema import Status
from bakeoff.records.store import Store
from bakeoff.reports import console, writer
from bakeoff.reports.blocks import Items, Text
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.tables import text_table
from tests.reports.samples import (
    cell,
    constant,
    conv_on_cpu,
    failed,
    judged,
    mlp_on_cuda,
    ok,
    once,
    product_on_cuda,
    report,
    strictly_on_cpu,
)
from tests.support.printed import printed, reported


def plain(width: int = 80) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, width=width), file


def terminal(height: int = 30, width: int = 100) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, width=width, height=height, force_terminal=True, color_system=None), file


def last_picture(file: StringIO) -> list[str]:
    """Lines of what stands on the terminal after the last drawing."""
    picture = re.split(r"\x1b\[2K|\r", file.getvalue())[-1] if "\x1b[2K" in file.getvalue() else file.getvalue()
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture).splitlines() if line.strip()]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_each_built_or_failed_cell_and_each_contest_is_a_line() -> None:
    console, file = plain(width=40)  # lines are not wrapped, however narrow
    clock = Clock()
    eager, onnx = cell(), cell("onnx", "tuned", dimensions={"batch": 4}, device="cuda", precision="fp16")
    with LiveTable(console, clock_s=clock) as table:
        table.planned([eager, onnx])
        table.note("computing [once]")
        table.time_left(120, 122)
        table.phase(eager, "compile")
        clock.now_s += 65
        table.built(eager, 12.3)
        table.built(onnx, 0.5, is_cached=True)
        table.phase(eager, "measure")
        table.measured(eager, 1.5)
        table.tick()
        measured = ok(eager, constant([1.02] * 6))
        table.ended(measured)
        for _ in range(2):  # two contests lack it for the same reason
            table.ended(failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU"))
        table.ended(failed(cell("triton"), Status.UNSUPPORTED, "no kernel"))
        table.ended(failed(onnx, Status.CRASH, "died\nin [load]", died_in="load", signal=11))
        clock.now_s += 60
        table.decided([measured])
    assert file.getvalue().splitlines() == [
        "[0:00] computing [once]",
        "[1:05, about 0:57 left] conv cpu fp32 eager is ready after 12 s",
        "[1:05, about 0:57 left] conv batch=4 cuda fp16 onnx/tuned is ready after 0.50 s, from the cache",
        "[1:05, about 0:57 left] conv batch=4 cuda fp16 onnx/tuned: crash in load, died in [load]",
        "[2:05, longer than expected] 2 backends that cannot run here were not tried: tensorrt, triton",
        "[2:05, longer than expected] conv on cpu, fp32: eager, 1.020 ms, only eager could be ranked",
    ]


def test_the_line_of_a_contest_answers_what_was_asked() -> None:
    console, file = plain()
    with LiveTable(console, calls=10) as table:
        table.decided([once(1.0, "onnx", build_s=20.0), once(2.0, "eager")])
    assert re.fullmatch(r"\[0:00\] conv on cpu, fp32: eager, 0\.0\d+ s for 10 calls, .*\n", file.getvalue())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_quiet_says_nothing(is_terminal: bool) -> None:
    console, file = terminal() if is_terminal else plain()
    with LiveTable(console, quiet=True) as table:
        table.planned([cell()])
        table.phase(cell(), "compile")
        table.note("something")
        table.ended(ok(cell(), constant([1.02] * 6)))
    assert file.getvalue() == ""


def test_a_terminal_shows_phase_elapsed_and_median() -> None:
    console, file = terminal()
    clock = Clock()
    with LiveTable(console, clock_s=clock) as table:
        table.planned([cell(), cell("onnx")])
        table.phase(cell(), "compile")
        table.time_left(60, 90)
        clock.now_s += 12
        table.tick()
        compiling = last_picture(file)
        table.phase(cell(), "measure")
        clock.now_s += 1
        table.measured(cell(), 1.234)
        measuring = last_picture(file)
        clock.now_s += 1
        table.ended(ok(cell(), constant([1.02] * 6)))
        table.ended(failed(cell("onnx"), Status.ERROR, "[red]no[/red]", died_in="export"))
    assert any(re.search(r"eager +compile +12 s", line) for line in compiling)
    assert any(re.search(r"onnx +waiting", line) for line in compiling)
    assert compiling[-1] == "0 of 2 cells ended, 1 in flight, 0:12, 0:48 to 1:18 left"
    assert any(re.search(r"eager +measure +1 s +1\.234 ms", line) for line in measuring)
    final = last_picture(file)
    assert any(re.search(r"eager +ok +4 s +1\.020 ms", line) for line in final)
    assert any("error in export" in line and "[red]no[/red]" in line for line in final)
    assert final[-1] == "2 of 2 cells ended, 1 ok, 1 error, 0:14, 0:46 to 1:16 left"


def test_a_terminal_shows_which_cell_leads_from_the_first_round_on() -> None:
    console, file = terminal()
    clock = Clock()
    elsewhere = cell("inductor", device="cuda")

    def leading() -> list[str]:
        clock.now_s += 1
        table.tick()
        return [line.split()[3] for line in last_picture(file) if "leads so far" in line]

    with LiveTable(console, clock_s=clock) as table:
        table.planned([cell(), cell("onnx"), elsewhere])
        for one in (cell(), cell("onnx"), elsewhere):
            table.phase(one, "measure")
        table.measured(cell(), 2.0)
        table.measured(elsewhere, 0.5)
        assert leading() == [], "nothing is compared yet"
        table.measured(cell("onnx"), 1.0)
        assert leading() == ["onnx"]
        table.measured(cell("onnx"), 3.0)
        assert leading() == ["eager"]
        table.ended(failed(cell(), Status.INCORRECT, "wrong"))
        assert leading() == [], "what is wrong does not lead"


def test_it_is_drawn_only_when_called_and_at_most_four_times_a_second() -> None:
    console, file = terminal()
    clock = Clock()
    threads = threading.active_count()
    with LiveTable(console, clock_s=clock) as table:
        table.planned([cell()])
        written = file.tell()
        for number in range(100):
            table.measured(cell(), float(number))
        assert file.tell() == written
        assert threading.active_count() == threads
        clock.now_s += 0.26
        table.measured(cell(), 7.0)
        assert file.tell() > written
        assert "7.000 ms" in "".join(last_picture(file))


def test_more_cells_than_lines_show_those_in_flight_and_counts() -> None:
    console, file = terminal(height=10)
    clock = Clock()
    cells = [cell("null", f"mode{number}") for number in range(40)]
    with LiveTable(console, clock_s=clock) as table:
        table.planned(cells)
        for each in cells[:20]:
            table.ended(failed(each, Status.OOM, "full"))
            clock.now_s += 1
        table.phase(cells[30], "compile")
        table.phase(cells[31], "load")
    final = last_picture(file)
    assert len(final) <= 9
    assert "null/mode30" in final[0] and "null/mode31" in final[1]
    assert "null/mode19" in final[2]  # the last to end
    assert final[-1] == "20 of 40 cells ended, 20 oom, 2 in flight, 0:20"


def test_an_exception_leaves_the_terminal_in_order() -> None:
    console, file = terminal()

    def interrupted() -> None:
        with LiveTable(console) as table:
            table.phase(cell(), "compile")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.parametrize("width", [80, 116])
def test_the_report_fits_and_loses_nothing(width: int) -> None:
    wide = ok(cell("inductor", "max-autotune-no-cudagraphs"), constant([123.4, 234.5, 345.6] * 4))
    for records in (conv_on_cpu(), mlp_on_cuda(), [*strictly_on_cpu(), wide], product_on_cuda()):
        table = reported(judged(records), width, is_terminal=True)
        assert all(len(line) <= width for line in table.splitlines())
        assert "…" not in table


def test_a_pipe_gets_each_finding_in_one_line() -> None:
    reason = f"died in load, signal 11: see /{'long/' * 40}eager.log"
    text = reported(judged([ok(cell(), constant([1.0] * 4)), failed(cell("onnx"), Status.CRASH, reason)]), width=40)
    assert f"x onnx crash: {reason}" in text.splitlines()


def test_cells_that_ended_alike_share_a_line() -> None:
    lost = [failed(cell(label), Status.ERROR, "your model failed to load: see eager") for label in ("onnx", "inductor")]
    told = failed(cell(), Status.ERROR, "your model failed to load: ValueError: no weights")
    text = reported(judged([told, *lost]))
    assert "x eager error: your model failed to load: ValueError: no weights" in text
    assert "x onnx, inductor error: your model failed to load: see eager" in text
    assert text.count("failed to load") == 2


def test_what_best_left_out_has_no_row_and_is_told_once() -> None:
    why = "hotpath/cuda-graph replays the same code"
    conv = conv_on_cpu()
    gone = [conv[0].cell.model_copy(update={"backend": backend, "mode": "default"}) for backend in ("iree", "hotpath")]
    text = reported(judged([*conv, *(failed(one, Status.LEFT_OUT, why) for one in gone)]))
    assert f"Left out: iree, hotpath ({why})." in " ".join(text.split())
    assert text.count("iree") == 1


def test_a_pipe_gets_whole_rows_and_titles_and_a_terminal_rows_that_fit() -> None:
    why = "a reason that is far longer than the edge of a terminal, and stays in one line of a pipe"
    table = text_table(["cell", "why"], [["onnx", why]], "ll", f"Why: {why}")
    blocks = [table, Text(why), Items([why], f"Whys of {why}")]
    piped = printed(blocks, width=40, is_terminal=False).splitlines()
    assert piped == [f"Why: {why}", "", " cell     why", f" {'─' * (9 + len(why))}", f" onnx     {why}", "", why,
                     f"Whys of {why}:", f"- {why}"]  # fmt: skip
    assert all(len(line) <= 40 for line in printed(blocks, width=40).splitlines())


def rendering(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    render = writer.render

    def interrupted(judgement: Judgement, folder: Path, figures: bool = True) -> dict[str, Path]:
        meanwhile()
        return render(judgement, folder, figures=False)

    monkeypatch.setattr(writer, "render", interrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_report_is_written_to_the_end(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    rendering(monkeypatch, lambda: os.kill(os.getpid(), number))
    for complete, status in ((True, runs.exit_status(judge(report(conv_on_cpu())))), (False, runs.INTERRUPTED)):
        of_run = report(conv_on_cpu(), complete=complete)
        told = runs.conclude(of_run, Store(tmp_path), quiet=True, as_json=False, junit=None, summary=None)
        assert told == status, "a signal that comes when all is measured changes nothing"
    assert {"report.json", "report.md", "report.html", "cells.csv"} <= {path.name for path in tmp_path.iterdir()}
    assert "The report is being written" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_the_writing_and_the_command_for_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    rendering(monkeypatch, twice)
    with pytest.raises(KeyboardInterrupt, match=f"to write the rest of the report: bakeoff report {tmp_path}"):
        runs.conclude(report(conv_on_cpu()), Store(tmp_path), quiet=True, as_json=False, junit=None, summary=None)
    assert (tmp_path / "report.json").exists(), "the numbers are there first"


def test_a_signal_ends_the_measuring_and_the_next_one_does_not_end_what_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    steps = []
    with console.measured_to_the_end():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            steps.append(capsys.readouterr().err)
        os.kill(os.getpid(), signal.SIGTERM)  # as CI systems send it a few seconds after SIGINT
        steps.append("what was measured is kept")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert steps == ["Interrupted: the run ends, and keeps its numbers.\n", "what was measured is kept"]
    assert signal.getsignal(signal.SIGTERM) is before
