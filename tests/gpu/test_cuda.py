"""Whole runs that need a GPU. `python3 -m pytest -m gpu` runs these tests."""

import json
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import torch

import bakeoff
from bakeoff import models
from bakeoff.backends import onnx_plugins
from bakeoff.backends.base import INT8_PRODUCTS, Compiled
from bakeoff.doctor import examine, facts
from bakeoff.doctor.diagnosis import Outcome
from bakeoff.judging.start_times import judge_starts
from bakeoff.measuring import nvml
from bakeoff.measuring.worker import ceilings, cell_model, energy
from bakeoff.measuring.worker import precision as precisions
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.counting import count
from bakeoff.models.base import Inputs
from bakeoff.records import report_file
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent, Record, Report, Status
from bakeoff.shipping import start_runs
from bakeoff.truth import checking
from bakeoff.truth.checking import KeptInputs
from tests.support import measuring
from tests.support.checkout import ROOT
from tests.support.measuring import by_label, measure

pytestmark = pytest.mark.gpu


def gpu_processes() -> set[int]:
    with nvml.nvml() as library:
        device = nvml.handle(library, 0)
        return {process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(device)}


def measure_on_cuda(folder: Path, *backends: str, **fields: object) -> Report:
    return measuring.measure(folder, *backends, **{"devices": ["cuda"], "min_time_s": 0.2, **fields})


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Report:
    names = ("eager", "torchscript", "inductor", "inductor/reduce-overhead", "onnx/all")
    return measure_on_cuda(tmp_path_factory.mktemp("cuda") / "run", *names)


def test_every_backend_runs_on_cuda_and_is_right(everything: Report) -> None:
    for record in everything.records:
        if record.cell.backend == "onnx" and record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED):
            # a build without the provider, TensorRT's libraries missing, a GPU that TensorRT for RTX does not serve,
            # a provider for the CPU, a mode of few bits
            elsewhere = ("tensorrt-ep", *onnx_plugins.PLUGINS, INT8_PRODUCTS)
            assert "xecutionProvider" in record.reason or record.cell.mode in elsewhere
            continue
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert record.placement.extent is Extent.FULL, record.placement


def test_fp32_is_ieee_float32_in_every_backend(everything: Report) -> None:
    for record in everything.records:
        if record.accuracy:
            assert record.accuracy.relative_rmse < 1e-6, record.cell.label  # TF32 would be at 1e-4


def test_tf32_is_on_where_it_is_asked_for_and_shows_in_the_error(tmp_path: Path) -> None:
    sizes = {"batch": ("512",), "features": ("512",), "hidden": ("1024",)}
    report = measure_on_cuda(tmp_path / "run", "eager", "torchscript", precision=["fp32", "tf32"], set=sizes)
    for record in report.records:
        low, high = (0, 1e-6) if record.cell.precision == "fp32" else (2e-5, 1e-2)
        assert low <= record.accuracy.relative_rmse < high, record.cell.id


def test_device_memory_and_device_time_are_recorded(everything: Report) -> None:
    for record in everything.records:
        if record.status is Status.OK:
            assert (record.memory.peak_device_bytes or 0) > 100e6  # a CUDA context alone is more
            assert 0 < record.device_time.median_ms < 2 * record.latency.median_ms


def test_the_parent_never_touches_the_gpu_and_nothing_stays_on_it(tmp_path: Path) -> None:
    asked = ("--model", "mlp", "--backends", "eager,null", "--devices", "cuda", "--min-time", "0.2", "--quiet")
    seen: set[int] = set()
    before = gpu_processes()
    with subprocess.Popen([sys.executable, ROOT / "runner.py", *asked, "--out", tmp_path / "run"]) as runner:
        while runner.poll() is None:
            seen |= gpu_processes() - before
            time.sleep(0.05)
    assert runner.returncode == 0
    assert len(seen) >= 2
    assert runner.pid not in seen
    assert not seen & gpu_processes()


GREEDY = """
import torch

class Greedy(torch.nn.Module):
    calls = 0

    def forward(self, x):
        Greedy.calls += 1
        if Greedy.calls > {calls}:
            torch.empty(1 << 44, device=x.device, dtype=torch.uint8)
        return x + 1

def factory(batch: int = 4):
    return Greedy(), torch.randn(batch, 8)
"""


@pytest.mark.parametrize(
    ("calls", "reason"),
    [(0, "your model failed when it was called in fp32: OutOfMemoryError"), (200, "OutOfMemoryError")],
)
def test_running_out_of_device_memory_is_a_row(tmp_path: Path, calls: int, reason: str) -> None:
    file = tmp_path / "greedy.py"
    file.write_text(GREEDY.format(calls=calls))  # the reference takes fewer calls than 200, a cell more
    report = measure_on_cuda(tmp_path / "run", "eager", models=[f"{file}:factory"])
    assert report.records[0].status is Status.OOM
    assert report.records[0].reason.startswith(reason)


def test_a_killed_child_leaves_no_device_memory(tmp_path: Path) -> None:
    before = gpu_processes()
    report = measure_on_cuda(tmp_path / "run", "eager", "null/crash-in-run", "null/hang-in-run", time_limit_s=30)
    statuses = {record.cell.label: record.status for record in report.records}
    assert statuses == {"eager": Status.OK, "null/crash-in-run": Status.CRASH, "null/hang-in-run": Status.TIMEOUT}
    assert gpu_processes() <= before


def test_spawned_children_run_on_cuda_too(tmp_path: Path) -> None:
    report = measure_on_cuda(tmp_path / "run", "eager", "null", start_method="spawn")
    assert [record.status for record in report.records] == [Status.OK, Status.OK]


def test_a_cuda_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--devices cuda:99: torch .* sees cuda:0"):
        measure_on_cuda(tmp_path / "run", "eager", devices=["cuda:99"])


def test_a_decoder_without_weights_is_drawn_on_the_gpu_and_its_imports_are_shared(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    shape = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = measure_on_cuda(
        tmp_path / "run", "eager", "inductor", models=[f"hf:{tmp_path}"], precision=["bf16"], processes=3
    )
    for record in report.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert record.accuracy is not None and record.accuracy.relative_rmse < 3e-2
    assert any(re.search("had imported torch and .*transformers and nothing else", note) for note in report.notes), (
        report.notes
    )  # a lent server of the tests has imported a module of theirs, too


KEEPING = """
import torch

kept = []

class Keeping(torch.nn.Linear):
    def forward(self, x):
        kept.append(super().forward(x))
        return kept[-1] * 2

def factory(batch: int = 64):
    return Keeping(64, 64), torch.randn(batch, 64)

def chosen(batch: int = 64):
    class Chosen(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y, x[x > 0.2], torch.nonzero(x > 0.2), x[:, :0]
    return Chosen(64, 64), torch.randn(batch, 64)
"""


def test_gpu_memory_that_the_file_of_a_model_keeps_is_reported(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text(KEEPING)
    report = measure_on_cuda(tmp_path / "run", "eager", models=[f"{tmp_path / 'keeping.py'}:factory"])
    assert report.records[0].traits is not None and report.records[0].traits.grows == ("variable kept",)


def test_outputs_whose_sizes_depend_on_values_are_read_from_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "keeping.py").write_text(KEEPING)
    report = measure_on_cuda(
        tmp_path / "run", "eager", "onnx", "onnx/cuda-graph", models=[f"{tmp_path / 'keeping.py'}:chosen"]
    )
    records = by_label(report)
    assert [records[name].status for name in ("eager", "onnx")] == [Status.OK, Status.OK], records["onnx"].reason
    assert records["onnx/cuda-graph"].status is Status.UNSUPPORTED and "one size" in records["onnx/cuda-graph"].reason


def test_the_energy_of_large_products_is_resolved_within_seconds() -> None:
    class Products(Compiled):
        def __init__(self) -> None:
            self.left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

        def bind(self, inputs: Inputs) -> None:
            """There is nothing to bind."""

        def run(self) -> None:
            self.result = self.left @ self.left

        def outputs(self) -> tuple[torch.Tensor, ...]:
            return (self.result,)

    device = Device("cuda:0")
    clock, counter = Clock(device), energy.counter_for(device)
    begun_s = time.monotonic()
    with clock.on_stream():
        found = energy.measure(Products(), [Inputs(())], clock, counter)
    if found is None:
        pytest.skip("NVML counts no energy here")
    print(found)  # noqa: T201 - for the record
    assert time.monotonic() - begun_s < 6
    assert found.resolved_j is not None and found.ci95 is not None
    assert found.ci95.high - found.ci95.low < 0.3 * found.joules_per_call


@pytest.mark.parametrize("memory", ["host", "pinned"])
def test_a_call_takes_as_long_as_its_copies_at_least(tmp_path: Path, memory: str) -> None:
    sizes, size_bytes = {"batch": ("8192",), "features": ("1024",), "hidden": ("256",)}, 8192 * 1024 * 4
    backends = ("eager", "eager/cuda-graph", "torchscript")
    for record in measure(tmp_path / "run", *backends, devices=["cuda"], set=sizes, inputs_from=memory).records:
        assert record.status is Status.OK and record.latency, f"{record.cell.label}: {record.reason}"
        assert record.cell.inputs_from == memory and f"--inputs-from {memory}" in record.command
        assert {record.settings[f"bytes copied {way} the device"] for way in ("to", "from")} == {size_bytes}
        assert record.latency.min_ms / 1e3 > 2 * size_bytes / 1e12  # bytes a second, which no link to a GPU copies


@pytest.mark.parametrize("precision", list(Precision))
def test_ceilings_are_measured_in_seconds_and_are_a_gpus(precision: Precision, restored_switches: None) -> None:
    if precision is Precision.FP8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    ceilings.measure(Device("cuda"), precision)  # cuBLAS starts
    begun = time.monotonic()
    precisions.apply(precision)
    found = ceilings.measure(Device("cuda"), precision)
    print(precision, f"{found.flops_per_s:.3g} FLOP/s, {found.bytes_per_s:.3g} B/s")  # noqa: T201 - for the record
    assert time.monotonic() - begun < 3
    assert 1e12 < found.flops_per_s < 1e16
    assert 1e11 < found.bytes_per_s < 2e13


def test_a_cache_is_faster_than_the_memory_behind_it() -> None:
    found = ceilings.measure(Device("cuda"), Precision.FP32)
    for level in found.levels:
        print(f"{level.working_set_bytes >> 20} MiB at {level.bytes_per_s:.3g} B/s")  # noqa: T201 - for the record
    rates = [level.bytes_per_s for level in found.levels]
    assert rates == sorted(rates, reverse=True)
    assert found.cache_bytes > 2**20
    assert found.levels[-1].working_set_bytes > 4 * found.cache_bytes
    assert 1.1 * rates[-1] < rates[0] < 100 * rates[-1]


def test_small_types_are_faster_than_float32(restored_switches: None) -> None:
    rates = {}
    for precision in (Precision.FP32, Precision.TF32, Precision.BF16, Precision.FP16):
        precisions.apply(precision)
        rates[precision] = ceilings.measure(Device("cuda"), precision).flops_per_s
    assert all(rates[precision] > 2 * rates[Precision.FP32] for precision in rates if precision is not Precision.FP32)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_a_large_product_is_near_the_rate_of_the_tensor_cores(precision: Precision, restored_switches: None) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("held against what a Hopper's tensor cores do")
    precisions.apply(precision)
    found = ceilings.measure(Device("cuda"), precision)
    share = found.flops_per_s / found.tensor_cores.flops_per_s
    print(precision, found.tensor_cores, f"a product reaches {share:.1%}")  # noqa: T201 - for the record
    assert 0.30 < share < 1.05


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
def test_the_work_is_the_same_as_on_the_cpu(name: str, precision: Precision) -> None:
    family = models.find(name)
    dimensions = family.resolve({})
    counted = []
    for device in ("cpu", "cuda"):
        cell = Cell(model=name, dimensions=dimensions, device=device, precision=precision, backend="eager")
        with torch.inference_mode():
            module, sets = cell_model.move_to_device(cell_model.load(cell), cell)
            counted.append(count(module, sets[0], precision))
    assert counted[0] == counted[1]


def test_a_start_on_a_gpu_takes_device_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_runs, "LEAST_STARTS", 2)
    report = measure(tmp_path / "run", "eager", "torchscript", devices=("cuda",), set={"features": ("64",)})
    report_file.write_json(report, tmp_path / "run")
    found = start_runs.measure_run(tmp_path / "run", ("eager", "torchscript"), 2, False, print)
    judged = judge_starts(found.cells)
    assert {cell.label for cell in judged.cells} == {"eager", "torchscript"}, judged.without_starts
    for cell in judged.cells:
        assert min(start.device_bytes or 0 for start in cell.cell.starts) > 100 * 2**20  # a CUDA context
        assert cell.stages["first answer"] > 0


def has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_the_gpu_is_seen_and_backends_pass_on_it() -> None:
    said: list[str] = []
    found = examine.examine(["eager", "eager/cuda-graph", "torchscript"], ["cuda"], said.append)
    assert {trial.label: trial.outcome for trial in found.trials} == dict.fromkeys(
        ("eager", "eager/cuda-graph", "torchscript"), Outcome.PASS
    ), [trial.reason for trial in found.trials]
    read = found.facts
    assert read.cuda_devices >= 1 and read.torch_cuda is not None and read.driver_cuda is not None
    assert read.gpus and all(gpu.name for gpu in read.gpus)
    assert not {"no-driver", "torch-without-cuda", "nvml-not-installed", "driver-too-old"} & {
        finding.trap for finding in found.findings
    }
    assert (found.broken, found.exit_status) == ([], 0)


@pytest.mark.skipif(not (has("onnxruntime-gpu") and has("pyelftools")), reason="needs onnxruntime-gpu and pyelftools")
def test_what_onnxruntimes_providers_were_linked_against_is_read() -> None:
    linked = facts.linked_by_onnxruntime()
    assert linked["CUDA"] >= 12
    assert linked["TensorRT"] >= 10


class Overwriting(torch.nn.Module):
    def forward(self, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return x.zero_() + part.sum()


def test_values_are_those_before_the_call_on_a_stream_of_its_own() -> None:
    module, stream = Overwriting(), torch.cuda.Stream()
    given = torch.ones(2**20, device="cuda")
    with bakeoff.record(module) as calls, torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        given.add_(1)
        module(given, given[:4])
    (call,) = calls
    assert call.args[0].device.type == "cpu" and call.args[0].eq(2).all()
    assert call.args[1].data_ptr() == call.args[0].data_ptr()
    assert calls.sizes == {"1048576+4": 1}


def test_capturing_records_nothing_and_is_not_broken() -> None:
    module, given = torch.nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    with torch.no_grad(), bakeoff.record(module) as calls:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            module(given)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            module(given)
        graph.replay()
    assert calls.count == 1


def test_autocast_on_a_gpu_is_said() -> None:
    module = torch.nn.Linear(4, 4).cuda()
    with bakeoff.record(module) as calls, torch.autocast("cuda", torch.float16):
        module(torch.ones(2, 4, device="cuda"))
    assert "under autocast" in repr(calls)


MODELS = '''
import torch


class Breaking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        x = self.linear(x)
        torch._dynamo.graph_break()
        return x.relu()


class Lacking(Breaking):
    """ONNX Runtime has a kernel for Atan on the CPU alone."""

    def forward(self, x):
        return torch.atan(self.linear(x)).relu()


class Counting(Breaking):
    """Writes to its input, which Inductor cannot replay from a CUDA graph."""

    def forward(self, x):
        y = self.linear(x).relu()
        x.mul_(1.0)
        return y


class Asking(Breaking):
    """Waits for a value of the device, which no capture allows."""

    def forward(self, x):
        return self.linear(x) * (2.0 if x.abs().sum().item() >= 0 else 3.0)

'''
FACTORY = "def {}(batch: int = 8):\n    return {}(), torch.randn(batch, 64)\n"


def records(folder: Path, factory: str, *backends: str, **fields: object) -> dict[str, Record]:
    file = folder / "models.py"
    file.write_text(MODELS + FACTORY.format(factory, factory.capitalize()))
    report = measure(folder / "run", *backends, models=[f"{file}:{factory}"], devices=["cuda"], **fields)
    return {record.cell.label: record for record in report.records}


def test_a_graph_break_is_named(tmp_path: Path) -> None:
    placement = records(tmp_path, "breaking", "inductor")["inductor"].placement
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert placement.engines["inductor graphs"] == 2
    assert any("graph break" in fallback for fallback in placement.fallbacks)


def test_an_operator_that_onnx_runtime_has_on_the_cpu_alone_is_named(tmp_path: Path) -> None:
    record = records(tmp_path, "lacking", "onnx")["onnx"]
    if record.status is Status.UNAVAILABLE:
        pytest.skip(record.reason)
    assert record.status is Status.OK, record.reason
    placement = record.placement
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert [fallback for fallback in placement.fallbacks if fallback.startswith("Atan on CPUExecutionProvider")]
    assert any("CPU fallback disabled: refused" in evidence for evidence in placement.evidence)


def test_an_onnx_model_wholly_on_cuda_is_confirmed_by_a_session_that_may_not_fall_back(tmp_path: Path) -> None:
    record = records(tmp_path, "breaking", "onnx")["onnx"]
    if record.status is Status.UNAVAILABLE:
        pytest.skip(record.reason)
    placement = record.placement
    assert placement is not None and placement.extent is Extent.FULL
    assert any("CPU fallback disabled: accepted" in evidence for evidence in placement.evidence)


def test_under_strict_it_is_a_failure(tmp_path: Path) -> None:
    found = records(tmp_path, "breaking", "eager", "inductor", strict=True)
    assert found["eager"].status is Status.OK
    assert found["inductor"].status is Status.FALLBACK
    assert found["inductor"].latency is not None
    assert "graph break" in found["inductor"].reason


def test_a_cuda_graph_that_inductor_skips_is_named_with_its_reason(tmp_path: Path) -> None:
    placement = records(tmp_path, "counting", "inductor/reduce-overhead")["inductor/reduce-overhead"].placement
    assert placement is not None and placement.extent is Extent.PARTIAL
    (skipped,) = [fallback for fallback in placement.fallbacks if fallback.startswith("CUDA graph skipped: ")]
    assert "mutated" in skipped


def test_a_call_that_cannot_be_captured_is_unsupported_with_the_reason(tmp_path: Path) -> None:
    found = records(tmp_path, "asking", "eager", "eager/cuda-graph")
    assert found["eager"].status is Status.OK
    assert found["eager/cuda-graph"].status is Status.UNSUPPORTED
    assert "cannot be captured" in found["eager/cuda-graph"].reason


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_attention_runs_by_the_kernel_that_the_mode_says(backend: str, tmp_path: Path) -> None:
    kernels = ("flash", "efficient", "cudnn", "math")
    names = [f"{backend}/attention-{kernel}" for kernel in kernels]
    report = measure(tmp_path / "run", *names, models=["transformer"], devices=["cuda"], precision=["fp16"])
    for record, kernel in zip(report.records, kernels, strict=True):
        assert record.status is Status.OK and record.placement is not None, record.reason
        if backend == "eager":
            assert record.placement.engines == {f"{kernel} attention": 2}
        elif kernel != "math":
            assert f"Inductor's log of attention that stays torch's: {kernel}" in record.placement.evidence


def test_cudnn_tries_out_algorithms_in_best_of_a_model_that_convolves(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager/best", "inductor/best", models=["conv"], devices=["cuda"])
    found = {record.cell.label: record for record in report.records}
    for label in ("eager/cudnn-benchmark", "eager/cudnn-benchmark-channels-last", "inductor/cudnn-benchmark"):
        assert found[label].status is Status.OK, found[label].reason
        assert found[label].settings["backends.cudnn.benchmark"] is True
    assert "backends.cudnn.benchmark" not in found["eager"].settings


def test_inputs_on_a_gpu_are_known_to_be_unchanged_by_their_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.randn(3, 2**20, device="cuda"), torch.arange(5, device="cuda"), torch.randn(4, 4, device="cuda").T]
    inputs = Inputs((tensors[0],), {"rest": tensors[1:]})
    kept = KeptInputs.of(inputs)
    with monkeypatch.context() as patch:
        patch.setattr(checking, "names_of_written", lambda *_: pytest.fail("values were copied to the host"))
        assert kept.written_in(inputs) == ()
    tensors[0][2, -1] += 1e-6
    tensors[2].mul_(2)
    assert kept.written_in(inputs) == ("input 0", "input 2")
