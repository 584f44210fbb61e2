"""An exported folder is called like the model, and its start is measured, stage by stage, in fresh processes."""

import contextlib
import dataclasses
import gc
import inspect
import json
import math
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
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import bakeoff
from bakeoff import cli
from bakeoff import shipped as bakeoff_shipped
from bakeoff.backends.calling import FlatModule, call_form, returned_by_call
from bakeoff.backends.runtime.folder import DESCRIPTION, FORMAT
from bakeoff.backends.standalone import Threads
from bakeoff.backends.torchscript import TorchScript
from bakeoff.commands import run as runs
from bakeoff.judging.answer import Certainty
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.judgement import judge, judged_anew
from bakeoff.judging.start_times import judge_starts
from bakeoff.judging.stored_report import report_of
from bakeoff.models.base import Inputs
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.call_form import parameters_of
from bakeoff.records.device import CPU
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.start_samples import StartedCell, Starts
from bakeoff.records.store import Store
from bakeoff.reports import markdown, writer
from bakeoff.reports import start_report as shown
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_page, to_short_markdown
from bakeoff.shipping import export, script_environment, start_runs
from bakeoff.shipping.loading import ShippedModel
from bakeoff.shipping.start_runs import Contender
from bakeoff.truth.matching import without_numbers
from tests.reports import samples
from tests.reports.samples import ok, over_processes, report
from tests.shipping.conftest import BUILDING, ON_CUDA, SMALL
from tests.shipping.test_export import record_of
from tests.support.golden import same_as_golden
from tests.support.measuring import by_label, measure
from tests.support.printed import printed, reported

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


def test_an_answer_that_cannot_be_made_again_is_reported_when_it_is_loaded(tmp_path: Path) -> None:
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


def test_a_loaded_torchscript_file_names_its_parameters(tmp_path: Path) -> None:
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


def test_a_wrong_output_is_reported(
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


RUNTIME = """
def read(path):
    return None

def set_process_up(path, description):
    {imports}

class Measured:
    def __init__(self, path, description):
        pass

    def answer(self, number):
        {call}

    def check(self):
        return {check}
"""


def contender(folder: Path, imports: str = "pass", call: str = "pass", check: str = "True") -> Contender:
    (folder / "runtime").mkdir(parents=True)
    (folder / "runtime/folder.py").write_text(RUNTIME.format(imports=imports, call=call, check=check))
    return Contender(record_of("onnx"), "onnx", "load.py", start_runs._staged(sys.executable, folder), None, {})


def test_an_import_that_takes_a_second_shows_as_a_second(tmp_path: Path) -> None:
    plain, planted = contender(tmp_path / "plain"), contender(tmp_path / "planted", "import planted_module")
    (tmp_path / "planted" / "planted_module.py").write_text("import time\ntime.sleep(1.0)\n")
    start_runs.measure([plain, planted], 2, False, print)
    assert not plain.reason and not planted.reason
    cells = [
        StartedCell(cell_id=name, label=name, starts=each.starts)
        for name, each in {"plain": plain, "planted": planted}.items()
    ]
    judged = {cell.label: cell for cell in judge_starts(cells).cells}
    assert judged["planted"].stages["imports"] - judged["plain"].stages["imports"] == pytest.approx(1.0, abs=0.1)
    for stage in ("load", "first answer"):
        assert judged["planted"].stages[stage] < 0.1
    assert (planted.starts[0].peak_bytes or 0) >= 2**20
    assert (planted.starts[0].steady_bytes or 0) >= 2**20


def test_a_folder_with_what_was_compiled_is_also_started_without(tmp_path: Path) -> None:
    plain = contender(tmp_path / "plain")
    assert start_runs._without_compiled(plain) is None
    (tmp_path / "plain" / "compiled").mkdir()
    (tmp_path / "plain" / "compiled" / "one.so").write_bytes(bytes(10))
    bare = start_runs._without_compiled(replace(plain, artifact_bytes=15))
    assert bare and (bare.label, bare.artifact_bytes) == ("onnx, compiled at its start", 5)
    folder = Path(bare.command[-1])
    assert (folder / "runtime" / "folder.py").exists() and not (folder / "compiled").exists()
    start_runs.measure([plain, bare], 1, False, print)
    assert len(plain.starts) == len(bare.starts) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"imports": "import a_module_that_is_not_there"}, "No module named 'a_module_that_is_not_there'"),
        ({"call": "1 / 0"}, "ZeroDivisionError"),
        ({"call": 'raise ValueError("bad values 1 2\\n 3 4\\n[ CPUFloatType{2,2} ]")'}, "ValueError: bad values 1 2"),
        ({"check": 'print("output 0 is wrong", file=__import__("sys").stderr)'}, "output 0 is wrong"),
    ],
)
def test_a_start_without_a_right_answer_is_reported(tmp_path: Path, script: dict[str, str], reason: str) -> None:
    broken = contender(tmp_path / "broken", **script)
    start_runs.measure([broken], 2, False, print)
    assert reason in broken.reason and broken.starts == []


def cell(label: str, *imports_s: float, environment_bytes: int = 10**8) -> StartedCell:
    installed = {"torch": environment_bytes}
    made = [samples.start(each) for each in imports_s]
    return StartedCell(cell_id=label, label=label, distributions=installed, starts=made)


def starts_of(*cells: StartedCell) -> Starts:
    return Starts(
        run_id="run",
        title="mlp on cpu",
        created_at="2026-11-26T13:00:00+00:00",
        machine="a CPU (2 cores)",
        python="3.12.1",
        is_page_cache_dropped=False,
        cells=list(cells),
    )


FAST = cell("onnx", *(0.2 + 0.01 * turn for turn in range(7)))
SLOW = cell("eager", *(2.0 + 0.01 * turn for turn in range(7)), environment_bytes=7 * 10**8)


def test_starts_are_reported_as_before_and_what_is_required_is_held() -> None:
    judged = judge_starts([SLOW, FAST])
    assert [each.label for each in judged.cells] == ["onnx", "eager"]
    assert judged.cells[0].interval is not None and judged.cells[0].interval.low == pytest.approx(0.5)
    required = judge_starts([FAST, SLOW], "start_s<1, environment_bytes<300MB")
    assert required.answer.candidates == ["onnx"]
    nothing = judge_starts([FAST, SLOW], "imports_s<0.1")
    assert shown.exit_status(nothing) == 1
    blocks = writer.starts_blocks(required, starts_of(FAST, SLOW))
    lines = [*map(shown.headline, (judged, nothing)), *shown.contest_answer(required).cells[1].unmet]
    same_as_golden("starts.md", "\n".join([*lines, markdown.render(blocks), printed(blocks, 160)]))


@pytest.mark.parametrize("text", ["p99_ms<5", "start_s<1MB", "start_s"])
def test_what_cannot_be_required_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        judge_starts([FAST], text)


def test_an_environment_has_what_its_distributions_need() -> None:
    jinja = script_environment.sizes_of(["# a comment", "jinja2==3"])
    assert jinja.keys() == {"jinja2", "markupsafe"}  # not babel, which an extra brings
    own = metadata.distribution("markupsafe").files or []
    assert jinja["markupsafe"] == sum(Path(str(each.locate())).stat().st_size for each in own)
    with pytest.raises(metadata.PackageNotFoundError):
        script_environment.sizes_of(["no-such-distribution-here"])


def test_an_environment_of_its_own_has_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    python = script_environment.make_environment(script_environment.sizes_of(["jinja2"]), tmp_path / "environment")
    for module, is_there in {"jinja2": True, "markupsafe": True, "yaml": False, "pytest": False}.items():
        assert (subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0) is is_there


def started(label: str, *imports_s: float) -> Record:
    """A record of a cell with one start for each of these times, or with none."""
    latency_ms = {"eager": 4.0, "onnx": 2.0, "openvino": 1.0}[label]
    made = ok(samples.cell(label), over_processes(latency_ms))
    return made.but(starts=[cell(label, *imports_s)]) if imports_s else made


def test_a_requirement_of_starts_decides_who_may_win_a_run() -> None:
    records = [started("eager", *[5.0] * 7), started("onnx", *[0.2] * 7), started("openvino", *[1.5] * 7)]
    assert judge(report(records)).contests[0].fastest.winner == "openvino"
    required = judge(report(records, request={"require": "start_s<1", "starts": True}))
    (contest,) = required.contests
    assert contest.fastest.winner == "onnx"
    assert {each.label: [doubt.unmet for doubt in each.unmet] for each in contest.unranked} == {
        "openvino": ["start_s is 1.8, not < 1"],
        "eager": ["start_s is 5.3, not < 1"],
    }
    answer = answer_of(required, Path("run")).contests[0].starts
    assert answer and answer.headline.startswith("onnx, first answer after 0.50 s")
    markdown = to_short_markdown(required, Path("run"))
    assert "onnx, first answer after 0.50 s" in markdown and "From the start of a process" in markdown
    assert "From the start of a process" in to_page(required)


OVER = "the time budget was over after 0 of 7 starts"


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ([], "but onnx and eager may miss start_s < 1: no start was measured"),
        ([cell("onnx").but(reason=OVER, is_cut_off=True)], f"but onnx and eager may miss start_s < 1: {OVER}"),
        ([cell("onnx", 1.0, 1.0, 1.0).but(is_cut_off=True)], "3 repetitions do not show whether it is < 1"),
    ],
    ids=["interrupted before", "over before", "over between"],
)
def test_what_a_stop_left_of_the_starts_ranks_all_that_was_measured(starts: list[StartedCell], why: str) -> None:
    records = [started(label).but(starts=[one.but(label=label) for one in starts]) for label in ("eager", "onnx")]
    judgement = judge(report(records, request={"require": "start_s<1", "starts": True}))
    (contest,) = judgement.contests
    assert [each.label for each in contest.ranked] == ["onnx", "eager"]
    assert contest.fastest.certainty is Certainty.DOUBTED and why in reported(judgement, 200)
    is_measured = bool(starts and starts[0].starts)  # a gate does not pass by what nobody measured
    assert judgement.meets_requirements is is_measured and runs.ending_of(judgement)[0] == (not is_measured)


def test_a_cell_that_cannot_be_started_may_not_win_where_starts_are_required() -> None:
    failed = cell("onnx").but(reason="its process ended with 1")
    records = [started("eager", *[0.2] * 7), started("onnx").but(starts=[failed])]
    (contest,) = judge(report(records, request={"require": "start_s<1"})).contests
    assert [doubt.unmet for each in contest.unranked for doubt in each.unmet] == [
        "start_s cannot be judged: its process ended with 1"
    ]
    with pytest.raises(UsageError, match="this run has none, and `bakeoff start` measures them"):
        judged_anew(report(records), require="start_s<1")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"require": "start_s<1"}, "add --starts"),
        ({"starts": True, "no_artifacts": True}, "leave out --no-artifacts"),
        ({"starts": True, "task": "train_step"}, "only inference is exported"),
        ({"starts": True, "cluster": "auto"}, "--starts is of one machine"),
    ],
)
def test_starts_that_cannot_be_measured_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Request(**asked)


@pytest.mark.usefixtures("forked_programs")
def test_a_run_starts_its_contenders_and_is_complete_only_then(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "report.json").unlink()
    plan = json.loads((folder / "plan.json").read_text())
    plan["request"]["starts"] = True
    (folder / "plan.json").write_text(json.dumps(plan))
    store = Store.open(folder)
    assert not report_of(store).complete

    def start(contender: Contender) -> None:
        contender.starts.append(samples.start(0.2))

    exported: dict[str, Any] = {}
    prepare = start_runs._prepare

    def prepare_once(report: Report, path: Path, record: Record, target: Path) -> Any:
        label = record.cell.label
        exported[label] = exported.get(label) or prepare(report, path, record, target)
        return replace(exported[label], starts=[], reason="")

    monkeypatch.setattr(start_runs, "_prepare", prepare_once)
    monkeypatch.setattr(start_runs, "start_once", start)
    start_runs.add_starts(store, Requirements(), lambda _: None, time.monotonic() - 1)
    told = report_of(store)
    reasons = [cell.reason for record in told.records for cell in record.starts]
    assert reasons == ["the time budget was over after 0 of 7 starts"] * 3 and told.complete
    cut_off = [cell for record in told.records for cell in record.starts][:1]
    assert shown.sentences(judge_starts(cut_off)) == [
        "No cell has start times.",
        f"{cut_off[0].label} has no start times: {reasons[0]}",
    ]
    assert all(record.is_left_to_resume for record in told.records if record.starts)
    monotonic, turns = time.monotonic, iter([0.0, 0.0, 0.0, 0.0, 2.0])  # the fifth start would be of the second turn
    monkeypatch.setattr(start_runs.time, "monotonic", lambda: next(turns))
    start_runs.add_starts(store, Requirements(), lambda _: None, 1.0)
    monkeypatch.setattr(start_runs.time, "monotonic", monotonic)
    assert [(len(one.starts), one.reason) for record in store.records() for one in record.starts] == [
        (1, "the time budget was over after 1 of 7 starts")
    ] * 3
    start_runs.add_starts(store, Requirements.parse("environment_bytes<10GB"), lambda _: None, math.inf)
    (contest,) = judge(report_of(store)).contests
    assert contest.starts and {each.label for each in contest.starts.cells} == {
        "eager",
        "onnx",
        "openvino",
        "torchscript",
    }
    assert all(each.cell.environment_bytes for each in contest.starts.cells)


def test_the_page_cache_is_dropped_only_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_runs, "DROP_CACHES", tmp_path / "drop_caches")
    monkeypatch.setattr(start_runs.os, "sync", lambda: None)
    start_runs.drop_page_cache()
    assert (tmp_path / "drop_caches").read_text() == "3"
    monkeypatch.setattr(start_runs, "DROP_CACHES", tmp_path / "nowhere" / "drop_caches")
    with pytest.raises(UsageError, match="--cold: the page cache cannot be dropped"):
        start_runs.drop_page_cache()


@pytest.mark.parametrize("whole_turns", [0, 2])
def test_an_interruption_keeps_whole_turns_of_starts(
    whole_turns: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times_s = iter([0.2] * (2 * whole_turns + 1))

    def start(contender: Contender) -> None:
        if (time_s := next(times_s, None)) is None:
            raise KeyboardInterrupt
        contender.starts.append(samples.start(time_s))

    monkeypatch.setattr(start_runs, "_prepare", lambda _, __, record, ___: Contender(record, record.cell.label))
    monkeypatch.setattr(start_runs, "_without_compiled", lambda _: None)
    monkeypatch.setattr(start_runs, "_prepare_program", lambda *_: None)
    monkeypatch.setattr(start_runs, "start_once", start)
    copied, partial = shutil.copytree(run, tmp_path / "run"), tmp_path / "run" / "starts-interrupted"
    assert cli.main(["start", str(copied), "onnx", "eager", "--json"]) == 130
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["exit_status"] == 130 and partial.exists() == bool(whole_turns), "a whole one is not replaced"
    if whole_turns:
        assert [each["starts"] for each in answer["cells"]] == [2, 2] and answer["outcome"] in ("tie", "open")
        assert "Interrupted after 2 of 7 starts: what was measured until then follows." in printed.err
    else:
        assert answer["error"] == "interrupted: nothing was measured yet, and the command can be run again"


@pytest.mark.parametrize("in_cpp", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_folder_of_a_cell_is_started(
    in_cpp: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not in_cpp:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    assert cli.main(["start", str(run), "onnx", "--starts", "1"]) == 2
    assert "at least 7" in capsys.readouterr().err
    monkeypatch.setattr(start_runs, "LEAST_STARTS", 1)
    arguments = ["--starts", "1", "--out", str(tmp_path / "out"), "--json", "--require", "environment_bytes<1GB"]
    assert cli.main(["start", str(run), "onnx", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = next(each for each in answer["cells"] if each["label"] == "onnx")
    assert found["script"] == "load.py"
    assert found["stages_s"]["imports"] > 0.01 and found["start_s"] > sum(found["stages_s"].values()) * 0.99
    assert found["distributions"].keys() >= {"onnxruntime", "numpy"}
    assert 0 < found["artifact_bytes"] < 10**6 < found["environment_bytes"]
    assert answer["exit_status"] == 0
    program = next((each for each in answer["cells"] if each["label"] == "onnx in C++"), None)
    if shutil.which("cmake") is None:
        assert "CMake" in answer["not_started"]["onnx in C++"]
    else:
        assert program and program["script"] == "main.cpp" and program["stages_s"]["imports"] == 0
        assert any(name.startswith("libonnxruntime") for name in program["distributions"])
        assert program["start_s"] < found["start_s"] and program["artifact_bytes"] == found["artifact_bytes"]
    assert {"starts.md", "starts.json", "figures"} == {each.name for each in (tmp_path / "out").iterdir()}
