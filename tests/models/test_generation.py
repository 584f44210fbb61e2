"""A language model's two graphs compute what the model computes, and their inputs show what a step leaves out."""

import json
from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.measuring.worker import reference
from bakeoff.models.base import Inputs
from bakeoff.models.generation import Generating, positions_of, writes_in_place
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import DECODE, PREFILL, Cell

CPU = Device("cpu")
SMALL = {"prompt": "6", "new_tokens": "5", "batch": "2"}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32}
SHAPES = {
    "llama": {"architectures": ["LlamaForCausalLM"], **SIZES, **HEADS},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], **SIZES, **HEADS, "sliding_window": 4},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100},
    "mixtral": {"architectures": ["MixtralForCausalLM"], **SIZES, **HEADS, "num_local_experts": 4},
    "mamba": {"architectures": ["MambaForCausalLM"], **SIZES, "state_size": 4},
}


def template() -> tuple[Generating, dict[str, int | str]]:
    family = Generating(models.find("transformer_lm"))
    return family, family.resolve({**SMALL, "size": "tiny"})


def written(kind: str, folder: Path) -> str:
    """Return the name of a model of this shape, whose configuration is written into `folder`."""
    pytest.importorskip("transformers")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SHAPES[kind], **ids}))
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", SHAPES)
def test_the_two_graphs_of_a_decoder_of_transformers_give_the_logits_of_its_own_pass(kind: str, tmp_path: Path) -> None:
    family = models.find(written(kind, tmp_path))
    decoder = family.load_decoder(Generating(family).resolve(SMALL), 0, CPU, torch.float32)
    model = decoder.prefill.language_model
    tokens = decoder.tokens[torch.randint(len(decoder.tokens), (2, 11))]
    with torch.inference_mode():
        wanted = model(input_ids=tokens, use_cache=False).logits[:, 5:]
        logits, *caches = decoder.prefill(tokens[:, :6])
        found = [logits]
        for position in range(6, 11):
            logits, *caches = decoder.step(tokens[:, position : position + 1], torch.tensor([position]), *caches)
            found.append(logits)
    torch.testing.assert_close(torch.stack(found, dim=1), wanted)


def test_heads_that_share_keys_attend_together_so_that_a_step_repeats_none(tmp_path: Path) -> None:
    family = models.find(written("llama", tmp_path))
    dimensions = Generating(family).resolve(SMALL)
    step = family.load_decoder(dimensions, 0, CPU, torch.float32).step
    inputs = Generating(family).load_graph(DECODE, dimensions, 0, CPU, torch.float32).inputs[0]
    exported = torch.export.export(step, inputs.args)
    attended = [node for node in exported.graph.nodes if "scaled_dot_product_attention" in str(node.target)]
    shapes = [tuple(node.args[place].meta["val"].shape) for node in attended for place in range(3)]
    assert shapes == 2 * [(2, 2, 2, 8), (2, 2, 11, 8), (2, 2, 11, 8)]  # two layers: queries, keys and values


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba"])
def test_both_graphs_of_a_decoder_of_transformers_have_a_reference_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    for task in (PREFILL, DECODE):
        cell = Cell(model=model, dimensions=Generating(models.find(model)).resolve(SMALL), task=task, backend="eager")
        with torch.inference_mode():
            exact = reference.Subject(cell, tmp_path, tmp_path).exact()
        assert (exact.computed_in, exact.in_float32, exact.why_narrower) == ("float64", (), "")


def test_a_step_of_the_template_goes_on_where_its_prefill_ended() -> None:
    family, dimensions = template()
    decoder = models.find("transformer_lm").load_decoder(dimensions, 0, CPU, torch.float32)
    tokens = torch.randint(10_000, (2, 8))
    with torch.inference_mode():
        wanted = decoder.prefill.language_model(tokens)[:, -1]
        _, *caches = decoder.prefill(tokens[:, :7])
        logits, *_ = decoder.step(tokens[:, 7:], torch.tensor([7]), *caches)
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(decoder.prefill(tokens)[0], wanted)
    assert family.load_graph(PREFILL, dimensions, 0, CPU, torch.float32).inputs[0].args[0].shape == (2, 6)


def test_a_step_that_writes_in_place_leaves_in_its_caches_what_the_other_one_returns() -> None:
    family, dimensions = template()
    model = family.load_graph(DECODE, dimensions, 0, CPU, torch.float32)
    first = model.inputs[0]
    with torch.inference_mode():
        logits, *wanted = model.module(*first.args)
        assert not first.args[2][:, :, 10].any(), "the row of the highest position is empty at first"
        (found,) = writes_in_place(model.module)(*first.args)
    torch.testing.assert_close(found, logits)
    torch.testing.assert_close(list(first.args[2:]), wanted)


def test_a_step_is_measured_from_the_last_position_down_to_the_first_over_shared_caches() -> None:
    family, dimensions = template()
    sets = family.load_graph(DECODE, dimensions, 0, CPU, torch.float32).inputs
    assert [int(one.args[1]) for one in sets] == positions_of(dimensions) == [10, 8, 7, 6]
    assert len({one.args[2].data_ptr() for one in sets}) == 1


def test_bytes_that_a_step_need_not_move_are_known() -> None:
    """Caches have two layers, keys and values of 11 rows, 2 sequences and 4 heads of 16 in float32."""
    family, dimensions = template()
    row = 2 * 2 * 2 * 4 * 16 * 4
    used = 1 + (10 + 8 + 7 + 6) / 4
    assert family.load_graph(DECODE, dimensions, 0, CPU, torch.float32).spared_bytes == row * (2 * 11 - used)
    assert family.load_graph(PREFILL, dimensions, 0, CPU, torch.float32).spared_bytes == row * 5


def test_a_model_that_generates_nothing_says_so() -> None:
    with pytest.raises(UsageError, match="mlp generates no text"):
        models.find_for("mlp", "generate")


def test_the_same_seed_gives_the_same_inputs() -> None:
    family, dimensions = template()
    one, other = (family.load_graph(DECODE, dimensions, 3, CPU, torch.float32).inputs[1] for _ in range(2))
    assert isinstance(one, Inputs)
    assert all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))
