"""What is printed and written at the end of a run, also where somebody ends it then."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bakeoff.commands import run as runs
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.store import Store
from bakeoff.reports import console, writer
from tests.reports.samples import conv_on_cpu, report


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
