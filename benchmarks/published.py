#!/usr/bin/env python3
"""Do we measure what others have published? Problems of KernelBench, by its own timing and by Bakeoff.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/published.py --problems KernelBench/KernelBench/level3 --out results/published
    python benchmarks/published.py --problems KernelBench/KernelBench/level3 --device cpu --small  # tries the script

Each problem is measured on one machine in two ways, and the speed-ups of Inductor over eager stand beside the one that
KernelBench has published (an H100 of Modal, torch 2.5.0+cu124, its results/timing at 423217d):

- **the usual script**, as KernelBench's src/kernelbench/timing.py does it at 423217d: five calls to warm up, then 100
  calls of one build after the other, each between two CUDA events, with the L2 cache cleared before each. The ratio is
  that of the means. The same is done once more without clearing the cache. On a CPU nothing is cleared, and calls are
  timed by the clock.
- **Bakeoff**, with eager, Inductor and its CUDA graph, or with `--backends`.

Settings: in `fp32` neither products nor convolutions may use TF32, in `tf32` both may. `published` is what KernelBench
runs with: torch's own settings, where convolutions may use TF32, and a model in training mode. The script alone is
measured so, and only for the problems that this changes. Otherwise models are in eval mode, as in Bakeoff.

The tolerance is fixed before the run: for calls over 1 ms, both ways agree if their ratios differ by at most 5 %.

Results are appended to `results.jsonl` in `--out`. The same command goes on where it was stopped, and prints the
tables. The problems need `einops`; it may lie in the folder of the problems.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.models.source_code import parse, with_constants
from benchmarks.common import Limit, Lines, add_limits, limits_of, machine, run, say, table

TOLERANCE = 0.05
FROM_MS = 1.0
"""The ratios of calls over this time must agree within the tolerance."""

WARM_UPS, TRIALS, DISCARDED = 5, 100, 1
"""Those of KernelBench."""

CLEARED_NUMBERS = 32 * 1024 * 1024
"""KernelBench writes this many numbers of 8 bytes to clear the L2 cache."""


@dataclass(frozen=True)
class Problem:
    """One file of KernelBench's level 3."""

    name: str
    published_ms: tuple[float, float]
    """Eager, and Inductor in its default mode."""
    small: Mapping[str, int]
    """Its variables for a trial on a CPU."""
    settings: tuple[str, ...] = ("fp32",)
    published_with: str = "fp32"
    """The settings that the published figures are closest to."""


CONVOLUTIONS = ("published", "fp32", "tf32")

PROBLEMS = (
    Problem("49_Mamba2ReturnFinalState", (5.94, 1.64), {"batch_size": 2}),
    Problem("48_Mamba2ReturnY", (7.98, 4.65), {"batch_size": 2}),
    Problem("50_ReLUSelfAttention", (5.02, 3.23), {"batch_size": 1, "max_seqlen": 128}),
    Problem("44_MiniGPTBlock", (30.3, 23.8), {"batch_size": 1, "seq_len": 128}),
    Problem("43_MinGPTCausalAttention", (13.1, 10.4), {"batch_size": 1, "seq_len": 128}),
    Problem("27_RegNet", (2.37, 1.17), {"batch_size": 1, "image_height": 32}, CONVOLUTIONS, "published"),
    Problem("11_VGG16", (3.39, 2.12), {"batch_size": 1}, CONVOLUTIONS, "published"),
    Problem("2_ShallowWideMLP", (11.0, 11.0), {"input_size": 1024, "output_size": 1024}),
)


# --- the usual script, in a process of its own for each problem


def time_as_usual(path: Path, settings: str, device: str, trials: int, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the means of eager's and Inductor's calls in ms, with the cache cleared before each call and without."""
    import torch

    if settings != "published":
        torch.set_float32_matmul_precision("high" if settings == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = settings == "tf32"
    names: dict[str, Any] = {"__name__": "problem"}
    sys.path.insert(0, str(path.parent))
    exec(compile(with_constants(parse(path), sizes), str(path), "exec"), names)
    torch.manual_seed(42)
    inputs = [each.to(device) if isinstance(each, torch.Tensor) else each for each in names["get_inputs"]()]
    torch.manual_seed(42)
    model = names["Model"](*names["get_init_inputs"]()).to(device).train(settings == "published")
    found = {}
    with torch.no_grad():
        for name, module in (("eager", model), ("inductor", torch.compile(model))):
            call = _Call(module, inputs, device, trials)
            for how, clears in (("", True), ("_hot", False)):
                times_ms = call.times_ms(clears)
                found[f"{name}{how}_ms"] = statistics.mean(times_ms)
                found[f"{name}{how}_median_ms"] = statistics.median(times_ms)
    return found


@dataclass
class _Call:
    """One call of a module on one device, timed as KernelBench does; on a CPU by the clock."""

    module: Callable[..., Any]
    inputs: list[Any]
    device: str
    trials: int
    synchronise: Callable[[], object] = field(init=False)

    def __post_init__(self) -> None:
        import torch

        self.synchronise = torch.cuda.synchronize if self.device == "cuda" else lambda: None

    def times_ms(self, clears: bool) -> list[float]:
        import torch

        for _ in range(WARM_UPS):
            self.module(*self.inputs)
            self.synchronise()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        times_ms = []
        for _ in range(self.trials + DISCARDED):
            self.synchronise()
            if clears and self.device == "cuda":
                cleared = torch.empty(CLEARED_NUMBERS, dtype=torch.int64, device=self.device)
                cleared.fill_(42)
                del cleared
            times_ms.append(self._time_ms())
        return times_ms[DISCARDED:]

    def _time_ms(self) -> float:
        import torch

        if self.device != "cuda":
            begun_s = time.perf_counter()
            self.module(*self.inputs)
            return (time.perf_counter() - begun_s) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call,unused-ignore]
        begin.record()
        self.module(*self.inputs)
        end.record()
        self.synchronise()
        return float(begin.elapsed_time(end))


def script(path: Path, settings: str, options: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Return what `time_as_usual` measures in a process of its own, or why it does not."""
    command = [sys.executable, __file__, "--device", options.device, "--trials", str(options.trials)]
    command += ["--time-as-usual", str(path), settings, *(["--small"] if options.small else [])]
    begun_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"failure": f"not ended after {limit_s:.0f} s"}
    if done.returncode:
        return {"failure": (done.stderr.strip() or "it said nothing").splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"seconds": round(time.monotonic() - begun_s, 1)}


# --- all problems


def missing(problems: list[Problem], results: list[dict[str, Any]]) -> Iterator[tuple[str, Problem, str]]:
    """Yield what is to be measured: the script first, since it takes seconds."""
    done = {(result["way"], result["problem"], result["settings"]) for result in results}
    for way in ("script", "bakeoff"):
        for problem in problems:
            for settings in problem.settings:
                if (way, problem.name, settings) not in done and (way, settings) != ("bakeoff", "published"):
                    yield way, problem, settings


def measure(options: argparse.Namespace, problems: list[Problem], results: Lines) -> None:
    """Measure what is missing, each with its own limit, until the time is over."""
    limit = Limit(options.limit)
    for way, problem, settings in missing(problems, results.read()):
        needs_s = options.budget + 30 if way == "bakeoff" else 10
        if limit.left_s < needs_s:
            say(f"{problem.name} {settings} ({way}): not begun, {limit.left_s:.0f} s are left")
            continue
        path = options.problems / f"{problem.name}.py"
        most_s = min(limit.left_s, options.problem_limit)
        if way == "script":
            found = script(path, settings, options, most_s)
        else:
            arguments = ["--model", str(path), "--backends", options.backends, "--devices", options.device]
            arguments += ["--precision", settings, "--no-artifacts", *limits_of(options)]
            for name, size in problem.small.items() if options.small else ():
                arguments += ["--set", f"{name}={size}"]
            found = run(arguments, options.out / "runs" / f"{problem.name}-{settings}", most_s)
        results.append({"way": way, "problem": problem.name, "settings": settings, "device": options.device} | found)
        say(f"{problem.name} {settings} ({way}): {found.get('failure') or brief(found)}, {limit.left_s:.0f} s are left")


def brief(found: Mapping[str, Any]) -> str:
    speedup = ratio_of(found)
    return f"{speedup.text}x in {found['seconds']:.0f} s" if speedup else f"no ratio in {found['seconds']:.0f} s"


@dataclass(frozen=True)
class Speedup:
    """Inductor over eager, by one of the two ways."""

    value: float
    eager_ms: float
    inductor_ms: float
    ends: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        interval = f" [{self.ends[0]:.3f}, {self.ends[1]:.3f}]" if self.ends else ""
        return f"{self.value:.3f}{interval}"


def ratio_of(found: Mapping[str, Any] | None) -> Speedup | None:
    """Return the speed-up in a result; None where it has no numbers of both."""
    if found is None or "failure" in found:
        return None
    if "rows" not in found:
        return Speedup(found["eager_ms"] / found["inductor_ms"], found["eager_ms"], found["inductor_ms"])
    rows = {row["label"]: row for row in found["rows"] if row["median_ms"] is not None}
    if not {"eager", "inductor"} <= rows.keys() or rows["inductor"]["speedup"] is None:
        return None
    row = rows["inductor"]
    low, high = row["speedup_ci95_low"], row["speedup_ci95_high"]
    ends = None if low is None or high is None else (low, high)
    return Speedup(row["speedup"], rows["eager"]["median_ms"], row["median_ms"], ends)


def agreement_table(problems: list[Problem], results: list[dict[str, Any]]) -> str:
    """Return the speed-ups of Inductor: published, by the usual script, and by Bakeoff."""
    by_key = {(result["way"], result["problem"], result["settings"]): result for result in results}
    rows = []
    for problem in problems:
        for settings in problem.settings:
            usual, ours = (by_key.get((way, problem.name, settings)) for way in ("script", "bakeoff"))
            theirs, mine = ratio_of(usual), ratio_of(ours)
            published = problem.published_ms[0] / problem.published_ms[1]
            rows.append(
                [
                    problem.name,
                    settings,
                    f"{published:.2f}" if settings == problem.published_with else "",
                    theirs.text if theirs else said_of(usual),
                    f"{usual['eager_hot_ms'] / usual['inductor_hot_ms']:.3f}" if usual and theirs else "",
                    f"{theirs.eager_ms:.3f}, {theirs.inductor_ms:.3f}" if theirs else "",
                    "" if settings == "published" else mine.text if mine else said_of(ours),
                    f"{mine.eager_ms:.3f}, {mine.inductor_ms:.3f}" if mine else "",
                    *compared(theirs, mine),
                ]
            )
    columns = ["problem", "settings", "published:", "script:", "script, hot:", "its ms: eager, Inductor:"]
    return table([*columns, "Bakeoff [95 %]:", "its ms:", "difference:", "within 5 %"], rows)


def said_of(found: Mapping[str, Any] | None) -> str:
    return "not measured" if found is None else str(found.get("failure", "no numbers"))


def compared(theirs: Speedup | None, mine: Speedup | None) -> tuple[str, str]:
    """Return by how much both ratios differ, and whether that is within the tolerance."""
    if theirs is None or mine is None:
        return "", ""
    difference = mine.value / theirs.value - 1
    if min(mine.eager_ms, mine.inductor_ms, theirs.eager_ms, theirs.inductor_ms) <= FROM_MS:
        return f"{difference:+.1%}", "no limit: under 1 ms"
    return f"{difference:+.1%}", "yes" if abs(difference) <= TOLERANCE else "NO"


def choice_table(problems: list[Problem], results: list[dict[str, Any]]) -> str:
    """Return what choosing among all cells is worth on each problem."""
    rows = []
    for result in results:
        cells = {row["label"]: row for row in result.get("rows", []) if row["median_ms"] is not None}
        if result["way"] != "bakeoff" or not cells:
            continue
        best = min(cells.values(), key=lambda row: row["median_ms"])
        base = {name: cells[name]["median_ms"] / best["median_ms"] for name in ("eager", "inductor") if name in cells}
        failed = [row["label"] for row in result["rows"] if row["median_ms"] is None]
        rows.append(
            [
                result["problem"],
                result["settings"],
                result["winner"] or " or ".join(result["candidates"]),
                result["outcome"],
                f"{best['median_ms']:.3f}",
                *(f"{base[name]:.2f}" if name in base else "" for name in ("eager", "inductor")),
                ", ".join(failed),
                f"{result['seconds']:.0f}",
            ]
        )
    columns = ["problem", "settings", "best", "outcome", "ms:", "over eager:", "over Inductor:", "no numbers", "s:"]
    return table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, help="folder of KernelBench's level 3")
    parser.add_argument("--only", default="", help="numbers or names of problems, separated by commas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backends", help="[eager,inductor,inductor/cuda-graph; on a CPU eager,inductor]")
    parser.add_argument("--trials", type=int, default=TRIALS, help="calls of the usual script [100, as KernelBench]")
    add_limits(parser, 45.0)
    parser.add_argument("--problem-limit", type=float, default=150.0, help="most seconds of each measurement [150]")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds of all, within which everything ends [540]")
    parser.add_argument("--small", action="store_true", help="sizes for a trial on two cores")
    parser.add_argument("--table", action="store_true", help="only print the tables of what was measured")
    parser.add_argument("--out", type=Path, default=Path("results/published"))
    parser.add_argument("--time-as-usual", nargs=2, metavar=("FILE", "SETTINGS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time_as_usual:
        path, settings = options.time_as_usual
        with contextlib.redirect_stdout(sys.stderr):
            small = {problem.name: problem.small for problem in PROBLEMS} if options.small else {}
            sizes = small.get(Path(path).stem, {})
            times_ms = time_as_usual(Path(path), settings, options.device, options.trials, sizes)
        say(json.dumps(times_ms))
        return
    wanted = [name for name in options.only.split(",") if name]
    problems = [
        problem for problem in PROBLEMS if not wanted or {problem.name, problem.name.partition("_")[0]} & set(wanted)
    ]
    graph = ",inductor/cuda-graph" if options.device == "cuda" else ""
    options.backends = options.backends or f"eager,inductor{graph}"
    options.out = options.out.resolve()
    results = Lines(options.out / "results.jsonl")
    if not options.table:
        if options.problems is None:
            parser.error("--problems: name the folder of KernelBench's level 3")
        options.problems = options.problems.resolve()
        measure(options, problems, results)
    found = results.read()
    text = f"{agreement_table(problems, found)}\n\n{choice_table(problems, found)}\n\n{machine()}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tables.md").write_text(text + "\n", encoding="utf-8")
    say(f"\n{text}")


if __name__ == "__main__":
    main()
