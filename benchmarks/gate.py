#!/usr/bin/env python3
"""How often is `bakeoff compare` right? Simulated runs with a known truth, for the table of docs/gate.md.

    python benchmarks/gate.py --trials 1000

A simulated run has eager and one other cell. Each process has its own level around the cell's median (log-normal). The
second run's machine is slower or faster as a whole. Its other cell is as fast as before, or slower by a planted share.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.compare import compare
from bakeoff.records.schema import Burst, Cell, Environment, Record, Report, Status

ROUNDS = 6
ROUND_NOISE = 0.003
HEADER = """| processes | spread between them | drift between the runs | planted | regression | slower | faster | same | cannot tell |
| --: | --: | --: | --: | --: | --: | --: | --: | --: |"""  # noqa: E501


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trials", type=int, default=1000)
    trials = arguments.parse_args().trials
    print(HEADER)  # noqa: T201
    for processes in (3, 5):
        for spread in (0.01, 0.02):
            for planted in (0.0, 0.10):
                for drift in (0.0, 0.03, 0.08):
                    print(row(trials, processes, spread, drift, planted), flush=True)  # noqa: T201


def row(trials: int, processes: int, spread: float, drift: float, planted: float) -> str:
    """Return the shares of the verdicts on the other cell, over `trials` pairs of runs."""
    random = np.random.default_rng(0)
    verdicts: Counter[str] = Counter()
    for _ in range(trials):
        machine = float(np.exp(random.normal(0, drift)))
        base = run(random, processes, spread, machine=1.0, slower=0.0)
        new = run(random, processes, spread, machine=machine, slower=planted)
        change = next(cell for cell in compare(base, new).cells if cell.cell.backend == "other")
        verdicts[change.outcome] += 1
        verdicts["regression"] += change.is_regression
    conditions = f"{processes} | {spread:.0%} | {drift:.0%} | {planted:.0%}"
    shares = [f"{verdicts[name] / trials:.1%}" for name in ("regression", "slower", "faster", "same", "cannot tell")]
    return f"| {conditions} | {' | '.join(shares)} |".replace("%", " %")


def run(random: np.random.Generator, processes: int, spread: float, machine: float, slower: float) -> Report:
    """Simulate one run of both cells, in `processes` processes each."""
    medians_ms = {"eager": machine, "other": 0.5 * machine * (1 + slower)}
    records = [
        Record(
            cell=Cell(model="simulated", backend=name),
            status=Status.OK,
            bursts=bursts(random, median_ms, processes, spread),
        )
        for name, median_ms in medians_ms.items()
    ]
    return Report(
        run_id="simulated",
        created_at="2026-01-01T00:00:00+00:00",
        complete=True,
        planned=len(records),
        command="",
        request={},
        environment=ENVIRONMENT,
        records=records,
        verdicts=[],
    )


def bursts(random: np.random.Generator, median_ms: float, processes: int, spread: float) -> list[Burst]:
    return [
        Burst(
            group=process,
            round=number,
            started_s=0.0,
            samples_ns=[round(level_ms * 1e6 * float(np.exp(random.normal(0, ROUND_NOISE))))],
            process=process,
        )
        for process in range(processes)
        for level_ms in [median_ms * float(np.exp(random.normal(0, spread)))]
        for number in range(ROUNDS)
    ]


ENVIRONMENT = Environment(
    hostname="nowhere",
    os="none",
    cpu="none",
    physical_cores=None,
    logical_cores=None,
    usable_cores=None,
    governor=None,
    memory_bytes=None,
    torch_threads=None,
    python="3",
)

if __name__ == "__main__":
    main()
