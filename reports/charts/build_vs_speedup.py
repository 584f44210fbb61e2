"""What building costs against what it buys, a mark per ranked cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import LOG_FROM_RATIO, SHORTEST_BUILD_S, build_s, ends, ratio_over_baseline
from reports.charts.key import Key
from reports.charts.scatter import FOOT, HEIGHT, LEFT, RIGHT, TOP
from reports.charts.svg import Chart, add, mark, scale, symbol, x_axis, y_axis


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    if not findings.has_ratio(contest):
        return None
    baseline = contest.baseline
    points = [(row, build_s(row), ratio) for row in contest.ranked if (ratio := ratio_over_baseline(row))]
    made = Chart(
        "build-vs-speedup",
        findings.building(contest),
        f"Speed-up over {baseline} against build time in s (under 1 ms: at 1 ms), with its 95 % interval",
        HEIGHT,
    )
    across = scale([built_s for _, built_s, _ in points], LEFT + 6, RIGHT, is_log=True)
    values = [1.0, *(value for _, _, ratio in points for value in (ratio.value, *ends(ratio)))]
    up = scale(values, FOOT, TOP, is_log=max(values) > LOG_FROM_RATIO * min(values) > 0)
    clipped = "; under 1 ms: at 1 ms" if any(built_s == SHORTEST_BUILD_S for _, built_s, _ in points) else ""
    x_axis(made.root, across, FOOT, f"build time (s){clipped}", top=TOP)
    y_axis(made.root, up, LEFT, RIGHT, f"speed-up over {baseline} (x)")
    add(made.root, "path", "one", d=f"M{LEFT:.1f} {up(1):.1f}H{RIGHT:.1f}")
    for row, built_s, ratio in points:
        tip = f"{row.label}: {format.ratio(ratio.value)}x {format.ratio_interval(ratio.ci95)}, "
        group = mark(made.root, key.number(row.label), f"{tip}built in {format.seconds(row.record.build_s)} s")
        low, high = map(up, ends(ratio))
        x = across(built_s)
        add(group, "path", "whisker", d=f"M{x:.1f} {low:.1f}V{high:.1f}")
        symbol(group, x, up(ratio.value), key.look(row.label).marker, size=6)
    return made
