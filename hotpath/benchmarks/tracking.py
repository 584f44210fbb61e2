#!/usr/bin/env python3
"""What it costs a module to be watched for hot paths, and to have been: eager beside eager.

    python hotpath/benchmarks/tracking.py --device cpu --threads 2
    python hotpath/benchmarks/tracking.py --device cuda --workloads matmul_chain

A process holds two copies of a workload and calls them in blocks of 50 that alternate, either of them first in turn.
First one copy is watched, and never compiled, since its compiler is never free; then the detection is told to settle on
eager, and both go on. After that the copies change places. Two copies of a module are not equally fast, by where their
memory lies: a process's share is the geometric mean of both places', in which that cancels. The first 50 calls of each
are not timed: hotpath/benchmarks/hot_paths.py tells what those cost.

*All in all* is the time of watched blocks over that of the others, *typical* the median over blocks of each over the
one beside it; both with a 95 % t-interval over processes. *Recording alone* is the time that recorded calls took beyond
plain ones, the first 50 calls included. Leaves `tracking.json` beside the table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hotpath.benchmarks.hot_paths import (
    TASKS,
    Setup,
    call,
    check_workloads,
    dimensions_of,
    in_fresh_processes,
    machine_of,
    placed,
    setup_of,
)
from judging.estimate import ratio_over_processes

if TYPE_CHECKING:
    from backends.base import Compiled
    from harness.worker.clock import Clock

BLOCK = 50
"""Calls of a block."""
Pair = tuple[float, float]
"""Seconds of a plain and of a watched block, one beside the other."""


def main() -> None:
    options = _parse()
    out: Path = options.out or Path("results") / f"tracking-{options.device}"
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Setup] = {}
    with tempfile.TemporaryDirectory(prefix="tracking-") as temporary:
        for name in options.workloads.split(","):
            folder = str(Path(temporary) / name)
            setup: Setup = {**setup_of(name, options), "turn_s": options.turn_s, "folder": folder}
            processes = [in_fresh_processes(measure, [_own(setup, number)])[0] for number in range(options.processes)]
            found[name] = {**setup, "processes": processes}
            (out / "tracking.json").write_text(json.dumps(found, indent=1))
    table = to_markdown(found)
    (out / "tracking.md").write_text(table)
    sys.stdout.write(f"{table}\n")


def _own(setup: Setup, number: int) -> Setup:
    return {**setup, "folder": str(Path(setup["folder"]) / str(number))}


def measure(setup: Setup, wait_for_turn: Callable[[], None]) -> Setup:
    """Pairs of blocks while watched and once settled, for each of the two places; and what was recorded."""
    with placed(setup) as (build, sets, _), placed(setup) as (build_too, sets_too, clock):
        copies = [(build, sets), (build_too, sets_too)]
        wait_for_turn()
        places = [_measure_place(copies, watched, clock, setup) for watched in (1, 0)]
    return {"machine": machine_of(setup["device"]), "places": places}


def _measure_place(copies: Sequence[Any], watched: int, clock: Clock, setup: Setup) -> Setup:
    """Pairs of blocks where `copies[watched]` is the watched one; the other one is first in the first pair."""
    from hotpath import enable_hot_path_detection

    (build, sets), (build_too, sets_too) = copies[1 - watched], copies[watched]
    cache = Path(setup["folder"]) / f"watched-{watched}"
    hot = enable_hot_path_detection(build_too.module, cache=cache, compiler=NeverFree())
    try:
        with build("eager") as compiled, build_too("eager") as compiled_too:
            both, given = (compiled, compiled_too), (sets, sets_too)
            watching = _in_turns(both, given, clock, setup["turn_s"])
            (path,) = hot.report()
            hot.settle()
            settled = _in_turns(both, given, clock, setup["turn_s"])
    finally:
        hot.close()
    return {
        "watching": watching,
        "settled": settled,
        "recording_s": path.watching_s,
        "recorded_calls": path.watched_calls,
    }


class NeverFree:
    """A compiler that is always busy: the module is watched, and nothing else."""

    def is_free(self) -> bool:
        return False

    def start(self, call: Any, folder: Path) -> Any:
        raise AssertionError("it is never free")

    def load(self, folder: Path, tensors: Any) -> Any:
        raise AssertionError("it compiles nothing")


def _in_turns(both: Sequence[Compiled], sets: Sequence[Any], clock: Clock, turn_s: float) -> list[Pair]:
    """For `turn_s` seconds of each: the seconds of a block of the first and of one of the second beside it."""
    for compiled, given in zip(both, sets, strict=True):
        for _ in range(BLOCK):
            call(compiled, given[0], clock)
    pairs: list[Pair] = []
    end = time.perf_counter() + 2 * turn_s
    while time.perf_counter() < end or not pairs:
        seconds = [0.0, 0.0]
        for which in (1, 0) if len(pairs) % 2 else (0, 1):
            both[which].restore()
            clock.synchronise()
            begun = time.perf_counter()
            for number in range(BLOCK):
                call(both[which], sets[which][number % len(sets[which])], clock)
            seconds[which] = time.perf_counter() - begun
        pairs.append((seconds[0], seconds[1]))
    return pairs


def all_in_all(pairs: Sequence[Pair]) -> float:
    """The log of the time of all watched blocks over that of the others."""
    return math.log(sum(watched for _, watched in pairs) / sum(plain for plain, _ in pairs))


def typical(pairs: Sequence[Pair]) -> float:
    """The median over pairs of the log of a watched block's time over that of the plain one beside it."""
    return statistics.median(math.log(watched / plain) for plain, watched in pairs)


def over_processes(
    share: Callable[[Sequence[Pair]], float], processes: Sequence[Setup], state: str
) -> tuple[float, float, float]:
    """What a watched (or settled) block takes beyond a plain one: 0.02 for 2 % more, and the 95 % interval.

    Both places of a process count alike. The interval is infinite for a single process.
    """
    logs = [statistics.mean(share(place[state]) for place in process["places"]) for process in processes]
    if len(logs) == 1:
        return math.expm1(logs[0]), -math.inf, math.inf
    ratio = ratio_over_processes(logs)
    assert ratio.ci95 is not None
    return ratio.value - 1, ratio.ci95.low - 1, ratio.ci95.high - 1


def to_markdown(found: dict[str, Setup]) -> str:
    first = next(iter(found.values()))["processes"]
    lines = [
        f"{first[0]['machine']}. What tracking adds to eager's time, in {len(first)} process(es) of each workload:",
        "",
        "| workload | watched, all in all | watched, typical block | recording alone | settled, typical block |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, measured in found.items():
        processes = measured["processes"]
        places = [place for process in processes for place in process["places"]]
        recording_s = sum(place["recording_s"] for place in places)
        plain_s = sum(plain for place in places for plain, _ in place["watching"])
        shares = [
            _spell(over_processes(all_in_all, processes, "watching")),
            _spell(over_processes(typical, processes, "watching")),
            f"{recording_s / plain_s:+.1%}",
            _spell(over_processes(typical, processes, "settled")),
        ]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join([*lines, ""])


def _spell(share: tuple[float, float, float]) -> str:
    value, low, high = share
    return f"{value:+.1%}" + ("" if math.isinf(low) else f" [{low:+.1%}, {high:+.1%}]")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--workloads", default=",".join(TASKS))
    parser.add_argument("--set", action="append", default=[], help="WORKLOAD.KEY=VALUE of its dimensions")
    parser.add_argument("--threads", type=int, help="intra-operator threads [torch's choice]")
    parser.add_argument("--processes", type=int, default=3, help="of each workload")
    parser.add_argument("--turn-s", type=float, default=3.0, help="seconds of each copy, in each place and state")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    check_workloads(parser, options.workloads)
    if options.processes < 1:
        parser.error("--processes: at least 1")
    options.set = dimensions_of(parser, options.set)
    return options


if __name__ == "__main__":
    main()
