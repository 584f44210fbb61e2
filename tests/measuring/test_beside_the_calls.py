"""What a worker does beside its calls: stages, `evaluate`, samples, memory, copies and cold caches."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from bakeoff import backends
from bakeoff.backends.base import Compiled, FlatCalls
from bakeoff.backends.calling import sampled
from bakeoff.backends.cuda_graph import Captured
from bakeoff.backends.eager import Callables
from bakeoff.backends.memory_format import ChannelsLast
from bakeoff.backends.plain_dispatch import OperatorWatch
from bakeoff.judging.judgement import contests_of, judge, judged_anew
from bakeoff.measuring.messages import ComputeReference, EvaluateReference, Evaluation
from bakeoff.measuring.worker import engine_memory, evaluating, reference, sampling, serving
from bakeoff.measuring.worker.around import AroundModel
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.engine_memory import engine_resident_bytes
from bakeoff.measuring.worker.host_memory import FromHost
from bakeoff.measuring.worker.sample import Sample, allowed_rmse, require_outputs, sizes_depend_on_values
from bakeoff.measuring.worker.serving import ColdCalls
from bakeoff.models.base import Around, Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.device import CPU
from bakeoff.records.errors import BakeoffError, NotServed, Unsupported, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from bakeoff.reports import sentences
from bakeoff.shipping.sample_facts import Sample as Read
from bakeoff.truth.calls import copied
from tests.backends.building import Built, built
from tests.measuring.test_sampling import FakeTime, Scripted
from tests.support.cells import cell_of
from tests.support.measuring import by_label, measure
from tests.support.scripted import HANG, INTERRUPT, SEGFAULT, Ending, Script, plan_of, run_contest


def boxes(outputs: torch.Tensor) -> float:
    time.sleep(0.002)
    return float(outputs.sum())


def test_each_stage_is_timed_alone_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a b c")
    taken: list[str] = []

    def before(name: str) -> None:
        taken.append(Path(name).read_text())
        time.sleep(0.02)

    module, inputs = torch.nn.Linear(4, 4), Inputs((torch.ones(1, 4),))
    around = AroundModel(Around(before, boxes, "words.txt"), module, inputs, tmp_path)
    with torch.inference_mode():
        first, last = around.measure(Clock(CPU))
    assert (first.name, last.name) == ("before", "after")
    assert first.median_ms >= 20 and last.median_ms >= 2  # a busy machine wakes sleepers late
    assert first.calls >= 3
    assert min(first.block_medians_ms) <= first.median_ms <= max(first.block_medians_ms)
    assert len(first.block_medians_ms) == min(12, first.calls)
    assert set(taken) == {"a b c"}


def test_a_stage_that_raises_is_reported(tmp_path: Path) -> None:
    around = AroundModel(
        Around(None, lambda outputs: outputs["boxes"], None), lambda x: {"x": x}, Inputs((1,)), tmp_path
    )
    (found,) = around.measure(Clock(CPU))
    assert found.failure == "KeyError: 'boxes'"
    assert found.calls == 0


@pytest.mark.slow
def test_a_run_judges_whole_requests_of_a_file_with_stages(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import time, torch\n"
        "def example():\n    return [0.5] * 8\n"
        "def before(raw):\n    time.sleep(0.02)\n    return torch.tensor([raw] * 16)\n"
        "def after(outputs):\n    return outputs.argmax(-1).tolist()\n"
        "def factory():\n    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8))\n"
    )
    report = measure(tmp_path / "run", "eager", "torchscript", models=[f"{tmp_path / 'net.py'}:factory"], processes=3)
    assert {call.name for record in report.records for call in record.around} == {"before", "after"}
    assert all(len(record.around) == 2 * len(record.processes) for record in report.records)
    found = judge(report).contests[0].end_to_end
    assert found.longest.name == "before()" and found.longest.ms >= 20


def test_a_sample_is_read_without_torch_and_bfloat16_is_kept_as_words(tmp_path: Path) -> None:
    given = torch.tensor([[1.0, -2.5]], dtype=torch.bfloat16)
    Sample.of(torch.nn.Identity(), Inputs((given,)), (2 * given,)).save(
        tmp_path / "s.npz", [2 * given.double()], [0.01], Precision.BF16
    )
    facts = Read.read(tmp_path / "s.npz")
    assert (facts.inputs, facts.outputs[0].shape, facts.outputs[0].type) == (("bfloat16",), (1, 2), "bfloat16")
    with np.load(tmp_path / "s.npz") as arrays:
        words = torch.from_numpy(arrays["input_0"]).view(torch.bfloat16)
        assert torch.equal(words, given)
        assert arrays["output_0"].tolist() == [[2.0, -5.0]]
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_the_places_of_a_large_output_are_kept(tmp_path: Path) -> None:
    given = torch.arange(100, dtype=torch.float32)
    exact = sampled(2 * given, 10).double()
    Sample.of(torch.nn.Identity(), Inputs((given,)), (2 * given,)).save(
        tmp_path / "s.npz", [exact], [0.0], Precision.FP32
    )
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["output_0"].tolist() == (2 * arrays["input_0"])[arrays["places_0"]].tolist()


@pytest.mark.parametrize(
    ("eager_rmse", "precision", "allowed"),
    [
        (0.0, Precision.FP32, 16 * 2**-23 * 2),  # rounding
        (0.0, Precision.INT8, 1e-5 + 2 * 1.6e-2),  # allclose passes it
        (0.1, Precision.FP32, 0.4),  # four times eager's
        (10.0, Precision.INT8, 2 * 10**-0.5),  # never more than a share of the output
        (float("nan"), Precision.FP32, 16 * 2**-23 * 2),
    ],
)
def test_what_is_allowed_is_what_passed_the_run(eager_rmse: float, precision: Precision, allowed: float) -> None:
    exact = torch.tensor([2.0, -2.0, float("inf")])
    assert allowed_rmse(exact, eager_rmse, precision) == pytest.approx(allowed)


def test_a_program_must_give_the_outputs_of_the_sample(tmp_path: Path) -> None:
    given = torch.arange(100, dtype=torch.bfloat16)
    exact = sampled(torch.complex(2 * given.float(), given.float()), 10)
    Sample.of(torch.nn.Identity(), Inputs((given,)), (torch.complex(2 * given.float(), given.float()),)).save(
        path := tmp_path / "s.npz", [exact.to(torch.complex128)], [0.0], Precision.FP32
    )
    require_outputs(path, lambda x: [torch.complex(2 * x.float(), x.float())], "cpu")
    with pytest.raises(BakeoffError, match="does not compute what was measured: the RMSE of output 0 is"):
        require_outputs(path, lambda x: [torch.complex(2 * x.float(), 1.01 * x.float())], "cpu")
    with pytest.raises(BakeoffError, match="the RMSE of output 0 is inf"):
        require_outputs(path, lambda x: [x], "cpu")


def test_sizes_depend_on_values_if_equal_shapes_have_answers_of_several() -> None:
    short, long = (Inputs((torch.zeros(size),)) for size in (2, 3))
    assert not sizes_depend_on_values([short, short, long], [(torch.zeros(2),), (torch.zeros(2),), (torch.zeros(3),)])
    assert sizes_depend_on_values([long, long], [(torch.zeros(1, 2),), (torch.zeros(2, 2),)])


pytest.importorskip("onnxruntime")
SIZES = {"batch": 1, "features": 1024, "hidden": 2048}
WEIGHTS_BYTES = 4 * 2 * 1024 * 2048


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    with built(cell_of("mlp", "onnx", SIZES), tmp_path_factory.mktemp("mlp")) as build:
        build.call(build.sets[0])
        yield build


def measured(one: Built, backend: str = "onnx", **fields: object) -> int | None:
    cell = one.context.cell.model_copy(update=fields)
    worker: Any = SimpleNamespace(
        cell=cell, backend=backends.create(backend), artifact=one.context.workspace, threads=1
    )
    return engine_resident_bytes(worker, one.compiled, one.sets[0])


def test_it_holds_the_weights_and_the_engine_but_not_torch(one: Built) -> None:
    assert 2**24 + WEIGHTS_BYTES < measured(one) < psutil.Process().memory_info().rss - 2**26


@pytest.mark.parametrize(
    ("backend", "fields"),
    [("eager", {}), ("torchscript", {}), ("onnx", {"mode": "openvino-ep"}), ("onnx", {"task": "decode"})],
)
def test_what_runs_only_beside_torch_has_none(one: Built, backend: str, fields: dict[str, object]) -> None:
    assert measured(one, backend, **fields) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("_CHILD", f"import sys; sys.modules['torch'] = sys; {engine_memory._CHILD}", "torch was imported"),
        ("ENGINE_MEMORY_LIMIT_S", 0.05, "TimeoutExpired"),
    ],
    ids=["imports torch", "takes too long"],
)
def test_a_process_that_fails_costs_this_number_alone_and_says_why_in_the_log_of_the_cell(
    name: str, value: object, said: str, one: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_memory, name, value)
    assert measured(one) is None
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("is_pinned", [False, True])
def test_every_copy_of_a_call_is_timed(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which needs CUDA
    called = FromHost(FlatCalls(lambda tensors: [tensors[0] + 1, tensors[0].sum()]), is_pinned)
    queued: list[bool] = []  # copies that the host does not wait for

    def note(function: object, args: tuple[Any, ...], *_: object) -> None:
        if function is torch.ops.aten.copy_.default:
            queued.append(len(args) > 2 and args[2])

    clock = Clock(CPU, lambda: 10**6 * len(queued))  # only copies take time, a millisecond each
    with OperatorWatch(note):
        samples_ns = sampling.burst(called, [Inputs((torch.ones(2, 3),))], clock, 0.0, 2)
    assert samples_ns == [3_000_000] * 2  # one input and two outputs, and not what binding copies
    assert queued == [False, *[is_pinned] * 3] * 2
    assert called.settings() == {"bytes copied to the device": 24, "bytes copied from the device": 28}
    with pytest.raises(Unsupported, match="dense"):
        called.bind(Inputs((torch.eye(3).to_sparse(),)))


class Converting(Callables):
    """Reads a copy of what is bound, which only `refresh` makes again: as TensorRT does of types that it lacks."""

    def bind(self, inputs: Inputs) -> None:
        self.refresh = lambda: Callables.bind(self, copied(inputs))  # type: ignore[method-assign]
        self.refresh()


def captured(call: Compiled) -> Compiled:
    """Return a captured call of a converting build. Without a GPU, replaying its graph is that call."""
    call.bind(static := copied(GIVEN))
    return Captured(call, type("Graph", (), {"replay": staticmethod(call.run)}), static)


GIVEN = Inputs((torch.arange(4.0).expand(1, 2, 3, 4), torch.arange(48.0).reshape(1, 2, 3, 8)[..., ::2]))


@pytest.mark.parametrize("wrapped", [captured, lambda call: ChannelsLast(call, torch.nn.Identity())])
@pytest.mark.parametrize("build", [Callables, Converting])
def test_a_build_reads_what_came_from_the_host_wherever_it_reads_it(build, wrapped) -> None:  # type: ignore[no-untyped-def]
    given, inner = copied(GIVEN), wrapped(build(lambda x, y: {"sum": x + y}))
    called = FromHost(inner, is_pinned=False)
    called.bind(given)
    for _, on_host in called.inputs:
        on_host.mul_(2)
    called.run()
    assert torch.equal(called.answers[0], 2 * (GIVEN.args[0] + GIVEN.args[1]))


def halve(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    batch["x"] = batch["x"] / 2
    return batch["x"]


@pytest.mark.parametrize("function", [halve, lambda batch: batch.pop("x") / 2])
def test_each_call_sees_the_values_that_were_bound(function: Callable[..., object]) -> None:
    called = Callables(function)
    called.bind(Inputs(({"x": torch.ones(1)},)))
    for _ in range(3):
        called.run()
        assert float(called.outputs()[0]) == 0.5


def request(**fields: object) -> Request:
    return Request(**{"models": ("mlp",), "backends": ("eager",), "inputs_from": "pinned", **fields})


def test_cells_on_a_gpu_say_where_inputs_come_from_and_those_on_a_cpu_are_as_ever() -> None:
    on_cpu, on_gpu = (contest.cells[0] for contest in plan(request(devices=("cpu", "cuda"))))
    assert (on_cpu.cell.inputs_from, on_gpu.cell.inputs_from) == ("device", "pinned")
    assert "_pinned_" in on_gpu.cell.id and "--inputs-from pinned" in on_gpu.options
    assert on_gpu.cell.title.endswith("on cuda, fp32, inputs from page-locked host memory")


@pytest.mark.parametrize("fields", [{}, {"task": "train_step"}, {"task": "generate"}, {"load": "offline"}], ids=str)
def test_what_copies_nothing_is_refused_before_anything_starts(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--inputs-from pinned"):
        plan(request(**{"devices": ("cuda",) if fields else ("cpu",), **fields}))


MIB = 2**20


class Watched(Scripted):
    """Notes how often the buffer was written when each call begins, and when it ends."""

    cold: ColdCalls

    def run(self) -> None:
        before = int(self.cold._buffer[-1])
        super().run()
        self.writes = [*getattr(self, "writes", []), (before, int(self.cold._buffer[-1]))]


def test_each_call_is_preceded_by_one_eviction_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "cache_bytes_of", lambda device: 48 * MIB)
    time = FakeTime()
    watched = Watched(time, bind_ms=7.0)
    clock = Clock(CPU, time.read)
    watched.cold = ColdCalls(watched, clock)
    samples_ns = sampling.burst(watched.cold, [Inputs((torch.ones(1),), {})], clock, 0.0, 5)
    assert samples_ns == [1_000_000] * 5  # without binding, and what follows it
    assert watched.writes == [(call, call) for call in range(1, 6)]
    assert watched.cold.settings()["MiB written before each call"] == 96


def test_a_cold_run_says_so_wherever_it_is_shown(tmp_path: Path) -> None:
    report = measure(tmp_path / "cold", "eager", cold_cache=True)
    record = by_label(report)["eager"]
    assert (
        record.latency is not None and record.cell.cold_cache and record.settings["MiB written before each call"] >= 64
    )
    assert record.throughput is None and record.energy is None
    assert "--cold-cache" in record.command and "_cold_" in record.cell.id
    judgement = judge(report)
    assert sentences.title(judgement).endswith(", cold cache")
    assert judgement.contests[0].title.endswith("on cpu, fp32, cold cache")
    conditions = [burst.conditions for burst in record.bursts if burst.conditions]
    assert conditions and all(each.given_ms is None and each.wait_share is None for each in conditions)


NEARLY_EQUAL = """
import time
import torch

class Close(torch.nn.Module):
    '''The two largest logits of every row differ by a millionth.'''

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, scale: float = 1.0):
        base = torch.tensor([1.0, 1.000001, 0.0, 0.0])
        return {"logits": self.weight * base + 0.001 * x.mean(-1, keepdim=True), "count": x.sum(-1)}

def factory(batch: int = 4):
    return Close(), torch.randn(batch, 8)

def evaluate(predict, batch):
    rows = []
    for _ in range(200):
        x = torch.randn(batch, 8)
        logits = predict(x=x)["logits"]
        if (logits > 1.9).any():
            time.sleep(600)
        if logits.isnan().any():
            return {"top1": float("nan")}
        rows += (logits.argmax(-1) == 1).float().tolist()
    return {"top1": rows}
"""


def test_a_fast_build_with_flipped_labels_cannot_win_and_failures_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "close.py").write_text(NEARLY_EQUAL)
    report = measure(
        tmp_path / "run",
        *("null", "null/flips", "null/nan", "null/wrong"),
        models=[f"{tmp_path}/close.py:factory"],
        require="top1>-1%",
        evaluate_timeout_s=3.0,
    )
    records = by_label(report)
    flips = records["null/flips"]
    assert flips.accuracy is not None and flips.accuracy.passed and flips.accuracy.relative_rmse < 1e-5
    [contest] = contests_of(report)
    assert [cell.label for cell in contest.ranked] == ["null"] == contest.fastest.candidates
    values = {label: record.metrics.values for label, record in records.items() if record.metrics}
    assert (values["null"]["top1"].value, values["null/flips"]["top1"].value) == (1.0, 0.0)
    reasons = {label: record.metrics.failure for label, record in records.items() if record.metrics}
    assert reasons["null"] is None and reasons["null/flips"] is None
    assert reasons["null/nan"] is not None and reasons["null/nan"].text == "evaluate returned nan as top1"
    assert reasons["null/wrong"] is not None and "took longer than 3 s" in reasons["null/wrong"].text
    assert all(record.latency for record in records.values())  # what was measured stays
    assert all("evaluate" not in {phase.name for phase in record.phases} for record in records.values())


APART = """
import torch

class Apart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight * torch.tensor([0.1, 0.3, 0.2, 0.0], device=x.device, dtype=x.dtype) + 0 * x[:, :1]

def factory(batch: int = 4):
    return Apart(), torch.randn(batch, 8)

def evaluate(predict, batch):
    rows = []
    for _ in range(200):
        answer = predict(torch.randn(batch, 8))
        rows += (answer.nan_to_num().argmax(-1) == 1).tolist()
    return {"top1": rows}
"""


@pytest.mark.slow
def test_a_metric_that_surely_holds_accepts_the_error_of_a_reduced_precision_alone(tmp_path: Path) -> None:
    """`null/wrong` adds 1 to every logit, and flips no label. `null/nan` returns no number."""
    (tmp_path / "apart.py").write_text(APART)
    report = measure(
        tmp_path / "run",
        *("null", "null/wrong", "null/nan"),
        models=[f"{tmp_path}/apart.py:factory"],
        precision=["fp32", "bf16"],
        require="top1>-1%",
        processes=2,
    )
    records = by_label(report)
    accepted = records["null/wrong bf16"]
    assert accepted.status is Status.OK and len(accepted.processes) == 2 and not accepted.reason
    assert [doubt.kind for doubt in accepted.doubts] == ["accepted by metric"]
    assert accepted.accuracy is not None and not accepted.accuracy.passed
    [contest] = contests_of(report)
    assert contest.best is not None and "null/wrong bf16" in [cell.label for cell in contest.ranked]
    for label in ("null/wrong fp32", "null/nan fp32", "null/nan bf16"):
        assert records[label].status is Status.INCORRECT, label

    without = by_label(judged_anew(report, require=""))["null/wrong bf16"]
    assert (without.status, without.doubts) == (Status.INCORRECT, []) and "eager's" in without.reason
    again = judged_anew(judged_anew(report, require=""), require="top1>-2%")
    assert by_label(again)["null/wrong bf16"].status is Status.OK


class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, x: Any, mask: Any = None) -> dict[str, Any]:
        return {"y": 2 * x, "rows": x.shape[0] * torch.ones((), dtype=torch.int64)}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample that the reference of the model has left."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "net.py").write_text(
        "import torch\nfrom tests.measuring.test_beside_the_calls import Model\n"
        "def factory(batch: int = 4):\n    return Model(), torch.randn(batch, 3)\n"
    )
    cell = Cell(model=f"{folder}/net.py:factory", dimensions={"batch": 4}, backend="eager")
    job = ComputeReference(cell=cell, reference=folder / "reference.pt", sample=folder / "sample.npz")
    with contextlib.chdir(folder):  # which the reference stands in afterwards, too
        reference.compute(job, folder, folder)
    return folder / "sample.npz"


@pytest.mark.parametrize(
    ("parameters", "passed"),
    [
        ("batch, limit=9", ["batch"]),
        ("batch=8, bath=1, batches=2, seed=0", ["batch", "seed"]),  # `bath` is no `batch`, which is there, too
        ("bacth=8", "unknown size of the model 'bacth': did you mean 'batch'?"),
        ("sed=0", "unknown size of the model 'sed': did you mean 'seed'?"),
        ("limit", "unknown size of the model 'limit': known: batch, seed (evaluate's other parameters need a default)"),
    ],
)
def test_a_misspelt_size_is_no_parameter_of_the_metrics_own(parameters: str, passed: list[str] | str) -> None:
    names: dict[str, Any] = {}
    exec(f"def evaluate(predict, {parameters}): ...", names)
    if isinstance(passed, list):
        assert list(evaluating.arguments_of(names["evaluate"], {"batch": 4, "seed": 1})) == passed
    else:
        with pytest.raises(UsageError, match=re.escape(passed)):
            evaluating.arguments_of(names["evaluate"], {"batch": 4, "seed": 1})


@pytest.fixture
def make_predict(sample: Path) -> Callable[..., evaluating.Predict]:
    def make(dtype: Any = torch.float32, **given: Any) -> evaluating.Predict:
        def call(inputs: Inputs) -> list[Any]:
            assert inputs.args[0].dtype is dtype
            return list(Model()(*inputs.args, **inputs.kwargs).values())

        return evaluating.Predict(sample, call, [Inputs((torch.randn(4, 3, dtype=dtype),))], **given)

    return make


def test_predict_is_called_like_the_model_and_answers_like_it(make_predict: Callable[..., evaluating.Predict]) -> None:
    x = torch.randn(4, 3)
    for answer in (make_predict()(x), make_predict()(x=x), make_predict()(x, mask=None)):
        assert set(answer) == {"y", "rows"} and torch.equal(answer["y"], 2 * x)
    narrow = make_predict(torch.bfloat16)(x.double())["y"]
    assert narrow.dtype is torch.float32 and torch.equal(narrow, 2 * x.bfloat16().float())


def test_other_sizes_are_refused_with_both_sizes(make_predict: Callable[..., evaluating.Predict]) -> None:
    with pytest.raises(NotServed, match=r"'x' as \(3, 3\), and the build serves float32 \(4, 3\): pad it"):
        make_predict()(torch.randn(3, 3))
    assert make_predict(any_size=True)(torch.randn(3, 3))["y"].shape == (3, 3)
    with pytest.raises(NotServed, match="a list as 'x': give a tensor"):
        make_predict()([1.0])


def test_a_whole_request_runs_the_stages_around_the_build(make_predict: Callable[..., evaluating.Predict]) -> None:
    stages = Around(
        before=lambda words: {"x": torch.full((4, 3), float(len(words)))}, after=lambda answer: answer["y"].sum().item()
    )
    predict = make_predict(find_stages=lambda: stages)
    assert predict.end_to_end("ab") == 4 * 3 * 2 * 2.0
    with pytest.raises(UsageError, match=r"before\(\) or after\(\) around the model: call predict"):
        make_predict().end_to_end("ab")


@pytest.mark.slow
def test_metrics_may_be_end_to_end_also_of_builds_that_never_see_the_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def example():\n    return 'a word'\n"
        "def before(words):\n    return torch.full((1, 4), float(len(words)))\n"
        "def after(outputs):\n    return round(float(outputs.sum()))\n"
        "def factory():\n"
        "    layer = torch.nn.Linear(4, 1)\n    torch.nn.init.ones_(layer.weight)\n"
        "    torch.nn.init.zeros_(layer.bias)\n"
        "    return layer\n"
        "def evaluate(predict):\n"
        "    words = ['a' * length for length in range(1, 31)]\n"
        "    return {'right': [predict.end_to_end(each) == 4 * len(each) for each in words]}\n"
    )
    report = measure(tmp_path / "run", "eager", "onnx", models=[f"{tmp_path / 'net.py'}:factory"])
    for record in report.records:
        assert record.metrics.failure is None
        assert record.metrics.values["right"].samples == 30
        assert record.metrics.values["right"].value == record.reference_metrics.values["right"].value == 1.0


def metrics(returned: object, make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch) -> Any:
    def evaluate(predict: object, batch: int, seed: int, **others: object) -> object:
        assert (batch, seed, others) == (4, 0, {})
        return returned() if callable(returned) else returned

    evaluate.higher_is_better = {"wer": False, "unused": True}  # type: ignore[attr-defined]
    monkeypatch.setattr("bakeoff.models.find_evaluate", lambda name: evaluate)
    cell = Cell(model="mlp", dimensions={"batch": 4}, backend="eager", precision=Precision.BF16)
    return evaluating.evaluated(cell, "net.py:evaluate", make_predict)


def test_numbers_and_scores_of_every_kind_are_taken(
    make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = torch.tensor([True, False, True])
    given: Mapping[str, object] = {"a": 1, "b": torch.tensor(0.5), "wer": [torch.tensor(0.25), 0.5], "c": scores}
    found = metrics(given, make_predict, monkeypatch)
    assert {name: (each.value, each.samples) for name, each in found.values.items()} == {
        "a": (1.0, 0),
        "b": (0.5, 0),
        "wer": (0.375, 2),
        "c": (2 / 3, 3),
    }
    assert found.higher_is_better == {"wer": False}


def fails() -> object:
    raise ValueError("no such file")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (fails, "ValueError: no such file (test_beside_the_calls.py, line"),
        (0.5, "evaluate returned a float: return a dict such as {'top1': 0.91}"),
        ({}, "evaluate returned an empty dict"),
        ({"top1": []}, "evaluate returned a list as top1: expected a number or a list of them"),
        ({"top1": "good"}, "evaluate returned a str as top1"),
        ({"top1": torch.ones(8, 1)}, "evaluate returned scores of shape (8, 1) as top1: return one axis of them"),
        ({"top1": [[1, 0], [1]]}, "evaluate returned a list as top1"),
        ({"top1": None}, "evaluate returned a NoneType as top1"),
        ({"top1": 1j}, "evaluate returned a complex as top1"),
        ({"top1": [0.5, float("inf")]}, "evaluate returned inf as top1 for sample 2 of 2"),
        ({"top 1": 0.5}, "evaluate returned a metric 'top 1': name it like top1"),
        ({"rmse": 0.5}, "evaluate returned 'rmse', which Bakeoff measures itself: name it like task_rmse"),
    ],
)
def test_what_cannot_be_taken_is_a_reason(
    returned: object, said: str, make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = metrics(returned, make_predict, monkeypatch)
    assert not found.values and said in found.failure.sentence


def test_samples_that_calibrate_int8_are_told_apart_by_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_switches: None
) -> None:
    """Three of the calibrating rows are among those that `evaluate` gives, in calls of other rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def rows(*values): return torch.tensor([[float(value)] * 3 for value in values])\n"
        "def factory(batch: int = 2): return torch.nn.Linear(3, 2), rows(0, 1)\n"
        "def calibrate(): return [rows(2, 3), rows(4, 5)]\n"
        "def evaluate(predict):\n"
        "    for pair in ((3, 6), (5, 2), (7, 7)):\n"
        "        predict(rows(*pair))\n"
        "    return {'seen': 1.0}\n"
    )
    model = f"{tmp_path}/net.py:factory"
    cell = Cell(model=model, dimensions={"batch": 2}, backend="eager", precision=Precision.INT8)
    files = {"reference": tmp_path / "reference.pt", "sample": tmp_path / "sample.npz"}
    reference.compute(ComputeReference(cell=cell, **files), tmp_path, tmp_path)
    evaluation = Evaluation(function=f"{tmp_path}/net.py:evaluate", sample=files["sample"])
    theirs = evaluating.of_reference(EvaluateReference(cell=cell, evaluation=evaluation), tmp_path)
    assert (theirs.judged, theirs.calibrating) == (5, 3)


# --- the user's own metric, in a run's time


def evaluated_contest(folder: Path, scripts: Mapping[str, Script], **given: Any) -> Any:
    """Run a contest whose builds are evaluated, in two processes of each cell."""
    return run_contest(folder, scripts, plan_of(2), evaluate="live:evaluate", **given)


def failures(run: Any) -> dict[str, str]:
    """Return why cells have no metric, by label."""
    return {
        label: record.metrics.failure.text
        for label, record in run.records.items()
        if record.metrics and record.metrics.failure
    }


def test_each_build_is_evaluated_once_after_its_last_burst_and_the_fastest_first(tmp_path: Path) -> None:
    scripts = {"eager": Script(3.0), "null": Script(2.0), "inductor": Script(1.0)}
    run = evaluated_contest(tmp_path, scripts)
    assert [label for _, what, label in run.steps if what == "evaluates"] == ["inductor", "null", "eager"]
    first = [what for epoch, what, _ in run.steps if epoch == 0 and what in ("burst", "evaluates")]
    assert first[-3:] == ["evaluates"] * 3 and "evaluates" not in first[:-3]
    assert {record.metrics.values["top1"].value for record in run.records.values()} == {1.0}


def test_a_required_metric_that_evaluate_does_not_return_is_reported(tmp_path: Path) -> None:
    run = evaluated_contest(tmp_path, {"eager": Script()}, require="top_1>-1%")
    assert "evaluate returned top1, and --require names top_1: nothing can win" in run.said


def test_a_budget_that_ends_within_an_evaluation_keeps_all_that_was_measured(tmp_path: Path) -> None:
    scripts = {"eager": Script(2.0, evaluate_s=50.0), "null": Script(1.0, evaluate_s=5.0)}
    run = evaluated_contest(tmp_path, scripts, budget_s=30.0)
    assert run.ended_s <= 30.0
    assert {record.status for record in run.records.values()} == {Status.OK}
    assert all(record.latency and record.throughput for record in run.records.values())
    assert run.records["null"].metrics.values["top1"].value == 1.0
    assert set(failures(run)) == {"eager"} and "--budget left" in failures(run)["eager"]


def test_what_a_budget_does_not_reach_is_not_evaluated(tmp_path: Path) -> None:
    scripts = {"null": Script(1.0, evaluate_s=99.0), "eager": Script(2.0)}
    run = evaluated_contest(tmp_path, scripts, budget_s=30.0)
    assert [label for _, what, label in run.steps if what == "evaluates"] == ["null"]
    assert failures(run)["eager"].startswith("--budget left 0 s for evaluate")
    assert run.ended_s == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize(
    ("ending", "said"),
    [(HANG, "evaluate took longer than 20 s: raise --evaluate-timeout"), (SEGFAULT, "its process died of signal 11")],
)
def test_an_evaluation_that_hangs_or_crashes_is_a_reason_of_one_build(
    ending: Ending, said: str, tmp_path: Path
) -> None:
    scripts = {"eager": Script(), "null": Script(endings={(0, "evaluate"): ending})}
    run = evaluated_contest(tmp_path, scripts, evaluate_timeout_s=20.0)
    assert set(failures(run)) == {"null"} and said in failures(run)["null"]
    assert {(record.status, len(record.processes)) for record in run.records.values()} == {(Status.OK, 2)}


def test_an_interruption_within_an_evaluation_keeps_the_latencies(tmp_path: Path) -> None:
    run = evaluated_contest(tmp_path, {"eager": Script(), "null": Script(endings={(0, "evaluate"): INTERRUPT})})
    assert not run.complete and set(run.records) == {"eager", "null"}
    assert all(record.latency for record in run.records.values()) and run.records["null"].metrics is None
