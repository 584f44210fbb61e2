"""With --inputs-from host, each timed call copies inputs to the device and outputs back, for every build alike."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.backends.base import Compiled, FlatCalls
from bakeoff.backends.cuda_graph import Captured
from bakeoff.backends.eager import Callables
from bakeoff.backends.memory_format import ChannelsLast
from bakeoff.measuring.worker import sampling
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.host_memory import FromHost
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.device import CPU
from bakeoff.records.errors import Unsupported, UsageError
from bakeoff.truth.calls import copied


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
