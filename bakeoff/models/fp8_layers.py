"""The layers of `bakeoff.models.fp8_transformer`. This file imports torch, so only workers import it.

In float64 every linear layer multiplies its weights as they were before rounding. So the reference is the model without
float8, and the error against it is the cost of float8.
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff.models.decoder_layers import QkvSplit, RMSNorm, RotaryEmbedding, SwiGLU
from bakeoff.models.template_layers import E4M3, LARGEST_E4M3
from bakeoff.records.errors import Unavailable


class Decoder(nn.Module):
    """`layers` decoder layers and a last normalisation: (batch, seq, dim) -> (batch, seq, dim)."""

    def __init__(self, layers: int, seq: int, dim: int, heads: int, ffn: int, linears: str) -> None:
        super().__init__()
        linear = LINEAR[linears]
        self.layers = nn.ModuleList(DecoderLayer(seq, dim, heads, ffn, linear) for _ in range(layers))
        self.norm = RMSNorm(dim)

    def forward(self, embeddings: Tensor) -> Tensor:
        for layer in self.layers:
            embeddings = layer(embeddings)
        normalised: Tensor = self.norm(embeddings)
        return normalised


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)). Everything between two products is a separate module."""

    def __init__(self, seq: int, dim: int, heads: int, ffn: int, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.query_key_value = linear(dim, 3 * dim)
        self.split = QkvSplit(heads)
        self.rope = RotaryEmbedding(seq, dim // heads)
        self.output = linear(dim, dim)
        self.feed_forward_norm = RMSNorm(dim)
        self.gate_and_up = linear(dim, 2 * ffn)
        self.activation = SwiGLU()
        self.down = linear(ffn, dim)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.split(self.query_key_value(self.attention_norm(x)))
        queries, keys = self.rope(queries, keys)
        attended = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        x = x + self.output(attended.transpose(1, 2).flatten(start_dim=2))
        x = x + self.down(self.activation(self.gate_and_up(self.feed_forward_norm(x))))
        return x


class PlainLinear(nn.Module):
    """x @ weight.T in the type that both have. The weight (outputs, inputs) is drawn as in nn.Linear."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-1, 1) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class ScaledLinear(PlainLinear):
    """x @ weight.T by torch's scaled product of e4m3 matrices, accumulated in float32. The scale of x is computed in
    every call, and the weight's when it is moved or cast, as in TransformerEngine's current scaling."""

    rounded: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.quantise = Quantise()
        self.register_buffer("rounded", torch.empty(0), persistent=False)
        self.register_buffer("scale", torch.empty(0), persistent=False)
        self._round()

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float64:
            return super().forward(x)
        rounded, scale = self.quantise(x.flatten(end_dim=-2))
        product = torch._scaled_mm(
            rounded, self.rounded.t(), scale_a=scale, scale_b=self.scale, out_dtype=x.dtype, use_fast_accum=True
        )
        shaped: Tensor = product.unflatten(0, x.shape[:-1])
        return shaped

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._round()
        return self

    def _round(self) -> None:
        """Round the weight as it is now. Casting the rounded one would change its float8 and its scale's float32."""
        with torch.no_grad():
            self.rounded, self.scale = self.quantise(self.weight)


class Quantise(nn.Module):
    """Maps (rows, dim) to the same in e4m3, and the scale in float32 that undoes it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        peak = torch.linalg.vector_norm(x, math.inf)
        # in the type of x, so that the scale undoes exactly what x is multiplied by
        factor = (LARGEST_E4M3 / peak).clamp(max=torch.finfo(x.dtype).max)
        return (x * factor).to(E4M3), factor.float().reciprocal()


class TransformerEngineLinear(PlainLinear):
    """x @ weight.T by TransformerEngine, in e4m3 with current scaling. It needs CUDA and 16 bits."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self._engine: tuple[Any, ...] = ()  # a tuple hides its weight from our parameters

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == torch.float64:
            return super().forward(x)
        import transformer_engine.pytorch as te

        linear, recipe, is_new = self._engine
        with te.autocast(enabled=True, recipe=recipe):
            product: Tensor = linear(x, is_first_microbatch=is_new)
        # the first call rounds the weight and keeps it
        self._engine = (linear, recipe, False)
        return product

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.weight.dtype != torch.float64:
            self._engine = transformer_engine_layer(self.weight)
        return self


def transformer_engine_layer(weight: nn.Parameter) -> tuple[Any, Any, bool]:
    """Return a layer of TransformerEngine with this weight, its recipe, and True, since it was never called."""
    if not weight.is_cuda or weight.element_size() != 2:
        raise Unavailable("TransformerEngine's linear layers need CUDA, and bf16 or fp16: --set linears=torch")
    try:
        import transformer_engine.pytorch as te
        from transformer_engine.common.recipe import Float8CurrentScaling, Format
    except (ImportError, OSError) as error:  # OSError for a library that it loads, mostly another cuDNN than PyTorch's
        raise Unavailable(
            f"TransformerEngine does not import ({error}): --set linears=torch, or, where it is about cuDNN, "
            "LD_LIBRARY_PATH with the folder of PyTorch's in front"
        ) from error
    outputs, inputs = weight.shape
    linear = te.Linear(inputs, outputs, bias=False, params_dtype=weight.dtype, device=weight.device)
    linear.weight = weight
    return linear.eval(), Float8CurrentScaling(fp8_format=Format.E4M3), True


LINEAR: dict[str, Callable[[int, int], nn.Module]] = {
    "torch": ScaledLinear,
    "transformer-engine": TransformerEngineLinear,
    "plain": PlainLinear,
}
