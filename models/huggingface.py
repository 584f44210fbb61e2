"""A Hugging Face model from a local folder: `hf:FOLDER`.

Nothing is downloaded, and no code from the folder is run. Inputs follow from config.json: random token ids for text,
random pixels for images. A model that takes anything else needs a factory (`models.user`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from models.seeding import seeded
from records.errors import BakeoffError, UsageError

if TYPE_CHECKING:
    import torch

OFFSET_POSITIONS = ("roberta", "camembert", "mpnet", "longformer")
"""Model types with first position `pad_token_id + 1`, so that tokens have as many positions fewer."""

FACTORY_INSTEAD = "write a factory and name it as path/to/file.py:FACTORY (models/user.py says how)"


class HuggingFace(Family):
    """The model in `folder`: its config.json and *.safetensors, as `save_pretrained` writes them."""

    def __init__(self, folder: str) -> None:
        """Read the folder's configuration. Raise UsageError if Bakeoff cannot load a model from it."""
        self.name = f"hf:{folder}"
        self.folder = Path(folder).expanduser()
        self.config = _read_config(self.name, self.folder)
        _check_weights(self.name, self.folder)
        self.architecture = next(iter(self.config.get("architectures") or ()), "AutoModel")
        self.description = f"{self.architecture} of {self.folder}"
        self.dimensions = self._dimensions()
        model_type = str(self.config.get("model_type", "")).replace("-", "_")
        self.imports = ("transformers.modeling_utils", f"transformers.models.{model_type}.modeling_{model_type}")

    def check(self, dimensions: Sizes) -> None:
        limit = _positions(self.config)
        if limit is not None and "seq" in dimensions and int(dimensions["seq"]) > limit:
            raise UsageError(f"{self.name}: seq={dimensions['seq']} is more than the model's {limit} positions")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Load the folder's weights. The seed decides the inputs, and weights that the folder lacks."""
        try:
            import torch
            import transformers
        except ImportError as error:
            raise BakeoffError(f"{self.name} needs the package '{error.name}': pip install transformers") from error

        known = getattr(transformers, self.architecture, None)
        is_known = inspect.isclass(known) and issubclass(known, transformers.PreTrainedModel)
        if not is_known and "auto_map" in self.config:
            raise UsageError(
                f"{self.name}: {self.architecture} is code of the folder, which Bakeoff never runs: {FACTORY_INSTEAD}"
            )
        model_class: Any = known if is_known else transformers.AutoModel
        with seeded(seed):
            module = model_class.from_pretrained(
                self.folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
            )
            # a forward pass needs no cache among its outputs; parts such as T5's decoder have their own configuration
            for part in module.modules():
                if hasattr(getattr(part, "config", None), "use_cache"):
                    part.config.use_cache = False
            inputs = tuple(self._inputs(module, dimensions) for _ in range(INPUT_SETS))
        return LoadedModel(module.eval(), inputs)

    def _dimensions(self) -> dict[str, Dimension]:
        batch = Dimension(4, "examples per call")
        if "vocab_size" in self.config:
            limit = _positions(self.config)
            return {"batch": batch, "seq": Dimension(min(128, limit or 128), "tokens of a sequence")}
        if "image_size" in self.config or "num_channels" in self.config:
            return {"batch": batch}
        raise UsageError(f"{self.name}: config.json speaks of neither one text nor one image: {FACTORY_INSTEAD}")

    def _inputs(self, module: Any, dimensions: Sizes) -> Inputs:
        accepted = inspect.signature(module.forward).parameters
        batch = int(dimensions["batch"])
        if module.main_input_name == "pixel_values" and "seq" not in dimensions:
            return Inputs(kwargs={"pixel_values": _pixels(module.config, batch)})
        if module.main_input_name != "input_ids" or "seq" not in dimensions:
            raise UsageError(f"{self.name} takes {module.main_input_name}, not text or an image: {FACTORY_INSTEAD}")
        import torch

        shape = (batch, int(dimensions["seq"]))
        kwargs = {"input_ids": _token_ids(module.config, shape)}
        if "attention_mask" in accepted:
            kwargs["attention_mask"] = torch.ones(shape, dtype=torch.int64)
        if module.config.is_encoder_decoder and "decoder_input_ids" in accepted:
            kwargs["decoder_input_ids"] = _token_ids(module.config, shape)
        return Inputs(kwargs=kwargs)


def _read_config(model: str, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UsageError(f"{model}: no folder {folder}: hf: takes a local folder, nothing is downloaded")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{model}: no config.json in {folder}: hf: takes a folder that save_pretrained wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{model}: cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{model}: {path} holds no object")
    if "quantization_config" in config:
        raise UsageError(f"{model}: its weights are quantised: Bakeoff takes float weights and chooses the precision")
    return config


def _check_weights(model: str, folder: Path) -> None:
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        if any(folder.glob("pytorch_model*.bin")):
            raise UsageError(
                f"{model}: pytorch_model.bin can run code when read, Bakeoff takes safetensors only: convert it once "
                "with AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        raise UsageError(f"{model}: no *.safetensors in {folder}: hf: takes a folder that save_pretrained wrote")
    for file in weights:
        with file.open("rb") as stream:
            if stream.read(16) == b"version https://":
                raise UsageError(f"{model}: {file} is a Git LFS pointer, not weights: run `git lfs pull` in {folder}")


def _positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that the configuration allows; None if it sets no limit."""
    model_type = str(config.get("model_type", ""))
    limit = config.get("max_position_embeddings")
    if limit is None and "t5" not in model_type:  # T5 writes n_positions too, but its positions are relative
        limit = config.get("n_positions")
    if not isinstance(limit, int) or limit < 1:
        return None
    if any(name in model_type for name in OFFSET_POSITIONS):
        limit -= int(config.get("pad_token_id", 1)) + 1
    return limit


def _token_ids(config: Any, shape: tuple[int, int]) -> torch.Tensor:
    """Return random ids of ordinary tokens, since some models react to padding or end tokens inside a text."""
    import torch

    special: set[object] = set()
    for key, value in config.to_dict().items():
        if key.endswith("_token_id"):
            special.update(value if isinstance(value, list) else [value])
    ordinary = torch.tensor([token for token in range(config.vocab_size) if token not in special])
    return ordinary[torch.randint(len(ordinary), shape)]


def _pixels(config: Any, batch: int) -> torch.Tensor:
    """Return standard normal pixels, as after an image processor's normalisation."""
    import torch

    size = getattr(config, "image_size", None) or 224  # convolutional networks take any size
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(batch, getattr(config, "num_channels", 3), height, width)
