"""Backends whose names are known but that are not built yet: each ends as a row that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from backends.base import Availability, Backend, BuildContext, Compiled
from reports.errors import BakeoffError

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

NOT_BUILT = "not built yet"


class Planned(Backend):
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {"default": {}}
    libraries: ClassVar[tuple[str, ...]] = ()

    def available(self, device: str) -> Availability:
        return Availability(NOT_BUILT)

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        raise BakeoffError(f"{self.name}: {NOT_BUILT}")


class AOTInductor(Planned):
    name = "aotinductor"
    description = "torch.export, compiled ahead of time by Inductor into a package"


class TensorRT(Planned):
    name = "tensorrt"
    description = "TensorRT engine built from ONNX"


class TorchTensorRT(Planned):
    name = "torch-tensorrt"
    description = "Torch-TensorRT through torch.export"
