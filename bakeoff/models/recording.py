"""`bakeoff.record`: keeps what a program asks of a module, while the program runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bakeoff.models.calls_file import CALLS_PER_SHAPE, LIMIT_BYTES, Calls
from bakeoff.models.unwrapping import without_wrappers
from bakeoff.records.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def record(
    module: nn.Module, *, limit_bytes: int = LIMIT_BYTES, calls_per_shape: int = CALLS_PER_SHAPE
) -> Iterator[Calls]:
    """Record the calls of `module` that any thread makes in the block, and leave the module as it was.

    Shapes, types and constants are counted for every call. Values are copied to host memory before the module runs, for
    `calls_per_shape` calls of each size and within `limit_bytes`.

    Arguments are recorded as the caller gave them: before autocast casts them, and before other hooks change them. What
    is compiled by `torch.compile` runs eagerly in the block, since compiled code calls no hooks. Calls while a program
    is traced, exported or captured into a CUDA graph compute nothing, and are not recorded. A direct call of
    `module.forward(...)` is not recorded either, since torch calls no hooks then.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"record takes a torch.nn.Module, not a value of type {type(module).__name__}")
    inner = without_wrappers(module)
    calls = Calls(type(inner).__name__, limit_bytes=limit_bytes, calls_per_shape=calls_per_shape)
    hook = _Hook(calls)
    # ScriptModules refuse this method as their own attribute, and take it all the same
    handle = torch.nn.Module.register_forward_pre_hook(inner, hook, prepend=True, with_kwargs=True)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield calls
    finally:
        handle.remove()
        hook.calls = None


class _Hook:
    """Hands each call to `Calls`, from any thread. A copy of the module that is made meanwhile records nothing."""

    def __init__(self, calls: Calls | None = None) -> None:
        self.calls = calls
        self._lock = threading.RLock()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.calls is None or computes_nothing(args, kwargs):
            return
        import torch

        with self._lock:
            self.calls.add(args, kwargs)
            self.calls.under_autocast += torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def computes_nothing(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True while the module is traced or captured, so that its arguments have no values."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree as pytree

    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return True
    tensors = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    return any(
        tensor.is_meta or isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        for tensor in tensors
    )
