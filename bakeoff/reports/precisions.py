"""The fastest of each precision, in a contest across several, as sentences that every output prints unescaped."""

from __future__ import annotations

from bakeoff.judging.contest import ContestJudgement, PrecisionJudgement
from bakeoff.judging.tolerance import Tolerance
from bakeoff.records.text import spell_ms
from bakeoff.reports import number_format
from bakeoff.reports.tables import Table
from bakeoff.reports.words import first, listed


def sentences(contest: ContestJudgement) -> list[str]:
    """Return a sentence for each precision that was measured, and how another one may win."""
    told = [_of_precision(each, contest.baseline) for each in contest.of_precisions]
    if any(each.best.beyond for each in contest.of_precisions):
        told.append(
            "To let a precision win that rounds more, require what your task needs, such as "
            "--require 'relative_rmse<1e-2'"
        )
    return told


def tables(contest: ContestJudgement) -> list[Table]:
    """Return no table: the contest's own has all precisions."""
    return []


def condition(contest: ContestJudgement) -> str | None:
    """Return what the winner keeps, such as `within fp32's rounding`, in a contest that has several precisions."""
    return within(contest.tolerance) if contest.tolerance else None


def within(tolerance: Tolerance) -> str:
    return f"within {tolerance.precision}'s rounding"


def _of_precision(judged: PrecisionJudgement, baseline: str | None) -> str:
    """Return `int8: onnx int8, 0.12 ms, 3.1x eager fp32, error 2.1e-02, not within fp32's rounding`."""
    best = judged.best
    parts = [f"{judged.precision}: {listed(first(judged.candidates), 'or')}"]
    parts += [spell_ms(best.latency.median_ms)] if best.latency else []
    parts += [f"{number_format.times(best.speedup)} {baseline}"] if best.speedup and not best.is_baseline else []
    if (accuracy := best.record.accuracy) and not accuracy.unchecked:
        parts.append(f"error {number_format.error(accuracy.relative_rmse)}")
    parts += [f"not {within(best.beyond)}"] if best.beyond else []
    parts += ["not as required"] if best.unmet else []
    return ", ".join(parts)
