#!/usr/bin/env python3
"""What n calls cost in all: eager, Inductor, and hot path detection, which has to choose without knowing n.

    python hotpath/benchmarks/hot_paths.py --device cpu
    python hotpath/benchmarks/hot_paths.py --device cuda --out results/hot-paths-h200
    python hotpath/benchmarks/hot_paths.py --workloads mixed_ops --set mixed_ops.batch=8192 --calls 1000

Each contender makes its calls in a fresh process and notes how much time has passed after 1, 10, 100, ... of them: none
knows how many there will be, so that one process answers for every n. The clock starts with the module on its device,
what any first operator starts up started, and the compiler's modules imported where they are used; building is in it.
`inductor` and `hotpath` start from empty caches; `inductor again` and `hotpath again` each from a copy of what those
left in the first round. After its last call there `hotpath` goes on, untimed, until it has settled, so that there is
something to be learned.

Contenders take turns: `--processes` rounds with each of them once, in an order of its own. On a GPU a round's processes
are started side by side (its memory has to hold five), and each makes its calls while the others wait; on the CPU each
is started when the one before has ended, since two threads that have waited may be woken on one core. What is told of n
calls is the median over its processes, since one process is a draw, and one moment of the machine. The first calls of a
process are milliseconds on whichever core it was put: `--starts` adds rounds of processes that make 100 calls only, of
eager and of hot path detection (Inductor has not begun to answer by then).

The ratio is to the better of eager and Inductor for that n, of the same kind of start, with a 95 % interval: the
percentile bootstrap of both medians, over processes. It is over 1.25, or within, where the interval is. What being
watched costs is told by hotpath/benchmarks/tracking.py. Leaves a table, `hot-paths.json` and a figure.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import backends
import models
from backends.base import BuildContext, Compiled
from records.schema import Cell

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from harness.worker.clock import Clock

TASKS = {
    "matmul_chain": "inference",
    "mlp": "train_step",
    "attention_block": "inference",
    "mixed_ops": "inference",
}
CONTENDERS = ("eager", "inductor", "inductor again", "hotpath", "hotpath again")
STARTING = ("eager", "hotpath", "hotpath again")
RIVALS = {"hotpath": ("eager", "inductor"), "hotpath again": ("eager", "inductor again")}
TARGET = 1.25
SETTLE_S = 180.0
FIRST_CALLS = 100
"""Of the processes that `--starts` adds."""
REST_S = 1.0
"""Between turns of processes that started side by side: what one leaves behind, its compiler's workers, has to end."""
FEWEST = 5
"""Processes of each side of an interval."""
RESAMPLES, LEVELS = 2000, (0.025, 0.975)

Setup = dict[str, Any]


def main() -> None:
    options = _parse()
    out: Path = options.out or Path("results") / f"hot-paths-{options.device}"
    out.mkdir(parents=True, exist_ok=True)
    marks = _marks(options.calls)
    found: Setup = {
        "machine": None,
        "calls": options.calls,
        "processes": options.processes,
        "starts": options.starts,
        "workloads": {},
    }
    with tempfile.TemporaryDirectory(prefix="hot-paths-") as temporary:
        for name in options.workloads.split(","):
            setup: Setup = {**setup_of(name, options), "marks": marks}
            measured: Setup = {**setup, "each": {each: [] for each in CONTENDERS}, "about": {}}
            found["workloads"][name] = measured
            for number in range(options.processes + options.starts):
                is_start = number >= options.processes
                asked = {**setup, "marks": [n for n in marks if n <= FIRST_CALLS]} if is_start else setup
                drawn = _drawn(name, number, STARTING if is_start else CONTENDERS)
                for group in _groups(drawn, number, options.device):
                    turns = [_turn(asked, each, number, Path(temporary) / name) for each in group]
                    for contender, told in zip(group, in_fresh_processes(measure_calls, turns), strict=True):
                        measured["each"][contender].append(told["seconds"])
                        measured["about"].setdefault(contender, []).append(told["about"])
                        found["machine"] = told["machine"]
                        took = f"{told['seconds'][-1]:.3g} s for {asked['marks'][-1]} calls"
                        _say(f"{name}, {contender}: {took}; {told['about']}")
                # after each round, since a later one may fail
                (out / "hot-paths.json").write_text(json.dumps(found, indent=1))
            measured["seconds"] = medians(measured["each"])
            (out / "hot-paths.json").write_text(json.dumps(found, indent=1))
    table = to_markdown(found)
    (out / "hot-paths.md").write_text(table)
    draw(found, out / "hot-paths")
    _say(table)


def setup_of(name: str, options: argparse.Namespace) -> Setup:
    """A workload as it was asked for."""
    return {
        "model": name,
        "task": TASKS[name],
        "device": options.device,
        "dimensions": models.find(name).resolve(options.set.get(name, {})),
        "threads": options.threads,
    }


def medians(each: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """For each contender the median over its processes of what has passed at each mark that any of them reached."""
    return {
        contender: [statistics.median(samples_at(processes, at)) for at in range(max(map(len, processes)))]
        for contender, processes in each.items()
    }


def samples_at(processes: Sequence[Sequence[float]], at: int) -> list[float]:
    """Of those processes that got to the mark."""
    return [seconds[at] for seconds in processes if len(seconds) > at]


def ratio_interval(ours: Sequence[float], rivals: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Of the ratio of our median to the best rival's: 95 %, by the percentile bootstrap.

    Which rival is best is drawn, too. From minus to plus infinity where one of them has fewer than five processes: an
    interval of resampled medians of three covers 89 %.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    if min(map(len, [ours, *rivals])) < FEWEST:
        return -math.inf, math.inf
    generator = numpy.random.default_rng(0)
    above, *below = (_resampled_medians(samples, generator) for samples in (ours, *rivals))
    low, high = numpy.quantile(above / numpy.minimum.reduce(below), LEVELS)
    return float(low), float(high)


def _resampled_medians(samples: Sequence[float], generator: numpy.random.Generator) -> numpy.ndarray:
    return numpy.asarray(numpy.median(generator.choice(samples, (RESAMPLES, len(samples))), axis=1))


def _drawn(workload: str, number: int, contenders: Sequence[str]) -> list[str]:
    """The order of a round. In the first one caches are filled before anybody starts from them."""
    drawn = random.Random(f"{workload}/{number}").sample(contenders, len(contenders))
    return sorted(drawn, key=_starts_again) if number == 0 else drawn


def _groups(drawn: Sequence[str], number: int, device: str) -> list[list[str]]:
    """Who of a round is started side by side."""
    if not device.startswith("cuda"):
        return [[contender] for contender in drawn]
    if number > 0:
        return [list(drawn)]
    return [[each for each in drawn if _starts_again(each) is again] for again in (False, True)]


def _starts_again(contender: str) -> bool:
    return contender.endswith(" again")


def _turn(setup: Setup, contender: str, number: int, folder: Path) -> Setup:
    """What one process is told. Those that start again have the first round's caches; only there is time to learn."""
    own = folder / str(number) / contender
    kept = contender.removesuffix(" again")
    if kept != contender:
        shutil.copytree(folder / "kept" / kept, own)
    elif number == 0:
        own = folder / "kept" / kept
    learns = contender == "hotpath" and number == 0
    return {**setup, "contender": contender, "folder": str(own), "settle_s": SETTLE_S if learns else 0.0}


def in_fresh_processes(work: Callable[[Setup, Callable[[], None]], Setup], setups: Sequence[Setup]) -> list[Setup]:
    """What `work` returns for each of `setups`, in a fresh process each, with memory laid out anew.

    (Forks of one server would share theirs.) The processes get ready side by side. Then each has its turn, from the
    moment the function it is given returns until it has ended.
    """
    context = multiprocessing.get_context("spawn")
    started: list[tuple[SpawnProcess, Connection, Setup]] = []
    try:
        for setup in setups:
            ours, theirs = context.Pipe()
            process = context.Process(target=_carry_out, args=(work, setup, theirs))
            process.start()
            theirs.close()
            started.append((process, ours, setup))
        for runner in started:
            _received(*runner)
        found: list[Setup] = []
        for process, connection, setup in started:
            if hasattr(os, "sync"):
                os.sync()  # what was copied, and what the one before has left, is not written while this one is timed
            if len(started) > 1:
                time.sleep(REST_S)
            with contextlib.suppress(OSError):  # if it has died, receiving says so
                connection.send("go")
            found.append(_received(process, connection, setup))
            process.join()
        return found
    finally:
        for process, connection, _ in started:
            connection.close()
            process.terminate()
            process.join()


def _received(process: SpawnProcess, connection: Connection, setup: Setup) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join()
        raise SystemExit(f"{setup['model']}: its process ended with status {process.exitcode}") from None


def measure_calls(setup: Setup, wait_for_turn: Callable[[], None]) -> Setup:
    """The seconds that have passed after each of `marks` calls, building included."""
    compiled_by = setup["contender"].removesuffix(" again")
    marks: list[int] = setup["marks"]
    with placed(setup) as (build, sets, clock):
        # imports are in nobody's time
        backends.create(compiled_by)
        if compiled_by == "inductor":
            import torch._inductor.compile_fx  # noqa: F401 - and Dynamo with it
        if compiled_by == "hotpath":
            import hotpath.enabling  # noqa: F401
        wait_for_turn()
        _start_up(setup)
        seconds: list[float] = []
        clock.synchronise()
        begun = time.perf_counter()
        with build(compiled_by) as compiled:
            for number in range(1, marks[-1] + 1):
                call(compiled, sets[number % len(sets)], clock)
                if number == marks[len(seconds)]:
                    seconds.append(time.perf_counter() - begun)
            about = {"placement": _placement(compiled), **compiled.settings()} if compiled_by == "hotpath" else {}
            end = time.perf_counter() + setup["settle_s"]
            while not compiled.is_final() and time.perf_counter() < end:
                compiled.restore()
                call(compiled, sets[0], clock)
            if compiled_by == "hotpath":
                about["in the end"] = _placement(compiled)
    return {"seconds": seconds, "about": about, "machine": machine_of(setup["device"])}


def _start_up(setup: Setup) -> None:
    """Have done once, for whoever comes first would pay for it: threads and the libraries of products are started, and
    an optimiser's first step imports Dynamo."""
    import torch

    training = setup["task"] != "inference"
    with torch.set_grad_enabled(training):
        layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512)).to(setup["device"])
        outputs = layer(torch.ones(64, 512, device=setup["device"]))
        torch.nn.functional.scaled_dot_product_attention(*[outputs.view(1, 8, 64, 64)] * 3)
        if training:
            outputs.sum().backward()
            torch.optim.AdamW(layer.parameters()).step()


@contextlib.contextmanager
def placed(setup: Setup) -> Iterator[tuple[Any, Any, Clock]]:
    """How to build the workload by a backend's name, its input sets, and the clock of its device."""
    import torch

    from harness.worker import precision
    from harness.worker.clock import Clock
    from harness.worker.loading import gradients, load, place, training_of

    folder = Path(setup["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    cell = Cell(
        model=setup["model"],
        dimensions=setup["dimensions"],
        task=setup["task"],
        device=setup["device"],
        backend="eager",
    )
    precision.apply(cell.precision)
    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    clock = Clock(cell.device)
    model = load(cell)
    module, sets = place(model, cell)
    with clock.on_stream(), gradients(cell.task):
        training = training_of(model, cell)

        def build(name: str) -> Compiled:
            named = cell.model_copy(update={"backend": name})
            context = BuildContext(named, _Untimed(), folder, torch.get_num_threads(), training=training)
            return backends.create(name).build(module, sets[0], context)

        build.module = module  # type: ignore[attr-defined]
        yield build, sets, clock


class _Untimed:
    def __call__(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def call(compiled: Compiled, inputs: Any, clock: Clock) -> None:
    compiled.bind(inputs)
    compiled.run()
    clock.synchronise()


def to_markdown(found: Setup) -> str:
    """A table: the seconds for each n, and ours over the better rival's."""
    decades = [n for n in _marks(found["calls"]) if str(n).strip("0") == "1"]
    starts = f", and {found['starts']} more up to {FIRST_CALLS} calls" if found["starts"] else ""
    intervals = [
        compared(measured, contender, n)[1:]
        for measured in found["workloads"].values()
        for contender in RIVALS
        for n in decades
    ]
    within, over = (sum(high <= TARGET for _, high in intervals), sum(low > TARGET for low, _ in intervals))
    lines = [
        f"{found['machine']}. Seconds for n calls, building included, medians over {found['processes']} process(es) of "
        f"each{starts}; in brackets how many times those of the better of eager and Inductor from the same kind of "
        f"start, with a 95 % interval over processes. Of {len(intervals)} places {within} are within {TARGET}, {over} "
        f"over it (bold), and {len(intervals) - within - over} not told apart from it.",
        "",
        f"| workload | | {' | '.join(f'{n:,}' for n in decades)} |",
        f"| --- | --- | {' | '.join('---:' for _ in decades)} |",
    ]
    for name, measured in found["workloads"].items():
        for contender in CONTENDERS:
            cells = [_cell(measured, contender, n) for n in decades]
            lines.append(f"| {name}, {measured['task']} | {contender} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def compared(measured: Setup, contender: str, n: int) -> tuple[float, float, float]:
    """How many times the better rival's seconds n calls took: the ratio of medians, and its interval."""
    at, seconds, each = measured["marks"].index(n), measured["seconds"], measured["each"]
    rivals = RIVALS[contender]
    interval = ratio_interval(samples_at(each[contender], at), [samples_at(each[rival], at) for rival in rivals])
    return seconds[contender][at] / min(seconds[rival][at] for rival in rivals), *interval


def _cell(measured: Setup, contender: str, n: int) -> str:
    seconds = measured["seconds"][contender][measured["marks"].index(n)]
    if contender not in RIVALS:
        return f"{seconds:.3g}"
    ratio, low, high = compared(measured, contender, n)
    told = "" if math.isinf(low) else f" [{low:.2f}, {high:.2f}]"
    text = f"{seconds:.3g} ({ratio:.2f}{told})"
    return f"**{text}**" if low > TARGET else text


def draw(found: Setup, stem: Path) -> None:
    """Cumulative time over the number of calls, a panel for each workload."""
    import matplotlib
    from matplotlib.figure import Figure

    looks = {
        "eager": ("#444444", "-"),
        "inductor": ("#d55e00", "-"),
        "inductor again": ("#d55e00", "--"),
        "hotpath": ("#0072b2", "-"),
        "hotpath again": ("#0072b2", "--"),
    }
    with matplotlib.rc_context({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "bakeoff"}):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        panels = figure.subplots(2, 2, squeeze=False).flat
        for panel, (name, measured) in zip(panels, found["workloads"].items(), strict=False):
            for contender, (colour, line) in looks.items():
                seconds = measured["seconds"][contender]
                panel.plot(measured["marks"], seconds, line, color=colour, label=contender, linewidth=1.2)
            panel.set_xscale("log")
            panel.set_yscale("log")
            panel.set_title(f"{name}, {measured['task']}")
            panel.set_xlabel("calls")
            panel.set_ylabel("seconds so far")
            panel.grid(True)
        for panel in list(panels)[len(found["workloads"]) :]:
            panel.set_visible(False)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=200)
        figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})


def _marks(most: int) -> list[int]:
    """1, 2, 5, 10, 20, ... up to `most`, and `most` itself."""
    found = [factor * 10**power for power in range(8) for factor in (1, 2, 5)]
    return sorted({*(n for n in found if n <= most), most})


def _placement(compiled: Compiled) -> str:
    placement = compiled.placement()
    return "; ".join(placement.evidence) if placement else ""


def machine_of(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else _cpu()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = f"{cores} cores, {torch.get_num_threads()} of them for an operator"
    return f"{name}, {threads}, torch {torch.__version__}, Python {platform.python_version()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _carry_out(work: Callable[[Setup, Callable[[], None]], Setup], setup: Setup, connection: Connection) -> None:
    def wait_for_turn() -> None:
        connection.send("ready")
        connection.recv()

    connection.send(work(setup, wait_for_turn))
    connection.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--workloads", default=",".join(TASKS))
    parser.add_argument("--set", action="append", default=[], help="WORKLOAD.KEY=VALUE of its dimensions")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=3, help="of each contender")
    parser.add_argument("--starts", type=int, default=0, help=f"further processes of {FIRST_CALLS} calls [none]")
    parser.add_argument("--threads", type=int, help="intra-operator threads of every contender [torch's choice]")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    check_workloads(parser, options.workloads)
    if options.processes < 1 or options.starts < 0:
        parser.error("--processes: at least 1; --starts: at least 0")
    options.set = dimensions_of(parser, options.set)
    return options


def check_workloads(parser: argparse.ArgumentParser, workloads: str) -> None:
    for name in workloads.split(","):
        if name not in TASKS:
            parser.error(f"--workloads: '{name}' is none of {', '.join(TASKS)}")


def dimensions_of(parser: argparse.ArgumentParser, entries: Sequence[str]) -> dict[str, dict[str, str | int]]:
    found: dict[str, dict[str, str | int]] = {}
    for entry in entries:
        where, equals, value = entry.partition("=")
        name, dot, key = where.partition(".")
        if not (equals and dot and name in TASKS):
            parser.error(f"--set {entry}: write WORKLOAD.KEY=VALUE, with one of {', '.join(TASKS)}")
        found.setdefault(name, {})[key] = value
    return found


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
