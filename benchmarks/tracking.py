#!/usr/bin/env python3
"""What it costs a module to be watched for hot paths, and to have been: eager beside eager.

    python benchmarks/tracking.py --device cpu --threads 2
    python benchmarks/tracking.py --device cuda --workloads matmul_chain

One process holds two copies of each workload and calls them in blocks of 50 that alternate, with either of them first
in turn. First one copy is watched, and never compiled, since its compiler is never free; then the detection is told to
settle on eager, and both go on. After that the copies change places. Two copies of a module are not equally fast, by
where their memory lies; so a share is the geometric mean of the two places', in which that cancels.

*All in all* is the time of watched blocks over that of the others. *Typical* is the median over blocks, each over the
one beside it, with its 95 % interval (order statistics). *Recording alone* is the time spent in recorded calls' own
bookkeeping. Leaves `tracking.json` beside the table.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hot_paths import (
    TASKS,
    Setup,
    call,
    check_workloads,
    dimensions_of,
    in_fresh_processes,
    machine_of,
    placed,
)

import models
from reports.statistics import median_interval

if TYPE_CHECKING:
    from backends.base import Compiled
    from harness.clock import Clock

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
            setup: Setup = {
                "model": name,
                "task": TASKS[name],
                "device": options.device,
                "dimensions": models.find(name).resolve(options.set.get(name, {})),
                "threads": options.threads,
                "turn_s": options.turn_s,
                "folder": str(Path(temporary) / name),
            }
            (told,) = in_fresh_processes(measure, [setup])
            found[name] = {**setup, **told}
            (out / "tracking.json").write_text(json.dumps(found, indent=1))
    table = to_markdown(found)
    (out / "tracking.md").write_text(table)
    sys.stdout.write(f"{table}\n")


def measure(setup: Setup, wait_for_turn: Callable[[], None]) -> Setup:
    """Pairs of blocks while watched and once settled, for each of the two places; and what was recorded."""
    with placed(setup) as (build, sets, _), placed(setup) as (build_too, sets_too, clock):
        copies = [(build, sets), (build_too, sets_too)]
        wait_for_turn()
        places = [
            _measure_place(copies[1 - watched], copies[watched], clock, setup, str(watched)) for watched in (1, 0)
        ]
    return {"machine": machine_of(setup["device"]), "places": places}


def _measure_place(plain: Any, watched: Any, clock: Clock, setup: Setup, name: str) -> Setup:
    from hotpath import enable_hot_path_detection

    (build, sets), (build_too, sets_too) = plain, watched
    cache = Path(setup["folder"]) / f"watched-{name}"
    hot = enable_hot_path_detection(build_too.module, cache=cache, compiler=NeverFree())
    try:
        with build("eager") as compiled, build_too("eager") as compiled_too:
            watching = _in_turns((compiled, compiled_too), (sets, sets_too), clock, setup["turn_s"])
            (path,) = hot.report()
            hot.settle()
            settled = _in_turns((compiled, compiled_too), (sets, sets_too), clock, setup["turn_s"])
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
    while time.perf_counter() < end:
        seconds = [0.0, 0.0]
        for which in (0, 1) if len(pairs) % 2 else (1, 0):
            both[which].restore()
            clock.synchronise()
            begun = time.perf_counter()
            for number in range(BLOCK):
                call(both[which], sets[which][number % len(sets[which])], clock)
            seconds[which] = time.perf_counter() - begun
        pairs.append((seconds[0], seconds[1]))
    return pairs


def all_in_all(places: Sequence[Sequence[Pair]]) -> float:
    """What watched blocks take beyond the others together: 0.02 for 2 % more."""
    logs = [math.log(sum(pair[1] for pair in pairs) / sum(pair[0] for pair in pairs)) for pairs in places]
    return math.expm1(statistics.mean(logs))


def typical(places: Sequence[Sequence[Pair]]) -> tuple[float, float, float]:
    """What a watched block takes beyond the one beside it: the median, and its 95 % interval (infinite under six)."""
    logs = [
        statistics.mean(math.log(watched / plain) for plain, watched in pairs) for pairs in zip(*places, strict=False)
    ]
    interval = median_interval(logs)
    low, high = (interval.low, interval.high) if interval else (-math.inf, math.inf)
    return math.expm1(statistics.median(logs)), math.expm1(low), math.expm1(high)


def to_markdown(found: dict[str, Setup]) -> str:
    lines = [
        f"{next(iter(found.values()))['machine']}. What tracking adds to eager's time:",
        "",
        "| workload | watched, all in all | watched, typical block | recording alone | settled, typical block |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, measured in found.items():
        places = measured["places"]
        watching = [place["watching"] for place in places]
        recording_s = sum(place["recording_s"] for place in places)
        shares = [
            f"{all_in_all(watching):+.1%}",
            _spell(typical(watching)),
            f"{recording_s / sum(pair[0] for pairs in watching for pair in pairs):+.1%}",
            _spell(typical([place["settled"] for place in places])),
        ]
        lines.append(f"| {name} | {' | '.join(shares)} |")
    return "\n".join([*lines, ""])


def _spell(share: tuple[float, float, float]) -> str:
    value, low, high = share
    return f"{value:+.1%} [{low:+.1%}, {high:+.1%}]"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--workloads", default=",".join(TASKS))
    parser.add_argument("--set", action="append", default=[], help="WORKLOAD.KEY=VALUE of its dimensions")
    parser.add_argument("--threads", type=int, help="intra-operator threads [torch's choice]")
    parser.add_argument("--turn-s", type=float, default=5.0, help="seconds of each copy, in each place and state")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    check_workloads(parser, options.workloads)
    options.set = dimensions_of(parser, options.set)
    return options


if __name__ == "__main__":
    main()
