#!/usr/bin/env python3
"""How much of the time from a command to its verdict is building, sampling, checking, and the harness's own?

    python benchmarks/overhead.py --model mlp,conv,transformer --devices cpu
    python benchmarks/overhead.py --model hf:./bert --set batch=2 --set seq=128 --backends eager,inductor,onnx,openvino
    python benchmarks/overhead.py --model rope --devices cuda --log rope.log      when each phase of each cell began

| kind | what it contains |
| --- | --- |
| building | export, compile, load, the first call; importing the backend's library and loading the model before them |
| sampling | warm-up, bursts, throughput, device time, energy, and the last check |
| checking | the reference, the machine's ceilings, and the first comparison |
| harness | starting and ending fork servers and workers, keeping records, deciding, and the verdict |

Time belongs to the phase that was announced last, until the harness starts work of its own. Figures and pages are made
after the verdict, and are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.measuring.controller.server_start import early_servers, servers_for

EARLY = contextlib.ExitStack()
# ruff: noqa: E402 - fork servers start before what is imported below, as with the command `bakeoff`
if __name__ == "__main__":
    EARLY.enter_context(early_servers(servers_for(["run", *sys.argv[1:]])))

from bakeoff.commands import run as runs
from bakeoff.judging.judgement import judge
from bakeoff.measuring.controller.cell_process import CellProcess
from bakeoff.measuring.controller.contest_run import ContestRun
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.progress import Silent
from bakeoff.measuring.controller.worker_process import Worker
from bakeoff.measuring.messages import ComputeReference, Event, Job, MeasureCeilings
from bakeoff.planning import config
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.schema import Cell, Record
from bakeoff.records.store import Store
from bakeoff.reports import sentences, writer

BEGUN = time.monotonic() - time.process_time()
"""When this process was started, without the time that it has waited."""

KINDS = {
    "check": "checking",
    "evaluate": "checking",
    "warm-up": "sampling",
    "measure": "sampling",
    "finish": "sampling",
}
"""The kinds of phases. Every other phase is a part of building, as backends have phases of their own."""


OWN_WORK = (
    (Launcher, "start"),
    (Worker, "end"),
    (Store, "keep"),
    (Store, "save"),
)
"""The harness's own work, which no phase announces. From its start until the next phase, time is the harness's."""


class Timeline(Silent):
    """Adds up the time between two announcements, by the kind of work that was under way."""

    def __init__(self, log: Callable[[str], None] = lambda line: None) -> None:
        self.seconds: dict[str, float] = {}
        self.log = log
        self.processes = 0
        self._kind = "harness"
        self._since = BEGUN

    def turn_to(self, kind: str) -> None:
        now = time.monotonic()
        self.seconds[self._kind] = self.seconds.get(self._kind, 0.0) + now - self._since
        self._kind, self._since = kind, now

    def give_own_work_to_the_harness(self) -> None:
        for owner, name in OWN_WORK:
            setattr(owner, name, self._announced(getattr(owner, name)))
        # it comes between two rounds, which go on afterwards
        ContestRun._keep_so_far = self._between_rounds(ContestRun._keep_so_far)  # type: ignore[method-assign]

    def _between_rounds(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def counted(*args: Any, **kwargs: Any) -> Any:
            kind, begun_s = self._kind, time.monotonic()
            self.turn_to("harness")
            result = work(*args, **kwargs)
            self.turn_to(kind)
            self.log(f"{work.__qualname__} took {time.monotonic() - begun_s:.3f} s")
            return result

        return counted

    def _announced(self, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def announced(*args: Any, **kwargs: Any) -> Any:
            self.log(f"{work.__qualname__} {getattr(args[0], 'label', '')}")
            begins_check = any(isinstance(arg, ComputeReference | MeasureCeilings) for arg in args)
            self.turn_to("checking" if begins_check else "harness")
            return work(*args, **kwargs)

        return announced

    def log_processes_ahead(self) -> None:
        """Log the phases of processes that load for a later epoch beside what is under way."""
        poll = CellProcess.poll_ahead

        def polled(process: CellProcess, now_s: float) -> None:
            before, was_ready = process.phase, process.is_ready
            poll(process, now_s)
            phase = "ready" if process.is_ready else process.phase
            if phase != before and not was_ready:
                self.log(f"{process.cell.label}: {phase}, ahead for epoch {process.epoch}")

        CellProcess.poll_ahead = polled  # type: ignore[method-assign,assignment]

    def log_short_jobs(self) -> None:
        """Log the phases of workers with a short job, such as that of the reference."""

        def ask(
            launcher: Launcher,
            job: Job,
            log: Path,
            limit_s: float,
            on_phase: Callable[[str], None] = lambda phase: None,
        ) -> Event:
            def note(phase: str) -> None:
                self.log(f"{type(job).__name__}: {phase}")
                on_phase(phase)

            return launcher.start(job, log).answer(limit_s, note)

        Launcher.ask = ask  # type: ignore[method-assign,assignment]

    def planned(self, cells: Sequence[Cell]) -> None:
        self.turn_to("harness")

    def phase(self, cell: Cell, name: str) -> None:
        self.processes += name == "probe"
        self.turn_to(KINDS.get(name, "building"))
        self.log(f"{cell.label}: {name}")

    def ended(self, record: Record) -> None:
        self.turn_to("harness")
        self.log(f"{record.cell.label}: {record.status}")

    def note(self, text: str) -> None:
        kinds = {"importing": "building", "computing": "checking", "measuring": "checking"}
        self.turn_to(kinds.get(text.partition(" ")[0], "harness"))
        self.log(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp,conv,transformer")
    parser.add_argument("--backends", default="all")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--processes", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--log", type=argparse.FileType("w"), help="file for a line when each phase of a cell begins")
    options = parser.parse_args()
    request = Request(
        models=config.split([options.model]),
        backends=config.split([options.backends]),
        devices=config.split([options.devices]),
        precision=config.split([options.precision]),
        set=config.parse_dimensions(options.set),
        processes=options.processes,
    )
    timeline = Timeline(lambda line: _say(f"{time.monotonic() - BEGUN:7.2f} {line}", options.log))
    timeline.give_own_work_to_the_harness()
    timeline.log_short_jobs()
    timeline.log_processes_ahead()
    with tempfile.TemporaryDirectory() as folder:
        report, store = runs.run(request, options.out or Path(folder) / "run", "benchmarks/overhead.py", timeline)
        timeline.turn_to("harness")
        judgement = judge(report)
        report_file.write_json(sentences.with_verdicts(judgement), store.root)
        timeline.turn_to("harness")
        said = time.monotonic()
        writer.render(judgement, store.root)
        drawing_s = time.monotonic() - said
    total_s = sum(timeline.seconds.values())
    _say(f"| {options.model} | {len(report.records)} cells, {timeline.processes} processes | {total_s:.0f} s |")
    for kind, seconds in sorted(timeline.seconds.items(), key=lambda item: -item[1]):
        _say(f"| | {kind} | {seconds:.1f} s, {seconds / total_s:.1%} |")
    _say(f"| | figures and pages, after the verdict | {drawing_s:.1f} s |")
    for contest in judgement.contests:
        _say(sentences.verdict(contest))


def _say(line: str, file: TextIO | None = sys.stdout) -> None:
    if file:
        file.write(f"{line}\n")
        file.flush()


if __name__ == "__main__":
    with EARLY:
        main()
