"""How the latencies of single calls are distributed, a hill per cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import Hill, hills, is_log_hills, samples_ms
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import Chart, Scale, add, mark, scale, x_axis

_HEIGHT = 20.0


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    samples = {place: values for place, row in enumerate(contest.cells) if len(values := samples_ms(row.record))}
    if not samples:
        return None
    made = Chart(
        "samples",
        findings.samples(contest),
        "Distribution of the latency of single calls in ms, the middle 99 % of them, with the median",
        rows.height_of(contest.cells),
    )
    drawn = dict(zip(samples, hills(list(samples.values())), strict=True))
    ends_ms = [end for hill in drawn.values() for end in (hill.low_ms, hill.high_ms)]
    across = scale(ends_ms, rows.LEFT, rows.RIGHT, is_log_hills(list(drawn.values())), pad=0.04)
    x_axis(made.root, across, rows.foot_of(contest.cells), "latency of a call (ms)")
    for place, hill in drawn.items():
        row, foot = contest.cells[place], rows.middle_of(place) + 10
        calls, median = f"{len(samples[place]):,} calls", format.milliseconds(hill.median_ms)
        middle = f"{format.milliseconds(hill.low_ms)} to {format.milliseconds(hill.high_ms)} ms"
        tip = f"{row.label}: median of {calls} {median} ms, 99 % from {middle}"
        group = mark(made.root, key.number(row.label), tip)
        if len(hill.heights):
            add(group, "path", "wrong" if row.record.status.is_failure else "hill", d=_outline(hill, across, foot))
        x = across(hill.median_ms)
        add(group, "path", "median", d=f"M{x:.1f} {foot:.1f}v{-_HEIGHT:.1f}")
    rows.name_rows(made.root, contest.cells, key, drawn)
    return made


def _outline(hill: Hill, across: Scale, foot: float) -> str:
    tops = [
        f"{across(middle):.1f} {foot - _HEIGHT * height:.1f}"
        for middle, height in zip(hill.middles_ms.tolist(), hill.heights.tolist(), strict=True)
    ]
    first, last = across(float(hill.middles_ms[0])), across(float(hill.middles_ms[-1]))
    return f"M{first:.1f} {foot:.1f}L{'L'.join(tops)}L{last:.1f} {foot:.1f}z"
