"""What a comparison says, in sentences: Markdown and HTML only lay them out.

`outside` is applied to whatever came from outside, such as names and reasons; one who needs to escapes them by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from judging.compare import CellChange, Change, Comparison, Control, Outcome
from judging.environments import Bearing, Difference
from judging.verdict import BASELINE, title_of
from records.schema import Report
from records.text import one_line

REGRESSIONS_NAMED = 3
"""More than these are counted in the verdict and named in the table only."""

REASON_LIMIT = 160
"""Longest reason and longest fact, in characters."""

Outside = Callable[[str], str]

_TOLD = {Outcome.SLOWER, Outcome.FASTER, Outcome.SAME}


def headline(comparison: Comparison) -> str:
    """Whether anything regressed, in one sentence."""
    regressions = comparison.regressions
    if not regressions:
        counts = Counter(cell.outcome for cell in comparison.cells)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        if not any(cell.outcome in _TOLD for cell in comparison.cells):
            return f"Whether anything regressed cannot be told: {told}."
        return f"No regression over {spell_share(comparison.fail_above)} was found: {told}."
    named = "; ".join(_spell_regression(cell) for cell in regressions[:REGRESSIONS_NAMED])
    more = len(regressions) - REGRESSIONS_NAMED
    count = "1 regression" if len(regressions) == 1 else f"{len(regressions)} regressions"
    return f"{count}: {named}{f'; and {more} more' if more > 0 else ''}."


def warnings(comparison: Comparison, outside: Outside = one_line) -> Iterator[tuple[str, str]]:
    """What could make all of it mean something else, to be said before any number: a lead, and what follows it."""
    if machine := _listed(comparison.differences, Bearing.MACHINE, outside):
        yield "Another machine", f", and any change may come from that: {machine}."
    if speed := _listed(comparison.differences, Bearing.SPEED, outside):
        yield "Other settings or versions that bear on speed", f": {speed}."
    for contest, control in comparison.controls.items():
        if control.moved:
            yield _moved(comparison, contest, control, outside)
    for name, report in (("base", comparison.base), ("new", comparison.new)):
        if not report.complete:
            ended = f"{len(report.records)} of {report.planned} cells have ended"
            yield "", f"The {name} run was interrupted before all was measured: {ended}."
        for verdict in report.verdicts:
            if verdict.unstable:
                title = outside(verdict.title)
                yield "", f"In the {name} run measuring ended before its intervals were decided: {title}."


def method(comparison: Comparison, outside: Outside = one_line) -> list[str]:
    """What was compared, and how."""
    limit = spell_share(comparison.fail_above)
    return [
        f"base: {outside(_run(comparison.base))}",
        f"new: {outside(_run(comparison.new))}",
        "A change is of the geometric mean over processes, with Welch's 95 % interval over them, widened by what "
        f"{BASELINE}'s own change leaves open. Above 0, the new run takes longer.",
        f"A regression is a cell that is slower by over {limit}, its interval without 0, or that was ok and is "
        f"not any more. Where {BASELINE} itself moved, the change relative to it must say the same.",
    ]


def spell_change(change: Change) -> str:
    """`+8.2 % [+5.1, +11.4]`: how much longer the new run takes, with its 95 % interval."""
    interval = change.ci95
    limits = f" [{_signed(interval.low - 1)},\u00a0{_signed(interval.high - 1)}]" if interval else ""
    return f"{_signed(change.value - 1)} %{limits}"


def spell_share(share: float) -> str:
    """`5 %`."""
    return f"{100 * share:.4g} %"


def _spell_regression(cell: CellChange) -> str:
    name = f"{cell.cell.label} on {title_of(cell.cell)}"
    if cell.outcome is Outcome.BROKEN or cell.raw is None:
        return f"{name}: {one_line(cell.reason, REASON_LIMIT)}"
    return f"{name} is slower, {spell_change(cell.raw)}"


def _moved(comparison: Comparison, contest_id: str, control: Control, outside: Outside) -> tuple[str, str]:
    title = next(title_of(cell.cell) for cell in comparison.cells if cell.cell.contest_id == contest_id)
    direction = "slower" if control.change.log > 0 else "faster"
    return f"{BASELINE} itself became {direction}", (
        f", {spell_change(control.change)}, on {outside(title)}: the machine or torch changed. Latencies "
        f"count only where their ratio to {BASELINE} says the same.{_calibration(control)}"
    )


def _calibration(control: Control) -> str:
    """What a fixed piece of work outside of torch says of the machine alone."""
    if control.calibration is None:
        return ""
    return f" A fixed piece of work without torch, on one core, took {spell_change(control.calibration)}."


def _run(report: Report) -> str:
    commit = report.environment.git_commit
    return f"{report.run_id}, {report.created_at}{f', commit {commit}' if commit else ''}"


def _listed(differences: Sequence[Difference], bearing: Bearing, outside: Outside) -> str:
    return "; ".join(
        f"{outside(each.what)} {outside(_cut(each.base))} → {outside(_cut(each.new))}"
        for each in differences
        if each.bearing is bearing
    )


def _cut(text: str) -> str:
    return one_line(text, REASON_LIMIT)


def _signed(share: float) -> str:
    """`+8.2`, `-12`, `+0.0`: percent, without the sign for it."""
    percent = 100 * share
    if abs(percent) >= 9.95:
        return f"{percent:+,.0f}"
    return f"{round(percent, 1) + 0.0:+.1f}"  # -0.0 becomes 0.0
