"""A summary in Markdown for the page of a CI job or a comment on a pull request: at most `MAX_LINES` lines."""

from collections.abc import Sequence

from bakeoff.judging.compare import Comparison, Outcome
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.schema import Report
from bakeoff.records.text import counted
from bakeoff.reports import comparison as comparisons
from bakeoff.reports import machine, number_format, sentences, suite_report
from bakeoff.reports.columns import answers_of
from bakeoff.reports.first_screen import first_screen
from bakeoff.reports.markdown import escape, table_of
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Surface, shown_in

MAX_LINES = 30
CONTESTS_SHOWN = 8
FAILURES_SHOWN = 6
BACKENDS_SHOWN = 8
SUITE_FAILURES_SHOWN = 4
SUITES_SHOWN = 3
CHANGES_SHOWN = 14
WARNINGS_SHOWN = 4
REASON_LIMIT = 160


def of_run(judgement: Judgement) -> str:
    """Return the table of winners, or of a suite's backends, then what failed, then where it was measured."""
    report, contests = judgement.report, judgement.contests
    lines = [f"### {escape(sentences.title(judgement))}", ""]
    screen = first_screen(judgement, "")
    for text in (*screen.unfinished, *screen.over_sizes[:SUITES_SHOWN]):
        lines += [f"**{escape(text)}**", ""]
    if judgement.suites:
        return _joined([*lines, *_suites(judgement.suites), "", f"{_where(report)}. Made {escape(report.created_at)}."])
    lines += table_of(
        shown_in(Surface.MARKDOWN, answers_of(contests), contests), contests[:CONTESTS_SHOWN]
    ).splitlines()
    if rest := contests[CONTESTS_SHOWN:]:
        lines += ["", f"And {counted(len(rest), 'more contest')}."]
    failures: dict[tuple[str, str, str], list[str]] = {}
    for record in report.records:
        if record.status.is_failure:
            ending = (record.cell.title, number_format.ending(record), record.reason)
            failures.setdefault(ending, []).append(record.cell.label)
    if failures:
        reasons = [
            f"{', '.join(labels)} on {title}: {ending}: {reason}"
            for (title, ending, reason), labels in failures.items()
        ]
        lines += ["", f"Failed, {sum(map(len, failures.values()))} of {len(report.records)}:", ""]
        lines += _listed(reasons, FAILURES_SHOWN, "reasons")
    return _joined([*lines, "", f"{_where(report)}. Made {escape(report.created_at)}."])


def _suites(suites: Sequence[Suite]) -> list[str]:
    """Return the table of backends of the first suite with what failed, and a line for each further one."""
    first, *others = suites
    answers = [f"**{escape(suite_report.answer(suite))}**" for suite in suites]
    table = table_of(
        shown_in(Surface.MARKDOWN, suite_report.columns_of(first), first.rows), first.rows[:BACKENDS_SHOWN]
    )
    failures = [suite_report.failure(first, failures) for failures in first.failures]
    lines = [answers[0], "", *table.splitlines()]
    lines += ["", *_listed(failures, SUITE_FAILURES_SHOWN, "reasons")] if failures else []
    return [*lines, *(["", *answers[1 : 1 + SUITES_SHOWN]] if others else [])]


def of_comparison(compared: Comparison) -> str:
    """Return the verdict, what speaks against it, and the most important changes."""
    lines = [f"**{escape(comparisons.headline(compared))}**"]
    if warnings := [f"{lead}{rest}" for lead, rest in comparisons.warnings(compared)]:
        lines += ["", *_listed(warnings, WARNINGS_SHOWN, "warnings")]
    changes = [change for change in compared.cells if change.outcome is not Outcome.CANNOT_TELL][:CHANGES_SHOWN]
    if changes:
        columns = shown_in(Surface.MARKDOWN, comparisons.columns_of(changes), changes)
        lines += ["", *table_of(columns, changes).splitlines()]
    if rest := len(compared.cells) - len(changes):
        lines += ["", f"Not shown: {counted(rest, 'cell')} of less weight, or of which nothing is known."]
    return _joined([*lines, "", f"{_where(compared.new)}. {_commit(compared.base)} → {_commit(compared.new)}."])


def _listed(texts: Sequence[str], shown: int, kind: str) -> list[str]:
    """Return a list of texts from outside, with a count of those that are too many."""
    lines = [f"- {escape(text, 2 * REASON_LIMIT)}" for text in texts[:shown]]
    return lines + ([f"- and {len(texts) - shown} more {kind}"] if len(texts) > shown else [])


def _where(report: Report) -> str:
    """Return the machine, and the versions of the libraries that gave a number."""
    environment = report.environment
    used = {name: version for record in report.records if record.latency for name, version in record.versions.items()}
    libraries = {"torch": environment.versions["torch"]} if "torch" in environment.versions else {}
    names = [f"{name} {version}" for name, version in (libraries | used).items()]
    return escape(", ".join([machine.name(environment), *names]))


def _commit(report: Report) -> str:
    return escape((report.environment.git_commit or report.run_id or NONE)[:40])


def _joined(lines: Sequence[str]) -> str:
    assert len(lines) <= MAX_LINES
    return "\n".join(lines) + "\n"
