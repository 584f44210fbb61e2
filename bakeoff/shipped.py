"""`python -m bakeoff.shipped FOLDER` loads an exported folder as `bakeoff.load` does, checks it, and measures it.

It measures as the folder's `load.py` does, but through the model's own signature.
"""

import argparse
import contextlib
import gc
import importlib
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bakeoff.records.errors import BakeoffError
from bakeoff.shipping.loading import DESCRIPTION, ShippedModel, load, read_description

CALLS_IN_ROTATION = 4
WARM_UP_S, BURST_S, BURSTS = 1.0, 0.05, 20
PLACING_S = 0.01


def main(arguments: list[str] | None = None) -> int:
    """Print whether the outputs are right, and the median latency. Return 1 if an output is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bakeoff.shipped", description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, help=f"a folder with a {DESCRIPTION}, which `bakeoff export` wrote")
    parser.add_argument("--device", help="another GPU than the one it was built on, such as cuda:1")
    given = parser.parse_args(arguments)
    try:
        _set_process_up(read_description(given.folder))
        for name in os.environ.get("IMPORT_FIRST", "").split():  # what registers its operators
            importlib.import_module(name)
        fast = load(given.folder, device=given.device)
        say(repr(fast))
        say(f"threads: {fast.thread_safety}")
        is_right = check(fast)
        if is_right:
            reported = fast.description["reported"]
            say(f"median latency {median_ms(fast):.4g} ms, with what bakeoff.load adds; in the report {reported}")
    except BakeoffError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0 if is_right else 1


def say(line: str) -> None:
    print(line)  # noqa: T201


def _set_process_up(description: Mapping[str, Any]) -> None:
    """Give this process the settings that the build was measured with, before torch is imported."""
    if "torch" not in description["libraries"]:
        return
    os.environ.update(description["settings"]["variables"])
    import torch

    torch.set_num_threads(description["settings"]["threads"])
    torch.set_float32_matmul_precision("high" if description["settings"]["tf32"] else "highest")
    torch.backends.cudnn.allow_tf32 = description["settings"]["tf32"]


def _given(fast: ShippedModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the sample: tensors on the device where torch is needed anyway, or else arrays."""
    if "torch" not in fast.description["libraries"]:
        return fast.sample_call(fast.sample_inputs())
    return fast.sample_call(fast.sample_tensors())


def check(fast: ShippedModel) -> bool:
    """Compare the outputs for the sample with those that the model must give, and tell each error."""
    import numpy

    args, kwargs = _given(fast)
    outputs = fast.tensors_of(fast(*args, **kwargs))
    is_right = True
    with numpy.load(fast.folder / "sample.npz") as sample:
        for number, (output, described) in enumerate(zip(outputs, fast.description["outputs"], strict=True)):
            found, expected = _in_float64(output), sample[f"output_{number}"]
            if f"places_{number}" in sample:  # of a large output some elements are compared
                found = found.reshape(-1)[sample[f"places_{number}"]]
            error = float(numpy.sqrt(numpy.mean((found - expected)[numpy.isfinite(expected)] ** 2)))
            passes = error <= described["allowed"]
            is_right = is_right and passes
            verdict = "right" if passes else "wrong"
            say(f"output {number} is {verdict}: its RMSE is {error:.2g}, and {described['allowed']:.2g} is allowed")
    return is_right


def _in_float64(output: Any) -> Any:
    if type(output).__module__ == "numpy":
        return output.astype("float64")
    output = output.detach()
    if output.is_complex():
        import torch

        output = torch.view_as_real(output.resolve_conj())
    return output.double().cpu().numpy()


def median_ms(fast: ShippedModel) -> float:
    """Return the median latency of bursts of calls. Threads are moved between them, since they can lie badly."""
    calls = [_given(fast) for _ in range(CALLS_IN_ROTATION)]
    synchronise = _synchronise(fast.device)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    with _without_garbage_collection():
        _burst(fast, calls, synchronise, WARM_UP_S)
        medians = []
        for number in range(BURSTS):
            if cores:
                os.sched_setaffinity(0, {cores[number % len(cores)]})
                _burst(fast, calls, synchronise, PLACING_S)
                os.sched_setaffinity(0, cores)
            medians.append(_burst(fast, calls, synchronise, BURST_S))
    return statistics.median(medians)


def _burst(fast: ShippedModel, calls: list[Any], synchronise: Callable[[], object], seconds: float) -> float:
    latencies: list[float] = []
    end_ns = perf_counter_ns() + int(seconds * 1e9)
    for args, kwargs in itertools.cycle(calls):
        synchronise()
        start_ns = perf_counter_ns()
        fast(*args, **kwargs)
        synchronise()
        latencies.append((perf_counter_ns() - start_ns) / 1e6)
        if len(latencies) >= 3 and perf_counter_ns() > end_ns:
            break
    return statistics.median(latencies)


def _synchronise(device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.current_stream(device).synchronize


@contextlib.contextmanager
def _without_garbage_collection() -> Any:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
