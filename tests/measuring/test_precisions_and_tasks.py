"""Precisions, training tasks, and models that hang, in whole runs; and the simulated error of int8 and fp8."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.judging.judgement import contests_of, judge, judged_anew
from bakeoff.measuring.worker import simulation
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Status
from bakeoff.records.store import Store
from bakeoff.reports import precisions
from bakeoff.shipping import export
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from tests.support.cells import cell_of
from tests.support.measuring import by_label, measure
from tests.support.modules import Calling


def simulated(precision: str, module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """The module's output for each of `inputs`, all of which the ranges are taken from."""
    sets = tuple(Inputs((one,)) for one in inputs)
    with torch.inference_mode(), simulation.emulate_quantisation(Precision(precision), module, sets):
        return [module(*one.args) for one in sets]


def test_int8_rounds_weights_per_channel_and_inputs_per_tensor() -> None:
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[127.0, 0.4], [0.5, 0.00196]]))
    # steps: 1 and 0.5/127 for the weight's rows, 1 for what it is fed
    rounded = torch.tensor([[127.0, 0.0], [0.5, 0.0]])
    (first, _) = simulated("int8", layer, torch.tensor([[0.6, 3.0]]), torch.tensor([[-127.0, 0.0]]))
    torch.testing.assert_close(first, torch.tensor([[1.0, 3.0]]) @ rounded.T)


def test_the_range_is_taken_from_all_sets() -> None:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    alone = simulated("int8", layer, torch.tensor([[0.4]]))
    beside = simulated("int8", layer, torch.tensor([[0.4]]), torch.tensor([[127.0]]))
    torch.testing.assert_close(alone[0], torch.tensor([[0.4]]))
    assert float(beside[0]) == 0.0


def test_fp8_rounds_to_e4m3_scaled_per_row() -> None:
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    # each row is scaled so that its largest value is 448; beside that, e4m3 has no 417 but 416
    (found,) = simulated("fp8", layer, torch.tensor([[448.0, 417.0, 0.0], [4.48, 4.17, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[864.0], [8.64]]))


def test_weights_alone_are_rounded_to_8_bits_per_channel_or_4_in_groups_of_32() -> None:
    layer = nn.Linear(33, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.4)
        layer.weight[0, 0], layer.weight[0, 32] = 7.0, 0.1
    row = torch.full((1, 33), 1.0)
    (eight,), (four,) = (simulated(name, layer, row) for name in ("w8a32", "w4a32"))
    # 8 bits have steps of 7/127; of 4 bits the first group has steps of 1, and the last weight is a group of its own
    torch.testing.assert_close(eight, torch.tensor([[7.0 + (31 * 7 + 2) * 7 / 127]]))
    torch.testing.assert_close(four, torch.tensor([[7.1]]))


def products(own: Calling, x: Tensor) -> dict[str, Tensor]:
    """Compute layers that are no modules, a product of activations, and a weight that is computed."""
    return {
        "matmul": x @ own.first,
        "addmm": torch.addmm(own.bias, x, own.second),
        "activations": x @ x.T,
        "computed": functional.linear(x, own.first * 2),
    }


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_products_with_a_parameter_are_layers_and_others_are_not(precision: str) -> None:
    weights = {name: nn.Parameter(torch.randn(16, 16)) for name in ("first", "second")}
    module, x = Calling(products, **weights, bias=nn.Parameter(torch.randn(16))).eval(), torch.randn(8, 16)
    expected = module(x)
    with torch.inference_mode(), simulation.emulate_quantisation(Precision(precision), module, (Inputs((x,)),)):
        found = module(x)
    changed = {name for name in expected if not torch.equal(found[name], expected[name])}
    assert changed == {"matmul", "addmm"}


def test_convolutions_are_rounded_for_int8_only() -> None:
    module, x = nn.Conv2d(3, 8, 3).eval(), torch.randn(2, 3, 16, 16)
    assert not torch.equal(simulated("int8", module, x)[0], module(x))
    assert torch.equal(simulated("fp8", module, x)[0], module(x))


def test_attention_of_torch_is_not_hidden_by_its_fused_kernel() -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.inference_mode():
        before = module(x)
    assert not torch.equal(simulated("int8", module, x)[0], before)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_floating_point_precisions_are_not_rounded(precision: str) -> None:
    module, x = nn.Linear(16, 16).eval(), torch.randn(4, 16)
    assert torch.equal(simulated(precision, module, x)[0], module(x))


def test_nothing_is_rounded_after_the_block() -> None:
    module, x = nn.Linear(16, 16).eval(), torch.randn(4, 16)
    expected, weight = module(x), module.weight.clone()
    simulated("int8", module, x)
    assert torch.equal(module(x), expected)
    assert torch.equal(module.weight, weight)


@pytest.mark.parametrize(
    ("model", "precision", "low", "high"),
    [
        ("mlp", "int8", 5e-3, 3e-2),
        ("conv", "int8", 5e-3, 3e-2),
        ("transformer", "int8", 2e-3, 2e-2),
        ("mlp", "fp8", 3e-2, 1e-1),
        ("transformer", "fp8", 5e-3, 5e-2),
    ],
)
def test_its_error_leaves_room_under_the_cap(model: str, precision: str, low: float, high: float) -> None:
    """What a rounding of 8 bits costs these models; three times that is still less than noise."""
    cell = cell_of(model, sizes={"size": 32} if model == "conv" else {}, precision=precision)
    with torch.inference_mode():
        exact = run_eager(*move_to_device(load(cell), cell, torch.float64))
        module, sets = move_to_device(load(cell), cell)
        with simulation.emulate_quantisation(Precision(precision), module, sets):
            (rmse,) = errors_of_eager(run_eager(module, sets), exact).rmse
    scale = float(torch.cat([one[0].reshape(-1) for one in exact]).square().mean().sqrt())
    assert low < rmse / scale < high
    assert high * cell.precision.max_times_eager_rmse <= cell.precision.max_relative_rmse


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


BAD_MODELS = """
import sys
import time
from pathlib import Path

import torch

SCORE = Path("/proc/self/oom_score_adj")


def hangs(batch=1):
    time.sleep(3600)


def hungry(batch=1):
    return torch.nn.Linear(4, 4), torch.ones(2**50)


class Hungry(torch.nn.Module):
    def forward(self, values):
        return values * torch.ones(2**50)


def hungry_when_called(batch=1):
    return Hungry(), torch.randn(batch, 4)


def asks(batch=1):
    return input("Trust this model's code? [y/N]"), torch.randn(batch, 4)


def writes_to_nobody(batch=1):
    raise BrokenPipeError("the loader is gone")


def good(batch=1):
    if sys.platform == "linux" and SCORE.read_text().strip() != "1000":
        raise RuntimeError("the kernel would end another process first")
    return torch.nn.Linear(4, 4), torch.randn(batch, 4)
"""

OUTCOMES = {
    "hangs": (Status.TIMEOUT, "your model did not load within 6 s: raise --time-limit ("),
    "hungry": (Status.OOM, "your model failed to load: RuntimeError: "),
    "hungry_when_called": (Status.OOM, "your model failed when it was called in fp32"),
    "asks": (Status.ERROR, "your model failed to load: EOFError: EOF when reading a line"),
    "writes_to_nobody": (Status.ERROR, "your model failed to load: BrokenPipeError: the loader is gone"),
    "good": (Status.OK, ""),
}


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        (("hungry", "hungry_when_called", "asks", "writes_to_nobody", "good"), {}),
        # a busy machine may not measure the good one in this time
        pytest.param(("hangs", "good"), {"time_limit_s": 6.0}, marks=pytest.mark.slow),
    ],
)
def test_each_model_costs_its_own_rows(names: tuple[str, ...], limits: dict[str, float], tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(BAD_MODELS)
    models = [f"{tmp_path}/models.py:{name}" for name in names]
    report = measure(tmp_path / "run", "null", "null/again", models=models, **limits)
    assert report.complete
    for name, model in zip(names, models, strict=True):
        records = [record for record in report.records if record.cell.model == model]
        status, said = OUTCOMES[name]
        assert [record.status for record in records] == [status] * 2, [record.reason for record in records]
        assert said in records[0].reason
