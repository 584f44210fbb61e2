"""Models of timm and torchvision: their inputs, their dimensions, and weights that show errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import INPUT_SETS, LoadedModel
from bakeoff.records.errors import UsageError
from tests.models.loading import load

pytestmark = pytest.mark.usefixtures("vision")
ROOT = Path(__file__).parents[2]


def call(loaded: LoadedModel, index: int = 0) -> Any:
    with torch.inference_mode():
        return loaded.module(*loaded.inputs[index].args)


@pytest.mark.parametrize(
    ("name", "given", "shape"),
    [
        ("timm:test_resnet", {"size": 32}, (4, 1000)),
        ("timm:test_efficientnet.r160_in1k", {"size": 32, "batch": 2}, (2, 1000)),
        ("timm:test_vit", {"size": 64}, (4, 1000)),
        ("torchvision:squeezenet1_1", {"size": 32}, (4, 1000)),
        ("torchvision:mc3_18", {"size": 16, "frames": 2, "batch": 2}, (2, 400)),
    ],
)
def test_outputs_are_of_this_shape_and_follow_from_the_input(name: str, given: Any, shape: tuple[int, ...]) -> None:
    loaded = load(name, **given)
    assert not any(part.training for part in loaded.module.modules())
    first, second = call(loaded), call(loaded, 1)
    assert first.shape == shape and len(loaded.inputs) == INPUT_SETS
    # an error is seen where outputs are no smaller than tolerances, and not the same for every input
    assert 1e-3 < first.square().mean().sqrt() < 1e3
    assert (first - second).square().mean().sqrt() > 0.01 * first.square().mean().sqrt()


def test_an_optical_flow_takes_two_images_and_returns_a_list() -> None:
    loaded = load("torchvision:raft_small", batch=1, size=128)
    assert [tensor.shape for tensor in loaded.inputs[0].tensors()] == [(1, 3, 128, 128)] * 2
    assert all(flow.shape == (1, 2, 128, 128) for flow in call(loaded))


def test_a_detector_takes_a_list_of_images() -> None:
    loaded = load("torchvision:ssdlite320_mobilenet_v3_large", batch=2, size=64)
    (images,) = loaded.inputs[0].args
    assert [image.shape for image in images] == [(3, 64, 64)] * 2


def test_seeds_decide_weights_and_inputs() -> None:
    first, again, other = (load("timm:test_resnet", seed, size=32) for seed in (1, 1, 2))
    assert torch.equal(call(first), call(again))
    assert not torch.equal(next(first.module.parameters()), next(other.module.parameters()))


def test_what_a_model_of_torchvision_refuses() -> None:
    with pytest.raises(UsageError, match="is quantised already"):
        models.find("torchvision:quantized_resnet18")
    with pytest.raises(UsageError, match="takes only size=224, frames=16"):
        models.find("torchvision:mvit_v2_s").resolve({"frames": 8})


def test_planning_asks_a_process_of_its_own() -> None:
    code = (
        "import json, sys, models\n"
        "print(json.dumps(models.find('timm:test_vit').resolve({'batch': 2})))\n"
        "assert not {'torch', 'timm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if "built for another torch" in done.stderr:
        pytest.skip("torchvision does not import in a process that lacks its operators")
    assert json.loads(done.stdout) == {"batch": 2, "size": 160}, done.stderr
