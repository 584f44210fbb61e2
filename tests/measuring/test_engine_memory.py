"""The memory of an engine in a process that has no torch."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bakeoff import backends
from bakeoff.measuring.worker import engine_memory
from bakeoff.measuring.worker.engine_memory import engine_resident_bytes
from tests.backends.building import Built, built
from tests.support.cells import cell_of

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
