"""Inputs of several lengths in turn: one build for all of them, and one call that is all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backends.base import Compiled
from backends.inductor import padded_to_buckets
from harness.worker import reference
from harness.worker.serving import Stream
from models.base import Inputs, LoadedModel, of_each_shape
from models.transformer_lm import STREAM
from records.errors import Unsupported
from records.precision import Precision
from records.schema import DoubtKind, Record, Status, Work
from tests.harness.measuring import by_label, measure

LM = {"size": ("tiny",), "batch": ("1",), "context": ("32",), "lengths": ("stream",)}


def graphs(record: Record) -> int:
    assert record.placement is not None
    return record.placement.engines["inductor graphs"]


@pytest.mark.slow
def test_a_stream_is_checked_input_by_input_and_timed_as_one_call(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "onnx", models=["transformer_lm"], set=LM)
    records = by_label(report)
    eager = records["eager"]
    assert eager.status is Status.OK, eager.log_tail
    assert eager.settings["inputs of one call"] == STREAM
    assert records["onnx"].status is Status.UNSUPPORTED
    assert records["onnx"].reason == "onnx builds for one shape, and these inputs have several"


@pytest.mark.slow
def test_recompilations_of_a_stream_are_counted(tmp_path: Path) -> None:
    modes = [f"inductor/{mode}" for mode in ("default", "static", "dynamic", "buckets")]
    records = by_label(measure(tmp_path / "run", "eager", *modes, models=["transformer_lm"], set=LM))
    assert {record.status for record in records.values()} == {Status.OK}
    assert graphs(records["inductor/static"]) == STREAM
    assert graphs(records["inductor/dynamic"]) == 1
    assert graphs(records["inductor"]) == 2  # one for the first length, one for all others
    assert graphs(records["inductor/buckets"]) < STREAM
    assert all(DoubtKind.RECOMPILED not in [doubt.kind for doubt in record.doubts] for record in records.values())


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
    work, _ = reference.count_work(model, linear, sets, Precision.FP32, None)
    assert work == Work(flops=2 * 16 * 16 * 4, bytes_moved=4 * (2 * 16 * 16 + 2 * 16 * 4))  # weights twice, values once
    alike, _ = reference.count_work(model, linear, (sets[0], sets[0]), Precision.FP32, None)
    assert alike is not None and alike.flops == 2 * 16 * 16 * 3  # a call has one of several inputs of one length


def test_shapes_are_found_once_each() -> None:
    sets = [Inputs((torch.zeros(length), torch.zeros(1))) for length in (3, 1, 3, 1)]
    assert of_each_shape(sets) == sets[:2]


@pytest.mark.parametrize(("length", "bucket"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16)])
def test_padding_goes_to_the_next_power_of_two_and_is_taken_off_again(length: int, bucket: int) -> None:
    seen = []

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return 2 * tensor

    given = torch.ones(2, length, 3)
    torch.testing.assert_close(padded_to_buckets(doubled, 1)(given), 2 * given)
    assert seen[0].shape == (2, bucket, 3)
    assert seen[0].sum() == given.sum()


def test_a_model_that_may_not_be_padded_has_no_buckets() -> None:
    with pytest.raises(Unsupported, match="names no dimension that its inputs may be padded along"):
        padded_to_buckets(torch.relu, None)
