"""Modules in an unusual state: quantised already, lazy, on the meta device, in float16, in float64.

Right: the lazy module is initialised by a call; the reasons name the others' states.
"""

import torch
from torch import nn


def net(width=64):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def quantised(batch: int = 8):
    return torch.ao.quantization.quantize_dynamic(net(), {nn.Linear}, torch.qint8), torch.randn(batch, 64)


def lazy(batch: int = 8):
    return nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(10)), torch.randn(batch, 64)


def meta(batch: int = 8):
    with torch.device("meta"):
        module = net()
    return module, torch.randn(batch, 64)


def half(batch: int = 8):
    return net().half(), torch.randn(batch, 64, dtype=torch.float16)


def double(batch: int = 8):
    return net().double(), torch.randn(batch, 64, dtype=torch.float64)


class Narrow(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn), torch.complex(x, -x).to(torch.complex32)


def narrow(batch: int = 8):
    """It answers in types that torch does not compare."""
    return Narrow(), torch.randn(batch, 16)


def double_inputs(batch: int = 8):
    """Only the inputs are in float64."""
    return net(), torch.randn(batch, 64, dtype=torch.float64)
