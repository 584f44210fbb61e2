"""The process that compiles a call: `python -m bakeoff_hotpath.child FOLDER`.

FOLDER holds `task.pkl` and `script.json`. The process writes `forward.pt2`, for training `backward.pt2`, and at last
`result.json`, whatever happened. It runs at a low priority. When its standard input is closed, it ends with everything
it started: its parent is gone, or has no more use for it.
"""

from __future__ import annotations

import json
import multiprocessing.spawn
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff_hotpath.knowledge import write_atomically

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from bakeoff_hotpath.handover import Task

TASK, SCRIPT, RESULT = "task.pkl", "script.json", "result.json"
NICENESS = 10
TIMED_S_PER_VERSION = 0.2
MAX_REASON_CHARACTERS = 300

FULL = "out of memory", "No space left", "ALLOC_FAILED", "Killed"
"""The words by which CUDA, the system, cuBLAS and a compiler say that memory or disk was full."""


def main(folder: Path) -> None:
    begun = time.perf_counter()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.nice(NICENESS)
    try:
        result = {"ok": True, **_compile(folder), "seconds": time.perf_counter() - begun}
    except Exception as error:
        traceback.print_exc()
        first_line = str(error).strip().partition("\n")[0]
        reason = f"{type(error).__name__}: {first_line}"[:MAX_REASON_CHARACTERS]
        result = {"ok": False, "reason": reason, "is_for_good": not may_pass(error)}
    write_atomically(folder / RESULT, json.dumps(result))


@dataclass(frozen=True)
class Graphs:
    """The functions of flat tensors to compile. `backward` takes what `forward` saved, then the outputs' gradients."""

    forward: ExportedProgram
    outputs: int  # how many of the forward's results are outputs; the others are saved for the backward
    backward: ExportedProgram | None = None
    gradients: Sequence[int] = ()  # the input of the forward that each result of the backward belongs to
    tangents: Sequence[Sequence[int]] = ()  # the strides of the outputs' gradients


def _compile(folder: Path) -> dict[str, Any]:
    script = json.loads((folder / SCRIPT).read_text())
    if script:
        multiprocessing.spawn.prepare({"init_main_from_path": script})
    from bakeoff_hotpath import handover, packages, settings
    from bakeoff_hotpath.flattening import Flat, Weights, tensors_in

    task = handover.read(folder / TASK)
    settings.apply(task.settings)
    weights = Weights(task.module)
    flat = Flat(task.module, weights.names, task.args, task.kwargs)
    tensors = [*(weights.current() or ()), *tensors_in(task.args, task.kwargs)]
    expected = _reference(flat, tensors, task.is_training)
    graphs = _training_graphs(flat, tensors) if task.is_training else _inference_graphs(flat, tensors)
    _package(graphs.forward, folder / packages.FORWARD)
    if graphs.backward is not None:
        _package(graphs.backward, folder / packages.BACKWARD)
    account = {"outputs": graphs.outputs, "gradients": list(graphs.gradients), "tangents": list(graphs.tangents)}
    return {"account": account, **_try_out(folder, account, task, flat, tensors, expected)}


def may_pass(error: Exception) -> bool:
    """Return True if another run may succeed: the disk or memory was full, or a compiler was killed."""
    import torch

    if isinstance(error, (OSError, MemoryError, torch.OutOfMemoryError)):
        return True
    # Inductor wraps what a pass has raised, and CUDA has one class for all its errors
    inner = getattr(error, "inner_exception", None) or error.__cause__
    return any(words in str(error) for words in FULL) or (isinstance(inner, Exception) and may_pass(inner))


def _inference_graphs(flat: torch.nn.Module, tensors: list[torch.Tensor]) -> Graphs:
    program = _export(flat, tuple(tensors))
    mutated = {**program.graph_signature.user_inputs_to_mutate, **program.graph_signature.buffers_to_mutate}
    if mutated:
        raise ValueError("its forward writes into its inputs or buffers")
    return Graphs(program, outputs=len(program.graph_signature.user_outputs))


def _training_graphs(flat: torch.nn.Module, tensors: list[torch.Tensor]) -> Graphs:
    """Return forward and backward as AOTAutograd splits them. It stores what takes long to compute again."""
    import torch
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    caught: dict[str, torch.fx.GraphModule] = {}

    def catch(name: str) -> Any:
        def keep(graph: torch.fx.GraphModule, example: Any) -> Any:
            caught[name] = graph
            return graph

        return keep

    traced = aot_function(
        flat,
        fw_compiler=catch("forward"),
        bw_compiler=catch("backward"),
        partition_fn=min_cut_rematerialization_partition,
    )
    outputs = traced(*tensors)
    if not all(output.requires_grad for output in outputs):
        raise ValueError("it has outputs without gradients")
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    forward, backward = caught["forward"], caught["backward"]
    results = _results(backward)
    gradients = [place for place, result in enumerate(results) if result is not None]
    _keep_results(backward, [results[place] for place in gradients])
    example = _example_of(backward)
    return Graphs(
        _export(forward, tuple(tensor.detach() for tensor in tensors)),
        len(outputs),
        _export(backward, example),
        gradients,
        [list(tangent.stride()) for tangent in example[len(example) - len(outputs) :]],
    )


def _export(graph: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> ExportedProgram:
    import torch

    with torch.no_grad():
        return torch.export.export(graph, example, strict=False)


def _results(graph: torch.fx.GraphModule) -> list[Any]:
    output = next(node for node in graph.graph.nodes if node.op == "output")
    return list(output.args[0])


def _keep_results(graph: torch.fx.GraphModule, kept: list[Any]) -> None:
    output = next(node for node in graph.graph.nodes if node.op == "output")
    output.args = (tuple(kept),)
    graph.recompile()


def _example_of(graph: torch.fx.GraphModule) -> tuple[torch.Tensor, ...]:
    """Return tensors of the kinds that a traced graph takes. Raises ValueError for a graph that takes a number."""
    import torch

    example = []
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        kind = node.meta["val"]
        if not isinstance(kind, torch.Tensor):
            raise ValueError(f"its backward takes the number {kind} from its forward")
        example.append(
            torch.zeros_like(torch.empty_strided(kind.shape, kind.stride(), dtype=kind.dtype, device=kind.device))
        )
    return tuple(example)


def _package(program: ExportedProgram, file: Path) -> None:
    import torch
    import torch._inductor

    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(program, package_path=str(file), inductor_configs=_linker_options())


def _linker_options() -> dict[str, Any]:
    """Return the options of Inductor that a package needs to load on this machine.

    On some machines the compiler finds no shared libstdc++, and the linker silently takes the static one. A package
    with two C++ runtimes crashes while it is loaded. Naming the shared library by its file avoids that.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    if sys.platform != "linux":
        return {}
    command = [get_cpp_compiler(), "-print-file-name=libstdc++.so"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    path = asked.stdout.strip()
    # a compiler that does not find the library prints its bare name
    if asked.returncode != 0 or (os.sep in path and Path(path).exists()):
        return {}
    return {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}


def _reference(flat: torch.nn.Module, tensors: list[torch.Tensor], is_training: bool) -> list[torch.Tensor]:
    """Return eager's outputs and gradients. Raises ValueError for a module that changes what it is given."""
    from bakeoff_hotpath.packages import results_of

    before = [tensor._version for tensor in tensors]
    results = results_of(flat, tensors, is_training)
    if before != [tensor._version for tensor in tensors]:
        raise ValueError("its forward writes into its inputs or buffers")
    return results


def _try_out(
    folder: Path,
    account: dict[str, Any],
    task: Task,
    flat: torch.nn.Module,
    tensors: list[torch.Tensor],
    expected: list[torch.Tensor],
) -> dict[str, Any]:
    """Load the packages, check them against eager, and time both in turns. Raises ValueError for other numbers."""
    from bakeoff_hotpath.packages import difference, load, results_of

    begun = time.perf_counter()
    loaded = load(folder, account, tensors)

    def compiled() -> list[torch.Tensor]:
        return results_of(lambda *given: loaded(list(given)), tensors, task.is_training)

    results = compiled()
    load_s = time.perf_counter() - begun
    if error := difference(results, expected):
        raise ValueError(f"the compiled version computes something else: {error}")
    eager_s, compiled_s = _in_turns(lambda: results_of(flat, tensors, task.is_training), compiled, tensors)
    return {"load_s": load_s, "eager_s": eager_s, "compiled_s": compiled_s}


def _in_turns(
    eager: Callable[[], object], compiled: Callable[[], object], tensors: list[torch.Tensor]
) -> tuple[float, float]:
    """Return the median seconds of a call of each, the device's work included."""
    import torch

    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    seconds: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + 2 * TIMED_S_PER_VERSION
    while time.perf_counter() < end or len(seconds[0]) < 5:
        for call, taken in zip((eager, compiled), seconds, strict=True):
            for device in devices:
                torch.cuda.synchronize(device)
            begun = time.perf_counter()
            call()
            for device in devices:
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - begun)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # without exit handlers, which may wait for a compiler's worker that does not end
    sys.stdout.flush()
    os._exit(0)
