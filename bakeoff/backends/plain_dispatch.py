"""Watching the operators of torch that calls run, without importing torch's compiler."""

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


def keep_compiler_out(*modes: type) -> None:
    """Have these dispatch modes not import `torch._dynamo`, which takes two seconds, when they are used next."""
    for mode in modes:
        handler = getattr(getattr(mode, "__torch_dispatch__", None), "__wrapped__", None)
        if handler is not None and "torch._dynamo" not in sys.modules:
            # torch wraps the handler so that the compiler leaves it alone, and imports the compiler for that
            handler.__dynamo_disable = handler


class Uncompiled:
    """Lets what a model compiles itself run plainly while a mode of torch is in force: a mode fails in what torch's
    compiler makes, also in `torch.cond` and FlexAttention, which eager compiles, and what it leaves fails later."""

    def __enter__(self) -> Self:
        self._held = contextlib.ExitStack()
        if "torch._dynamo" in sys.modules:  # else nothing was compiled yet, and to import it takes two seconds
            self._held.enter_context(torch.compiler.set_stance("force_eager"))
        if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):  # torch 2.8
            kind: Any = type(self)
            for function in torch._ops._higher_order_ops.values():
                function.python_key_table.setdefault(kind, partial(_call_below, function))
        super().__enter__()  # type: ignore[misc]
        return self

    def __exit__(self, *failure: object) -> None:
        with self._held:
            super().__exit__(*failure)  # type: ignore[misc]


def _call_below(function: HigherOrderOperator, _: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)  # torch has taken the mode out of force meanwhile


class OperatorWatch(Uncompiled, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells `note` of each operator that torch has run in the block: the operator, what it was given, and what it has
    returned. A subclass may hand on something else than that. Operators that call functions, such as
    `torch.cond`, are not watched, and neither is what these functions run."""

    supports_higher_order_operators = True

    def __init__(self, note: Callable[..., object] = lambda *_: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        keep_compiler_out(*type(self).__mro__)
        self._listener = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        return found if isinstance(func, HigherOrderOperator) else self.after(func, args, kwargs, found)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        self._listener(func, args, kwargs, found)
        return found
