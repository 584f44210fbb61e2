"""Accepts outputs that the numeric check alone rejects: by a limit on errors, or by a required metric. Pure."""

from dataclasses import dataclass

from bakeoff.judging.constraints import NOTHING, Requirements
from bakeoff.records.doubts import Accepted, AcceptedByLimit, AcceptedByMetric
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy, Record, Status


@dataclass(frozen=True)
class Acceptance:
    """What the user accepts. Outputs of another form, and values that are not finite, are never accepted."""

    limits: Requirements = NOTHING  # of --accept, on errors: in any precision
    required: Requirements = NOTHING  # of --require: its metrics decide in a precision that rounds

    def may_accept(self, accuracy: Accuracy, precision: Precision, is_evaluated: bool) -> bool:
        awaits_metric = is_evaluated and bool(self.required.metrics) and _may_be_evaluated(accuracy, precision)
        return not accuracy.passed and (self._allows(accuracy) or awaits_metric)

    def applied_to(self, record: Record) -> Record:
        """Return the record as ok if its errors are accepted, and else as incorrect, as the numeric check says. Records
        that did not fail by the size of errors alone are returned unchanged."""
        accuracy = record.accuracy
        before = next((doubt for doubt in record.doubts if isinstance(doubt, Accepted)), None)
        failure = record.failure or (before.failure if before else None)
        is_judged_here = before is not None or record.status is Status.INCORRECT
        if not (is_judged_here and failure and accuracy and accuracy.is_only_inexact):
            return record
        kind: type[AcceptedByLimit | AcceptedByMetric] | None = None
        if self._allows(accuracy):
            kind, required = AcceptedByLimit, self.limits
        elif _may_be_evaluated(accuracy, record.cell.precision) and self.required.are_surely_kept(record):
            kind, required = AcceptedByMetric, self.required.of_metrics()
        doubts = [doubt for doubt in record.doubts if doubt is not before]
        if kind is None:
            return record.but(status=Status.INCORRECT, reason=failure.sentence, failure=failure, doubts=doubts)
        doubt = kind(required=str(required), relative_rmse=accuracy.relative_rmse, failure=failure)
        return record.but(status=Status.OK, reason="", failure=None, doubts=[*doubts, doubt])

    def _allows(self, accuracy: Accuracy) -> bool:
        limits = self.limits.items
        return accuracy.is_only_inexact and bool(limits) and all(limit.holds_for(accuracy) for limit in limits)


def _may_be_evaluated(accuracy: Accuracy, precision: Precision) -> bool:
    return accuracy.is_only_inexact and (precision.is_quantised or precision.is_16_bit)
