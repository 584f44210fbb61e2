#!/usr/bin/env python3
"""Does a forked child measure what a fresh interpreter would? Pairs of the two, alive together, in interleaved bursts.

Each trial starts one forked and one spawned child of the same cell, takes bursts of both in random order, the other one
stopped, and divides them round by round. The interval is over trials: a pair of processes differs by its memory layout,
whatever started it, so many bursts of one pair say little. Children of one fork server share its layout, so every trial
has a server of its own. Beside it stand pairs of equals: two forked from two servers, two spawned, two from one server.

    python benchmarks/start_method.py --backend eager --device cpu --trials 10
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scipy import stats

import models
from harness.controller.launcher import Child, ForkLauncher, Launcher, SpawnLauncher
from harness.sampling_plan import SamplingPlan
from records.schema import Cell

ROUNDS = 15
PLAN = SamplingPlan(processes=1, most_processes=1, rounds=ROUNDS, burst_s=0.04, burst_calls=5, warm_up_s=0.5)
LIMIT_S = 300.0
PAIRS: dict[str, Sequence[type[Launcher]]] = {
    "forked / spawned": (ForkLauncher, SpawnLauncher),
    "forked / forked": (ForkLauncher, ForkLauncher),
    "spawned / spawned": (SpawnLauncher, SpawnLauncher),
    "forked / forked of one server": (ForkLauncher,),
}


def main() -> None:
    """Print one line of JSON per pairing: the trials' ratios, their geometric mean and its 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--backend", default="eager", help="NAME or NAME/MODE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    options = parser.parse_args()
    backend, _, mode = options.backend.partition("/")
    cell = Cell(
        model=options.model,
        dimensions=models.find(options.model).resolve({}),
        device=options.device,
        backend=backend,
        mode=mode or "default",
    )
    with tempfile.TemporaryDirectory() as folder:
        golden = Path(folder) / "golden.safetensors"
        with SpawnLauncher() as launcher:
            child = launcher.start("golden", Path(folder) / "golden.log", cell=cell.model_dump(), golden=str(golden))
            _expect(child, "finished")
        for name in options.pairs.split(","):
            medians = [_trial(cell, golden, Path(folder), PAIRS[name]) for _ in range(options.trials)]
            result = {"cell": cell.label, "model": cell.model, "device": cell.device, "pair": name, **_summary(medians)}
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


def _trial(cell: Cell, golden: Path, folder: Path, pair: Sequence[type[Launcher]]) -> list[list[float]]:
    """Medians of the bursts in milliseconds, per side."""
    with pair[0]() as first, contextlib.ExitStack() as stack:
        second = stack.enter_context(pair[1]()) if len(pair) > 1 else first
        return _medians(cell, golden, folder, [first, second])


def _medians(cell: Cell, golden: Path, folder: Path, launchers: Sequence[Launcher]) -> list[list[float]]:
    children = []
    for side, launcher in enumerate(launchers):
        log = folder / f"{side}.log"
        children.append(
            launcher.start("measure", log, cell=cell.model_dump(), golden=str(golden), sampling=asdict(PLAN))
        )
        _expect(children[-1], "ready")
        children[-1].pause()
    medians: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for side in random.sample([0, 1], 2):
            children[side].resume()
            children[side].send("burst")
            medians[side].append(statistics.median(_expect(children[side], "burst")["samples_ns"]) / 1e6)
            children[side].pause()
    for child in children:
        child.end()
    return medians


def _expect(child: Child, kind: str) -> dict[str, list[int]]:
    while True:
        message = child.receive(time.monotonic() + LIMIT_S)
        if message["kind"] == kind:
            return message
        if message["kind"] == "ended":
            raise SystemExit(f"the cell ended: {message['reason']}")


def _summary(trials: Sequence[list[list[float]]]) -> dict[str, object]:
    """Geometric mean over trials of each trial's median paired ratio, with Student's t-interval on the logarithms."""
    ratios = [statistics.median(a / b for a, b in zip(*trial, strict=True)) for trial in trials]
    logs = [math.log(ratio) for ratio in ratios]
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return {
        "median_ms": [round(statistics.median(v for trial in trials for v in trial[side]), 5) for side in (0, 1)],
        "ratio": round(math.exp(mean), 4),
        "ci95": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)],
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


if __name__ == "__main__":
    main()
