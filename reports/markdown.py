"""A report as Markdown that GitHub renders well: the verdict first, then the tables, then how it was made."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from judging.judgement import CellJudgement, ContestJudgement, contests_of
from records.schema import Environment, Extent, Phase, Placement, Record, Report, Status
from records.text import one_line, visible
from reports import cost_report, format, machine
from reports.format import NONE

REASON_LIMIT = 160
"""Longest reason in a table, in characters; the whole one stands under the tables."""

DOUBTS_SHOWN = 5
"""More doubts than these fold away."""

_NAME_LIMIT = 60
"""Longest name of a fallback in a table."""

_SHOWN_FIGURES = {"latency", "sweep-latency", "sweep-speedup"}
"""The others fold away."""

_FIGURE_CAPTIONS = {
    "latency": "Median latency with its 95 % interval",
    "speedup": "Speed-up over eager with its 95 % interval",
    "build-vs-speedup": "What building costs against what it buys",
    "phases": "Where the time before the second call goes",
    "samples": "Distribution of the latency of single calls",
    "costs": "Total time over n calls from a cold start",
    "costs-warm": "Total time over n calls from a warm start",
    "sweep-latency": "Median latency over the sizes that were swept",
    "sweep-speedup": "Speed-up over eager over the sizes that were swept",
    "pareto": "Latency against build time, and what nothing dominates",
    "sweep-seq": "Speed-up of compiled attention over the length of a sequence",
    "sweep-size": "Speed-up of compiled language models over their size",
}


def to_markdown(report: Report, figures: Sequence[Path | str] = ()) -> str:
    """The whole report. `figures` are files under `figures/` beside it; those that are PNG are embedded."""
    contests = contests_of(report)
    sections = [
        _head(report),
        _verdicts(contests),
        *(_contest(contest) for contest in contests),
        _lifetimes(contests),
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
    if incomplete := machine.incomplete(report):
        lines.append(f"**{incomplete}**")
    return "\n\n".join(lines)


def _verdicts(contests: Sequence[ContestJudgement]) -> str:
    lines = ["## Verdict"]
    if not contests:
        lines.append("No cell has ended yet.")
    for contest in contests:
        lines.append(_sentence(contest))
        doubts = [f"- {escape(doubt, 2 * REASON_LIMIT)}" for doubt in contest.verdict.doubts]
        shown, folded = doubts[:DOUBTS_SHOWN], doubts[DOUBTS_SHOWN:]
        if shown:
            lines.append("\n".join(shown))
        if folded:
            lines.append(details(f"{len(folded)} more", "\n".join(folded)))
    return "\n\n".join(lines)


def _sentence(contest: ContestJudgement) -> str:
    """What was found in bold, behind what it was found on."""
    found = contest.verdict.sentence.removeprefix(f"{contest.title}: ")
    return (
        f"**{escape(found)}**" if found == contest.verdict.sentence else f"{escape(contest.title)}: **{escape(found)}**"
    )


@dataclass(frozen=True)
class _Column:
    header: str
    is_text: bool  # set to the left
    cell: Callable[[CellJudgement], str]


def _contest(contest: ContestJudgement) -> str:
    parts = [f"## {escape(contest.title)}"]
    if contest.roofline:
        parts.append(f"Floor: {escape(format.floor(contest.roofline))}.")
    if nominal := machine.tensor_cores(contest):
        parts.append(f"Tensor cores: {escape(nominal)}.")
    parts += [_contest_table(contest), _stages(contest), _processes(contest), _where_it_ran(contest)]
    return "\n\n".join(part for part in parts if part)


def _contest_table(contest: ContestJudgement) -> str:
    baseline = contest.verdict.baseline
    kinds = {kind for row in contest.cells for kind in [format.peak_memory(row.record)[1]] if kind}
    peak = f"peak {kinds.copy().pop()} memory (MiB)" if len(kinds) == 1 else "peak memory (MiB)"
    share = _Column("of floor (%)", False, lambda row: _floor_share(row.record))
    rate = _Column("achieved", False, lambda row: format.achieved(row.record))
    columns = [
        _Column("rank", False, lambda row: str(row.standing.rank) if row.standing else NONE),
        _Column("backend", True, lambda row: escape(row.label)),
        _Column("median latency (ms) [95 %]", False, lambda row: _latency(row.record)[0]),
        _Column("p99 (ms)", False, lambda row: _latency(row.record)[1]),
        *([share, rate] if contest.roofline else []),
        _Column(f"speed-up over {escape(baseline or 'eager')} [95 %]", False, _speedup),
        _Column("break-even (calls) [95 %]", False, lambda row: _break_even(row, contest)),
        _Column("export / compile / load (s)", False, lambda row: _phases(row.record.phases)),
        _Column("first call (s)", False, lambda row: format.seconds(row.record.first_call_s)),
        _Column(peak, False, lambda row: _peak_memory(row.record, name_kind=len(kinds) > 1)),
        _Column("artefact (MiB)", False, lambda row: _artifact(row.record)),
        _Column("relative RMSE (rule)", True, lambda row: _accuracy(row.record)),
        _Column("placement", True, lambda row: _placement(row.record.placement)),
        _Column("status", True, lambda row: _status(row.record)),
    ]
    header = [column.header for column in columns]
    rule = [":--" if column.is_text else "--:" for column in columns]
    rows = [[column.cell(row) for column in columns] for row in contest.cells]
    return "\n".join(table_line(cells) for cells in [header, rule, *rows])


def _latency(record: Record) -> tuple[str, str]:
    if record.latency is None:
        return NONE, NONE
    p99 = "n/a" if record.latency.p99_ms is None else format.milliseconds(record.latency.p99_ms)
    return format.median(record.latency), p99


def _speedup(row: CellJudgement) -> str:
    ratio = row.standing.speedup_over_baseline if row.standing else None
    return f"{format.ratio(ratio.value)}x {format.ratio_interval(ratio.ci95)}".rstrip() if ratio else NONE


def _break_even(row: CellJudgement, contest: ContestJudgement) -> str:
    if row.standing is None or contest.baseline is None:
        return NONE
    return cost_report.spell_break_even(contest.costs.break_even(row.label, contest.baseline, "cold"))


def _phases(phases: Sequence[Phase]) -> str:
    """`0.42 / 12 / 0.1`, with any further phase named; nothing where no phase was timed."""
    if not phases:
        return NONE
    taken_s: dict[str, float] = {}
    for phase in phases:
        taken_s[phase.name] = taken_s.get(phase.name, 0.0) + phase.seconds
    usual = [format.seconds(taken_s.pop(name, None)) for name in ("export", "compile", "load")]
    taken_s.pop("first_call", None)
    return " / ".join([*usual, *(f"{escape(name)} {format.seconds(value)}" for name, value in taken_s.items())])


def _peak_memory(record: Record, name_kind: bool) -> str:
    peak_bytes, kind = format.peak_memory(record)
    return f"{format.mebibytes(peak_bytes)} {kind if name_kind else ''}".rstrip()


def _accuracy(record: Record) -> str:
    if record.accuracy is None:
        return NONE
    rule, unheld = escape(record.accuracy.rule, REASON_LIMIT // 2), format.unheld(record)
    return f"{format.error(record.accuracy.relative_rmse)} ({rule}{f'; {escape(unheld)}' if unheld else ''})"


def _floor_share(record: Record) -> str:
    return format.percent(record.roofline.share if record.roofline else None)


def _artifact(record: Record) -> str:
    return format.mebibytes(record.memory.artifact_bytes if record.memory else None)


def _placement(placement: Placement | None) -> str:
    """`full`, or in bold how far it was not, with what ran elsewhere and where the time went."""
    if placement is None:
        return NONE
    is_full = placement.extent is Extent.FULL
    extent = placement.extent.value if is_full else f"**{placement.extent}**"
    elsewhere = escape(format.some([one_line(name, _NAME_LIMIT) for name in placement.fallbacks]))
    shares = escape(format.some(format.time_shares(placement.time_share)))
    return f"{extent}{f': {elsewhere}' if elsewhere else ''}{f' ({shares})' if shares else ''}"


def _stages(contest: ContestJudgement) -> str:
    """The parts of a training step, timed apart; nothing where no cell has any."""
    rows = [
        [escape(row.label), escape(stage.name), *map(format.milliseconds, (stage.median_ms, stage.mean_ms)),
         format.milliseconds(stage.std_ms), str(stage.calls)]
        for row in contest.cells
        for stage in row.record.stages
    ]  # fmt: skip
    if not rows:
        return ""
    header = ["backend", "part of a call", "median (ms)", "mean (ms)", "standard deviation (ms)", "calls"]
    table = "\n".join(table_line(cells) for cells in [header, [":--", ":--", "--:", "--:", "--:", "--:"], *rows])
    note = "The device is waited for after each part: together they take longer than a call."
    return details("Forward, backward and optimiser, timed apart", f"{note}\n\n{table}")


def _processes(contest: ContestJudgement) -> str:
    """The medians of each cell's processes, side by side; nothing where no cell had two."""
    rows = [
        [
            escape(row.label),
            str(len(medians)),
            format.percent(row.record.latency.process_spread),
            ", ".join(format.milliseconds(median) for median in medians),
        ]
        for row in contest.cells
        if row.record.latency and len(medians := _medians_ms(row.record)) > 1
    ]
    if not rows:
        return ""
    header = ["backend", "processes", "slowest over fastest (%)", "median of each (ms), the cold one first"]
    table = "\n".join(table_line(cells) for cells in [header, [":--", "--:", "--:", ":--"], *rows])
    return details("Each process of each cell", table)


def _medians_ms(record: Record) -> list[float]:
    return [process.median_ms for process in record.processes if process.median_ms is not None]


def _where_it_ran(contest: ContestJudgement) -> str:
    """What the column has no room for: every engine, every fallback, what it was read from, and the precision."""
    shared = _shared_precision(contest)
    rows = [item for row in contest.cells for item in _where_a_row_ran(row, shared)]
    if shared:
        rows.append(f"- precision in force, the same for all of them: {_precision(shared)}")
    return details("Where it ran, and in what precision", "\n".join(rows)) if rows else ""


def _shared_precision(contest: ContestJudgement) -> Mapping[str, JsonValue]:
    """The precision in force of several cells, where it is the same for all that tell; else nothing."""
    told = [row.record.precision_in_force for row in contest.cells if row.record.precision_in_force]
    return told[0] if len(told) > 1 and all(each == told[0] for each in told) else {}


def _where_a_row_ran(row: CellJudgement, shared: Mapping[str, JsonValue]) -> list[str]:
    """A list item with the facts that are known below it; nothing where none is."""
    placement, precision = row.record.placement, row.record.precision_in_force
    facts: dict[str, Sequence[str]] = {}
    if placement:
        facts = {
            "engines": [f"{name} {count}" for name, count in placement.engines.items()],
            "time": format.time_shares(placement.time_share),
            "elsewhere": placement.fallbacks,
            "read from": placement.evidence,
        }
    known = [f"  - {name}: {'; '.join(map(escape, texts))}" for name, texts in facts.items() if texts]
    if precision and not shared:
        known.append(f"  - precision in force: {_precision(precision)}")
    if not placement and not known:
        return []
    return [f"- **{escape(row.label)}**: {placement.extent if placement else 'does not tell where it ran'}", *known]


def _precision(switches: Mapping[str, JsonValue]) -> str:
    return "; ".join(escape(f"{name} {_plain(value)}") for name, value in switches.items())


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _status(record: Record) -> str:
    reason = f": {escape(record.reason, REASON_LIMIT)}" if record.reason else ""
    return f"{escape(format.fate(record))}{reason}"


def _lifetimes(contests: Sequence[ContestJudgement]) -> str:
    """What each contest's cells cost from building to the last call, and what nothing dominates."""
    parts = []
    for contest in contests:
        tables = cost_report.tables(contest)
        if tables:
            sentences = "\n".join(f"- {escape(sentence)}" for sentence in cost_report.sentences(contest))
            parts += [f"### {escape(contest.title)}", sentences, *map(_plain_table, tables)]
    return "\n\n".join(["## What a deployment costs over its life", cost_report.NOTE, *parts]) if parts else ""


def _plain_table(table: cost_report.Table) -> str:
    header = [escape(name) for name in (*table.text_columns, *table.number_columns)]
    rule = [*(":--" for _ in table.text_columns), *("--:" for _ in table.number_columns)]
    rows = [[text if text == NONE else escape(text) for text in row] for row in table.rows]
    body = "\n".join(table_line(cells) for cells in [header, rule, *rows])
    return details(table.title, body) if table.is_folded else f"{escape(table.title)}:\n\n{body}"


def _figures(figures: Sequence[Path | str]) -> str:
    pictures = [Path(figure) for figure in figures if Path(figure).suffix == ".png"]
    if not pictures:
        return ""
    first = [path for path in pictures if path.stem in _SHOWN_FIGURES]
    others = [path for path in pictures if path not in first]
    parts = ["## Figures", *map(_picture, first)]
    if others:
        parts.append(details("All the others", "\n\n".join(map(_picture, others))))
    return "\n\n".join(parts)


def _picture(path: Path) -> str:
    return f"![{_caption(path.stem)}](figures/{path.name})"


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
        text = "\n\n".join(part for part in (long_reason, visible(record.log_tail).strip("\n")) if part)
        parts.append(details(f"{record.cell.id}: {format.fate(record)}", _fenced(text)))
    return "\n\n".join(["## What failed", *parts]) if parts else ""


def _reproduce(report: Report) -> str:
    commands = [
        f"# {one_line(record.cell.id)}\n{visible(record.command)}" for record in report.records if record.command
    ]
    text = "\n\n".join([*([f"# everything\n{visible(report.command)}"] if report.command else []), *commands])
    return f"## Reproduce\n\n{details('Commands', _fenced(text, 'sh'))}" if text else ""


def _method(report: Report) -> str:
    lines = [f"- {escape(line)}" for line in (*report.notes, *machine.method(report))]
    request = json.dumps(report.request, indent=1, ensure_ascii=False)
    return "\n\n".join(["## How it was measured", "\n".join(lines), details("Request", _fenced(request, "json"))])


def _environment(environment: Environment) -> str:
    facts = machine.environment(environment)
    lines = [table_line([escape(name), escape(value)]) for name, value in facts.items()]
    table = "\n".join([table_line(["what", "value"]), table_line([":--", ":--"]), *lines])
    return f"## Environment\n\n{details(machine.machine(environment), table)}"


def table_line(cells: Iterable[str]) -> str:
    """One row of a table, of cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def details(summary: str, body: str) -> str:
    """A fold. The blank lines make GitHub read `body` as Markdown; `summary` is HTML, where Markdown has no say."""
    summary = re.sub(r"[*_`\[\]~$\\]", lambda match: f"&#{ord(match[0])};", html.escape(one_line(summary), quote=False))
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _fenced(text: str, language: str = "text") -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
