"""The table of dynamic builds: what one build for a range of sizes costs, a row for each configuration."""

from bakeoff.judging.dynamic import DynamicBuild, DynamicRange
from bakeoff.judging.optional_field import OptionalField
from bakeoff.records.schema import Ratio, Status
from bakeoff.records.text import listed, one_line
from bakeoff.reports import number_format, sentences
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table

REASON_LIMIT = 100

NOTE = "Beside a latency of the one build: how many times as long a call takes as with a build for that size alone."


def title(dynamic_range: DynamicRange) -> str:
    """Return a title such as `transformer (batch 2, dim 256) on cpu, fp32: one build for seq 16 to 128`."""
    title = sentences.title_without(dynamic_range.ranges, dynamic_range.contests[0].cell)
    spans = " and ".join(f"{name} {span.low} to {span.high}" for name, span in dynamic_range.ranges.items())
    return f"{title}: one build for {spans}"


def table_of(dynamic_range: DynamicRange) -> Table[DynamicBuild]:
    return Table(columns_of(dynamic_range), dynamic_range.builds, label=title(dynamic_range))


def finding(dynamic_range: DynamicRange) -> str:
    return f"One build for all sizes {_verdict(dynamic_range)}"


def answer(dynamic_range: DynamicRange) -> str:
    return f"{title(dynamic_range)} {_verdict(dynamic_range)}."


def _verdict(dynamic_range: DynamicRange) -> str:
    serving = [build for build in dynamic_range.builds if build.is_needed and build.serves_all]
    others = [f"{build.configuration} ({_failures(build)})" for build in dynamic_range.builds
              if build.is_needed and not build.serves_all]  # fmt: skip
    but = f"; {listed(others)} {'do' if len(others) > 1 else 'does'} not serve all sizes" if others else ""
    if not any(build.costs for build in serving):
        return f"was not measured{but}"
    slower = [f"{build.configuration} ({number_format.ratio(max(costs))}x)" for build in serving
              if (costs := build.called_costs)]  # fmt: skip
    if not slower:
        names = listed([build.configuration for build in serving], "or")
        return f"is not called slower than builds for each size with {names}{but}"
    return f"is slower than builds for each size with {listed(slower)}{but}"


def columns_of(dynamic_range: DynamicRange) -> list[Column[DynamicBuild]]:
    points = [_point(name, place) for place, name in enumerate(dynamic_range.names)]
    every = f"built for each of {len(points)}"
    return [
        Column("backend", lambda build: build.configuration, write=one_line, is_text=True),
        *points,
        Column("built once", lambda build: build.build_s, "s", number_format.seconds),
        Column(every, lambda build: build.builds_s, "s", number_format.seconds),
        Column(
            "recompiled",
            lambda build: len(build.recompiled) if build.build_s is not None else None,
            note=lambda build: one_line("; ".join(dict.fromkeys(build.recompiled)), REASON_LIMIT),
            is_bad=lambda build: bool(build.recompiled),
        ),
        Column("one build serves", serves, is_text=True, note=_why_not),
    ]


def serves(build: DynamicBuild) -> str:
    """Say whether one build was right at every size: `all sizes`, `any size, as it is`, or how it ended."""
    if not build.is_needed:
        return "any size, as it is"
    if build.serves_all:
        return "all sizes"
    some = any(point.dynamic and point.dynamic.record.status is Status.OK for point in build.points)
    return f"some sizes ({_failures(build)})" if some else _failures(build)


def _failures(build: DynamicBuild) -> str:
    """Return how the build ended where it was not right, such as `incorrect, not reached`."""
    statuses = [point.dynamic.record.status if point.dynamic else Status.NOT_REACHED for point in build.points]
    return ", ".join(dict.fromkeys(status.value for status in statuses if status is not Status.OK))


def _why_not(build: DynamicBuild) -> str:
    reasons = [point.dynamic.record.reason for point in build.points if point.dynamic]
    return next(filter(None, reasons), "")


def _point(name: str, place: int) -> Column[DynamicBuild]:
    """Return the column of one size: `1.31, 1.05x`, the latency alone where nothing is built for a size, or how the
    dynamic build ended."""
    cost = OptionalField[DynamicBuild, Ratio](
        lambda build: cell.over_own_build if (cell := build.points[place].dynamic) else None
    )
    times = cost(lambda it: it.value)

    def text(build: DynamicBuild) -> str:
        cell = build.points[place].dynamic or build.points[place].alone
        if cell is None or cell.latency is None or cell.record.status is not Status.OK:
            return number_format.ending(cell.record) if cell else NONE
        latency = number_format.milliseconds(cell.latency.median_ms)
        return latency if (value := times(build)) is None else f"{latency}, {number_format.ratio(value)}x"

    return Column(name, times, "ms", number_format.ratio, text=text, interval=cost(lambda it: it.ci95))
