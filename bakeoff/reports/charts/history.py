"""The chart of many runs: the median latency of each cell from run to run, a chart for each contest."""

from collections.abc import Sequence

from bakeoff.judging.history import History
from bakeoff.records.schema import Latency, Record, Status
from bakeoff.records.text import one_line
from bakeoff.reports import findings, machine
from bakeoff.reports.charts.chart import COLUMN_IN, Axis, Chart, Dots, Line, Mark, Shape, value_axis
from bakeoff.reports.charts.palette import LIGHT, Look, Palette
from bakeoff.reports.charts.rows import LOG_FROM

_WIDE_UP_TO = 3
"""So many contests stand below each other, as wide as the page; more stand in two columns."""

_CHANGED = Look(0, LIGHT["soft"], LIGHT["soft"], "|")


def of_history(history: History, palette: Palette | None = None, least_runs: int = 1) -> list[Chart]:
    """Return a chart for each contest that has latencies in so many runs. A page gives its own palette."""
    shown = [
        records
        for records in history.contests.values()
        if any(len(_points(history, record)) >= least_runs for record in records)
    ]
    palette = palette or Palette(record for records in shown for record in records)
    width_in = 2 * COLUMN_IN if len(shown) <= _WIDE_UP_TO else COLUMN_IN
    return [_chart(history, records, palette, width_in) for records in shown]


def _chart(history: History, records: Sequence[Record], palette: Palette, width_in: float) -> Chart:
    points = {record.cell.label: _points(history, record) for record in records}
    points = {label: found for label, found in points.items() if found}
    latencies = [latency for found in points.values() for latency in found.values()]
    ends_ms = [end for latency in latencies if (ci95 := latency.median_ci95_ms) for end in (ci95.low, ci95.high)]
    y = value_axis("median latency (ms)", [*(latency.median_ms for latency in latencies), *ends_ms], LOG_FROM)
    changed = [number for number, run in enumerate(history.runs, 1) if run.changes]
    lines = tuple(
        Line((number - 0.5,) * 2, (y.low, y.high), colour="soft", width=0.9, is_dashed=True) for number in changed
    )
    first, last = history.runs[0].day, history.runs[-1].day
    legend = [(one_line(label, 36), palette(label)) for label in points]
    return Chart(
        name="history",
        subject=records[0].cell.title,
        finding=findings.history(
            {label: [each.median_ms for each in found.values()] for label, found in points.items()}
        ),
        caption="Median latency in ms from run to run, with its 95 % interval",
        x=Axis(
            f"run, {first}" if first == last else f"run, from {first} to {last}",
            0.5,
            len(history.runs) + 0.5,
            is_whole=True,
        ),
        y=y,
        marks=(Mark(lines), *(Mark(_line(found), label, palette(label)) for label, found in points.items())),
        legend=(*legend, *([("environment changed", _CHANGED)] if changed else [])),
        origin=f"last run: {machine.origin(history.runs[-1].environment, records, history.runs[-1].day)}",
        width_in=width_in,
    )


def _line(found: dict[int, Latency]) -> tuple[Shape, ...]:
    shapes: list[Shape] = []
    for number, latency in found.items():
        if number + 1 in found:
            shapes.append(Line((number, number + 1), (latency.median_ms, found[number + 1].median_ms), width=1.1))
        if interval := latency.median_ci95_ms:
            shapes.append(Line((number, number), (interval.low, interval.high), width=1.0))
    medians_ms = tuple(latency.median_ms for latency in found.values())
    return (*shapes, Dots(tuple(found), medians_ms, size=4.0))


def _points(history: History, record: Record) -> dict[int, Latency]:
    measured = {number: run.records.get(record.cell.id) for number, run in enumerate(history.runs, 1)}
    return {
        number: record.latency
        for number, record in measured.items()
        if record and record.status is Status.OK and record.latency
    }
