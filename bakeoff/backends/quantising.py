"""Post-training quantisation of torch modules by torchao. `bakeoff.backends.onnx_quantising` does the same for ONNX.

The recipe is the same for every backend:

`int8`: each linear layer and each convolution multiplies whole numbers of 8 bits. Weights are symmetric, with one scale
per output channel. Inputs of a layer have one scale per tensor, fixed beforehand from the cell's own input sets (static
quantisation). Everything between the layers stays float32. Products of two activations, as in attention, are not
quantised.

`w8a16` and the like, which round weights alone: see `bakeoff.backends.weight_only`.

`fp8`: each linear layer multiplies float8 (e4m3) and accumulates in float32. Weights have one scale per output channel.
Inputs of a layer have one scale per row, computed in every call (dynamic quantisation). The rest stays bfloat16.

Layers that a library leaves in floating point are counted and reported. If that is most of a model, the cell is
Unsupported.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bakeoff.backends.base import BuildContext, Compiled, Settings, Wrapped, require
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import inductor_config, nn, torch
from bakeoff.records.errors import BakeoffError, Unavailable, Unsupported
from bakeoff.records.precision import GROUP_WEIGHTS, Precision
from bakeoff.records.schema import Cell

TORCHAO = [
    f"torchao.quantization.pt2e.{name}" for name in ("lowering", "quantize_pt2e", "quantizer.x86_inductor_quantizer")
]

MIN_QUANTISED_SHARE = 0.5
"""Minimum share of the layers' weights. Below it, the latency would not be that of the precision."""

MIN_FP8_CAPABILITY = (8, 9)
"""The first compute capability with float8 matrix products (Ada; Hopper is 9.0)."""

MIN_INT8_ROWS = 17
"""The fewest rows that torch._int_mm takes on CUDA. With fewer rows torchao silently multiplies in float32."""

INT8_MULTIPLE, FP8_MULTIPLE = 8, 16
"""cuBLAS's int8 and float8 products need both sizes of a weight to be a multiple of this."""

TILED = "tile_packed_to_4d"
"""torchao's layout for the 4-bit kernel that torch itself has, tinygemm: bfloat16 on NVIDIA GPUs from 8.0 on."""

MIN_RANGE = 1e-6
"""A layer whose inputs are all zeros still needs a scale over zero."""


@dataclass(frozen=True)
class Prepared:
    """A module in the cell's precision, for a backend of the torch family to run or compile.

    A quantised module takes the tensors of `Inputs.tensors` by position, and `inputs` has them in that form. `layers`
    counts what was quantised and what was left. With `spares_inputs`, calling it leaves its inputs alone by itself, or
    is meant to write into them.
    """

    module: torch.nn.Module
    inputs: Inputs
    layers: Settings = field(default_factory=dict)
    needs_freezing: bool = False
    spares_inputs: bool = False

    def compiling(self, freezes: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return the context for torch.compile and its first calls. With `freezes`, weights are constants in it, as
        oneDNN's int8 kernels need them."""
        if not (freezes or self.needs_freezing):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = inductor_config.patch(freezing=True)
        return context

    def example(self) -> Inputs:
        """Return inputs to call the module with while building. The module may overwrite them."""
        return Inputs(_own_tensors(self.inputs)) if self.layers else self.inputs

    def sparing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return sparing_inputs(function, self.inputs) if self.layers and not self.spares_inputs else function

    def adapt(self, compiled: Compiled) -> Compiled:
        return Flattened(compiled, self.layers, self.needs_freezing) if self.layers else compiled


def sparing_inputs(function: Callable[..., Any], inputs: Inputs) -> Callable[..., Any]:
    """Return a function of flat tensors like `inputs`, changed so that it leaves its inputs alone."""
    tensors = _own_tensors(inputs)
    function(*tensors)
    # a tensor that the call has changed becomes the buffer that later calls may overwrite
    buffers = [
        None if torch.equal(tensor, given) else tensor for tensor, given in zip(tensors, inputs.tensors(), strict=True)
    ]
    if all(buffer is None for buffer in buffers):
        return function

    def on_copies(*given: torch.Tensor) -> Any:
        pairs = zip(given, buffers, strict=True)
        # oneDNN adds a residual into its own buffer, and Inductor 2.13 hands it the caller's on the CPU
        return function(*(tensor if buffer is None else buffer.copy_(tensor) for tensor, buffer in pairs))

    return on_copies


class Flattened(Wrapped):
    """Passes the tensors of the model's own arguments by position to a compiled model."""

    def __init__(self, compiled: Compiled, layers: Settings, frozen: bool) -> None:
        super().__init__(compiled)
        self._layers = layers
        self._frozen = frozen

    def bind(self, inputs: Inputs) -> None:
        super().bind(Inputs(inputs.tensors()))

    def instance(self) -> Compiled:
        return Flattened(self._inner.instance(), self._layers, self._frozen)

    def precision(self) -> Settings:
        return {**super().precision(), **self._layers}

    def settings(self) -> Settings:
        return {**super().settings(), **({"freezing": True} if self._frozen else {})}


def prepare(module: torch.nn.Module, inputs: Inputs, context: BuildContext, lower: bool) -> Prepared:
    """Return the module in the cell's precision: as it is, or a quantised copy. With `lower`, that runs on int8 kernels
    without a compiler. Raise Unsupported if too little of the model can be quantised."""
    precision = context.cell.precision
    if not precision.is_quantised:
        return Prepared(module, inputs)
    purpose = "quantised precisions in torch need torch 2.11 and torchao"
    require(purpose, "torchao", *TORCHAO)  # before the phase, which does not time imports
    with context.phase("export"):
        if precision is Precision.FP8:
            return torch_fp8(module, inputs)
        if precision.is_weight_only:
            return torchao_weights(module, inputs, context.cell)
        if not context.calibration:
            raise BakeoffError("int8 needs the model's input sets for calibration, and got none")
        quantise = torch_int8_cuda if context.cell.device.is_cuda else torch_int8_cpu
        return quantise(module, inputs, context.calibration, lower, context.kept_in_float32)


def torch_int8_cpu(
    module: torch.nn.Module, inputs: Inputs, calibration: Iterable[Inputs], lower: bool, kept: Sequence[str] = ()
) -> Prepared:
    """Quantise linear layers and 1-d and 2-d convolutions with torchao's X86InductorQuantizer, but no modules in
    `kept`. With `lower` the result calls oneDNN's kernels; without, a compiler has to make them."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer
    from torchao.utils import should_reduce_range

    from bakeoff.backends.calling import FlatModule, plain_tensors

    if "onednn" not in torch.backends.quantized.supported_engines:
        raise Unavailable("this build of torch has no oneDNN int8 kernels for the CPU")
    config = x86_inductor_quantizer.get_default_x86_inductor_quantization_config(
        reduce_range=should_reduce_range(torch.device("cpu"))
    )
    quantizer = x86_inductor_quantizer.X86InductorQuantizer()
    quantizer.set_module_type_qconfig(torch.nn.Linear, config)
    quantizer.set_module_type_qconfig(torch.nn.Conv2d, config)
    quantizer.set_function_type_qconfig(torch.nn.functional.conv1d, config)
    for path in kept:
        quantizer.set_module_name_qconfig(f"module.{path}", None)  # in `FlatModule`
    with plain_tensors():
        example = _own_tensors(inputs)
        program = torch.export.export(FlatModule(copy.deepcopy(module), inputs), example)
        exported = program.module()
        exported.graph.eliminate_dead_code()  # torchao's quantiser fails on a layer that nothing uses
        exported.recompile()
        observed = prepare_pt2e(exported, quantizer)
        for calibrating in calibration:
            observed(*_own_tensors(calibrating))
        converted = convert_pt2e(observed)
        layers = list(_layers_of_graph(converted))
        counted = counted_layers(layers, Precision.INT8, may_be_few=bool(kept))
        if lower:
            converted = _lowered(converted, example, sum(layer.quantised for layer in layers))
    return Prepared(converted, Inputs(example), counted, needs_freezing=not lower)


def torch_int8_cuda(
    module: torch.nn.Module,
    inputs: Inputs,
    calibration: Iterable[Inputs],
    lower: bool = False,
    kept: Sequence[str] = (),
) -> Prepared:
    """Apply torchao's Int8StaticActivationInt8WeightConfig to every nn.Linear that cuBLAS has an int8 product for.
    Modules in `kept` stay in float32. With `lower`, the layers become `Int8Linear`, which needs no compiler."""
    from torchao.quantization import Int8StaticActivationInt8WeightConfig, PerRow, PerTensor, quantize_

    from bakeoff.backends.calling import plain_tensors

    with plain_tensors():
        flat = _flat_copy(module, inputs)
        copied = getattr(flat, "module", flat) if type(flat) is not type(module) else flat
        left = {id(part) for path in kept for part in copied.get_submodule(path).modules()}
        linear = [part for part in flat.modules() if _is_linear(part) and id(part) not in left]
        fed = _observe(flat, linear, calibration)
        for part, seen in fed.items():
            if seen.rows < MIN_INT8_ROWS or any(size % INT8_MULTIPLE for size in part.weight.shape):
                continue
            config = Int8StaticActivationInt8WeightConfig(
                act_quant_scale=torch.full(
                    [1] * seen.dimensions, max(seen.peak, MIN_RANGE) / 127.5, device=part.weight.device
                ),
                granularity=[PerTensor(), PerRow()],
                set_inductor_config=False,
            )
            quantize_(part, config, filter_fn=lambda _, name: name == "")
        counted = counted_layers(
            _layers_of_module(flat),
            Precision.INT8,
            hint=f"cuBLAS needs {MIN_INT8_ROWS} rows or more per call",
            may_be_few=bool(kept),
        )
        if lower:
            flat = _on_int_mm(flat)
    return Prepared(flat, Inputs(inputs.tensors()), counted)


def torch_fp8(module: torch.nn.Module, inputs: Inputs) -> Prepared:
    """Apply torchao's Float8DynamicActivationFloat8WeightConfig, with a scale per row, to every nn.Linear that fits.
    Raise Unavailable below MIN_FP8_CAPABILITY."""
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    if device.type != "cuda":
        raise Unsupported(f"float8 products need an NVIDIA GPU, not {device.type}")
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_FP8_CAPABILITY:
        have, need = (".".join(map(str, version)) for version in (capability, MIN_FP8_CAPABILITY))
        raise Unavailable(f"float8 products need compute capability {need}, and this GPU has {have}")
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    from bakeoff.backends.calling import plain_tensors

    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    with plain_tensors():
        flat = _flat_copy(module, inputs)
        quantize_(
            flat,
            config,
            filter_fn=lambda part, _: _is_linear(part) and not any(size % FP8_MULTIPLE for size in part.weight.shape),
        )
        counted = counted_layers(
            _layers_of_module(flat), Precision.FP8, hint=f"sizes must be multiples of {FP8_MULTIPLE}"
        )
        counted["fp8 fast accumulation"] = bool(config.mm_config.use_fast_accum)
    return Prepared(flat, Inputs(inputs.tensors()), counted)


def torchao_weights(module: torch.nn.Module, inputs: Inputs, cell: Cell) -> Prepared:
    """Round a copy of `module` with torchao. Raise Unsupported where it has no product with such weights."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    from bakeoff.backends.calling import plain_tensors

    precision = cell.precision
    config: Any = Int8WeightOnlyConfig(set_inductor_config=False)
    if precision.has_4_bit_weights:
        if not cell.device.is_cuda:
            raise Unsupported("torchao has no product with 4-bit weights for the CPU")
        if precision is not Precision.W4A16:
            raise Unsupported("torch's product with 4-bit weights takes bfloat16 alone: use w4a16")
        config = Int4WeightOnlyConfig(group_size=GROUP_WEIGHTS, int4_packing_format=TILED, set_inductor_config=False)
    with plain_tensors():
        flat = _flat_copy(module, inputs)
        quantize_(flat, config, filter_fn=lambda part, _: _is_linear(part))
        layers = counted_layers(_layers_of_module(flat), precision)
    return Prepared(flat, Inputs(inputs.tensors()), layers, spares_inputs=True)


@dataclass(frozen=True)
class Layer:
    kind: str  # linear, convolution, or the name of an unknown module's type
    weights: int
    quantised: bool


def counted_layers(
    layers: Iterable[Layer], precision: Precision, hint: str = "", library: str = "torchao", may_be_few: bool = False
) -> Settings:
    """Count the layers of each kind and precision. Raise Unsupported if too few of the weights are quantised, unless
    there `may_be_few`."""
    layers = list(layers)
    total = sum(layer.weights for layer in layers)
    quantised = sum(layer.weights for layer in layers if layer.quantised)
    if not total:
        raise Unsupported("there is nothing to quantise: the model has no linear layer and no convolution")
    left = Counter(layer.kind for layer in layers if not layer.quantised)
    if quantised < MIN_QUANTISED_SHARE * total and not may_be_few:
        kinds = ", ".join(f"{count} {kind}" for kind, count in left.items())
        share = f"{100 * quantised / total:.0f} %"
        reason = f"{library} brings {share} of the layers' weights to {precision} here; {kinds} would stay"
        reason += f" in {precision.input_type}"
        raise Unsupported(f"{reason} ({hint})" if hint else reason)
    rounded = Counter(layer.kind for layer in layers if layer.quantised)
    return {
        **{f"{precision} {kind} layers": count for kind, count in rounded.items()},
        **{f"{precision.input_type} {kind} layers": count for kind, count in left.items()},
    }


def _layers_of_graph(graph_module: Any) -> Iterator[Layer]:
    """Yield the layers of a graph after convert_pt2e. Dequantise operators feed both inputs of a quantised layer."""
    aten = torch.ops.aten
    linear = (aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default)
    for node in graph_module.graph.nodes:
        is_convolution = str(node.target).startswith("aten.conv")
        if node.op != "call_function" or not (is_convolution or node.target in linear):
            continue
        kind, index = "convolution" if is_convolution else "linear", 2 if node.target == aten.addmm.default else 1
        fed, weight = node.args[index - 1], node.args[index]
        constant = _constant(graph_module, weight)
        if constant is not None:
            yield Layer(kind, constant.numel(), _is_dequantised(fed) and _is_dequantised(weight))


def _constant(graph_module: Any, node: Any) -> torch.Tensor | None:
    while node.op == "call_function" and _is_dequantised(node):
        node = node.args[0]
    if node.op != "get_attr":
        return None
    tensor: torch.Tensor = operator.attrgetter(node.target)(graph_module)
    return tensor


def _is_dequantised(node: Any) -> bool:
    return node.op == "call_function" and "dequantize" in str(node.target)


def _layers_of_module(module: torch.nn.Module) -> Iterator[Layer]:
    """Yield the parts that own a weight of two or more dimensions, except embeddings and normalisations."""
    from torchao.utils import TorchAOBaseTensor

    for part in module.modules():
        weight = getattr(part, "weight", None)
        if weight is None or weight.dim() < 2 or isinstance(part, (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm)):
            continue
        name = type(part).__name__
        kind = "linear" if isinstance(part, nn.Linear) else "convolution" if name.startswith("Conv") else name
        yield Layer(kind, weight.numel(), isinstance(weight, TorchAOBaseTensor))


def _on_int_mm(module: torch.nn.Module) -> torch.nn.Module:
    """Replace every linear layer that torchao quantised to int8 by an `Int8Linear`, and return the module."""
    from torchao.quantization import Int8Tensor

    from bakeoff.backends.int8_linear import Int8Linear

    if _is_linear(module) and isinstance(module.weight, Int8Tensor):
        return Int8Linear(module)  # type: ignore[arg-type]  # _is_linear said so
    for name, part in module.named_children():
        setattr(module, name, _on_int_mm(part))
    return module


def _flat_copy(module: torch.nn.Module, inputs: Inputs) -> torch.nn.Module:
    from bakeoff.backends.calling import FlatModule

    duplicate = copy.deepcopy(module)
    if not inputs.kwargs and all(isinstance(value, torch.Tensor) for value in inputs.args):
        return duplicate  # it takes them so already, and eager would pay for FlatModule in every call
    return FlatModule(duplicate, inputs)


def _is_linear(part: torch.nn.Module) -> bool:
    """Return whether torchao quantises the part. It leaves out the last layer of nn.MultiheadAttention."""
    return isinstance(part, nn.Linear) and not isinstance(part, nn.modules.linear.NonDynamicallyQuantizableLinear)


def _lowered(converted: Any, example: tuple[torch.Tensor, ...], expected: int) -> Any:
    """Lower a PT2E-quantised graph to oneDNN's kernels with torchao's own lowering."""
    from torch._inductor.constant_folding import constant_fold
    from torch._inductor.fx_passes.freezing_patterns import freezing_passes
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch.fx.graph import CodeGen
    from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86

    lowered = lower_pt2e_quantized_to_x86(converted, example)
    # torchao's patterns are for `reshape`, and miss inputs of three dimensions, where the graph has `view`
    view_to_reshape(lowered)
    freezing_passes(lowered, example)
    constant_fold(lowered)
    # leave out the flattening of arguments, which takes a third of a small model's call
    lowered.graph.set_codegen(CodeGen())
    lowered.recompile()
    kernels = sum("onednn.q" in str(node.target) for node in lowered.graph.nodes)
    if kernels < expected:
        raise Unsupported(f"{expected - kernels} of {expected} int8 layers have no int8 kernel outside of Inductor")
    return lowered


@dataclass
class _Fed:
    peak: float = 0.0
    rows: int = 0  # in the smallest call, with all leading dimensions together
    dimensions: int = 0


def _observe(module: torch.nn.Module, parts: list[Any], sets: Iterable[Inputs]) -> dict[Any, _Fed]:
    fed: dict[Any, _Fed] = {}

    def note(part: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        tensor = arguments[0]
        rows = tensor.numel() // tensor.shape[-1]
        seen = fed.setdefault(part, _Fed(rows=rows, dimensions=tensor.dim()))
        if seen.dimensions != tensor.dim():
            raise Unsupported("a linear layer is called with inputs of different dimensions, which torchao cannot do")
        seen.peak = max(seen.peak, float(tensor.abs().max()))
        seen.rows = min(seen.rows, rows)

    handles = [part.register_forward_pre_hook(note) for part in parts]
    try:
        for inputs in sets:
            module(*_own_tensors(inputs))
    finally:
        for handle in handles:
            handle.remove()
    return fed


def _own_tensors(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Copy the tensors outside of inference mode. Exporters take no inference tensors, and torch.compile guards on
    them."""
    from bakeoff.backends.calling import as_called, plain_tensors

    with plain_tensors():
        return as_called(inputs)
