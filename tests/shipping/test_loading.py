"""An exported folder is called like the model: with tensors or arrays, and without torch where it needs none."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import json
import re
import shutil
import subprocess
import sys
import time
import timeit
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import bakeoff
from bakeoff import shipped as bakeoff_shipped
from bakeoff.backends.calling import FlatModule, call_form, returned_by_call
from bakeoff.backends.runtime.folder import DESCRIPTION, FORMAT
from bakeoff.backends.standalone import Threads
from bakeoff.backends.torchscript import TorchScript
from bakeoff.models.base import Inputs
from bakeoff.records import report_file
from bakeoff.records.call_form import parameters_of
from bakeoff.records.device import CPU
from bakeoff.records.schema import Status
from bakeoff.shipping import export
from bakeoff.shipping.loading import ShippedModel
from bakeoff.truth.matching import without_numbers
from tests.shipping.conftest import BUILDING, ON_CUDA, SMALL
from tests.support.measuring import by_label, measure

WITHOUT_TORCH = """
import sys, time
before = time.perf_counter()
sys.modules["torch"] = None
import numpy
import bakeoff
fast = bakeoff.load(sys.argv[1])
given = numpy.load(sys.argv[1] + "/sample.npz")
answer = fast(given["input_0"])
assert type(answer) is numpy.ndarray
print(numpy.abs(answer - given["output_0"]).max(), "pydantic" in sys.modules)
"""


@pytest.fixture(scope="session")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of all builds of the run."""
    folder = tmp_path_factory.mktemp("exported")
    for label in BUILDING:
        export.export(run, label, folder / label)
    return {label: folder / label for label in BUILDING}


def sample_of(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.load(folder / "sample.npz") as arrays:
        return arrays["input_0"], arrays["output_0"]


@pytest.mark.parametrize("label", BUILDING)
def test_it_answers_arrays_with_arrays_and_tensors_with_tensors(exported: dict[str, Path], label: str) -> None:
    fast = bakeoff.load(exported[label])
    given, expected = sample_of(exported[label])
    tensor = torch.from_numpy(given)
    assert list(inspect.signature(fast).parameters) == ["input"]
    assert isinstance(fast(given), np.ndarray)
    np.testing.assert_allclose(fast(given), expected, atol=1e-5)
    for answer in (fast(tensor), fast(input=tensor), fast(tensor.clone().requires_grad_(True))):
        assert type(answer) is torch.Tensor and not answer.requires_grad
        np.testing.assert_allclose(answer.numpy(), expected, atol=1e-5)
    spread = torch.empty(*tensor.shape, 2)[..., 0].copy_(tensor)
    np.testing.assert_allclose(fast(spread).numpy(), expected, atol=1e-5)


def test_what_is_not_served_says_what_is_and_goes_to_a_fallback_if_there_is_one(exported: dict[str, Path]) -> None:
    fast = bakeoff.load(exported["onnx"])
    serves = r"this build serves 'input': float32 \(4, 64\)"
    with pytest.raises(bakeoff.NotServed, match=rf"'input' is float32 \(2, 64\), and {serves}"):
        fast(torch.zeros(2, 64))
    with pytest.raises(bakeoff.NotServed, match=rf"'input' is float64 \(4, 64\), and {serves}"):
        fast(np.zeros((4, 64)))
    with pytest.raises(bakeoff.NotServed, match="'input' is a float: give a tensor or an array"):
        fast(1.0)
    with pytest.raises(TypeError, match="missing a required argument: 'input'"):
        fast()
    calls: list[Any] = []
    fast = bakeoff.load(exported["onnx"], fallback=lambda *args, **kwargs: calls.append((args, kwargs)))
    fast(np.zeros((4, 64), np.float32))
    assert (fast.fallback_calls, calls) == (0, [])
    fast(input=np.zeros((4, 64)))
    fast(1.0)
    assert fast.fallback_calls == len(calls) == 2
    assert list(calls[0][1]) == ["input"]


@pytest.mark.parametrize("label", ["onnx", "openvino"])
def test_a_folder_that_needs_no_torch_imports_none(exported: dict[str, Path], label: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(exported[label])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    error, has_pydantic = done.stdout.split()
    assert float(error) < 1e-5 and has_pydantic == "False"


def test_another_folder_is_refused(tmp_path: Path, exported: dict[str, Path]) -> None:
    with pytest.raises(bakeoff.UsageError, match="is no folder that `bakeoff export` wrote"):
        bakeoff.load(tmp_path)
    (tmp_path / "bakeoff.json").write_text('{"format": 0}')
    with pytest.raises(bakeoff.UsageError, match="by another version of Bakeoff: export the run again with this one"):
        bakeoff.load(tmp_path)
    with pytest.raises(bakeoff.UsageError, match="was built for cpu, and does not run on cuda"):
        bakeoff.load(exported["onnx"], device="cuda")


# --- the model's own signature and answers


@dataclasses.dataclass
class Boxes:
    corners: torch.Tensor
    scale: float
    names: list[str]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor | None


def shipped(folder: Path, module: nn.Module, *args: Any, **kwargs: Any) -> ShippedModel:
    """Return the module, called with these arguments, as a traced program behind its own signature."""
    module.eval()
    inputs = Inputs(args, kwargs)
    torch.jit.trace(FlatModule(module, inputs), inputs.tensors(), check_trace=False).save(folder / "model.pt")
    answer = returned_by_call(module(*args, **kwargs))
    np.savez(folder / "sample.npz", **{f"input_{n}": each.numpy() for n, each in enumerate(inputs.tensors())})
    call = call_form(module, inputs)
    description = {
        "format": FORMAT,
        "label": "torchscript",
        "title": "a module",
        "device": "cpu",
        "file": "model.pt",
        "loader": TorchScript().runtime(CPU).loader,
        "imports": ["torch"],
        "libraries": ["torch"],
        "thread_safety": Threads.ANY,
        "settings": {"threads": 1, "tf32": False, "graph": False, "channels_last": False, "options": {}},
        "inputs": [tensor_facts(name, each) for name, each in zip(call["names"], inputs.tensors(), strict=True)],
        "outputs": [tensor_facts("output", each) for each in without_numbers(answer)],
        "call": {**call, "answer": dict(answer.form)},
    }
    (folder / DESCRIPTION).write_text(json.dumps(description))
    return bakeoff.load(folder)


def tensor_facts(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    return {"name": name, "type": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def same(found: Any, wanted: Any) -> bool:
    """Return True if two answers have the same types and values, all the way down."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, torch.Tensor):
        return torch.equal(found, wanted)
    if isinstance(wanted, Mapping):
        return list(found) == list(wanted) and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if dataclasses.is_dataclass(wanted):
        return same(vars(found), vars(wanted))
    return bool(found == wanted)


class Answering(nn.Module):
    """Gives its answer in the form that `answer` makes of a tensor."""

    def __init__(self, answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(x)


ANSWERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x + 1,
    "tuple of one": lambda x: (x + 1,),
    "list": lambda x: [x, [x * 2, None]],
    "dict": lambda x: {"b": x, "a": (x * 2, "text"), 3: 1.5},
    "ordered dict": lambda x: OrderedDict(z=x, a=x * 2),
    "named tuple": lambda x: Pair(x, None),
    "torch.topk": lambda x: torch.topk(x, 2),
    "dataclass": lambda x: Boxes(x * 2, 0.5, ["left"]),
    "transformers": lambda x: BaseModelOutput(last_hidden_state=x, hidden_states=(x, x * 2)),
    "twice": lambda x: {"one": x, "again": x},
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_answer_has_the_type_of_the_models(tmp_path: Path, kind: str) -> None:
    module, x = Answering(ANSWERS[kind]), torch.randn(2, 5)
    fast = shipped(tmp_path, module, x)
    assert same(fast(x), module(x))
    assert same(fast(x=x), module(x))


def test_an_answer_whose_class_is_not_here_has_the_same_names(tmp_path: Path) -> None:
    shipped(tmp_path, Answering(ANSWERS["transformers"]), torch.ones(2, 5))
    path = tmp_path / DESCRIPTION
    path.write_text(path.read_text().replace("transformers.modeling_outputs", "not_installed"))
    answer = bakeoff.load(tmp_path)(torch.ones(2, 5))
    assert answer.last_hidden_state is answer["last_hidden_state"] is answer[0]
    assert len(answer.hidden_states) == 2
    with pytest.raises(AttributeError, match="has no attentions, only last_hidden_state, hidden_states"):
        _ = answer.attentions


def test_an_answer_that_cannot_be_made_again_is_told_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(bakeoff.BakeoffError, match=r"cannot make the model's answer, .*: it holds builtins\.print,"):
        shipped(tmp_path, Answering(lambda x: {"x": x, "by": print}), torch.ones(2))


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, more: Any, scale: float = 1.0, *, mask: Any = None, flags: Any = ()) -> Any:
        total = x * scale + more["a"][0] - more["b"]
        return total if mask is None else total * mask.first


def test_tensors_are_found_anywhere_in_the_arguments(tmp_path: Path) -> None:
    x, a, b, m = (torch.randn(3) for _ in range(4))
    fast = shipped(tmp_path, Nested(), x, {"b": b, "a": [a]}, scale=2.0, mask=Pair(m, None))
    wanted = (x * 2 + a - b) * m
    more, mask = {"a": (a,), "b": b}, Pair(m, None)
    assert torch.equal(fast(x, more, 2.0, mask=mask), wanted)
    assert torch.equal(fast(mask=mask, scale=2.0, more=more, x=x, flags=()), wanted)
    for args, kwargs, said in (
        ((x, more), {"mask": mask}, "the build was made with 'scale', which this call leaves out"),
        ((x, more, 3.0), {"mask": mask}, "'scale' is 3.0, and the build has 2.0 in it"),
        ((x, more, 2.0), {"mask": mask, "flags": ("x",)}, "the build was made without 'flags'"),
        ((x, more, 2.0), {"mask": Pair(m, m)}, "'mask.second' is .*, and the build has None in it"),
        ((x, {"a": a}, 2.0), {"mask": mask}, "'more' is not a mapping with b, a"),
        ((x, {"a": [a, a], "b": b}, 2.0), {"mask": mask}, "is not a list or tuple of 1"),
        ((x, {"a": [a.numpy()], "b": b}, 2.0), {"mask": mask}, "not both in one call"),
    ):
        with pytest.raises(bakeoff.NotServed, match=said):
            fast(*args, **kwargs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        fast(x, more, other=1)


def test_arguments_may_skip_parameters_that_have_defaults(tmp_path: Path) -> None:
    class Skips(nn.Module):
        def forward(self, x: torch.Tensor, y: Any = None, z: Any = None, **more: Any) -> torch.Tensor:
            return x - z + more["extra"]

    x, z, extra = torch.randn(3), torch.randn(3), torch.randn(3)
    fast = shipped(tmp_path, Skips(), x, z=z, extra=extra)
    assert torch.equal(fast(x, z=z, extra=extra), x - z + extra)
    assert torch.equal(fast(x, None, z, extra=extra), x - z + extra)
    with pytest.raises(bakeoff.NotServed, match="the build was made without 'y'"):
        fast(x, z, z, extra=extra)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor


def test_a_loaded_torchscript_file_tells_its_parameters(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Scaled()), tmp_path / "scaled.pt")
    for module in (torch.jit.script(Scaled()), torch.jit.load(tmp_path / "scaled.pt")):
        form = call_form(module, Inputs((torch.ones(2),)))
        kind = "POSITIONAL_OR_KEYWORD"
        assert form["names"] == ["x"]
        assert form["parameters"] == [["x", kind], ["factor", kind, parameters_of(lambda it=2.0: it)[0][2]]]


# --- threads


@pytest.mark.parametrize("label", BUILDING)
def test_threads_get_their_own_answers(exported: dict[str, Path], label: str) -> None:
    fast = bakeoff.load(exported[label])
    assert fast.thread_safety is Threads.ANY
    given, _ = sample_of(exported[label])
    inputs = [given * (number + 1) for number in range(4)]
    wanted = [fast(each) for each in inputs]

    def calls(number: int) -> bool:
        return all(np.allclose(fast(inputs[number]), wanted[number], atol=1e-5) for _ in range(100))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))


def test_calls_take_turns_where_a_build_takes_one_at_a_time(tmp_path: Path) -> None:
    shipped(tmp_path, Answering(ANSWERS["tensor"]), torch.ones(2))
    path = tmp_path / DESCRIPTION
    inside, most = [0], [0]

    class Slow:
        takes_arrays = False

        def run(self, inputs: Any) -> Any:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.005)
            inside[0] -= 1
            return inputs

    description = json.loads(path.read_text())
    for threads, at_once in ((Threads.ANY, 3), (Threads.TURNS, 1)):
        most[0] = 0
        fast = ShippedModel(tmp_path, {**description, "thread_safety": threads}, loaded=Slow())
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(fast, [torch.ones(2)] * 9))
        assert most[0] == at_once
    fast = ShippedModel(tmp_path, {**description, "thread_safety": Threads.ONE}, loaded=Slow())
    fast(torch.ones(2))
    with ThreadPoolExecutor(1) as pool, pytest.raises(bakeoff.BakeoffError, match="only the thread that loaded"):
        pool.submit(fast, torch.ones(2)).result()


# --- what a call costs


class Returning:
    """Stands for a library that takes no time."""

    takes_arrays = True

    def run(self, inputs: Any) -> Any:
        return inputs


def test_a_call_costs_less_than_ten_microseconds_more_than_the_library(exported: dict[str, Path]) -> None:
    description = json.loads((exported["onnx"] / DESCRIPTION).read_text())
    fast = ShippedModel(exported["onnx"], description, loaded=Returning())
    array = np.zeros((4, 64), np.float32)
    for given in (array, torch.from_numpy(array)):
        # other tests take the cores meanwhile, until they end, and a few milliseconds without them are enough
        runs = (min(timeit.repeat(lambda given=given: fast(given), number=20, repeat=200)) / 20 for _ in range(500))
        assert any(best_s < 10e-6 for best_s in runs)


# --- the check of a folder


def test_a_folder_is_checked_and_measured(exported: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "bakeoff.shipped", exported["onnx"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    named, threads, right, median = done.stdout.splitlines()
    assert named.startswith("<onnx of mlp") and threads == f"threads: {Threads.ANY}"
    assert re.fullmatch(r"output 0 is right: its RMSE is \S+, and \S+ is allowed", right)
    assert re.fullmatch(r"median latency \S+ ms, with what bakeoff.load adds; in the report \S+ ms", median)


def test_a_wrong_output_is_told(
    exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "wrong"
    shutil.copytree(exported["onnx"], folder)
    with np.load(folder / "sample.npz") as arrays:
        changed = {name: arrays[name] + 1e-3 if name == "output_0" else arrays[name] for name in arrays.files}
    np.savez(folder / "sample.npz", **changed)
    monkeypatch.setattr(bakeoff_shipped, "median_ms", lambda fast: pytest.fail("a wrong build is not measured"))
    assert bakeoff_shipped.main([str(folder)]) == 1
    assert "output 0 is wrong: its RMSE is 0.001" in capsys.readouterr().err
    assert bakeoff_shipped.main([str(tmp_path)]) == 2


# --- CUDA


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    """Let operators of torch that wait for the GPU fail inside the block, and nowhere else."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def loaded_on_cuda(folder: Path, label: str) -> ShippedModel:
    report = measure(folder / "run", label, devices=["cuda"], set=SMALL)
    if (record := by_label(report)[label]).status is Status.UNAVAILABLE:
        pytest.skip(record.reason)
    report_file.write_json(report, folder / "run")
    export.export(folder / "run", label, folder / "export")
    return bakeoff.load(folder / "export")


@pytest.mark.gpu
@pytest.mark.parametrize("label", ON_CUDA)
def test_tensors_on_cuda_stay_there_and_are_ready_on_the_callers_stream(tmp_path: Path, label: str) -> None:
    fast = loaded_on_cuda(tmp_path, label)
    gc.collect()
    torch.cuda.empty_cache()  # weights that nothing holds are gone
    given, expected = sample_of(tmp_path / "export")
    assert bakeoff_shipped.check(fast)
    stream, ready = torch.cuda.Stream(), torch.from_numpy(given).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # what follows must wait for the input of this stream
        late = ready.clone()
        with no_synchronisation():
            answers = [fast(late), fast(late * 0), fast(late)]
            spare = torch.full_like(late, float("nan"))  # takes memory that is free, if there is any
        sums = [answer + 0 for answer in answers]
    stream.synchronize()
    assert spare.isnan().all()
    assert all(answer.is_cuda for answer in answers)
    for answer in (sums[0], sums[2]):
        np.testing.assert_allclose(answer.cpu().numpy(), expected, atol=1e-4)
    assert not torch.allclose(sums[0], sums[1])
    np.testing.assert_allclose(fast(given), expected, atol=1e-4)  # arrays go to the device and come back
    on_host = fast(torch.from_numpy(given))
    assert on_host.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["torchscript", "aotinductor/cuda-graph", "onnx"])
def test_threads_with_streams_of_their_own_get_their_own_answers(tmp_path: Path, label: str) -> None:
    fast = loaded_on_cuda(tmp_path, label)
    given = torch.from_numpy(sample_of(tmp_path / "export")[0]).cuda()
    inputs = [given * (number + 1) for number in range(4)]
    wanted = [fast(each) for each in inputs]
    torch.cuda.synchronize()

    def calls(number: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            return all(torch.allclose(fast(inputs[number]), wanted[number], atol=1e-4) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, range(4)))
