"""Without a required metric, a contest across precisions is won within the rounding of the first: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy, Record


@dataclass(frozen=True)
class Tolerance:
    """The largest errors that cells of `precision` may have. One of the two limits is enough, as in their own check."""

    precision: Precision
    rmse: float  # some times eager's error
    relative_rmse: float  # rounding, whatever eager's error is

    def holds(self, record: Record) -> bool:
        """Return True if the cell is as exact as those of this precision. These have passed their own check."""
        if record.cell.precision is self.precision:
            return True
        found = _known(record)
        return found is not None and (found.rmse <= self.rmse or found.relative_rmse <= self.relative_rmse)


def tolerance_of(precision: Precision, records: Sequence[Record]) -> Tolerance:
    """Return the tolerance of a precision by the checks of its cells. Without any, no other precision is within it."""
    checks = [found for record in records if record.cell.precision is precision and (found := _known(record))]
    eager = [found.eager_rmse for found in checks if found.eager_rmse is not None and math.isfinite(found.eager_rmse)]
    return Tolerance(
        precision,
        precision.max_times_eager_rmse * max(eager, default=0.0),
        min((found.rtol for found in checks), default=0.0),
    )


def _known(record: Record) -> Accuracy | None:
    """Return the errors of a cell whose outputs were compared."""
    return record.accuracy if record.accuracy and not record.accuracy.unchecked else None
