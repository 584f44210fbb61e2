"""The built-in families: the promises of `bakeoff.models.base` for each of them, and what some add."""

import pytest
import torch
from torch import nn

from bakeoff import models
from bakeoff.backends.calling import flatten_outputs
from bakeoff.models.base import INPUT_SETS, Dimension, LoadedModel
from bakeoff.records.errors import UsageError

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


def load(name: str, seed: int = 0, **given: int | str) -> LoadedModel:
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
        first = bits(load(name, seed=3))
        torch.manual_seed(2)
        second = bits(load(name, seed=3))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    def test_another_seed_gives_others(self, name: str) -> None:
        first, second = load(name, seed=3), load(name, seed=4)
        assert not torch.equal(*(comparable(one.inputs[0].tensors()[0]) for one in (first, second)))
        weights = zip(first.module.parameters(), second.module.parameters(), strict=True)
        assert not any(torch.equal(a, b) for a, b in weights)

    def test_loading_leaves_the_global_generator_alone(self, name: str) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        load(name, seed=3)
        assert torch.equal(torch.rand(3), expected)

    def test_input_sets_differ_in_values_only(self, name: str) -> None:
        sets = [inputs.tensors() for inputs in load(name).inputs]
        assert len(sets) == INPUT_SETS
        for same_argument in zip(*sets, strict=True):
            assert len({tensor.data_ptr() for tensor in same_argument}) == INPUT_SETS
            assert len({(tensor.shape, tensor.dtype) for tensor in same_argument}) == 1
            for index, tensor in enumerate(map(comparable, same_argument)):
                assert tensor.double().std() > 0.5
                assert not any(torch.equal(tensor, comparable(other)) for other in same_argument[:index])

    def test_module_is_in_eval_mode_and_float32(self, name: str) -> None:
        module = load(name).module
        assert not any(part.training for part in module.modules())
        assert {t.dtype for t in module.state_dict().values() if t.is_floating_point()} <= {torch.float32}

    def test_output_shape_follows_the_dimensions(self, name: str) -> None:
        loaded = load(name)
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


def test_transformer_wants_heads_to_divide_dim() -> None:
    with pytest.raises(UsageError, match="heads=3 does not divide dim=256"):
        models.find("transformer").resolve({"heads": 3})


def test_transformer_computes_what_torchs_own_encoder_does() -> None:
    ours = load("transformer").module
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
    (x,) = load("transformer").inputs[0].args
    torch.testing.assert_close(ours(x), theirs(x))


def test_no_normalisation_is_one_that_a_wrong_folding_leaves_right() -> None:
    parts = [*load("conv").module.modules(), *load("transformer").module.modules()]
    batch_norms = [part for part in parts if isinstance(part, nn.BatchNorm2d)]
    layer_norms = [part for part in parts if isinstance(part, nn.LayerNorm)]
    assert (len(batch_norms), len(layer_norms)) == (2, 5)
    tensors = [tensor for norm in (*batch_norms, *layer_norms) for tensor in norm.state_dict().values() if tensor.dim()]
    assert len(tensors) == 2 * 4 + 5 * 2
    assert all(tensor.std() > 0.01 for tensor in tensors)
    assert all(norm.get_buffer("running_var").min() > 0 for norm in batch_norms)


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="did you mean 'conv'"):
        models.find("convv")
    with pytest.raises(UsageError, match=r"names a file but no factory: write --model .*test_families\.py:test_"):
        models.find(__file__)
    with pytest.raises(UsageError, match=r"no file net\.py"):
        models.find("net.py")
