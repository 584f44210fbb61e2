"""The answer of a run as JSON, for programs: `runner.py --json` prints it. Its shape is that of `Answer`."""

from __future__ import annotations

from pathlib import Path

from judging.certainty import Certainty
from judging.contest import ContestJudgement
from judging.judgement import Judgement
from records.schema import Frozen, Interval, Ratio
from reports import doubt_sentences

FILES = ("report.json", "report.md", "report.html", "cells.csv")


class ContestAnswer(Frozen):
    """Who wins one contest. Ratios say how many times faster the best cell is."""

    contest_id: str
    title: str
    outcome: Certainty  # "open": measuring ended before it was decided; "doubted": the first doubt could change it
    winner: str | None  # None without a sure or likely winner
    tied: list[str]  # labels that share the first place, if there are several
    open: list[str]  # labels that may still prove as fast as the best one
    latency_ms: float | None  # of the winner, or of the first of those that tie
    latency_ci95_ms: Interval | None
    baseline: str | None
    speedup: Ratio | None  # over the baseline
    runner_up: str | None
    lead: Ratio | None  # over the runner-up
    doubts: list[str]
    without_numbers: dict[str, str]  # why, by label


class Answer(Frozen):
    """What `--json` prints."""

    run_id: str
    complete: bool
    contests: list[ContestAnswer]
    paths: dict[str, str]  # "folder", and the files in it by their names


def answer_of(judgement: Judgement, folder: Path) -> Answer:
    """Return the answer of a run whose report lies in `folder`."""
    return Answer(
        run_id=judgement.report.run_id,
        complete=judgement.report.complete,
        contests=[_answer(contest) for contest in judgement.contests],
        paths={"folder": str(folder), **{name: str(folder / name) for name in FILES}},
    )


def _answer(contest: ContestJudgement) -> ContestAnswer:
    best = contest.best
    return ContestAnswer(
        contest_id=contest.contest_id,
        title=contest.title,
        outcome=contest.certainty,
        winner=contest.winner,
        tied=list(contest.tied),
        open=list(contest.open_labels),
        latency_ms=best.latency.median_ms if best and best.latency else None,
        latency_ci95_ms=best.latency.median_ci95_ms if best and best.latency else None,
        baseline=contest.baseline,
        speedup=best.speedup if best else None,
        runner_up=contest.runner_up,
        lead=contest.lead,
        doubts=doubt_sentences.doubts(contest),
        without_numbers={
            cell.label: f"{cell.record.status}: {cell.record.reason}" for cell in contest.cells if not cell.latency
        },
    )
