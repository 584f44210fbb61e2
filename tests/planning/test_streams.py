"""Inputs of several lengths in turn: one build for all of them, and one call that is all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff.backends.base import Compiled
from bakeoff.judging.dynamic import dynamic_ranges_of
from bakeoff.judging.judgement import judge
from bakeoff.judging.sweeps import sweeps_of
from bakeoff.measuring.worker import eager_answers
from bakeoff.measuring.worker.cell_model import load
from bakeoff.measuring.worker.serving import Stream
from bakeoff.models.base import Inputs, LoadedModel, of_each_shape
from bakeoff.models.streams import SIZES
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.doubts import Recompiled
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Record, Status, Work
from bakeoff.records.store import Store
from tests.support.cells import cell_of
from tests.support.measuring import by_label, measure

LM = {"size": ("tiny",), "batch": ("1",), "context": ("32",), "lengths": ("stream",)}


def graphs(record: Record) -> int:
    return record.placement.engines["inductor graphs"]


FACTORY = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(4, width)

    def forward(self, tokens):
        return self.linear(tokens)

def plain(batch: int = 2, seq: int = 8, unused: int = 3):
    return Net(4), (torch.randn(batch, seq, 4),)

def wide(batch: int = 2, width: int = 8):
    return Net(width), (torch.randn(batch, 4),)
"""


@pytest.fixture
def net(tmp_path: Path) -> Callable[..., Cell]:
    (tmp_path / "net.py").write_text(FACTORY)

    def of(factory: str, **dimensions: int | str) -> Cell:
        return cell_of(f"{tmp_path}/net.py:{factory}", sizes=dimensions)

    return of


def test_every_model_takes_a_stream_of_sizes(net: Callable[..., Cell]) -> None:
    cell = net("plain", seq="stream:3:40")
    assert cell.dimensions == {"batch": 2, "seq": "stream:3:40", "unused": 3}
    found = [one.args[0].shape[1] for one in load(cell).inputs]
    assert len(set(found)) == SIZES and (min(found), max(found)) == (3, 40) and found != sorted(found)
    both = load(net("plain", seq="stream:3:40", batch="stream:1:16"))
    assert {tuple(one.args[0].shape[:2]) for one in both.inputs} >= {(1, 3), (16, 40)}


@pytest.mark.parametrize(
    ("factory", "dimension", "value", "reason"),
    [
        ("wide", "width", "stream:2:8", "the weights of .* change with the size of a stream"),
        ("plain", "unused", "stream:2:8", "no input of .* changes its shape with the size of a stream"),
        ("plain", "seq", "stream:8:8", "the sizes of a stream rise"),
        ("plain", "seq", "stream:8", "'seq' takes a whole number, not 'stream:8'"),
    ],
)
def test_a_stream_that_no_model_can_have_is_refused(
    net: Callable[..., Cell], factory: str, dimension: str, value: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        load(net(factory, **{dimension: value}))


@pytest.mark.parametrize(
    ("request_fields", "reason"),
    [
        ({"models": ["mlp"], "set": {"batch": ["stream:1:8"]}, "load": "offline"}, "--load sends requests of one size"),
        ({"models": ["transformer_lm"], "set": {"prompt": ["stream:1:8"]}, "task": "generate"}, "one size for each"),
    ],
)
def test_what_takes_one_size_refuses_a_stream(request_fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        plan(Request(**{"devices": ["cpu"], "backends": ["eager"], **request_fields}))


def test_one_build_for_a_range_serves_sizes_and_a_stream(tmp_path: Path) -> None:
    sizes = {"batch": ("2", "stream:2:8"), "features": ("8",), "hidden": ("8",)}
    report = measure(tmp_path / "run", "null-packaged", set=sizes, dynamic=["batch=2:8"])
    found = {(one.cell.dimensions["batch"], bool(one.cell.dynamic)): one for one in report.records}
    dynamic, alone = ([record for (_, it_is), record in found.items() if it_is is kind] for kind in (True, False))
    assert [(record.status, record.open_axes) for record in dynamic] == [(Status.OK, {0: {0: (2, 8)}})] * 2
    assert len({(record.settings["built_by"], record.build_s) for record in dynamic}) == 1, "it is built once"
    assert len({record.settings["loaded_by"] for record in dynamic}) == 2
    assert found["stream:2:8", True].settings["inputs of one call"] == SIZES
    assert found["stream:2:8", False].reason == "null-packaged builds for one shape, and these inputs have several"
    assert [record.status for record in alone] == [Status.OK, Status.UNSUPPORTED]
    assert not Store.open(tmp_path / "run").builds(dynamic[0].cell.build_id).exists()
    judged = judge(report)
    (range_,) = dynamic_ranges_of(judged.contests)
    assert range_.names == ["batch 2", "batch stream:2:8"]
    assert sweeps_of(judged.contests) == []


@pytest.mark.slow
def test_a_stream_is_checked_input_by_input_and_timed_as_one_call(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "onnx", models=["transformer_lm"], set=LM)
    records = by_label(report)
    eager = records["eager"]
    assert eager.status is Status.OK, eager.log_tail
    assert eager.settings["inputs of one call"] == SIZES
    assert records["onnx"].status is Status.UNSUPPORTED
    assert records["onnx"].reason == "onnx builds for one shape, and these inputs have several"


@pytest.mark.slow
def test_recompilations_of_a_stream_are_counted(tmp_path: Path) -> None:
    modes = [f"inductor/{mode}" for mode in ("default", "static", "dynamic", "buckets")]
    records = by_label(measure(tmp_path / "run", "eager", *modes, models=["transformer_lm"], set=LM))
    assert {record.status for record in records.values()} == {Status.OK}
    assert graphs(records["inductor/static"]) == SIZES
    assert graphs(records["inductor/dynamic"]) == 1
    assert graphs(records["inductor"]) == 2  # one for the first length, one for all others
    assert graphs(records["inductor/buckets"]) < SIZES
    assert not any(isinstance(doubt, Recompiled) for record in records.values() for doubt in record.doubts)


def test_a_stream_runs_every_input_in_order() -> None:
    calls: list[int] = []

    class Remembering(Compiled):
        def bind(self, inputs: Inputs) -> None:
            calls.append(inputs.args[0].shape[0])

        def run(self) -> None:
            calls.append(0)

        def outputs(self) -> tuple[torch.Tensor, ...]:
            return ()

    sets = tuple(Inputs((torch.zeros(length),)) for length in (3, 1, 2))
    stream = Stream(Remembering(), sets)
    stream.bind(sets[2])
    stream.run()
    assert calls == [3, 0, 1, 0, 2, 0]


def test_the_work_of_a_stream_is_that_of_all_its_lengths() -> None:
    linear = torch.nn.Linear(16, 16, bias=False)
    sets = tuple(Inputs((torch.zeros(length, 16),)) for length in (3, 1))
    model = LoadedModel(linear, sets)
    work, _ = eager_answers.count_work(model, linear, sets, Precision.FP32, None)
    assert work == Work(flops=2 * 16 * 16 * 4, bytes_moved=4 * (2 * 16 * 16 + 2 * 16 * 4))  # weights twice, values once
    alike, _ = eager_answers.count_work(model, linear, (sets[0], sets[0]), Precision.FP32, None)
    assert alike is not None and alike.flops == 2 * 16 * 16 * 3  # a call has one of several inputs of one length


def test_shapes_are_found_once_each() -> None:
    sets = [Inputs((torch.zeros(length), torch.zeros(1))) for length in (3, 1, 3, 1)]
    assert of_each_shape(sets) == sets[:2]
