"""What a worker does beside its calls: stages around the model, samples, memory, copies and cold caches."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff import backends
from bakeoff.backends.base import Compiled, FlatCalls
from bakeoff.backends.calling import sampled
from bakeoff.backends.cuda_graph import Captured
from bakeoff.backends.eager import Callables
from bakeoff.backends.memory_format import ChannelsLast
from bakeoff.judging.judgement import judge
from bakeoff.measuring.worker import engine_memory, sampling, serving
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
from bakeoff.records.errors import BakeoffError, Unsupported, UsageError
from bakeoff.records.precision import Precision
from bakeoff.reports import sentences
from bakeoff.shipping.sample_facts import Sample as Read
from bakeoff.truth.calls import copied
from tests.backends.building import Built, built
from tests.measuring.test_sampling import FakeTime, Scripted
from tests.support.cells import cell_of
from tests.support.measuring import by_label, measure


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


def test_a_stage_that_raises_is_told(tmp_path: Path) -> None:
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
    assert found is not None
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
    engine = measured(one)
    assert engine is not None
    assert 2**24 + WEIGHTS_BYTES < engine < psutil.Process().memory_info().rss - 2**26


@pytest.mark.parametrize(
    ("backend", "fields"),
    [("eager", {}), ("torchscript", {}), ("onnx", {"mode": "openvino-ep"}), ("onnx", {"task": "decode"})],
)
def test_what_runs_only_beside_torch_has_none(one: Built, backend: str, fields: dict[str, object]) -> None:
    assert measured(one, backend, **fields) is None


def test_a_process_that_fails_says_why_in_the_log_of_the_cell(
    one: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_memory, "_CHILD", f"import torch; {engine_memory._CHILD}")
    assert measured(one) is None
    assert "torch was imported" in capsys.readouterr().err


def test_what_fails_or_takes_too_long_costs_this_number_alone(
    one: Built, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_memory, "ENGINE_MEMORY_LIMIT_S", 0.05)
    assert measured(one) is None
    assert "TimeoutExpired" in capsys.readouterr().err


class Copies(TorchDispatchMode):
    """A clock whose time only copies take, a millisecond each. It notes which of them the host does not wait for."""

    queued: tuple[bool, ...] = ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.aten.copy_.default:
            self.queued += (len(args) > 2 and args[2],)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_pinned", [False, True])
def test_every_copy_of_a_call_is_timed(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which needs CUDA
    called = FromHost(FlatCalls(lambda tensors: [tensors[0] + 1, tensors[0].sum()]), is_pinned)
    with Copies() as copies:
        clock = Clock(CPU, lambda: 10**6 * len(copies.queued))
        samples_ns = sampling.burst(called, [Inputs((torch.ones(2, 3),))], clock, 0.0, 2)
    assert samples_ns == [3_000_000] * 2  # one input and two outputs, and not what binding copies
    assert copies.queued == (False, *[is_pinned] * 3) * 2
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
    assert all(burst.conditions and burst.conditions.given_ms is None for burst in record.bursts)


def test_requests_under_load_have_no_cold_cache() -> None:
    with pytest.raises(UsageError, match="--cold-cache"):
        Request(load="server", slo="p99_ms<5", cold_cache=True)
