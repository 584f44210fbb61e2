#!/usr/bin/env python3
"""Measure what it costs a module to be watched for hot paths, and to have been: eager beside eager.

    python plugins/hotpath/benchmarks/tracking.py --device cpu --threads 2
    python plugins/hotpath/benchmarks/tracking.py --device cuda --workloads matmul_chain

A process holds two copies of a workload, and calls them in blocks of 50 that alternate. First one copy is watched, and
never compiled, since its compiler is never free. Then the detection settles on eager, and both go on. After that the
copies change places. Two copies are not equally fast, depending on where their memory lies; this cancels in the
geometric mean of both places. The first 50 calls of each copy are not timed: hot_paths.py has those.

*All in all* is the time of watched blocks over that of the others. *Typical* is the median over blocks of each over the
one beside it. Both have a 95 % t-interval over processes. *Recording alone* is the time that recorded calls took beyond
plain ones. The script writes a table and `tracking.json`.
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
from typing import Any

from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from plugins.hotpath.benchmarks.hot_paths import (
    Setup,
    Workload,
    checked,
    in_fresh_process,
    machine_of,
    parser_of,
    setup_of,
)

CALLS_PER_BLOCK = 50
Pair = tuple[float, float]
"""The seconds of a plain block, and of the watched one beside it."""


def main() -> None:
    options = _parse()
    out: Path = options.out or Path("results") / f"tracking-{options.device}"
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Setup] = {}
    with tempfile.TemporaryDirectory(prefix="tracking-") as temporary:
        for name in options.workloads.split(","):
            setup: Setup = {**setup_of(name, options), "turn_s": options.turn_s}
            folders = [Path(temporary) / name / str(number) for number in range(options.processes)]
            processes = [in_fresh_process(measure, {**setup, "folder": str(folder)}) for folder in folders]
            found[name] = {**setup, "processes": processes}
            (out / "tracking.json").write_text(json.dumps(found, indent=1))
    table = to_markdown(found)
    (out / "tracking.md").write_text(table)
    sys.stdout.write(f"{table}\n")


def measure(setup: Setup) -> Setup:
    """Return pairs of blocks while watched and once settled, for each of the two places."""
    copies = Workload(setup), Workload(setup)
    places = [_measure_place(*order, setup) for order in (copies, copies[::-1])]
    return {"machine": machine_of(setup["device"]), "places": places}


def _measure_place(plain: Workload, watched: Workload, setup: Setup) -> Setup:
    from bakeoff_hotpath import enable_hot_path_detection

    cache = Path(setup["folder"]) / "learned"
    with enable_hot_path_detection(watched.module, cache=cache, compiler=NeverFree()) as hot:
        watching = _in_turns((plain, watched), setup["turn_s"])
        (path,) = hot.report()
        hot.settle()
        settled = _in_turns((plain, watched), setup["turn_s"])
    return {
        "watching": watching,
        "settled": settled,
        "recording_s": path.watching_s,
        "recorded_calls": path.watched_calls,
    }


class NeverFree:
    """A compiler that is always busy, so that the module is only watched."""

    def is_free(self) -> bool:
        return False

    def start(self, call: Any, folder: Path) -> Any:
        raise AssertionError("it is never free")

    def load(self, folder: Path, tensors: Any) -> Any:
        raise AssertionError("it compiles nothing")


def _in_turns(both: tuple[Workload, Workload], turn_s: float) -> list[Pair]:
    """Return the seconds of pairs of blocks, for `turn_s` seconds of each copy. The first of a pair alternates."""
    for workload in both:
        _call_block(workload)
    pairs: list[Pair] = []
    end = time.perf_counter() + 2 * turn_s
    while time.perf_counter() < end or not pairs:
        seconds = [0.0, 0.0]
        for which in (1, 0) if len(pairs) % 2 else (0, 1):
            begun = time.perf_counter()
            _call_block(both[which])
            seconds[which] = time.perf_counter() - begun
        pairs.append((seconds[0], seconds[1]))
    return pairs


def _call_block(workload: Workload) -> None:
    for number in range(CALLS_PER_BLOCK):
        workload.call(workload.module, number)


def all_in_all(pairs: Sequence[Pair]) -> float:
    """Return the log of the time of all watched blocks over that of the others."""
    return math.log(sum(watched for _, watched in pairs) / sum(plain for plain, _ in pairs))


def typical(pairs: Sequence[Pair]) -> float:
    """Return the median over pairs of the log of a watched block's time over that of the plain one beside it."""
    return statistics.median(math.log(watched / plain) for plain, watched in pairs)


def over_processes(
    share: Callable[[Sequence[Pair]], float], processes: Sequence[Setup], state: str
) -> tuple[float, float, float]:
    """Return what a watched (or settled) block takes beyond a plain one, with a 95 % interval: 0.02 is 2 % more.

    Both places of a process count alike. The interval is infinite for a single process.
    """
    logs = [statistics.mean(share(place[state]) for place in process["places"]) for process in processes]
    mean = statistics.mean(logs)
    if len(logs) == 1:
        return math.expm1(mean), -math.inf, math.inf
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half)


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
            _percent(over_processes(all_in_all, processes, "watching")),
            _percent(over_processes(typical, processes, "watching")),
            f"{recording_s / plain_s:+.1%}",
            _percent(over_processes(typical, processes, "settled")),
        ]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join([*lines, ""])


def _percent(share: tuple[float, float, float]) -> str:
    value, low, high = share
    return f"{value:+.1%}" + ("" if math.isinf(low) else f" [{low:+.1%}, {high:+.1%}]")


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--turn-s", type=float, default=3.0, help="seconds of each copy, in each place and state")
    return checked(parser)


if __name__ == "__main__":
    main()
