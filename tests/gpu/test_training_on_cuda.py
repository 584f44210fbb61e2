"""Training tasks, streams and large models on a GPU."""

import csv
from pathlib import Path

import pytest

from bakeoff.records.schema import Extent, Report, Status
from bakeoff.reports import writer
from tests.gpu.test_cuda import measure_on_cuda
from tests.support.measuring import by_label

pytestmark = pytest.mark.gpu

EVERY_WAY = (
    "eager",
    "eager/cuda-graph",
    "inductor",
    "inductor/reduce-overhead",
    "inductor/cuda-graph",
    "inductor/optimizer-inside",
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return measure_on_cuda(tmp_path_factory.mktemp("steps") / "run", *EVERY_WAY, task="train_step")


def test_every_way_of_a_step_is_right_before_and_after_measuring(steps: Report) -> None:
    for record in steps.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert record.placement is not None
        assert (record.placement.extent, record.placement.fallbacks) == (Extent.FULL, []), record.cell.label
        assert record.accuracy is not None and record.accuracy.rmse_after is not None


def test_a_captured_step_has_no_parts(steps: Report) -> None:
    for label, record in by_label(steps).items():
        names = [stage.name for stage in record.stages]
        assert names == ([] if label.endswith("cuda-graph") else ["forward", "backward", "optimizer"]), label


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_language_model_trains_in_16_bits(precision: str, tmp_path: Path) -> None:
    size = {"size": ("tiny",), "context": ("64",)}
    report = measure_on_cuda(
        tmp_path / "run",
        "eager",
        "eager/cuda-graph",
        models=["transformer_lm"],
        set=size,
        precision=[precision],
        task="train_step",
    )
    assert [record.status for record in report.records] == [Status.OK] * 2, [r.reason for r in report.records]


def test_a_model_drawn_on_the_device_is_the_same_in_every_process(tmp_path: Path) -> None:
    size = {"size": ("small",), "batch": ("1",), "context": ("32",)}
    report = measure_on_cuda(
        tmp_path / "run", "eager", "eager-again", models=["transformer_lm"], set=size, precision=["bf16"], processes=2
    )
    for record in report.records:
        assert record.status is Status.OK, record.reason
        assert record.settings["parameters"] == 128_625_408
        assert record.accuracy is not None
        assert record.accuracy.rmse == pytest.approx(record.accuracy.eager_rmse, rel=0.01)


def test_recompilations_of_a_stream_are_counted(tmp_path: Path) -> None:
    size = {"size": ("tiny",), "context": ("64",), "lengths": ("stream",)}
    modes = [f"inductor/{mode}" for mode in ("default", "static", "dynamic", "buckets")]
    report = measure_on_cuda(
        tmp_path / "run", "eager", "eager/cuda-graph", *modes, models=["transformer_lm"], set=size, precision=["bf16"]
    )
    records = by_label(report)
    assert records.pop("eager/cuda-graph").status is Status.UNSUPPORTED
    assert {record.status for record in records.values()} == {Status.OK}, [r.reason for r in report.records]
    graphs = {
        label: record.placement.engines.get("inductor graphs") for label, record in records.items() if record.placement
    }
    assert graphs["inductor/static"] == 8
    assert graphs["inductor/dynamic"] == 1


def test_attention_that_does_not_fit_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    sizes = {"seq": ("256", "400000"), "d_model": ("16",), "variant": ("naive",)}
    folder = tmp_path / "run"
    report = measure_on_cuda(folder, "eager", models=["attention"], set=sizes, task="forward_backward")
    writer.write(report, folder, figures=False)
    with open(folder / "attention_sweep-naive-cuda-fp32.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seq_len"], row["status"]) for row in rows] == [("256", "ok"), ("400000", "OOM")]
    assert float(rows[0]["forward_mean_ms"]) > 0 and float(rows[0]["peak_memory_mb"]) > 0
