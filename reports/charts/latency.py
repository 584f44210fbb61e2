"""Median latency with its interval, a bar per cell; dots where the slowest takes many times what the fastest does."""

from __future__ import annotations

from collections.abc import Collection

from judging.judgement import CellJudgement, ContestJudgement
from records.schema import Latency
from reports import findings, format
from reports.chart_data import LOG_FROM
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import Chart, Scale, add, bar_interval, mark, symbol, x_axis


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    measured = {place: row.record.latency for place, row in enumerate(contest.cells) if row.record.latency}
    if not measured:
        return None
    made = Chart(
        "latency",
        findings.latency(contest),
        "Median latency in ms, with its 95 % interval",
        rows.height_of(contest.cells),
    )
    medians_ms = [latency.median_ms for latency in measured.values()]
    is_log = max(medians_ms) > LOG_FROM * min(medians_ms) > 0
    across = _scale(measured.values(), [_text(contest.cells[place], measured[place]) for place in measured], is_log)
    x_axis(made.root, across, rows.foot_of(contest.cells), "median latency (ms)")
    for place, latency in measured.items():
        _draw(made, contest.cells[place], place, latency, across, key)
    rows.name_rows(made.root, contest.cells, key, measured)
    return made


def _draw(made: Chart, row: CellJudgement, place: int, latency: Latency, across: Scale, key: Key) -> None:
    tip = f"{row.label}: {format.median(latency)} ms, {latency.calls:,} calls in {latency.processes} processes"
    group = mark(made.root, key.number(row.label), tip)
    is_wrong = row.record.status.is_failure
    x, y = across(latency.median_ms), rows.middle_of(place)
    if across.is_log:
        symbol(group, x, y, key.look(row.label).marker, "wrong" if is_wrong else "dot", 6)
    else:
        add(
            group,
            "rect",
            "wrong" if is_wrong else "bar",
            x=across.start,
            y=y - 7,
            width=max(1.0, x - across.start),
            height=14,
            rx=2,
        )
    end = x
    if latency.median_ci95_ms:
        low, end = across(latency.median_ci95_ms.low), across(latency.median_ci95_ms.high)
        bar_interval(group, low, end, y)
    rows.value_at(group, _text(row, latency), max(x, end), place)


def _scale(latencies: Collection[Latency], texts: Collection[str], is_log: bool) -> Scale:
    low = min(latency.median_ms for latency in latencies)
    high = max(max(each.median_ms, each.median_ci95_ms.high if each.median_ci95_ms else 0) for each in latencies)
    stop = rows.RIGHT - rows.room_for(texts)
    return Scale(low / 1.3, high, rows.LEFT, stop, is_log=True) if is_log else Scale(0, high or 1.0, rows.LEFT, stop)


def _text(row: CellJudgement, latency: Latency) -> str:
    note = f" {row.record.status}" if row.record.status.is_failure else ""
    return f"{format.milliseconds(latency.median_ms)}{note}"
