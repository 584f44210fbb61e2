"""Changes of a model that compute the same: modes of eager, which no compiler makes for it.

Each is a function of the module and its inputs that changes the module in place, and returns what it changed, or zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bakeoff.models.base import Inputs
from bakeoff.models.lazily import nn, torch
from bakeoff.records.errors import Unsupported, first_line

FOLDED_NORMS, PADDED, SDPA = "folded-norms", "padded-linears", "sdpa"

ALIGNMENT = 64
"""Libraries of matrix products have their fastest kernels for sizes that are a multiple of 8 numbers in 16 bits, and of
64 on later GPUs (NVIDIA's guide "Matrix Multiplication Background")."""


def fold_norms(module: torch.nn.Module, inputs: Inputs) -> int:
    """Fold each batch norm of `module` into the convolution whose output it gets. Return how many were folded. Training
    must be off, and outputs must be checked: another reader of a folded convolution is not seen."""
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
        inputs.call(module)
    finally:
        for hook in hooks:
            hook.remove()
    folded = 0
    for convolution, norm in pairs:
        is_known: Any = norm
        if calls[convolution] == calls[norm] == 1 and not norm.training and is_known.running_var is not None:
            fused: Any = nn.utils.fuse_conv_bn_eval(convolution, is_known)  # type: ignore[type-var]
            convolution.weight, convolution.bias = fused.weight, fused.bias
            _replace(module, norm, nn.Identity())
            folded += 1
    return folded


def _replace(module: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> None:
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)


def unaligned_layers(module: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """Return the linear layers whose number of outputs is above `ALIGNMENT` and no multiple of it, by their paths."""
    return {
        path: layer
        for path, layer in module.named_modules()
        if path and type(layer) is nn.Linear and layer.out_features > ALIGNMENT and layer.out_features % ALIGNMENT
    }


def pad_layers(module: torch.nn.Module, inputs: Inputs) -> int:
    """Pad each linear layer's outputs to a multiple of `ALIGNMENT`, of which calls return a view without the padding.
    Return how many layers were padded. A tied weight is copied."""
    from torch.nn import functional

    class PaddedLinear(nn.Linear):
        def __init__(self, layer: nn.Linear) -> None:
            nn.Module.__init__(self)
            self.in_features, self.out_features = layer.in_features, layer.out_features
            missing = -layer.out_features % ALIGNMENT
            self.padded = functional.pad(layer.weight.detach(), (0, 0, 0, missing))
            # this is a view, for code that reads the layer's own weight
            self.weight = nn.Parameter(self.padded[: self.out_features], requires_grad=False)
            self.padded_bias = None
            self.register_parameter("bias", None)
            if layer.bias is not None:
                self.padded_bias = functional.pad(layer.bias.detach(), (0, missing))
                self.bias = nn.Parameter(self.padded_bias[: self.out_features], requires_grad=False)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return functional.linear(input, self.padded, self.padded_bias)[..., : self.out_features]

    layers = unaligned_layers(module)
    for layer in layers.values():
        _replace(module, layer, PaddedLinear(layer).train(layer.training))
    return len(layers)


def attention_of(module: torch.nn.Module) -> str:
    """Return the implementation of attention that the configuration of a model of transformers names, or nothing."""
    names = (getattr(part.config, "_attn_implementation", "") for part in _with_attention(module))
    return str(next(names, "") or "")


def use_sdpa(module: torch.nn.Module, inputs: Inputs) -> int:
    """Let models of transformers call `scaled_dot_product_attention`. Return how many do. Raise Unsupported for a model
    that has no such implementation."""
    models = [part for part in _with_attention(module) if attention_of(part) == "eager"]
    for part in models:
        try:
            part.set_attn_implementation(SDPA)  # type: ignore[operator]
        except (ValueError, ImportError) as error:
            raise Unsupported(f"transformers does not switch its attention: {first_line(error)}") from error
    return len(models)


def _with_attention(module: torch.nn.Module) -> list[torch.nn.Module]:
    outermost: list[tuple[str, torch.nn.Module]] = []
    for path, part in module.named_modules():
        is_inside = any(not above or path.startswith(f"{above}.") for above, _ in outermost)
        if not is_inside and hasattr(part, "set_attn_implementation") and hasattr(part, "config"):
            outermost.append((path, part))
    return [part for _, part in outermost]


class Change(NamedTuple):
    make: Callable[[torch.nn.Module, Inputs], int]
    lacking: str
    """Why a model is left as it is."""
    no_script: str
    """Why no script of a page does it."""


CHANGES: Mapping[str, Change] = {
    FOLDED_NORMS: Change(
        fold_norms,
        "no batch norm follows a convolution directly",
        "it folds the norms that one call of the model shows",
    ),
    PADDED: Change(
        pad_layers,
        f"no linear layer has more than {ALIGNMENT} outputs that are no multiple of {ALIGNMENT}",
        "it replaces linear layers of the model",
    ),
    SDPA: Change(
        use_sdpa,
        'no part of it is a model of transformers with attn_implementation="eager"',
        "it switches the model's attention",
    ),
}
"""The changes by the modes of eager that make them."""
