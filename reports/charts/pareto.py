"""Latency against build time, and what nothing dominates."""

from __future__ import annotations

from judging.judgement import CellJudgement, ContestJudgement
from reports import findings, format
from reports.chart_data import SHORTEST_BUILD_S, build_s, stairs
from reports.charts.key import Key
from reports.charts.scatter import FOOT, HEIGHT, LEFT, RIGHT, TOP
from reports.charts.svg import Chart, mark, path, scale, symbol, x_axis, y_axis


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    if not findings.has_front(contest):
        return None
    points = [(row, build_s(row), row.record.latency.median_ms) for row in contest.ranked if row.record.latency]
    if any(median_ms <= 0 for _, _, median_ms in points):
        return None
    made = Chart(
        "pareto",
        findings.pareto(contest),
        "Median latency in ms against build time in s; the line is their front. Filled: nothing dominates it "
        f"in {', '.join(contest.front.aims)}",
        HEIGHT,
    )
    across = scale([built_s for _, built_s, _ in points], LEFT + 6, RIGHT, is_log=True)
    up = scale([median_ms for _, _, median_ms in points], FOOT, TOP, is_log=True)
    clipped = "; under 1 ms: at 1 ms" if any(built_s == SHORTEST_BUILD_S for _, built_s, _ in points) else ""
    x_axis(made.root, across, FOOT, f"build time (s){clipped}", top=TOP)
    y_axis(made.root, up, LEFT, RIGHT, "median latency (ms)")
    _draw_stairs(made, [(across(built_s), -up(median_ms)) for _, built_s, median_ms in points])
    for row, built_s, median_ms in points:
        group = mark(made.root, key.number(row.label), _tip(row))
        css = "dot" if row.label in contest.front.labels else "hollow"
        symbol(group, across(built_s), up(median_ms), key.look(row.label).marker, css, 6)
    return made


def _draw_stairs(made: Chart, places: list[tuple[float, float]]) -> None:
    """`places` with heights counted upwards."""
    front = [(x, -y) for x, y in stairs([(x, y) for x, y in places])]
    corners = [front[0]]
    for x, y in front[1:]:
        corners += [(x, corners[-1][1]), (x, y)]
    path(made.root, [*corners, (RIGHT, corners[-1][1])], "front")


def _tip(row: CellJudgement) -> str:
    record = row.record
    parts = [
        f"{row.label}: {format.milliseconds(record.latency.median_ms) if record.latency else format.NONE} ms",
        f"built in {format.seconds(record.build_s)} s",
        f"{format.mebibytes(format.peak_memory(record)[0])} MiB",
        f"relative error {format.error(record.accuracy.relative_rmse if record.accuracy else None)}",
    ]
    return ", ".join(parts)
