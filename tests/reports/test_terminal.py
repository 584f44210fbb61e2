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
from tests.support.golden import same_as_golden
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


Step = Callable[[LiveTable], object]
EAGER, ONNX, ELSEWHERE = cell(), cell("onnx"), cell("inductor", device="cuda")
TUNED = cell("onnx", "tuned", dimensions={"batch": 4}, device="cuda", precision="fp16")
MEASURED = ok(EAGER, constant([1.02] * 6))
MODES = [cell("null", f"mode{number}") for number in range(40)]
ABSENT = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")

SCRIPTS: dict[str, list[tuple[float, Step]]] = {
    "a run": [
        (0, lambda table: table.planned([EAGER, TUNED])),
        (0, lambda table: table.note("computing [once]")),
        (0, lambda table: table.time_left(120, 122)),
        (0, lambda table: table.phase(EAGER, "compile")),
        (65, lambda table: table.built(EAGER, 12.3)),
        (0, lambda table: table.built(TUNED, 0.5, is_cached=True)),
        (0, lambda table: table.phase(EAGER, "measure")),
        (1, lambda table: table.measured(EAGER, 1.5)),
        (1, lambda table: table.ended(MEASURED)),
        (0, lambda table: table.ended(ABSENT)),
        (0, lambda table: table.ended(ABSENT)),  # two contests lack it for the same reason
        (0, lambda table: table.ended(failed(cell("triton"), Status.UNSUPPORTED, "no kernel"))),
        (1, lambda table: table.ended(failed(TUNED, Status.CRASH, "died\nin [load]", died_in="load", signal=11))),
        (60, lambda table: table.decided([MEASURED])),
    ],
    "cells that lead": [
        (1, lambda table: table.planned([EAGER, ONNX, ELSEWHERE])),
        *((0.0, lambda table, one=one: table.phase(one, "measure")) for one in (EAGER, ONNX, ELSEWHERE)),
        (1, lambda table: table.measured(EAGER, 2.0)),
        (1, lambda table: table.measured(ELSEWHERE, 0.5)),  # nothing is compared yet
        (1, lambda table: table.measured(ONNX, 1.0)),
        (1, lambda table: table.measured(ONNX, 3.0)),
        (1, lambda table: table.ended(failed(EAGER, Status.INCORRECT, "wrong"))),  # what is wrong does not lead
    ],
    "more cells than lines": [
        (1, lambda table: table.planned(MODES)),
        *((0.01, lambda table, each=each: table.ended(failed(each, Status.OOM, "full"))) for each in MODES[:20]),
        (0, lambda table: table.phase(MODES[30], "compile")),
        (1, lambda table: table.phase(MODES[31], "load")),
    ],
    "a number of calls": [(0, lambda table: table.decided([once(1.0, "onnx", build_s=20.0), once(2.0, "eager")]))],
}  # fmt: skip


def test_a_run_is_shown_as_before_while_it_goes_on() -> None:
    """A pipe gets a line for each event, which is not wrapped, however narrow the console is. A terminal shows what is
    known after each step, as far as it has changed."""
    lines = []
    for name, script in SCRIPTS.items():
        for kind, (screen, file) in {"pipe": plain(40), "terminal": terminal(10)}.items():
            clock, pictures = Clock(), dict[str, None]()
            with LiveTable(screen, clock_s=clock, calls=10 if "calls" in name else None) as table:
                for later_s, step in script:
                    clock.now_s += later_s
                    step(table)
                    pictures["\n".join(last_picture(file))] = None
            shown = "\n--\n".join(pictures) if kind == "terminal" else file.getvalue().rstrip()
            lines += [f"# {name}, {kind}", shown]
    same_as_golden("live.txt", "\n".join(lines))


def test_a_narrow_terminal_shows_which_backend_does_what() -> None:
    console, file = terminal(width=50)
    names, sizes = ("eager", "onnx"), ({"batch": 1}, {"batch": 64})
    cells = [cell(name, model="my_network.py:factory", dimensions=each) for each in sizes for name in names]
    with LiveTable(console) as table:
        table.planned(cells)
        table.time_left(60, 90)
        table.ended(failed(cells[0], Status.ERROR, "RuntimeError: your weights are not beside the file"))
        table.ended(ok(cells[1], constant([1.02] * 6)))
    assert [line.split()[:3] for line in last_picture(file)[:4]] == [
        ["batch=1", "eager", "error"],
        ["batch=1", "onnx", "ok"],
        ["batch=64", "eager", "waiting"],
        ["batch=64", "onnx", "waiting"],
    ]
    assert "1.020 ms" in last_picture(file)[1]
    assert not last_picture(file)[-1].endswith("left")


def test_a_terminal_that_cannot_go_back_gets_the_lines_of_a_pipe() -> None:
    file = StringIO()
    console = Console(file=file, width=100, force_terminal=True, _environ={"TERM": "dumb"})
    with LiveTable(console) as table:
        table.planned([EAGER])
        table.built(EAGER, 2.0)
    assert "conv cpu fp32 eager is ready after 2.0 s" in file.getvalue()


def test_the_last_medians_are_those_of_the_tables_below() -> None:
    console, file = terminal()
    latency = MEASURED.latency and MEASURED.latency.but(median_ms=7.0)
    with LiveTable(console) as table:
        table.ended(MEASURED.but(latency=latency))
        table.decided([MEASURED])
    assert "1.020 ms" in last_picture(file)[0]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_quiet_says_nothing(is_terminal: bool) -> None:
    console, file = terminal() if is_terminal else plain()
    with LiveTable(console, quiet=True) as table:
        table.planned([cell()])
        table.phase(cell(), "compile")
        table.note("something")
        table.ended(ok(cell(), constant([1.02] * 6)))
    assert file.getvalue() == ""


def test_its_time_counts_from_the_begin_of_the_command_as_a_budget_does() -> None:
    console, file = plain()
    clock = Clock()
    with LiveTable(console, clock_s=clock, begun_s=clock.now_s - 7.0) as table:
        table.note("something")
    assert file.getvalue() == "[0:07] something\n"


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


def test_cells_that_ended_alike_share_a_line() -> None:
    lost = [failed(cell(label), Status.ERROR, "your model failed to load: see eager") for label in ("onnx", "inductor")]
    told = failed(cell(), Status.ERROR, "your model failed to load: ValueError: no weights")
    text = reported(judged([told, *lost]))
    assert "x eager error: your model failed to load: ValueError: no weights" in text
    assert "x onnx, inductor error: your model failed to load: see eager" in text
    assert text.count("failed to load") == 2


def test_what_best_left_out_has_no_row_and_is_reported_once() -> None:
    why = "hotpath/cuda-graph replays the same code"
    conv = conv_on_cpu()
    gone = [conv[0].cell.but(backend=backend, mode="default") for backend in ("iree", "hotpath")]
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
    for complete, status in ((True, runs.ending_of(judge(report(conv_on_cpu())))[0]), (False, runs.INTERRUPTED)):
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
