"""A model of diffusers: `diffusers:FOLDER`, such as the subfolder `unet` of a pipeline.

A folder with nothing but config.json gets random weights. A UNet, a transformer or an autoencoder gets its latents or
images, time steps, texts and classes. A model that needs anything else needs a factory (`bakeoff.models.user`).
"""

import inspect
from pathlib import Path
from typing import Any

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.lazily import torch
from bakeoff.models.libraries import Facts, facts_of, import_library, naming_torchvision
from bakeoff.models.model_folder import FACTORY_INSTEAD, has_weights, read_config
from bakeoff.models.seeding import make_as_trained, seeded
from bakeoff.records.errors import UsageError, unknown

IMAGES = ("sample", "hidden_states")
"""Names of the argument that takes images, or their latents."""

TEXT_WIDTHS = ("cross_attention_dim", "joint_attention_dim")
CLASSES = ("num_class_embeds", "num_embeds_ada_norm")
TAKES = "diffusers: takes the folder of one model, such as the subfolder unet of a pipeline"
TIME_STEPS = 1000
OTHER_SIZE = 64


class Diffusers(Family):
    """The model in a folder: its config.json and *.safetensors, as `save_pretrained` writes them."""

    imports = ("diffusers.models.modeling_utils",)

    def __init__(self, source: str) -> None:
        """Read the configuration, and ask diffusers for the model's inputs. Raise UsageError for what it lacks."""
        self.name = f"diffusers:{source}"
        self.folder = Path(source).expanduser()
        read_config(self.name, self.folder, TAKES)
        self.facts = facts_of(__name__, str(self.folder))
        self.has_weights = has_weights(self.name, self.folder, self.facts["class"])
        self.description = f"{self.facts['class']} of {self.folder}"
        if not self.has_weights:
            self.description += ", with random weights"
        self.dimensions = {
            "batch": Dimension(2, "examples per call"),
            "size": Dimension(self.facts["size"], "height and width of an image, or of its latents"),
        }
        if self.facts["text_width"]:
            self.dimensions["seq"] = Dimension(77, "tokens of the text that an image is drawn for")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Load the folder's weights. The seed decides the inputs, and weights that the folder lacks."""
        with naming_torchvision(self.name):
            model_class = getattr(import_library("diffusers", self.name), self.facts["class"])
        with seeded(seed):
            if self.has_weights:
                module = model_class.from_pretrained(self.folder, local_files_only=True, use_safetensors=True).float()
            else:
                module = model_class.from_config(model_class.load_config(self.folder, local_files_only=True))
            inputs = tuple(self._inputs(dimensions) for _ in range(INPUT_SETS))
            if not self.has_weights:
                make_as_trained(module, inputs)
        return LoadedModel(module.eval(), inputs)

    def _inputs(self, dimensions: Sizes) -> Inputs:
        facts, batch, size = self.facts, int(dimensions["batch"]), int(dimensions["size"])
        given: dict[str, torch.Tensor] = {facts["image"]: torch.randn(batch, facts["channels"], size, size)}
        if facts["has_time"]:
            given["timestep"] = torch.randint(TIME_STEPS, (batch,))
        if facts["text_width"]:
            given["encoder_hidden_states"] = torch.randn(batch, int(dimensions["seq"]), facts["text_width"])
        if facts["classes"]:
            given["class_labels"] = torch.randint(facts["classes"], (batch,))
        return Inputs(kwargs=given)


def describe(folder: str) -> Facts:
    """Return the class of the model in the folder, and what it takes. Its weights are not read."""
    model = f"diffusers:{folder}"
    diffusers: Any = import_library("diffusers", model)
    named = str(read_config(model, Path(folder), TAKES).get("_class_name", ""))
    if named not in dir(diffusers):
        classes = [name for name in dir(diffusers) if name[:1].isupper()]
        raise unknown(f"class in {folder}/config.json", named, classes, f"diffusers {diffusers.__version__}")
    with naming_torchvision(model):
        model_class = getattr(diffusers, named)
    if not issubclass(model_class, diffusers.ModelMixin):
        raise UsageError(f"{model}: {named} is no model of diffusers: {FACTORY_INSTEAD}")
    accepted = inspect.signature(model_class.forward).parameters
    config = {name: parameter.default for name, parameter in inspect.signature(model_class.__init__).parameters.items()}
    config |= read_config(model, Path(folder), TAKES)
    facts: Facts = {
        "class": named,
        "image": next((name for name in IMAGES if name in accepted), ""),
        "channels": config.get("in_channels"),
        "size": _number(config.get("sample_size")) or OTHER_SIZE,
        "has_time": "timestep" in accepted,
        "text_width": _first(config, TEXT_WIDTHS) if "encoder_hidden_states" in accepted else None,
        "classes": _first(config, CLASSES) if "class_labels" in accepted else None,
    }
    given = {facts["image"], "timestep", "class_labels" if facts["classes"] else ""}
    given.add("encoder_hidden_states" if facts["text_width"] else "")
    needed = {name for name, parameter in accepted.items() if parameter.default is parameter.empty and name != "self"}
    if lacking := sorted(needed - given) or ([] if facts["image"] and facts["channels"] else ["no image"]):
        raise UsageError(f"{model}: {named} takes {', '.join(lacking)}: {FACTORY_INSTEAD}")
    return facts


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _number(config.get(name)))), None)


def _number(value: object) -> int | None:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return first if isinstance(first, int) else None
