"""Detects the paths that a program takes again and again. It is pure Python; the program reports what it executes."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from typing import Literal

Shapes = Literal["exact", "any"]
"""The same operations on other shapes are another path for `exact`, and the same path for `any`."""


class HotPathDetector:
    """Counts iterations by their signature: the operations in order, with or without shapes.

    A path is hot once `hot_threshold` iterations have taken it. Any number of threads may use one detector. Each thread
    has an iteration of its own, and the counts are common.

        detector = HotPathDetector(hot_threshold=10)
        detector.begin_iteration()
        detector.record_operation("linear", input_shape=(32, 256))
        just_became_hot = detector.end_iteration()  # True once for each path
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
        """Each thread has a `current` and an `ended` of its own."""

    @property
    def signature(self) -> str | None:
        """The signature of this thread's last iteration, or None. It is the same in every process."""
        return getattr(self._iteration, "ended", None)

    def begin_iteration(self) -> None:
        """Begin an iteration. Raises RuntimeError inside an iteration of this thread."""
        if self._current is not None:
            raise RuntimeError("begin_iteration inside an iteration: call end_iteration first")
        self._iteration.current = hashlib.sha256()

    def record_operation(self, name: str, input_shape: tuple[int, ...] | tuple[tuple[int, ...], ...] = ()) -> None:
        """Record an operation of the iteration, with the shape of its input, or the shapes of its inputs.

        Raises RuntimeError outside of an iteration of this thread.
        """
        current = self._current
        if current is None:
            raise RuntimeError("record_operation outside of an iteration: call begin_iteration first")
        shape = repr(input_shape) if self.shapes == "exact" else ""
        # lengths first, so that no two sequences of operations run together to the same bytes
        current.update(f"{len(name)},{len(shape)}:{name}{shape}".encode())

    def end_iteration(self) -> bool:
        """End the iteration. Return True if its path just became hot, which is once for each path.

        Raises RuntimeError outside of an iteration of this thread.
        """
        current = self._current
        if current is None:
            raise RuntimeError("end_iteration outside of an iteration: call begin_iteration first")
        signature = current.hexdigest()[:24]
        self._iteration.current, self._iteration.ended = None, signature
        return self.count_again(signature)

    def abandon_iteration(self) -> None:
        """Forget the iteration under way, if there is one. This is for an iteration that raised."""
        self._iteration.current = None

    def count_again(self, signature: str, iterations: int = 1) -> bool:
        """Count iterations that took a known path without being recorded. Return True if it just became hot."""
        with self._lock:
            before = self._counts[signature]
            self._counts[signature] += iterations
        return before < self.hot_threshold <= before + iterations

    def count(self, signature: str) -> int:
        """Return how many iterations took the path."""
        with self._lock:
            return self._counts.get(signature, 0)

    def is_hot(self, signature: str) -> bool:
        return self.count(signature) >= self.hot_threshold

    @property
    def _current(self) -> hashlib._Hash | None:
        """The iteration that this thread is in."""
        return getattr(self._iteration, "current", None)
