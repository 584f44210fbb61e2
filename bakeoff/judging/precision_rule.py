"""Without a required metric, a contest across precisions is won within the rounding of the first: pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy, Record


@dataclass(frozen=True)
class Tolerance:
    """The error that cells of `precision` may have: a multiple of eager's, or what is rounding whatever eager's is. It
    is relative to the size of each output, and the worst output counts."""

    precision: Precision
    relative_rmse: float
    changes_unheld: int = 0  # of parameters by a training step: the type is too coarse to hold them

    def holds(self, record: Record) -> bool:
        """Return True if the cell is as exact as those of this precision. These have passed their own check."""
        if record.cell.precision is self.precision:
            return True
        errors = _known(record)
        if errors is None:
            return False
        return errors.relative_rmse <= self.relative_rmse and errors.changes_unheld <= self.changes_unheld


def tolerance_of(precision: Precision, records: Sequence[Record]) -> Tolerance:
    """Return the tolerance of a precision by the checks of its cells. Without any, no other precision is within it."""
    checks = [accuracy for record in records if record.cell.precision is precision and (accuracy := _known(record))]
    eager = [error for check in checks if (error := check.eager_relative_rmse) is not None and math.isfinite(error)]
    limits = [
        precision.max_times_eager_rmse * max(eager, default=0.0),
        min((check.rtol for check in checks), default=0.0),
    ]
    return Tolerance(precision, max(limits), max((check.changes_unheld for check in checks), default=0))


def _known(record: Record) -> Accuracy | None:
    return record.accuracy if record.accuracy and record.accuracy.has_errors else None
