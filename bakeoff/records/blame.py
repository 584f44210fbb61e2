"""Where a cell loses precision, or what of its model fails: the smallest part that does so alone."""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import Field

from bakeoff.records.schema import Frozen


class Found(StrEnum):
    """What looking for the smallest part came to."""

    NOTHING = "nothing"  # the whole model is as exact as its precision allows, or does not fail now
    PLACE = "place"  # one part
    SPREAD = "spread"  # the whole is beyond its limit, and no part is


class Trial(Frozen):
    """One part that was built alone, on inputs of the reference."""

    name: str  # path of a module, `layers.0 to layers.3`, or an operator such as `aten.addmm`; "" is the whole model
    kind: str  # class of the module, "modules in a row" or "operator"
    error: float | None = None  # RMSE relative to the output; None: it failed, or returned nothing to compare
    eager_error: float | None = None
    limit: float | None = None  # that the error may have
    failure: str = ""  # why it did not build or run
    eager_fails: bool = False  # it is eager that fails on it alone, which blames nobody

    @property
    def excess(self) -> float:
        """Return how many times its limit the error is: above 1 it is more than it should be."""
        if self.error is None or not self.limit:
            return 0.0
        return self.error / self.limit if math.isfinite(self.error) else math.inf

    @property
    def fails(self) -> bool:
        """Return True if the backend fails on it, and eager does not."""
        return bool(self.failure) and not self.eager_fails


class Blame(Frozen):
    """What a cell's error or failure comes from."""

    label: str
    cell_id: str
    looks_for_failure: bool
    found: Found
    place: Trial | None = None
    line: str = ""  # of the user's code that calls the operator: `mine.py, line 12, in forward`
    trials: list[Trial] = Field(default_factory=list)  # in the order in which they were made
    source: str = (
        ""  # Python that defines `model` and `inputs`, of the part that fails alone; empty: it cannot be written
    )
    left_out: int = 0  # operators that were not tried for lack of time
