#!/usr/bin/env python3
"""Is a winner right, and does a sure interval hold the quiet ratio, while other programs take the cores?

    python benchmarks/under_load.py --trials 1 --limit 300 --out results/under-load/here.jsonl
    python benchmarks/under_load.py --cpus 2,3 --share 2/7 --limit 480 --out results/under-load/2.jsonl
    python benchmarks/under_load.py --merge results/under-load/*.jsonl

Each contest is between two builds whose ratio is known: eager that runs a small model several times in a call, and
eager that runs it more often. The other programs run while rounds are measured, and are stopped while processes start,
so that many contests fit into a few minutes. A contest is appended to `--out` as soon as it has ended, and the same
command goes on behind those that are there.

- `--cpus 2,3` keeps all of this, the other programs included, on two cores, so that several can run side by side.
- `--share 2/7` takes every seventh contest, beginning with the second. Contests come in a random order, the same for
  all shares, so that any part of them is of all kinds.
- `--pairs`, `--loads` and `--trials` say which contests there are. `--limit` starts no contest after so many seconds.
- `--merge` prints the table. The quiet ratio of a pair is the geometric mean of its contests without other programs,
  and has an interval by theirs. A sure ratio misses it if the quotient of the two is not 1 with a confidence of 95 %. A
  quiet contest is compared with the others.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from bakeoff.commands import selfcheck
from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Silent
from bakeoff.measuring.cores import usable_cores
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import Request
from bakeoff.records.schema import Cell
from bakeoff.reports import headline
from benchmarks.aa import COPIES, use_plugin
from benchmarks.common import Limit, Lines, say

SHORT: Mapping[str, str | int] = {"batch": 1, "features": 64, "hidden": 64}
MEDIUM: Mapping[str, str | int] = {"batch": 8, "features": 256, "hidden": 512}
LONG: Mapping[str, str | int] = {"batch": 32, "features": 256, "hidden": 512}


@dataclass(frozen=True)
class Pair:
    """Two builds of one model: a call of each runs it so many times."""

    fast: int
    slow: int
    sizes: Mapping[str, str | int]
    threads: int

    @property
    def ratio(self) -> float:
        return self.slow / self.fast


PAIRS = {
    "1.00, short, 1 thread": Pair(20, 20, SHORT, 1),
    "1.00, long, 2 threads": Pair(5, 5, LONG, 2),
    "1.05, short, 1 thread": Pair(20, 21, SHORT, 1),
    "1.05, long, 1 thread": Pair(20, 21, LONG, 1),
    "1.33, long, 2 threads": Pair(3, 4, LONG, 2),
    "2, medium, 2 threads": Pair(1, 2, MEDIUM, 2),
    "5, long, 2 threads": Pair(1, 5, LONG, 2),
    "20, long, 1 thread": Pair(1, 20, LONG, 1),
}

BURN = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:  # ends with the contests, however they end
    end = time.monotonic() + random.expovariate(1 / 0.5)
    while time.monotonic() < end:
        pass
    time.sleep(random.expovariate(1 / 0.5))
"""
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""
COPY = """
import os, numpy
parent, source, target = os.getppid(), numpy.ones(2**25), numpy.empty(2**25)
while os.getppid() == parent:
    numpy.copyto(target, source)
"""
MULTIPLY = """
import os, numpy
parent, matrix = os.getppid(), numpy.random.rand(600, 600)
while os.getppid() == parent:
    matrix @ matrix
"""
BURST = BURN.replace("0.5", "0.03")

PER_CORE = {
    "none": [],
    "1 spinning per core": [SPIN],
    "2 spinning per core": [SPIN] * 2,
    "4 spinning per core": [SPIN] * 4,
    "in bursts of 0.5 s": [BURN],
    "memory": [COPY],
    "half a core": [],
}
"""The programs that run beside a contest for each of its cores."""

TWELVE = "twelve of others"
TWELVE_PROGRAMS = [SPIN, BURST, MULTIPLY] * 4
LOADS = [*PER_CORE, TWELVE]

QUOTA = "half a core"
PERIOD_US = 100_000


class Others(Silent):
    """Other programs, each in a session of its own, that run while a cell is measured and are stopped otherwise."""

    def __init__(self, load: str, group: ControlGroup | None) -> None:
        self._group = group if load == QUOTA else None
        programs = TWELVE_PROGRAMS if load == TWELVE else PER_CORE[load] * len(usable_cores())
        self._processes = [
            subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for program in programs
        ]
        self.rest()

    def phase(self, cell: Cell, name: str) -> None:
        if name == "measure":
            self._send(signal.SIGCONT)
            if self._group:
                self._group.limit_to(PERIOD_US // 2)
        else:
            self.rest()

    def rest(self) -> None:
        self._send(signal.SIGSTOP)
        if self._group:
            self._group.limit_to(None)

    def end(self) -> None:
        self.rest()
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)


class ControlGroup:
    """A control group of this process and those that it has started, whose share of the cores can be limited."""

    def __init__(self) -> None:
        """Raises OSError where control groups cannot be written."""
        old = Path("/sys/fs/cgroup/cpu")
        self._is_old = (old / "cgroup.procs").exists()
        self._parent = old if self._is_old else Path("/sys/fs/cgroup")
        self._folder = self._parent / f"bakeoff-{os.getpid()}"
        if not self._is_old:
            (self._parent / "cgroup.subtree_control").write_text("+cpu")
        self._folder.mkdir()
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            (self._folder / "cgroup.procs").write_text(str(process.pid))
        self.limit_to(None)

    def limit_to(self, quota_us: int | None) -> None:
        if self._is_old:
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us or -1))
        else:
            (self._folder / "cpu.max").write_text(f"{quota_us or 'max'} {PERIOD_US}")

    def leave(self) -> None:
        for pid in (self._folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                (self._parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # a process is still ending in it
            self._folder.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=";".join(PAIRS), help="names of pairs, between semicolons")
    parser.add_argument("--loads", default=";".join(LOADS), help="names of loads, between semicolons")
    parser.add_argument("--trials", type=int, default=100, help="contests of each pair under each load")
    parser.add_argument("--limit", type=float, default=480.0, help="start no contest after this many seconds")
    parser.add_argument("--cpus", help="stay on these cores, such as 2,3")
    parser.add_argument("--share", default="1/1", help="2/7 is the second of seven parts")
    parser.add_argument("--min-time", type=float, default=0.5, help="seconds that each cell is measured for")
    parser.add_argument("--max-processes", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/under-load.jsonl"))
    parser.add_argument("--merge", type=Path, nargs="+", help="print the table of these files")
    options = parser.parse_args()
    if options.merge:
        say("\n".join(table([one for path in options.merge for one in Lines(path).read()])))
        return
    if options.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the other programs end with it
    use_plugin(COPIES)
    results = Lines(options.out)
    for found in contests(options, len(results.read())):
        results.append(found)
        say(f"{found['seconds']:5.1f} s  {found['pair']:24} {found['load']:20} {found['says']}")


def contests(options: argparse.Namespace, done: int) -> Iterator[dict[str, Any]]:
    """Measure the contests of this share in their order, without the first `done` of them, as long as there is time."""
    number, parts = map(int, options.share.split("/"))
    draw, limit = random.Random(0), Limit(options.limit)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bakeoff-under-load-")))
        try:
            group = ControlGroup()
            stack.callback(group.leave)
        except OSError as error:
            group = None
            say(f"no contests under a quota: {error}")
        loads = [load for load in options.loads.split(";") if group or load != QUOTA]
        launchers = {
            threads: stack.enter_context(_with_threads(threads, options.max_processes))
            for threads in {PAIRS[pair].threads for pair in options.pairs.split(";")}
        }
        every = [(pair, load) for pair in options.pairs.split(";") for load in loads]
        in_order = [one for _ in range(options.trials) for one in draw.sample(every, len(every))]
        for pair, load in in_order[number - 1 :: parts][done:]:
            if limit.left_s < 0:
                return
            others = Others(load, group)
            try:
                found = contest(PAIRS[pair], launchers[PAIRS[pair].threads], others, folder, options)
            finally:
                others.end()
            yield {"pair": pair, "load": load, "cpus": options.cpus, **found}


@contextlib.contextmanager
def _with_threads(threads: int, epochs: int) -> Iterator[Launchers]:
    """Yield launchers whose workers have so many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with Launchers("auto") as launchers:
        launchers.prepare(epochs)
        launchers.await_serving()
        yield launchers


def contest(
    pair: Pair, launchers: Launchers, others: Others, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure one contest as a run would, and return its verdict."""
    begun_s = time.monotonic()
    cells = [
        selfcheck.cell_of("mlp", "cpu", backend, f"x{times}", pair.sizes)
        for backend, times in (("repeated", pair.fast), ("repeated-again", pair.slow))
    ]
    request = Request(models=("mlp",), devices=("cpu",), min_time_s=options.min_time)
    planned = Contest(cells[0].contest_id, tuple(PlannedCell(cell, asked_by_name=True) for cell in cells))
    reference = folder / f"{pair.sizes}-{pair.threads}.safetensors"
    plan = selfcheck.plan_of(request, options.max_processes)
    records = selfcheck.measured(launchers, request, planned, folder / "run", reference, others, plan)
    judged = judge_contest(records)
    return {**verdict(judged, cells[1].label), "seconds": time.monotonic() - begun_s}


def verdict(judged: ContestJudgement, slow: str) -> dict[str, Any]:
    """Return what was told, with the ratio as slow over fast."""
    found: dict[str, Any] = {"certainty": judged.fastest.certainty, "says": headline.line(judged), "ratio": None}
    if judged.best is None or len(judged.ranked) < 2:
        return {**found, "winner": None}
    fast = next(cell.label for cell in judged.ranked if cell.label != slow)
    ratio = judged.fit.ratio(fast, slow)
    return {
        **found,
        "winner": judged.fastest.winner and ("slow" if judged.fastest.winner == slow else "fast"),
        "ratio": ratio.value,
        "ends": ratio.ci95 and [ratio.ci95.low, ratio.ci95.high],
        "waiting": ratio.waiting,
        "is_rough": ratio.is_rough,
        "processes": ratio.processes,
    }


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a row for each load, and one for all."""
    quiet = [one for one in found if one["load"] == "none" and one["ends"]]
    rows = [
        "|load|contests|wrong winners|sure|of these miss the quiet ratio|ties|ties at 1.05 and more|undecided|s|",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for load in [*LOADS, "all"]:
        these = [each for each in found if load in (each["load"], "all")]
        if these:
            rows.append(f"|{load}|{'|'.join(map(str, counts(these, quiet)))}|")
    ratios = {pair: quiet_ratio([one for one in quiet if one["pair"] == pair]) for pair in PAIRS}
    texts = [f"{pair}: {ratio[0]:.3f} (± {ratio[1]:.1%})" for pair, ratio in ratios.items() if ratio]
    return [*rows, "", "Quiet ratios: " + "; ".join(texts)]


def quiet_ratio(contests: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return the geometric mean of their ratios, with half the width of its 95 % interval in logarithms."""
    if not contests:
        return None
    halves = [math.log(one["ends"][1] / one["ends"][0]) / 2 for one in contests]
    return statistics.geometric_mean(one["ratio"] for one in contests), math.hypot(*halves) / len(contests)


def misses(one: Mapping[str, Any], quiet: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a ratio and that of the other quiet contests of its pair differ more than both intervals allow."""
    others = quiet_ratio([other for other in quiet if other["pair"] == one["pair"] and other is not one])
    if others is None or not one["ends"]:
        return False
    ratio, half = others
    low, high = one["ends"]
    side = math.log(high / one["ratio"] if ratio > one["ratio"] else one["ratio"] / low)
    return abs(math.log(ratio / one["ratio"])) > math.hypot(side, half)


def counts(these: Sequence[Mapping[str, Any]], quiet: Sequence[Mapping[str, Any]]) -> list[int | str]:
    sure = [each for each in these if each["certainty"] == Certainty.SURE]
    ties = [each for each in these if each["certainty"] == Certainty.TIE]
    return [
        len(these),
        sum(is_wrong(each) for each in these),
        len(sure),
        sum(misses(each, quiet) for each in sure),
        len(ties),
        sum(PAIRS[each["pair"]].ratio >= 1.05 for each in ties),
        sum(each["certainty"] == Certainty.OPEN for each in these),
        f"{statistics.median(each['seconds'] for each in these):.0f}",
    ]


def is_wrong(one: Mapping[str, Any]) -> bool:
    """Return True where a winner was told, with a doubt or without, that is none."""
    return one["winner"] is not None and (one["winner"] == "slow" or PAIRS[one["pair"]].ratio == 1.0)


if __name__ == "__main__":
    main()
