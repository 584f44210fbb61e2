"""Whole runs that need a GPU. `python3 -m pytest -m gpu` runs these tests."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bakeoff.backends import onnx_plugins
from bakeoff.backends.base import INT8_PRODUCTS
from bakeoff.measuring import nvml
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Extent, Report, Status
from tests.support import measuring
from tests.support.checkout import ROOT
from tests.support.measuring import by_label

pytestmark = pytest.mark.gpu


def gpu_processes() -> set[int]:
    with nvml.nvml() as library:
        assert library is not None
        device = nvml.handle(library, 0)
        return {process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(device)}


def measure(folder: Path, *backends: str, **fields: object) -> Report:
    return measuring.measure(folder, *backends, **{"devices": ["cuda"], "min_time_s": 0.2, **fields})


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Report:
    names = ("eager", "torchscript", "inductor", "inductor/reduce-overhead", "onnx/all")
    return measure(tmp_path_factory.mktemp("cuda") / "run", *names)


def test_every_backend_runs_on_cuda_and_is_right(everything: Report) -> None:
    for record in everything.records:
        if record.cell.backend == "onnx" and record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED):
            # a build without the provider, TensorRT's libraries missing, a GPU that TensorRT for RTX does not serve,
            # a provider for the CPU, a mode of few bits
            elsewhere = ("tensorrt-ep", *onnx_plugins.PLUGINS, INT8_PRODUCTS)
            assert "xecutionProvider" in record.reason or record.cell.mode in elsewhere
            continue
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert record.placement is not None
        assert record.placement.extent is Extent.FULL, record.placement


def test_fp32_is_ieee_float32_in_every_backend(everything: Report) -> None:
    for record in everything.records:
        if record.accuracy:
            assert record.accuracy.relative_rmse < 1e-6, record.cell.label  # TF32 would be at 1e-4


def test_tf32_is_on_where_it_is_asked_for_and_shows_in_the_error(tmp_path: Path) -> None:
    sizes = {"batch": ("512",), "features": ("512",), "hidden": ("1024",)}
    report = measure(tmp_path / "run", "eager", "torchscript", precision=["fp32", "tf32"], set=sizes)
    for record in report.records:
        assert record.accuracy is not None
        low, high = (0, 1e-6) if record.cell.precision == "fp32" else (2e-5, 1e-2)
        assert low <= record.accuracy.relative_rmse < high, record.cell.id


def test_device_memory_and_device_time_are_recorded(everything: Report) -> None:
    for record in everything.records:
        if record.status is Status.OK:
            assert record.memory is not None
            assert (record.memory.peak_device_bytes or 0) > 100e6  # a CUDA context alone is more
            assert record.device_time is not None
            assert record.latency is not None
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
    report = measure(tmp_path / "run", "eager", models=[f"{file}:factory"])
    assert report.records[0].status is Status.OOM
    assert report.records[0].reason.startswith(reason)


def test_a_killed_child_leaves_no_device_memory(tmp_path: Path) -> None:
    before = gpu_processes()
    report = measure(tmp_path / "run", "eager", "null/crash-in-run", "null/hang-in-run", time_limit_s=30)
    statuses = {record.cell.label: record.status for record in report.records}
    assert statuses == {"eager": Status.OK, "null/crash-in-run": Status.CRASH, "null/hang-in-run": Status.TIMEOUT}
    assert gpu_processes() <= before


def test_spawned_children_run_on_cuda_too(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "null", start_method="spawn")
    assert [record.status for record in report.records] == [Status.OK, Status.OK]


def test_a_cuda_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--devices cuda:99: torch .* sees cuda:0"):
        measure(tmp_path / "run", "eager", devices=["cuda:99"])


def test_a_decoder_without_weights_is_drawn_on_the_gpu_and_its_imports_are_shared(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    shape = {"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = measure(tmp_path / "run", "eager", "inductor", models=[f"hf:{tmp_path}"], precision=["bf16"], processes=3)
    for record in report.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert record.accuracy is not None and record.accuracy.relative_rmse < 3e-2
    assert any("had imported torch and transformers and nothing else" in note for note in report.notes)


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


def test_gpu_memory_that_the_file_of_a_model_keeps_is_told(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text(KEEPING)
    report = measure(tmp_path / "run", "eager", models=[f"{tmp_path / 'keeping.py'}:factory"])
    assert report.records[0].traits is not None and report.records[0].traits.grows == ("variable kept",)


def test_outputs_whose_sizes_depend_on_values_are_read_from_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "keeping.py").write_text(KEEPING)
    report = measure(tmp_path / "run", "eager", "onnx", "onnx/cuda-graph", models=[f"{tmp_path / 'keeping.py'}:chosen"])
    records = by_label(report)
    assert [records[name].status for name in ("eager", "onnx")] == [Status.OK, Status.OK], records["onnx"].reason
    assert records["onnx/cuda-graph"].status is Status.UNSUPPORTED and "one size" in records["onnx/cuda-graph"].reason
