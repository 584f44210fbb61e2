"""The built-in families: what every one of them promises (`models.base`), and what each adds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import models
from models.base import INPUT_SETS, Dimension, LoadedModel
from reports.errors import UsageError

ROOT = Path(__file__).parents[2]
SMALL: dict[str, dict[str, int]] = {
    "mlp": {"batch": 2, "features": 6, "hidden": 10},
    "conv": {"batch": 2, "channels": 2, "size": 9, "width": 4, "classes": 3},
    "transformer": {"batch": 2, "seq": 5, "dim": 8, "layers": 2, "heads": 2, "ffn": 12},
}
OUTPUT_SHAPES = {"mlp": (2, 6), "conv": (2, 3, 9, 9), "transformer": (2, 5, 8)}


def load(name: str, seed: int = 0, **given: int) -> LoadedModel:
    family = models.find(name)
    return family.load(family.resolve({**SMALL[name], **given}), seed)


def bits(loaded: LoadedModel) -> list[torch.Tensor]:
    return [*loaded.module.state_dict().values(), *(t for inputs in loaded.inputs for t in inputs.tensors())]


def test_every_row_of_the_table_is_tested_here() -> None:
    assert set(SMALL) == set(models.TABLE) >= set(models.DEFAULT)


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, models\n"
        "for name in models.TABLE: models.find(name).resolve({'batch': '3'})\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


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
        assert not torch.equal(first.inputs[0].tensors()[0], second.inputs[0].tensors()[0])
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
        assert len({tensor.data_ptr() for (tensor,) in sets}) == INPUT_SETS
        assert len({(tensor.shape, tensor.dtype) for (tensor,) in sets}) == 1
        for index, (tensor,) in enumerate(sets):
            assert tensor.std() > 0.5
            assert not any(torch.equal(tensor, other) for (other,) in sets[:index])

    def test_module_is_in_eval_mode_and_float32(self, name: str) -> None:
        module = load(name).module
        assert not any(part.training for part in module.modules())
        assert {t.dtype for t in module.state_dict().values() if t.is_floating_point()} == {torch.float32}

    def test_output_shape_follows_the_dimensions(self, name: str) -> None:
        loaded = load(name)
        with torch.inference_mode():
            outputs = [loaded.module(*inputs.args, **inputs.kwargs) for inputs in loaded.inputs]
        assert {output.shape for output in outputs} == {torch.Size(OUTPUT_SHAPES[name])}
        assert not torch.allclose(outputs[0], outputs[1])

    def test_wrong_dimensions_are_named(self, name: str) -> None:
        family = models.find(name)
        with pytest.raises(UsageError, match=f"unknown dimension of {name} 'bacth': did you mean 'batch'"):
            family.resolve({"bacth": 1})
        with pytest.raises(UsageError, match=f"{name}: dimension 'batch' takes a whole number, not 'many'"):
            family.resolve({"batch": "many"})
        with pytest.raises(UsageError, match=f"{name}: dimension 'batch' must be at least 1, not 0"):
            family.resolve({"batch": 0})


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
    with pytest.raises(UsageError, match="names a file but no factory"):
        models.find("net.py")
