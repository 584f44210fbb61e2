#!/usr/bin/env python3
"""How often is a winner called under load between two copies of one backend?

    python benchmarks/aa_load.py --trials 30 --out results/aa-load

Each trial is a whole run of eager beside itself, in its own fork servers. Each copy looks for its own settings, and
both take turns in several processes. Trials are appended to a file in `--out`, so that you can stop and continue.
`--load`, `--slo`, `--model` and `--set` are those of `bakeoff`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.commands import run as runs
from bakeoff.judging.under_load import judge_load
from bakeoff.measuring.controller.progress import Silent
from bakeoff.planning.config import parse_dimensions
from bakeoff.planning.request import Request
from benchmarks.common import Limit, Lines, say, table

COPIES = ("eager", "eager-again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="transformer")
    parser.add_argument("--set", action="append", default=["batch=1"])
    parser.add_argument("--load", default="server")
    parser.add_argument("--slo", default="p99_ms<50")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--min-time", type=float, default=1.5)
    parser.add_argument("--trials", type=int, default=30, help="trials, including those in --out")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no trial after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("results/aa-load"))
    options = parser.parse_args()
    trials = Lines(options.out / f"{options.load.replace(':', '-')}-{options.model}.jsonl")
    limit = Limit(options.limit)
    for _ in range(len(trials.read()), options.trials):
        if limit.left_s < 0:
            break
        trials.append(trial(options))
    report(trials.read())


def trial(options: argparse.Namespace) -> dict[str, Any]:
    """Return what one run of the two copies says, with the value of each turn."""
    request = Request(
        models=(options.model,),
        backends=COPIES,
        devices=("cpu",),
        set=parse_dimensions(options.set),
        load=options.load,
        slo=options.slo if options.load == "server" else "",
        soak_s=0.0,
        processes=options.processes,
        min_time_s=options.min_time,
        no_artifacts=True,
    )
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found, _ = runs.run(request, Path(folder) / "run", "aa_load", Silent())
    judged = judge_load(found.records)
    cells = {cell.label: cell for cell in judged.cells} if judged else {}
    values = {label: cell.value for label, cell in cells.items()}
    known = [value for value in values.values() if value]
    return {
        "winner": judged.answer.winner if judged else None,
        "gap": max(known) / min(known) - 1 if len(known) == len(COPIES) else None,
        "values": values,
        "settings": {
            label: cell.load.settings.model_dump() if cell.load.settings else None for label, cell in cells.items()
        },
        "turns": {
            label: [(turn.process, turn.round, turn.value) for turn in cell.load.turns] for label, cell in cells.items()
        },
        "seconds": time.monotonic() - begun_s,
    }


def report(trials: list[dict[str, Any]]) -> None:
    """Print one row: how often a winner was called, and how far the copies were apart where both carried something."""
    gaps = [each["gap"] for each in trials if each["gap"] is not None]
    called = sum(each["winner"] is not None for each in trials)
    alike = sum(len({json.dumps(chosen) for chosen in each["settings"].values()}) == 1 for each in trials)
    columns = [
        "trials:",
        "both carried something:",
        "winner called:",
        "same settings:",
        "median gap:",
        "widest gap:",
        "s:",
    ]
    spread = [f"{statistics.median(gaps):.1%}", f"{max(gaps):.1%}"] if gaps else ["", ""]
    seconds = statistics.median(each["seconds"] for each in trials) if trials else 0.0
    say(table(columns, [[len(trials), len(gaps), called, alike, *spread, f"{seconds:.0f}"]]))


if __name__ == "__main__":
    main()
