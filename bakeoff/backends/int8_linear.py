"""Int8 on CUDA for eager: a linear layer that torchao quantised, on torch's own int8 product.

torchao's layers are made for a compiler. Called without one, torchao 0.18 looks for "FakeTensor" in the printed form of
each input (`torchao.kernel.intmm.safe_int_mm`). Every call then waits for the device, formats a tensor, which takes
milliseconds, and copies the weight.
"""

from typing import Any

import torch
from torch import Tensor, nn


class Int8Linear(nn.Module):
    """Maps (..., K) to (..., N) in float32 by an int8 product, with torchao's arithmetic and its kernel."""

    int8_weight: Tensor
    fed_scale: Tensor
    fed_steps: Tensor
    weight_scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        """Take over a layer that Int8StaticActivationInt8WeightConfig quantised, with scales per tensor and per row."""
        super().__init__()
        quantised: Any = layer.weight
        fed_scale = quantised.act_quant_scale.reshape(())
        self.register_buffer("int8_weight", quantised.qdata.contiguous())
        self.register_buffer("fed_scale", fed_scale)
        self.register_buffer("fed_steps", 1.0 / fed_scale)
        self.register_buffer("weight_scale", quantised.scale.flatten())
        self.bias = layer.bias

    def forward(self, fed: Tensor) -> Tensor:
        steps = (fed * self.fed_steps).round_().clamp_(-128, 127).to(torch.int8)
        product = torch._int_mm(steps.reshape(-1, steps.shape[-1]), self.int8_weight.t())
        scaled = (product * self.fed_scale).mul_(self.weight_scale)
        if self.bias is not None:
            scaled += self.bias
        return scaled.view(*fed.shape[:-1], -1)
