"""A model of torchvision, with random weights: `torchvision:NAME`."""

from typing import Any

from bakeoff.models.base import INPUT_SETS, Dimension, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.lazily import torch
from bakeoff.models.libraries import Facts, facts_of, import_library
from bakeoff.models.seeding import make_as_trained, seeded
from bakeoff.records.errors import UsageError, unknown

SIZE_ARGUMENTS = {"vision_transformer": "image_size", "maxvit": "input_size"}
"""Files of torchvision whose weights depend on the size of an image, and the argument that sets it."""

FIXED_DETECTORS = ("ssd", "ssdlite")
"""Files of detectors that resize every image to one size. The others resize it to the size that they are given."""

FIXED_VIDEOS = "mvit"
"""The file of models that take videos of one size only."""

DETECTION, SEGMENTATION, OPTICAL_FLOW, VIDEO = "detection", "segmentation", "optical_flow", "video"
"""Folders of torchvision.models with inputs of their own. All other models take one image."""


class Torchvision(Family):
    """One image, a list of images for a detector, two for an optical flow, or the frames of a video."""

    imports = ("torchvision",)

    def __init__(self, architecture: str) -> None:
        """Ask torchvision for the architecture's input. Raises UsageError if torchvision does not have it."""
        self.name = f"torchvision:{architecture}"
        self.architecture = architecture
        self.facts = facts_of(__name__, architecture)
        self.kind = self.facts["kind"]
        self.description = f"{architecture} of torchvision, with random weights"
        self.dimensions = {
            "batch": Dimension(1 if self.kind == DETECTION else 4, "images, pairs of images or videos per call"),
            "size": Dimension(self.facts["size"], "height and width of an image"),
        }
        if self.kind == VIDEO:
            self.dimensions["frames"] = Dimension(16, "frames of a video")

    def check(self, dimensions: Sizes) -> None:
        fixed = {name: dimension.default for name, dimension in self.dimensions.items() if name != "batch"}
        if self.facts["file"] == FIXED_VIDEOS and any(dimensions[name] != value for name, value in fixed.items()):
            raise UsageError(f"{self.name} takes only {', '.join(f'{name}={value}' for name, value in fixed.items())}")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        torchvision = import_library("torchvision", self.name)
        with seeded(seed):
            module = torchvision.models.get_model(self.architecture, weights=None, **self.arguments(dimensions))
            inputs = tuple(self._inputs(dimensions) for _ in range(INPUT_SETS))
            if self.kind == DETECTION:  # what follows the backbone chooses boxes and is no batch normalisation
                make_as_trained(module, [Inputs((torch.stack(given.args[0]),)) for given in inputs], module.backbone)
            else:
                make_as_trained(module, inputs)
        return LoadedModel(module.eval(), inputs)

    def arguments(self, dimensions: Sizes) -> dict[str, Any]:
        size = int(dimensions["size"])
        given: dict[str, Any] = {}
        if (argument := SIZE_ARGUMENTS.get(self.facts["file"])) and size != self.facts["size"]:
            given[argument] = size if argument == "image_size" else (size, size)
        if self.kind in (DETECTION, SEGMENTATION):
            given["weights_backbone"] = None
        if self.kind == DETECTION and self.facts["file"] not in FIXED_DETECTORS:
            given |= {"min_size": size, "max_size": size}
        return given

    def shapes(self, dimensions: Sizes) -> list[tuple[int, ...]]:
        batch, size = int(dimensions["batch"]), int(dimensions["size"])
        if self.kind == VIDEO:
            return [(batch, 3, int(dimensions["frames"]), size, size)]
        return [(batch, 3, size, size)] * (2 if self.kind == OPTICAL_FLOW else 1)

    def _inputs(self, dimensions: Sizes) -> Inputs:
        if self.kind == DETECTION:  # which normalises images itself
            size = int(dimensions["size"])
            return Inputs(([torch.rand(3, size, size) for _ in range(int(dimensions["batch"]))],))
        return Inputs(tuple(torch.randn(shape) for shape in self.shapes(dimensions)))


def describe(architecture: str) -> Facts:
    """Return which inputs the architecture takes, and the size that its weights were made for."""
    torchvision: Any = import_library("torchvision", f"torchvision:{architecture}")
    if architecture not in torchvision.models.list_models():
        raise unknown(
            "model of torchvision", architecture, torchvision.models.list_models(), "torchvision.models.list_models()"
        )
    *_, kind, file = torchvision.models.get_model_builder(architecture).__module__.split(".")
    if kind == "quantization":
        raise UsageError(f"torchvision:{architecture} is quantised already: name its float model, and --precision int8")
    return {"kind": kind, "file": file, "size": _size(torchvision, architecture, kind)}


def _size(torchvision: Any, architecture: str, kind: str) -> int:
    transforms: Any = torchvision.models.get_model_weights(architecture).DEFAULT.transforms()
    if kind == DETECTION:
        return next((size for size in (300, 320) if str(size) in architecture), 800)
    if kind == OPTICAL_FLOW:
        return 256
    sizes = getattr(transforms, "crop_size", None) or transforms.resize_size
    return int(sizes[0])
