"""What is said over several sizes: one build for a range of them, and one verdict over recorded calls."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from bakeoff.judging.dynamic import DynamicBuild, DynamicRange
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.mix import Mix, MixRow
from bakeoff.judging.optional_field import OptionalField
from bakeoff.records.schema import Ratio, Status
from bakeoff.records.text import counted, listed, one_line, percent, spell_ms
from bakeoff.reports import answers, number_format, sentences
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table

REASON_LIMIT = 120


@dataclass(frozen=True)
class OverSizes:
    """A table over sizes, with what is found in it and how it is read."""

    title: str
    finding: str
    answer: str  # title and finding as one sentence
    table: Table[Any]
    note: str


def over_sizes(judgement: Judgement) -> list[OverSizes]:
    return [*map(of_range, judgement.dynamic_ranges), *map(of_mix, judgement.mixes)]


# --- one build for a range of sizes


def of_range(dynamic_range: DynamicRange) -> OverSizes:
    title = sentences.title_without(dynamic_range.ranges, dynamic_range.contests[0].cell)
    spans = " and ".join(f"{name} {span.low} to {span.high}" for name, span in dynamic_range.ranges.items())
    title, verdict = f"{title}: one build for {spans}", _verdict(dynamic_range)
    points = [_point(name, place) for place, name in enumerate(dynamic_range.names)]
    columns = [
        Column[DynamicBuild]("backend", lambda build: build.configuration, write=one_line, is_text=True),
        *points,
        Column("built once", lambda build: build.build_s, "s"),
        Column(f"built for each of {len(points)}", lambda build: build.builds_s, "s"),
        Column("recompiled", lambda build: len(build.recompiled) if build.build_s is not None else None,
               note=lambda build: one_line("; ".join(dict.fromkeys(build.recompiled)), REASON_LIMIT),
               is_bad=lambda build: bool(build.recompiled)),
        Column("one build serves", serves, is_text=True, note=_why_not),
    ]  # fmt: skip
    return OverSizes(
        title,
        f"One build for all sizes {verdict}",
        f"{title} {verdict}.",
        Table(columns, dynamic_range.builds, label=title),
        "Beside a latency of the one build: how many times as long a call takes as with a build for that size alone.",
    )


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


# --- one verdict over recorded calls


def of_mix(mix: Mix) -> OverSizes:
    """Return what is found: a row for each backend, a column for each size."""
    run = f", {run_id}" if (run_id := mix.sizes[0].contest.run_id) else ""
    calls = counted(sum(size.calls for size in mix.sizes), "recorded call")
    of = "" if mix.covered == 1 else f" ({percent(mix.covered)} of all)"
    model = sentences.title_without(["call"], mix.sizes[0].contest.cell)
    title = f"{model}{run}: {calls}{of} of {counted(len(mix.sizes), 'size')}"
    mean = f"a mean of {spell_ms(mix.answer.value or 0.0)} a request"
    finding = answers.sentence(mix.answer, mean, answers.how_sure(mix.answer))
    columns: list[Column[MixRow]] = [
        Column("backend", lambda row: row.label, write=one_line, is_text=True, is_label=True),
        Column("mean", lambda row: row.value, "ms", interval=lambda row: row.interval),
        Column(f"x {mix.answer.baseline}", answers.speedup, write=number_format.ratio, interval=answers.speedup_ends),
        *(Column(f"{size.name} ({percent(size.weight)})", partial(_latency, place=place), "ms",
                 text=partial(_text, place=place))
          for place, size in enumerate(mix.sizes)),
        Column("built", lambda row: row.build_s, "s"),
        Column("not ranked", lambda row: why_not(row, mix) or None, write=partial(one_line, limit=REASON_LIMIT),
               is_text=True),
    ]  # fmt: skip
    return OverSizes(
        title,
        finding,
        f"{title}: {finding}.",
        Table(columns, mix.rows, label=title),
        "Mean: each size's latency, weighted by how often it came. Each build was made for its size alone, and a "
        "backend without a build for one of the sizes is not ranked.",
    )


def why_not(row: MixRow, mix: Mix) -> str:
    if row.missing is None:
        return ""
    place, record = row.missing
    return f"at {mix.sizes[place].name}: {one_line(record.reason) or number_format.ending(record)}"


def _latency(row: MixRow, place: int) -> float | None:
    cell = row.cells[place]
    return cell.latency.median_ms if cell and cell.latency else None


def _text(row: MixRow, place: int) -> str:
    cell, latency_ms = row.cells[place], _latency(row, place)
    if latency_ms is not None:
        return number_format.milliseconds(latency_ms)
    return number_format.ending(cell.record) if cell else NONE
