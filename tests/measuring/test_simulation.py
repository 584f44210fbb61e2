"""The simulated error of int8 and fp8: eager, with the operands of its layers rounded."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.measuring.worker import simulation
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from tests.support.cells import cell_of


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


class Hidden(nn.Module):
    """Layers that are no modules, a product of activations, and a weight that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 16))
        self.second = nn.Parameter(torch.randn(16, 16))
        self.bias = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "matmul": x @ self.first,
            "addmm": torch.addmm(self.bias, x, self.second),
            "activations": x @ x.T,
            "computed": functional.linear(x, self.first * 2),
        }


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_products_with_a_parameter_are_layers_and_others_are_not(precision: str) -> None:
    module, x = Hidden().eval(), torch.randn(8, 16)
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
