#!/usr/bin/env python3
"""How often is a winner called between two copies of one backend, and how often is a planted slowdown found?

    python benchmarks/aa.py --models mlp,transformer --trials 100 --out results/aa
    python benchmarks/aa.py --models mlp --neighbour --trials 100 --out results/aa

Each trial is a whole contest of eager with itself, in its own fork servers (`bakeoff.commands.selfcheck`). Trials are
appended to files in `--out`, so that you can stop and continue.

- `--neighbour` runs a process beside it that burns one core, on and off for half a second on average.
- `--usual` measures the copies as most scripts do: one process each, one after the other, medians of 100 calls. A gap
  over 2 % counts as a difference.
- `--planted 1.03` multiplies the samples of the second copy. `--by-itself 1.03` makes the copy itself slower: each of
  its calls spins for 3 % of its own time.
- `--backend inductor` enters this backend twice instead of eager, without planted slowdowns. So do `onnx` and
  `tensorrt`.
- `--schedule sequential` uses the harness's own sequential schedule.

    python benchmarks/aa.py --resample results/aa/bakeoff-mlp-cpu-default-quiet.jsonl

draws contests from the pairs of processes that these trials measured, with either sign, and decides them as the harness
would. It shows more than so few trials can, but does not replace them: it treats neighbouring pairs as unrelated.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.commands import selfcheck
from bakeoff.commands.selfcheck import AGAIN, FIRST, Answer, Trial
from bakeoff.judging.decision import MAX_PROCESSES, Relation, is_decided, relation
from bakeoff.judging.estimate import ratio_over_processes
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Silent
from bakeoff.measuring.messages import (
    BeginWarmUp,
    Build,
    Built,
    BurstTaken,
    ComputeReference,
    Failed,
    MeasureCell,
    Ready,
    ReadyToBuild,
    TakeBurst,
)
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Burst, Cell

PLUGIN = Path(__file__).resolve().parent.parent / "tests/support/plugin"
"""The tests' plug-in, with the copies of eager that are really slower."""

COPIES = Path(__file__).resolve().parent / "copies"
"""A plug-in with other backends under second names. It is none of the tests': they list what is installed."""

SLOWER_COPIES = {1.03: "eager-3-percent-slower", 1.05: "eager-5-percent-slower"}
"""Its backends, by how many times slower than eager they are."""

USUAL_CALLS = 100
USUAL_MARGIN = 0.02
"""The usual method measures each side in one process, one after the other, and compares medians of this many calls. A
gap over this margin counts as a difference."""

USUAL_LIMIT_S = 120.0

RESAMPLES = 3000
MEAN_S = 0.5
BURN = f"""
import os, random, time
parent = os.getppid()
while os.getppid() == parent:  # ends with the trials, however they end
    end = time.monotonic() + random.expovariate(1 / {MEAN_S})
    while time.monotonic() < end:
        pass
    time.sleep(random.expovariate(1 / {MEAN_S}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,transformer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", choices=("eager", "inductor", "onnx", "tensorrt"), default="eager")
    parser.add_argument("--mode", default="default", help="mode of the backend: default or cuda-graph")
    parser.add_argument("--trials", type=int, default=100, help="trials of each model, including those in --out")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no trial after this many seconds")
    parser.add_argument("--planted", default="1,1.03,1.05", help="factors for the second copy's samples")
    parser.add_argument(
        "--by-itself",
        type=float,
        choices=tuple(SLOWER_COPIES),
        help="how many times slower the second copy itself is",
    )
    parser.add_argument("--schedule", choices=("interleaved", "sequential"), default="interleaved")
    parser.add_argument("--neighbour", action="store_true")
    parser.add_argument("--usual", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/aa"))
    parser.add_argument("--resample", type=Path, nargs="+", help="files of earlier trials, .jsonl or .jsonl.gz")
    options = parser.parse_args()
    if options.by_itself and (options.usual or options.mode != "default"):
        parser.error("--by-itself needs mode default, and does not go with --usual")
    if options.backend != "eager" and (options.usual or options.by_itself):
        parser.error("--usual and --by-itself are for eager")
    if options.resample:
        _say("| pairs of processes from | pairs | spread (sd) | planted | winner called | undecided | processes |")
        _say("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for path in options.resample:
            resample(path)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    _say("| trials | planted | of | right | undecided | winner | at most (95 %) | half-width | processes | s each |")
    _say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with neighbour() if options.neighbour else contextlib.nullcontext():
        for model in options.models.split(","):
            kind = "usual" if options.usual else "bakeoff" if options.backend == "eager" else options.backend
            if options.by_itself:
                kind = f"slower-{options.by_itself}"
            if options.schedule == "sequential":
                kind = f"sequential-{kind}"
            place = "neighbour" if options.neighbour else "quiet"
            path = options.out / f"{kind}-{model}-{options.device}-{options.mode}-{place}.jsonl"
            left_s = options.limit - (time.monotonic() - begun)
            missing = options.trials - (len(path.read_text().splitlines()) if path.exists() else 0)
            measure = usual if options.usual else ours
            with path.open("a") as file:
                for line in measure(model, options, missing, left_s):
                    file.write(line + "\n")
                    file.flush()
            report(path, model, options.mode)


def ours(model: str, options: argparse.Namespace, trials: int, limit_s: float) -> Iterator[str]:
    planted, copy = [float(factor) for factor in options.planted.split(",")], dict[str, Any]()
    if options.by_itself:
        use_plugin(PLUGIN)
        planted, copy = [options.by_itself], {"again": SLOWER_COPIES[options.by_itself], "by_itself": options.by_itself}
    elif options.backend != "eager":
        use_plugin(COPIES)
        planted, copy = [1.0], {"first": options.backend, "again": f"{options.backend}-again"}
    what = model, options.device, options.mode
    for trial in selfcheck.run(*what, trials, Silent(), limit_s, planted, schedule=options.schedule, **copy):
        yield to_json(trial)


def use_plugin(plugin: Path) -> None:
    """Install a plug-in, which has the second copies, also for worker processes."""
    sys.path.insert(0, str(plugin))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(plugin), os.environ.get("PYTHONPATH"))))


def usual(model: str, options: argparse.Namespace, trials: int, limit_s: float) -> Iterator[str]:
    """Measure the same two copies by the usual method: one process each, one after the other, medians of 100 calls."""
    cells = [selfcheck.cell_of(model, options.device, backend, options.mode) for backend in (FIRST, AGAIN)]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference.safetensors"
        with Launchers("auto") as launchers:
            worker = launchers.first.start(ComputeReference(cell=cells[0], reference=reference), Path(folder) / "log")
            worker.receive(time.monotonic() + USUAL_LIMIT_S)
        for _ in range(trials):
            started = time.monotonic()
            if started - begun > limit_s:
                return
            medians = [_usual_median_ns(cell, reference, Path(folder)) for cell in cells]
            gap = max(medians) / min(medians) - 1  # slower median over faster median
            yield json.dumps({"gap": gap, "seconds": time.monotonic() - started})


def _usual_median_ns(cell: Cell, reference: Path, folder: Path) -> float:
    plan = SamplingPlan(1, 1, 1, burst_s=0.0, burst_calls=USUAL_CALLS, warm_up_s=0.5)
    with Launchers("auto") as launchers:
        job = MeasureCell(cell=cell, reference=reference, sampling=plan, shared_folder=folder)
        worker = launchers.first.start(job, folder / "log")
        while not isinstance(event := worker.receive(time.monotonic() + USUAL_LIMIT_S), BurstTaken):
            if isinstance(event, Failed):
                raise BakeoffError(f"{cell.id}: {event.failure.sentence}")
            if isinstance(event, ReadyToBuild):
                worker.send(Build())
            if isinstance(event, Built):
                worker.send(BeginWarmUp())
            if isinstance(event, Ready):
                worker.send(TakeBurst())
        return statistics.median(event.samples_ns)


def to_json(trial: Trial) -> str:
    """Return a trial as one line of JSON, with enough of its bursts to try other statistics on."""
    answers = [answer.model_dump(mode="json") for answer in trial.answers]
    return json.dumps(
        {"answers": answers, "bursts": [[_condensed(burst) for burst in each.bursts] for each in trial.records]}
    )


def answers_of(line: str) -> list[Answer]:
    """Return the answers in a line that `to_json` has made."""
    return [Answer.model_validate(answer) for answer in json.loads(line)["answers"]]


def _condensed(burst: Burst) -> dict[str, object]:
    ordered = sorted(burst.samples_ns)
    deciles = [ordered[round((len(ordered) - 1) * part / 20)] for part in range(21)]
    conditions = burst.conditions
    return {
        "process": burst.process,
        "round": burst.round,
        "calls": len(ordered),
        "mean_ns": round(statistics.mean(ordered)),
        "twentieths_ns": deciles,
        "wait": conditions and conditions.wait_share,
        "steal": conditions and conditions.steal_share,
        "switches": conditions and conditions.involuntary_switches,
        "calibration_ms": conditions and conditions.calibration_ms,
    }


def report(path: Path, model: str, mode: str) -> None:
    """Print one row for each planted slowdown, or one for the usual method."""
    lines = path.read_text().splitlines()
    if path.name.startswith("usual"):
        trials = [json.loads(line) for line in lines]
        false = sum(trial["gap"] > USUAL_MARGIN for trial in trials)
        seconds = statistics.median(trial["seconds"] for trial in trials)
        shares = f"{1 - false / len(trials):.1%} | | {false / len(trials):.1%}"
        _say(f"| {path.stem} | 1.00 | {len(trials)} | {shares} | | | 1 | {seconds:.1f} |")
        return
    for row in selfcheck.summarise_trials(model, mode, [answers_of(line) for line in lines]):
        shares = " | ".join(f"{number / row.trials:.1%}" for number in (row.right, row.unstable, row.winners))
        measured = f"{row.upper:.1%} | {row.half_width:.2%} | {row.processes:.1f} | {row.seconds:.1f}"
        _say(f"| {path.stem} | {row.planted:.2f} | {row.trials} | {shares} | {measured} |")


def resample(path: Path) -> None:
    """Print one row for each planted slowdown."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    pairs = [log for line in text.splitlines() for log in pair_logs(json.loads(line)["bursts"])]
    middle = statistics.mean(pairs)
    draw = random.Random(0)
    for planted in selfcheck.PLANTED:
        called = undecided = processes = 0
        for _ in range(RESAMPLES):
            logs = [
                (draw.choice(pairs) - middle) * draw.choice((1, -1)) + math.log(planted) for _ in range(MAX_PROCESSES)
            ]
            ratio = next(
                (seen for count in range(3, MAX_PROCESSES) if is_decided(seen := ratio_over_processes(logs[:count]))),
                ratio_over_processes(logs),
            )
            is_found = (Relation.FASTER,) if planted > 1 else (Relation.FASTER, Relation.SLOWER)
            called += relation(ratio) in is_found
            undecided += not is_decided(ratio)
            processes += ratio.processes
        shares = f"{called / RESAMPLES:.2%} | {undecided / RESAMPLES:.2%} | {processes / RESAMPLES:.1f}"
        name = path.name.partition(".")[0]
        _say(f"| {name} | {len(pairs)} | {statistics.stdev(pairs):.2%} | {planted:.2f} | {shares} |")


def pair_logs(bursts: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
    """Return the median over rounds of log(again / first) for each pair of processes that lived together."""
    first, again = (
        {(burst["process"], burst["round"]): burst["twentieths_ns"][10] for burst in side} for side in bursts
    )
    logs: dict[int, list[float]] = {}
    for process, number in first.keys() & again.keys():
        logs.setdefault(process, []).append(math.log(again[process, number] / first[process, number]))
    return [statistics.median(each) for each in logs.values()]


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Run a process that takes a core, on and off."""
    process = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
