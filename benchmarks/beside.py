#!/usr/bin/env python3
"""Does a contest at one place of a pool measure the same while another place measures something else?

    python benchmarks/beside.py --devices cuda:0,cuda:1 --trials 10 --out results/beside
    python benchmarks/beside.py --devices cpu:0,cpu:1 --model mlp --trials 10 --out results/beside

Each trial is a whole contest of eager with itself at the first place (bakeoff/commands/selfcheck.py). In turns, the
second place idles, or it builds and measures a model of its own again and again. The table says how often a winner
was called between the two copies, and the latency beside the other contest over the latency alone, with its 95 %
interval over pairs of neighbouring trials. Trials are appended to a file in `--out`, so that you can stop and
continue.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bakeoff.commands import selfcheck
from bakeoff.judging.estimate import process_medians_ms, ratio_over_processes
from bakeoff.measuring.cores import usable_cores
from bakeoff.planning.places import Place, physical_cores, places_of
from benchmarks.common import ROOT, Limit, Lines, say

SITUATIONS = ("alone", "beside")
ORDER = ("alone", "beside", "beside", "alone")
"""The order of the trials, again and again. Two in a row share the other contest, and a drift favours no situation."""

BEGIN_S = 5.0
"""The other contest gets this long to begin before a trial does."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", required=True, help="two places of a pool, as for runner.py")
    parser.add_argument("--model", default="mlp", help="model of the trials")
    parser.add_argument("--mode", default="default", help="mode of eager: default or cuda-graph")
    parser.add_argument("--other", default="--model transformer --backends eager,inductor", help="the other contest")
    parser.add_argument("--trials", type=int, default=10, help="trials in each situation, including those in --out")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no trial after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("results/beside"))
    options = parser.parse_args()
    cores = usable_cores()
    places = places_of(options.devices.split(","), cores, physical_cores(cores))
    if len(places) != len(SITUATIONS):
        parser.error(f"--devices {options.devices}: name two places, such as cuda:0,cuda:1 or cpu:0,cpu:1")
    where = re.sub("[^0-9a-z]+", "-", options.devices)
    trials = Lines(options.out / f"{where}-{options.model}-{options.mode}.jsonl")
    limit = Limit(options.limit)
    missing = range(len(trials.read()), len(SITUATIONS) * options.trials)
    for situation, numbers in itertools.groupby(ORDER[number % len(ORDER)] for number in missing):
        with measuring_at(places[1], options.other) if situation == "beside" else contextlib.nullcontext():
            for _ in numbers:
                if limit.left_s < 0:
                    break
                trials.append({"situation": situation, **trial(places[0], options.model, options.mode)})
    report(trials.read())


def trial(place: Place, model: str, mode: str) -> dict[str, Any]:
    """Return who won between two copies of eager at a place, and the median latency of each process."""
    os.environ.update(place.variables(os.environ))
    usual = usable_cores()
    os.sched_setaffinity(0, place.cores)
    try:
        (found,) = selfcheck.run(model, str(place.device), mode, 1, planted=(1.0,))
    finally:
        os.sched_setaffinity(0, usual)
        if place.gpu is not None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
    medians_ms = [ms for record in found.records for ms in process_medians_ms(record.bursts).values()]
    return {"winner": found.answers[0].winner, "medians_ms": medians_ms}


@contextlib.contextmanager
def measuring_at(place: Place, other: str) -> Iterator[None]:
    """Have a process measure the `other` contest at a place, again and again."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-beside-", ignore_cleanup_errors=True) as folder:
        run = [sys.executable, str(ROOT / "runner.py"), *shlex.split(other), "--devices", str(place.device), "--quiet"]
        command = f"while :; do {shlex.join(run)} --out {folder}/run >> {folder}/log 2>&1; rm -rf {folder}/run; done"
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=ROOT,
            env=place.variables(os.environ),
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, place.cores),
        )
        try:
            time.sleep(BEGIN_S)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its workers end with their fork servers, and these with the run
            process.wait()


def report(trials: Sequence[dict[str, Any]]) -> None:
    """Print how often a winner was called in each situation, and the ratio of both."""
    logs: dict[str, list[float]] = {situation: [] for situation in SITUATIONS}
    winners = dict.fromkeys(SITUATIONS, 0)
    for one in trials:
        logs[one["situation"]].append(float(np.mean(np.log(one["medians_ms"]))))
        winners[one["situation"]] += one["winner"] is not None
    for situation in SITUATIONS:
        latency_ms = f"{math.exp(float(np.mean(logs[situation]))):.4g} ms" if logs[situation] else "no trial yet"
        say(f"| {situation} | {len(logs[situation])} trials | {winners[situation]} winners | {latency_ms} |")
    pairs = [beside - alone for alone, beside in zip(*logs.values(), strict=False)]
    if len(pairs) > 1:
        ratio = ratio_over_processes(pairs)
        assert ratio.ci95 is not None
        interval = f"{ratio.value:.4f} [{ratio.ci95.low:.4f}, {ratio.ci95.high:.4f}]"
        say(f"| beside over alone | {len(pairs)} pairs | {interval} |")


if __name__ == "__main__":
    main()
