"""An image model of timm, with random weights: `timm:NAME`."""

from typing import Any

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.libraries import Facts, facts_of, import_library
from bakeoff.models.seeding import make_as_trained, normal_inputs, seeded
from bakeoff.records.errors import unknown


class Timm(Family):
    """(batch, channels, size, size) -> what the architecture returns, in general (batch, classes)."""

    imports = ("timm",)

    def __init__(self, architecture: str) -> None:
        """Ask timm for the architecture's input. Raises UsageError if timm does not have it."""
        self.name = f"timm:{architecture}"
        self.architecture = architecture
        self.facts = facts_of(__name__, architecture)
        self.description = f"{architecture} of timm, with random weights"
        self.dimensions = {
            "batch": Dimension(4, "images per call"),
            "size": Dimension(self.facts["size"], "height of an image"),
        }

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        timm = import_library("timm", self.name)
        size = int(dimensions["size"])
        given = {"img_size": size} if self.facts["is_fixed"] and size != self.facts["size"] else {}
        with seeded(seed):
            module = timm.create_model(self.architecture, pretrained=False, **given)
            inputs = normal_inputs(*self.shape(dimensions))
            make_as_trained(module, inputs)
        return LoadedModel(module.eval(), inputs)

    def shape(self, dimensions: Sizes) -> tuple[int, int, int, int]:
        size = int(dimensions["size"])
        return int(dimensions["batch"]), self.facts["channels"], size, round(size * self.facts["width_over_height"])


def describe(architecture: str) -> Facts:
    """Return the shape of the architecture's input, and whether its weights depend on that shape."""
    timm: Any = import_library("timm", f"timm:{architecture}")
    if not timm.is_model(architecture.partition(".")[0]):
        raise unknown("model of timm", architecture, timm.list_models(), "timm.list_models()")
    config = timm.get_pretrained_cfg(architecture)
    channels, height, width = config.input_size if config else (3, 224, 224)
    return {
        "size": height,
        "width_over_height": width / height,
        "channels": channels,
        "is_fixed": bool(config and config.fixed_input_size),
    }
