"""A comparison of two reports as Markdown for a pull request: the verdict first, one table, the rest folded away."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from judging.compare import CellChange, Change, Comparison
from judging.environments import Difference
from judging.verdict import BASELINE, title_of
from records.schema import Record
from reports import format
from reports.compare_words import REASON_LIMIT, headline, method, spell_change, warnings
from reports.format import NONE
from reports.markdown import details, escape, table_line

COMMENT_LIMIT = 60_000
"""Characters. GitHub refuses a comment of over 65,536; what is folded away goes first."""


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


def _warnings(comparison: Comparison) -> list[str]:
    """In a box before any number."""
    lines = [f"**{lead}**{rest}" if lead else rest for lead, rest in warnings(comparison, escape)]
    return ["\n>\n".join(["> [!WARNING]", *(f"> {line}" for line in lines)])] if lines else []


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
    return format.milliseconds(record.latency.median_ms) if record and record.latency else NONE


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
    return format.seconds(record.build_s) if record.phases else NONE


def _peak_memory(record: Record) -> str:
    return format.mebibytes(format.peak_memory(record)[0])


def _error(record: Record) -> str:
    return format.error(record.accuracy.relative_rmse) if record.accuracy else NONE


def _environment(differences: Sequence[Difference]) -> str:
    if not differences:
        return "Nothing that either of them tells."
    lines = [table_line(["what", "base", "new", "how it counts"]), table_line([":--"] * 4)]
    lines += [
        table_line([escape(each.what), escape(each.base), escape(each.new), each.bearing.value]) for each in differences
    ]
    return "\n".join(lines)


def _method(comparison: Comparison) -> str:
    return "\n".join(f"- {line}" for line in method(comparison, escape))


def _under_heading(title: str, body: str) -> str:
    return f"### {escape(title)}\n\n{body}"


def _joined(sections: Sequence[str]) -> str:
    return "\n\n".join(section for section in sections if section) + "\n"
