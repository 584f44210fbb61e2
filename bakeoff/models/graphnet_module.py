"""The module that `bakeoff.models.graphnet` makes of a graph, and its tensors. This file imports torch."""

from typing import Any

import torch
from torch import nn


class Graph(nn.Module):
    """Calls a graph with the tensors that it owns, by the names of the graph's arguments, and with those of a call."""

    def __init__(self, graph: nn.Module, names: list[str], own: dict[str, Any]) -> None:
        super().__init__()
        self.graph, self.names, self.own = graph, names, frozenset(own)
        for name, value in own.items():
            if not isinstance(value, torch.Tensor):
                setattr(self, name, value)
            elif value.is_floating_point() and "_parameters_" in name:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        given = iter(inputs)
        return self.graph(*(getattr(self, name) if name in self.own else next(given) for name in self.names))


def drawn(name: str, described: dict[str, Any]) -> Any:
    """Return a tensor of these statistics, drawn by torch's seeded generator: variances are positive, and whole numbers
    in their range. What is a number in the extracted model, such as a size, is one here."""
    dtype: torch.dtype = getattr(torch, described["dtype"].rpartition(".")[2])
    shape, data = list(described["shape"]), described.get("data")
    mean, std = described.get("mean") or 0.0, described.get("std")
    low, high = described.get("min_val"), described.get("max_val")
    if data is not None:
        is_number = not shape and described["device"] == "cpu"
        return data[0] if is_number else torch.tensor(data, dtype=dtype).reshape(shape)
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:  # without a range they are below twice their mean, or 0 and 1
        least, most = (0, round(2 * mean) or 1) if low is None or high is None else (int(low), int(high))
        return torch.randint(least, most + 1, shape, dtype=dtype)
    values = torch.randn(shape) * (0.1 if std is None else std) + mean
    values = values.clamp(low, high) if low is not None or high is not None else values
    return (values.abs() + 1e-3 if "running_var" in name else values).to(dtype)
