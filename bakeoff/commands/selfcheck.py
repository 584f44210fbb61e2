"""Check that the harness calls equal things equal and different things different on this machine.

A trial is a contest of eager with itself, whose second copy is slowed afterwards, which keeps the machine's noise. Each
slowdown is judged with as many processes as it would have got.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from scipy import special  # type: ignore[import-untyped,unused-ignore]  # typed where scipy-stubs is installed

from bakeoff import models
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.decision import MAX_PROCESSES
from bakeoff.judging.fit import speedup, summarise
from bakeoff.judging.ranking import undecided
from bakeoff.measuring.controller.contests import measure_contest
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Progress, Silent
from bakeoff.measuring.controller.rounds import Pairs
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records.device import Device
from bakeoff.records.errors import NOTHING_YET, BakeoffError
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Burst, Cell, Frozen, Ratio, Record, Status
from bakeoff.records.store import Store
from bakeoff.reports import sentences
from bakeoff.reports.console import say, stderr
from bakeoff.reports.tables import Column, Table
from bakeoff.reports.terminal import print_blocks

FIRST, AGAIN = "eager", "eager-again"
PLANTED = (1.0, 1.03, 1.05)
"""Factors by which the second copy is slowed down. 1.0 must be called equal, and the others must be found."""


class SlowdownAnswer(Frozen):
    """What one trial finds for one planted slowdown."""

    planted: float
    winner: str | None  # its label; None for a tie, or if it is not decided
    unstable: bool
    ratio: Ratio  # above 1 the first copy is faster
    processes: int
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.winner == (None if self.planted == 1.0 else FIRST)


class SelfcheckTrial(Frozen):
    """A contest of eager with itself, and its answer for each of `PLANTED`."""

    answers: tuple[SlowdownAnswer, ...]
    records: tuple[Record, Record]


class Summary(Frozen):
    """The result of all trials of one model and one planted slowdown. `planted` 1 is two equal cells."""

    model: str
    mode: str
    planted: float
    trials: int
    winners: int  # trials that called one
    right: int
    unstable: int  # trials that decided nothing
    upper: float  # 95 % upper bound of the rate of winners (Clopper and Pearson)
    half_width: float  # of the ratio's interval, median over trials
    processes: float  # mean over trials
    seconds: float  # median over trials


def run_and_say(models_named: Sequence[str], device: str, mode: str, trials: int, console: Console) -> list[Summary]:
    """Run these trials of each model, say what each called and then the table, and return its rows. An interruption
    ends the trials: the rows are those of the ones before it."""
    answers: dict[str, list[tuple[SlowdownAnswer, ...]]] = {}
    try:
        for model in models_named:
            for number, trial in enumerate(run(model, device, mode, trials), start=1):
                answers.setdefault(model, []).append(trial.answers)
                equal = trial.answers[0]
                said = f"{equal.winner} wins" if equal.winner else "not decided" if equal.unstable else "tie"
                console.print(f"{model} {number}/{trials}: {said}, {sentences.ratio(equal.ratio)}", highlight=False)
    except KeyboardInterrupt:
        if not answers:
            raise KeyboardInterrupt(NOTHING_YET) from None
        done, asked = sum(map(len, answers.values())), trials * len(models_named)
        say(f"Interrupted after {done} of {asked} trials. The table has these, and nothing is kept.", stderr)
    rows = [row for model, of_model in answers.items() for row in summarise_trials(model, mode, of_model)]
    columns: list[Column[Summary]] = [
        Column("model", lambda row: row.model, is_text=True),
        Column("the copy is", lambda row: "equal" if row.planted == 1.0 else f"{row.planted - 1:.0%} slower"),
        Column("trials", lambda row: row.trials),
        Column("right", lambda row: row.right / row.trials, write="{:.1%}".format),
        Column("undecided", lambda row: row.unstable / row.trials, write="{:.1%}".format),
        Column("winner called", lambda row: row.winners / row.trials, write="{:.1%}".format),
        Column("at most", lambda row: row.upper, write="{:.1%}".format),
        Column("half-width", lambda row: row.half_width, write="±{:.2%}".format),
        Column("processes", lambda row: row.processes, write="{:.1f}".format),
        Column("s per trial", lambda row: row.seconds, write="{:.1f}".format),
    ]
    print_blocks([Table(columns, rows)], console)
    return rows


def run(
    model: str,
    device: str,
    mode: str,
    trials: int,
    planted: Sequence[float] = PLANTED,
    max_processes: int = MAX_PROCESSES,
) -> Iterator[SelfcheckTrial]:
    """Yield so many trials. Each has its own servers and processes."""
    cells = (cell_of(model, device, FIRST, mode), cell_of(model, device, AGAIN, mode))
    contest = Contest(cells[0].contest_id, tuple(PlannedCell(cell, asked_by_name=True) for cell in cells))
    request = Request(models=(model,), devices=(device,))
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference.pt"
        for number in range(trials):
            yield trial_of(request, contest, Path(folder) / str(number), reference, planted, max_processes)


def summarise_trials(model: str, mode: str, trials: Sequence[Sequence[SlowdownAnswer]]) -> list[Summary]:
    by_planted = grouped((answer for answers in trials for answer in answers), lambda answer: answer.planted)
    return [_summary(model, mode, by_planted[planted]) for planted in sorted(by_planted)]


def _summary(model: str, mode: str, answers: Sequence[SlowdownAnswer]) -> Summary:
    winners = sum(answer.winner is not None for answer in answers)
    return Summary(
        model=model,
        mode=mode,
        planted=answers[0].planted,
        trials=len(answers),
        winners=winners,
        right=sum(answer.is_right for answer in answers),
        unstable=sum(answer.unstable for answer in answers),
        upper=upper_bound(winners, len(answers)),
        half_width=statistics.median(_half_width(answer.ratio) for answer in answers),
        processes=statistics.mean(answer.processes for answer in answers),
        seconds=statistics.median(answer.seconds for answer in answers),
    )


class SelfcheckAnswer(Frozen):
    """What `bakeoff selfcheck --json` prints."""

    rows: list[Summary]


def trial_of(
    request: Request,
    contest: Contest,
    folder: Path,
    reference: Path,
    planted: Sequence[float],
    max_processes: int = MAX_PROCESSES,
) -> SelfcheckTrial:
    """Measure a contest of two copies until it is decided for each planted slowdown of the second one.

    Raises BakeoffError if a copy fails: the other one would win without a rival."""
    begun = time.monotonic()
    ends_s: list[float] = []

    def undecided_for_any(records: Sequence[Record]) -> list[tuple[str, str]]:
        ends_s.append(time.monotonic() - begun)
        return [pair for factor in planted for pair in undecided(with_slowdown(records, factor, name))]

    name = contest.cells[0].cell.backend
    plan = plan_of(request, max_processes)
    with Launchers(request.start_method) as launchers:
        launchers.prepare(plan.processes)
        records = measured(launchers, request, contest, folder, reference, Silent(), plan, undecided_for_any)
    first = next(record for record in records if record.cell.backend == name)
    again = next(record for record in records if record.cell.backend != name)
    for record in (first, again):
        if record.status is not Status.OK:
            raise BakeoffError(f"{record.cell.label} failed ({record.status}), so nothing is compared: {record.reason}")
    answers = tuple(answer_for([first, again], factor, ends_s, plan.processes) for factor in planted)
    return SelfcheckTrial(answers=answers, records=(first, again))


def plan_of(request: Request, max_processes: int = MAX_PROCESSES) -> SamplingPlan:
    return replace(
        SamplingPlan.lasting(request.min_time_s, request.processes, max_processes=max_processes), latency_only=True
    )


def measured(
    launchers: Launchers,
    request: Request,
    contest: Contest,
    folder: Path,
    reference: Path,
    progress: Progress,
    plan: SamplingPlan,
    undecided_pairs: Callable[[Sequence[Record]], Pairs] | None = None,
) -> list[Record]:
    """Measure a contest in a `folder` that is there no more afterwards. Contests of one model share a `reference`."""
    store = Store.create(folder, request, [planned.cell.id for planned in contest.cells], "selfcheck")
    if reference.exists():
        shutil.copy(reference, store.reference(contest.id))
    run = RunContext(
        launchers=launchers,
        store=store,
        progress=progress,
        request=request,
        sampling=plan,
        time_plan=TimePlan(plan),
        headers=Headers(store, progress),
        undecided=undecided_pairs,
    )
    measure_contest(run, contest, contest.cells)
    records = store.records()
    if not store.reference(contest.id).exists():
        raise BakeoffError(next((record.reason for record in records if record.reason), "the model was not measured"))
    if not reference.exists():
        shutil.copy(store.reference(contest.id), reference)
    shutil.rmtree(folder)
    return records


def answer_for(records: Sequence[Record], planted: float, ends_s: Sequence[float], fewest: int) -> SlowdownAnswer:
    """Return the verdict at the time when a contest with this slowdown would have stopped."""
    second_slowed = with_slowdown(records, planted, records[0].cell.backend)
    for number, end_s in enumerate(ends_s):
        processes = fewest + number
        seen = [_first_processes(record, processes) for record in second_slowed]
        if not undecided(seen) or number == len(ends_s) - 1:
            verdict = judge_contest(seen)
            return SlowdownAnswer(
                planted=planted,
                winner=verdict.fastest.leader,
                unstable=verdict.fastest.is_open,
                ratio=speedup(seen[0].bursts, seen[1].bursts),
                processes=processes,
                seconds=end_s,
            )
    raise AssertionError("a trial asks at least once whether it is decided")


def with_slowdown(records: Sequence[Record], factor: float, first: str = FIRST) -> list[Record]:
    """Return the records with the calls of the second copy, which is another backend, `factor` times as long."""
    return [
        record
        if record.cell.backend == first
        else _with_bursts(record, [_slowed(each, factor) for each in record.bursts])
        for record in records
    ]


def _slowed(burst: Burst, factor: float) -> Burst:
    samples_ns, seen = [round(sample * factor) for sample in burst.samples_ns], burst.conditions
    if seen:  # it has latencies that stand for the burst, too
        seen = seen.but(
            quiet_ms=seen.quiet_ms and seen.quiet_ms * factor, given_ms=seen.given_ms and seen.given_ms * factor
        )
    return burst.but(samples_ns=samples_ns, conditions=seen)


def _first_processes(record: Record, count: int) -> Record:
    kept = [process.index for process in record.processes[:count]]
    seen = _with_bursts(record, [burst for burst in record.bursts if burst.process in kept])
    return seen.but(processes=record.processes[:count])


def _with_bursts(record: Record, bursts: list[Burst]) -> Record:
    return record.but(bursts=bursts, latency=summarise(bursts))


def cell_of(model: str, device: str, backend: str, mode: str, sizes: Mapping[str, str | int] | None = None) -> Cell:
    dimensions = models.find(model).resolve(sizes or {})
    return Cell(model=model, dimensions=dimensions, device=Device(device), backend=backend, mode=mode)


def _half_width(ratio: Ratio) -> float:
    return float("inf") if ratio.ci95 is None else (ratio.ci95.high - ratio.ci95.low) / 2


def upper_bound(hits: int, trials: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % upper bound of a rate."""
    return 1.0 if hits == trials else float(special.betaincinv(hits + 1, trials - hits, 0.95))
