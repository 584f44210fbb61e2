"""Models of diffusers: their inputs follow from config.json and from what they take."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import INPUT_SETS, LoadedModel
from bakeoff.records.errors import UsageError
from tests.models.loading import load

diffusers = pytest.importorskip("diffusers")
UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "block_out_channels": [8, 16],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "attention_head_dim": 4,
    "cross_attention_dim": 12,
}
AUTOENCODER = {"block_out_channels": [8], "norm_num_groups": 4, "sample_size": 16}
DIT = {
    "sample_size": 8,
    "in_channels": 4,
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_embeds_ada_norm": 10,
}


def written(folder: Path, name: str, config: dict[str, Any]) -> str:
    """Write a config.json without weights, and return the model's name."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"_class_name": name, **config}))
    return f"diffusers:{folder}"


def call(loaded: LoadedModel) -> torch.Tensor:
    with torch.inference_mode():
        sample: torch.Tensor = loaded.module(**loaded.inputs[0].kwargs).sample
        return sample


@pytest.mark.parametrize(
    ("name", "config", "given", "inputs", "shape"),
    [
        (
            "UNet2DConditionModel",
            UNET,
            {"batch": 3, "seq": 5},
            {"sample": (3, 4, 8, 8), "timestep": (3,), "encoder_hidden_states": (3, 5, 12)},
            (3, 4, 8, 8),
        ),
        ("AutoencoderKL", AUTOENCODER, {"size": 8}, {"sample": (2, 3, 8, 8)}, (2, 3, 8, 8)),
        (
            "DiTTransformer2DModel",
            DIT,
            {},
            {"hidden_states": (2, 4, 8, 8), "timestep": (2,), "class_labels": (2,)},
            (2, 4, 8, 8),
        ),
    ],
)
def test_a_bare_configuration_gets_random_weights_and_its_own_inputs(
    tmp_path: Path, name: str, config: dict[str, Any], given: Any, inputs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = written(tmp_path / "model", name, config)
    loaded = load(model, **given)
    assert "random weights" in models.find(model).description
    assert type(loaded.module).__name__ == name and not loaded.module.training
    assert {key: tuple(tensor.shape) for key, tensor in loaded.inputs[0].kwargs.items()} == inputs
    assert len(loaded.inputs) == INPUT_SETS
    sample = call(loaded)
    assert sample.shape == shape and sample.std() > 1e-2
    assert torch.equal(sample, call(load(model, **given)))


def test_weights_are_the_folders(tmp_path: Path) -> None:
    saved = diffusers.AutoencoderKL(**AUTOENCODER)
    saved.save_pretrained(tmp_path)
    loaded = load(f"diffusers:{tmp_path}").module
    assert torch.equal(loaded.encoder.conv_in.weight, saved.encoder.conv_in.weight)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("UNet2DConditionModl", {}, "unknown class in .*: did you mean 'UNet2DConditionModel'"),
        ("DDIMScheduler", {}, "DDIMScheduler is no model of diffusers: write a factory"),
        ("UVit2DModel", {}, "UVit2DModel takes .*input_ids.*: write a factory"),
        ("AutoencoderKL", {"weights.bin": ""}, "weights.bin can run code when read.*AutoencoderKL.from_pretrained"),
        ("AutoencoderKL", {"config.json": "{"}, "cannot read .*config.json"),
    ],
)
def test_folders_that_cannot_be_measured(tmp_path: Path, name: str, more: dict[str, str], message: str) -> None:
    model = written(tmp_path / "model", name, {})
    for file, text in more.items():
        (tmp_path / "model" / file).write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        models.find(model)
    assert "\n" not in str(caught.value)
