"""A run across precisions is one contest: the same rounds, a reference for each precision, and one answer."""

from pathlib import Path

import pytest

from bakeoff.judging.judgement import contests_of, judge, judged_anew
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Status
from bakeoff.records.store import Store
from bakeoff.reports import precisions
from tests.support.measuring import by_label, measure


def test_precisions_share_rounds_and_are_each_checked_by_their_own_rule(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "null", precision=["fp32", "bf16", "tf32"])
    records = by_label(report)
    assert list(records) == [f"{name} {each}" for each in ("fp32", "bf16", "tf32") for name in ("eager", "null")]
    assert {records[f"{name} tf32"].status for name in ("eager", "null")} == {Status.UNSUPPORTED}
    measured = [record for record in records.values() if record.latency]
    assert {record.cell.precision for record in measured} == {Precision.FP32, Precision.BF16}
    rounds = [{(burst.group, burst.round) for burst in record.bursts} for record in measured]
    assert len(set.intersection(*rounds)) >= 4  # one that is surely beaten leaves early
    eager = {each: records[f"eager {each}"] for each in ("fp32", "bf16")}
    for precision, record in eager.items():
        assert record.accuracy and record.accuracy.passed and record.roofline
        assert Store(tmp_path / "run").reference(record.cell.reference_id).exists(), precision
    [contest] = contests_of(report)
    assert contest.baseline == "eager fp32" and eager["bf16"].cell.label in {
        row.label for row in contest.cells if row.beyond
    }


@pytest.mark.slow
def test_int8_is_the_fastest_of_its_precision_and_wins_where_its_error_is_allowed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    asked = {"precision": ["fp32", "bf16", "int8"], "set": {"features": ("512",), "hidden": ("1024",)}}
    report = measure(tmp_path / "run", "eager", "onnx", **asked, require="relative_rmse<1e-1")
    [contest] = contests_of(report)
    assert {row.label for row in contest.ranked} == {"eager fp32", "onnx fp32", "eager bf16", "eager int8", "onnx int8"}
    best = {each.precision: each.best.record for each in contest.of_precisions}
    assert best[Precision.INT8].accuracy and 1e-3 < best[Precision.INT8].accuracy.relative_rmse < 1e-1


@pytest.mark.slow
def test_a_training_step_in_bfloat16_does_not_hold_what_float32_holds(tmp_path: Path) -> None:
    asked = {"precision": ["fp32", "bf16"], "task": "train_step", "set": {"features": ("16",), "hidden": ("16",)}}
    report = measure(tmp_path / "run", "eager", **asked)
    [contest] = contests_of(report)
    assert contest.fastest.winner == "eager fp32" and [row.label for row in contest.cells if row.beyond] == [
        "eager bf16"
    ]
    errors = {str(each.precision): each.relative_rmse for each in contest.of_precisions}
    assert errors["fp32"] and errors["bf16"] and errors["bf16"] > 100 * errors["fp32"]
    assert [(each.precision, each.may_win) for each in contest.of_precisions] == [("fp32", True), ("bf16", False)]
    reference = Store(tmp_path / "run").reference
    sizes = [reference(record.cell.reference_id).stat().st_size for record in report.records]
    assert sizes[1] < sizes[0]  # the outputs in float64 are there once


CONV = """
import torch
from torch import nn

def make():
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)), (torch.rand(2, 3, 16, 16),)
"""


@pytest.mark.slow
def test_a_convolution_on_a_cpu_is_one_contest(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "conv.py").write_text(CONV)
    asked = ["fp32", "bf16", "fp16", "int8", "tf32"]
    report = measure(tmp_path / "run", "eager", "onnx", models=[f"{tmp_path}/conv.py:make"], precision=asked)
    [contest] = contests_of(report)
    assert {str(row.cell.precision) for row in contest.ranked} == {"fp32"}
    best = {str(each.precision): each.relative_rmse or 0.0 for each in contest.of_precisions}
    assert best["fp32"] < 1e-5 < best["fp16"] < best["bf16"] < 5e-2 and 1e-4 < best["int8"] < 5e-2
    told = precisions.sentences(contest)
    assert told[-2] == "tf32: nothing that is right was measured (2 unsupported)" and "--require" in told[-1]
    allowed = judge(judged_anew(report, require="relative_rmse<1e-1")).contests[0]
    assert {str(row.cell.precision) for row in allowed.ranked} == set(best)
