"""Hot paths on a GPU: compiled in another process, taken up on the stream of this one, for inference and training."""

from pathlib import Path

import pytest
import torch

from bakeoff_hotpath import enable_hot_path_detection
from bakeoff_hotpath.compiling import Call, InductorBeside, Job
from bakeoff_hotpath.handover import CannotHandOver
from plugins.hotpath.tests.fakes import Pointwise, make_compiling_cheap, until_compiled

pytestmark = pytest.mark.gpu

CURRENT = torch.device("cuda")


class OnlyLoads(InductorBeside):
    """It loads what an earlier run compiled."""

    def start(self, call: Call, folder: Path) -> Job:
        raise CannotHandOver("it compiles nothing")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return make_compiling_cheap(tmp_path / "learned")


def placed(device: torch.device = CURRENT) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(256, 256), Pointwise())
    return module.to(device), torch.randn(64, 256).to(device)


def test_inference_queues_on_the_current_stream(cache: Path) -> None:
    module, rows = placed()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        expected = module(rows)
        with enable_hot_path_detection(module, cache=cache) as hot:
            until_compiled(hot, lambda: module(rows))
            torch.testing.assert_close(module(rows), expected, rtol=1e-4, atol=1e-5)
            # a call comes after what was queued on the stream before it
            copied = torch.empty_like(rows)
            torch.cuda._sleep(100_000_000)
            copied.copy_(rows)
            found = module(copied)
            torch.cuda.current_stream().synchronize()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            # no call waits for the one before
            slept = torch.cuda.Event()
            torch.cuda._sleep(1_000_000_000)
            slept.record()
            for _ in range(5):
                module(copied)
            assert not slept.query()
            torch.cuda.current_stream().synchronize()


def test_training_is_compiled_forward_and_backward(cache: Path) -> None:
    module, rows = placed()

    def gradients() -> list[torch.Tensor]:
        module.zero_grad()
        module(rows).square().mean().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    expected = gradients()
    with enable_hot_path_detection(module, cache=cache) as hot:
        until_compiled(hot, gradients)
        for ours, theirs in zip(gradients(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_the_next_run_takes_up_what_was_compiled(cache: Path) -> None:
    module, rows = placed()
    with torch.inference_mode():
        with enable_hot_path_detection(module, cache=cache) as hot:
            until_compiled(hot, lambda: module(rows))
        with enable_hot_path_detection(module, cache=cache, compiler=OnlyLoads()) as hot:
            until_compiled(hot, lambda: module(rows))


def test_a_captured_call_is_eagers_and_the_graph_computes_the_same(cache: Path) -> None:
    module, rows = placed()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        expected = module(rows)
        with enable_hot_path_detection(module, cache=cache) as hot:
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
def test_a_model_on_another_gpu_than_the_current_one_is_compiled(cache: Path) -> None:
    module, rows = placed(torch.device("cuda", 1))
    assert torch.cuda.current_device() == 0
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(1)):
        torch.cuda.set_device(0)
        expected = module(rows)
        with enable_hot_path_detection(module, cache=cache) as hot:
            until_compiled(hot, lambda: module(rows))
            copied = torch.empty_like(rows)
            with torch.cuda.device(1):
                torch.cuda._sleep(100_000_000)
            copied.copy_(rows)
            found = module(copied)
            torch.cuda.synchronize(1)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.device == rows.device and torch.cuda.current_device() == 0
