"""A summary in Markdown for the page of a CI job or a comment on a pull request: at most `MAX_LINES` lines."""

from collections.abc import Sequence

from bakeoff.judging.compare import Comparison, Outcome
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.suites import Suite
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Report
from bakeoff.records.text import counted, one_line
from bakeoff.reports import comparison as comparisons
from bakeoff.reports import first_screen, machine, markdown, number_format, sentences, suite_report
from bakeoff.reports.blocks import Block, Items, Look, Section, Text
from bakeoff.reports.columns import answers_of
from bakeoff.reports.number_format import NONE
from bakeoff.reports.over_sizes import over_sizes
from bakeoff.reports.tables import Table

MAX_LINES = 30
CONTESTS_SHOWN = 8
FAILURES_SHOWN = 6
BACKENDS_SHOWN = 8
SUITE_FAILURES_SHOWN = 4
SUITES_SHOWN = 3
CHANGES_SHOWN = 14
WARNINGS_SHOWN = 4
REASON_LIMIT = 320


def of_run(judgement: Judgement) -> str:
    report, of_sizes = judgement.report, [said.answer for said in over_sizes(judgement)[:SUITES_SHOWN]]
    blocks = [
        *(Text(text, Look.STRONG) for text in (*first_screen.unfinished(judgement), *of_sizes)),
        *(_suites(judgement.suites) if judgement.suites else _contests(judgement)),
        Text(f"{_where(report)}. Made {report.created_at}."),
    ]
    return _rendered([Section(sentences.title(judgement), blocks, level=3)])


def _contests(judgement: Judgement) -> list[Block]:
    report, contests = judgement.report, judgement.contests
    rest = len(contests) - CONTESTS_SHOWN
    failures = [record for record in report.records if record.status.is_failure]
    alike = grouped(failures, lambda one: f"{one.cell.title}: {number_format.ending(one)}: {one.reason}")
    reasons = [f"{', '.join(one.cell.label for one in ones)} on {ending}" for ending, ones in alike.items()]
    failed = f"Failed, {len(failures)} of {len(report.records)}"
    return [
        Table(answers_of(contests), contests[:CONTESTS_SHOWN]),
        Text(f"And {counted(rest, 'more contest')}." if rest > 0 else ""),
        Items(_first(reasons, FAILURES_SHOWN, "reasons"), failed),
    ]


def _suites(suites: Sequence[Suite]) -> list[Block]:
    first, *others = suites
    failures = [suite_report.failure(first, failures) for failures in first.failures]
    return [
        Text(suite_report.answer(first), Look.STRONG),
        Table(suite_report.columns_of(first), first.rows[:BACKENDS_SHOWN]),
        Items(_first(failures, SUITE_FAILURES_SHOWN, "reason")),
        *(Text(suite_report.answer(suite), Look.STRONG) for suite in others[:SUITES_SHOWN]),
    ]


def of_comparison(compared: Comparison) -> str:
    changes = [change for change in compared.cells if change.outcome is not Outcome.CANNOT_TELL][:CHANGES_SHOWN]
    rest = len(compared.cells) - len(changes)
    blocks: list[Block] = [
        Text(comparisons.headline(compared), Look.STRONG),
        Items(_first(list(comparisons.warnings(compared)), WARNINGS_SHOWN, "warning")),
        Table(comparisons.columns_of(changes), changes),
        Text(f"Not shown: {counted(rest, 'cell')} of less weight, or of which nothing is known." if rest else ""),
        Text(f"{_where(compared.new)}. {_commit(compared.base)} → {_commit(compared.new)}."),
    ]
    return _rendered(blocks)


def _first(texts: Sequence[str], shown: int, kind: str) -> list[str]:
    more = ["and " + counted(len(texts) - shown, f"more {kind}")] if len(texts) > shown else []
    return [*(one_line(text, REASON_LIMIT) for text in texts[:shown]), *more]


def _where(report: Report) -> str:
    environment = report.environment
    used = {name: version for record in report.records if record.latency for name, version in record.versions.items()}
    libraries = {"torch": environment.versions["torch"]} if "torch" in environment.versions else {}
    names = [f"{name} {version}" for name, version in (libraries | used).items()]
    return ", ".join([machine.name(environment), *names])


def _commit(report: Report) -> str:
    return (report.environment.git_commit or report.run_id or NONE)[:40]


def _rendered(blocks: Sequence[Block]) -> str:
    text = markdown.render(blocks)
    assert len(text.splitlines()) <= MAX_LINES
    return text
