"""Real builds that serve requests: instances and batches answer rightly, or say why they cannot."""

import contextlib
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed")

from bakeoff.backends.calling import flatten_outputs
from bakeoff.measuring.messages import MeasureCell, TakeLoad, TrafficWindow
from bakeoff.measuring.worker.instances import Instances, start_instances
from bakeoff.measuring.worker.load_server import LoadServer
from bakeoff.measuring.worker.worker_context import WorkerContext
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.load_samples import ServingSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.truth.reference import Reference
from tests.support.cells import cell_of


@contextlib.contextmanager
def server(folder: Path, label: str, device: str = "cpu", model: str = "mlp") -> Iterator[LoadServer]:
    """Yield the server of a small `mlp`, or of another model, that is built by this backend."""
    sizes = {"batch": 2, "features": 16, "hidden": 16} if model == "mlp" else {}
    cell = cell_of(model, label, sizes, device=device)
    job = MeasureCell(
        cell=cell, reference=folder / "none", sampling=SamplingPlan.lasting(0.1), shared_folder=folder / "shared"
    )
    ours, theirs = Pipe()
    with contextlib.closing(ours), contextlib.closing(theirs):
        worker = WorkerContext.begin(theirs, job, folder)
        module, sets = worker.model()
        with torch.inference_mode():
            exact = tuple(tuple(each.cpu() for each in flatten_outputs(module(*one.args))) for one in sets)
        found = LoadServer(worker, sets, Reference(exact, (0.0,)))
        with contextlib.closing(found), worker.running():  # as the worker of a cell does
            yield found


def take(serving: LoadServer, settings: ServingSettings, rate: float = 500.0) -> TrafficWindow:
    return serving.take(TakeLoad(scenario=Scenario.OFFLINE, settings=settings, rate=rate, seconds=0.05))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("label", "batch"),
    [("eager", 3), ("torchscript", 3), pytest.param("openvino", 3, marks=pytest.mark.slow), ("onnx", 1)],
    ids=lambda value: str(value),
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


@pytest.mark.parametrize(
    ("label", "instances", "said"),
    [
        ("null/wrong", 1, "wrong answers when instances answer at the same time"),
        ("hotpath", 2, "answers one call at a time"),
    ],
)
def test_what_cannot_serve_is_found_before_anything_is_served(
    label: str, instances: int, said: str, tmp_path: Path
) -> None:
    with server(tmp_path, label) as serving:
        taken = take(serving, ServingSettings(instances=instances))
    assert taken.window is None and said in taken.reason


def test_a_failing_request_is_counted(tmp_path: Path) -> None:
    with server(tmp_path, "null/fails-under-load") as serving:
        window = take(serving, ServingSettings(instances=2), rate=2000.0).window
    assert window is not None and window.failed > 0
    assert window.failure == "RuntimeError: scripted failure of a request"


ONE, TWO, THREE = (ServingSettings(instances=count) for count in (1, 2, 3))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many instances were started, whenever some were. Memory holds three at most, kept ones included."""
    found: list[int] = []
    alive: list[int] = []

    def start(worker: WorkerContext, sets: Any, reference: Reference, settings: ServingSettings) -> Instances:
        found.append(settings.instances)
        if sum(alive) + settings.instances > 3:
            raise RuntimeError("CUDA out of memory")
        alive.append(settings.instances)
        instances = start_instances(worker, sets, reference, settings)
        instances._release = lambda: alive.remove(settings.instances)
        return instances

    monkeypatch.setattr("bakeoff.measuring.worker.load_server.start_instances", start)
    return found


def compare(serving: LoadServer, *several: ServingSettings) -> None:
    for settings in several:
        order = TakeLoad(scenario=Scenario.OFFLINE, settings=settings, rate=500.0, seconds=0.05, keeps_other=True)
        taken = serving.take(order)
        assert taken.window is not None, taken.reason


def test_settings_that_are_compared_are_built_once_and_a_turn_has_its_build_alone(
    tmp_path: Path, starts: list[int]
) -> None:
    with server(tmp_path, "eager") as serving:
        compare(serving, ONE, TWO, ONE, TWO, TWO.model_copy(update={"wait_ms": 1.0}), ONE)
        assert starts == [1, 2]
        take(serving, ONE)
        assert starts == [1, 2]
        take(serving, TWO)
        take(serving, ONE)
        assert starts == [1, 2, 2, 1]


def test_settings_that_do_not_fit_beside_others_are_built_alone(tmp_path: Path, starts: list[int]) -> None:
    with server(tmp_path, "eager") as serving:
        compare(serving, ONE, THREE, ONE)
        assert starts == [1, 3, 3, 1, 1]


def test_a_third_build_ends_the_oldest(tmp_path: Path, starts: list[int]) -> None:
    with server(tmp_path, "eager") as serving:
        compare(serving, ONE, ONE.model_copy(update={"batch": 2}), TWO, ONE.model_copy(update={"batch": 2}))
        assert starts == [1, 1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["eager", "onnx"])
def test_instances_on_cuda_have_streams_of_their_own(label: str, tmp_path: Path) -> None:
    if label == "onnx" and "CUDAExecutionProvider" not in pytest.importorskip("onnxruntime").get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA provider")
    with server(tmp_path, label, "cuda") as serving:
        taken = take(serving, ServingSettings(instances=2, batch=3, wait_ms=1.0))
    assert taken.window is not None, taken.reason
    assert taken.window.failed == 0


WHOLE = """
import time, torch
from pathlib import Path

def example():
    return "words.txt"

def before(name):
    time.sleep(0.004)
    return torch.full((2, 16), float(len(Path(name).read_text())))

def after(outputs):
    assert set(outputs) == {"scores"} and outputs["scores"].shape == (2, 16)
    assert bool((outputs["scores"] == 5.0).all())
    time.sleep(0.002)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return {"scores": x * self.scale}

def factory():
    return Net()
"""


@pytest.mark.parametrize(("label", "settings"), [
    ("eager", ServingSettings(instances=2)),
    ("torchscript", ServingSettings(batch=3, wait_ms=5.0)),
])  # fmt: skip
def test_each_request_is_whole_where_there_are_stages(label: str, settings: ServingSettings, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(WHOLE)
    (tmp_path / "words.txt").write_text("a b c")
    with server(tmp_path, label, model=f"{tmp_path / 'net.py'}:factory") as serving:
        window = take(serving, settings, rate=20_000.0).window
    assert window.stages == ["before", "after"]
    assert window.failed == 0, window.failure
    assert window.seconds < 2.0, "the rate that was asked for is the model's, and a tenth of a second"
    assert window.rate < settings.instances * 1000 / 6, "an instance answers at most one request in 6 ms"


def test_a_stage_that_fails_fails_the_request(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(WHOLE)
    (tmp_path / "words.txt").write_text("a b c")
    with server(tmp_path, "eager", model=f"{tmp_path / 'net.py'}:factory") as serving:
        (tmp_path / "words.txt").write_text("too long")
        window = take(serving, ServingSettings(), rate=100.0).window
    assert window.failed == window.requests
    assert window.failure.startswith("AssertionError")
