#!/usr/bin/env python3
"""How often is a winner called between two copies of one build, and how often is a slower copy found?

    python benchmarks/aa.py --device cpu --limit 570 --out results/aa
    python benchmarks/aa.py --device cuda --limit 570 --out results/aa
    python benchmarks/aa.py --table --out results/aa

The trials are fixed before any is measured: `TRIALS` says of which kinds they are, how many of each, and on which
models. They come in one order, in which every part has all kinds. Each trial is a contest in a process of its own. Its
result is appended to `trials-DEVICE.jsonl` in `--out` as soon as it has ended. The same command goes on where it was
stopped, on any number of lanes. A trial that fails counts as failed, and is not repeated.

- **A/A**: two copies of one build, called a winner if one of them is ("wrong"). In the kinds with many cells they stand
  among others, and a winner is wrong if it has a copy there.
- **A/B**: the samples of the second copy are multiplied by 1.02, 1.05 and 1.10. "Found" are the trials that call the
  first copy faster, and "decided after" is when a contest with this copy alone would have ended.
- **usual**: the two copies as most scripts measure them, one process after the other, medians of 100 calls. A gap over
  2 % counts as a winner.

A lane measures one trial at a time, on two cores of its own, which share no physical core with others. On GPUs each
lane has a GPU of its own, and its share of the cores. Results of other versions of the rules (`RULES`, without their
comments and docstrings) are counted apart. `--skip 75` leaves out the first trials of the plan, which another machine
has measured.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff import models
from bakeoff.commands import selfcheck
from bakeoff.judging.contest import judge_contest
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Silent
from bakeoff.measuring.cores import usable_cores
from bakeoff.planning.places import physical_cores
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import Request
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from benchmarks.common import ROOT, Limit, Lines, machine, say, table

COPIES = ROOT / "benchmarks" / "copies"
"""A plug-in with backends under second names. It is none of the tests': they list what is installed."""

SLOWER = (1.02, 1.05, 1.10)
"""The factors of A/B."""

NEEDED = {"onnx": "onnxruntime", "openvino": "openvino", "tensorrt-again": "tensorrt"}
"""The library that a backend needs beside torch."""

SECOND_COPIES = {"tensorrt-again": "tensorrt-once-more"}
"""All others are called `NAME-again`."""

USUAL_CALLS = 100
USUAL_WARM_UP_S = 0.5
USUAL_MARGIN = 0.02
PROCESS_LIMIT_S = 120.0

CORES_PER_LANE = 2

TRIAL_LIMIT_S = 600.0
"""A trial that takes longer has failed."""

EXPECTED_S = 60.0
"""How long a trial takes, as long as none of its kind has ended."""


@dataclass(frozen=True)
class Model:
    """A model with its sizes."""

    name: str
    sizes: tuple[tuple[str, int], ...] = ()
    precision: str = "fp32"


@dataclass(frozen=True)
class Kind:
    """So many trials of one kind: each is of the next model, and then of the next pair of copies."""

    name: str
    device: str
    trials: int
    models: tuple[Model, ...]
    copied: tuple[str, ...] = ("eager",)
    """Backends and modes, of which those count that are installed; `onnx-again/cuda-graph` copies `onnx/cuda-graph`."""
    others: tuple[str, ...] = ()
    """The other cells of a contest in which all of `copied` stand, each twice."""
    slower: tuple[float, ...] = (1.0,)
    is_usual: bool = False

    def model(self, number: int) -> Model:
        return self.models[number % len(self.models)]


TEMPLATES = tuple(map(Model, ("mlp", "conv", "transformer")))
REAL_ON_CPU = (
    Model("hf:presets/zoo/small/bert", (("batch", 1), ("seq", 64))),
    Model("timm:mobilenetv3_large_100", (("batch", 1),)),
    Model("timm:resnet18", (("batch", 1),)),
)
REAL_ON_GPU = (
    Model("hf:presets/zoo/bert", (("batch", 8), ("seq", 128)), "fp16"),
    Model("timm:resnet50", (("batch", 8),), "fp16"),
    Model("timm:vit_base_patch16_224", (("batch", 8),), "fp16"),
)
ENGINES = ("onnx", "openvino", "inductor")
GRAPHS = ("inductor/cuda-graph", "onnx/cuda-graph", "tensorrt-again/cuda-graph")
"""TensorRT's two copies share one engine, since two builds of it are no copies (benchmarks/copies)."""

TRIALS = (
    Kind("A/A, templates", "cpu", 267, TEMPLATES, ("eager", *ENGINES)),
    Kind("A/A, real models", "cpu", 267, REAL_ON_CPU, ("eager", *ENGINES)),
    Kind("A/A, many cells", "cpu", 266, TEMPLATES, ENGINES, ("eager", "torchscript")),
    Kind("A/B, templates", "cpu", 60, TEMPLATES, slower=SLOWER),
    Kind("A/B, real models", "cpu", 30, REAL_ON_CPU, slower=SLOWER),
    Kind("usual, templates", "cpu", 75, TEMPLATES, is_usual=True),
    Kind("usual, real models", "cpu", 75, REAL_ON_CPU, is_usual=True),
    Kind("A/A, templates", "cuda", 50, TEMPLATES, ("eager", "eager/cuda-graph", *GRAPHS)),
    Kind("A/A, real models", "cuda", 50, REAL_ON_GPU, ("eager", "eager/cuda-graph", *GRAPHS[:2])),
    Kind("A/A, many cells", "cuda", 50, TEMPLATES, GRAPHS, ("eager", "eager/cuda-graph", "inductor", "onnx")),
    Kind("A/B, templates", "cuda", 20, TEMPLATES, ("eager/cuda-graph",), slower=SLOWER),
    Kind("A/B, real models", "cuda", 10, REAL_ON_GPU, ("eager/cuda-graph",), slower=SLOWER),
    Kind("usual, templates", "cuda", 25, TEMPLATES, is_usual=True),
    Kind("usual, real models", "cuda", 25, REAL_ON_GPU, is_usual=True),
)
"""The plan, as docs/evidence.md has it. It is not changed because of what was measured."""


RULES = (
    *(f"judging/{name}.py" for name in ("answer", "contest", "decision", "disturbance", "estimate", "fit", "gaps")),
    *(f"judging/{name}.py" for name in ("intervals", "ranking")),
    *(f"measuring/{name}.py" for name in ("controller/rounds", "worker/sampling")),
    "planning/sampling_plan.py",
)
"""The files that say which samples are taken, and who wins."""

DECIDES_ALIKE = {"c4c2696f": "5146d41d"}
"""Versions of the rules that call the same winners. The second one prints the own latency of a cell that waited too
long for cores, which no version lets win."""


def in_order(device: str) -> list[tuple[Kind, int]]:
    """Return the trials of a device, so that each part of the list has the kinds in their proportion."""
    kinds = [kind for kind in TRIALS if kind.device == device]
    trials = [((number + 0.5) / kind.trials, kind, number) for kind in kinds for number in range(kind.trials)]
    return [(kind, number) for _, kind, number in sorted(trials, key=lambda trial: trial[0])]


def twin(label: str) -> str:
    """Return the second copy of a backend and mode."""
    backend, slash, mode = label.partition("/")
    return f"{SECOND_COPIES.get(backend, f'{backend}-again')}{slash}{mode}"


def rules() -> str:
    """Return a digest of the code of `RULES`, which is the same with each Python."""
    digest = hashlib.sha256()
    for name in RULES:
        text = (ROOT / "bakeoff" / name).read_text(encoding="utf-8")
        lines = dict(enumerate(text.splitlines(), start=1))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    lines.pop(number, None)
        code = [line.strip() for line in lines.values()]
        digest.update("\n".join(line for line in code if line and not line.startswith("#")).encode())
    return digest.hexdigest()[:8]


def version_of(trial: Mapping[str, Any]) -> str:
    return DECIDES_ALIKE.get(trial["rules"], str(trial["rules"]))


# --- one trial, in a process of its own


def trial(kind: Kind, number: int) -> dict[str, Any]:
    """Measure a trial, and return what it says."""
    use_plugin(COPIES)
    model = kind.model(number)
    installed = [label for label in kind.copied if is_installed(label)]
    copied = installed[number // len(kind.models) % len(installed)]
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bakeoff-aa-") as name:
        folder = Path(name)
        if kind.is_usual:
            found = {"gap": usual_gap(kind, number)}
        elif kind.others:
            copies = {label: twin(label) for label in installed}
            labels = [*kind.others, *copies, *copies.values()]
            found = among_others([cell_of(model, kind.device, label) for label in labels], copies, folder)
        else:
            found = pair([cell_of(model, kind.device, label) for label in (copied, twin(copied))], kind, folder)
    return {"model": model.name, "copied": copied, "took_s": round(time.monotonic() - begun_s, 1), **found}


def cell_of(model: Model, device: str, label: str) -> Cell:
    backend, _, mode = label.partition("/")
    cell = selfcheck.cell_of(model.name, device, backend, mode or "default", dict(model.sizes))
    return cell.model_copy(update={"precision": Precision(model.precision)})


def pair(cells: Sequence[Cell], kind: Kind, folder: Path) -> dict[str, Any]:
    """Measure a contest of two copies until it is decided for each factor, and return what each factor gives."""
    reference = folder / "reference.safetensors"
    measured = selfcheck.trial_of(*contest_of(cells, kind.device), folder / "run", reference, kind.slower)
    label = measured.records[0].cell.label
    return {
        "answers": [
            {
                "slower": answer.planted,
                "winner": answer.winner and ("first" if answer.winner == label else "again"),
                "is_open": answer.unstable,
                "ratio": answer.ratio.value,
                "ends": answer.ratio.ci95 and [answer.ratio.ci95.low, answer.ratio.ci95.high],
                "processes": answer.processes,
                "seconds": round(answer.seconds, 1),
            }
            for answer in measured.answers
        ]
    }


def is_installed(label: str) -> bool:
    library = NEEDED.get(label.partition("/")[0], "torch")
    return importlib.util.find_spec(library) is not None


def among_others(cells: Sequence[Cell], copies: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Measure a contest of many cells, and return who leads, and whether the leader has a copy there."""
    request, contest = contest_of(cells, str(cells[0].device))
    plan, reference = selfcheck.plan_of(request), folder / "reference.safetensors"
    with Launchers(request.start_method) as launchers:
        launchers.prepare(plan.processes)
        records = selfcheck.measured(launchers, request, contest, folder / "run", reference, Silent(), plan)
    judged = judge_contest(records)
    ranked = [cell.label for cell in judged.ranked]
    leader, tied = judged.fastest.leader, judged.fastest.tied
    other_copies = {again: first for first, again in copies.items()} | dict(copies)
    return {
        "leader": leader,
        "first": list(tied) or [leader],
        "is_open": judged.fastest.is_open,
        "is_wrong": other_copies.get(leader or "") in ranked,
        "ranked": ranked,
        "not_ranked": {record.cell.label: record.reason for record in records if record.cell.label not in ranked},
        "processes": max((len(record.processes) for record in records), default=0),
    }


def contest_of(cells: Sequence[Cell], device: str) -> tuple[Request, Contest]:
    planned = tuple(PlannedCell(cell, asked_by_name=True) for cell in cells)
    return Request(models=(cells[0].model,), devices=(device,)), Contest(cells[0].contest_id, planned)


def usual_gap(kind: Kind, number: int) -> float:
    """Measure two copies in one process each, one after the other; return how far the medians are apart."""
    command = [sys.executable, __file__, "--device", kind.device, "--usual", kind.name, str(number)]
    medians_ms = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PROCESS_LIMIT_S).stdout)
        for _ in range(2)
    ]
    return max(medians_ms) / min(medians_ms) - 1


def usual_median_ms(model: Model, device: str) -> float:
    """Return the median of 100 calls of eager after a warm-up, as most scripts measure it."""
    import torch

    dtype = {"fp32": torch.float32, "fp16": torch.float16}[model.precision]
    family = models.find(model.name)
    loaded = family.load(family.resolve(dict(model.sizes)), seed=0)
    module = loaded.module.to(device, dtype)
    inputs = loaded.inputs[0].map(lambda it: it.to(device, dtype if it.is_floating_point() else it.dtype))
    times_ms: list[float] = []
    with torch.inference_mode():
        warm_from_s = time.perf_counter() + USUAL_WARM_UP_S
        while len(times_ms) < USUAL_CALLS:
            begun_s = time.perf_counter()
            module(*inputs.args, **inputs.kwargs)
            if device == "cuda":
                torch.cuda.synchronize()
            if begun_s >= warm_from_s:
                times_ms.append((time.perf_counter() - begun_s) * 1e3)
    return statistics.median(times_ms)


def use_plugin(plugin: Path) -> None:
    """Install a plug-in, which has the second copies, also for worker processes."""
    sys.path.insert(0, str(plugin))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(plugin), os.environ.get("PYTHONPATH"))))


# --- all trials, on lanes


@dataclass(frozen=True)
class Lane:
    """Cores that one trial at a time has for itself, and its GPU."""

    number: int
    cores: frozenset[int]
    gpu: str | None = None

    def run(self, arguments: Sequence[str], out: Path, limit_s: float) -> dict[str, Any]:
        """Run this script on the lane, and return the last line that it prints."""
        variables = {"BAKEOFF_CACHE_DIR": str(out / "caches" / str(self.number))}
        if self.gpu is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.gpu
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
        )
        try:
            printed, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()
            return {"cut_after_s": limit_s}
        if process.returncode:
            return {"failure": (errors.strip() or "it said nothing").splitlines()[-1]}
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


def lanes_of(device: str, cores_per_lane: int | None, most: int | None) -> list[Lane]:
    """Return as many lanes as there are cores, and GPUs, for them; by default of two cores, or of a GPU's share."""
    by_physical: dict[int, list[int]] = {}
    usable = usable_cores()
    physical = physical_cores(usable)
    for core in sorted(usable):
        by_physical.setdefault(physical.get(core, core), []).append(core)
    cores = [core for threads in by_physical.values() for core in threads]
    gpus = visible_gpus() if device == "cuda" else []
    size = cores_per_lane or (max(1, len(cores) // len(gpus)) if gpus else CORES_PER_LANE)
    parts = [frozenset(cores[start : start + size]) for start in range(0, len(cores) - size + 1, size)]
    if device == "cuda":
        return [Lane(number, *lane) for number, lane in enumerate(zip(parts, gpus, strict=False))][:most]
    return [Lane(number, part) for number, part in enumerate(parts)][:most]


def visible_gpus() -> list[str]:
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return chosen.split(",")
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number in range(len(listed.splitlines()))]


class Queue:
    """The trials that are missing, for all lanes."""

    def __init__(self, options: argparse.Namespace, results: Lines) -> None:
        self.options, self.results = options, results
        self.limit = Limit(options.limit)
        self.rules = rules()
        done = {(one["kind"], one["number"]) for one in results.read() if version_of(one) == self.rules}
        self.missing = [
            (kind, number)
            for kind, number in in_order(options.device)[options.skip :]
            if (kind.name, number) not in done and (not options.kinds or kind.name in options.kinds.split(";"))
        ]
        self._took_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def work(self, lane: Lane) -> None:
        """Measure trials on a lane until none is missing, or none would end in time."""
        while (found := self._next()) is not None:
            kind, number = found
            begun_s = time.monotonic()
            limit_s = min(self.limit.left_s, TRIAL_LIMIT_S)
            said = lane.run(["--device", kind.device, "--trial", kind.name, str(number)], self.options.out, limit_s)
            if "cut_after_s" in said and said["cut_after_s"] < TRIAL_LIMIT_S:
                return  # the time is over, and the trial is measured in the next call
            with self._lock:
                took_s = time.monotonic() - begun_s
                self._took_s[kind.name] = max(took_s, self._took_s.get(kind.name, 0.0))
                about = {"kind": kind.name, "number": number, "rules": self.rules, "lane": lane.number}
                self.results.append(about | said)
                left = f"{took_s:.0f} s; {self.limit.left_s:.0f} s are left"
                say(f"{kind.name} {number}, lane {lane.number}: {brief(said)}, {left}")

    def _next(self) -> tuple[Kind, int] | None:
        with self._lock:
            for place, (kind, _) in enumerate(self.missing):
                if self._took_s.get(kind.name, EXPECTED_S) < self.limit.left_s:
                    return self.missing.pop(place)
        return None


def brief(said: Mapping[str, Any]) -> str:
    if "answers" in said:
        called = {one["slower"]: one["winner"] or ("open" if one["is_open"] else "tie") for one in said["answers"]}
        return ", ".join(f"{slower:g}: {what}" for slower, what in called.items())
    if "gap" in said:
        return f"{said['gap']:.1%} apart"
    return str(said.get("failure") or f"first: {' and '.join(map(str, said.get('first', ['nothing in time'])))}")


# --- the table


@dataclass(frozen=True)
class Outcome:
    """What one trial said of one second copy."""

    wrong: bool
    right: bool
    seconds: float
    processes: int


def outcomes_of(trial: Mapping[str, Any]) -> dict[str, Outcome]:
    """Return the outcome for each second copy that a trial has; none of one that has failed."""
    if "gap" in trial:
        wrong = trial["gap"] > USUAL_MARGIN
        return {"equal": Outcome(wrong, not wrong, trial["took_s"], 1)}
    if trial.get("not_ranked"):
        return {}  # a copy, or one of the others, failed
    if "first" in trial:
        wrong = trial["is_wrong"]
        return {"equal": Outcome(wrong, not wrong and not trial["is_open"], trial["took_s"], trial["processes"])}
    outcomes = {}
    for answer in trial.get("answers", ()):
        slower, winner = answer["slower"], answer["winner"]
        wanted = "first" if slower > 1 else None
        name = "equal" if slower == 1 else f"{slower - 1:.0%} slower"
        outcomes[name] = Outcome(
            wrong=winner not in (wanted, None),
            right=winner == wanted and not answer["is_open"],
            seconds=answer["seconds"],
            processes=answer["processes"],
        )
    return outcomes


def rows_of(kind: str, trials: Sequence[Mapping[str, Any]]) -> Iterator[list[object]]:
    """Yield a row for each second copy in the trials of one kind."""
    found = [outcomes_of(trial) for trial in trials]
    for name in dict.fromkeys(name for outcomes in found for name in outcomes):
        these = [outcomes[name] for outcomes in found if name in outcomes]
        wrong, right = sum(one.wrong for one in these), sum(one.right for one in these)
        seconds = statistics.median(one.seconds for one in these)
        processes = statistics.mean(one.processes for one in these)
        most = selfcheck.upper_bound(wrong, len(these))
        row: list[object] = [kind, name, len(these), wrong, f"{most:.1%}", right, len(these) - wrong - right]
        yield [*row, f"{seconds:.0f}", f"{processes:.1f}", sum(not outcomes for outcomes in found)]


LAST = ("decided after (s):", "processes:", "failed:")


def tables(out: Path) -> str:
    """Return a table of all trials for each device and version of the rules."""
    columns = ["trials", "second copy", "number:", "wrong:", "at most (95 %):", "right:", "undecided:"]
    texts = []
    for path in sorted(out.glob("trials-*.jsonl")):
        by_rules: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for one in Lines(path).read():
            by_rules.setdefault(version_of(one), {}).setdefault(one["kind"], []).append(one)
        for version, kinds in by_rules.items():
            rows = [row for name in sorted(kinds) for row in rows_of(name, kinds[name])]
            texts.append(f"{path.stem.partition('-')[2]}, rules {version}\n\n{table([*columns, *LAST], rows)}")
    return "\n\n".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cores-per-lane", type=int, help="[2; on GPUs all cores over the number of GPUs]")
    parser.add_argument("--lanes", type=int, help="at most so many lanes [as the cores, and GPUs, allow]")
    parser.add_argument("--kinds", default="", help="only trials of these kinds, between semicolons")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds of all, within which everything ends [570]")
    parser.add_argument("--skip", type=int, default=0, help="so many of the first trials were measured elsewhere [0]")
    parser.add_argument("--table", action="store_true", help="only print the table of what was measured")
    parser.add_argument("--out", type=Path, default=Path("results/aa"))
    for flag in ("--trial", "--usual"):
        parser.add_argument(flag, nargs=2, metavar=("KIND", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if one := options.trial or options.usual:
        kind = next(kind for kind in TRIALS if (kind.name, kind.device) == (one[0], options.device))
        number = int(one[1])
        with contextlib.redirect_stdout(sys.stderr):
            found = trial(kind, number) if options.trial else usual_median_ms(kind.model(number), kind.device)
        say(json.dumps(found))
        return
    options.out = options.out.resolve()
    if not options.table:
        queue = Queue(options, Lines(options.out / f"trials-{options.device}.jsonl"))
        lanes = lanes_of(options.device, options.cores_per_lane, options.lanes)
        if not lanes:
            parser.error("there are too few cores for one lane")
        say(f"{len(queue.missing)} trials are missing; {len(lanes)} lanes of {len(lanes[0].cores)} cores")
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
            for future in [pool.submit(queue.work, lane) for lane in lanes]:
                future.result()
    text = f"{tables(options.out)}\n\n{machine()}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    say(f"\n{text}")


if __name__ == "__main__":
    main()
