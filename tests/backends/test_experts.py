"""A mixture of experts of transformers is built by engines that lack its own operator."""

import json
from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.records.device import CPU
from bakeoff.records.schema import Cell
from tests.backends.building import built

TINY_MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 40, "hidden_size": 8,
                "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                "num_local_experts": 4, "max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize(
    "backend", ["onnx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("aotinductor", "openvino"))]
)
def test_experts_are_computed_by_operators_that_the_engine_has(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("transformers", minversion="5")
    (tmp_path / "config.json").write_text(json.dumps(TINY_MIXTRAL))
    family = models.find(f"hf:{tmp_path}")
    cell = Cell(model=family.name, dimensions={"batch": 2, "seq": 4}, device=CPU, backend=backend)
    loaded = family.load(cell.dimensions, 0)
    with torch.inference_mode():
        expected = loaded.module(**loaded.inputs[0].kwargs).logits
    (tmp_path / "built").mkdir()
    with built(cell, tmp_path / "built", loaded) as made:
        torch.testing.assert_close(made.call(loaded.inputs[0])[0], expected, rtol=1e-4, atol=1e-5)
        assert made.compiled.settings()["experts_implementation"] == "batched_mm"
