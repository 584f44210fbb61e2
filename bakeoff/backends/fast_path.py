"""PyTorch's fast path: in inference, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call one fused operator.

torch.compile captures this operator whole and compiles nothing inside of it; some exporters refuse it. So only modes of
eager take the fast path, and those of TorchScript, as a user's own trace does (`Mode.fast_path`). `eager/no-fast-path`
measures what it brings. With a mask of padded places the fast path may answer zeros there, where layers without it have
other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from bakeoff.backends.base import Backend, Settings
from bakeoff.backends.runtime.folder import switch
from bakeoff.models.lazily import nn, torch
from bakeoff.records.schema import Cell

SWITCH = "mha_fastpath"
"""The setting in which records say whether the fast path was on, for models that can take it."""


def apply(backend: Backend, cell: Cell) -> None:
    """Switch the fast path on or off in this process, as the cell's mode says, and set the mode's other switches."""
    mode = backend.mode(cell.mode)
    torch.backends.mha.set_fastpath_enabled(mode.fast_path)
    switch(mode.switches)


@contextmanager
def switched_off() -> Iterator[None]:
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_on)


def can_take(module: torch.nn.Module) -> bool:
    return any(isinstance(part, nn.TransformerEncoderLayer | nn.MultiheadAttention) for part in module.modules())


def in_force(module: torch.nn.Module, switches: Mapping[str, bool] = MappingProxyType({})) -> Settings:
    """Return whether the fast path is on, or nothing for a module that could not take it, and a mode's switches."""
    fast: Settings = {SWITCH: torch.backends.mha.get_fastpath_enabled()} if can_take(module) else {}
    return {**fast, **switches}
