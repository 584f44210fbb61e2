"""onnxruntime-genai keeps caches of its own: each step must still be the one that was asked for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.models.generation import Generating
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import DECODE, PREFILL, Cell
from bakeoff.truth.generating import compare, generate
from tests.backends.building import Built, built

NAME = "onnxruntime-genai"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "vocab_size": 100,
}
IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def cell_of(folder: Path, task: str, kind: str = "llama", architecture: str = "LlamaForCausalLM") -> Cell:
    config = {"model_type": kind, "architectures": [architecture], **SIZES, **IDS}
    (folder / "config.json").write_text(json.dumps(config))
    family = Generating(models.find(f"hf:{folder}"))
    dimensions = family.resolve({"prompt": "6", "new_tokens": "5"})
    return Cell(model=family.name, dimensions=dimensions, task=task, backend=NAME)


@pytest.fixture(params=[("qwen3", "Qwen3ForCausalLM", DECODE), ("llama", "LlamaForCausalLM", PREFILL)])
def one(request: pytest.FixtureRequest, tmp_path: Path, vision: None) -> Iterator[Built]:
    pytest.importorskip("onnxruntime_genai")
    kind, architecture, task = request.param
    workspace = tmp_path / "artifact"
    workspace.mkdir()
    with torch.inference_mode(), built(cell_of(tmp_path, task, kind, architecture), workspace) as found:
        yield found


def test_it_computes_each_set_in_any_order_and_its_caches_are_those_of_the_module(one: Built) -> None:
    for number in (0, 3, 1, 1, 2, 0):
        torch.testing.assert_close(one.call(one.sets[number]), one.eager(one.sets[number]), atol=1e-5, rtol=1e-4)


def test_outputs_are_those_of_the_last_call(one: Built) -> None:
    wanted = one.eager(one.sets[0])
    one.call(one.sets[0])
    one.compiled.bind(one.sets[1])
    torch.testing.assert_close(one.compiled.outputs(), wanted, atol=1e-5, rtol=1e-4)


def test_a_generation_goes_on_from_its_own_tokens_and_the_sets_are_right_afterwards(one: Built) -> None:
    ours, eager = generate(one.call, one.sets, one.cell), generate(one.eager, one.sets, one.cell)
    assert ours is not None and eager is not None
    found = compare(ours, eager)
    assert found.agreed == found.tokens
    test_it_computes_each_set_in_any_order_and_its_caches_are_those_of_the_module(one)


def test_what_it_leaves_is_its_model_and_a_later_process_starts_from_it(one: Built) -> None:
    workspace = one.context.workspace
    assert [path.name for path in workspace.iterdir()] == ["model"]
    written = (workspace / "model" / "model.onnx").stat().st_mtime_ns
    with one.backend.build(one.module, one.sets[0], one.context) as again:
        again.bind(one.sets[0])
        again.run()
        torch.testing.assert_close(again.outputs(), one.eager(one.sets[0]), atol=1e-5, rtol=1e-4)
    assert (workspace / "model" / "model.onnx").stat().st_mtime_ns == written


@pytest.mark.usefixtures("vision")
def test_an_architecture_that_it_does_not_build_is_unsupported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    cell = cell_of(tmp_path, DECODE, "gpt2", "GPT2LMHeadModel")
    with pytest.raises(Unsupported, match="onnxruntime-genai builds no GPT2LMHeadModel"), built(cell, tmp_path):
        pass
