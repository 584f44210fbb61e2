"""A model starts eager. What is hot is compiled beside the calls, and taken up when it is ready and faster.

    from bakeoff_hotpath import enable_hot_path_detection

    hot = enable_hot_path_detection(model)
    for batch in batches:
        model(batch)
    print(hot.report())

README.md says how this library decides and what it costs. Only `bakeoff_hotpath.backend` imports Bakeoff.
`HotPathDetector` needs no torch: it counts iterations for a program that records its operations itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff_hotpath.detector import HotPathDetector

if TYPE_CHECKING:
    from bakeoff_hotpath.enabling import HotPaths, enable_hot_path_detection

__all__ = ["HotPathDetector", "HotPaths", "enable_hot_path_detection"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when somebody asks for it."""
    if name not in __all__:
        raise AttributeError(f"module 'bakeoff_hotpath' has no attribute '{name}'")
    from bakeoff_hotpath import enabling

    return getattr(enabling, name)
