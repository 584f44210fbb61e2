"""The rotary embedding of attention alone: the bytes of a layer's queries and keys, and hardly any arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bakeoff.models.base import Dimension, Drawn, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs_on
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError

if TYPE_CHECKING:
    import torch


class Rope(Drawn):
    """Queries and keys, each (batch, seq, heads, width), turned by their positions."""

    name = "rope"
    description = "rotary embedding (RoPE) of queries and keys"
    dimensions: Mapping[str, Dimension] = {
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(2048, "positions of a sequence"),
        "heads": Dimension(16, "attention heads"),
        "width": Dimension(128, "width of a head, an even number"),
    }

    def check(self, dimensions: Sizes) -> None:
        if int(dimensions["width"]) % 2:
            raise UsageError(
                f"{self.name}: width={dimensions['width']} is odd, and is turned in pairs: set an even one"
            )

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        from bakeoff.models.decoder_layers import RotaryEmbedding

        shape = tuple(int(dimensions[name]) for name in self.dimensions)
        _, seq, _, width = shape
        return LoadedModel(RotaryEmbedding(seq, width).eval(), normal_inputs_on(device, dtype, seed, shape, shape))
