"""Shows where the time of a call goes: as a table in Markdown, as JSON, and as a trace for Chrome and Perfetto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import relation
from bakeoff.judging.explanation import Explanation, Row
from bakeoff.records.profile import CellProfile, CompilerWork
from bakeoff.records.schema import Record, Status
from bakeoff.records.text import one_line, spell_ms
from bakeoff.reports.markdown import escape, table
from bakeoff.reports.number_format import NONE, milliseconds, percent, ratio
from bakeoff.reports.sentences import ratio as times

THE_MODEL = "(the model itself)"
RESIDUAL = "(no row has it)"


def to_markdown(explanation: Explanation, profiles: Sequence[CellProfile], records: Sequence[Record] = ()) -> str:
    """Return the table of modules, what it rests on, and what each compiler did."""
    blocks = [
        f"**{escape(headline(explanation))}**",
        times_table(explanation),
        "\n".join(f"- {escape(each)}" for each in notes(explanation, profiles, records)),
    ]
    for profile in profiles:
        if lines := work_lines(profile.work):
            blocks.append(f"**{escape(profile.label)}**\n\n" + "\n".join(f"- {escape(line)}" for line in lines))
    return "\n\n".join(blocks) + "\n"


def headline(explanation: Explanation) -> str:
    """Say what takes how long: `onnx takes 0.4500 ms a call, and eager 1.200 ms: 2.67x.`"""
    said = f"{explanation.label} takes {spell_ms(explanation.call_ms)} a call"
    if explanation.against is None or not explanation.against_call_ms:
        return f"{said}."
    times = ratio(explanation.against_call_ms / explanation.call_ms)
    return f"{said}, and {explanation.against} {spell_ms(explanation.against_call_ms)}: {times}x."


def times_table(explanation: Explanation) -> str:
    """Return a row for each module, in the model's order, then for what no module owns, and for the rest."""
    headings = ["module", f"{explanation.label} (ms)", "%"]
    sides = "lrr"
    if explanation.against:
        headings += [f"{explanation.against} (ms)", f"{explanation.against} / {explanation.label}"]
        sides += "rr"
    rows = [row_of(row, bool(explanation.against)) for row in explanation.rows]
    rest = [RESIDUAL, signed_ms(explanation.residual_ms), percent_of(explanation.residual_ms, explanation.call_ms)]
    if explanation.against:
        rest += [signed_ms(explanation.against_residual_ms), NONE]
    return table(list(map(escape, [*headings, "mostly"])), [*rows, [*map(escape, rest), ""]], sides + "l")


def row_of(row: Row, has_other: bool) -> list[str]:
    """Return the texts of a row."""
    texts = [name_of(row), milliseconds(row.ms), percent(row.share)]
    if has_other:
        texts += [milliseconds(row.against_ms), NONE if row.ratio is None else ratio(row.ratio)]
    mostly = ", ".join(f"{name} {percent(share)} %" for name, share in row.mostly)
    return [escape(one_line(text)) for text in (*texts, mostly)]


def name_of(row: Row) -> str:
    """Return the modules of a row, joined by plus signs where kernels work for several, or what no module owns."""
    if not row.modules:
        return f"({row.kind})"
    return " + ".join(path or THE_MODEL for path in row.modules)


def signed_ms(value_ms: float | None) -> str:
    """Return milliseconds that may be negative."""
    if value_ms is None:
        return NONE
    return f"-{milliseconds(-value_ms)}" if value_ms < 0 else milliseconds(value_ms)


def percent_of(part: float, whole: float) -> str:
    """Return the share, which may be negative."""
    return f"-{percent(-part / whole)}" if part < 0 else percent(part / whole)


def notes(explanation: Explanation, profiles: Sequence[CellProfile], records: Sequence[Record]) -> list[str]:
    """Say whether rows sum to the call, what profiling cost, where times come from, and what the run measured."""
    lines = []
    costs = [(explanation.residual_ms, explanation.profiling_cost)]
    if explanation.against_residual_ms is not None and explanation.against_profiling_cost is not None:
        costs.append((explanation.against_residual_ms, explanation.against_profiling_cost))
    for place, (profile, (residual_ms, cost)) in enumerate(zip(profiles, costs, strict=True)):
        left = abs(residual_ms) / profile.call_ms
        within = "within 5 %" if left <= 0.05 else "not within 5 %"
        more = "more" if residual_ms < 0 else "less"
        line = (
            f"{profile.label}: rows sum to {percent(left)} % {more} than the call ({within}). Profiling makes a call "
            f"{ratio(cost)}x as long: rows are shares of the profiled call, times the call without the profiler. "
            f"Source: {profile.source}, {profile.calls} calls."
        )
        latency = records[place].latency if place < len(records) else None
        if latency:
            line += f" The run measured {spell_ms(latency.median_ms)}."
        lines.append(line)
    return lines


def work_lines(work: CompilerWork) -> list[str]:
    """Return what a compiler did, in a sentence each."""
    breaks = [
        f"Graph break{f' at {each.place}' if each.place else ''}: {one_line(each.reason)}" for each in work.breaks
    ]
    return [*breaks, *map(one_line, work.facts)]


def brought(contest: ContestJudgement, label: str, reasons: Mapping[str, str]) -> str:
    """Return a row for each configuration that was tried: why, its latency, and what it brought over the cell."""
    rows = []
    is_measured = any(cell.latency and cell.label == label for cell in contest.cells)
    for cell in contest.cells:
        if cell.label not in reasons:
            continue
        if cell.latency is None or not is_measured:
            texts = [cell.label, reasons[cell.label], NONE, NONE, cell.record.reason or cell.record.status]
        else:
            over = contest.fit.ratio(cell.label, label)
            called = relation(over) if cell.record.status is Status.OK else cell.record.status
            texts = [cell.label, reasons[cell.label], milliseconds(cell.latency.median_ms), times(over), str(called)]
        rows.append([escape(one_line(text)) for text in texts])
    headings = ["tried", "because", "median (ms)", f"times as fast as {label}", ""]
    return table(list(map(escape, headings)), rows, "llrrl")


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
