"""The error that quantisation costs a model with any library: eager, with the operands of its layers rounded before.

Cells of quantised precisions are compared with it, since torch has no quantised kernels for some layers, such as int8
convolutions on CUDA. A kernel that accumulates exactly gives the same, up to the rounding of the product.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bakeoff.backends import fast_path
from bakeoff.models.base import Inputs
from bakeoff.records.precision import GROUP_WEIGHTS, Precision

LARGEST_INT8 = 127
LARGEST_INT4 = 7
LARGEST_E4M3 = 448.0

SMALLEST = 1e-12
"""The lower limit of a scale, so that a range of zero can be divided by."""


@contextmanager
def emulate_quantisation(
    precision: Precision, module: torch.nn.Module, sets: Iterable[Inputs], kept: Collection[int] = ()
) -> Iterator[None]:
    """Make eager calls of `module` in the block compute as if its linear layers, convolutions and products with a
    parameter were quantised. Layers whose weights are among `kept`, by their `id`, are not rounded."""
    if not precision.is_quantised:
        yield
        return
    with fast_path.switched_off():  # the fused kernel would hide the layers inside
        # fp8 rounds weights per output channel and inputs per row.
        if precision is Precision.FP8:
            with _replaced(
                lambda weight, channel: _to_e4m3(weight, _peak(weight, channel)),
                lambda fed, _: _to_e4m3(fed, fed.abs().amax(-1, keepdim=True)),
                convolutions=False,
                kept=kept,
            ):
                yield
            return
        # Weight-only precisions round to 8 bits per output channel, or to 4 bits per group.
        if precision.is_weight_only:
            to_few_bits = _to_int4 if precision.has_4_bit_weights else _to_int8_per_channel
            with _replaced(to_few_bits, lambda fed, _: fed, convolutions=False, kept=kept):
                yield
            return
        # int8 rounds weights per output channel and inputs per tensor, whose range a first run fixes.
        peaks: dict[int, torch.Tensor] = {}

        def observe(fed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            peak = fed.abs().max()
            peaks[id(weight)] = torch.maximum(peak, peaks.get(id(weight), peak))
            return fed

        with _replaced(lambda weight, _: weight, observe):
            for one in sets:
                module(*one.args, **one.kwargs)
        with _replaced(
            _to_int8_per_channel,
            lambda fed, weight: _to_int8(fed, peaks[id(weight)]),
            kept=kept,
        ):
            yield


def _replaced(
    of_weight: Callable[[torch.Tensor, int], torch.Tensor],
    of_fed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    convolutions: bool = True,
    kept: Collection[int] = (),
) -> Any:
    """Return a context in which layers multiply `of_fed(fed, weight)` by `of_weight(weight, channel dimension)`, but
    those whose weights are `kept`."""
    # for each function: the positions of the input and of the weight, and the weight's dimension of output channels
    layers: dict[Any, tuple[int, int, int]] = {
        functional.linear: (0, 1, 0),
        torch.matmul: (0, 1, -1),
        torch.mm: (0, 1, -1),
        torch.addmm: (1, 2, -1),
        torch.Tensor.matmul: (0, 1, -1),
        torch.Tensor.__matmul__: (0, 1, -1),
        torch.Tensor.mm: (0, 1, -1),
        torch.Tensor.addmm: (1, 2, -1),
    }

    if convolutions:
        layers |= dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), (0, 1, 0))

    def is_rounded(weight: Any) -> bool:
        return isinstance(weight, torch.nn.Parameter) and id(weight) not in kept

    class Replaced(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in layers:
                fed, weight, channel = layers[function]
                if len(args) > weight and is_rounded(args[weight]):
                    given = list(args)
                    given[fed] = of_fed(args[fed], args[weight])
                    given[weight] = of_weight(args[weight], channel)
                    args = tuple(given)
            return function(*args, **(kwargs or {}))

    return Replaced()


def _peak(tensor: torch.Tensor, kept: int) -> torch.Tensor:
    """Return the largest absolute value along all dimensions but `kept`, in a shape to divide by."""
    return tensor.abs().amax([d for d in range(tensor.dim()) if d != kept % tensor.dim()], keepdim=True)


def _to_int8(tensor: torch.Tensor, peak: torch.Tensor, largest: int = LARGEST_INT8) -> torch.Tensor:
    scale = peak.float().clamp(min=SMALLEST) / largest
    steps = (tensor.float() / scale).round().clamp(-largest, largest)
    return (steps * scale).to(tensor.dtype)


def _to_int8_per_channel(weight: torch.Tensor, channel: int) -> torch.Tensor:
    return _to_int8(weight, _peak(weight, channel))


def _to_int4(weight: torch.Tensor, channel: int) -> torch.Tensor:
    if weight.dim() != 2:
        return weight
    by_channel = weight if channel == 0 else weight.t()
    inputs = by_channel.shape[1]
    groups = functional.pad(by_channel, (0, -inputs % GROUP_WEIGHTS)).view(len(by_channel), -1, GROUP_WEIGHTS)
    rounded_groups = _to_int8(groups, groups.abs().amax(-1, keepdim=True), LARGEST_INT4)
    found = rounded_groups.flatten(1)[:, :inputs]
    return found if channel == 0 else found.t()


def _to_e4m3(tensor: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    scale = peak.float().clamp(min=SMALLEST) / LARGEST_E4M3
    return ((tensor.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype)
