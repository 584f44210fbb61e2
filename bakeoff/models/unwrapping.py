"""Takes off what a user may have wrapped around a module, and completes a module that is not complete yet.

Every backend then gets the module itself: `eager` is eager, and nothing is compiled twice.
"""

from __future__ import annotations

import copy
import dis
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.models.lazily import nn, torch
from bakeoff.models.seeding import seeded
from bakeoff.records.errors import UsageError
from bakeoff.records.text import listed

PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
"""Wrappers of torch that hold the module in their attribute `module`."""

LAZY = "was lazy, and was initialised by a call"
MAKES_LAYERS = "makes layers in its first call, and was called once, so that they have the same weights in each process"


def unwrapped(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the module without compilers and parallel wrappers around it or its parts, and what was taken off."""
    taken: dict[str, None] = {}
    module = _inner(module, taken)
    for part in list(module.modules()):
        for name, child in list(part._modules.items()):
            if child is not None and (inner := _inner(child, taken)) is not child:
                setattr(part, name, inner)
        if getattr(part, "_compiled_call_impl", None) is not None:  # by `module.compile()`
            part._compiled_call_impl = None
            taken["torch.compile"] = None
        _uncompile_methods(part, taken)
    return module, tuple(taken)


def without_wrappers(module: nn.Module) -> nn.Module:
    return _inner(module, {})


def with_modes(module: nn.Module) -> nn.Module:
    """Return the module with `train` and `eval`, which an exported program refuses: its graph has only one mode."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for name in ("train", "eval"):
                vars(part).pop(name, None)
    return module


def mixes_types(module: nn.Module) -> bool:
    return len(real_types(module.parameters())) > 1


def real_types(values: Iterable[object]) -> set[torch.dtype]:
    return {value.dtype for value in values if isinstance(value, torch.Tensor) and value.dtype.is_floating_point}


def form_by_types(what: str, types: set[torch.dtype]) -> tuple[str, ...]:
    """Return what is said of weights or inputs that were given in other types than float32, or nothing."""
    names = sorted(str(kind).removeprefix("torch.") for kind in types)
    if not types - {torch.float32}:
        return ()
    return (f"came with {what} in {' and '.join(names)}: each cell casts them to its own precision",)


def training_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that act otherwise in training mode, and are in it."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return [part for part in module.modules() if part.training and isinstance(part, kinds)]


def form_by_mode(training: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return what is said of a module whose layers came in training mode, and are no longer in it, or nothing."""
    kinds = sorted({type(part).__name__ for part in training if not part.training})
    return (f"came with {listed(kinds)} in training mode, and inference is measured in eval mode",) if kinds else ()


def is_scripted(module: nn.Module) -> bool:
    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def is_quantised(module: nn.Module) -> bool:
    return any(_has_quantised_weights(part) for part in module.modules())


def completed(model: LoadedModel, seed: int) -> LoadedModel:
    """Return the model without wrappers, and with the weights of lazy layers drawn from the seed by one call. Raise
    UsageError for a module on the meta device, which has no weights."""
    module, taken = unwrapped(model.module)
    require_weights(module)
    forms = []
    if is_scripted(module):
        is_script = isinstance(module, torch.jit.ScriptModule)
        forms.append("is a ScriptModule" if is_script else "has a ScriptModule among its parts")
    if is_quantised(module):
        forms.append("is quantised already, and stays so in each precision")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        initialise(module, model.inputs, seed)
        forms.append(LAZY)
    elif _makes_layers(module, model.inputs, seed):
        initialise(module, model.inputs, seed)
        forms.append(MAKES_LAYERS)
    return replace(model, module=module, unwrapped=(*model.unwrapped, *taken), forms=(*model.forms, *forms))


def require_weights(module: nn.Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise UsageError(
                f"'{name}' of the module is on the meta device and has no values: make the module on the CPU, or call "
                "to_empty and load its weights"
            )


def initialise(module: nn.Module, sets: Sequence[Inputs], seed: int) -> None:
    """Call the module once, so that lazy layers get weights. They are the same for the same seed."""
    given = sets[0].map(lambda tensor: tensor.clone())  # it may write into them
    with seeded(seed), torch.no_grad():
        module(*given.args, **dict(given.kwargs))


def _makes_layers(module: nn.Module, sets: Sequence[Inputs], seed: int) -> bool:
    """Return True if a call makes layers. A copy is called, since the call may change a state, or fail."""
    if not any(map(_may_make_layers, {type(part) for part in module.modules()})):
        return False
    try:
        called = copy.deepcopy(module)
        initialise(called, sets, seed)
    except Exception:  # of the user's code
        traceback.print_exc()
        return False
    return not set(dict(module.named_parameters())).issuperset(dict(called.named_parameters()))


def _may_make_layers(kind: type[nn.Module]) -> bool:
    """Return True if the forward of this class names a class of layers, and sets an attribute."""
    forward = getattr(kind, "forward", None)  # a ScriptModule's class has none
    if not isinstance(forward, FunctionType):
        return False
    names = forward.__code__.co_names
    named = (forward.__globals__.get(name, getattr(nn, name, None)) for name in names)
    sets_attribute = any(step.opname == "STORE_ATTR" for step in dis.get_instructions(forward))
    return sets_attribute and any(isinstance(value, type) and issubclass(value, nn.Module) for value in named)


def held_by_wrapper(value: Any) -> tuple[str, Any] | None:
    """Return what a compiler or a parallel wrapper is called and what it holds, or None for anything else."""
    kind = type(value)
    if kept_from_compilers(value) is not None:
        return None
    if kind.__name__ == "OptimizedModule" and hasattr(value, "_orig_mod"):
        return "torch.compile", value._orig_mod
    if kind.__name__ in PARALLEL and kind.__module__.startswith("torch."):
        return kind.__name__, value.module
    if isinstance(value, FunctionType) and (original := _uncompiled(value)):
        return "torch.compile", original
    return None


def kept_from_compilers(value: Any) -> Any:
    """Return the function or module of which `torch.compiler.disable` made this value, or None for anything else."""
    if type(value).__name__ == "OptimizedModule":
        return value._orig_mod if type(value.dynamo_ctx).__name__ == "DisableContext" else None
    is_kept = isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_disable")
    return _given_to_torch(value) if is_kept else None


def _given_to_torch(value: Any) -> Any:
    """Return what `torch.compile` or `torch.compiler.disable` wrapped, or None, as for a function around such a one."""
    original = getattr(value, "_torchdynamo_orig_callable", None)
    return original if getattr(value, "__wrapped__", original) is original else None  # as functools.wraps copies both


def _inner(module: nn.Module, taken: dict[str, None]) -> nn.Module:
    while (held := held_by_wrapper(module)) is not None:
        wrapper, module = held
        taken[wrapper] = None
    return module


def _uncompile_methods(part: Any, taken: dict[str, None]) -> None:
    """Put back methods that are compiled, as by `net.forward = torch.compile(net.forward)` or by a decorator."""
    for name, value in list(vars(part).items()):
        if (original := _uncompiled(value)) is not None:
            vars(part)[name] = original
            taken["torch.compile"] = None
    for kind in type(part).__mro__:
        if kind is nn.Module:
            break
        for name, value in vars(kind).items():
            if name not in vars(part) and (original := _uncompiled(value)) is not None:
                vars(part)[name] = MethodType(original, part)
                taken["torch.compile"] = None


def _uncompiled(value: Any) -> Any:
    is_compiled = callable(value) and kept_from_compilers(value) is None
    return _given_to_torch(value) if is_compiled else None


def _has_quantised_weights(part: nn.Module) -> bool:
    kind = type(part).__module__
    weight = getattr(part, "weight", None)
    return (
        kind.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized"))
        or bool(getattr(weight, "is_quantized", False))
        or type(weight).__module__.startswith("torchao.")
    )
