"""Using dispatch modes without importing torch's compiler."""

import sys


def keep_compiler_out(*modes: type) -> None:
    """Have these dispatch modes not import `torch._dynamo` when they are used. Call it just before.

    Torch wraps a mode's `__torch_dispatch__` so that the compiler leaves it alone, and imports the compiler for that,
    which takes two seconds. Where a model has imported it already, nothing changes. A torch that wraps modes in another
    way imports its compiler as before.
    """
    for mode in modes:
        handler = getattr(getattr(mode, "__torch_dispatch__", None), "__wrapped__", None)
        if handler is not None and "torch._dynamo" not in sys.modules:
            handler.__dynamo_disable = handler
