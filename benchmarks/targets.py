#!/usr/bin/env python3
"""How long do typical runs take on this machine, from the command to the numbers, the first time and the second?

    python benchmarks/targets.py                                # all rows of this machine, three times each
    python benchmarks/targets.py --rows rope,bert --times 1     # on a GPU, within a few minutes
    python benchmarks/targets.py --rows rope,bert,resnet --times 1 --first      # also for two machines of one kind
    python benchmarks/targets.py --limit 540 --out targets      # as often as needed: it goes on where it ended

A first run begins with an empty cache of builds, and the second one finds what the first has built. Torch's precompiled
headers and Bakeoff's bytecode are made before, so that no row pays for them. Seconds end with the line that says the
answer; a first run then measures the machine's ceilings before it prints its report. Each run is appended to
`runs.jsonl` in `--out`, beside its log and with its verdict, so that machines can be compared. A table of medians is
printed and written after each row. Run it on a quiet machine, since other load is part of the time.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, Limit, Lines, answer_at, machine, say, table

MODELS = Path(__file__).parent / "models" / "random_weights.py"
FIVE = "eager,inductor,inductor/cuda-graph,aotinductor,onnx"
RESNET = "--model torchvision:resnet50 --set batch=8"
AFTER_THE_ANSWER = "measuring the machine's ceilings"
SIX = "eager,eager/cuda-graph,inductor,inductor/cuda-graph,inductor/reduce-overhead,torchscript"


@dataclass(frozen=True)
class Row:
    """A run, and the seconds that it may take."""

    name: str
    device: str
    arguments: str
    first_s: float | None  # the target of a first run, where there is one
    second_s: float


ROWS = (
    Row("bench", "cpu", "", 180, 90),
    Row("bert-small", "cpu", f"--model {MODELS}:bert_small --backends eager,inductor,onnx,openvino", 45, 22.5),
    Row("rope", "cuda", f"--model rope --backends {FIVE}", 40, 30),
    Row("mlp", "cuda", "--model mlp --backends best", None, 45),
    Row("transformer", "cuda", "--model transformer --backends best", None, 45),
    Row("conv", "cuda", "--model conv --backends best", None, 45),
    Row("bert", "cuda", f"--model {MODELS}:bert --precision fp16 --processes 1 --backends {FIVE}", 45, 35),
    Row("bert-best", "cuda", f"--model {MODELS}:bert --precision fp16 --processes 1 --backends best", 60, 50),
    Row("resnet", "cuda", f"{RESNET} --precision fp16 --processes 1 --backends {FIVE}", 40, 35),
    Row("resnet-best", "cuda", f"{RESNET} --precision fp16 --processes 1 --backends best", 60, 60),
    Row("llama", "cuda", f"--model {MODELS}:llama --precision fp16 --backends {SIX}", None, 75),
)


# --- runs


def measure(row: Row, folder: Path, name: str, logs: Path) -> dict[str, Any]:
    """Return what a run took. Its builds are kept in the folder, and what it prints in `logs`."""
    out = folder / name
    command = [sys.executable, str(ROOT / "runner.py"), "run", *row.arguments.split(), "--devices", row.device]
    begun_s, log, answered_s = time.time(), logs / f"{row.name}-{name}.log", 0.0
    environment = {**os.environ, "BAKEOFF_CACHE_DIR": str(folder / "builds"), "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen([*command, "--out", str(out)], env=environment, cwd=ROOT, **pipes) as run,
    ):
        for line in run.stdout or ():
            if AFTER_THE_ANSWER in line:
                answered_s = time.time()
            file.write(f"{time.time() - begun_s:6.1f} {line}")
    taken: dict[str, Any] = {"row": row.name, "run": name, "exit_status": run.returncode}
    report = out / "report.json"
    records = json.loads(report.read_text(encoding="utf-8"))["records"] if report.exists() else []
    if cells := sum(record["status"] == "ok" for record in records):
        return taken | {
            "seconds": (answered_s or report.stat().st_mtime) - begun_s,
            "until_end_s": time.time() - begun_s,
            "cells": cells,
            "machine": machine(),
            **answer_at(out),
        }
    reasons = [record["reason"] for record in records] or log.read_text(encoding="utf-8").strip().splitlines()
    return taken | {"failure": reasons[-1] if reasons else "it said nothing"}


def targets_table(rows: Sequence[Row], runs: Sequence[dict[str, Any]]) -> str:
    lines: list[list[object]] = []
    for row in rows:
        mine = [run for run in runs if run["row"] == row.name]
        seconds = {name: [run["seconds"] for run in mine if run["run"] == name and "seconds" in run] for name in TURNS}
        if failed := next((run["failure"] for run in mine if "failure" in run), None):
            lines.append([row.name, f"failed: {failed}", *[""] * 5])
        if seconds["first"]:
            first, second = (f"{statistics.median(values):.0f}" if values else "" for values in seconds.values())
            cells = max(run["cells"] for run in mine if "cells" in run)
            targets = [f"{each:g}" if each else "" for each in (row.first_s, row.second_s)]
            lines.append([row.name, cells, first, targets[0], second, targets[1], len(seconds["first"])])
    return table(["run", "cells:", "first (s):", "target:", "second (s):", "target:", "times:"], lines)


TURNS = ("first", "second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="names, separated by commas [all of this machine]")
    parser.add_argument("--times", type=int, default=3, help="how often each row is run twice [3]")
    parser.add_argument("--first", action="store_true", help="first runs alone")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no pair of runs begins")
    parser.add_argument("--out", type=Path, default=Path("results/targets"))
    options = parser.parse_args()
    device = "cuda" if shutil.which("nvidia-smi") else "cpu"
    names = options.rows.split(",") if options.rows else [row.name for row in ROWS if row.device == device]
    if unknown := set(names) - {row.name for row in ROWS}:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(row.name for row in ROWS)}")
    rows = [row for row in ROWS if row.name in names]
    options.out.mkdir(parents=True, exist_ok=True)
    known = Lines(options.out / "runs.jsonl")
    runs, limit = known.read(), Limit(options.limit)
    turns = TURNS[:1] if options.first else TURNS
    compileall.compile_dir(str(ROOT / "bakeoff"), quiet=1)  # as an installation does
    if not runs:
        with tempfile.TemporaryDirectory() as folder:
            measure(
                Row(
                    "headers",
                    device,
                    "--model mlp --backends inductor,aotinductor --processes 1 --min-time 0.05",
                    None,
                    60,
                ),
                Path(folder),
                "first",
                options.out,
            )
    for number in range(options.times):
        for row in rows:
            before = [run["until_end_s"] for run in runs if run["row"] == row.name and "until_end_s" in run]
            expected_s = len(turns) * max(before, default=row.first_s or 2 * row.second_s)
            if len(before) >= len(turns) * (number + 1) or expected_s > limit.left_s:
                continue
            with tempfile.TemporaryDirectory() as folder:
                for name in turns:
                    runs.append(measure(row, Path(folder), name, options.out))
                    known.append(runs[-1])
                    if "failure" in runs[-1]:
                        break
            (options.out / "targets.md").write_text(targets_table(rows, runs) + "\n", encoding="utf-8")
            say(f"{targets_table(rows, runs)}\n")


if __name__ == "__main__":
    main()
