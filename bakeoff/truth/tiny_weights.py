"""Finds weights of zero, or nearly, that hide what they are multiplied with, such as a fresh gate or layer scale."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from bakeoff.backends.plain_dispatch import Uncompiled
from bakeoff.models.base import Inputs
from bakeoff.models.input_sets import is_strided
from bakeoff.truth.calls import AlikeCalls, call, may_fail

TINY = 1e-4
"""A weight is tiny if none of its values is as large."""

HIDDEN = 1e-3
"""What is multiplied with a tiny weight is hidden if no value of the result is as large."""

WEIGHT_AT = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), 1),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1),
    **dict.fromkeys(("layer_norm", "group_norm", "rms_norm"), 2),
    **dict.fromkeys(("batch_norm", "instance_norm"), 3),
}
"""At which place these functions get the weight. What comes behind it is added, so that zeros hide nothing there."""

MULTIPLYING = frozenset({"mul", "rmul", "imul", "multiply", "matmul", "rmatmul", "mm", "bmm", "einsum"})

HANDING_ON = frozenset(
    {"view", "reshape", "unsqueeze", "squeeze", "expand", "getitem", "t", "transpose", "permute", "to", "float", "half"}
    | {"flatten", "contiguous", "tanh", "abs", "neg", "clone", "type_as", "chunk", "repeat", "bfloat16"}
)
"""What is tiny stays so in these."""


class MultiplicationWatch(Uncompiled, TorchFunctionMode):
    """Notes which of some weights hide what they are multiplied with, in calls inside the block."""

    def __init__(self, weights: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self._names = WeakIdKeyDictionary({weight: name for name, weight in weights.items()})
        self.hiding: dict[str, None] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", "").strip("_")
        if name in MULTIPLYING:
            factors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            weights = factors if len(factors) > 1 else []
        elif (place := WEIGHT_AT.get(name)) is not None:
            weights = [kwargs.get("weight", args[place] if len(args) > place else None)]
        else:
            weights = []
        for weight in weights:
            known = self._name_of(weight)
            if known and not (bool(weight.any()) and bool((result.abs() >= HIDDEN).any())):
                self.hiding[known] = None
        if name in HANDING_ON and args and (known := self._name_of(args[0])):
            self._names.update(dict.fromkeys(pytree.tree_leaves(result), known))
        return result

    def _name_of(self, value: Any) -> str:
        return str(self._names[value]) if isinstance(value, torch.Tensor) and value in self._names else ""


def tiny_weights_of(module: nn.Module, inputs: Inputs, calls: AlikeCalls) -> tuple[str, ...]:
    """Return the names of weights that are zero, or nearly, and that hide what the model multiplies with them."""
    tiny = {
        name: weight
        for name, weight in module.named_parameters()
        if weight.is_floating_point() and is_strided(weight) and weight.numel()
        # most weights are known after a few values
        if all(bool((part.float().abs() < TINY).all()) for part in (weight.detach().flatten()[:8], weight.detach()))
    }
    if not tiny:
        return ()
    watch = MultiplicationWatch(tiny)
    with may_fail(), watch:
        call(module, calls.given(inputs))
    return tuple(watch.hiding)
