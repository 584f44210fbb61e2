"""The template models: small networks of one kind of work each, and single operations, over standard normal inputs.

The modules are in models/template_layers.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from bakeoff.models.base import INPUT_SETS, Dimension, Drawn, Family, Inputs, LoadedModel, Sizes
from bakeoff.models.lazily import nn, torch
from bakeoff.models.seeding import normal_inputs_on, seeded
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision

MULTIPLE = 16
"""Sizes of a float8 product, and the bytes of a tensor descriptor's rows, are multiples of this."""


@dataclass(frozen=True, eq=False)
class Template(Family):
    """A family that is drawn on the CPU."""

    name: str
    description: str
    module: str  # of template_layers, made with those dimensions that it has as parameters
    shapes: tuple[tuple[str, ...], ...]  # of the arguments, by the names of dimensions
    dimensions: Mapping[str, Dimension]
    may_convolve: bool = False
    input_gradients: bool = False

    def check(self, dimensions: Sizes) -> None:
        heads, dim = dimensions.get("heads"), dimensions.get("dim")
        if heads is not None and dim is not None and int(dim) % int(heads):
            raise UsageError(f"{self.name}: heads={heads} does not divide dim={dim}: set one of them so that it does")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        with seeded(seed):
            module = self.made(dimensions)
            sets = [Inputs(tuple(map(torch.randn, self.sizes(dimensions)))) for _ in range(INPUT_SETS)]
        return LoadedModel(module.eval(), tuple(sets), input_gradients=self.input_gradients)

    def made(self, dimensions: Sizes) -> nn.Module:
        from bakeoff.models import template_layers

        make = getattr(template_layers, self.module)
        parameters = inspect.signature(make).parameters
        module: nn.Module = make(**{name: value for name, value in dimensions.items() if name in parameters})
        return module

    def sizes(self, dimensions: Sizes) -> list[tuple[int, ...]]:
        return [tuple(int(dimensions[name]) for name in shape) for shape in self.shapes]


@dataclass(frozen=True, eq=False)
class Workload(Template, Drawn):
    """One operation to compare hand-written kernels with, on tensors that are drawn on the cell's device."""

    multiples: tuple[str, ...] = ()  # dimensions that must be multiples of `MULTIPLE`
    even: tuple[str, ...] = ()
    takes: tuple[Precision, ...] = tuple(Precision)
    otherwise: str = ""  # what is said of other precisions
    products: Precision | None = None

    load = Drawn.load

    def precision_reason(self, precision: Precision) -> str:
        return "" if precision in self.takes else f"{self.name} {self.otherwise}"

    def check(self, dimensions: Sizes) -> None:
        for name in self.multiples:
            if int(dimensions[name]) % MULTIPLE:
                raise UsageError(f"{self.name}: {name} must be a multiple of {MULTIPLE}, not {dimensions[name]}")
        for name in self.even:
            if int(dimensions[name]) % 2:
                raise UsageError(f"{self.name}: {name} must be even, not {dimensions[name]}")

    def load_on(self, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        is_quantised = self.products is Precision.FP8
        drawn_in = torch.float32 if is_quantised else dtype
        sets = normal_inputs_on(device, drawn_in, seed, *self.sizes(dimensions))
        if is_quantised:
            from bakeoff.models.template_layers import in_e4m3

            sets = tuple(inputs.map(in_e4m3) for inputs in sets)
        return LoadedModel(self.made(dimensions).eval(), sets)


# So small that a backend's cost per call decides, and not its multiplications.
MLP = Template(
    "mlp",
    "three linear layers with ReLU between them",
    module="mlp",
    shapes=(("batch", "features"),),
    dimensions={
        "batch": Dimension(4, "rows per call"),
        "features": Dimension(256, "width of input and output"),
        "hidden": Dimension(512, "width of the two hidden layers"),
    },
)

# Compilers can fold batch normalisation, fuse ReLU, and choose the memory layout.
CONV = Template(
    "conv",
    "two blocks of 3x3 convolution, batch normalisation and ReLU, and a 1x1 convolution",
    module="conv",
    shapes=(("batch", "channels", "size", "size"),),
    dimensions={
        "batch": Dimension(4, "images per call"),
        "channels": Dimension(3, "channels of an image"),
        "size": Dimension(128, "height and width of an image, in pixels"),
        "width": Dimension(32, "channels between the blocks"),
        "classes": Dimension(8, "channels of the output"),
    },
    may_convolve=True,
)

TRANSFORMER = Template(
    "transformer",
    "pre-norm transformer encoder layers over embeddings, without mask or dropout",
    module="Encoder",
    shapes=(("batch", "seq", "dim"),),
    dimensions={
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(128, "positions of a sequence"),
        "dim": Dimension(256, "width of an embedding; heads must divide it"),
        "layers": Dimension(2, "encoder layers"),
        "heads": Dimension(4, "attention heads of a layer"),
        "ffn": Dimension(1024, "width between the two linear layers of a feed-forward block"),
    },
)

# It shows the cost of its scores, which grow with the square of seq. It has no mask and no weights.
ATTENTION = Template(
    "attention",
    "single-head softmax attention, written out (naive) or scaled_dot_product_attention (sdpa)",
    module="attention",
    shapes=(("batch", "seq", "d_model"),) * 3,
    dimensions={
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(1024, "positions of a sequence"),
        "d_model": Dimension(64, "width of the head"),
        "variant": Dimension("naive", "how it is computed", choices=("naive", "sdpa")),
    },
    input_gradients=True,
)

ATTENTION_BLOCK = Template(
    "attention_block",
    "QKV projections and softmax attention, written out",
    module="WrittenOutAttention",
    shapes=(("batch", "seq", "dim"),),
    dimensions={
        "batch": Dimension(2, "sequences per call"),
        "seq": Dimension(64, "positions of a sequence"),
        "dim": Dimension(128, "width of a position; heads must divide it"),
        "heads": Dimension(4, "attention heads"),
    },
)

# Vendor libraries already do these best, so compiling gains little.
MATMUL_CHAIN = Template(
    "matmul_chain",
    "a chain of square matrix products",
    module="Chain",
    shapes=(("batch", "size"),),
    dimensions={
        "batch": Dimension(64, "rows per call"),
        "size": Dimension(256, "rows and columns of each matrix"),
        "length": Dimension(4, "matrices in the chain"),
    },
)

# For compilers that fuse.
MIXED_OPS = Template(
    "mixed_ops",
    "elementwise operations, reductions, a small matrix product and a layer normalisation, repeated",
    module="mixed_ops",
    shapes=(("batch", "features"),),
    dimensions={
        "batch": Dimension(256, "rows per call"),
        "features": Dimension(256, "width of a row"),
        "rank": Dimension(16, "inner width of the small matrix products"),
        "layers": Dimension(3, "how often the sequence is repeated"),
    },
)

# The bytes of a layer's queries and keys, and hardly any arithmetic.
ROPE = Workload(
    "rope",
    "rotary embedding (RoPE) of queries and keys",
    module="RotaryEmbedding",
    shapes=(("batch", "seq", "heads", "width"),) * 2,
    dimensions={
        "batch": Dimension(8, "sequences per call"),
        "seq": Dimension(2048, "positions of a sequence"),
        "heads": Dimension(16, "attention heads"),
        "width": Dimension(128, "width of a head, an even number"),
    },
    even=("width",),
)

FUSED_ADD_RELU_MUL = Workload(
    "fused_add_relu_mul",
    "relu(x + y) * z of long vectors: three kernels in eager, one pass over memory when fused",
    module="AddReluMul",
    shapes=(("elements",),) * 3,
    dimensions={"elements": Dimension(10_000_000, "length of each vector")},
)

TMA_COPY = Workload(
    "tma_copy",
    "a copy of a matrix: how fast do tiles come in by pointers, and by tensor descriptors (TMA)?",
    module="Copy",
    shapes=(("rows", "columns"),),
    dimensions={
        "rows": Dimension(8192, "rows of the matrix"),
        "columns": Dimension(8192, f"columns of the matrix, a multiple of {MULTIPLE}"),
    },
    multiples=("columns",),
)

MATMUL_FP16 = Workload(
    "matmul_fp16",
    "a product of two matrices in float16; right is stored transposed, as a linear layer's weight is",
    module="Product",
    shapes=(("m", "k"), ("n", "k")),
    dimensions={
        "m": Dimension(8192, "rows of the result"),
        "n": Dimension(8192, "columns of the result"),
        "k": Dimension(8192, "what is summed over"),
    },
    multiples=("m", "n", "k"),
    takes=(Precision.FP16,),
    otherwise="multiplies float16: use --precision fp16",
)

MATMUL_FP8 = Workload(
    "matmul_fp8",
    "a product of two float8 (e4m3) matrices with a scale each; the result is in the cell's precision",
    module="scaled_product",
    shapes=MATMUL_FP16.shapes,
    dimensions=MATMUL_FP16.dimensions,
    multiples=MATMUL_FP16.multiples,
    takes=(Precision.FP32, Precision.BF16, Precision.FP16),
    otherwise="multiplies float8 already: its precision is the result's, use --precision bf16",
    products=Precision.FP8,
)
