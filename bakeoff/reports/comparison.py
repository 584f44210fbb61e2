"""Tells what changed between two reports: columns, sentences, and Markdown for a pull request.

The Markdown has the verdict first and one table; the rest is folded away. A terminal and the page have the same columns
in a table for each contest.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bakeoff.judging.change import Change
from bakeoff.judging.compare import CellChange, Comparison, Control, Inconclusive, Outcome, ReasonKind
from bakeoff.judging.constraints import QUANTITIES
from bakeoff.judging.environment_changes import Bearing, Difference
from bakeoff.judging.fit import by_contest
from bakeoff.judging.metric_changes import MetricJudgement
from bakeoff.judging.optional_field import OptionalField
from bakeoff.records.schema import Interval, Record, Report
from bakeoff.records.text import counted, listed, one_line
from bakeoff.reports import charts, markdown, number_format, page, sentences
from bakeoff.reports.blocks import Block, Items, Look, Section, Surface, Text
from bakeoff.reports.cell_details import log_and_command
from bakeoff.reports.charts import Palette
from bakeoff.reports.charts.chart import Charts
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import WRITTEN, Column, Raw, Table, text_table

COMMENT_LIMIT = 60_000
"""Characters. GitHub refuses a comment of over 65,536; what is folded away goes first."""

REGRESSIONS_NAMED = 3
"""Number of regressions that the verdict names; it counts further ones."""

REASON_LIMIT = 160
"""Longest reason and longest fact of an environment, in characters."""

OUTCOME = Column[CellChange](
    "verdict", lambda change: change.outcome.value, is_bad=lambda change: change.is_regression, is_text=True
)

CELL = Column[CellChange]("cell", lambda change: change.cell.label, is_text=True, is_label=True)

BESIDE = "Building, memory, error"
"""The columns that no verdict is on. Markdown folds them away; none of them is ever a regression."""


def columns_of(cells: Sequence[CellChange]) -> list[Column[CellChange]]:
    is_one_contest = len({change.cell.contest_id for change in cells}) == 1
    baselines = listed([*dict.fromkeys(change.baseline for change in cells)])
    return [
        OUTCOME,
        CELL,
        Column("contest", lambda change: change.cell.title, is_text=True,
               surfaces=Surface.NONE if is_one_contest else Surface.MARKDOWN),
        Column("base", lambda change: median_ms(change.base), "ms", spare=2),
        Column("new", lambda change: median_ms(change.new), "ms", spare=1),
        _change("latency", lambda change: change.raw),
        _change(f"relative to {baselines}", lambda change: change.normalised),
        *map(_metric, dict.fromkeys(name for change in cells for name in change.metrics)),
        _between("build", "s", QUANTITIES["build_s"].of, lambda record: " (from the cache)" if record.built_at else ""),
        _between("peak memory", "MiB", lambda record: record.peak_bytes),
        _between("relative RMSE", "", QUANTITIES["relative_rmse"].of, write=number_format.error),
        Column("what else differs", lambda change: "; ".join(map(str, change.differences)) or None,
               is_text=True, details=BESIDE),
        Column("why", lambda change: one_line(sentences.why(change), REASON_LIMIT) or None, is_text=True,
               surfaces=~Surface.PAGE),
    ]  # fmt: skip


def median_ms(record: Record | None) -> float | None:
    return record.latency.median_ms if record and record.latency else None


def _change(heading: str, read: Callable[[CellChange], Change | None]) -> Column[CellChange]:
    ratio = OptionalField[CellChange, Change](read)
    ends = ratio(lambda it: Interval(low=it.ci95.low - 1, high=it.ci95.high - 1) if it.ci95 else None)
    return Column(heading, ratio(lambda it: it.value - 1), "%", number_format.signed_percent, interval=ends)


def _metric(name: str) -> Column[CellChange]:
    metric = OptionalField[CellChange, MetricJudgement](lambda change: change.metrics.get(name))
    spelled = metric(number_format.metric_change)
    return Column(name, metric(lambda it: it.value), text=lambda change: spelled(change) or NONE,
                  interval=metric(lambda it: it.change_ci95), write=number_format.change,
                  is_bad=lambda change: name in change.worse)  # fmt: skip


def _between(
    heading: str,
    unit: str,
    read: Callable[[Record], Raw],
    mark: Callable[[Record], str] = lambda record: "",
    write: Callable[[Any], str] | None = None,
) -> Column[CellChange]:
    """Return a column of `0.9 → 1.2`, or of one number where both runs have the same; the page sorts by the new one.
    `mark` says what a number of a record has of its own."""

    def text(change: CellChange) -> str:
        sides = [(record, read(record)) if record else (None, None) for record in (change.base, change.new)]
        spell = write or WRITTEN[unit]
        base, new = (spell(value) + mark(record) if record and value is not None else NONE for record, value in sides)
        return new if base == new else f"{base} → {new}"

    return Column(heading, lambda change: read(change.new) if change.new else None, unit, text=text,
                  surfaces=Surface.PAGE, details=BESIDE)  # fmt: skip


def to_markdown(comparison: Comparison) -> str:
    blocks = blocks_of(comparison)
    text = markdown.render(blocks)
    if len(text) <= COMMENT_LIMIT:
        return text
    kept = [block for block in blocks if not getattr(block, "is_folded", False)]
    return markdown.render([*kept, Text("Everything else was left out: it would not fit into a comment.")])


def to_page(comparison: Comparison) -> str:
    palette = Palette(record for cell in comparison.cells if (record := cell.new or cell.base))
    title = f"{comparison.base.run_id} → {comparison.new.run_id}"
    made = f"base {comparison.base.created_at}", f"new {comparison.new.created_at}"
    return page.render(title, blocks_of(comparison, palette), palette, made)


def blocks_of(comparison: Comparison, palette: Palette | None = None) -> list[Block]:
    is_open = bool(comparison.regressions) or not comparison.judges_most
    verdict: list[Block] = [
        Text(headline(comparison), Look.UNSURE if is_open else Look.STRONG),
        Items(list(warnings(comparison)), look=Look.WARNING),
    ]
    # where nothing can be said, a table would only repeat that
    is_void = comparison.inconclusive is not None and comparison.inconclusive.is_all and not comparison.has_metrics
    unfolded = Surface.PAGE if is_void else Surface.PAGE | Surface.TERMINAL
    everything = Table(columns_of(comparison.cells), comparison.cells, on=Surface.MARKDOWN)
    numbers = Section("The numbers", [everything], is_folded=True, on=Surface.MARKDOWN) if is_void else everything
    columns = columns_of(comparison.cells)
    names = [column for column in columns if column is CELL or (column.heading == "contest" and column.on)]
    beside = [*names, *(column for column in columns if column.details)]
    both = [change for change in comparison.cells if change.base and change.new]
    shown = [replace(column, surfaces=Surface.ALL) for column in beside]
    further: dict[str, list[Block]] = {
        BESIDE: [Table(shown, both, on=~Surface.PAGE)],  # whose table of cells has these columns
        "What differs between the two environments or models": _environment(comparison.differences),
        "What was compared, and how": [Items(method(comparison))],
    }
    return [
        *verdict,
        numbers,
        *(replace(_contest(cells, palette), on=unfolded) for cells in by_contest(comparison.cells).values()),
        *(
            Section(title, blocks, is_folded=on is Surface.MARKDOWN, on=on)
            for on in (Surface.MARKDOWN, unfolded)
            for title, blocks in further.items()
        ),
    ]


def _contest(cells: Sequence[CellChange], palette: Palette | None) -> Section:
    title = cells[0].cell.title
    chart = charts.of_change(cells, title, palette) if palette else None
    table = Table(columns_of(cells), cells, label=f"Cells of {title}", look=_look, details=_details, status=OUTCOME)
    return Section(title, [table, Charts([chart] if chart else [])])


def _look(change: CellChange) -> Look:
    return Look.FAILED if change.is_regression else Look.PLAIN


def _details(change: CellChange) -> list[Block]:
    return [
        Text(sentences.why(change) or "Nothing to add."),
        Items(list(map(str, change.differences)), "What else differs"),
        *(log_and_command(change.new, "The end of its new log") if change.new else []),
    ]


def _environment(differences: Sequence[Difference]) -> list[Block]:
    if not differences:
        return [Text("Neither of them reports a difference.")]
    rows = [[difference.what, difference.base, difference.new, difference.bearing.value] for difference in differences]
    return [replace(text_table(["what", "base", "new", "how it counts"], rows, "llll"), label="differences")]


def headline(comparison: Comparison) -> str:
    regressions = comparison.regressions
    inconclusive = comparison.inconclusive
    if inconclusive and inconclusive.is_all:
        subject, rest = ("No latency", " No metric is worse.") if comparison.has_metrics else ("Nothing", "")
        return f"{subject} can be said: {_why_inconclusive(inconclusive, comparison)}.{rest}"
    if not regressions:
        counts = Counter(cell.outcome for cell in comparison.cells)
        numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
        remedy = ""
        if inconclusive and not comparison.judges_most:
            remedy = f"; {_why_inconclusive(inconclusive, comparison)}"
        return f"No regression over {spell_share(comparison.fail_above)} was found: {numbers}{remedy}."
    named = "; ".join(_spell_regression(cell) for cell in regressions[:REGRESSIONS_NAMED])
    more = len(regressions) - REGRESSIONS_NAMED
    count = "1 regression" if len(regressions) == 1 else f"{len(regressions)} regressions"
    return f"{count}: {named}{f'; and {more} more' if more > 0 else ''}."


def _why_inconclusive(inconclusive: Inconclusive, comparison: Comparison) -> str:
    alone = f", so only a change over {spell_share(inconclusive.margin)} would count" if inconclusive.margin else ""
    if inconclusive.kind is ReasonKind.OTHER_MACHINE:
        machines = _listed(comparison.differences, Bearing.MACHINE)
        return f"the runs are of two machines ({machines}){alone}; measure both on one, more processes do not help"
    if inconclusive.kind is ReasonKind.SINGLE_PROCESS:
        remedy = f"measure both again with --processes {inconclusive.processes} or more"
        return f"a run has one process of each cell, and processes of one cell differ{alone}; {remedy}"
    if inconclusive.kind is ReasonKind.WIDE_INTERVAL:
        limit = f"a change of {spell_share(comparison.fail_above)}"
        remedy = f"to see {limit} takes about {inconclusive.processes} of each (--processes)"
        if not inconclusive.is_enough:
            remedy = f"not even {inconclusive.processes} of each would see {limit}, so measure on a quieter machine"
        return f"the processes of a cell differ by more than the runs do; {remedy}"
    text = _INCONCLUSIVE.get(inconclusive.kind, "no cell was measured in both runs")
    return text.format(baseline=listed(comparison.baselines), alone=alone)


_INCONCLUSIVE = {
    ReasonKind.NO_BASELINE: "{baseline} was not measured beside the cells in both runs{alone}",
    ReasonKind.DISAGREEMENT: "{baseline} itself moved, and no latency agrees with its ratio to it; measure both again",
    ReasonKind.NOT_REACHED: "a run's budget was over, or it was interrupted; `bakeoff resume` measures the rest",
    ReasonKind.WAITING: "other programs kept cores busy, and threads waited for them so long that it may be all of a "
    "change; measure both again on a quiet machine (--wait-for-quiet 10m), more processes do not help",
    ReasonKind.IS_CONTROL: "only {baseline} was measured in both runs, and it moved; measure others beside it",
}


def warnings(comparison: Comparison) -> Iterator[str]:
    """Yield what could explain the changes otherwise. It stands before any number."""
    inconclusive = comparison.inconclusive
    is_in_headline = inconclusive and inconclusive.is_all and inconclusive.kind is ReasonKind.OTHER_MACHINE
    if not is_in_headline and (machine := _listed(comparison.differences, Bearing.MACHINE)):
        yield f"Another machine, and any change may come from that: {machine}."
    if model := _listed(comparison.differences, Bearing.MODEL):
        yield f"Another model, so that latencies and errors may differ by that: {model}."
    if speed := _listed(comparison.differences, Bearing.SPEED):
        yield f"Other settings or versions that bear on speed: {speed}."
    for contest, control in comparison.controls.items():
        if control.moved:
            yield _moved(comparison, contest, control)
    for title, each in comparison.opposite:
        yield f"The two runs say the opposite of {one_line(title)}: {each.ratios}."
    for name, report, undecided in (
        ("base", comparison.base, comparison.undecided_in_base),
        ("new", comparison.new, comparison.undecided_in_new),
    ):
        if not report.complete:
            ended = f"{report.reached} of {counted(report.planned, 'cell')} ended"
            yield f"The {name} run was interrupted before all was measured: {ended}."
        for title in undecided:
            yield f"In the {name} run measuring ended before its intervals were decided: {one_line(title)}."


def method(comparison: Comparison) -> list[str]:
    limit, baseline = spell_share(comparison.fail_above), listed(comparison.baselines)
    of_metrics = (
        "A cell is worse, and a regression, if the whole 95 % interval of a metric's change is worse, sample by "
        f"sample. A metric without an interval must be worse by over {limit} of its value. Where neither evaluate "
        "nor --require says whether higher is better, nothing is worse."
    )
    return [
        f"base: {_run(comparison.base)}",
        f"new: {_run(comparison.new)}",
        "A change is of the geometric mean over processes, with Welch's 95 % interval over them, widened by what "
        f"{baseline}'s own change leaves open. Above 0, the new run takes longer.",
        f"A regression is a cell that is slower by over {limit}, its interval without 0, or that was ok and is "
        f"not any more. Where {baseline} itself moved, the change relative to it must say the same.",
        *([of_metrics] if comparison.has_metrics else []),
    ]


def spell_share(share: float) -> str:
    return f"{100 * share:.4g} %"


def _spell_regression(cell: CellChange) -> str:
    name = f"{cell.cell.label} on {cell.cell.title}"
    worse = one_line(sentences.why_worse(cell), REASON_LIMIT)
    if cell.outcome is Outcome.WORSE:
        return f"{name}: {worse}"
    if cell.outcome is Outcome.BROKEN or cell.raw is None:
        return f"{name}: {one_line(sentences.why(cell), REASON_LIMIT)}"
    return f"{name} is slower, {number_format.spell_change(cell.raw)}{f'; {worse}' if worse else ''}"


def _moved(comparison: Comparison, contest_id: str, control: Control) -> str:
    title = next(cell.cell.title for cell in comparison.cells if cell.cell.contest_id == contest_id)
    direction = "slower" if control.change.log > 0 else "faster"
    own = comparison.base.environment.own_variables | comparison.new.environment.own_variables
    differing = [difference.what for difference in comparison.differences if difference.what.removeprefix("$") in own]
    cause = (
        f"the model's files read {listed(differing)}, which differs" if differing else "the machine or torch changed"
    )
    if control.change.half_width is None:
        cause = f"{cause}, or its single process differs"
    if any(difference.bearing is Bearing.MODEL for difference in comparison.differences):
        cause = "the model is another one"
    said = (
        f"{control.label} itself became {direction}, {number_format.spell_change(control.change)}, on "
        f"{one_line(title)}: {cause}. Latencies count only where their ratio to {control.label} says the same."
    )
    if control.calibration is None:
        return said
    # it shows a change of the machine alone
    took = number_format.spell_change(control.calibration)
    return f"{said} A fixed piece of work without torch, on one core, took {took}."


def _run(report: Report) -> str:
    commit = report.environment.git_commit
    return f"{report.run_id}, {report.created_at}{f', commit {commit}' if commit else ''}"


def _listed(differences: Sequence[Difference], bearing: Bearing) -> str:
    return "; ".join(
        f"{one_line(change.what)} {one_line(change.base, REASON_LIMIT)} → {one_line(change.new, REASON_LIMIT)}"
        for change in differences
        if change.bearing is bearing
    )
