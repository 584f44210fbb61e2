"""Folds batch norms into the convolutions before them, as compilers do and eager does not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Inputs

FOLDED_NORMS = "folded-norms"
"""The mode of eager whose convolutions hold the batch norms behind them."""


def fold_norms(module: torch.nn.Module, inputs: Inputs) -> int:
    """Fold each batch norm of `module` into the convolution whose output it gets. Return how many were folded.

    One call shows the pairs: both are called once, and the norm gets the very tensor that the convolution returns. That
    something else reads this tensor, too, is not seen: the outputs must be checked. Training must be off. The formula
    is that of `torch.nn.utils.fuse_conv_bn_eval`.
    """
    from torch import nn
    from torch.nn.utils import fuse_conv_bn_eval

    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    calls: Counter[nn.Module] = Counter()
    made_by: dict[int, tuple[nn.Module, Any]] = {}  # with the tensor itself, whose identity lasts as long as it does
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def after(child: nn.Module, given: tuple[Any, ...], returned: Any) -> None:
        calls[child] += 1
        if isinstance(child, norms) and given and id(given[0]) in made_by:
            pairs.append((made_by[id(given[0])][0], child))
        elif isinstance(child, convolutions):
            made_by[id(returned)] = child, returned

    hooks = [
        child.register_forward_hook(after) for child in module.modules() if isinstance(child, convolutions + norms)
    ]
    try:
        module(*inputs.args, **inputs.kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    folded = 0
    for convolution, norm in pairs:
        is_known: Any = norm
        if calls[convolution] == calls[norm] == 1 and not norm.training and is_known.running_var is not None:
            fused: Any = fuse_conv_bn_eval(convolution, is_known)  # type: ignore[type-var]
            convolution.weight, convolution.bias = fused.weight, fused.bias
            _replace(module, norm, nn.Identity())
            folded += 1
    return folded


def _replace(module: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> None:
    for parent in module.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)
