"""The folder of one model, as Hugging Face's libraries write it: config.json, and weights as safetensors."""

import json
from pathlib import Path
from typing import Any

from bakeoff.records.errors import UsageError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
INDEX = "*.safetensors.index.json"

FACTORY_INSTEAD = "write a factory and name it as path/to/file.py:FACTORY (docs/recipes.md shows one)"


def read_config(model: str, folder: Path, takes: str) -> dict[str, Any]:
    """Return the object in the folder's config.json. If there is none, raise UsageError with what a source `takes`."""
    if not folder.is_dir():
        raise UsageError(f"{model}: no folder {folder}: {takes}")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{model}: no config.json in {folder}: {takes}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{model}: cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{model}: {path} holds no object")
    if "quantization_config" in config:
        raise UsageError(f"{model}: its weights are quantised: Bakeoff takes float weights and chooses the precision")
    return config


def has_weights(model: str, folder: Path, model_class: str) -> bool:
    """Return False if the folder holds a bare configuration. Raise UsageError for weights that cannot be read."""
    weights = sorted(folder.glob("*.safetensors"))
    for file in weights:
        with file.open("rb") as stream:
            if stream.read(16) == b"version https://":
                raise UsageError(f"{model}: {file} is a Git LFS pointer, not weights: run `git lfs pull` in {folder}")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not weights and pickles:
        raise UsageError(
            f"{model}: {pickles[0]} can run code when read, Bakeoff takes safetensors only: convert it once with "
            f"{model_class}.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    if not weights and (index := next(folder.glob(INDEX), None)):
        raise UsageError(f"{model}: {index.name} names weights, and there is no *.safetensors in {folder}")
    return bool(weights)
