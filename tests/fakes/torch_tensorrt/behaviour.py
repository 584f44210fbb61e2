"""What the fake does where a test wants something else than usual, and what it has seen. `reset` undoes it all."""

from __future__ import annotations

not_converted: set[str] = set()
"""Operators that stay in torch."""

switched: list[bool] = []
"""Each time that CUDA graphs were switched on or off."""

_least_block = 0


def least_block() -> int:
    """Return below how many operators no engine is built, whatever the settings say."""
    return _least_block


def build_no_engine_below(operators: int) -> None:
    global _least_block
    _least_block = operators


def reset() -> None:
    not_converted.clear()
    switched.clear()
    build_no_engine_below(0)
