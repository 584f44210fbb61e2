"""A run across precisions is one contest: the same rounds, a reference for each precision, and one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from bakeoff.judging.judgement import contests_of
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Status
from bakeoff.records.store import Store
from bakeoff.reports import headline
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
    assert "within fp32's rounding" in headline.line(contest)


@pytest.mark.slow
def test_int8_is_the_fastest_of_its_precision_and_wins_where_its_error_is_allowed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    asked = {"precision": ["fp32", "bf16", "int8"], "set": {"features": ("512",), "hidden": ("1024",)}}
    report = measure(tmp_path / "run", "eager", "onnx", **asked, require="relative_rmse<1e-1")
    [contest] = contests_of(report)
    assert {row.label for row in contest.ranked} == {"eager fp32", "onnx fp32", "eager bf16", "eager int8", "onnx int8"}
    best = {each.precision: each.best.record for each in contest.of_precisions}
    assert best[Precision.INT8].accuracy and 1e-3 < best[Precision.INT8].accuracy.relative_rmse < 1e-1
