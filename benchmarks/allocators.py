#!/usr/bin/env python3
"""Which allocator makes a model's calls faster? glibc, glibc that keeps memory or has one arena, jemalloc and tcmalloc.

    python benchmarks/allocators.py                       the templates and a part of the small zoo
    python benchmarks/allocators.py --models mlp,conv     these models, with their default sizes
    python benchmarks/allocators.py --rounds 12 --out allocators.json

Each allocator has one process that imports torch. For each model, every one of them forks a process that builds the
model, and these take turns in rounds, in random order, so that other work on the machine disturbs all of them alike.
A turn calls eager on one thread for a while, and is told by the lower quartile of its calls. The ratio to glibc is
the median over rounds, with its 95 % interval. Pages are those that a call gets from the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.intervals import median_interval
from bakeoff.measuring.malloc import variables_of
from bakeoff.planning.request import Malloc
from bakeoff.records.errors import UsageError

SMALL_ZOO: dict[str, dict[str, int]] = {
    "mlp": {},
    "conv": {},
    "transformer": {},
    "torchvision:resnet50": {"batch": 1, "size": 224},
    "hf:presets/zoo/small/bert": {"batch": 1, "seq": 64},
    "hf:presets/zoo/small/gpt2": {"batch": 1, "seq": 64},
    "hf:presets/zoo/small/llama": {"batch": 1, "seq": 64},
    "hf:presets/zoo/small/vit": {"batch": 1},
    "diffusers:presets/zoo/small/unet": {"batch": 1, "size": 16},
    "presets/zoo/networks.py:dlrm": {"batch": 128, "rows": 1000},
    "presets/zoo/networks.py:lstm": {"batch": 1, "seq": 16, "width": 256},
    "presets/zoo/networks.py:unet3d": {"batch": 1, "size": 32},
    "presets/zoo/networks.py:graph": {"nodes": 2000, "edges": 20000},
}
"""Each model with its sizes, as in bakeoff/presets/zoo-small.toml."""

FEWEST_CALLS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SMALL_ZOO), help="names, as for bakeoff --model")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each allocator for each model, six at least")
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of a turn, and four calls at least")
    parser.add_argument("--out", type=Path, help="file for the turns as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    compare(given.models.split(","), given.rounds, given.turn, given.out)


def allocators() -> dict[str, dict[str, str]]:
    """Return the variables that a process starts with, by allocator. What is not installed is said and left out."""
    known: dict[str, dict[str, str]] = {"glibc": {}, "one arena": {"MALLOC_ARENA_MAX": "1"}}
    chosen: tuple[Malloc, ...] = ("glibc-tuned", "jemalloc", "tcmalloc")
    for name in chosen:
        try:
            known[name] = dict(variables_of(name))
        except UsageError as error:
            say(error)
    return known


def compare(models: list[str], rounds: int, turn_s: float, out: Path | None) -> None:
    """Measure all models, and print a row for each as soon as it is known."""
    say(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    known = allocators()
    say(f"|eager, float32|glibc (ms, pages)|{'|'.join(f'{name} (x glibc)' for name in list(known)[1:])}|")
    say(f"|---|---:|{'---:|' * (len(known) - 1)}")
    turns: dict[str, Any] = {}
    with contextlib.ExitStack() as held:
        servers = {name: held.enter_context(started(variables)) for name, variables in known.items()}
        for model in models:
            asked = {"model": model, "sizes": SMALL_ZOO.get(model, {}), "turn_s": turn_s}
            if reason := next(filter(None, [ask(server, asked) for server in servers.values()]), ""):
                say(f"left out: {model}: {reason}")
                continue
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
            for _ in range(rounds):
                for name in random.sample(list(servers), len(servers)):
                    taken[name].append(ask(servers[name], {"turn": True}))
            for server in servers.values():
                ask(server, {"turn": False})
            turns[model] = taken
            say(row(model, taken))
            if out:
                out.write_text(json.dumps(turns))
    say(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


def row(model: str, taken: dict[str, list[dict[str, float]]]) -> str:
    """Return a row of the table in Markdown."""
    base = [turn["quartile_ms"] for turn in taken["glibc"]]
    cells = [f"{statistics.median(base):.3g} ({statistics.median(turn['pages'] for turn in taken['glibc']):,.0f})"]
    for name in list(taken)[1:]:
        ratios = [turn["quartile_ms"] / against for turn, against in zip(taken[name], base, strict=True)]
        interval = median_interval(ratios)
        ends = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""
        pages = statistics.median(turn["pages"] for turn in taken[name])
        cells.append(f"{statistics.median(ratios):.2f}{ends} ({pages:,.0f})")
    return f"|`{model}`|{'|'.join(cells)}|"


@contextlib.contextmanager
def started(variables: dict[str, str]) -> Any:
    """Start the process of an allocator, and end it after the block."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        env={**plain, **threads, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def ask(server: subprocess.Popen[str], question: dict[str, Any]) -> Any:
    """Send one line to a process, and return its answer."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(question) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise SystemExit(f"a process ended on {question}")
    return json.loads(answer)


def serve() -> None:
    """Fork a process for each model that is asked for, which answers until it is told to end."""
    import torch  # shared by all models, and starts no thread yet

    from bakeoff import models
    from bakeoff.measuring.worker import cell_model
    from bakeoff.records.schema import Cell

    while line := read_line():
        question = json.loads(line)
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        torch.set_num_threads(1)
        try:
            family = models.find(question["model"])
            sizes = family.resolve({name: str(value) for name, value in question["sizes"].items()})
            loaded = cell_model.load(Cell(model=family.name, dimensions=sizes, backend="eager"))
        except UsageError as error:
            say(json.dumps(str(error)))
            os._exit(1)
        with torch.inference_mode():
            answer_turns(loaded, question["turn_s"])
        os._exit(0)


def answer_turns(loaded: Any, turn_s: float) -> None:
    """Warm up, and call the model for each turn that is asked for."""

    def call(number: int) -> float:
        inputs = loaded.inputs[number % len(loaded.inputs)]
        begun_s = time.perf_counter()
        loaded.module(*inputs.args, **inputs.kwargs)
        return 1e3 * (time.perf_counter() - begun_s)

    for number in range(FEWEST_CALLS):
        call(number)
    say("null")
    while json.loads(read_line() or '{"turn": false}')["turn"]:
        before, ends_s = faults(), time.perf_counter() + turn_s
        latencies_ms: list[float] = []
        while len(latencies_ms) < FEWEST_CALLS or time.perf_counter() < ends_s:
            latencies_ms.append(call(len(latencies_ms)))
        quartile_ms = sorted(latencies_ms)[len(latencies_ms) // 4]
        say(json.dumps({"quartile_ms": quartile_ms, "pages": (faults() - before) / len(latencies_ms)}))
    say("null")


def say(text: object) -> None:
    print(text, flush=True)  # noqa: T201


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def read_line() -> str:
    """Return a line of standard input without reading ahead: the next one may be for another process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.decode()


if __name__ == "__main__":
    main()
