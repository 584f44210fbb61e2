"""The attention family, and the decoder language model with its sizes, lengths and loss."""

import pytest
import torch
from torch.nn import functional

from bakeoff import models
from bakeoff.models import streams
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.models.transformer_lm import SIZES, VOCABULARY, lengths
from bakeoff.records.device import CPU
from bakeoff.truth.witnesses import layer_by_layer


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
    assert loaded.loss is not None
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
    assert first is not None and again is not None
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
