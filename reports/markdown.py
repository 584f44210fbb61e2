"""A report as Markdown that GitHub renders well: the verdict first, then the tables, then how it was made."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from reports import spelling
from reports.contests import ContestView, Row, contests_of
from reports.schema import Environment, Gpu, Phase, Record, Report, Status
from reports.spelling import MEBIBYTE, NONE, one_line

REASON_LIMIT = 160
"""Longest reason in a table, in characters; the whole one stands under the tables."""

DOUBTS_SHOWN = 5
"""More doubts than these fold away."""

_FIGURE_CAPTIONS = {
    "latency": "Median latency with its 95 % interval",
    "speedup": "Speed-up over eager with its 95 % interval",
    "build-vs-speedup": "What building costs against what it buys",
    "phases": "Where the time before the second call goes",
    "samples": "Distribution of the latency of single calls",
}


def to_markdown(report: Report, figures: Sequence[Path | str] = ()) -> str:
    """The whole report. `figures` are files under `figures/` beside it; those that are PNG are embedded."""
    contests = contests_of(report)
    sections = [
        _head(report),
        _verdicts(contests),
        *(_contest(contest) for contest in contests),
        _figures(figures),
        _failures(report.records),
        _reproduce(report),
        _method(report),
        _environment(report.environment),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def escape(text: str, limit: int | None = None) -> str:
    """Outside text as inline Markdown that shows it literally, also within a table: one line, nothing is markup."""
    line = html.escape(one_line(text, limit), quote=False)
    line = re.sub(r"([\\`*_\[\]|~])", r"\\\1", line).replace("$", "&#36;")  # GitHub takes $...$ for mathematics
    line = re.sub(r"^([-+#=])", r"\\\1", line)  # a list or a heading at the beginning of a line
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def _head(report: Report) -> str:
    lines = [f"# Bakeoff: {escape(report.run_id)}"]
    if not report.complete:
        lines.append(f"**Incomplete: {len(report.records)} of {report.planned} cells have ended.**")
    return "\n\n".join(lines)


def _verdicts(contests: Sequence[ContestView]) -> str:
    lines = ["## Verdict"]
    if not contests:
        lines.append("No cell has ended yet.")
    for contest in contests:
        lines.append(f"**{escape(contest.verdict.sentence)}**")
        doubts = [f"- {escape(doubt, 2 * REASON_LIMIT)}" for doubt in contest.verdict.doubts]
        shown, folded = doubts[:DOUBTS_SHOWN], doubts[DOUBTS_SHOWN:]
        if shown:
            lines.append("\n".join(shown))
        if folded:
            lines.append(_details(f"{len(folded)} more", "\n".join(folded)))
    return "\n\n".join(lines)


def _contest(contest: ContestView) -> str:
    kinds = {kind for row in contest.rows for kind in [spelling.peak_memory(row.record)[1]] if kind}
    header = [
        "rank",
        "backend",
        "median latency (ms) [95 %]",
        "p99 (ms)",
        f"speed-up over {escape(contest.verdict.baseline or 'eager')} [95 %]",
        "break-even (calls)",
        "export / compile / load (s)",
        "first call (s)",
        f"peak {kinds.copy().pop()} memory (MiB)" if len(kinds) == 1 else "peak memory (MiB)",
        "artefact (MiB)",
        "relative RMSE (rule)",
        "placement",
        "status",
    ]
    rows = [_row(row, contest.verdict.baseline, name_memory=len(kinds) > 1) for row in contest.rows]
    left = {1, 10, 11, 12}
    rule = [":--" if column in left else "--:" for column in range(len(header))]
    return f"## {escape(contest.title)}\n\n" + "\n".join(_table_line(cells) for cells in [header, rule, *rows])


def _row(row: Row, baseline: str | None, name_memory: bool) -> list[str]:
    record, standing = row.record, row.standing
    return [
        str(standing.rank) if standing else NONE,
        escape(row.label),
        *_latency(record),
        _speedup(row),
        _break_even(row, baseline),
        _phases(record.phases),
        spelling.seconds(record.first_call_s),
        _peak_memory(record, name_memory),
        spelling.mebibytes(record.memory.artifact_bytes) if record.memory else NONE,
        _accuracy(record),
        record.placement.extent.value if record.placement else NONE,
        _status(record),
    ]


def _latency(record: Record) -> tuple[str, str]:
    if record.latency is None:
        return NONE, NONE
    p99 = "n/a" if record.latency.p99_ms is None else spelling.milliseconds(record.latency.p99_ms)
    return spelling.median(record.latency), p99


def _speedup(row: Row) -> str:
    ratio = row.standing.speedup_over_baseline if row.standing else None
    return f"{spelling.ratio(ratio.value)}x {spelling.ratio_interval(ratio.ci95)}".rstrip() if ratio else NONE


def _break_even(row: Row, baseline: str | None) -> str:
    if row.standing is None or baseline is None or row.label == baseline:
        return NONE
    return "never" if row.standing.break_even_calls is None else spelling.count(row.standing.break_even_calls)


def _phases(phases: Sequence[Phase]) -> str:
    """`0.42 / 12 / 0.1`, with any further phase named; nothing where no phase was timed."""
    if not phases:
        return NONE
    taken_s: dict[str, float] = {}
    for phase in phases:
        taken_s[phase.name] = taken_s.get(phase.name, 0.0) + phase.seconds
    usual = [spelling.seconds(taken_s.pop(name, None)) for name in ("export", "compile", "load")]
    taken_s.pop("first_call", None)
    return " / ".join([*usual, *(f"{escape(name)} {spelling.seconds(value)}" for name, value in taken_s.items())])


def _peak_memory(record: Record, name_kind: bool) -> str:
    peak_bytes, kind = spelling.peak_memory(record)
    return f"{spelling.mebibytes(peak_bytes)} {kind if name_kind else ''}".rstrip()


def _accuracy(record: Record) -> str:
    if record.accuracy is None:
        return NONE
    return f"{spelling.error(record.accuracy.relative_rmse)} ({escape(record.accuracy.rule, REASON_LIMIT // 2)})"


def _status(record: Record) -> str:
    reason = f": {escape(record.reason, REASON_LIMIT)}" if record.reason else ""
    return f"{escape(spelling.fate(record))}{reason}"


def _figures(figures: Sequence[Path | str]) -> str:
    pictures = [Path(figure) for figure in figures if Path(figure).suffix == ".png"]
    if not pictures:
        return ""
    return "\n\n".join(["## Figures", *(f"![{_caption(path.stem)}](figures/{path.name})" for path in pictures)])


def _caption(stem: str) -> str:
    name, page = re.fullmatch(r"(.*?)(?:-(\d+))?", stem).groups()  # type: ignore[union-attr]  # it matches anything
    return f"{_FIGURE_CAPTIONS.get(name, escape(name))}{f' ({page})' if page else ''}"


def _failures(records: Iterable[Record]) -> str:
    """What a table has no room for: whole reasons and the last lines of the logs."""
    parts = []
    for record in records:
        reason = one_line(record.reason)
        long_reason = reason if len(reason) > REASON_LIMIT else ""
        if record.status is Status.OK or not (record.log_tail.strip() or long_reason):
            continue
        text = "\n\n".join(part for part in (long_reason, spelling.visible(record.log_tail).strip("\n")) if part)
        parts.append(_details(f"{record.cell.id}: {spelling.fate(record)}", _fenced(text)))
    return "\n\n".join(["## What failed", *parts]) if parts else ""


def _reproduce(report: Report) -> str:
    commands = [
        f"# {one_line(record.cell.id)}\n{spelling.visible(record.command)}"
        for record in report.records
        if record.command
    ]
    text = "\n\n".join([*([f"# everything\n{spelling.visible(report.command)}"] if report.command else []), *commands])
    return f"## Reproduce\n\n{_details('Commands', _fenced(text, 'sh'))}" if text else ""


def _method(report: Report) -> str:
    made = f"{escape(report.created_at)} in {spelling.seconds(report.elapsed_s)} s"
    lines = [f"- {escape(note)}" for note in report.notes]
    lines += [
        f"- Made {made}; schema {escape(report.schema_version)}.",
        "- Latency is the median over bursts of each burst's median; a ratio is one of bursts of the same round.",
        "- A percentile that the sample is too small to hold is n/a; no sample is deleted as an outlier.",
    ]
    request = json.dumps(report.request, indent=1, ensure_ascii=False)
    return "\n\n".join(["## How it was measured", "\n".join(lines), _details("Request", _fenced(request, "json"))])


def _environment(environment: Environment) -> str:
    cores = (environment.physical_cores, environment.logical_cores, environment.usable_cores)
    commit = environment.git_commit
    facts = {
        "host": environment.hostname,
        "system": environment.os,
        "container": environment.container,
        "CPU": environment.cpu,
        "cores (physical / logical / usable)": " / ".join("?" if core is None else str(core) for core in cores),
        "governor": environment.governor,
        "memory (MiB)": spelling.mebibytes(environment.memory_bytes) if environment.memory_bytes else None,
        "torch threads": environment.torch_threads,
        **{f"GPU {gpu.index}": _gpu(gpu) for gpu in environment.gpus},
        "CUDA": environment.cuda,
        "Python": environment.python,
        **dict(sorted(environment.versions.items())),
        "commit": f"{commit}{' with uncommitted changes' if environment.git_dirty else ''}" if commit else None,
        **dict(sorted(environment.variables.items())),
    }
    lines = [_table_line([escape(name), escape(str(value))]) for name, value in facts.items() if value is not None]
    return "\n".join(["## Environment", "", _table_line(["what", "value"]), _table_line([":--", ":--"]), *lines])


def _gpu(gpu: Gpu) -> str:
    facts = [
        gpu.name,
        gpu.memory_bytes and f"{gpu.memory_bytes / MEBIBYTE:,.0f} MiB",
        gpu.driver and f"driver {gpu.driver}",
        gpu.sm_clock_mhz and f"SM {gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz or '?'} MHz",
        gpu.memory_clock_mhz and f"memory {gpu.memory_clock_mhz} MHz",
        gpu.power_limit_w and f"limit {gpu.power_limit_w:.0f} W",
        gpu.temperature_c is not None and f"{gpu.temperature_c} °C",
        gpu.persistence_mode is False and "persistence mode off",
        gpu.other_processes and f"{gpu.other_processes} other processes",
    ]
    return ", ".join(str(fact) for fact in facts if fact)


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _details(summary: str, body: str) -> str:
    """A fold. The blank lines make GitHub read `body` as Markdown; `summary` is HTML, where Markdown has no say."""
    summary = re.sub(r"[*_`\[\]~$\\]", lambda match: f"&#{ord(match[0])};", html.escape(one_line(summary), quote=False))
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _fenced(text: str, language: str = "text") -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
