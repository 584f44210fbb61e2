"""The examples, and the plain networks of the zoo, are user models that work."""

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
