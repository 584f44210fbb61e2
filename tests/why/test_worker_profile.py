"""What the profile of a cell is made of, beside the library's profiler."""

import torch
from torch import Tensor, nn

from bakeoff.backends.profiling import TracedSpan
from bakeoff.measuring.worker.counting import count, count_modules
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.why.worker_profile import cpu_seconds_of_threads, first_paths_of, under_first_paths


def test_a_shared_module_has_one_name() -> None:
    layer = nn.Linear(4, 4)
    first_paths = first_paths_of(nn.ModuleDict({"a": layer, "b": nn.Sequential(layer, nn.ReLU(), layer)}))
    assert first_paths == {"": "", "a": "a", "b": "b", "b.0": "a", "b.1": "b.1", "b.2": "a"}
    span = TracedSpan(name="gemm", modules=("b.0", "b.1", "b.2", "gone"), begun_us=0, lasted_us=1)
    assert [each.modules for each in under_first_paths([span], first_paths)] == [("a", "b.1", "gone")]


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, x: Tensor, *, depth: int = 2) -> Tensor:
        x = torch.tanh(self.step(x))
        return x if depth == 0 else self(x, depth=depth - 1)


def test_the_work_of_a_call_is_divided_among_its_modules() -> None:
    layers, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2))), torch.randn(3, 8)
    work = count_modules(layers, Inputs((x,)), Precision.FP32)
    whole = count(layers, Inputs((x,)), Precision.FP32)
    assert work[""] == whole
    assert {path: each.flops for path, each in work.items()} == {"0": 192, "1": 0, "2.0": 48, "2": 48, "": 240}
    assert work["1"].bytes_moved == 2 * 3 * 4 * 4  # reads and writes three rows of four numbers
    assert work["2"].bytes_moved == 4 * (8 + 2 + 12 + 6)  # its weights, what it is given, what it returns


def test_a_module_that_calls_itself_is_counted_once() -> None:
    work = count_modules(Recursive(), Inputs((torch.randn(2, 8),)), Precision.FP32)
    assert work[""].flops == work["step"].flops == 3 * 2 * 2 * 8 * 8


def test_seconds_of_threads_grow_with_work() -> None:
    before = sum(cpu_seconds_of_threads().values())
    while sum(cpu_seconds_of_threads().values()) < before + 0.05:
        torch.randn(200, 200) @ torch.randn(200, 200)
