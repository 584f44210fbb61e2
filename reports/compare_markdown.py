"""A comparison of two reports as Markdown for a pull request: the verdict first, one table, the rest folded away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from reports import spelling
from reports.compare import CellChange, Change, Comparison, Control, Outcome
from reports.environments import Bearing, Difference
from reports.markdown import REASON_LIMIT, details, escape, table_line
from reports.schema import Record, Report
from reports.spelling import NONE
from reports.verdict import BASELINE, title_of

COMMENT_LIMIT = 60_000
"""Characters. GitHub refuses a comment of over 65,536; what is folded away goes first."""

REGRESSIONS_NAMED = 3
"""More than these are counted in the verdict and named in the table only."""

_TOLD = {Outcome.SLOWER, Outcome.FASTER, Outcome.SAME}


def to_markdown(comparison: Comparison, folds: bool = True) -> str:
    """The whole comparison. Without `folds`, for a terminal: headings instead, and a narrow table per contest."""
    tables = [_table(comparison.cells)] if folds else _table_per_contest(comparison.cells)
    told = [f"**{escape(headline(comparison))}**", *_warnings(comparison), *tables]
    extras = {
        "Building, memory, error": _beside_latency(comparison),
        "What differs between the two environments": _environment(comparison.differences),
        "What was compared, and how": _method(comparison),
    }
    fold = details if folds else _under_heading
    text = _joined([*told, *(fold(summary, body) for summary, body in extras.items() if body)])
    if len(text) <= COMMENT_LIMIT:
        return text
    return _joined([*told, "Everything else was left out: it would not fit into a comment."])


def headline(comparison: Comparison) -> str:
    """Whether anything regressed, in one sentence."""
    regressions = comparison.regressions
    if not regressions:
        counts = Counter(cell.outcome for cell in comparison.cells)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        if not any(cell.outcome in _TOLD for cell in comparison.cells):
            return f"Whether anything regressed cannot be told: {told}."
        return f"No regression over {_percentage(comparison.fail_above)} was found: {told}."
    named = "; ".join(_spell_regression(cell) for cell in regressions[:REGRESSIONS_NAMED])
    more = len(regressions) - REGRESSIONS_NAMED
    count = "1 regression" if len(regressions) == 1 else f"{len(regressions)} regressions"
    return f"{count}: {named}{f'; and {more} more' if more > 0 else ''}."


def spell_change(change: Change) -> str:
    """`+8.2 % [+5.1, +11.4]`: how much longer the new run takes, with its 95 % interval."""
    interval = change.ci95
    limits = f" [{_signed(interval.low - 1)},\u00a0{_signed(interval.high - 1)}]" if interval else ""
    return f"{_signed(change.value - 1)} %{limits}"


def _spell_regression(cell: CellChange) -> str:
    name = f"{cell.cell.label} on {title_of(cell.cell)}"
    if cell.outcome is Outcome.BROKEN or cell.raw is None:
        return f"{name}: {spelling.one_line(cell.reason, REASON_LIMIT)}"
    return f"{name} is slower, {spell_change(cell.raw)}"


def _warnings(comparison: Comparison) -> list[str]:
    """What could make all of it mean something else: said before any number."""
    lines = []
    machine = _listed(comparison.differences, Bearing.MACHINE)
    if machine:
        lines.append(f"**Another machine**, and any change may come from that: {machine}.")
    speed = _listed(comparison.differences, Bearing.SPEED)
    if speed:
        lines.append(f"**Other settings or versions that bear on speed**: {speed}.")
    lines += [_moved(comparison, contest) for contest, control in comparison.controls.items() if control.moved]
    for name, report in (("base", comparison.base), ("new", comparison.new)):
        if not report.complete:
            ended = f"{len(report.records)} of {report.planned} cells have ended"
            lines.append(f"The {name} run was interrupted before all was measured: {ended}.")
        lines += [
            f"In the {name} run measuring ended before its intervals were decided: {escape(verdict.title)}."
            for verdict in report.verdicts
            if verdict.unstable
        ]
    return ["\n>\n".join(["> [!WARNING]", *(f"> {line}" for line in lines)])] if lines else []


def _moved(comparison: Comparison, contest_id: str) -> str:
    control = comparison.controls[contest_id]
    title = next(title_of(cell.cell) for cell in comparison.cells if cell.cell.contest_id == contest_id)
    direction = "slower" if control.change.log > 0 else "faster"
    return (
        f"**{BASELINE} itself became {direction}**, {spell_change(control.change)}, on {escape(title)}: the machine or "
        f"torch changed. Latencies count only where their ratio to {BASELINE} says the same.{_calibration(control)}"
    )


def _calibration(control: Control) -> str:
    """What a fixed piece of work outside of torch says of the machine alone."""
    if control.calibration is None:
        return ""
    return f" A fixed piece of work without torch, on one core, took {spell_change(control.calibration)}."


def _table_per_contest(cells: Sequence[CellChange]) -> list[str]:
    contests: dict[str, list[CellChange]] = {}
    for cell in cells:
        contests.setdefault(cell.cell.contest_id, []).append(cell)
    return [_under_heading(title_of(members[0].cell), _table(members)) for members in contests.values()]


def _table(cells: Sequence[CellChange]) -> str:
    several = len({cell.cell.contest_id for cell in cells}) > 1
    contest: list[tuple[str, str, Callable[[CellChange], str]]] = [
        ("contest", ":--", lambda cell: escape(title_of(cell.cell)))
    ]
    columns = [
        ("verdict", ":--", _verdict),
        ("cell", ":--", lambda cell: escape(cell.cell.label)),
        *(contest if several else []),
        ("base (ms)", "--:", lambda cell: _median(cell.base)),
        ("new (ms)", "--:", lambda cell: _median(cell.new)),
        ("latency [95 %]", "--:", lambda cell: _change(cell.raw)),
        (f"relative to {BASELINE} [95 %]", "--:", lambda cell: _change(cell.normalised)),
        ("why", ":--", lambda cell: escape(cell.reason, REASON_LIMIT)),
    ]
    head = [table_line(name for name, _, _ in columns), table_line(rule for _, rule, _ in columns)]
    return "\n".join([*head, *(table_line(text(cell) for _, _, text in columns) for cell in cells)])


def _verdict(cell: CellChange) -> str:
    return f"**{cell.outcome}**" if cell.is_regression else cell.outcome.value


def _median(record: Record | None) -> str:
    return spelling.milliseconds(record.latency.median_ms) if record and record.latency else NONE


def _change(change: Change | None) -> str:
    return spell_change(change) if change else NONE


def _beside_latency(comparison: Comparison) -> str:
    """What no verdict is on: told, never a regression."""
    both = [(cell, cell.base, cell.new) for cell in comparison.cells if cell.base and cell.new]
    if not both:
        return ""
    several = len({cell.cell.contest_id for cell in comparison.cells}) > 1
    lines = [
        table_line(["cell", "build (s)", "peak memory (MiB)", "relative RMSE", "what else differs"]),
        table_line([":--", "--:", "--:", "--:", ":--"]),
    ]
    for cell, base, new in both:
        name = f"{cell.cell.label}, {title_of(cell.cell)}" if several else cell.cell.label
        texts = [_between(read(base), read(new)) for read in (_build, _peak_memory, _error)]
        lines.append(table_line([escape(name), *texts, escape("; ".join(cell.notes)) or NONE]))
    return "\n".join(lines)


def _between(base: str, new: str) -> str:
    return base if base == new else f"{base} → {new}"


def _build(record: Record) -> str:
    return spelling.seconds(record.build_s) if record.phases else NONE


def _peak_memory(record: Record) -> str:
    return spelling.mebibytes(spelling.peak_memory(record)[0])


def _error(record: Record) -> str:
    return spelling.error(record.accuracy.relative_rmse) if record.accuracy else NONE


def _environment(differences: Sequence[Difference]) -> str:
    if not differences:
        return "Nothing that either of them tells."
    lines = [table_line(["what", "base", "new", "how it counts"]), table_line([":--"] * 4)]
    lines += [
        table_line([escape(each.what), escape(each.base), escape(each.new), each.bearing.value]) for each in differences
    ]
    return "\n".join(lines)


def _method(comparison: Comparison) -> str:
    limit = _percentage(comparison.fail_above)
    return "\n".join(
        [
            f"- base: {_run(comparison.base)}",
            f"- new: {_run(comparison.new)}",
            "- A change is of the geometric mean over processes, with Welch's 95 % interval over them, widened by what "
            f"{BASELINE}'s own change leaves open. Above 0, the new run takes longer.",
            f"- A regression is a cell that is slower by over {limit}, its interval without 0, or that was ok and is "
            f"not any more. Where {BASELINE} itself moved, the change relative to it must say the same.",
        ]
    )


def _run(report: Report) -> str:
    commit = report.environment.git_commit
    return escape(f"{report.run_id}, {report.created_at}{f', commit {commit}' if commit else ''}")


def _listed(differences: Sequence[Difference], bearing: Bearing) -> str:
    return "; ".join(
        f"{escape(each.what)} {escape(each.base, REASON_LIMIT)} → {escape(each.new, REASON_LIMIT)}"
        for each in differences
        if each.bearing is bearing
    )


def _signed(share: float) -> str:
    """`+8.2`, `-12`, `+0.0`: percent, without the sign for it."""
    percent = 100 * share
    if abs(percent) >= 9.95:
        return f"{percent:+,.0f}"
    return f"{round(percent, 1) + 0.0:+.1f}"  # -0.0 becomes 0.0


def _percentage(share: float) -> str:
    return f"{100 * share:.4g} %"


def _under_heading(title: str, body: str) -> str:
    return f"### {escape(title)}\n\n{body}"


def _joined(sections: Sequence[str]) -> str:
    return "\n\n".join(section for section in sections if section) + "\n"
