"""An exported folder: what it says of itself, how a process is set up for it, and how it is checked and measured."""

import contextlib
import gc
import importlib
import json
import math
import operator
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from .contract import Artifact, Execution, Loaded, TensorSpec
from .errors import BakeoffError, UsageError, first_line
from .lazily import numpy, torch

DESCRIPTION, SAMPLE, REQUIREMENTS = "bakeoff.json", "sample.npz", "requirements.txt"
"""Files of a folder: how what it holds is loaded and called, an input with the outputs that it must give, and the
packages that it was measured with."""

FORMAT = 2

SETS_IN_ROTATION = 4
WARM_UP_S, BURST_S, BURSTS = 1.0, 0.05, 20
PLACING_S = 0.01

Description = Mapping[str, Any]
Call = Callable[[], object]


def read(folder: Path) -> dict[str, Any]:
    """Return what a folder says of itself. Raise UsageError if it was not exported, or by another version."""
    try:
        description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is no folder that `bakeoff export` wrote: {first_line(error)}") from None
    if description.get("format") != FORMAT:
        raise UsageError(
            f"{folder} was exported by another version of Bakeoff: export the run again with this one "
            "(bakeoff export RUN --out FOLDER), or use its load.py"
        )
    return description


def artifact_of(folder: Path, description: Description, device: str = "") -> Artifact:
    return Artifact(
        path=folder / description["file"],
        device=device or description["device"],
        settings=description["settings"],
        inputs=tuple(map(_spec, description["inputs"])),
        outputs=tuple(map(_spec, description["outputs"])),
        sample=partial(sample_inputs, folder, description),
    )


def _spec(described: Mapping[str, Any]) -> TensorSpec:
    ranges = {int(axis): (low, high) for axis, (low, high) in described.get("ranges", {}).items()}
    return TensorSpec(described["name"], described["type"], tuple(described["shape"]), ranges)


def sample_inputs(folder: Path, description: Description) -> list[Any]:
    with numpy.load(folder / SAMPLE) as arrays:
        return [arrays[f"input_{number}"] for number in range(len(description["inputs"]))]


def set_process_up(folder: Path, description: Description) -> None:
    """Give this process the settings of the measurement, and import what the build needs. `IMPORT_FIRST` in the
    environment names modules that register operators of the build."""
    settings, device = description["settings"], description["device"]
    if "torch" in description["imports"]:  # which reads variables when it is imported
        os.environ.update(settings["variables"])
        if device.startswith("cuda"):  # these would overrule the precision, and NGC's images set one of them
            os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
            os.environ.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)
    with libraries_named(folder):
        for name in (*description["imports"], *os.environ.get("IMPORT_FIRST", "").split()):
            importlib.import_module(name)
    if "torch" not in description["imports"]:
        return
    torch.set_num_threads(settings["threads"])
    precision = "high" if settings["tf32"] else "highest"
    if torch.get_float32_matmul_precision() != precision:  # what was set is another key of Inductor's cache
        torch.set_float32_matmul_precision(precision)
    torch.backends.mha.set_fastpath_enabled(settings["fast_path"])
    switch(settings.get("switches", {}))
    if device.startswith("cuda"):
        torch.backends.cudnn.allow_tf32 = settings["tf32"]
        torch.cuda.set_device(torch.device(device).index or 0)
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def libraries_named(folder: Path) -> Iterator[None]:
    """Have an ImportError of the block name the packages that the folder needs, with their versions."""
    try:
        yield
    except ImportError as error:
        file = folder / REQUIREMENTS
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        packages = ", ".join(line for line in lines if not line.startswith("#"))
        text = f"{folder} needs {packages}: pip install -r {shlex.quote(str(file))} ({first_line(error)})"
        raise BakeoffError(text) from error


def switch(switches: Mapping[str, bool]) -> None:
    """Set torch's switches, by their paths below `torch`: attributes, or functions that take the value."""
    for path, value in switches.items():
        owner, _, name = path.rpartition(".")
        holder = operator.attrgetter(owner)(torch)
        if callable(getattr(holder, name)):
            getattr(holder, name)(value)
        else:
            setattr(holder, name, value)


def load(artifact: Artifact, loader: str) -> Loaded:
    """Return what the loader makes of the artefact: one in a file beside this one, or that of an installed module."""
    module, _, name = loader.partition(":")
    is_here = Path(__file__).with_name(f"{module}.py").exists()
    found = importlib.import_module(f".{module}" if is_here else module, __package__)
    loaded: Loaded = getattr(found, name)(artifact)
    return loaded


class Measured:
    """A folder's build, loaded into a process that was set up for it, with calls of the sample's inputs."""

    def __init__(self, folder: Path, description: Description) -> None:
        self.folder, self.description = folder, description
        artifact = artifact_of(folder, description)
        with libraries_named(folder):
            self._loaded = load(artifact, description["loader"])  # its weights and kernels are what calls work with
        self.execution: Execution = self._loaded.execution()
        self.synchronise: Callable[[], object] = tuple
        if "torch" not in description["imports"]:
            self._sets = [artifact.sample() for _ in range(SETS_IN_ROTATION)]
            return
        from .torch_streams import sample_tensors

        self._sets = [sample_tensors(artifact, artifact.device) for _ in range(SETS_IN_ROTATION)]
        if artifact.device.startswith("cuda"):
            if self.execution.stream is not None:
                torch.cuda.current_stream().synchronize()
                torch.cuda.set_stream(self.execution.stream)
            self.synchronise = torch.cuda.current_stream().synchronize
        self._calling = getattr(torch, description["settings"]["calling"])()  # it ends with this object
        self._calling.__enter__()

    def call(self, number: int) -> Call:
        self.execution.bind(self._sets[number % SETS_IN_ROTATION])
        return self.execution.run

    def answer(self, number: int) -> None:
        self.call(number)()
        self.synchronise()

    def check(self) -> bool:
        self.answer(0)
        return check(self.execution.results(), self.folder, self.description)

    def measure(self) -> None:
        reported = self.description["reported"]
        median = median_ms(self.call, self.synchronise)
        say(f"median latency {median:.4g} ms{f'; in the report {reported}' if reported else ''}")


def main(folder: Path) -> int:
    """Load a folder, check it, and measure it. Return 1 if an output is wrong, and 2 if it does not load."""
    try:
        description = read(folder)
        set_process_up(folder, description)
        measured = Measured(folder, description)
    except BakeoffError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if not measured.check():
        return 1
    measured.measure()
    return 0


def check(outputs: Sequence[Any], folder: Path, description: Description) -> bool:
    """Compare outputs for the sample with those that the model must give, and report each error."""
    errors = errors_of(outputs, description["outputs"], folder / SAMPLE)
    for number, (error, allowed) in enumerate(errors):
        passes = error <= allowed
        said = f"its RMSE is {error:.2g}, and {allowed:.2g} is allowed"
        (sys.stdout if passes else sys.stderr).write(f"output {number} is {'right' if passes else 'wrong'}: {said}\n")
    return all(error <= allowed for error, allowed in errors)


def errors_of(
    outputs: Sequence[Any], described: Sequence[Mapping[str, Any]], sample: Path
) -> list[tuple[float, float]]:
    """Return the RMSE of each output for the sample, infinite for another shape, with the RMSE that is allowed."""
    errors = []
    with numpy.load(sample) as arrays:
        for number, (output, facts) in enumerate(zip(outputs, described, strict=True)):
            expected, found = arrays[f"output_{number}"], _in_float64(output, facts["type"])
            if f"places_{number}" in arrays:  # of a large output some elements are compared
                found = found.reshape(-1, *expected.shape[1:])
                if len(found) == math.prod(facts["shape"]):
                    found = found[arrays[f"places_{number}"]]
            is_known, error = numpy.isfinite(expected), math.inf
            if found.shape == expected.shape:
                squares = (found - expected)[is_known] ** 2
                error = float(numpy.sqrt(squares.mean())) if squares.size else 0.0
            errors.append((error, facts["allowed"]))
    return errors


def _in_float64(output: Any, kind: str) -> Any:
    """Return an output as doubles of NumPy. Complex numbers become pairs, and words the numbers that they stand for."""
    if type(output).__module__ == "numpy":
        is_words = kind == "bfloat16" and output.dtype == "uint16"
        return ((output.astype("uint32") << 16).view("float32") if is_words else output).astype("float64")
    output = output.detach()
    if output.is_complex():
        output = torch.view_as_real(output.resolve_conj())
    return output.double().cpu().numpy()


def median_ms(call: Callable[[int], Call], synchronise: Callable[[], object]) -> float:
    """Return the median latency in ms of bursts of calls, which `call` gets ready by their numbers. Threads are moved
    between bursts, since they can lie badly for seconds."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    gc.disable()
    try:
        _burst(call, synchronise, WARM_UP_S)
        medians = []
        for number in range(BURSTS):
            if cores:
                os.sched_setaffinity(0, {cores[number % len(cores)]})
                _burst(call, synchronise, PLACING_S)
                os.sched_setaffinity(0, cores)
            medians.append(_burst(call, synchronise, BURST_S))
        return statistics.median(medians)
    finally:
        gc.enable()


def _burst(call: Callable[[int], Call], synchronise: Callable[[], object], seconds: float) -> float:
    latencies: list[float] = []
    end_ns = perf_counter_ns() + int(seconds * 1e9)
    while len(latencies) < 3 or perf_counter_ns() < end_ns:
        ready = call(len(latencies))
        synchronise()
        start_ns = perf_counter_ns()
        ready()
        synchronise()
        latencies.append((perf_counter_ns() - start_ns) / 1e6)
    return statistics.median(latencies)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
