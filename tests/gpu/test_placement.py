"""The placement of models that cannot run wholly where they were asked to."""

from pathlib import Path

import pytest

from bakeoff.records.schema import Extent, Record, Status
from tests.support.measuring import measure

pytestmark = pytest.mark.gpu

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
