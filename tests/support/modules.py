"""Modules that tests make of a function."""

from collections.abc import Callable
from typing import Any

from torch import nn


class Calling(nn.Module):
    """Its call is one of the function, which gets the module and what it is called with. `parts` are within it."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)
