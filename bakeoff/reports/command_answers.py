"""What the commands beside a run print with `--json`, for programs. docs/json.md lists every key."""

import json
from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel

from bakeoff.judging.bisection import Bisection, TriedVersion
from bakeoff.judging.change import Change
from bakeoff.judging.compare import Comparison
from bakeoff.judging.history import History
from bakeoff.judging.machines import Machines
from bakeoff.records.schema import Frozen, Interval
from bakeoff.reports import bisection, comparison, machines, sentences

EXIT_STATUS = "exit_status"
"""The key that every document has beside those of its model."""


class ChangeAnswer(Frozen):
    """How many times as long a call takes in the new run as in the base."""

    ratio: float
    ci95: Interval | None


class MetricChangeAnswer(Frozen):
    """A metric of the user's own in two runs."""

    base: float
    new: float
    ci95: Interval | None  # of the change; None: a plain number, or other numbers of samples
    is_worse: bool
    is_reference_worse: bool  # the float reference's own is worse as well


class CellChangeAnswer(Frozen):
    """One cell of two runs. A latency is None where the cell has none in that run."""

    cell_id: str
    label: str
    contest_id: str
    outcome: str
    is_regression: bool
    base_ms: float | None
    new_ms: float | None
    change: ChangeAnswer | None  # of the latency
    normalised: ChangeAnswer | None  # of the latency over the baseline's
    metrics: dict[str, MetricChangeAnswer]
    reason: str


class ComparisonAnswer(Frozen):
    """What `bakeoff compare --json` prints."""

    headline: str
    base: str
    new: str
    fail_above: float
    failing: list[str]  # ids of the cells that fail the gate
    cells: list[CellChangeAnswer]
    warnings: list[str]


class HistoryRun(Frozen):
    """One run of a history."""

    run_id: str
    created_at: str
    changes: list[str]  # of the machine or its software, before this run


class HistoryPoint(Frozen):
    """A cell in one run."""

    run_id: str
    status: str
    median_ms: float | None
    ci95_ms: Interval | None


class HistoryCell(Frozen):
    """One cell from run to run."""

    cell_id: str
    label: str
    contest_id: str
    points: list[HistoryPoint]


class HistoryAnswer(Frozen):
    """What `bakeoff history --json` prints. Runs are in the order of time."""

    runs: list[HistoryRun]
    cells: list[HistoryCell]
    left_out: list[str]
    path: str


class OfferAnswer(Frozen):
    """The best build of one machine for one question."""

    machine: str
    candidates: list[str]  # the best first, then those that may prove as good
    certainty: str
    median_ms: float
    ci95_ms: Interval | None
    calls_per_s: float | None
    is_lower_bound: bool  # other load held the rate down: it is more, and the price less
    joules_per_call: float | None  # None: less than the counter resolves, or none was counted
    joules_ci95: Interval | None
    price_per_million: float | None


class QuestionAnswer(Frozen):
    """What several machines were asked alike. The fastest machine comes first."""

    title: str
    fastest: list[str]  # machines that may be the fastest
    cheapest: str | None
    untried: dict[str, list[str]]  # builds that a machine did not try, by machine
    offers: list[OfferAnswer]


class MachinesAnswer(Frozen):
    """What `bakeoff machines --json` prints."""

    questions: list[QuestionAnswer]
    asked_once: list[str]  # what only one machine was asked


class ExportAnswer(Frozen):
    """What `bakeoff export --json` prints."""

    cell_id: str
    label: str
    format: str
    folder: str
    start_with: str  # the file to begin with


class ScriptAnswer(Frozen):
    """What `bakeoff reproduce --json` prints."""

    cell_id: str
    label: str
    script: str  # its source
    path: str | None  # where --out wrote it


class BisectionAnswer(Frozen):
    """What `bakeoff bisect --json` prints."""

    conclusion: str
    package: str
    backend: str
    first_slow: str | None
    suspects: list[str]  # versions of which one is the first slow one, as far as is known
    steps: list[TriedVersion]
    path: str  # the folder of the steps, for bakeoff resume


class PublishAnswer(Frozen):
    """What `bakeoff publish --json` prints."""

    index: str
    files: list[str]
    removed: list[str]  # pages of an earlier site here whose runs are not published any more


class ErrorAnswer(Frozen):
    """What every command prints with `--json` in place of its answer if it cannot give one."""

    error: str


def document(answer: BaseModel, exit_status: int) -> str:
    return json.dumps(json.loads(answer.model_dump_json()) | {EXIT_STATUS: exit_status}, indent=2, ensure_ascii=False)


def of_comparison(compared: Comparison, kinds: Collection[str]) -> ComparisonAnswer:
    return ComparisonAnswer(
        headline=comparison.headline(compared),
        base=compared.base.run_id,
        new=compared.new.run_id,
        fail_above=compared.fail_above,
        failing=[cell.cell.id for cell in compared.failing(kinds)],
        cells=[
            CellChangeAnswer(
                cell_id=cell.cell.id,
                label=cell.cell.label,
                contest_id=cell.cell.contest_id,
                outcome=cell.outcome.value,
                is_regression=cell.is_regression,
                base_ms=comparison.median_ms(cell.base),
                new_ms=comparison.median_ms(cell.new),
                change=_change(cell.raw),
                normalised=_change(cell.normalised),
                metrics={
                    name: MetricChangeAnswer(
                        base=metric.reference,
                        new=metric.value,
                        ci95=metric.change_ci95,
                        is_worse=name in cell.worse,
                        is_reference_worse=name in cell.worse_of_reference,
                    )
                    for name, metric in cell.metrics.items()
                },
                reason=sentences.why(cell),
            )
            for cell in compared.cells
        ],
        warnings=list(comparison.warnings(compared)),
    )


def of_history(history: History, path: Path) -> HistoryAnswer:
    return HistoryAnswer(
        runs=[
            HistoryRun(
                run_id=run.run_id,
                created_at=run.at.isoformat(),
                changes=[f"{change.what}: {change.base} → {change.new}" for change in run.changes],
            )
            for run in history.runs
        ],
        cells=[
            HistoryCell(
                cell_id=record.cell.id,
                label=record.cell.label,
                contest_id=record.cell.contest_id,
                points=[
                    HistoryPoint(
                        run_id=run.run_id,
                        status=measured.status.value,
                        median_ms=comparison.median_ms(measured),
                        ci95_ms=measured.latency.median_ci95_ms if measured.latency else None,
                    )
                    for run in history.runs
                    if (measured := run.records.get(record.cell.id))
                ],
            )
            for records in history.contests.values()
            for record in records
        ],
        left_out=history.skipped,
        path=str(path),
    )


def of_bisection(bisected: Bisection, folder: Path) -> BisectionAnswer:
    return BisectionAnswer.of(
        bisected,
        conclusion=bisection.conclusion(bisected),
        first_slow=bisected.first_slow.version if bisected.first_slow else None,
        path=str(folder),
    )


def of_machines(judged: Machines) -> MachinesAnswer:
    return MachinesAnswer(
        questions=[
            QuestionAnswer.of(
                question,
                cheapest=question.cheapest.machine if question.cheapest else None,
                offers=[
                    OfferAnswer.of(
                        offer,
                        certainty=machines.certainty(offer),
                        median_ms=offer.latency.median_ms,
                        ci95_ms=offer.latency.median_ci95_ms,
                    )
                    for offer in question.offers
                ],
            )
            for question in judged.questions
        ],
        asked_once=list(judged.asked_once),
    )


def _change(change: Change | None) -> ChangeAnswer | None:
    return ChangeAnswer(ratio=change.value, ci95=change.ci95) if change else None
