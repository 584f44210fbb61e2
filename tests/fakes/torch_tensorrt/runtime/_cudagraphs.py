from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_switched: list[bool] = []
"""Every switch there was, for a test to read."""


def enable_cudagraphs(compiled_module: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
    @contextmanager
    def switch() -> Iterator[torch.nn.Module]:
        _switched.append(True)
        yield compiled_module
        _switched.append(False)

    return switch()
