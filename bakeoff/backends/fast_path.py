"""PyTorch's fast path: in inference, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call one fused operator.

TorchScript and torch.compile capture this operator whole and compile nothing inside of it; some exporters refuse it. So
only eager's modes take the fast path (`Mode.fast_path`), and `eager/no-fast-path` measures what it brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bakeoff.backends.base import Backend, Settings
from bakeoff.records.schema import Cell

if TYPE_CHECKING:
    import torch

SWITCH = "mha_fastpath"
"""The setting in which records tell whether the fast path was on, for models that can take it."""


def apply(backend: Backend, cell: Cell) -> None:
    """Switch the fast path on or off in this process, as the cell's mode says."""
    import torch

    torch.backends.mha.set_fastpath_enabled(backend.mode(cell.mode).fast_path)


def can_take(module: torch.nn.Module) -> bool:
    """Return True if the module has a layer with a fast path."""
    from torch import nn

    return any(isinstance(part, nn.TransformerEncoderLayer | nn.MultiheadAttention) for part in module.modules())


def in_force(module: torch.nn.Module) -> Settings:
    """Return whether the fast path is on, or nothing for a module that could not take it."""
    import torch

    return {SWITCH: torch.backends.mha.get_fastpath_enabled()} if can_take(module) else {}
