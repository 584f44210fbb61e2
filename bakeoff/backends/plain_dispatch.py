"""Watching the operators of torch that calls run, without importing torch's compiler."""

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


def keep_compiler_out(*modes: type) -> None:
    """Have these dispatch modes not import `torch._dynamo`, which takes two seconds, when they are used next."""
    for mode in modes:
        handler = getattr(getattr(mode, "__torch_dispatch__", None), "__wrapped__", None)
        if handler is not None and "torch._dynamo" not in sys.modules:
            # torch wraps the handler so that the compiler leaves it alone, and imports the compiler for that
            handler.__dynamo_disable = handler


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells `note` of each operator that torch has run in the block: the operator, what it was given, and what it has
    returned. A subclass may hand on something else than that."""

    def __init__(self, note: Callable[..., object] = lambda *_: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        keep_compiler_out(OperatorWatch)
        self._listener = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self.after(func, args, kwargs, func(*args, **kwargs))

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        self._listener(func, args, kwargs, found)
        return found
