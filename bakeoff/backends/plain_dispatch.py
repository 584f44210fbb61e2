"""Using dispatch modes without importing torch's compiler."""

import sys


def keep_compiler_out(*modes: type) -> None:
    """Have these dispatch modes not import `torch._dynamo`, which takes two seconds, when they are used next."""
    for mode in modes:
        handler = getattr(getattr(mode, "__torch_dispatch__", None), "__wrapped__", None)
        if handler is not None and "torch._dynamo" not in sys.modules:
            # torch wraps the handler so that the compiler leaves it alone, and imports the compiler for that
            handler.__dynamo_disable = handler
