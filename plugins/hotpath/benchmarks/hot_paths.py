#!/usr/bin/env python3
"""Measure what n calls cost: eager, Inductor, and hot path detection, which has to choose without knowing n.

    python plugins/hotpath/benchmarks/hot_paths.py --device cpu
    python plugins/hotpath/benchmarks/hot_paths.py --device cuda --out results/hot-paths-h200
    python plugins/hotpath/benchmarks/hot_paths.py --workloads mixed_ops --set mixed_ops.batch=8192 --calls 1000

Each contender makes its calls in a fresh process, which notes the time that has passed after 1, 10, 100, ... of them.
So one process answers for every n. The clock starts when the module is on its device, torch's libraries are started,
and the compiler's modules are imported. `inductor` and `hotpath` start from empty caches; `inductor again` and `hotpath
again` start from a copy of what those left in the first round. In that round `hotpath` goes on, untimed, until it has
settled, so that there is something to be learned.

Contenders take turns, `--processes` times in orders that are drawn. `--starts` adds processes that make 100 calls only.
The table has medians over processes. The ratio is to the better of eager and Inductor for that n, from the same kind of
start, with a 95 % interval: the percentile bootstrap of both medians, over processes.

tracking.py, beside it, measures the cost of being watched. This script writes a table, `hot-paths.json` and a figure
as PNG and SVG.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bakeoff import models

TASKS = {
    "matmul_chain": "inference",
    "mlp": "train_step",
    "attention_block": "inference",
    "mixed_ops": "inference",
}
LOOKS = {
    "eager": ("#444444", "-"),
    "inductor": ("#d55e00", "-"),
    "inductor again": ("#d55e00", "--"),
    "hotpath": ("#0072b2", "-"),
    "hotpath again": ("#0072b2", "--"),
}
CONTENDERS = tuple(LOOKS)
CONTENDERS_OF_STARTS = ("eager", "hotpath", "hotpath again")
RIVALS = {"hotpath": ("eager", "inductor"), "hotpath again": ("eager", "inductor again")}
TARGET_RATIO = 1.25
SETTLE_LIMIT_S = 180.0
CALLS_OF_STARTS = 100
MIN_PROCESSES_FOR_INTERVAL = 5
RESAMPLES, LEVELS = 2000, (0.025, 0.975)

Setup = dict[str, Any]


def main() -> None:
    options = _parse()
    out: Path = options.out or Path("results") / f"hot-paths-{options.device}"
    out.mkdir(parents=True, exist_ok=True)
    found: Setup = {
        "machine": None,
        "calls": options.calls,
        "processes": options.processes,
        "starts": options.starts,
        "workloads": {},
    }
    with tempfile.TemporaryDirectory(prefix="hot-paths-") as temporary:
        for name in options.workloads.split(","):
            measured: Setup = {
                **setup_of(name, options),
                "marks": _marks(options.calls),
                "each": {each: [] for each in CONTENDERS},
                "about": {each: [] for each in CONTENDERS},
            }
            found["workloads"][name] = measured
            for number in range(options.processes + options.starts):
                _measure_round(measured, number, number >= options.processes, Path(temporary) / name, found)
                measured["seconds"] = medians(measured["each"])
                # after each round, since a later one may fail
                (out / "hot-paths.json").write_text(json.dumps(found, indent=1))
    table = to_markdown(found)
    (out / "hot-paths.md").write_text(table)
    draw(found, out / "hot-paths")
    _say(table)


def _measure_round(measured: Setup, number: int, is_start: bool, folder: Path, found: Setup) -> None:
    """Measure every contender once, in an order that is drawn."""
    contenders = CONTENDERS_OF_STARTS if is_start else CONTENDERS
    order = random.Random(f"{measured['model']}/{number}").sample(contenders, len(contenders))
    if number == 0:  # caches are filled before a contender starts from them
        order.sort(key=lambda contender: contender.endswith(" again"))
    marks = [mark for mark in measured["marks"] if not is_start or mark <= CALLS_OF_STARTS]
    for contender in order:
        own, kept = folder / str(number) / contender, folder / "0" / contender.removesuffix(" again")
        if kept.name != contender:
            shutil.copytree(kept, own)
        setup = {key: measured[key] for key in ("model", "task", "device", "dimensions", "threads")}
        settle_s = SETTLE_LIMIT_S if contender == "hotpath" and number == 0 else 0.0
        setup |= {"contender": contender, "marks": marks, "folder": str(own), "settle_s": settle_s}
        told = in_fresh_process(measure_calls, setup)
        measured["each"][contender].append(told["seconds"])
        measured["about"][contender].append(told["about"])
        found["machine"] = told["machine"]
        _say(f"{measured['model']}, {contender}: {told['seconds'][-1]:.3g} s for {marks[-1]} calls; {told['about']}")


def setup_of(name: str, options: argparse.Namespace) -> Setup:
    """Return a workload as it was asked for."""
    return {
        "model": name,
        "task": TASKS[name],
        "device": options.device,
        "dimensions": models.find(name).resolve(options.set.get(name, {})),
        "threads": options.threads,
    }


def in_fresh_process(work: Callable[[Setup], Setup], setup: Setup) -> Setup:
    """Return the result of `work` in a process of its own, with memory laid out anew."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, setup).result()


class Workload:
    """A module on its device, with its inputs and, for training, its optimiser."""

    def __init__(self, setup: Setup) -> None:
        import torch

        if setup["threads"]:
            torch.set_num_threads(setup["threads"])
        torch.backends.cudnn.allow_tf32 = False
        folder = Path(setup["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        self.device = setup["device"]
        self.is_training = setup["task"] != "inference"
        loaded = models.find(setup["model"]).load(setup["dimensions"], 0)
        self.module: torch.nn.Module = loaded.module.to(self.device).train(self.is_training)
        self.inputs = [one.map(lambda tensor: tensor.to(self.device)) for one in loaded.inputs]
        self._optimizer = torch.optim.AdamW(self.module.parameters()) if self.is_training else None
        self._no_gradients = torch.inference_mode
        self._cuda = torch.cuda if self.device.startswith("cuda") else None

    def call(self, function: Callable[..., Any], number: int) -> None:
        """Make one call, and wait until the device has done it. A call of training is a whole step."""
        given = self.inputs[number % len(self.inputs)]
        if self._optimizer is None:
            with self._no_gradients():
                function(*given.args, **given.kwargs)
        else:
            self._optimizer.zero_grad()
            function(*given.args, **given.kwargs).square().mean().backward()
            self._optimizer.step()
        self._wait_for_device()

    def _wait_for_device(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize(self.device)

    def start_up(self) -> None:
        """Start threads and libraries, so that their start is in nobody's time."""
        import torch

        layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512)).to(self.device)
        outputs = layer(torch.ones(64, 512, device=self.device))
        torch.nn.functional.scaled_dot_product_attention(*[outputs.view(1, 8, 64, 64)] * 3)
        if self.is_training:
            outputs.sum().backward()
            torch.optim.AdamW(layer.parameters()).step()
        self._wait_for_device()


def measure_calls(setup: Setup) -> Setup:
    """Return the seconds that have passed after each of `marks` calls, building included."""
    import torch

    contender, marks = setup["contender"].removesuffix(" again"), setup["marks"]
    workload = Workload(setup)
    # imports are in nobody's time
    if contender == "inductor":
        import torch._inductor.compile_fx
    if contender == "hotpath":
        from bakeoff_hotpath import enabling
    workload.start_up()
    if hasattr(os, "sync"):
        os.sync()  # the files of earlier processes are not written while this one is timed
    hot = None
    seconds: list[float] = []
    begun = time.perf_counter()
    function: Callable[..., Any] = workload.module
    if contender == "inductor":
        function = torch.compile(workload.module)
    if contender == "hotpath":
        hot = enabling.enable_hot_path_detection(workload.module, cache=Path(setup["folder"]) / "learned")
    for number in range(1, marks[-1] + 1):
        workload.call(function, number)
        if number == marks[len(seconds)]:
            seconds.append(time.perf_counter() - begun)
    about: dict[str, Any] = {}
    if hot is not None:
        about["after the calls"] = [str(report) for report in hot.report()]
        about["switched at call"] = [report.switched_at_call for report in hot.report()]
        end = time.perf_counter() + setup["settle_s"]
        while not hot.is_settled and time.perf_counter() < end:
            workload.call(function, 0)
        about["in the end"] = [str(report) for report in hot.report()]
        hot.close()
    return {"seconds": seconds, "about": about, "machine": machine_of(setup["device"])}


def medians(each: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return for each contender the median over processes at each mark that any of them reached."""
    return {
        contender: [statistics.median(samples_at(processes, at)) for at in range(max(map(len, processes), default=0))]
        for contender, processes in each.items()
    }


def samples_at(processes: Sequence[Sequence[float]], at: int) -> list[float]:
    """Return the seconds of the processes that reached the mark."""
    return [seconds[at] for seconds in processes if len(seconds) > at]


def ratio_interval(ours: Sequence[float], rivals: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of our median to the best rival's, by the percentile bootstrap.

    The best rival is drawn, too. The interval is infinite for fewer than five processes: one of resampled medians of
    three covers 89 %. Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if min(map(len, [ours, *rivals])) < MIN_PROCESSES_FOR_INTERVAL:
        return -math.inf, math.inf
    generator = numpy.random.default_rng(0)
    above, *below = (
        numpy.median(generator.choice(samples, (RESAMPLES, len(samples))), axis=1) for samples in (ours, *rivals)
    )
    low, high = numpy.quantile(above / numpy.minimum.reduce(below), LEVELS)
    return float(low), float(high)


def compared(measured: Setup, contender: str, n: int) -> tuple[float, float, float]:
    """Return the ratio of the medians of n calls, ours to the better rival's, and its interval."""
    at, seconds, each = measured["marks"].index(n), measured["seconds"], measured["each"]
    rivals = RIVALS[contender]
    interval = ratio_interval(samples_at(each[contender], at), [samples_at(each[rival], at) for rival in rivals])
    return seconds[contender][at] / min(seconds[rival][at] for rival in rivals), *interval


def to_markdown(found: Setup) -> str:
    """Return a table of the seconds for each n, with the ratio to the better rival's."""
    decades = [n for n in _marks(found["calls"]) if str(n).strip("0") == "1"]
    starts = f", and {found['starts']} more up to {CALLS_OF_STARTS} calls" if found["starts"] else ""
    intervals = [
        compared(measured, contender, n)[1:]
        for measured in found["workloads"].values()
        for contender in RIVALS
        for n in decades
    ]
    within = sum(high <= TARGET_RATIO for _, high in intervals)
    over = sum(low > TARGET_RATIO for low, _ in intervals)
    lines = [
        f"{found['machine']}. Seconds for n calls, building included, medians over {found['processes']} process(es) of "
        f"each{starts}. In brackets: the ratio to the better of eager and Inductor from the same kind of start, with a "
        f"95 % interval over processes. Of {len(intervals)} places {within} are within {TARGET_RATIO}, {over} over it "
        f"(bold), and {len(intervals) - within - over} undecided.",
        "",
        f"| workload | | {' | '.join(f'{n:,}' for n in decades)} |",
        f"| --- | --- | {' | '.join('---:' for _ in decades)} |",
    ]
    for name, measured in found["workloads"].items():
        for contender in CONTENDERS:
            cells = [_cell(measured, contender, n) for n in decades]
            lines.append(f"| {name}, {measured['task']} | {contender} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(measured: Setup, contender: str, n: int) -> str:
    seconds = measured["seconds"][contender][measured["marks"].index(n)]
    if contender not in RIVALS:
        return f"{seconds:.3g}"
    ratio, low, high = compared(measured, contender, n)
    interval = "" if math.isinf(low) else f" [{low:.2f}, {high:.2f}]"
    text = f"{seconds:.3g} ({ratio:.2f}{interval})"
    return f"**{text}**" if low > TARGET_RATIO else text


def draw(found: Setup, stem: Path) -> None:
    """Draw the time so far over the number of calls, with a panel for each workload."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel, (name, measured) in zip(panels, found["workloads"].items(), strict=False):
        for contender, (colour, line) in LOOKS.items():
            panel.loglog(measured["marks"], measured["seconds"][contender], line, color=colour, label=contender)
        panel.set(title=f"{name}, {measured['task']}", xlabel="calls", ylabel="seconds so far")
        panel.grid(True)
    for panel in list(figure.axes)[len(found["workloads"]) :]:
        panel.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(stem.with_suffix(".png"), dpi=150)
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _marks(most: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, ... up to `most`, and `most` itself."""
    found = [factor * 10**power for power in range(8) for factor in (1, 2, 5)]
    return sorted({*(n for n in found if n <= most), most})


def machine_of(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _cpu()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = f"{cores} cores, {torch.get_num_threads()} of them for an operator"
    return f"{name}, {threads}, torch {torch.__version__}, Python {platform.python_version()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that this script and tracking.py share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--workloads", default=",".join(TASKS))
    parser.add_argument("--set", action="append", default=[], help="WORKLOAD.KEY=VALUE of its dimensions")
    parser.add_argument("--threads", type=int, help="intra-operator threads [torch's choice]")
    parser.add_argument(
        "--processes", type=int, default=3, help="of each contender, or of each workload in tracking.py"
    )
    parser.add_argument("--out", type=Path)
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options, with `set` as dimensions for each workload."""
    options = parser.parse_args()
    for name in options.workloads.split(","):
        if name not in TASKS:
            parser.error(f"--workloads: '{name}' is none of {', '.join(TASKS)}")
    if options.processes < 1:
        parser.error("--processes: at least 1")
    dimensions: dict[str, dict[str, str | int]] = {}
    for entry in options.set:
        where, equals, value = entry.partition("=")
        name, dot, key = where.partition(".")
        if not (equals and dot and name in TASKS):
            parser.error(f"--set {entry}: write WORKLOAD.KEY=VALUE, with one of {', '.join(TASKS)}")
        dimensions.setdefault(name, {})[key] = value
    options.set = dimensions
    return options


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=0, help=f"further processes of {CALLS_OF_STARTS} calls [none]")
    options = checked(parser)
    if options.starts < 0:
        parser.error("--starts: at least 0")
    return options


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
