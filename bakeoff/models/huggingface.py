"""A Hugging Face model: `hf:FOLDER`, or `hf:ORG/NAME` from the hub.

No code of the model is run, and no weights are read but safetensors. A folder with nothing but config.json gets random
weights. A model that takes anything but token ids, pixels or sound needs a factory (`bakeoff.models.user`).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from bakeoff.models import model_folder
from bakeoff.models.base import INPUT_SETS, Decoder, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.generation import context_of
from bakeoff.models.lazily import torch
from bakeoff.models.libraries import Facts, facts_of, import_library, naming_torchvision
from bakeoff.models.model_folder import FACTORY_INSTEAD
from bakeoff.models.seeding import make_as_trained, padded_at_the_end, seeded
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError, unknown

OFFSET_POSITIONS = ("roberta", "camembert", "mpnet", "longformer")
"""Model types with first position `pad_token_id + 1`, so that tokens have as many positions fewer."""

TABLES_OF_TYPES = ("configuration_auto.py", "auto_mappings.py")
"""Files of transformers 4 and 5 that list the types of models with their configurations."""

WITHOUT_TEXT = ("beit",)
"""Types of models with a vocabulary of images."""

IMAGE_TOKENS = ("image_token_id", "image_token_index")
"""Keys of models that take images into a text. They are measured with text alone."""


TAKES = "hf: takes a local folder that save_pretrained wrote, or ORG/NAME of the hub"


class HuggingFace(Family):
    """The model in a folder: its config.json and *.safetensors, as `save_pretrained` writes them."""

    def __init__(self, source: str) -> None:
        """Read the configuration. Raise UsageError if Bakeoff cannot load a model from it."""
        self.folder = Path(source).expanduser()
        self.commit = None if self.folder.exists() else model_folder.commit_of(source)
        self.name = f"hf:{self.commit or source}"
        if self.commit:
            self.folder = model_folder.folder_with_config(self.commit)
        self.config = model_folder.read_config(self.name, self.folder, TAKES)
        _check_type(self.name, self.config)
        self.has_weights = self.commit is not None or model_folder.has_weights(self.name, self.folder, "AutoModel")
        self.architecture = next(iter(self.config.get("architectures") or ()), "AutoModel")
        self.description = f"{self.architecture} of {self.commit or self.folder}"
        if not self.has_weights:
            self.description += ", with random weights"
        self.dimensions = self._dimensions()
        if len(self.dimensions) == 1 and "auto_map" not in self.config and self.config.get("model_type"):
            self.config = self._described()["config"]
            self.dimensions = self._dimensions()
        if len(self.dimensions) == 1:
            raise UsageError(f"{self.name}: config.json speaks of no text, image or sound: {FACTORY_INSTEAD}")
        self.may_convolve = not self.dimensions.keys() <= {"batch", "seq"}  # text alone
        model_type = str(self.config.get("model_type", "")).replace("-", "_")
        self.imports = ("transformers.modeling_utils", f"transformers.models.{model_type}.modeling_{model_type}")

    def prepare(self) -> None:
        if self.commit:
            model_folder.download_weights(self.commit)

    def check(self, dimensions: Sizes) -> None:
        limit = _positions(self.config)
        if limit is not None and "seq" in dimensions and int(dimensions["seq"]) > limit:
            raise UsageError(f"{self.name}: seq={dimensions['seq']} is more than the model's {limit} positions")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Load the folder's weights. The seed decides the inputs, and weights that the folder lacks."""
        with seeded(seed):
            return self._load(dimensions)

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel | None:
        """Draw random weights on a GPU in `dtype`: a host needs half a minute for a billion. Text alone."""
        if not device.is_cuda or self.has_weights or self.may_convolve:
            return None
        with _seeded_on(device, seed):
            return self._load(dimensions, dtype)

    def _load(self, dimensions: Sizes, dtype: torch.dtype | None = None) -> LoadedModel:
        """Load the model by torch's present generators, device and `dtype` (float32 if None)."""
        try:
            import transformers
        except ImportError as error:
            raise BakeoffError(f"{self.name} needs the package '{error.name}': pip install transformers") from error

        with naming_torchvision(self.name):
            architecture = getattr(transformers, self.architecture, None)
            is_known = inspect.isclass(architecture) and issubclass(architecture, transformers.PreTrainedModel)
        if not is_known and "auto_map" in self.config:
            raise UsageError(
                f"{self.name}: {self.architecture} is code of the folder, which Bakeoff never runs: {FACTORY_INSTEAD}"
            )
        with naming_torchvision(self.name):
            module = self._module(architecture if is_known else transformers.AutoModel, dtype)
        # a forward pass needs no cache among its outputs; parts such as T5's decoder have their own configuration
        for part in module.modules():
            if hasattr(getattr(part, "config", None), "use_cache"):
                part.config.use_cache = False
        inputs = tuple(self._inputs(module, dimensions) for _ in range(INPUT_SETS))
        if not self.has_weights:
            make_as_trained(module, inputs)
        return LoadedModel(module.eval(), inputs)

    def decoder_dimensions(self) -> Mapping[str, Dimension] | None:
        if not self.config.get("architectures") and (generating := self._described()["generates"]):
            raise UsageError(
                f"{self.name}: config.json names no architecture, so it has no head that predicts tokens: add "
                f'"architectures": ["{generating}"] to it'
            )
        return {} if self.architecture.endswith(("ForCausalLM", "LMHeadModel")) else None

    def max_positions(self) -> int | None:
        return _positions(self.config)

    def load_decoder(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> Decoder:
        """Load the folder's weights, or draw random ones on `device` in `dtype`."""
        with naming_torchvision(self.name):
            import transformers
            from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

            from bakeoff.models import generation_huggingface as graphs

        ALL_EXPERTS_FUNCTIONS.register("dense", graphs.dense_experts)
        with _seeded_on(device, seed):
            with naming_torchvision(self.name):
                module = self._module(getattr(transformers, self.architecture), dtype).to(device).eval()
            if not self.has_weights:
                make_as_trained(module, ())
        if hasattr(module, "set_experts_implementation"):
            module.set_experts_implementation("dense")
        graphs.group_queries(module)
        tokens, context = _ordinary_tokens(module.config), context_of(dimensions)
        if hasattr(module.config, "state_size"):
            prefill, step = graphs.RecurrentPrefill(module), graphs.RecurrentStep(module)
            return Decoder(prefill.eval(), step.eval(), tokens, is_recurrent=True)
        return Decoder(
            graphs.HuggingFacePrefill(module, context).eval(), graphs.HuggingFaceDecode(module, context).eval(), tokens
        )

    def _module(self, model_class: Any, dtype: torch.dtype | None = None) -> Any:
        import transformers

        if self.has_weights:
            return model_class.from_pretrained(
                self.folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=dtype or torch.float32,
            )
        config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        is_auto = model_class is transformers.AutoModel
        made: Callable[..., Any] = getattr(model_class, "from_config" if is_auto else "_from_config")
        return made(config, dtype=dtype or torch.float32)

    def _dimensions(self) -> dict[str, Dimension]:
        dimensions = {"batch": Dimension(4, "examples per call")}
        parts = [self.config, *(part for part in self.config.values() if isinstance(part, dict))]
        if "feat_extract_norm" in self.config:
            return dimensions | {"samples": Dimension(16_000, "samples of a sound")}
        if self.config.get("model_type") not in WITHOUT_TEXT and any("vocab_size" in part for part in parts):
            dimensions["seq"] = Dimension(min(128, _positions(self.config) or 128), "tokens of a sequence")
        takes_text_alone = any(name in self.config for name in IMAGE_TOKENS)
        if not takes_text_alone and any("image_size" in part or "num_channels" in part for part in parts):
            # Convolutional networks take any size and name none.
            size = next((part["image_size"] for part in parts if part.get("image_size")), 224)
            image_size = int(size[0] if isinstance(size, list) else size)
            dimensions["size"] = Dimension(image_size, "height and width of an image")
        return dimensions

    def _described(self) -> Facts:
        """Return what transformers says of the configuration, which may leave out what equals its class's defaults."""
        return facts_of("bakeoff.models.huggingface", str(self.folder))

    def _inputs(self, module: Any, dimensions: Sizes) -> Inputs:
        """Return what the model accepts of tokens, pixels and sound. Images and texts go together in some models."""
        accepted = inspect.signature(module.forward).parameters
        main, batch = module.main_input_name, int(dimensions["batch"])
        has_two_towers = hasattr(module, "get_text_features") and hasattr(module, "get_image_features")
        kwargs: dict[str, torch.Tensor] = {}
        if "seq" in dimensions and (main == "input_ids" or has_two_towers):
            shape = (batch, int(dimensions["seq"]))
            kwargs["input_ids"] = _token_ids(module.config, shape)
            if "attention_mask" in accepted:
                kwargs["attention_mask"] = padded_at_the_end(*shape)
        if "size" in dimensions and (main == "pixel_values" or has_two_towers):
            size = int(dimensions["size"])
            parts = (module.config, *(getattr(module.config, name, None) for name in ("vision_config", "encoder")))
            channels = int(next((part.num_channels for part in parts if hasattr(part, "num_channels")), 3))
            kwargs["pixel_values"] = torch.randn(batch, channels, size, size)
            if "interpolate_pos_encoding" in accepted and size != self.dimensions["size"].default:
                return Inputs(kwargs={**kwargs, "interpolate_pos_encoding": True})
        if main == "input_values" and "samples" in dimensions:
            kwargs[main] = torch.randn(batch, int(dimensions["samples"]))
        if main == "input_features" and hasattr(module.config, "max_source_positions"):
            kwargs[main] = torch.randn(batch, module.config.num_mel_bins, 2 * module.config.max_source_positions)
        if not kwargs:
            raise UsageError(f"{self.name} takes {main}, which is no text, image or sound: {FACTORY_INSTEAD}")
        if module.config.is_encoder_decoder and "decoder_input_ids" in accepted and "seq" in dimensions:
            kwargs["decoder_input_ids"] = _token_ids(module.config, (batch, int(dimensions["seq"])))
        return Inputs(kwargs=kwargs)


def describe(folder: str) -> Facts:
    model = f"hf:{folder}"
    transformers = import_library("transformers", model)
    with naming_torchvision(model):
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "generates": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ""),
    }


@contextmanager
def _seeded_on(device: Device, seed: int) -> Iterator[None]:
    """Create tensors on `device`, and draw them from `seed`, inside the context."""
    with seeded(seed), torch.device(device):
        if device.is_cuda:
            torch.cuda.manual_seed(seed)
        yield


def _check_type(model: str, config: Mapping[str, Any]) -> None:
    """Raise UsageError if the installed transformers does not know the type of model. Its table of types is read and
    not imported, because the controller plans without torch."""
    spec = importlib.util.find_spec("transformers")
    named = str(config.get("model_type", ""))
    if not named or "auto_map" in config or spec is None or spec.origin is None:
        return
    tables = [Path(spec.origin).parent / "models/auto" / name for name in TABLES_OF_TYPES]
    text = "".join(path.read_text(encoding="utf-8") for path in tables if path.exists())
    names = re.findall(r'"([\w.-]+)"\s*[,:]\s*"\w+Config"', text)
    if names and named not in names:
        raise unknown(f"type of model in {model}", named, names, f"transformers {metadata.version('transformers')}")


def _positions(config: Mapping[str, Any]) -> int | None:
    model_type = str(config.get("model_type", ""))
    limits = ("max_target_positions", "max_position_embeddings")
    limit = next((config[name] for name in limits if config.get(name) is not None), None)
    if limit is None and isinstance(text := config.get("text_config"), dict):
        return _positions(text)
    if limit is None and "t5" not in model_type:  # T5 writes n_positions too, but its positions are relative
        limit = config.get("n_positions")
    if not isinstance(limit, int) or limit < 1:
        return None
    if any(name in model_type for name in OFFSET_POSITIONS):
        limit -= int(config.get("pad_token_id", 1)) + 1
    return limit


def _token_ids(config: Any, shape: tuple[int, int]) -> torch.Tensor:
    """Return random ids of ordinary tokens, since some models react to padding or end tokens inside a text."""
    ordinary = _ordinary_tokens(config)
    return ordinary[torch.randint(len(ordinary), shape)]


def _ordinary_tokens(config: Any) -> torch.Tensor:
    text = config.get_text_config(decoder=True)
    special: set[object] = set()
    for key, value in (*config.to_dict().items(), *text.to_dict().items()):
        if key.endswith("_token_id"):
            special.update(value if isinstance(value, list) else [value])
    return torch.tensor([token for token in range(text.vocab_size) if token not in special])
