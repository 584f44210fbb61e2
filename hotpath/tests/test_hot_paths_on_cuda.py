"""Hot paths on a GPU: compiled in another process, taken up on this one's stream, for inference and for training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hotpath.deciding
import models
from hotpath import enable_hot_path_detection
from hotpath.enabling import HotPaths

pytestmark = pytest.mark.gpu

CURRENT = torch.device("cuda")


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder; what is compiled in it is compiled at once, and taken up whatever it gains."""
    for bound in ("CLEARLY_SLOWER", "FASTER"):
        monkeypatch.setattr(hotpath.deciding, bound, 0.0)
    monkeypatch.setattr(hotpath.deciding.Trial, "is_won", True)
    monkeypatch.setattr(hotpath.deciding.Expectation, "is_worth", lambda expectation, delay_s: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "learned"


def placed(name: str, device: torch.device = CURRENT) -> tuple[torch.nn.Module, torch.Tensor]:
    family = models.find(name)
    loaded = family.load(family.resolve({}), 0)
    (rows,) = loaded.inputs[0].args
    return loaded.module.to(device), rows.to(device)


def until_compiled(hot: HotPaths, step: Callable[[], object]) -> None:
    end = time.monotonic() + 200
    while not hot.is_settled:
        assert time.monotonic() < end, hot.report()
        step()
    assert [report.runs for report in hot.report()] == ["compiled"], hot.report()


@pytest.mark.parametrize("name", ["mixed_ops", "attention_block"])
def test_inference_on_a_stream_of_its_own(name: str, learned: Path) -> None:
    module, rows = placed(name)
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        expected = module(rows)
        with enable_hot_path_detection(module, cache=learned) as hot:
            until_compiled(hot, lambda: module(rows))
            torch.testing.assert_close(module(rows), expected, rtol=1e-4, atol=1e-5)
            # its work takes its turn on the current stream: what is queued before it is done before it
            doubled = torch.empty_like(rows)
            torch.cuda._sleep(100_000_000)
            doubled.copy_(rows)
            found = module(doubled)
            torch.cuda.current_stream().synchronize()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            # calls queue on the GPU: none waits for the one before
            slept = torch.cuda.Event()
            torch.cuda._sleep(1_000_000_000)
            slept.record()
            for _ in range(5):
                module(doubled)
            assert not slept.query()
            torch.cuda.current_stream().synchronize()


def test_training_forward_and_backward(learned: Path) -> None:
    module, rows = placed("mlp")

    def gradients() -> list[torch.Tensor]:
        module.zero_grad()
        module(rows).square().mean().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    expected = gradients()
    with enable_hot_path_detection(module, cache=learned) as hot:
        until_compiled(hot, gradients)
        for ours, theirs in zip(gradients(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_what_was_learned_is_taken_up_within_a_second(learned: Path) -> None:
    module, rows = placed("mixed_ops")
    with torch.inference_mode():
        with enable_hot_path_detection(module, cache=learned) as hot:
            until_compiled(hot, lambda: module(rows))
        begun = time.perf_counter()
        with enable_hot_path_detection(module, cache=learned) as hot:
            until_compiled(hot, lambda: module(rows))
    assert time.perf_counter() - begun < 1


def test_a_capture_gets_eager_and_the_graph_computes_the_same(learned: Path) -> None:
    module, rows = placed("mixed_ops")
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        expected = module(rows)
        with enable_hot_path_detection(module, cache=learned) as hot:
            until_compiled(hot, lambda: module(rows))
            torch.cuda.synchronize()
            graph, given = torch.cuda.CUDAGraph(), rows.clone()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                found = module(given)
            graph.replay()
            torch.cuda.synchronize()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(module(rows), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_on_another_gpu_than_the_current_one(learned: Path) -> None:
    module, rows = placed("mixed_ops", torch.device("cuda", 1))
    assert torch.cuda.current_device() == 0
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(1)):
        torch.cuda.set_device(0)
        expected = module(rows)
        with enable_hot_path_detection(module, cache=learned) as hot:
            until_compiled(hot, lambda: module(rows))
            doubled = torch.empty_like(rows)
            with torch.cuda.device(1):
                torch.cuda._sleep(100_000_000)
            doubled.copy_(rows)
            found = module(doubled)
            torch.cuda.synchronize(1)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.device == rows.device and torch.cuda.current_device() == 0
