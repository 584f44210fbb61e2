"""The answer of a run as JSON, for programs: `bakeoff --json` prints it. Its shape is that of `RunAnswer`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bakeoff.judging.answer import Answer, Question
from bakeoff.judging.constraints import RequirementOpen
from bakeoff.judging.contest import ContestJudgement, Generation, PrecisionJudgement
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.metric_changes import MetricJudgement
from bakeoff.judging.mix import Mix
from bakeoff.judging.suites import TAUS, Suite
from bakeoff.judging.under_load import LoadJudgement
from bakeoff.records.load_samples import ServingSettings
from bakeoff.records.schema import Frozen, Interval, Ratio
from bakeoff.reports import (
    end_to_end,
    headline,
    load_report,
    over_sizes,
    sentences,
    start_report,
    suite_report,
    traits,
)
from bakeoff.reports.answers import AnswerToQuestion
from bakeoff.reports.start_report import ContestStarts

FILES = ("report.json", "report.md", "details.md", "report.html", "cells.csv")


class LoadAnswer(Frozen):
    """Who carries most under load."""

    verdict: str
    winner: str | None
    tied: list[str]
    is_open: bool  # measuring ended before it was decided which of `tied` carries most
    values: dict[str, float]  # requests per second, or the median latency in ms, by label
    settings: dict[str, ServingSettings]
    doubts: list[str]
    stages: list[str]  # around the model, that each request had: `before`, `after`


class MetricAnswer(Frozen):
    """A metric of the user's own, for one cell."""

    value: float
    reference: float  # of eager in float32
    change: float
    change_ci95: Interval | None  # None: `evaluate` returns a plain number
    samples: int
    mcnemar_p: float | None  # of scores that are right or wrong
    further_samples: int | None = None
    """About so many more samples would decide whether a requirement is met that is open. None: nothing is open, or no
    number of samples would."""


class StepAnswer(Frozen):
    """One stage of a request: `before()`, the model, or `after()`."""

    name: str
    ms: float
    ci95_ms: Interval | None
    share: float


class EndToEndAnswer(AnswerToQuestion):
    """Who answers a whole request fastest: before, the model and after."""

    verdict: str
    request_ms: dict[str, float]  # by label, the best first
    speedups: dict[str, Ratio]  # over the baseline
    steps: list[StepAnswer]  # of a request that the best one answers


class PrecisionAnswer(Frozen):
    """The best of one precision at what was asked, in a contest across several."""

    precision: str
    labels: list[str]  # the best first, then those that may be as good
    value: float
    unit: str  # of `value`: `ms`, `requests/s`, or `tokens/s` of a generation
    latency_ms: float | None
    speedup: Ratio | None  # over the baseline of the contest, at what was asked
    relative_rmse: float | None  # None: the outputs could not be compared
    may_win: bool  # it keeps what is required, or rounds no more than the first precision does


class GenerationAnswer(Frozen):
    """What whole generations take, from the prompt to the last token, by label and the best first."""

    tied: list[str]  # labels that share the first place; a single one has won
    tokens_per_s: dict[str, float]  # of all sequences of a batch, while decoding
    generation_ms: dict[str, float]
    ranks: dict[str, int | None]  # None: right in both graphs, but it may not win


class BestAnswer(AnswerToQuestion):
    """Who is best at one question, with the latency of a call of the best one."""

    latency_ms: float | None
    """Median latency of a call of the first candidate."""
    latency_ci95_ms: Interval | None


class ContestAnswer(BestAnswer):
    """Who wins one contest at what was asked."""

    contest_id: str
    title: str
    headline: str
    """The answer to what was asked, in one line."""
    at_single_calls: BestAnswer | None
    """Who answers one call fastest, where something else was asked."""
    doubts: list[str]
    """What there is to doubt. With the outcome `doubted`, the first one could change who wins."""
    doubts_of_winner: list[str]
    """Those of `doubts` that could change who wins."""
    doubts_by_effect: dict[str, list[str]]
    """Each of `doubts` by what it could change: `winner` of what was asked, `winner_at_single_calls` where something
    else was asked, the winner's `numbers`, or `nothing`."""
    without_numbers: dict[str, str]
    """Why a cell has no numbers, by label."""
    metrics: dict[str, dict[str, MetricAnswer]] = Field(default_factory=dict)
    """The user's own metrics by label and by name, of the cells that have some."""
    precisions: list[PrecisionAnswer] = Field(default_factory=list)
    """The fastest of each precision, where several make one contest."""
    under_load: LoadAnswer | None = None
    """Who carries most under load, where that was asked for."""
    generation: GenerationAnswer | None = None
    """What whole generations take, in the contest of the decode steps."""
    end_to_end: EndToEndAnswer | None = None
    """What a whole request takes, where more than the model belongs to it."""
    starts: ContestStarts | None = None
    """What it takes to start, with `--starts`."""


class BackendAnswer(Frozen):
    """One backend and mode over all models of a suite."""

    label: str
    passed: int
    asked: int  # without what cannot run here and what was not reached
    cannot_run: int
    wins: int  # sure ones, with the error over all contests held by Holm's method
    profile: dict[str, float]  # factor -> share of the models on which it is within that factor of the best latency
    speedup: float | None  # geometric mean over the baseline, of what every ranked backend passed
    build_s: float | None  # median of the same
    memory: float | None  # geometric mean of peak memory over the baseline's, of the same


class SuiteAnswer(Frozen):
    """Many models in one task, on one device, in one precision."""

    title: str
    finding: str
    contests: int
    contests_in_means: int
    baseline: str | None
    backends: list[BackendAnswer]  # the best mean first
    failures: list[str]


class MixSizeAnswer(Frozen):
    """One size of a mix."""

    name: str
    contest_id: str
    calls: int
    weight: float


class MixRowAnswer(Frozen):
    """One backend over a mix of sizes."""

    label: str
    rank: int | None
    mean_ms: float | None  # None: it was not ranked at every size
    mean_ci95_ms: Interval | None
    speedup: Ratio | None  # over the baseline
    latency_ms: dict[str, float | None]  # by size
    reason: str  # why it is not ranked


class MixAnswer(AnswerToQuestion):
    """One verdict over recorded calls of several sizes. Ratios are of mean times of a request."""

    title: str
    finding: str
    leads: dict[str, Ratio]  # of the best one over each other ranked one
    covered: float  # share of the recorded calls whose sizes were measured
    sizes: list[MixSizeAnswer]  # the most frequent first
    rows: list[MixRowAnswer]  # the best mean first


class RunAnswer(Frozen):
    """What `--json` prints."""

    run_id: str
    complete: bool
    contests: list[ContestAnswer]
    suites: list[SuiteAnswer]
    mixes: list[MixAnswer]
    """One for each file of recorded calls with several sizes."""
    dynamic: list[str]
    """What one build for a range of sizes costs, with `--dynamic`."""
    about_models: list[str]
    """What models do beside computing outputs from their inputs."""
    paths: dict[str, str]
    """The run's `folder`, and the files in it by their names."""
    exit_reason: str = ""
    """Why the exit status is 1 or 3. Empty for any other one."""
    parts: dict[str, RunAnswer] = Field(default_factory=dict)
    """The answers for the parts of a pipeline, by their paths, where `contests` has that of the whole pipeline."""


def answer_of(judgement: Judgement, folder: Path) -> RunAnswer:
    return RunAnswer(
        run_id=judgement.report.run_id,
        complete=judgement.report.complete,
        contests=[_answer(contest) for contest in judgement.contests],
        suites=[_suite_answer(suite) for suite in judgement.suites],
        mixes=[_mix_answer(mix) for mix in judgement.mixes],
        dynamic=[over_sizes.of_range(dynamic_range).answer for dynamic_range in judgement.dynamic_ranges],
        about_models=traits.about_models(judgement.contests),
        paths={"folder": str(folder), **{name: str(folder / name) for name in FILES}},
    )


def _answer(contest: ContestJudgement) -> ContestAnswer:
    asked = contest.answer
    return ContestAnswer(
        **dict(_best_answer(contest, asked)),
        contest_id=contest.contest_id,
        title=contest.title,
        headline=headline.line(contest),
        at_single_calls=None if asked.question is Question.LATENCY else _best_answer(contest, contest.fastest),
        doubts=list(dict.fromkeys([*sentences.doubts_of_answer(contest), *sentences.doubts(contest)])),
        doubts_of_winner=sentences.doubts_of_answer(contest),
        doubts_by_effect=sentences.doubts_by_effect(contest),
        without_numbers={
            cell.label: f"{cell.record.status}: {cell.record.reason}" for cell in contest.cells if not cell.latency
        },
        metrics={
            cell.label: {name: _metric_answer(contest, cell.label, metric) for name, metric in cell.metrics.items()}
            for cell in contest.cells
            if cell.metrics
        },
        precisions=[_precision_answer(judged, contest) for judged in contest.of_precisions],
        under_load=_load_answer(contest.load) if contest.load else None,
        generation=_generation_answer(contest.generation) if contest.generation else None,
        end_to_end=_end_to_end_answer(contest.end_to_end) if contest.end_to_end else None,
        starts=start_report.contest_answer(contest.starts) if contest.starts else None,
    )


def _best_answer(contest: ContestJudgement, asked: Answer) -> BestAnswer:
    latency = next((cell.latency for cell in contest.cells if cell.label in asked.candidates[:1]), None)
    return BestAnswer.to(
        asked,
        latency_ms=latency.median_ms if latency else None,
        latency_ci95_ms=latency.median_ci95_ms if latency else None,
    )


def _metric_answer(contest: ContestJudgement, label: str, metric: MetricJudgement) -> MetricAnswer:
    is_open = (doubt for doubt in contest.doubts if isinstance(doubt, RequirementOpen) and label in doubt.labels)
    return MetricAnswer.of(
        metric,
        mcnemar_p=metric.chance,
        further_samples=next((doubt.further for doubt in is_open if doubt.required.name == metric.name), None),
    )


def _end_to_end_answer(judged: EndToEnd) -> EndToEndAnswer:
    return EndToEndAnswer.to(
        judged.answer,
        verdict="; ".join(end_to_end.sentences(judged)),
        request_ms={row.label: row.value for row in judged.answer.rows if row.value is not None},
        speedups={row.label: row.speedup for row in judged.answer.rows if row.speedup},
        steps=[StepAnswer.of(step, ci95_ms=step.ci95) for step in judged.steps],
    )


def _precision_answer(judged: PrecisionJudgement, contest: ContestJudgement) -> PrecisionAnswer:
    best = judged.best
    return PrecisionAnswer.of(
        judged,
        labels=judged.candidates,
        unit=contest.answer_of_builds.unit,
        latency_ms=best.latency.median_ms if best.latency else None,
    )


def _generation_answer(judged: Generation) -> GenerationAnswer:
    return GenerationAnswer(
        tied=list(judged.answer.first),
        tokens_per_s={cell.label: cell.value for cell in judged.cells if cell.value is not None},
        generation_ms={cell.label: cell.total_ms for cell in judged.cells},
        ranks={cell.label: cell.rank for cell in judged.cells},
    )


def _load_answer(judged: LoadJudgement) -> LoadAnswer:
    return LoadAnswer.of(
        judged.answer,
        is_open=judged.answer.is_open,
        winner=judged.answer.leader,
        stages=judged.stages,
        verdict=load_report.verdict(judged),
        values={cell.label: cell.value for cell in judged.cells if cell.value is not None},
        settings={cell.label: cell.load.settings for cell in judged.cells if cell.load.settings},
        doubts=[doubt.say() for doubt in judged.doubts],
    )


def _suite_answer(suite: Suite) -> SuiteAnswer:
    return SuiteAnswer(
        title=suite_report.title(suite),
        finding=suite_report.finding(suite),
        contests=len(suite.contests),
        contests_in_means=len(suite.common),
        baseline=suite.baseline,
        backends=[
            BackendAnswer.of(
                row,
                profile={f"{tau:g}": row.profile.share(tau) for tau in TAUS},
                speedup=row.means.speedup if row.means else None,
                build_s=row.means.build_s if row.means else None,
                memory=row.means.memory if row.means else None,
            )
            for row in suite.rows
        ],
        failures=[suite_report.failure(suite, failures) for failures in suite.failures],
    )


def _mix_answer(judged: Mix) -> MixAnswer:
    said = over_sizes.of_mix(judged)
    return MixAnswer.to(
        judged.answer,
        title=said.title,
        finding=said.finding,
        covered=judged.covered,
        sizes=[MixSizeAnswer.of(size, contest_id=size.contest.contest_id) for size in judged.sizes],
        rows=[
            MixRowAnswer.of(
                row,
                mean_ms=row.value,
                mean_ci95_ms=row.interval,
                latency_ms={
                    size.name: cell.latency.median_ms if cell and cell.latency else None
                    for size, cell in zip(judged.sizes, row.cells, strict=True)
                },
                reason=over_sizes.why_not(row, judged),
            )
            for row in judged.rows
        ],
    )
