"""Eager with a fault that somebody planted, as a plug-in backend. A check of outputs must find each of them.

Every mode but `default` is a fault that compilers have had. A mode refuses a model in which its fault cannot be
planted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from bakeoff.backends.base import DEFAULT, BuildContext, Compiled, Mode, Wrapped
from bakeoff.backends.eager import Eager
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.errors import Unsupported

Outputs = tuple["torch.Tensor", ...]

LARGE_MANTISSA_BITS = 23
TF32_MANTISSA_BITS = 10

POWERS_OF_TEN = range(-6, 10)
"""Zeros are planted in place of the values that are between such a power of ten and the next one."""

MIN_VALUES, MIN_SHARE = 16, 1e-4
"""A magnitude of fewer values, or of a smaller share of all values, is rounding alone."""


class Altered(Wrapped):
    """Changes the outputs after each call."""

    def __init__(self, inner: Compiled, alter: Callable[[Outputs], Outputs]) -> None:
        super().__init__(inner)
        self._alter = alter

    def outputs(self) -> Outputs:
        return self._alter(super().outputs())


class Frozen(Wrapped):
    """Takes its first inputs, or the last one of them, for constants."""

    def __init__(self, inner: Compiled, first: Inputs, only_last: bool) -> None:
        super().__init__(inner)
        self._first, self._only_last = first, only_last

    def bind(self, inputs: Inputs) -> None:
        last = inputs.tensors()[-1]
        frozen = inputs.map(lambda tensor: self._first.tensors()[-1] if tensor is last else tensor)
        super().bind(frozen if self._only_last else self._first)


class Keeping(Wrapped):
    """Keeps answers by the addresses of inputs, and gives them again."""

    def __init__(self, inner: Compiled) -> None:
        super().__init__(inner)
        self._kept: dict[tuple[int, ...], Outputs] = {}
        self._key: tuple[int, ...] = ()

    def bind(self, inputs: Inputs) -> None:
        super().bind(inputs)
        self._key = tuple(tensor.data_ptr() for tensor in inputs.tensors())

    def run(self) -> None:
        if self._key not in self._kept:
            super().run()
            self._kept[self._key] = super().outputs()

    def outputs(self) -> Outputs:
        return self._kept[self._key]


def one_channel(outputs: Outputs) -> Outputs:
    """Make the second channel of the first output that has channels larger by a tenth of the output's size."""
    changed = list(outputs)
    for number, tensor in enumerate(outputs):
        if tensor.is_floating_point() and tensor.dim() >= 2 and tensor.shape[1 if tensor.dim() > 3 else -1] > 1:
            wrong = tensor.clone()
            size = torch.linalg.vector_norm(wrong) / wrong.numel() ** 0.5
            (wrong[:, 1] if wrong.dim() > 3 else wrong[..., 1]).add_(0.1 * size)
            changed[number] = wrong
            return tuple(changed)
    raise Unsupported("no output has channels")


def one_row(outputs: Outputs) -> Outputs:
    """Answer zeros in the last row of the first output."""
    changed = list(outputs)
    for number, tensor in enumerate(outputs):
        if tensor.is_floating_point() and tensor.dim() >= 2:
            wrong = tensor.clone(memory_format=torch.contiguous_format)
            wrong.flatten(0, -2)[-1] = 0.0
            changed[number] = wrong
            return tuple(changed)
    raise Unsupported("no output has rows")


def no_conjugate(outputs: Outputs) -> Outputs:
    if not any(tensor.is_complex() for tensor in outputs):
        raise Unsupported("no output is complex")
    return tuple(tensor.conj().resolve_conj() for tensor in outputs)


def fewer_outputs(outputs: Outputs) -> Outputs:
    if len(outputs) < 2:
        raise Unsupported("there is only one output")
    return outputs[:-1]


def zeros(outputs: Outputs) -> Outputs:
    return tuple(torch.zeros_like(tensor) for tensor in outputs)


def bf16_below_one(outputs: Outputs) -> Outputs:
    """Round the values below 1 to bfloat16 where others are far larger. Below 1e-2 that is within the tolerances."""
    changed = list(outputs)
    for number, tensor in enumerate(outputs):
        sizes = tensor.abs()
        if tensor.is_floating_point() and sizes.max() > 1e3 and ((sizes > 0.1) & (sizes < 1)).sum() >= MIN_VALUES:
            changed[number] = tensor.where(sizes >= 1, tensor.bfloat16().to(tensor.dtype))
            return tuple(changed)
    raise Unsupported("no output has values of such magnitudes")


def zeros_at(power: int) -> Callable[[Outputs], Outputs]:
    def plant(outputs: Outputs) -> Outputs:
        def is_there(tensor: torch.Tensor) -> torch.Tensor:
            return (tensor.abs() >= 10.0**power) & (tensor.abs() < 10.0 ** (power + 1))

        places = [is_there(each) if each.is_floating_point() else None for each in outputs]
        if not any(found is not None and found.sum() >= max(MIN_VALUES, MIN_SHARE * found.numel()) for found in places):
            raise Unsupported("hardly any value has this magnitude")
        return tuple(
            each if found is None else each.masked_fill(found, 0) for each, found in zip(outputs, places, strict=True)
        )

    return plant


def change_epsilon(change: Callable[[float], float]) -> Callable[[torch.nn.Module], None]:
    def plant(module: torch.nn.Module) -> None:
        norms: list[Any] = [part for part in module.modules() if isinstance(getattr(part, "eps", None), float)]
        if not norms:
            raise Unsupported("the model has no normalisation")
        for norm in norms:
            norm.eps = change(norm.eps)

    return plant


def scaled_weights(module: torch.nn.Module) -> None:
    """Change the first weight of the caller's own module."""
    if (weight := next(module.parameters(), None)) is None:
        raise Unsupported("the model has no weights")
    with torch.no_grad():
        weight.mul_(1.5)


def no_bias(module: torch.nn.Module) -> None:
    """Forget the last bias."""
    biases = [parameter for name, parameter in module.named_parameters() if name.endswith("bias")]
    if not any(bool(bias.any()) for bias in biases):
        raise Unsupported("the model has no bias")
    with torch.no_grad():
        [bias for bias in biases if bool(bias.any())][-1].zero_()


def no_residual(module: torch.nn.Module) -> None:
    """Lose the residual around the first block whose outputs have the shape of its inputs."""

    def without(_: torch.nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        return output - given[0]

    blocks = [part for part in module.modules() if type(part).__name__.endswith(("Layer", "Block", "block"))]
    if not blocks:
        raise Unsupported("the model has no block")
    assert isinstance(blocks[0], torch.nn.Module)
    blocks[0].register_forward_hook(without)


def tanh_gelu(module: torch.nn.Module) -> None:
    gelus = [part for part in module.modules() if isinstance(part, torch.nn.GELU)]
    if not gelus:
        raise Unsupported("the model has no GELU")
    for gelu in gelus:
        gelu.approximate = "tanh"


def rounded(tensor: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    dropped = LARGE_MANTISSA_BITS - mantissa_bits
    whole = tensor.contiguous().view(torch.int32)
    return ((whole + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


def float32_layers(module: torch.nn.Module) -> list[Any]:
    """Return the layers with products in float32. Raise Unsupported if there is none."""
    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    layers = [part for part in module.modules() if isinstance(part, kinds) and part.weight.dtype is torch.float32]
    if not layers:
        raise Unsupported("the model has no layer with products in float32")
    return layers


def tf32(module: torch.nn.Module) -> None:
    """Round the operands of products to TF32's mantissa."""

    def round_inputs(_: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rounded(value, TF32_MANTISSA_BITS) if torch.is_tensor(value) else value for value in given)

    for layer in float32_layers(module):
        layer.weight.data = rounded(layer.weight.data, TF32_MANTISSA_BITS)
        layer.register_forward_pre_hook(round_inputs)


def bf16(module: torch.nn.Module) -> None:
    """Compute the layers with weights in bfloat16, and hand over float32."""

    def narrow(_: torch.nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.bfloat16() if torch.is_tensor(value) else value for value in given)

    def widen(_: torch.nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        return output.float()

    for layer in float32_layers(module):
        layer.bfloat16()
        layer.register_forward_pre_hook(narrow)
        layer.register_forward_hook(widen)


IN_OUTPUTS: Mapping[str, Callable[[Outputs], Outputs]] = {
    "one-channel": one_channel,
    "one-row": one_row,
    "no-conjugate": no_conjugate,
    "fewer-outputs": fewer_outputs,
    "zeros": zeros,
    "bf16-below-1": bf16_below_one,
    **{f"zeros-at-1e{power}": zeros_at(power) for power in POWERS_OF_TEN},
}
IN_MODULE: Mapping[str, Callable[[torch.nn.Module], None]] = {
    "epsilon-tenfold": change_epsilon(lambda epsilon: 10 * epsilon),
    "epsilon-1e-3": change_epsilon(lambda _: 1e-3),
    "no-bias": no_bias,
    "scaled-weights": scaled_weights,
    "no-residual": no_residual,
    "tanh-gelu": tanh_gelu,
    "tf32": tf32,
    "bf16": bf16,
}
FROZEN = ("frozen-inputs", "frozen-last-input")


class Planted(Eager):
    name = "planted"
    description = "eager with planted faults, for checks of the harness"
    modes: ClassVar[tuple[Mode, ...]] = (
        Eager.modes[0],  # without a fault
        *map(Mode, (*IN_OUTPUTS, *IN_MODULE, *FROZEN, "kept-by-address")),
    )

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        fault = context.cell.mode
        plain = replace(context, cell=context.cell.but(mode=DEFAULT))
        if fault in IN_MODULE:
            module = module if fault == "scaled-weights" else copy.deepcopy(module)
            IN_MODULE[fault](module)
        compiled = super().build(module, inputs, plain)
        if fault in FROZEN:
            if fault == "frozen-last-input" and len(inputs.tensors()) < 2:
                raise Unsupported("there is only one input")
            return Frozen(compiled, inputs, only_last=fault == "frozen-last-input")
        if fault == "kept-by-address":
            return Keeping(compiled)
        return Altered(compiled, IN_OUTPUTS[fault]) if fault in IN_OUTPUTS else compiled
