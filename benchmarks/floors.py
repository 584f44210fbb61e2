#!/usr/bin/env python3
"""Does any build beat "the least time that this machine leaves for a call"? Shares of the floor, with their intervals.

    python benchmarks/floors.py                              the templates and a part of the small zoo, a minute each
    python benchmarks/floors.py --models mlp,conv --backends eager,inductor --budget 120s
    python benchmarks/floors.py --runs results/a results/b   runs that were made

A share over 100 % is a floor that is none. The last column is the share of the fastest call alone: where even that is
under 100 %, nothing beat the floor. Exit status 1 if a right cell beats a floor by its whole interval.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.judgement import CellJudgement, contests_of
from bakeoff.judging.stored_report import report_at
from bakeoff.records.schema import Status
from bakeoff.records.store import Store
from benchmarks.allocators import SMALL_ZOO, say

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SMALL_ZOO), help="names, as for bakeoff --model")
    parser.add_argument("--backends", default="eager,onnx,openvino")
    parser.add_argument("--budget", default="60s", help="time of each model")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="runs that were made, in place of models")
    given = parser.parse_args()
    say(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    say("|model|backend|floor (ms)|bound by|share of it (%) [95 %]|fastest call (%)|\n|---|---|---:|---|---:|---:|")
    beaten, levels = 0, ""
    with tempfile.TemporaryDirectory(prefix="bakeoff-floors-") as folder:
        for run in given.runs or made(given.models.split(","), given.backends, given.budget, Path(folder)):
            for cell in (each for contest in contests_of(report_at(run)) for each in contest.cells):
                if told := row(cell):
                    say(told[0])
                    beaten += told[1]
                    levels = levels_of(run, cell) or levels
    say(f"\nworking set (KiB) and rate (GB/s): {levels}\nload at the end: {os.getloadavg()[0]:.1f}")
    say(f"{beaten} of the rows above are surely over 100 %")
    return int(beaten > 0)


def made(models: list[str], backends: str, budget: str, folder: Path) -> Iterator[Path]:
    """Measure each model for a while, and yield its run."""
    for number, model in enumerate(models):
        run = folder / str(number)
        sizes = [word for name, size in SMALL_ZOO.get(model, {}).items() for word in ("--set", f"{name}={size}")]
        asked = ["--model", model, *sizes, "--backends", backends, "--budget", budget, "--processes", "1"]
        command = [sys.executable, "-m", "bakeoff", *asked, "--devices", "cpu", "--quiet", "--out", str(run)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if (run / "report.json").exists():
            yield run
        else:
            say(f"|`{model}`|{' '.join(done.stderr.split())[-200:]}|||||")


def row(cell: CellJudgement) -> tuple[str, bool] | None:
    """Return a row of the table, and whether the cell surely beats its floor. None: there is no floor for it."""
    record, latency, roofline = cell.record, cell.latency, cell.record.roofline
    if record.status is not Status.OK or latency is None or roofline is None:
        return None
    share = 100 * roofline.floor_ms / latency.median_ms
    interval = latency.median_ci95_ms
    least = 100 * roofline.floor_ms / interval.high if interval else 0.0
    ends = f" [{least:.3g}, {100 * roofline.floor_ms / interval.low:.3g}]" if interval else ""
    text = f"|`{record.cell.model}`|{cell.label}|{roofline.floor_ms:.4g}|{roofline.bound}|{share:.3g}{ends}"
    return f"{text}|{100 * roofline.floor_ms / latency.min_ms:.3g}|", least > 100


def levels_of(run: Path, cell: CellJudgement) -> str:
    """Return the rate of each level of memory that was measured in a run."""
    ceilings = Store(run).ceilings(cell.cell.device, cell.cell.precision)
    levels = ceilings.levels if ceilings else []
    return ", ".join(f"{level.working_set_bytes / 1024:.0f} {level.bytes_per_s / 1e9:.0f}" for level in levels)


if __name__ == "__main__":
    sys.exit(main())
