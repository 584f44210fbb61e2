"""Which paths through a program are taken again and again. Pure Python: whoever watches tells it what was executed."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from typing import Literal

Shapes = Literal["exact", "any"]
"""`exact`: the same operations on other shapes are another path. `any`: they are the same one."""


class HotPathDetector:
    """Counts iterations by their signature: the operations they executed, in order, with shapes or without.

    A path is hot from the iteration on that takes it for the `hot_threshold`th time. Any number of threads may use one
    detector: each has an iteration of its own, and the counts are common.
    """

    def __init__(self, hot_threshold: int = 10, shapes: Shapes = "exact") -> None:
        if hot_threshold < 1:
            raise ValueError(f"hot_threshold must be at least 1, not {hot_threshold}")
        if shapes not in ("exact", "any"):
            raise ValueError(f"shapes must be 'exact' or 'any', not {shapes!r}")
        self.hot_threshold = hot_threshold
        self.shapes = shapes
        self._counts: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._iteration = threading.local()
        """`current` and `ended`, of each thread its own."""

    @property
    def signature(self) -> str | None:
        """Of the iteration that this thread ended last; None before the first. The same in every process."""
        return getattr(self._iteration, "ended", None)

    def begin_iteration(self) -> None:
        """Raises RuntimeError inside an iteration of this thread."""
        if self._current is not None:
            raise RuntimeError("begin_iteration inside an iteration: call end_iteration first")
        self._iteration.current = hashlib.sha256()

    def record_operation(self, name: str, input_shape: tuple[int, ...] | tuple[tuple[int, ...], ...] = ()) -> None:
        """One operation of the iteration, with the shape of its input, or the shapes of its inputs.

        Raises RuntimeError outside of an iteration of this thread.
        """
        current = self._current
        if current is None:
            raise RuntimeError("record_operation outside of an iteration: call begin_iteration first")
        shape = repr(input_shape) if self.shapes == "exact" else ""
        # lengths first, so that no two sequences of operations run together to the same bytes
        current.update(f"{len(name)},{len(shape)}:{name}{shape}".encode())

    def end_iteration(self) -> bool:
        """Whether the path just became hot: True once for each path.

        Raises RuntimeError outside of an iteration of this thread.
        """
        current = self._current
        if current is None:
            raise RuntimeError("end_iteration outside of an iteration: call begin_iteration first")
        signature = current.hexdigest()[:24]
        self._iteration.current, self._iteration.ended = None, signature
        return self.count_again(signature)

    def abandon_iteration(self) -> None:
        """Forget the iteration under way, if there is one: it raised, and took no path to its end."""
        self._iteration.current = None

    def count_again(self, signature: str, iterations: int = 1) -> bool:
        """Count further iterations that are known to have taken a path without having been recorded.

        Returns whether it just became hot.
        """
        with self._lock:
            before = self._counts[signature]
            self._counts[signature] += iterations
        return before < self.hot_threshold <= before + iterations

    def count(self, signature: str) -> int:
        """How many iterations took the path."""
        with self._lock:
            return self._counts.get(signature, 0)

    def is_hot(self, signature: str) -> bool:
        return self.count(signature) >= self.hot_threshold

    @property
    def _current(self) -> hashlib._Hash | None:
        """The iteration that this thread is in."""
        return getattr(self._iteration, "current", None)
