#!/usr/bin/env python3
"""Is each backend set up as well as its own maintainers would? Ours beside their tools and hand-written loops.

    python benchmarks/at_its_best.py --device cpu
    python benchmarks/at_its_best.py --device cuda --models mlp,encoder --configurations onnx,inductor

For each model and configuration one fresh process holds two builds: ours, by the backend, and a rival, written here as
a user would who follows the library's documentation and knows nothing of Bakeoff. In each round both are measured, in
random order, on the same inputs:

- latency: our burst, and a bare loop of call and synchronise;
- on the GPU also `torch.utils.benchmark.Timer` (calls back to back, against our throughput) and, where Triton is,
  `triton.testing.do_bench` (device time with a cold L2 cache, against our device time with a warm one);
- for OpenVINO also its own `benchmark_app -api sync -hint latency`, in a process of its own.

A ratio is ours over theirs, the median over rounds with a 95 % interval from order statistics: 1.02 is the bound that
ours must keep.

Building takes minutes where measuring takes seconds (AOTInductor compiles C++ for a minute, twice). `--together FILE`
has all pairs built at once, and then measured one after another, with nothing else running meanwhile. Whatever else
holds a shared lock on FILE (`flock --shared FILE make test`) is waited for too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import fcntl
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from judging.estimate import speedup
from judging.verdict import spell_ratio
from records.schema import Burst, Cell, Ratio

ROUNDS = 11
BURST_S = 0.1
BURST_CALLS = 2  # of a model that takes longer than a burst lasts
FIRST_CALLS = 3  # in which a rival compiles, warms up its graph and records it

Sizes = Mapping[str, int]
ENCODER: Sizes = {"batch": 8, "seq": 512, "dim": 768, "heads": 12, "ffn": 3072, "layers": 12}
MODELS: dict[str, tuple[str, Sizes]] = {
    "mlp": ("mlp", {}),
    "conv": ("conv", {}),
    "transformer": ("transformer", {}),
    "encoder": ("transformer", ENCODER),
}
CONFIGURATIONS = {
    "cpu": ["eager", "torchscript", "inductor", "aotinductor", "onnx", "openvino"],
    "cuda": [
        "eager",
        "eager/cuda-graph",
        "torchscript",
        "inductor",
        "inductor/reduce-overhead",
        "aotinductor",
        "onnx",
        "onnx/cuda-graph",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(CONFIGURATIONS), required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--configurations", help="of our backends; default: all that have a rival")
    parser.add_argument(
        "--together",
        type=Path,
        metavar="FILE",
        help="build all pairs at once, then measure them one by one; FILE is what they lock, and stays empty",
    )
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "CONFIGURATION"), help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, metavar="DESCRIPTOR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, configuration = options.one
        compare(options.device, model, configuration, options.turn)
        return
    wanted = options.configurations.split(",") if options.configurations else CONFIGURATIONS[options.device]
    pairs = [(model, configuration) for model in options.models.split(",") for configuration in wanted]
    _say("| model | configuration | what | ours (ms) | theirs (ms) | ours / theirs [95 %] |")
    _say("| --- | --- | --- | ---: | ---: | --- |")
    file = options.together
    for rows in together(options.device, pairs, file) if file else one_by_one(options.device, pairs):
        _say(rows)


def one_by_one(device: str, pairs: list[tuple[str, str]]) -> Iterator[str]:
    """The rows of each pair, in a process that has the machine to itself from its build on."""
    for pair in pairs:
        yield rows_of(pair, start(device, pair))


def together(device: str, pairs: list[tuple[str, str]], file: Path) -> Iterator[str]:
    """The rows of each pair, in the order in which they are measured: all are built before the first one is.

    Each process is born with a shared lock on `file`, in a descriptor that it inherits: a lock that it took itself
    could come after another one's exclusive lock. To measure, it turns the lock into an exclusive one, which it gets
    once all others have ended or ask for theirs too. One that dies lets go of its lock.
    """
    with ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(pairs)) as readers:
        # all locks before the first process
        turns = [stack.enter_context(file.open("w")) for _ in pairs]
        for turn in turns:
            fcntl.flock(turn, fcntl.LOCK_SH)
        running = [start(device, pair, turn) for pair, turn in zip(pairs, turns, strict=True)]
        for turn in turns:
            turn.close()  # without unlocking: the processes hold what they inherited
        results = [readers.submit(rows_of, pair, process) for pair, process in zip(pairs, running, strict=True)]
        for result in concurrent.futures.as_completed(results):
            yield result.result()


def start(device: str, pair: tuple[str, str], turn: IO[str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--device", device, "--one", *pair]
    descriptors = [turn.fileno()] if turn else []
    command += [word for descriptor in descriptors for word in ("--turn", str(descriptor))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=descriptors)


def rows_of(pair: tuple[str, str], process: subprocess.Popen[str]) -> str:
    """Lines of the table; one that says why, where the process failed."""
    model, configuration = pair
    said, errors = process.communicate()
    rows = []
    for row in map(json.loads, (line for line in said.splitlines() if line.startswith("{"))):
        numbers = " | ".join(str(row[key]) for key in ("ours", "theirs", "ratio"))
        rows.append(f"| {model}, {row['precision']} | {configuration} | {row['what']} | {numbers} |")
    if process.returncode:
        last = (errors.strip().splitlines() or ["no output"])[-1]
        rows.append(f"| {model} | {configuration} | failed ({process.returncode}): {last} | | | |")
    return "\n".join(rows)


def compare(device: str, model: str, configuration: str, turn: int | None = None) -> None:
    """Build both sides of one pair in this process, measure them, and print one JSON line per comparison.

    `turn` is a descriptor that holds a shared lock: measuring begins when it holds an exclusive one.
    """
    import torch

    import backends
    from backends.base import BuildContext
    from harness import precision
    from harness.worker.clock import Clock
    from harness.worker.placing import load, place

    backend_name, _, mode = configuration.partition("/")
    family, sizes = MODELS[model]
    cell = Cell(
        model=family,
        dimensions=dict(sizes) if sizes else _defaults(family),
        device=device,
        precision="fp16" if model == "encoder" and device == "cuda" else "fp32",
        backend=backend_name,
        mode=mode or "default",
    )
    precision.apply(cell.precision)
    clock = Clock(device)
    module, sets = place(load(cell), cell)
    with tempfile.TemporaryDirectory() as folder, clock.on_stream(), torch.inference_mode():
        workspace = Path(folder) / "ours"
        workspace.mkdir()
        context = BuildContext(cell, _untimed, workspace, torch.get_num_threads(), sets)
        compiled = backends.create(backend_name).build(module, sets[0], context)
        call = RIVALS[configuration](module, sets[0], Path(folder))
        for _ in range(FIRST_CALLS):
            call()
        clock.synchronise()
        if turn is not None:
            fcntl.flock(turn, fcntl.LOCK_EX)
        if backend_name == "openvino":
            _against_benchmark_app(compiled, sets[0], clock, cell, workspace / "model.xml")
        _against_loops(compiled, call, sets[0], clock, cell)


def _against_loops(compiled: Any, call: Callable[[], object], inputs: Any, clock: Any, cell: Cell) -> None:
    from harness.worker import sampling

    cuda = cell.device == "cuda"
    sampling.warm_up(compiled, [inputs], clock, 0.5)
    bare_loop(call, clock.synchronise, 0.5, 10)
    ours: list[list[int]] = []
    theirs: list[list[int]] = []
    for number in range(ROUNDS):
        turns = [
            lambda: ours.append(sampling.burst(compiled, [inputs], clock, BURST_S, BURST_CALLS)),
            lambda: theirs.append(bare_loop(call, clock.synchronise, BURST_S, BURST_CALLS)),
        ]
        for turn in random.Random(number).sample(turns, 2):
            turn()
    report(cell, "latency / a bare loop", ours, theirs)
    if not cuda:
        return
    import torch
    from torch.utils.benchmark import Timer

    # both as nanoseconds per call, so that one function can compare them
    timer = Timer("call()", globals={"call": call})
    per_call: list[tuple[list[int], list[int]]] = []
    device_times: list[tuple[list[int], list[int]]] = []
    for _ in range(ROUNDS):
        throughput = sampling.throughput(compiled, [inputs], clock)
        measured = timer.blocked_autorange(min_run_time=0.1)
        per_call.append(([round(1e9 / throughput.calls_per_s)], [round(1e9 * measured.median)]))
    report(cell, "throughput / torch.utils.benchmark.Timer", *map(list, zip(*per_call, strict=True)))
    from triton.testing import do_bench

    for _ in range(ROUNDS):
        ours_ms = sampling.device_time(compiled, [inputs], clock).median_ms  # type: ignore[union-attr]
        theirs_ms = do_bench(call, warmup=10, rep=50, return_mode="median")
        device_times.append(([round(1e6 * ours_ms)], [round(1e6 * theirs_ms)]))
    torch.cuda.synchronize()
    report(cell, "device time / triton.testing.do_bench", *map(list, zip(*device_times, strict=True)))


def _against_benchmark_app(compiled: Any, inputs: Any, clock: Any, cell: Cell, model: Path) -> None:
    """OpenVINO's own tool is a program: it takes its turn in each round.

    It reports the request's own `latency`, taken inside of the C++ call. What Python adds to that (a dictionary of
    results, mostly) every caller from Python pays, so like is compared with like: our request's `latency`.
    """
    from harness.worker import sampling

    sampling.warm_up(compiled, [inputs], clock, 0.5)
    ours: list[list[int]] = []
    theirs: list[list[int]] = []
    for _ in range(6):
        ours.append([_inside_ns(compiled) for _ in range(max(3, round(1e3 / _inside_ms(compiled))))])
        command = [str(Path(sys.executable).with_name("benchmark_app")), "-m", str(model), "-d", "CPU"]
        command += ["-api", "sync", "-hint", "latency", "-t", "1", "-infer_precision", "f32"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"Median:\s+([\d.]+) (us|ms)", said)
        if not found:
            sys.exit(f"benchmark_app printed no median:\n{said}")
        theirs.append([round(float(found[1]) * (1e3 if found[2] == "us" else 1e6))])
    report(cell, "the request's latency / benchmark_app", ours, theirs)


def _inside_ms(compiled: Any) -> float:
    compiled.run()
    return float(compiled._request.latency)


def _inside_ns(compiled: Any) -> int:
    return round(1e6 * _inside_ms(compiled))


def report(cell: Cell, what: str, ours_ns: list[list[int]], theirs_ns: list[list[int]]) -> None:
    ratio: Ratio = speedup(_bursts(theirs_ns), _bursts(ours_ns))  # theirs faster than ours by ...: ours / theirs
    row = {
        "precision": cell.precision,
        "what": what,
        "ours": _milliseconds(ours_ns),
        "theirs": _milliseconds(theirs_ns),
        "ratio": spell_ratio(ratio).replace("x", ""),
    }
    _say(json.dumps(row))


def bare_loop(call: Callable[[], object], synchronise: Callable[[], None], seconds: float, calls: int) -> list[int]:
    """What everybody writes: nanoseconds of call and synchronise."""
    from time import perf_counter_ns

    samples: list[int] = []
    end = perf_counter_ns() + int(seconds * 1e9)
    while True:
        begin = perf_counter_ns()
        call()
        synchronise()
        now = perf_counter_ns()
        samples.append(now - begin)
        if now >= end and len(samples) >= calls:
            return samples


def eager(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    args = inputs.args
    return lambda: module(*args)


def cuda_graph(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    """As in PyTorch's notes on CUDA graphs: three calls on a side stream, then capture."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            module(*inputs.args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*inputs.args)
    return graph.replay


def torchscript(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    import torch

    traced: Any = torch.jit.freeze(torch.jit.trace(module, inputs.args).eval())
    args = inputs.args
    return lambda: traced(*args)


def inductor(module: Any, inputs: Any, folder: Path, mode: str | None = None) -> Callable[[], object]:
    import torch

    compiled = torch.compile(_with_code_of_its_own(module), mode=mode)
    args = inputs.args
    return lambda: compiled(*args)


def _with_code_of_its_own(module: Any) -> Any:
    """A shallow copy whose `forward` is another code object: Dynamo keeps what it compiled, and checks guards, by that.

    Two compiled functions of one code object would stand in one list, and the second pay for the first one's guards.
    """
    copied = copy.copy(module)
    forward = type(module).forward
    own = types.FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copied.__class__ = type(type(module).__name__, (type(module),), {"forward": own})
    return copied


def reduce_overhead(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    return inductor(module, inputs, folder, "reduce-overhead")


def aotinductor(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    import torch

    from backends.linking import linker_options

    with torch.inference_mode(False), torch.no_grad():
        args = tuple(tensor.clone() for tensor in inputs.args)
        program = torch.export.export(module, args)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "theirs.pt2"), inductor_configs=linker_options()
        )
    model = torch._inductor.aoti_load_package(path)
    return lambda: model(*args)


def onnx(module: Any, inputs: Any, folder: Path, graph: bool = False) -> Callable[[], object]:
    """IO binding over OrtValues on the device, as in ONNX Runtime's documentation."""
    import onnxruntime
    import torch

    tensors = inputs.args
    device = tensors[0].device.type
    path = folder / "theirs.onnx"
    with torch.inference_mode(False), torch.no_grad():
        program = torch.onnx.export(module, tuple(tensor.clone() for tensor in tensors), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    options: list[Any] = ["CPUExecutionProvider"]
    if device == "cuda":
        onnxruntime.preload_dlls()
        given = {"use_tf32": "0", **({"enable_cuda_graph": "1"} if graph else {})}
        options = [("CUDAExecutionProvider", given), *options]
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), session_options, providers=options)
    binding = session.io_binding()
    kept = [onnxruntime.OrtValue.ortvalue_from_numpy(tensor.cpu().numpy(), device, 0) for tensor in tensors]
    for given_input, value in zip(session.get_inputs(), kept, strict=True):
        binding.bind_ortvalue_input(given_input.name, value)
    for output in session.get_outputs():
        numpy_type = torch.empty(0, dtype=tensors[0].dtype).numpy().dtype
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(output.shape, numpy_type, device, 0)
        kept.append(value)
        binding.bind_ortvalue_output(output.name, value)

    def call(kept: Any = kept) -> None:
        session.run_with_iobinding(binding)

    return call


def onnx_cuda_graph(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    return onnx(module, inputs, folder, graph=True)


def openvino(module: Any, inputs: Any, folder: Path) -> Callable[[], object]:
    """An inference request on numpy arrays, as in OpenVINO's documentation, sharing memory where it can."""
    import openvino as library
    import torch

    arrays = [tensor.numpy() for tensor in inputs.args]
    with torch.inference_mode(False), torch.no_grad():
        model = library.convert_model(module, example_input=tuple(tensor.clone() for tensor in inputs.args))
    model.reshape({index: list(array.shape) for index, array in enumerate(arrays)})
    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = library.Core().compile_model(model, "CPU", properties).create_infer_request()
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


RIVALS: dict[str, Callable[[Any, Any, Path], Callable[[], object]]] = {
    "eager": eager,
    "eager/cuda-graph": cuda_graph,
    "torchscript": torchscript,
    "inductor": inductor,
    "inductor/reduce-overhead": reduce_overhead,
    "aotinductor": aotinductor,
    "onnx": onnx,
    "onnx/cuda-graph": onnx_cuda_graph,
    "openvino": openvino,
}


def _defaults(family: str) -> dict[str, int | str]:
    import models

    return models.find(family).resolve({})


def _untimed(name: str) -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _bursts(samples: list[list[int]]) -> list[Burst]:
    return [Burst(group=0, round=number, started_s=0.0, samples_ns=one) for number, one in enumerate(samples)]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _milliseconds(samples: list[list[int]]) -> str:
    return f"{statistics.median(statistics.median(one) for one in samples) / 1e6:.4g}"


if __name__ == "__main__":
    main()
