"""A decoder with linear layers in float8, which a compiler cannot read, and other layers between them."""

import importlib.util

from bakeoff.models.base import Dimension, Family, LoadedModel, Sizes
from bakeoff.models.seeding import normal_inputs, seeded
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision

TORCH, TRANSFORMER_ENGINE, PLAIN = LINEARS = ("torch", "transformer-engine", "plain")

SIZES = ("batch", "seq", "dim", "heads", "layers", "ffn")

BETWEEN_PRODUCTS = (
    "layers.*.attention_norm",
    "layers.*.split",
    "layers.*.rope",
    "layers.*.feed_forward_norm",
    "layers.*.activation",
    "norm",
)
"""The targets of surgical compilation: everything except linear layers, attention and the residual sums."""

MULTIPLE = 16
"""Every size of a float8 product must be a multiple of this."""


class Fp8Transformer(Family):
    """(batch, seq, dim) -> (batch, seq, dim). `linears` chooses TransformerEngine's linear layers, torch's own scaled
    product, or `plain` ones, which separate the cost of float8 from the rest."""

    name = "fp8_transformer"
    description = "decoder layers (RMSNorm, RoPE, causal attention, SwiGLU) with linear layers in float8"
    may_convolve = False
    products = Precision.FP8

    def __init__(self) -> None:
        self.dimensions = {
            "batch": Dimension(8, "sequences per call"),
            "seq": Dimension(2048, "positions of a sequence"),
            "dim": Dimension(2048, "width of an embedding; heads must divide it"),
            "heads": Dimension(16, "attention heads of a layer"),
            "layers": Dimension(4, "decoder layers"),
            "ffn": Dimension(4096, "width between the linear layers of a feed-forward block"),
            "linears": Dimension(installed(), "who multiplies in the linear layers", choices=LINEARS),
        }

    def check(self, dimensions: Sizes) -> None:
        batch, seq, dim, heads, _, ffn = (int(dimensions[name]) for name in SIZES)
        if dim % (2 * heads):
            raise UsageError(
                f"{self.name}: heads={heads} does not divide dim={dim} into even widths: change one of them"
            )
        sizes = {"batch times seq": batch * seq, "dim": dim, "ffn": ffn}
        for name, size in sizes.items():
            if size % MULTIPLE and dimensions["linears"] != PLAIN:
                raise UsageError(
                    f"{self.name}: {name} must be a multiple of {MULTIPLE} for float8 products, not {size}"
                )

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        from bakeoff.models.fp8_layers import Decoder

        batch, seq, dim, heads, layers, ffn = (int(dimensions[name]) for name in SIZES)
        with seeded(seed):
            module = Decoder(layers, seq, dim, heads, ffn, str(dimensions["linears"])).eval()
            inputs = normal_inputs(batch, seq, dim)
        work = _work(dimensions) if dimensions["linears"] == TRANSFORMER_ENGINE else None
        return LoadedModel(module, inputs, surgical_targets=BETWEEN_PRODUCTS, work=work)


def _work(dimensions: Sizes) -> tuple[int, int]:
    """Return the operations and bytes of a call, as counting would: attention without the savings of its mask, float8
    weights once, and inputs and outputs in 16 bits."""
    batch, seq, dim, _, layers, ffn = (int(dimensions[name]) for name in SIZES)
    weights = layers * (4 * dim * dim + 3 * dim * ffn)
    positions = batch * seq
    attention = layers * 4 * positions * seq * dim
    return 2 * positions * weights + attention, weights + 2 * 2 * positions * dim


def installed() -> str:
    """Return which float8 layers this machine has, without importing the package."""
    return TRANSFORMER_ENGINE if importlib.util.find_spec("transformer_engine") else TORCH
