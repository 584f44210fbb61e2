"""The built-in families, and models with float8 of their own or that are drawn on the cell's device."""

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from bakeoff import models
from bakeoff.backends.calling import flatten_outputs
from bakeoff.backends.surgical import find_targets
from bakeoff.measuring.controller.cell_record import products_of
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.models import fp8_layers, streams
from bakeoff.models.base import INPUT_SETS, Dimension, Inputs, LoadedModel
from bakeoff.models.fp8_layers import PlainLinear, Quantise, ScaledLinear
from bakeoff.models.template_layers import E4M3, LARGEST_E4M3, ScaledProduct
from bakeoff.models.transformer_lm import SIZES, VOCABULARY, lengths
from bakeoff.planning.plan import unsupported_precision
from bakeoff.records.device import CPU
from bakeoff.records.errors import Unavailable, UsageError
from bakeoff.records.precision import Precision
from bakeoff.truth.witnesses import layer_by_layer
from tests.support.cells import cell_of

FAMILIES: dict[str, tuple[dict[str, int | str], tuple[int, ...]]] = {
    "mlp": ({"batch": 2, "features": 6, "hidden": 10}, (2, 6)),
    "conv": ({"batch": 2, "channels": 2, "size": 9, "width": 4, "classes": 3}, (2, 3, 9, 9)),
    "transformer": ({"batch": 2, "seq": 5, "dim": 8, "layers": 2, "heads": 2, "ffn": 12}, (2, 5, 8)),
    "attention": ({"batch": 2, "seq": 5, "d_model": 4}, (2, 5, 4)),
    "transformer_lm": ({"batch": 2, "context": 6, "size": "tiny"}, (2, 6, 10_000)),
    "matmul_chain": ({"batch": 2, "size": 6, "length": 3}, (2, 6)),
    "attention_block": ({"batch": 2, "seq": 5, "dim": 8, "heads": 2}, (2, 5, 8)),
    "mixed_ops": ({"batch": 2, "features": 6, "rank": 3, "layers": 2}, (2, 6)),
    "rope": ({"batch": 2, "seq": 5, "heads": 3, "width": 4}, (2, 5, 3, 4)),
    "fp8_transformer": (
        {"batch": 2, "seq": 8, "dim": 32, "layers": 2, "heads": 2, "ffn": 48, "linears": "torch"},
        (2, 8, 32),
    ),
    "fused_add_relu_mul": ({"elements": 60}, (60,)),
    "tma_copy": ({"rows": 5, "columns": 16}, (5, 16)),
    "matmul_fp16": ({"m": 16, "n": 32, "k": 48}, (16, 32)),
    "matmul_fp8": ({"m": 16, "n": 32, "k": 48}, (16, 32)),
}
"""Small dimensions of each family, and the shape of its output with them."""


def load_family(name: str, seed: int = 0, **given: int | str) -> LoadedModel:
    family = models.find(name)
    return family.load(family.resolve({**FAMILIES[name][0], **given}), seed)


def bits(loaded: LoadedModel) -> list[torch.Tensor]:
    tensors = [*loaded.module.state_dict().values(), *(t for inputs in loaded.inputs for t in inputs.tensors())]
    return [comparable(tensor) for tensor in tensors]


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in a type that torch can compare, which float8 is not."""
    return tensor.float() if tensor.dtype == torch.float8_e4m3fn else tensor


def test_every_row_of_the_table_is_tested_here() -> None:
    assert set(FAMILIES) == set(models.TABLE) >= set(models.DEFAULT)


@pytest.mark.parametrize("name", models.TABLE)
class TestEveryFamily:
    def test_name_is_its_row_and_defaults_resolve(self, name: str) -> None:
        family = models.find(name)
        assert family.name == name and family.description
        assert family.resolve({}) == {key: dimension.default for key, dimension in family.dimensions.items()}

    def test_same_seed_gives_the_same_bits(self, name: str) -> None:
        torch.manual_seed(1)
        first = bits(load_family(name, seed=3))
        torch.manual_seed(2)
        second = bits(load_family(name, seed=3))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_another_seed_gives_others(self, name: str) -> None:
        first, second = load_family(name, seed=3), load_family(name, seed=4)
        assert not torch.equal(*(comparable(one.inputs[0].tensors()[0]) for one in (first, second)))
        weights = zip(first.module.parameters(), second.module.parameters(), strict=True)
        assert not any(torch.equal(a, b) for a, b in weights)

    def test_loading_leaves_the_global_generator_alone(self, name: str) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        load_family(name, seed=3)
        assert torch.equal(torch.rand(3), expected)

    def test_input_sets_differ_in_values_only(self, name: str) -> None:
        sets = [inputs.tensors() for inputs in load_family(name).inputs]
        assert len(sets) == INPUT_SETS
        for same_argument in zip(*sets, strict=True):
            assert len({tensor.data_ptr() for tensor in same_argument}) == INPUT_SETS
            assert len({(tensor.shape, tensor.dtype) for tensor in same_argument}) == 1
            for index, tensor in enumerate(map(comparable, same_argument)):
                assert tensor.double().std() > 0.5
                assert not any(torch.equal(tensor, comparable(other)) for other in same_argument[:index])

    def test_module_is_in_eval_mode_and_float32(self, name: str) -> None:
        module = load_family(name).module
        assert not any(part.training for part in module.modules())
        assert {t.dtype for t in module.state_dict().values() if t.is_floating_point()} <= {torch.float32}

    def test_output_shape_follows_the_dimensions(self, name: str) -> None:
        loaded = load_family(name)
        with torch.inference_mode():
            called = [loaded.module(*inputs.args, **inputs.kwargs) for inputs in loaded.inputs]
        outputs = [output for one in called for output in flatten_outputs(one)]
        assert {output.shape for output in outputs} == {torch.Size(FAMILIES[name][1])}
        assert not torch.allclose(outputs[0], outputs[1])

    def test_wrong_dimensions_are_named(self, name: str) -> None:
        family = models.find(name)
        first = next(iter(family.dimensions))
        with pytest.raises(UsageError, match=f"unknown dimension of {name} '{first}x': did you mean '{first}'"):
            family.resolve({f"{first}x": 1})
        with pytest.raises(UsageError, match=f"{name}: dimension '{first}' takes a whole number, not 'many'"):
            family.resolve({first: "many"})
        with pytest.raises(UsageError, match=f"{name}: dimension '{first}' must be at least 1, not 0"):
            family.resolve({first: 0})


def test_text_dimensions_keep_their_text() -> None:
    assert Dimension("gelu", "").parse("m", "activation", "relu") == "relu"
    assert Dimension("gelu", "", choices=("gelu", "relu")).parse("m", "activation", "relu") == "relu"
    with pytest.raises(UsageError, match="did you mean 'relu'"):
        Dimension("gelu", "", choices=("gelu", "relu")).parse("m", "activation", "rellu")


def test_transformer_computes_what_torchs_own_encoder_does() -> None:
    ours = load_family("transformer").module
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float32
    )
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False).eval()
    names = {
        "query_key_value.": "self_attn.in_proj_",
        "attention.output.": "self_attn.out_proj.",
        "attention_norm.": "norm1.",
        "feed_forward_norm.": "norm2.",
        "feed_forward.0.": "linear1.",
        "feed_forward.2.": "linear2.",
        "attention.self_attn": "self_attn",
    }
    state = {}
    for key, value in ours.state_dict().items():
        for old, new in names.items():
            key = key.replace(old, new)
        state[key] = value
    theirs.load_state_dict(state)
    (x,) = load_family("transformer").inputs[0].args
    torch.testing.assert_close(ours(x), theirs(x))


def test_no_normalisation_is_one_that_a_wrong_folding_leaves_right() -> None:
    parts = [*load_family("conv").module.modules(), *load_family("transformer").module.modules()]
    batch_norms = [part for part in parts if isinstance(part, nn.BatchNorm2d)]
    layer_norms = [part for part in parts if isinstance(part, nn.LayerNorm)]
    assert (len(batch_norms), len(layer_norms)) == (2, 5)
    tensors = [tensor for norm in (*batch_norms, *layer_norms) for tensor in norm.state_dict().values() if tensor.dim()]
    assert len(tensors) == 2 * 4 + 5 * 2
    assert all(tensor.std() > 0.01 for tensor in tensors)
    assert all(norm.get_buffer("running_var").min() > 0 for norm in batch_norms)


def tiny(**given: int | str) -> LoadedModel:
    family = models.find("transformer_lm")
    return family.load(family.resolve({"batch": 2, "context": 12, "size": "tiny", **given}), 0)


@pytest.mark.parametrize("variant", ["naive", "sdpa"])
def test_attention_is_softmax_of_scaled_products(variant: str) -> None:
    family = models.find("attention")
    loaded = family.load(family.resolve({"batch": 2, "seq": 7, "d_model": 4, "variant": variant}), 0)
    queries, keys, values = loaded.inputs[0].args
    weights = torch.softmax(torch.einsum("bqd,bkd->bqk", queries, keys) / 2.0, dim=-1)
    torch.testing.assert_close(loaded.module(queries, keys, values), torch.einsum("bqk,bkd->bqd", weights, values))
    assert loaded.input_gradients


def test_sizes_have_the_parameters_they_say() -> None:
    size = SIZES["tiny"]
    assert sum(weight.numel() for weight in tiny().module.parameters()) == size.parameters
    assert {name: round(one.parameters / 1e9, 2) for name, one in SIZES.items() if name.endswith("B")} == {
        "2.7B": 3.41,
        "1B": 1.07,
        "10B": 10.06,
        "40B": 39.83,
    }
    assert all(one.dim % one.heads == 0 and one.dim // one.heads % 2 == 0 for one in SIZES.values())


def test_both_kinds_of_attention_make_the_same_model() -> None:
    (tokens,) = tiny().inputs[0].args
    torch.testing.assert_close(tiny(attention="naive").module(tokens), tiny().module(tokens), rtol=1e-4, atol=1e-5)


def test_no_position_sees_a_later_one_so_padding_changes_nothing_before_it() -> None:
    loaded = tiny()
    (tokens,) = loaded.inputs[0].args
    padded = functional.pad(tokens[:, :9], (0, 3))
    torch.testing.assert_close(loaded.module(padded)[:, :9], loaded.module(tokens[:, :9]))
    assert not torch.allclose(loaded.module(tokens)[:, 9:], loaded.module(padded)[:, 9:])


def test_the_loss_is_the_cross_entropy_of_the_next_token() -> None:
    loaded = tiny()
    (tokens,) = loaded.inputs[0].args
    logits = loaded.module(tokens)
    expected = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loaded.loss(logits, tokens), expected)


def test_a_stream_has_lengths_of_its_own_up_to_the_context() -> None:
    sets = tiny(context=64, lengths="stream").inputs
    found = [one.args[0].shape[1] for one in sets]
    assert found == lengths(64, "stream") and len(set(found)) == streams.SIZES
    assert (min(found), max(found)) == (8, 64) and found != sorted(found)
    assert lengths(64, "fixed") == [64] * INPUT_SETS


def test_weights_are_drawn_in_the_type_asked_for() -> None:
    family = models.find("transformer_lm")
    dimensions = family.resolve({"batch": 1, "context": 4, "size": "tiny"})
    first, again = (family.load_on(dimensions, 3, CPU, torch.bfloat16) for _ in range(2))
    pairs = zip(first.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    assert all(one.dtype is torch.bfloat16 and torch.equal(one, other) for one, other in pairs)
    assert int(first.inputs[0].args[0].max()) < VOCABULARY


def test_layer_by_layer_is_the_whole_in_float64() -> None:
    loaded, exact = tiny(), tiny()
    tokens = loaded.inputs[0].args[0]
    before = [weight.clone() for weight in loaded.module.state_dict().values()]
    with torch.inference_mode():
        with layer_by_layer(loaded.module, torch.float64):
            found = loaded.module(tokens)
        expected = exact.module.double()(tokens)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert loaded.module(tokens).dtype is torch.float32
    assert all(torch.equal(one, other) for one, other in zip(before, loaded.module.state_dict().values(), strict=True))


def test_layer_by_layer_leaves_no_widened_weight_after_an_error() -> None:
    loaded = tiny()
    with pytest.raises(IndexError), torch.inference_mode(), layer_by_layer(loaded.module, torch.float64):
        loaded.module(Inputs((torch.full((1, 3), VOCABULARY + 5),)).args[0])
    assert loaded.module(loaded.inputs[0].args[0]).dtype is torch.float32
    assert not any(name in part.__dict__ for part in loaded.module.modules() for name in ("weight", "cosines"))


ON_CUDA_IN_16_BITS: Any = SimpleNamespace(is_cuda=True, element_size=lambda: 2)


@pytest.mark.parametrize("raised", ["ImportError('no module')", "OSError('libcudnn_graph.so.9: undefined symbol')"])
def test_an_engine_that_does_not_import_is_unavailable_and_says_what_to_do(
    raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    with pytest.raises(Unavailable, match=r"(no module|undefined symbol).*linears=torch.*LD_LIBRARY_PATH"):
        fp8_layers.transformer_engine_layer(ON_CUDA_IN_16_BITS)


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
    loaded: LoadedModel = load(cell_of("fp8_transformer", sizes=DECODER, precision="bf16"))
    found = find_targets(loaded.module, loaded.surgical_targets)
    kinds = {type(part).__name__ for part in found.values()}
    assert kinds == {"RMSNorm", "QkvSplit", "RotaryEmbedding", "SwiGLU"}
    assert not any(isinstance(part, ScaledLinear) for target in found.values() for part in target.modules())
