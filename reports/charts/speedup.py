"""Speed-up over the baseline with its interval, a mark per ranked cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import LOG_FROM_RATIO, ends, ratio_over_baseline
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import Chart, Scale, add, bar_interval, mark, symbol, x_axis


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    if not findings.has_ratio(contest):
        return None
    made = Chart(
        "speedup",
        findings.speedup(contest),
        f"Speed-up over {contest.baseline} in the same rounds, with its 95 % interval",
        rows.height_of(contest.cells),
    )
    ratios = {place: ratio for place, row in enumerate(contest.cells) if (ratio := ratio_over_baseline(row))}
    values = [1.0, *(value for ratio in ratios.values() for value in (ratio.value, *ends(ratio)))]
    texts = {place: f"{format.ratio(ratio.value)}x" for place, ratio in ratios.items()}
    across = _scale(values, rows.RIGHT - rows.room_for(texts.values()))
    foot = rows.foot_of(contest.cells)
    x_axis(made.root, across, foot, f"speed-up over {contest.baseline} (x)")
    add(made.root, "path", "one", d=f"M{across(1):.1f} 0V{foot:.1f}")
    for place, ratio in ratios.items():
        row, y = contest.cells[place], rows.middle_of(place)
        tip = f"{row.label}: {texts[place]} {format.ratio_interval(ratio.ci95)} over {ratio.processes} processes"
        group = mark(made.root, key.number(row.label), tip)
        low, high = map(across, ends(ratio))
        if low < high:
            bar_interval(group, low, high, y)
        symbol(group, across(ratio.value), y, key.look(row.label).marker, size=6)
        rows.value_at(group, texts[place], max(high, across(ratio.value) + 4), place)
    rows.name_rows(made.root, contest.cells, key, ratios)
    return made


def _scale(values: list[float], stop: float) -> Scale:
    low, high = min(values), max(values)
    if high > LOG_FROM_RATIO * low > 0:
        return Scale(low / 1.15, high, rows.LEFT + 6, stop, is_log=True)
    span = high - low or 0.1
    return Scale(max(0.0, low - 0.08 * span), high, rows.LEFT + 6, stop)
