"""Real builds that serve requests: instances and batches answer rightly, or say why they cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed")

import models
from harness.messages import LoadTaken, MeasureCell, TakeLoad
from harness.sampling_plan import SamplingPlan
from harness.worker import accuracy
from harness.worker.bench import Bench
from harness.worker.load import LoadServer
from records.device import Device
from records.load import Scenario, ServingSettings
from records.schema import Cell


@contextlib.contextmanager
def server(folder: Path, label: str, device: str = "cpu") -> Iterator[LoadServer]:
    """Yield the server of a small `mlp` that is built by this backend."""
    backend, _, mode = label.partition("/")
    dimensions = models.find("mlp").resolve({"batch": 2, "features": 16, "hidden": 16})
    cell = Cell(model="mlp", dimensions=dimensions, device=Device(device), backend=backend, mode=mode or "default")
    job = MeasureCell(
        cell=cell, reference=folder / "none", sampling=SamplingPlan.lasting(0.1), shared_folder=folder / "shared"
    )
    ours, theirs = Pipe()
    with contextlib.closing(ours), contextlib.closing(theirs):
        bench = Bench.begin(theirs, job, folder)
        module, sets = bench.model()
        with torch.inference_mode():
            exact = tuple((module(*one.args).cpu(),) for one in sets)
        found = LoadServer(bench, sets, accuracy.Reference(exact, (0.0,)))
        with contextlib.closing(found), bench.running():  # as the worker of a cell does
            yield found


def take(serving: LoadServer, settings: ServingSettings, rate: float = 500.0) -> LoadTaken:
    return serving.take(TakeLoad(scenario=Scenario.OFFLINE, settings=settings, rate=rate, seconds=0.05))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("label", "batch"), [("eager", 3), ("torchscript", 3), ("openvino", 3), ("onnx", 1)], ids=lambda value: str(value)
)
def test_instances_and_batches_answer_rightly(label: str, batch: int, tmp_path: Path) -> None:
    if label in ("onnx", "openvino"):
        pytest.importorskip({"onnx": "onnxruntime"}.get(label, label))
    threads = torch.get_num_threads()
    with server(tmp_path, label) as serving:
        taken = take(serving, ServingSettings(instances=2, batch=batch, wait_ms=1.0))
    assert taken.window is not None, taken.reason
    assert taken.window.requests >= 25 and taken.window.failed == 0
    assert torch.get_num_threads() == threads


def test_wrong_answers_are_found_before_anything_is_served(tmp_path: Path) -> None:
    with server(tmp_path, "null/wrong") as serving:
        taken = take(serving, ServingSettings())
    assert taken.window is None and taken.reason.startswith("wrong answers when instances answer at the same time")


def test_a_failing_request_is_counted(tmp_path: Path) -> None:
    with server(tmp_path, "null/fails-under-load") as serving:
        window = take(serving, ServingSettings(instances=2), rate=2000.0).window
    assert window is not None and window.failed > 0
    assert window.failure == "RuntimeError: scripted failure of a request"


def test_what_answers_one_call_at_a_time_says_so(tmp_path: Path) -> None:
    with server(tmp_path, "hotpath") as serving:
        taken = take(serving, ServingSettings(instances=2))
    assert taken.window is None and "answers one call at a time" in taken.reason


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["eager", "onnx"])
def test_instances_on_cuda_have_streams_of_their_own(label: str, tmp_path: Path) -> None:
    if label == "onnx" and "CUDAExecutionProvider" not in pytest.importorskip("onnxruntime").get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA provider")
    with server(tmp_path, label, "cuda") as serving:
        taken = take(serving, ServingSettings(instances=2, batch=3, wait_ms=1.0))
    assert taken.window is not None, taken.reason
    assert taken.window.failed == 0
