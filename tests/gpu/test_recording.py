"""Calls of a module on a GPU are copied to host memory, at the time of the call."""

import pytest
import torch

import bakeoff

pytestmark = pytest.mark.gpu


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
