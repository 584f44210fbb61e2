#!/usr/bin/env python3
"""Which engines build models that nobody here chose, and build them rightly? Nothing is timed.

    git clone https://github.com/ScalingIntelligence/KernelBench && git clone https://github.com/PaddlePaddle/GraphNet
    python benchmarks/breadth.py 'KernelBench/KernelBench/level3/*.py' --set batch_size=1 --out results/kernelbench
    python benchmarks/breadth.py --graphs GraphNet/samples --backends eager,inductor,onnx,openvino --out results/graphs

Each model is a `bakeoff run --check-only`, and its answer is appended to `checks.jsonl` in `--out`. The same command
goes on where it was stopped, and one with other backends adds to the table. Graphs are drawn by the seed 0, from each
source in turns, among those whose tensors hold at most `--numbers` numbers. The table counts by engine, and the lines
below it say what was not right, and why.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff import models
from benchmarks.common import ROOT, Lines, machine, say, table

SIX = "eager,torchscript,inductor,aotinductor,onnx,openvino"


def graphs_of(samples: Path, count: int, numbers: int) -> list[str]:
    """Return the folders of so many graphs, from each source in turns, the smallest first."""
    by_source = []
    for source in sorted(samples.iterdir()):
        folders = sorted(path.parent for path in source.rglob("weight_meta.py"))
        random.Random(0).shuffle(folders)
        by_source.append(folder for folder in folders if numbers_in(folder) <= numbers)
    turns = filter(None, chain.from_iterable(zip_longest(*by_source)))
    return [f"graphnet:{folder}" for folder in sorted(islice(turns, count), key=numbers_in)]


def numbers_in(folder: Path) -> int:
    shapes = re.findall(r"^\s+shape = \[(.*)\]$", (folder / "weight_meta.py").read_text(encoding="utf-8"), re.MULTILINE)
    return sum(math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes)


def checked(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Build the model with every engine, and return what came out."""
    sizes = [size for size in options.set if size.partition("=")[0] in models.find(model).dimensions]
    command = [sys.executable, str(ROOT / "runner.py"), "run", "--check-only", "--json", "--devices", "cpu"]
    command += ["--model", model, "--backends", options.backends, "--time-limit", str(options.time_limit)]
    done = subprocess.run(
        command + [part for size in sizes for part in ("--set", size)], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        return asked(model, options) | {"checks": [], "refused": done.stderr.strip().splitlines()[-1]}
    answer: dict[str, Any] = json.loads(done.stdout)
    return asked(model, options) | answer


def asked(model: str, options: argparse.Namespace) -> dict[str, Any]:
    return {"model": model, "backends": options.backends}


def report(results: list[dict[str, Any]]) -> str:
    """Return a table of how often each engine was right, and a line for each build that was not."""
    checks = [check for result in results for check in result["checks"]]
    words = {"ok": "right", "incorrect": "reported as wrong"}
    backends = list(dict.fromkeys(check["label"] for check in checks))
    counts = Counter((words.get(check["status"], "refused"), check["label"]) for check in checks)
    rows = [[word, *(counts[word, name] for name in backends)] for word in (*words.values(), "refused")]
    lines = [f"- {result['model']}: {result['refused']}" for result in results if "refused" in result]
    lines += [
        f"- {check['label']} of {check['model']}: {check['status']}: {check['reason'] or check['unchecked']}"
        for check in checks
        if check["status"] != "ok" or check["unchecked"]
    ]
    return "\n".join(
        [
            table([f"{len({result['model'] for result in results})} models", *(f"{name}:" for name in backends)], rows),
            "",
            *lines,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="what --model takes, such as 'FOLDER/*.py'")
    parser.add_argument("--graphs", type=Path, help="folder of GraphNet's samples")
    parser.add_argument("--count", type=int, default=60, help="graphs [60]")
    parser.add_argument("--numbers", type=int, default=5_000_000, help="most numbers in a graph [5 million]")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, for the models that have it")
    parser.add_argument("--backends", default=SIX)
    parser.add_argument("--time-limit", type=int, default=300, help="seconds of each build [300]")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names = models.expanded(options.models)[0]
    names += graphs_of(options.graphs, options.count, options.numbers) if options.graphs else []
    results = Lines(options.out / "checks.jsonl")
    done = [(result["model"], result["backends"]) for result in results.read()]
    for name in names:
        if (name, options.backends) not in done:
            say(name)
            results.append(checked(name, options))
    say(f"{report(results.read())}\n\n{machine()}")


if __name__ == "__main__":
    main()
