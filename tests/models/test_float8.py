"""Models with float8 of their own, and models that are drawn on the cell's device."""

import copy

import pytest
import torch

from bakeoff import models
from bakeoff.measuring.controller.cell_record import products_of
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.models.base import LoadedModel
from bakeoff.models.fp8_layers import PlainLinear, Quantise, ScaledLinear
from bakeoff.models.template_layers import E4M3, LARGEST_E4M3, ScaledProduct
from bakeoff.planning.plan import unsupported_precision
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from tests.support.cells import cell_of

PRODUCT: dict[str, int | str] = {"m": 32, "n": 48, "k": 64}
DECODER: dict[str, int | str] = {
    "batch": 2,
    "seq": 16,
    "dim": 64,
    "heads": 2,
    "layers": 1,
    "ffn": 96,
    "linears": "torch",
}


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("asked", ["bf16", "fp32"])
def test_placing_leaves_float8_inputs_and_their_scales_as_they_are(asked: str) -> None:
    cell = cell_of("matmul_fp8", sizes=PRODUCT, precision=asked)
    loaded = load(cell)
    expected = [tensor.float() for tensor in loaded.inputs[0].tensors()]
    module, sets = move_to_device(loaded, cell)
    assert [tensor.dtype for one in sets for tensor in one.tensors()] == [E4M3] * 2 * len(sets)
    assert all(torch.equal(one.float(), other) for one, other in zip(sets[0].tensors(), expected, strict=True))
    assert module.scale_left.dtype == module.scale_right.dtype == torch.float32
    assert module(*sets[0].args).dtype == precision.dtype_of(Precision(asked))


def test_a_float8_product_in_float64_is_exact() -> None:
    cell = cell_of("matmul_fp8", sizes=PRODUCT, precision="bf16")
    module, sets = move_to_device(load(cell), cell, torch.float64)
    assert isinstance(module, ScaledProduct)
    left, right = (tensor.double() for tensor in sets[0].tensors())
    exact = (left @ right.t()) * float(module.scale_left) * float(module.scale_right)
    torch.testing.assert_close(module(*sets[0].args), exact, rtol=1e-12, atol=0)
    in_bf16 = move_to_device(load(cell), cell)[0](*sets[0].args)
    assert 1e-4 < relative_error(in_bf16, exact) < 5e-3  # the rounding of the result, and no more


@pytest.mark.parametrize("name", ["rope", "fused_add_relu_mul", "tma_copy", "matmul_fp16"])
def test_inputs_are_drawn_in_the_cells_type_and_the_reference_is_of_them(name: str) -> None:
    small: dict[str, int | str] = {
        "rope": {"batch": 1, "seq": 4, "heads": 2, "width": 8},
        "fused_add_relu_mul": {"elements": 64},
        "tma_copy": {"rows": 4, "columns": 16},
        "matmul_fp16": {"m": 16, "n": 16, "k": 16},
    }[name]
    cell = cell_of(name, sizes=small, precision="fp16")
    first, second = load(cell), load(cell)
    assert {tensor.dtype for one in first.inputs for tensor in one.tensors()} == {torch.float16}
    for one, other in zip(first.inputs, move_to_device(second, cell, torch.float64)[1], strict=True):
        assert all(torch.equal(a.double(), b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


@pytest.mark.parametrize(
    ("model", "asked", "reason"),
    [
        ("matmul_fp8", "fp8", "its precision is the result's, use --precision bf16"),
        ("matmul_fp8", "tf32", "its precision is the result's, use --precision bf16"),
        ("matmul_fp8", "bf16", ""),
        ("matmul_fp16", "bf16", "use --precision fp16"),
        ("matmul_fp16", "fp16", ""),
    ],
)
def test_a_product_says_in_which_precision_it_makes_sense(model: str, asked: str, reason: str) -> None:
    found = unsupported_precision(cell_of(model, sizes=PRODUCT, precision=asked))
    assert reason in found and bool(found) == bool(reason)


def test_the_ceiling_of_a_float8_model_is_that_of_its_products() -> None:
    assert (
        products_of(cell_of("matmul_fp8", sizes=PRODUCT, precision="bf16"))
        == products_of(cell_of("fp8_transformer", sizes=DECODER, precision="bf16"))
        == "fp8"
    )
    assert products_of(cell_of("matmul_fp16", sizes=PRODUCT, precision="fp16")) == "fp16"


@pytest.mark.parametrize("model", ["matmul_fp8", "fp8_transformer", "tma_copy"])
def test_sizes_that_the_hardware_cannot_take_are_named(model: str) -> None:
    name = {"matmul_fp8": "k", "fp8_transformer": "ffn", "tma_copy": "columns"}[model]
    with pytest.raises(UsageError, match=f"{model}: {name} must be a multiple of 16.*, not 40"):
        models.find(model).resolve({name: 40, **({"linears": "torch"} if model == "fp8_transformer" else {})})


def test_a_float8_layer_rounds_the_weight_that_it_was_given_last_and_keeps_a_float32_scale() -> None:
    layer = ScaledLinear(64, 32)
    before = layer.scale.clone()
    layer.weight.data *= 2
    layer = layer.to(torch.bfloat16)
    assert layer.rounded.dtype == E4M3 and layer.scale.dtype == torch.float32
    torch.testing.assert_close(layer.scale, 2 * before, rtol=1e-2, atol=0)
    assert "rounded" not in layer.state_dict() and "scale" not in layer.state_dict()


def test_a_float8_layer_is_off_by_what_e4m3_rounds_and_in_float64_not_at_all() -> None:
    torch.manual_seed(0)
    layer = ScaledLinear(256, 128)
    plain = PlainLinear(256, 128)
    plain.weight.data = layer.weight.data.clone()
    x = torch.randn(64, 256)
    exact = plain.double()(x.double())
    assert torch.equal(copy.deepcopy(layer).double()(x.double()), exact)
    with torch.inference_mode():
        error = relative_error(layer.to(torch.bfloat16)(x.bfloat16()), exact)
    assert 0.01 < error < 0.06  # two factors with 3 bits of mantissa each; bf16 alone would be at 0.003


@pytest.mark.parametrize("largest", [1e-3, 1.0, 3e4])
def test_quantising_uses_all_of_the_range_and_no_more(largest: float) -> None:
    x = torch.linspace(-largest, largest, 100).reshape(10, 10)
    rounded, scale = Quantise()(x)
    assert float(rounded.float().abs().max()) == LARGEST_E4M3 and scale.dtype == torch.float32
    torch.testing.assert_close(rounded.float() * scale, x, rtol=2**-3, atol=largest / 448)


def test_zeros_stay_zeros() -> None:
    rounded, scale = Quantise()(torch.zeros(4, 4))
    assert not rounded.float().any() and torch.isfinite(scale)


def test_a_decoder_names_everything_between_its_products_as_a_target() -> None:
    from bakeoff.backends.surgical import find_targets

    loaded: LoadedModel = load(cell_of("fp8_transformer", sizes=DECODER, precision="bf16"))
    found = find_targets(loaded.module, loaded.surgical_targets)
    kinds = {type(part).__name__ for part in found.values()}
    assert kinds == {"RMSNorm", "QkvSplit", "RotaryEmbedding", "SwiGLU"}
    assert not any(isinstance(part, ScaledLinear) for target in found.values() for part in target.modules())
