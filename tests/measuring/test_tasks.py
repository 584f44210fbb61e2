"""Training tasks through the whole harness: planned, built, checked, measured and reported."""

from pathlib import Path

import pytest

from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Status
from bakeoff.shipping import export
from tests.support.measuring import by_label, measure

SMALL = {"batch": ("2",), "features": ("8",), "hidden": ("8",)}


def test_a_training_cell_ends_as_a_record_with_its_stages(tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "onnx", task="train_step", set=SMALL)
    records = by_label(report)
    eager = records["eager"]
    assert eager.status is Status.OK, eager.log_tail
    assert eager.latency is not None and eager.roofline is not None and eager.accuracy is not None
    assert [stage.name for stage in eager.stages] == ["forward", "backward", "optimizer"]
    assert all(stage.calls >= 20 and stage.median_ms > 0 for stage in eager.stages)
    assert eager.settings["optimizer"] == "AdamW"
    assert eager.command.endswith("--task train_step --min-time 0.05 --processes 1")
    assert records["onnx"].status is Status.UNSUPPORTED
    assert "has no backward" in records["onnx"].reason
    # three products forward; backward two of each but the first, whose input asks for no gradient
    assert eager.roofline.flops == 2 * 2 * 8 * 8 * (3 + 5)
    report_file.write_json(report, tmp_path / "run")
    with pytest.raises(UsageError, match="only inference is exported, and this is train_step"):
        export.export(tmp_path / "run", "eager", tmp_path / "export", with_models=True)


@pytest.mark.slow
def test_decode_steps_that_write_into_their_caches_are_right(tmp_path: Path) -> None:
    sizes = {"size": ("tiny",), "prompt": ("8",), "new_tokens": ("8",)}
    report = measure(tmp_path, "eager", "onnx", models=("transformer_lm",), task="generate", set=sizes)
    found = {(record.cell.task, record.cell.backend): record for record in report.records}
    assert {record.status for record in found.values()} == {Status.OK}, [record.reason for record in report.records]
    assert len(found) == 4 and found["decode", "eager"].settings["caches"] == "in place"


def test_tasks_are_contests_of_their_own() -> None:
    ids = {plan(Request(models=("mlp",), devices=("cpu",), task=task))[0].id for task in ("inference", "train_step")}
    assert len(ids) == 2
