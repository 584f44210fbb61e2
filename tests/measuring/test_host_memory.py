"""With --inputs-from host, each timed call copies inputs to the device and outputs back, for every build alike."""

from collections.abc import Sequence

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.backends.base import Compiled, FlatCalls
from bakeoff.backends.eager import Callables
from bakeoff.backends.memory_format import ChannelsLast
from bakeoff.measuring.worker import sampling
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.host_memory import FromHost
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan, refusal
from bakeoff.planning.request import Request
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unsupported, UsageError
from bakeoff.truth.checking import WithFreshInputs
from tests.support.cells import cell_of


class Copies(TorchDispatchMode):
    """Notes the memory of each copy, and whether the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[int, int, bool]] = []  # to which address, from which one, queued

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.aten.copy_.default:
            self.made.append((args[0].data_ptr(), args[1].data_ptr(), len(args) > 2 and args[2]))
        return function(*args, **(kwargs or {}))


class Engine(FlatCalls):
    """Reads memory of its own, into which binding copies: as a captured graph does."""

    def __init__(self, like: torch.Tensor) -> None:
        self.memory = torch.zeros_like(like)
        super().__init__(lambda tensors: [self.memory * 2])

    def bind(self, inputs: Inputs) -> None:
        super().bind(inputs)
        self.memory.copy_(inputs.args[0])

    def own_inputs(self) -> Sequence[torch.Tensor]:
        return [self.memory]


class Converting(FlatCalls):
    """Reads a copy of what is bound, which only `refresh` makes again: as TensorRT does of types that it lacks."""

    def __init__(self) -> None:
        self.copy = torch.zeros(())
        super().__init__(lambda tensors: [self.copy * 2])

    def bind(self, inputs: Inputs) -> None:
        super().bind(inputs)
        self.refresh()

    def refresh(self) -> None:
        self.copy = self._tensors[0].clone()


def example() -> Inputs:
    return Inputs((torch.arange(6.0).reshape(2, 3),))


def test_a_call_copies_inputs_before_and_outputs_after_it_into_the_same_memory() -> None:
    given = example()
    called = FromHost(FlatCalls(lambda tensors: [tensors[0] + 1, tensors[0].sum()]), is_pinned=False)
    called.bind(given)
    given.args[0].zero_()  # what the next call reads comes from the host
    with Copies() as copies:
        called.run()
        called.run()
    assert called.outputs()[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    to_device, *from_device = copies.made[:3]
    assert to_device[0] == given.args[0].data_ptr() != to_device[1] and len(from_device) == 2
    assert [(to, queued) for to, _, queued in copies.made[3:]] == [(to, False) for to, *_ in copies.made[:3]]
    assert called.settings() == {"bytes copied to the device": 24, "bytes copied from the device": 28}


def test_copies_from_page_locked_memory_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        locked.append(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    called = FromHost(FlatCalls(lambda tensors: [tensors[0] + 1]), is_pinned=True)
    called.bind(example())
    with Copies() as copies:
        called.run()
    (_, source, is_queued), (target, _, is_queued_back) = copies.made
    assert [source, target] == locked and is_queued and is_queued_back


@pytest.mark.parametrize(
    "build",
    [
        Engine,
        lambda like: Converting(),
        lambda like: Callables(lambda x: {"twice": x * 2}),
        lambda like: ChannelsLast(Callables(lambda x: x * 2), torch.nn.Identity()),
        lambda like: WithFreshInputs(FromHost(Callables(lambda x: x.mul_(2)), False), [Inputs((like,))]),
    ],
    ids=["engine", "converting", "callable", "channels-last", "writes its inputs"],
)
def test_a_build_reads_what_came_from_the_host_wherever_it_reads_it(build: object) -> None:
    given = Inputs((torch.arange(24.0).reshape(1, 2, 3, 4),))
    expected = given.args[0] * 2
    inner: Compiled = build(given.args[0])  # type: ignore[operator]
    called = inner if isinstance(inner, WithFreshInputs) else FromHost(inner, is_pinned=False)
    called.bind(given)
    for tensor in (*inner.own_inputs(), *given.tensors()):
        tensor.zero_()
    for _ in range(2):
        called.run()
        assert torch.equal(called.outputs()[0], expected)


def test_strided_and_repeated_inputs_and_outputs_of_another_size() -> None:
    repeated, strided = torch.arange(3.0).reshape(1, 3).expand(4, 3), torch.arange(24.0).reshape(4, 6)[:, ::2]
    called = FromHost(FlatCalls(lambda tensors: [(tensors[0] + tensors[1])[: int(tensors[1][0, 0]) + 1]]), False)
    for rows in (1, 3):
        strided[0, 0] = rows - 1
        called.bind(Inputs((repeated, strided)))
        called.run()
        assert torch.equal(called.outputs()[0], (repeated + strided)[:rows])
        assert called.settings()["bytes copied to the device"] == 4 * (3 + 12)
        assert called.settings()["bytes copied from the device"] == 4 * 3 * rows


def test_sparse_inputs_are_refused_with_a_reason() -> None:
    with pytest.raises(Unsupported, match="dense"):
        FromHost(FlatCalls(list), False).bind(Inputs((torch.eye(3).to_sparse(),)))


def test_copies_are_timed_and_binding_is_not() -> None:
    now_ns = [0]

    class Slow(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            now_ns[0] += 1_000_000 if function is torch.ops.aten.copy_.default else 0
            return function(*args, **(kwargs or {}))

    called = FromHost(FlatCalls(lambda tensors: [tensors[0] + 1]), is_pinned=False)
    clock = Clock(CPU, lambda: now_ns[0])
    with Slow():
        samples_ns = sampling.burst(called, [example()], clock, 0.0, 4)
    assert samples_ns == [2_000_000] * 4


def request(**fields: object) -> Request:
    return Request(**{"models": ("mlp",), "backends": ("eager",), "inputs_from": "pinned", **fields})


def test_cells_on_a_gpu_say_where_inputs_come_from_and_those_on_a_cpu_are_as_ever() -> None:
    on_cpu, on_gpu = (contest.cells[0] for contest in plan(request(devices=("cpu", "cuda"))))
    assert (on_cpu.cell.inputs_from, on_gpu.cell.inputs_from) == ("device", "pinned")
    assert on_gpu.cell.id.replace("_pinned", "") == on_gpu.cell.model_copy(update={"inputs_from": "device"}).id
    assert on_gpu.cell.title.endswith("on cuda, fp32, inputs from page-locked host memory")
    assert "--inputs-from pinned" in on_gpu.options


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"devices": ("cpu",)}, "nothing to copy"),
        ({"task": "train_step"}, "for inference"),
        ({"task": "generate"}, "for inference"),
        ({"load": "server", "slo": "p99_ms<5"}, "--load"),
    ],
    ids=str,
)
def test_what_copies_nothing_is_refused_before_anything_starts(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=f"--inputs-from pinned.*{reason}"):
        plan(request(**{"devices": ("cuda",), **fields}))


def test_a_backend_that_copies_by_itself_is_refused() -> None:
    on_gpu = cell_of("mlp", "iree", device=Device("cuda"))
    assert not refusal(on_gpu)[1] and "host memory" in refusal(on_gpu.model_copy(update={"inputs_from": "host"}))[1]
