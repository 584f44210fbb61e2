"""`bakeoff blame --keep-fp32` names the modules that must stay in float32, and measures the model with them."""

import copy
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.reports import markdown
from bakeoff.why import worker_keep as keeping
from bakeoff.why.blame_text import blocks_of_kept, kept_conclusion
from bakeoff.why.records import KeptSet
from bakeoff.why.worker_keep import Keeping, in_float32
from tests.conftest import CommandLine
from tests.why.test_blame import surroundings
from tests.why.test_explanation import stored_run


class Residual(nn.Module):
    """Leaves the range of float16 inside, if it is steep."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(32, 64), nn.Linear(64, 32), scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)) * self.scale)
        return x + y / self.scale


def stack(steep: int = -1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Residual(1e6 if place == steep else 1.0) for place in range(4)), nn.Linear(32, 8))


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_ROUNDS", 2), ("WARM_UP_S", 0.0), ("BURST_S", 0.0)):
        monkeypatch.setattr(keeping, name, value)


def kept_of(model: nn.Module, backend: str, precision: Precision, tolerance: float, folder: Path) -> KeptSet:
    inputs = [Inputs((torch.randn(8, 32),)) for _ in range(2)]
    record: Any = None  # nothing is evaluated
    with torch.no_grad():
        builder, whole, exact_sets = surroundings(model, backend, folder, precision, *inputs)
        return Keeping(builder, whole, exact_sets, "a tolerance", tolerance, record).result()


def test_the_module_that_overflows_stays_in_float32(tmp_path: Path) -> None:
    kept = kept_of(stack(steep=2), "eager", Precision.FP16, 2e-3, tmp_path)
    assert kept.holds and kept.kept == ["2"]
    plain, chosen, everything = kept.variants
    assert plain.error != plain.error and not plain.holds
    assert (chosen.error or 1) < 2e-3 and (everything.error or 1) < 1e-6
    assert all(variant.latency_ms and variant.rounds == 2 for variant in kept.variants)
    assert chosen.ratio is not None
    assert kept_conclusion(kept) == (
        "eager in fp16 holds a tolerance with 1 module in fp32: 2. They have 25 % of the weights."
    )
    assert "| with the set in fp32 |" in markdown.render(blocks_of_kept(kept))


def test_smaller_modules_take_the_place_of_a_larger_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 32), Residual(1e6), nn.Linear(32, 32)))
    kept = kept_of(model, "torchscript", Precision.FP16, 5e-3, tmp_path)
    assert kept.kept == ["1.1"] and kept.holds


def test_a_module_is_added_where_the_build_does_not_hold_what_eager_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Keeping._variant

    def refused(self: Keeping, alive: ExitStack, name: str, kept: Sequence[str]) -> Any:
        compiled, variant = built(self, alive, name, kept)
        return compiled, variant.but(holds=variant.holds and kept != ["1.1"])

    monkeypatch.setattr(Keeping, "_variant", refused)
    model = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 32), Residual(1e6), nn.Linear(32, 32)))
    kept = kept_of(model, "torchscript", Precision.FP16, 5e-3, tmp_path)
    added = next(each for each in kept.tried if each.is_kept)
    assert kept.holds and kept.kept == [added.name] == ["1"]
    assert added.note == "added: the build does not hold without" and added.alone is not None


def test_variants_are_measured_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls the model that it is given: what stays in float32 in one variant does not in the other."""
    are_finite = {}

    def called(self: Keeping, built: dict[str, Any]) -> dict[str, list[float]]:
        for name, (compiled, sets) in built.items():
            compiled.bind(sets[0])
            compiled.run()
            are_finite[name] = all(bool(output.isfinite().all()) for output in compiled.outputs())
        return {}

    monkeypatch.setattr(Keeping, "_contest", called)
    kept_of(stack(steep=2), "eager", Precision.FP16, 2e-3, tmp_path)
    assert are_finite == {keeping.AS_IT_IS: False, keeping.WITH_SET: True, keeping.ALL: True}


class Offset(nn.Module):
    """Rounds to steps of 4 in bfloat16 between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x) + 1000.0))
        return y - 1000.0 * self.down.weight.sum(1)


@pytest.mark.slow
def test_openvino_computes_what_is_kept_in_float32_beside_16_bits(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("OpenVINO does not compute in bf16 on this CPU")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), Offset(), nn.Linear(32, 8))
    kept = kept_of(model, "openvino", Precision.BF16, 5e-2, tmp_path)
    plain, chosen, everything = (variant.error for variant in kept.variants)
    assert kept.holds and kept.kept == ["2"]
    assert (plain or 0) > 0.5 > 5e-2 > (chosen or 1) > (everything or 1)


@pytest.mark.parametrize(
    ("tolerance", "conclusion"),
    [(0.1, "as it is: no module need stay in fp32."), (1e-12, "not with all of it in fp32 either")],
)
def test_a_tolerance_for_which_there_is_no_set_keeps_nothing(tolerance: float, conclusion: str, tmp_path: Path) -> None:
    kept = kept_of(stack(), "eager", Precision.BF16, tolerance, tmp_path)
    assert kept.holds == (tolerance == 0.1) and not kept.kept and not kept.tried
    assert conclusion in kept_conclusion(kept)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "needed"), [("eager", "2.down"), ("onnx", "2")])
def test_a_layer_is_left_out_of_quantising(backend: str, needed: str, tmp_path: Path) -> None:
    """ONNX Runtime also rounds what layers return, so that it needs the layer before, too."""
    model = stack()
    with torch.no_grad():  # one value of the middle layer sets the range of all others
        middle: Any = model[2]
        middle.up.bias[0], middle.down.weight[:, 0] = 300.0, middle.down.weight[:, 0] * 0.01
    kept = kept_of(model, backend, Precision.INT8, 4e-2, tmp_path)
    assert kept.holds and kept.kept == [needed]
    assert (kept.variants[0].error or 0) > 0.08 > 0.04 > (kept.variants[1].error or 1)


def test_a_model_is_as_before_once_nothing_is_kept() -> None:
    """Weights in the block are no inference tensors, which torch.export refuses, though another build is alive."""
    model = stack()
    exact, half = copy.deepcopy(model).double(), model.half()
    before, x = dict(half.state_dict()), torch.randn(8, 32).half()
    with torch.inference_mode():
        plain = half(x)
        with in_float32(half, exact, ["2"], torch.float16):
            assert half.get_submodule("2.up").weight.dtype is torch.float32 and half(x).dtype is torch.float16
            assert not any(weight.is_inference() for weight in half.parameters())
        assert torch.equal(half(x), plain)
    assert all(torch.equal(tensor, before[name]) for name, tensor in half.state_dict().items())


@pytest.mark.slow
def test_a_set_is_found_by_the_command(command_line: CommandLine, tmp_path: Path) -> None:
    run = stored_run(tmp_path, "eager", precision=Precision.BF16)
    status, out, _ = command_line("blame", run, "eager", "--keep-fp32", "--tolerance", "1e-4", "--json")
    kept = KeptSet.model_validate({key: value for key, value in json.loads(out).items() if key != "exit_status"})
    assert status == 0 and kept.holds and kept.kept
    assert kept.requirement == "a relative error of at most 0.0001"
