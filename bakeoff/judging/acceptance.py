"""Lets a required metric of the user's own accept what the numeric check alone rejects: pure."""

from bakeoff.judging.constraints import Requirements
from bakeoff.records.doubts import AcceptedByMetric
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy, Record, Status


def may_be_accepted(accuracy: Accuracy, precision: Precision) -> bool:
    """Return True if outputs are only too far off, and in a precision that rounds."""
    return accuracy.is_only_inexact and (precision.is_quantised or precision.is_16_bit)


def accepted_by_metric(record: Record, requirements: Requirements) -> Record:
    """Return the record as ok if required metrics surely hold, and else as incorrect, as the numeric check says.

    That is asked of a record whose outputs are only too far off, in a reduced precision. Any other is returned as it
    is: outputs of another form, values that are not finite, and float32 are no matter of a metric.
    """
    accuracy = record.accuracy
    told = next((doubt for doubt in record.doubts if isinstance(doubt, AcceptedByMetric)), None)
    failure = told.failure if told else record.failure
    is_judged_here = told is not None or record.status is Status.INCORRECT
    if not (is_judged_here and failure and accuracy and may_be_accepted(accuracy, record.cell.precision)):
        return record
    doubts = [doubt for doubt in record.doubts if doubt is not told]
    if not requirements.are_surely_kept(record):
        changed = {"status": Status.INCORRECT, "reason": failure.sentence, "failure": failure}
        return record.model_copy(update=changed | {"doubts": doubts})
    required = str(requirements.of_metrics())
    doubts.append(AcceptedByMetric(required=required, relative_rmse=accuracy.relative_rmse, failure=failure))
    return record.model_copy(update={"status": Status.OK, "reason": "", "failure": None, "doubts": doubts})
