"""Post-training quantisation, one recipe for every backend.

`int8`: each layer (a linear layer or a convolution, whose weight is a constant) multiplies whole numbers of 8 bits.
Weights are symmetric with one scale per output channel; what the layer is fed has one scale per tensor, fixed
beforehand from the cell's own input sets (static quantisation). Everything between the layers stays float32. Two
products of activations, as in attention, are no layer.

`fp8`: each linear layer multiplies float8 (e4m3) with float32 accumulation. Weights have one scale per output channel,
what the layer is fed one per row, computed in every call (dynamic quantisation). The rest stays bfloat16.

What a library leaves in floating point is counted and reported, and where that is most of a model, or all of it, the
cell is Unsupported.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends import exporting
from backends.base import BuildContext, Compiled, Settings, Wrapped
from models.base import Inputs
from records.errors import BakeoffError, Unavailable, Unsupported
from records.precision import Precision

if TYPE_CHECKING:
    import torch

    from backends.exporting import OnnxModel

LEAST_SHARE = 0.5
"""Of the layers' weights. Where less of a model can be quantised, its latency is not that precision's."""

FP8_CAPABILITY = (8, 9)
"""The first compute capability with float8 matrix products (Ada; Hopper is 9.0)."""

INT8_ROWS = 17
"""The fewest rows that torch._int_mm takes on CUDA; with fewer torchao multiplies in float32 without a word."""

INT8_MULTIPLE, FP8_MULTIPLE = 8, 16
"""What both sizes of a weight must be a multiple of for cuBLAS's int8 and float8 products."""

SMALLEST_RANGE = 1e-6
"""A layer that is fed nothing but zeros still needs a scale over zero."""

LARGE_BYTES = 1_500_000_000
"""Protobuf holds 2 GB at most: beyond this, weights go into a file of their own."""


# --- PyTorch


@dataclass(frozen=True)
class Prepared:
    """A module for a backend of the torch family to run or compile, in the cell's precision.

    A quantised one takes the tensors of `Inputs.tensors` by position; `inputs` are the build's in that convention.
    `layers` counts what was quantised and what was left.
    """

    module: torch.nn.Module
    inputs: Inputs
    layers: Settings = field(default_factory=dict)
    needs_freezing: bool = False

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Around torch.compile and its first calls: oneDNN's int8 kernels take weights only as constants."""
        if not self.needs_freezing:
            return contextlib.nullcontext()
        import torch._inductor.config

        context: contextlib.AbstractContextManager[None] = torch._inductor.config.patch(freezing=True)
        return context

    def example(self) -> Inputs:
        """Inputs to call the module with while building; it may overwrite them."""
        return Inputs(_own_tensors(self.inputs)) if self.layers else self.inputs

    def sparing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, made to leave its inputs alone.

        oneDNN adds a residual into the residual's own buffer, and Inductor (2.13, on the CPU) hands it the caller's: a
        transformer whose first residual is its input overwrites that. Such inputs are copied in every call, as a user
        would have to.
        """
        if not self.layers:
            return function
        tensors = _own_tensors(self.inputs)
        function(*tensors)
        # where a call changed it, the tensor itself becomes what the next calls may overwrite
        buffers = [
            tensor if changed else None
            for tensor, changed in zip(tensors, map(_differ, tensors, self.inputs.args), strict=True)
        ]
        if all(buffer is None for buffer in buffers):
            return function

        def on_copies(*given: torch.Tensor) -> Any:
            return function(
                *(
                    tensor if buffer is None else buffer.copy_(tensor)
                    for tensor, buffer in zip(given, buffers, strict=True)
                )
            )

        return on_copies

    def adapt(self, compiled: Compiled) -> Compiled:
        """`compiled` behind the model's own calling convention, telling what it computes in."""
        return Flattened(compiled, self.layers, self.needs_freezing) if self.layers else compiled


class Flattened(Wrapped):
    """A compiled model that takes tensors by position, bound as the model's own arguments are."""

    def __init__(self, compiled: Compiled, layers: Settings, frozen: bool) -> None:
        super().__init__(compiled)
        self._layers = layers
        self._frozen = frozen

    def bind(self, inputs: Inputs) -> None:
        super().bind(Inputs(inputs.tensors()))

    def precision(self) -> Settings:
        return {**super().precision(), **self._layers}

    def settings(self) -> Settings:
        return {**super().settings(), **({"freezing": True} if self._frozen else {})}


def prepare(module: torch.nn.Module, inputs: Inputs, context: BuildContext, lower: bool) -> Prepared:
    """`module` in the precision of the cell, itself unchanged: as it is for a floating-point one, else quantised.

    Quantising happens in the phase `export`. With `lower`, the result runs on int8 kernels as it stands (for eager);
    without, it is what Inductor is to compile. Raises Unsupported where too little of the model can be quantised.
    """
    precision = context.cell.precision
    if not precision.is_quantised:
        return Prepared(module, inputs)
    require_torchao()  # here, because importing is in no phase
    with context.phase("export"):
        if precision is Precision.FP8:
            return torch_fp8(module, inputs)
        if not context.calibration:
            raise BakeoffError("int8 needs the model's input sets for calibration, and got none")
        if context.cell.device.is_cuda:
            return torch_int8_cuda(module, inputs, context.calibration, lower)
        return torch_int8_cpu(module, inputs, context.calibration, lower)


def torch_int8_cpu(module: torch.nn.Module, inputs: Inputs, calibration: Iterable[Inputs], lower: bool) -> Prepared:
    """torchao's PT2E quantisation with X86InductorQuantizer, restricted to linear layers and 1-d and 2-d convolutions.

    Inputs are unsigned and asymmetric, their ranges those of torchao's HistogramObserver over `calibration`, which is
    what that quantizer does by default. The kernels are oneDNN's. Without `lower` the result holds explicit
    quantise and dequantise operators, which torch.compile (with freezing) and AOTInductor fuse into those kernels.
    """
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer
    from torchao.utils import should_reduce_range

    from backends.calling import FlatModule

    if "onednn" not in torch.backends.quantized.supported_engines:
        raise Unavailable("this build of torch has no oneDNN int8 kernels for the CPU")
    config = x86_inductor_quantizer.get_default_x86_inductor_quantization_config(
        reduce_range=should_reduce_range(torch.device("cpu"))
    )
    quantizer = x86_inductor_quantizer.X86InductorQuantizer()
    for kind in (torch.nn.Linear, torch.nn.Conv2d, torch.nn.functional.conv1d):
        set_config = (
            quantizer.set_module_type_qconfig if isinstance(kind, type) else quantizer.set_function_type_qconfig
        )
        set_config(kind, config)
    # export and calibration want neither inference tensors nor gradients, whatever the caller is in
    with torch.inference_mode(False), torch.no_grad():
        example = _own_tensors(inputs)
        program = torch.export.export(FlatModule(copy.deepcopy(module), inputs), example)
        observed = prepare_pt2e(program.module(), quantizer)
        for one in calibration:
            observed(*_own_tensors(one))
        converted = convert_pt2e(observed)
        layers = list(_layers_of_graph(converted))
        counted = _counted(layers, Precision.INT8)
        if lower:
            converted = _lowered(converted, example, sum(layer.quantised for layer in layers))
    return Prepared(converted, Inputs(example), counted, needs_freezing=not lower)


def torch_int8_cuda(
    module: torch.nn.Module, inputs: Inputs, calibration: Iterable[Inputs], lower: bool = False
) -> Prepared:
    """torchao's Int8StaticActivationInt8WeightConfig on every nn.Linear that cuBLAS has an int8 product for.

    Inputs are symmetric, their range the largest absolute value over `calibration`. torchao has no int8 convolution for
    CUDA. Its recommended Inductor settings are not applied: a mode's options are what its name says. With `lower`, the
    quantised layers become `Int8Linear`, the same arithmetic for callers that do not compile.
    """
    import torch
    from torchao.quantization import Int8StaticActivationInt8WeightConfig, PerRow, PerTensor, quantize_

    with torch.inference_mode(False), torch.no_grad():
        flat = _flat_copy(module, inputs)
        fed = _observe(flat, [part for part in flat.modules() if _is_linear(part)], calibration)
        for part, seen in fed.items():
            if seen.rows < INT8_ROWS or any(size % INT8_MULTIPLE for size in part.weight.shape):
                continue
            config = Int8StaticActivationInt8WeightConfig(
                act_quant_scale=torch.full(
                    [1] * seen.dimensions, max(seen.peak, SMALLEST_RANGE) / 127.5, device=part.weight.device
                ),
                granularity=[PerTensor(), PerRow()],
                set_inductor_config=False,
            )
            quantize_(part, config, filter_fn=lambda _, name: name == "")
        counted = _counted(
            _layers_of_module(flat), Precision.INT8, hint=f"cuBLAS needs {INT8_ROWS} rows or more per call"
        )
        if lower:
            flat = _on_int_mm(flat)
    return Prepared(flat, Inputs(inputs.tensors()), counted)


def torch_fp8(module: torch.nn.Module, inputs: Inputs) -> Prepared:
    """torchao's Float8DynamicActivationFloat8WeightConfig with a scale per row on every nn.Linear that fits.

    With fast accumulation, which is that configuration's default. Raises Unavailable below FP8_CAPABILITY.
    """
    import torch

    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    if device.type != "cuda":
        raise Unsupported(f"float8 products need an NVIDIA GPU, not {device.type}")
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        have, need = (".".join(map(str, one)) for one in (capability, FP8_CAPABILITY))
        raise Unavailable(f"float8 products need compute capability {need}, and this GPU has {have}")
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False)
    with torch.inference_mode(False), torch.no_grad():
        flat = _flat_copy(module, inputs)
        quantize_(
            flat,
            config,
            filter_fn=lambda part, _: _is_linear(part) and not any(size % FP8_MULTIPLE for size in part.weight.shape),
        )
        counted = _counted(_layers_of_module(flat), Precision.FP8, hint=f"sizes must be multiples of {FP8_MULTIPLE}")
        counted["fp8 fast accumulation"] = bool(config.mm_config.use_fast_accum)
    return Prepared(flat, Inputs(inputs.tensors()), counted)


@dataclass(frozen=True)
class _Layer:
    """One product with a constant weight."""

    kind: str  # linear, convolution, or the type of a module we know nothing of
    weights: int
    quantised: bool


def _counted(layers: Iterable[_Layer], precision: Precision, hint: str = "") -> Settings:
    """How many layers of each kind compute in what. Raises Unsupported where less than LEAST_SHARE is quantised."""
    layers = list(layers)
    total = sum(layer.weights for layer in layers)
    quantised = sum(layer.weights for layer in layers if layer.quantised)
    if not total:
        raise Unsupported("there is nothing to quantise: the model has no linear layer and no convolution")
    left = Counter(layer.kind for layer in layers if not layer.quantised)
    if quantised < LEAST_SHARE * total:
        kinds = ", ".join(f"{count} {kind}" for kind, count in left.items())
        share = f"{100 * quantised / total:.0f} %"
        reason = f"torchao brings {share} of the layers' weights to {precision} here; {kinds} would stay"
        reason += f" in {precision.input_type}"
        raise Unsupported(f"{reason} ({hint})" if hint else reason)
    counted: Settings = {}
    for kind, count in Counter(layer.kind for layer in layers if layer.quantised).items():
        counted[f"{precision} {kind} layers"] = count
    for kind, count in left.items():
        counted[f"{precision.input_type} {kind} layers"] = count
    return counted


def _layers_of_graph(graph_module: Any) -> Iterator[_Layer]:
    """The layers of an exported graph after convert_pt2e: quantised ones are fed by dequantise operators alone."""
    import torch

    aten = torch.ops.aten
    weight_at = {
        aten.linear.default: ("linear", 1),
        aten.matmul.default: ("linear", 1),
        aten.mm.default: ("linear", 1),
        aten.addmm.default: ("linear", 2),
        aten.conv1d.default: ("convolution", 1),
        aten.conv2d.default: ("convolution", 1),
        aten.conv2d.padding: ("convolution", 1),
        aten.conv3d.default: ("convolution", 1),
        aten.convolution.default: ("convolution", 1),
        aten.conv_transpose1d.default: ("convolution", 1),
        aten.conv_transpose2d.input: ("convolution", 1),
        aten.conv_transpose3d.input: ("convolution", 1),
    }
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target not in weight_at:
            continue
        kind, index = weight_at[node.target]
        fed, weight = node.args[index - 1], node.args[index]
        constant = _constant(graph_module, weight)
        if constant is not None:
            yield _Layer(kind, constant.numel(), _is_dequantised(fed) and _is_dequantised(weight))


def _constant(graph_module: Any, node: Any) -> torch.Tensor | None:
    """The parameter or buffer that `node` is, perhaps dequantised; None where it is computed."""
    while node.op == "call_function" and _is_dequantised(node):
        node = node.args[0]
    if node.op != "get_attr":
        return None
    found: Any = graph_module
    for name in node.target.split("."):
        found = getattr(found, name)
    tensor: torch.Tensor = found
    return tensor


def _is_dequantised(node: Any) -> bool:
    return node.op == "call_function" and "dequantize" in str(node.target)


def _layers_of_module(module: torch.nn.Module) -> Iterator[_Layer]:
    """The parts of `module` that own a weight of two or more dimensions, but embeddings and normalisations."""
    from torch import nn
    from torchao.utils import TorchAOBaseTensor

    for part in module.modules():
        weight = getattr(part, "weight", None)
        if weight is None or weight.dim() < 2 or isinstance(part, (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm)):
            continue
        name = type(part).__name__
        kind = "linear" if isinstance(part, nn.Linear) else "convolution" if name.startswith("Conv") else name
        yield _Layer(kind, weight.numel(), isinstance(weight, TorchAOBaseTensor))


def _on_int_mm(module: torch.nn.Module) -> torch.nn.Module:
    """`module` with every linear layer that torchao quantised to int8 replaced by an `Int8Linear`."""
    from torchao.quantization import Int8Tensor

    from backends.int8_linear import Int8Linear

    if _is_linear(module) and isinstance(module.weight, Int8Tensor):
        return Int8Linear(module)  # type: ignore[arg-type]  # _is_linear said so
    for name, part in module.named_children():
        setattr(module, name, _on_int_mm(part))
    return module


def _flat_copy(module: torch.nn.Module, inputs: Inputs) -> torch.nn.Module:
    """A copy of `module` that takes the tensors of `inputs` by position."""
    import torch

    from backends.calling import FlatModule

    duplicate = copy.deepcopy(module)
    if not inputs.kwargs and all(isinstance(one, torch.Tensor) for one in inputs.args):
        return duplicate  # it does already, and eager would pay for taking arguments apart in every call
    return FlatModule(duplicate, inputs)


def _is_linear(part: torch.nn.Module) -> bool:
    """Whether torchao quantises it: not the output of nn.MultiheadAttention, whose forward reads the weight itself."""
    from torch import nn

    return isinstance(part, nn.Linear) and not isinstance(part, nn.modules.linear.NonDynamicallyQuantizableLinear)


def _lowered(converted: Any, example: tuple[torch.Tensor, ...], expected: int) -> Any:
    """A PT2E-quantised graph on oneDNN's kernels, by torchao's own lowering.

    That lowering misses linear layers on inputs of three dimensions: its patterns are for `reshape`, and the exported
    graph has `view`. Inductor rewrites one into the other first, so we do, and apply the passes once more.
    """
    from torch._inductor.constant_folding import constant_fold
    from torch._inductor.fx_passes.freezing_patterns import freezing_passes
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch.fx.graph import CodeGen
    from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86

    lowered = lower_pt2e_quantized_to_x86(converted, example)
    view_to_reshape(lowered)
    freezing_passes(lowered, example)
    constant_fold(lowered)
    # without the flattening of arguments, which costs a small model a third of its call
    lowered.graph.set_codegen(CodeGen())
    lowered.recompile()
    kernels = sum("onednn.q" in str(node.target) for node in lowered.graph.nodes)
    if kernels < expected:
        raise Unsupported(f"{expected - kernels} of {expected} int8 layers have no int8 kernel outside of Inductor")
    return lowered


@dataclass
class _Fed:
    """What a layer was fed during calibration."""

    peak: float = 0.0
    rows: int = 0  # of the smallest call, all leading dimensions together
    dimensions: int = 0


def _observe(module: torch.nn.Module, parts: list[Any], sets: Iterable[Inputs]) -> dict[Any, _Fed]:
    """What each of `parts` is fed when `module` runs on `sets`; parts that are never called are left out."""
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
        for one in sets:
            module(*_own_tensors(one))
    finally:
        for handle in handles:
            handle.remove()
    return fed


def _own_tensors(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Copies made outside of inference mode: exporters take no others, and torch.compile tells them apart."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        return tuple(tensor.clone() for tensor in inputs.tensors())


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    return not torch.equal(one, other)


def require_torchao() -> None:
    """Import what of torchao is used here. Raises Unavailable where it is missing or does not fit this torch."""
    try:
        import torchao.quantization.pt2e.lowering
        import torchao.quantization.pt2e.quantize_pt2e
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"int8 and fp8 in torch need torchao ({error}): pip install torchao") from error


# --- ONNX

ONNX_LAYERS = ("Conv", "Gemm", "MatMul")


def static_onnx(exported: OnnxModel, calibration: Iterable[Inputs], folder: Path, symmetric: bool = False) -> OnnxModel:
    """`exported`, quantised by ONNX Runtime's quantize_static, as `folder`/int8.onnx: Q/DQ pairs around its layers.

    Layers are Conv, and Gemm and MatMul with a constant weight. Weights are int8, symmetric, one scale per output
    channel; activations have one scale per tensor, from their smallest and largest value over `calibration`
    (CalibrationMethod.MinMax, quantize_static's default). The model is pre-processed first (quant_pre_process), as
    ONNX Runtime's documentation and its warning ask for.

    `symmetric=False` is for CPUs (ONNX Runtime, OpenVINO): unsigned, asymmetric activations, outputs of layers
    quantised too, since ONNX Runtime has int8 kernels for such convolutions only, and int32 biases; weights of 7 bits
    where the CPU lacks VNNI. That is quantize_static's own guidance. `symmetric=True` is for TensorRT: signed
    activations with zero point 0, which is all it takes, Q/DQ at the layers' inputs only, and float32 biases (its
    parser refuses to dequantise int32: onnx-tensorrt issue 850).

    Where `exported` lies in `folder` itself, it is removed: what stays there is what would be deployed.

    Raises Unsupported where the model has no such layer.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = sum(file.stat().st_size for file in exported.path.parent.glob(f"{exported.path.name}*")) > LARGE_BYTES
    prepared, quantised = folder / "prepared.onnx", folder / exporting.QUANTISED
    # shapes are static: ONNX's own inference does, and the symbolic one would need sympy
    quant_pre_process(exported.path, prepared, skip_symbolic_shape=True, save_as_external_data=large)
    graph = onnx.load(prepared, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    candidates = [node for node in graph.node if node.op_type in ONNX_LAYERS]
    activations_only = [node.name for node in candidates if node.input[1] not in constants]
    if len(activations_only) == len(candidates):
        raise Unsupported("there is nothing to quantise: the model has no linear layer and no convolution")
    extra: dict[str, Any] = {"WeightSymmetric": True, "ActivationSymmetric": symmetric}
    if symmetric:
        extra |= {"QuantizeBias": False, "OpTypesToExcludeOutputQuantization": list(ONNX_LAYERS)}
    quantize_static(
        prepared,
        quantised,
        _reader(exported.input_names, calibration),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(ONNX_LAYERS),
        nodes_to_exclude=activations_only,
        per_channel=True,
        reduce_range=not symmetric and not _has_vnni(),
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        use_external_data_format=large,
        extra_options=extra,
    )
    for path in (prepared, exported.path):
        for file in folder.glob(f"{path.name}*") if path.parent == folder else ():
            file.unlink()
    return type(exported)(path=quantised, input_names=exported.input_names, output_names=exported.output_names)


def require_onnx_quantiser() -> None:
    """Import what `static_onnx` and the exporter to ONNX use. Raises Unavailable where it is missing."""
    try:
        import onnxruntime.quantization.shape_inference  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        reason = f"int8 starts from a model that ONNX Runtime quantised ({error}): pip install onnxscript onnxruntime"
        raise Unavailable(reason) from error


def onnx_layers(model: OnnxModel) -> Settings:
    """How many layers of a model that `static_onnx` wrote are quantised, and how many are not, for `precision()`."""
    import onnx

    graph = onnx.load(model.path, load_external_data=False).graph
    dequantised = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name for tensor in graph.initializer}
    counted: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type in ONNX_LAYERS and set(node.input[:2]) <= dequantised:
            counted[f"int8 {_kind(node.op_type)} layers"] += 1
        elif node.op_type in ONNX_LAYERS and node.input[1] in constants:
            counted[f"float32 {_kind(node.op_type)} layers"] += 1
    return dict(counted)


def _kind(operator: str) -> str:
    return "convolution" if operator == "Conv" else "linear"


def _reader(names: tuple[str, ...], calibration: Iterable[Inputs]) -> Any:
    """The input sets as quantize_static wants to read them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._remaining = iter(list(calibration))

        def get_next(self) -> dict[str, Any] | None:
            one = next(self._remaining, None)
            if one is None:
                return None
            return {name: tensor.cpu().numpy() for name, tensor in zip(names, one.tensors(), strict=True)}

    return Reader()


def _has_vnni() -> bool:
    """Whether this CPU multiplies unsigned by signed bytes without saturating in between."""
    import torch

    return bool(torch.cpu._is_vnni_supported())
