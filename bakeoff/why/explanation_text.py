"""Shows where the time of a call goes: as blocks with a table, as a page of nested boxes, and as a trace."""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bakeoff.records.text import counted, one_line, spell_ms
from bakeoff.reports import page
from bakeoff.reports.blocks import Block, Items, Look, Text
from bakeoff.reports.charts import Palette
from bakeoff.reports.number_format import NONE, milliseconds, percent, ratio
from bakeoff.reports.tables import Column, Table
from bakeoff.why.explanation import (
    LATENCY,
    NOT_OWNED,
    UNSEEN,
    Bound,
    Branch,
    Explanation,
    ModuleRow,
    ProfiledCell,
    Unlike,
    kernel_name,
    longest_joined,
    moved,
    tree_of,
)
from bakeoff.why.records import CellProfile, ThreadUse

THE_MODEL = "(the model itself)"

MOST_COPIES = 5

MOST_OF_NAME = 64
"""Characters of a kernel's name in the table. NVIDIA's have over a hundred; `--json` has them whole."""

NO_LONGER = "Profiled calls take no longer than others"
"""What is said of profiled calls that took less time, which is chance."""

ROUGH = "~"
"""Stands before a time that the profiler's own hides."""

ABOVE_CEILING = 1.1
"""A share of a module's bound from which the ceiling is doubted."""


def blocks_of(explanation: Explanation, cells: Sequence[ProfiledCell]) -> list[Block]:
    return [
        Text(headline(explanation), Look.STRONG),
        *(Text(warning, Look.UNSURE) for warning in warnings(explanation)),
        times_table(explanation),
        Items(notes(explanation, cells)),
        *(Items(work_lines(cell.profile), cell.profile.label) for cell in cells),
    ]


def warnings(explanation: Explanation) -> list[str]:
    lines = [
        f"{label} is incorrect in the run: {reason}. Its times are those of another result."
        for label, reason in explanation.incorrect.items()
    ]
    if explanation.differing:
        pairs = [" and ".join(change.values) for change in explanation.differing]
        lines.append(f"The two calls differ: {', '.join(pairs)}. A ratio holds that, too.")
    for change in explanation.unlike:
        what, rows_of = change.what, ""
        if what == LATENCY:
            call_ms = explanation.call_ms if change.label == explanation.label else explanation.against_call_ms
            what, rows_of = "median latency", f" ({spell_ms(call_ms or 0)} in the fastest quarter of calls, as above)"
        lines.append(
            f"{change.label} is not as in the run: its {what} was {_value(change, change.in_run)} there, and is "
            f"{_value(change, change.in_profile)} here{rows_of}. What the profile shows may not explain the run."
        )
    return lines


def _value(each: Unlike, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return spell_ms(value) if each.what.endswith(" in ms") else f"{value:g}"


def headline(explanation: Explanation) -> str:
    """Say what takes how long: `onnx takes 0.4500 ms a call, and eager 1.200 ms: 2.67x.`"""
    said = f"{explanation.label} takes {spell_ms(explanation.call_ms)} a call"
    if explanation.against is None or not explanation.against_call_ms:
        return f"{said}."
    said += f", and {explanation.against} {spell_ms(explanation.against_call_ms)}"
    if off := next((difference for difference in explanation.unlike if difference.is_far_off), None):
        return f"{said} here. No ratio is given, because {off.label} took {_value(off, off.in_run)} in the run."
    if explanation.was_busy:
        return f"{said} here. No ratio is given, because the machine was busy in the run."
    return f"{said}: {ratio(explanation.against_call_ms / explanation.call_ms)}x."


def times_table(explanation: Explanation) -> Table[ModuleRow]:
    def mostly(row: ModuleRow) -> str:
        return ", ".join(f"{one_line(name, MOST_OF_NAME)} {percent(share)} %" for name, share in row.mostly)

    columns = [
        Column("module", name_of, is_text=True),
        Column(f"{explanation.label} (ms)", lambda row: ROUGH * row.is_rough + signed(row.ms, milliseconds)),
        Column("%", lambda row: ROUGH * row.is_rough + signed(row.share, percent)),
    ]
    if other := explanation.against:
        columns += [
            Column(f"{other} (ms)", lambda row: ROUGH * row.against_is_rough + signed(row.against_ms, milliseconds)),
            Column(f"{other} / {explanation.label}", lambda row: row.ratio, write=ratio),
        ]
    if any(row.bound for row in explanation.rows):
        columns.append(Column("bound by", lambda row: bound_text(row.bound), is_text=True))
    columns.append(Column("mostly", mostly, is_text=True))
    residual_ms = explanation.residual_ms
    rest = ModuleRow(
        ms=residual_ms, share=residual_ms / explanation.call_ms, against_ms=explanation.against_residual_ms
    )
    return Table(columns, [*explanation.rows, rest])


def bound_text(bound: Bound | None) -> str:
    if bound is None:
        return ""
    return bound.by if bound.share is None else f"{bound.by}, {percent(bound.share)} %"


def name_of(row: ModuleRow) -> str:
    """Return the modules of a row, joined by plus signs where kernels work for several, or what no module owns."""
    if row.modules:
        return " + ".join(path or THE_MODEL for path in row.modules)
    return NOT_OWNED[row.kind] if row.kind else UNSEEN


def signed(value: float | None, write: Callable[[float], str]) -> str:
    if value is None:
        return NONE
    return f"-{write(-value)}" if value < 0 else write(value)


def notes(explanation: Explanation, cells: Sequence[ProfiledCell]) -> list[str]:
    lines = []
    costs = [(explanation.residual_ms, explanation.profiling_cost)]
    if explanation.against_residual_ms is not None and explanation.against_profiling_cost is not None:
        costs.append((explanation.against_residual_ms, explanation.against_profiling_cost))
    for (profile, record, _), (residual_ms, cost) in zip(cells, costs, strict=True):
        left = abs(residual_ms) / profile.call_ms
        within = "within 5 %" if left <= 0.05 else "not within 5 %"
        more = "more" if residual_ms < 0 else "less"
        longer = f"Profiling makes a call {ratio(cost)}x as long" if cost > 1 else NO_LONGER
        line = (
            f"{profile.label}: rows sum to {percent(left)} % {more} than the call ({within}). {longer}: rows are "
            "shares of the profiled call, times the call without the profiler. "
            f"Source: {profile.source}, {counted(profile.calls, 'call')}."
        )
        if profile.is_of_artefact:
            line += " It starts from what the run has kept."
        if record.latency:
            line += f" The run measured {spell_ms(record.latency.median_ms)}."
        lines.append(line)
    rough = (any(row.is_rough for row in explanation.rows), any(row.against_is_rough for row in explanation.rows))
    if labels := " and ".join(cell.profile.label for cell, is_rough in zip(cells, rough, strict=False) if is_rough):
        lines.append(
            f"Most of a profiled call of {labels} is the profiler's own time, and falls unevenly on the rows: those of "
            "many small operators look slower than they are, and others faster. A row with "
            f"{ROUGH} in the table may be wrong by a quarter or more, so that it has no ratio and no bound."
        )
    bounds = [row.bound.share for row in explanation.rows if row.bound and row.bound.share]
    if any(share > ABOVE_CEILING for share in bounds):
        lines.append(
            "A row above 100 % of its bound is faster than the machine's measured ceiling: others were busy when that "
            "was measured, the module's work was counted too high, or the profiler's time is in other rows."
        )
    return lines


def work_lines(profile: CellProfile) -> list[str]:
    work = profile.work
    lines = [
        f"Graph break{f' at {graph_break.place}' if graph_break.place else ''}: {graph_break.reason}"
        for graph_break in work.breaks
    ]
    lines += [f"Compiled again, because this guard failed: {guard}" for guard in work.recompilations]
    lines += [f"Left to another engine: {fallback}." for fallback in work.fallbacks]
    lines += work.facts
    if longest := longest_joined(profile):
        *first, last = (path or THE_MODEL.strip("()") for path in longest.modules)
        names = f"{', '.join(first)} and {last}"
        lines.append(f"Of what works for several modules, {kernel_name(longest.name)} takes longest, for {names}.")
    if copies := moved(profile):
        each_kind = [f"{name} {counted(runs, 'time')} ({spell_ms(ms)})" for name, (runs, ms) in copies.items()]
        lines.append(f"Casts, copies and changes of layout in a call: {', '.join(each_kind[:MOST_COPIES])}.")
    if profile.threads:
        lines.append(threads_line(profile.threads))
    return list(map(one_line, lines))


def threads_line(threads: ThreadUse) -> str:
    shares = ", ".join(f"{percent(share)} %" for share in threads.busy[: threads.allowed])
    line = f"It may use {'one thread' if threads.allowed == 1 else f'{threads.allowed} threads'}"
    if not threads.busy:
        return f"{line}."
    line += f", which {'was' if threads.allowed == 1 else 'were'} on a core for {shares} of the time"
    if threads.allowed > 1:
        line += f": the mean is {percent(threads.balance)} % of the busiest"
    others = len(threads.busy) - threads.allowed
    return f"{line}, beside {others} more." if others > 0 else f"{line}."


def to_chrome_trace(profiles: Sequence[CellProfile]) -> str:
    """Return one profiled call of each cell as a trace that chrome://tracing and Perfetto open."""
    events: list[dict[str, object]] = []
    for number, profile in enumerate(profiles):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": profile.label}})
        for span in profile.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name or THE_MODEL,
                    "cat": span.kind.value,
                    "pid": number,
                    "tid": 0,
                    "ts": span.begun_us,
                    "dur": span.lasted_us,
                    "args": {"modules": [path or THE_MODEL for path in span.modules]},
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def explanation_to_page(explanation: Explanation, cells: Sequence[ProfiledCell]) -> str:
    profiles, records = [cell.profile for cell in cells], [cell.record for cell in cells]
    root = tree_of(profiles)
    labels = [profile.label for profile in profiles]
    return page.whole_page(
        "explanation.html.jinja",
        Palette(records),
        title=f"{' and '.join(labels)}: {records[0].cell.title}",
        headline=headline(explanation),
        notes=[*warnings(explanation), *notes(explanation, cells)],
        labels=labels,
        root=root,
        longest_ms=max(root.ms),
        boxes=boxes_of(root, max(root.ms)),
        work=[(profile.label, work_lines(profile)) for profile in profiles],
    )


class Box(NamedTuple):
    """A branch of a tree of modules in a figure of nested boxes. Places and widths are shares of the longest call."""

    number: int
    above: int  # number of the box that holds it; the model has its own
    depth: int
    left: float
    width: float
    branch: Branch


def boxes_of(root: Branch, longest_ms: float) -> list[list[Box]]:
    """Return the boxes of a tree in each cell. A branch has the same number in all of them."""
    sides: list[list[Box]] = [[] for _ in root.ms]
    numbers = itertools.count()

    def place(branch: Branch, above: int | None, depth: int, lefts: Sequence[float]) -> None:
        number = next(numbers)
        widths = [ms / longest_ms for ms in branch.ms]
        for side, left, width in zip(sides, lefts, widths, strict=True):
            if width > 0:
                side.append(Box(number, number if above is None else above, depth, left, width, branch))
        inner = list(lefts)
        for child in branch.branches:
            place(child, number, depth + 1, inner)
            inner = [left + ms / longest_ms for left, ms in zip(inner, child.ms, strict=True)]

    place(root, None, 0, [0.0] * len(root.ms))
    return sides
