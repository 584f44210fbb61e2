"""The error against the reference shows that a GPU computed in the precision asked for."""

from pathlib import Path

import pytest

from bakeoff.judging.judgement import contests_of
from bakeoff.records.schema import Record, Report, Status
from bakeoff.reports import headline, precisions
from tests.support.measuring import by_label, measure

pytestmark = pytest.mark.gpu

BACKENDS = ("eager", "torchscript", "inductor", "inductor/reduce-overhead", "aotinductor", "onnx")

SIZES = {
    "mlp": {"batch": ("512",), "features": ("512",), "hidden": ("1024",)},
    "conv": {"width": ("64",), "size": ("64",)},
}

EXPECTED = {"fp32": (1e-9, 2e-6), "tf32": (2e-5, 1e-2)}
"""Relative RMSE. Float32 has 24 bits of significand and TF32 has 11, which gives 1e-7 and 1e-4 in one product."""


@pytest.fixture(scope="module", params=SIZES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    model: str = request.param
    # AOTInductor takes a minute to build on a GPU machine: once per precision is enough
    names = [name for name in BACKENDS if name != "aotinductor" or model == "mlp"]
    report = measure(
        tmp_path_factory.mktemp("precision") / "run",
        *names,
        devices=["cuda"],
        models=[model],
        set=SIZES[model],
        precision=list(EXPECTED),
        separate=True,
    )
    assert report.complete, "interrupted: what is missing would read as skipped"
    return report


@pytest.mark.parametrize("precision", EXPECTED)
@pytest.mark.parametrize("label", BACKENDS)
def test_float32_and_tf32_differ_by_their_error(both: Report, label: str, precision: str) -> None:
    if label not in {record.cell.label for record in both.records}:
        pytest.skip("AOTInductor is measured on mlp: it takes a minute to build")
    record = one_of(both, label, precision)
    if record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED):
        assert label != "eager" and record.reason
        pytest.skip(f"{label}: {record.reason}")
    assert record.status is Status.OK, f"{record.reason}\n{record.log_tail}"
    assert record.accuracy is not None
    low, high = EXPECTED[precision]
    assert low < record.accuracy.relative_rmse < high
    assert record.precision_in_force["matmul_allow_tf32"] is (precision == "tf32")
    assert record.precision_in_force["cudnn_allow_tf32"] is (precision == "tf32")


@pytest.mark.parametrize(("precision", "low", "high"), [("bf16", 1e-3, 2e-2), ("fp16", 1e-4, 3e-3)])
def test_16_bits_show_in_the_error(precision: str, low: float, high: float, tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "inductor", devices=["cuda"], precision=[precision])
    for record in report.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}"
        assert record.accuracy is not None
        assert low < record.accuracy.relative_rmse < high


@pytest.mark.parametrize(
    ("model", "layers", "sizes"),
    [("mlp", 3, {"batch": ("64",)}), ("transformer", 8, {})],
)
@pytest.mark.parametrize(("precision", "low", "high"), [("int8", 1e-3, 4e-2), ("fp8", 5e-3, 1.5e-1)])
def test_every_linear_layer_is_quantised(
    model: str, layers: int, sizes: dict[str, tuple[str]], precision: str, low: float, high: float, tmp_path: Path
) -> None:
    """This includes a CUDA graph, which cannot capture a call that waits for the device."""
    pytest.importorskip("torchao")
    asked = {"devices": ["cuda"], "models": [model], "set": sizes, "precision": [precision]}
    records = by_label(measure(tmp_path / "run", "eager", "eager/cuda-graph", "inductor", **asked))
    for label, record in records.items():
        if precision == "fp8" and "compute capability" in record.reason:
            pytest.skip(record.reason)
        assert record.status is Status.OK, f"{label}: {record.reason}\n{record.log_tail}"
        assert record.precision_in_force[f"{precision} linear layers"] == layers
        assert record.accuracy is not None
        assert low < record.accuracy.relative_rmse < high, label


@pytest.mark.parametrize(
    ("model", "sizes", "reason"),
    [("conv", {}, "3 convolution would stay"), ("mlp", {"batch": ("4",)}, "cuBLAS needs 17 rows or more")],
)
def test_int8_that_would_be_float32_is_unsupported(
    model: str, sizes: dict[str, tuple[str]], reason: str, tmp_path: Path
) -> None:
    """torchao has no int8 convolution for CUDA, and silently multiplies few rows in float32."""
    pytest.importorskip("torchao")
    asked = {"devices": ["cuda"], "models": [model], "set": sizes, "precision": ["int8"]}
    (record,) = measure(tmp_path / "run", "eager", **asked).records
    assert record.status is Status.UNSUPPORTED
    assert reason in record.reason


def one_of(report: Report, label: str, precision: str) -> Record:
    (record,) = [one for one in report.records if (one.cell.label, one.cell.precision) == (label, precision)]
    return record


def test_resnet_50_in_all_precisions_is_one_contest(tmp_path: Path) -> None:
    """fp8 quantises linear layers alone, which hold a tenth of its weights, so that it is refused with that reason."""
    pytest.importorskip("timm")
    asked = ["fp32", "tf32", "bf16", "fp16", "fp8"]
    backends = ("eager", "inductor", "inductor/cuda-graph")
    more = {"devices": ["cuda"], "models": ["timm:resnet50"], "set": {"batch": ("8",)}, "precision": asked}
    report = measure(tmp_path / "run", *backends, **more)
    (contest,) = contests_of(report)
    assert contest.baseline == "eager fp32"
    for label, record in by_label(report).items():
        if label.endswith("fp8"):
            assert record.status is Status.UNSUPPORTED and record.reason
        else:
            assert record.status is Status.OK, f"{label}: {record.reason}\n{record.log_tail}"
    best = {str(each.precision): each for each in contest.of_precisions}
    errors = [best[name].relative_rmse for name in ("fp32", "tf32", "bf16")]
    assert errors == sorted(error for error in errors if error is not None)
    assert {str(row.cell.precision) for row in contest.ranked} == {"fp32"}
    assert {row.cell.precision for row in contest.cells if row.beyond} == {"tf32", "bf16", "fp16"}
    assert "within fp32's rounding" in headline.line(contest)
    sentences = precisions.sentences(contest)
    assert [line.partition(":")[0] for line in sentences[:5]] == asked and "3 unsupported" in sentences[4]
