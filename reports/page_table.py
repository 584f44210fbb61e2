"""The columns of a contest's table on the page, with what each sorts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from judging.judgement import CellJudgement, ContestJudgement
from records.schema import Extent, Placement, Record, Status
from records.text import one_line
from reports import cost_report, format
from reports.format import NONE


@dataclass(frozen=True)
class Field:
    """One cell of the table: plain text, nothing is escaped yet. `sort` is None where there is nothing to compare."""

    text: str
    sort: float | str | None = None
    note: str = ""  # below the text, smaller
    css: str = ""


@dataclass(frozen=True)
class Column:
    header: str
    unit: str
    field: Callable[[CellJudgement], Field]
    is_text: bool = False


def columns_of(contest: ContestJudgement) -> Sequence[Column]:
    """Those that some row has a value for; the row's name is not among them."""
    kinds = {kind for row in contest.cells if (kind := format.peak_memory(row.record)[1])}
    peak = f"MiB, {kinds.copy().pop()}" if len(kinds) == 1 else "MiB"
    columns = [
        Column("median", "ms", _median),
        Column("p99", "ms", _p99),
        Column("speed-up", f"over {one_line(contest.verdict.baseline or 'eager', 20)}", _speedup),
        Column("break-even", "calls", lambda row: _break_even(row, contest)),
        Column("build", "s", _build),
        Column("peak memory", peak, lambda row: _peak_memory(row.record, name_kind=len(kinds) > 1)),
        Column("error", "relative RMSE", _error),
        Column("of floor", "%", _floor_share),
        Column("placement", "", lambda row: _placement(row.record.placement), is_text=True),
    ]
    return [column for column in columns if any(column.field(row).text != NONE for row in contest.cells)]


def rank(row: CellJudgement) -> Field:
    return Field(str(row.standing.rank), row.standing.rank) if row.standing else Field(NONE)


def status(record: Record) -> Field:
    """How the cell ended, with the beginning of the reason."""
    kind = "good" if record.status is Status.OK else "absent" if record.status.is_absence else "bad"
    return Field(format.fate(record), format.fate(record), one_line(record.reason, 90), kind)


def _median(row: CellJudgement) -> Field:
    latency = row.record.latency
    if latency is None:
        return Field(NONE)
    interval = format.milliseconds_interval(latency.median_ci95_ms)
    return Field(format.milliseconds(latency.median_ms), latency.median_ms, interval)


def _p99(row: CellJudgement) -> Field:
    latency = row.record.latency
    if latency is None:
        return Field(NONE)
    return Field("n/a") if latency.p99_ms is None else Field(format.milliseconds(latency.p99_ms), latency.p99_ms)


def _speedup(row: CellJudgement) -> Field:
    ratio = row.standing.speedup_over_baseline if row.standing else None
    if ratio is None:
        return Field(NONE)
    return Field(f"{format.ratio(ratio.value)}x", ratio.value, format.ratio_interval(ratio.ci95))


def _break_even(row: CellJudgement, contest: ContestJudgement) -> Field:
    if row.standing is None or contest.baseline is None:
        return Field(NONE)
    found = contest.costs.break_even(row.label, contest.baseline, "cold")
    spelt, _, interval = cost_report.spell_break_even(found).partition(" [")
    return Field(spelt, found.calls if found and found.is_established else None, f"[{interval}" if interval else "")


def _build(row: CellJudgement) -> Field:
    if not row.record.phases:
        return Field(NONE)
    return Field(format.seconds(row.record.build_s), row.record.build_s)


def _peak_memory(record: Record, name_kind: bool) -> Field:
    peak_bytes, kind = format.peak_memory(record)
    return Field(format.mebibytes(peak_bytes), peak_bytes, kind if name_kind else "")


def _error(row: CellJudgement) -> Field:
    accuracy = row.record.accuracy
    if accuracy is None:
        return Field(NONE)
    note = "" if accuracy.passed else "failed"
    return Field(format.error(accuracy.relative_rmse), accuracy.relative_rmse, note)


def _floor_share(row: CellJudgement) -> Field:
    share = row.record.roofline.share if row.record.roofline else None
    return Field(format.percent(share), share, "" if share is None else format.achieved(row.record))


def _placement(placement: Placement | None) -> Field:
    if placement is None:
        return Field(NONE)
    elsewhere = format.some([one_line(name, 40) for name in placement.fallbacks])
    css = "" if placement.extent is Extent.FULL else "status bad"
    return Field(placement.extent.value, placement.extent.value, elsewhere, css)
