"""Start eager, watch what is executed, compile what is hot, switch when the compiled version is ready and faster.

    from hotpath import enable_hot_path_detection

    hot = enable_hot_path_detection(model)
    for batch in batches:
        model(batch)
    print(hot.report())

docs/hot-paths.md tells how it decides and what it costs. `HotPathDetector` alone counts iterations that take the same
path, for a program that records its operations itself; it needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotpath.detector import HotPathDetector

if TYPE_CHECKING:
    from hotpath.enabling import HotPaths, enable_hot_path_detection

__all__ = ["HotPathDetector", "HotPaths", "enable_hot_path_detection"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'hotpath' has no attribute '{name}'")
    from hotpath import enabling

    return getattr(enabling, name)
