"""Several models of one pipeline: a contest of each part, and then the whole pipeline with the winners in place."""

from __future__ import annotations

import gc
import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff import models
from bakeoff.api.result import RESULTS, Ended, Ratio, Result, result_at
from bakeoff.judging.constraints import RequirementMissed, Requirements
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import Relation, relation
from bakeoff.judging.fit import summarise
from bakeoff.judging.ranking import median_ms
from bakeoff.measuring.turns import turns
from bakeoff.models.calls_file import Calls
from bakeoff.models.pipeline_parts import part_of, recorded, replaced, run_once, synchronise
from bakeoff.records import schema
from bakeoff.records.errors import UsageError, first_line
from bakeoff.records.grouping import grouped
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import PARTS
from bakeoff.records.schema import LIVE, ORIGINAL, WITH_WINNERS, Burst, Process, Record, Status
from bakeoff.records.store import Store
from bakeoff.records.text import spell_ms
from bakeoff.reports import writer
from bakeoff.reports.console import written_to_the_end
from bakeoff.reports.json_answer import RunAnswer
from bakeoff.shipping.pipelines import has_winners, load_parts, places_in, ship, winners_in

if TYPE_CHECKING:
    from torch import nn

WINNERS = "winners"
"""The folder in a pipeline's own that holds the winners of all parts."""

MIN_ROUNDS_OF_WHOLE, MAX_ROUNDS_OF_WHOLE = 8, 200
ROUNDS_OF_WHOLE_S = 20.0
"""The pipeline is called in turn as it was and with the winners, for so long and for at least so many rounds."""

SHORT_CALL_NS, CALLS_OF_SHORT = 5_000_000, 10
"""A call that is shorter than this is followed by so many, which are the burst."""

RunParts = Callable[[Mapping[str, "nn.Module"], Mapping[str, Calls], Path], Ended]
Evaluate = Callable[..., Any]
Winners = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, repr=False)
class PipelineResult(Result):
    """The result of `compare(..., parts=[...])`: its one contest is that of the whole pipeline, in this process.

    After an interruption it has the parts that were measured, and no contest where the whole was not.
    """

    parts: Mapping[str, Result] = field(default_factory=dict)
    """The result of each part that was measured, by its path. They share the folder of one run."""

    @cached_property
    def answer(self) -> RunAnswer:
        """What `bakeoff --parts ... --json` prints: the whole pipeline, and in `parts` the answer of each part."""
        return super().answer.but(parts={name: result.answer for name, result in self.parts.items()})

    @cached_property
    def whole(self) -> ContestJudgement | None:
        """The contest of the pipeline with the winners against the original. None where no part has a winner to put in
        place, and where the measuring was interrupted before."""
        contests = self._judgement.contests
        return contests[0] if contests and contests[0].cell_of(WITH_WINNERS) else None

    @property
    def speedup(self) -> Ratio | None:
        """How many times faster a call of the pipeline is with the winners than it was."""
        return Ratio.of(self._gain)

    @property
    def loses(self) -> bool:
        return self._gain is not None and relation(self._gain) is Relation.SLOWER

    @property
    def _gain(self) -> schema.Ratio | None:
        winners = self.whole and self.whole.fastest.row_of(WITH_WINNERS)
        return winners.speedup if winners else None

    def apply(self, pipeline: object, anyway: bool = False) -> None:
        """Put the winners in place of the pipeline's parts. Only their `forward` is replaced.

        Args:
            pipeline: The one that was compared, or one like it.
            anyway: Also where the pipeline was slower with them, missed a requirement, or was not measured as a whole.

        Raises:
            bakeoff.UsageError: Where no part has a winner, and without `anyway` in these cases.
        """
        self._require_gain(anyway)
        load_parts(self._shipped(), pipeline)

    def save(self, folder: str | Path, label: str | None = None, anyway: bool = False) -> Path:
        """Write the winners of all parts into a new folder, for `bakeoff.load_parts(folder, pipeline)`.

        Raises:
            bakeoff.UsageError: As `apply` does, and where the folder exists.
        """
        if label is not None:
            raise UsageError("a pipeline's winners are saved together: use `parts[name].save(folder, label)` for one")
        self._require_gain(anyway)
        if Path(folder).exists():
            raise UsageError(f"{folder} is there already: name a new folder")
        return Path(shutil.copytree(self._shipped(), folder))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    @property
    def _chosen(self) -> Mapping[str, Result]:
        """The results whose winners are wanted: those in fp32, where the winners across precisions miss the metric."""
        is_in_fp32 = self.report.request.get("precision") == [Precision.FP32]
        return {name: _in_fp32(result) for name, result in self.parts.items()} if is_in_fp32 else self.parts

    def _shipped(self) -> Path:
        """Return the folder with the winners of all parts, which an interrupted run has not written."""
        folder = self.folder / WINNERS
        not_exported = {} if has_winners(folder) else ship_winners(self._chosen, folder)
        if not places_in(folder):
            reasons = [f"{name}: {reason}" for name, reason in not_exported.items()] or self.report.notes
            raise UsageError(f"no part has a winner that can be put in place: {'; '.join(reasons)}")
        return folder

    def _require_gain(self, anyway: bool) -> None:
        if not any(map(cells_to_ship, self._chosen.values())):
            raise UsageError(f"no part has a winner to put in place: {'; '.join(self.report.notes)}")
        if anyway:
            return
        remedy = "or say anyway=True"
        if self.whole is None:
            raise UsageError(f"the whole pipeline was not measured: {'; '.join(self.report.notes)}; {remedy}")
        original, winners = map(self.whole.cell_of, (ORIGINAL, WITH_WINNERS))
        if self.loses and original and winners:
            raise UsageError(
                f"the pipeline is slower with the winners: {spell_ms(median_ms(winners.record))} a call, and "
                f"{spell_ms(median_ms(original.record))} as it was. Compare fewer parts, {remedy}"
            )
        if winners and winners.unmet:
            missed = "; ".join(doubt.unmet for doubt in winners.unmet)
            raise UsageError(f"the pipeline misses what is required with the winners: {missed}; {remedy}")


@dataclass
class WholeMeasured:
    """What is known of the whole pipeline so far, by side. An interruption leaves what is there."""

    bursts: dict[str, list[Burst]] = field(default_factory=dict)
    metrics: dict[str, Metrics] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return min(map(len, self.bursts.values()), default=0)

    def records(self, like: Record, began: datetime) -> list[Record]:
        """Return a record of each side, over the rounds that all of them shared."""
        theirs = self.metrics.get(ORIGINAL)
        beside = {label: ours.beside(theirs) if theirs else ours for label, ours in self.metrics.items()}
        latencies = {label: summarise(bursts[: self.rounds]) for label, bursts in self.bursts.items()}
        return [
            like.but(
                cell=like.cell.but(backend=label),
                bursts=self.bursts[label][: self.rounds],
                latency=latency,
                processes=[Process(index=0, warm=False, phases=[], calls=latency.calls, median_ms=latency.median_ms)],
                started_at=began.isoformat(timespec="seconds"),
                metrics=beside.get(label),
                reference_metrics=theirs,
            )
            for label, latency in latencies.items()
            if latency
        ]


@dataclass
class _WinnerSet:
    """The winners of the parts, as far as they are exported, loaded, and measured as a whole."""

    parts: Mapping[str, Result]  # whose winners are wanted
    whole: WholeMeasured = field(default_factory=WholeMeasured)
    not_exported: Mapping[str, str] = field(default_factory=dict)  # the reason, by part
    winners: Winners = field(default_factory=dict)
    is_shipped: bool = False

    def measure(self, pipeline: object, example: object, evaluate: Evaluate | None, seed: int, folder: Path) -> None:
        """Export the winners into `folder`, and measure the pipeline with them. Interrupted, it keeps what is there."""
        self.not_exported = ship_winners(self.parts, folder)
        self.is_shipped = True
        self.winners = winners_in(folder, pipeline)
        measure_in_turn(pipeline, example, self.winners, self.whole.bursts)
        if evaluate is not None:
            evaluate_sides(pipeline, evaluate, self.winners, seed, self.whole.metrics)


def compare_parts(
    pipeline: object,
    example: object,
    parts: Sequence[str],
    run_parts: RunParts,
    evaluate: Evaluate | str | None = None,
    require: str = "",
    seed: int = 0,
    out: Path | None = None,
) -> PipelineResult:
    """Compare each part with its recorded calls, and then the pipeline with the winners against the original.
    `evaluate`, and what `require` says of its metrics, are of the whole pipeline."""
    required = Requirements.parse(require).of_metrics()
    if evaluate is None:
        required.refuse_metrics()
    function = models.find_evaluate(models.resolve_evaluate(evaluate)) if isinstance(evaluate, str) else evaluate
    modules = {name: part_of(pipeline, name) for name in parts}
    for name, other in itertools.permutations(modules, 2):
        if modules[name] is modules[other]:
            raise UsageError(f"{name} and {other} are the same module: name one of them")
        if modules[name] in set(modules[other].modules()):
            raise UsageError(f"{name} is inside of {other}, whose winner would replace both: name one of them")
    began, begun_s = datetime.now(UTC), time.monotonic()
    folder = (out or RESULTS / f"{began:%Y%m%d-%H%M%S}-{type(pipeline).__name__}-parts").resolve()
    Store.check(folder)
    calls = recorded(pipeline, example, modules)
    if uncalled := [name for name, of_part in calls.items() if not of_part.count]:
        raise UsageError(f"the example call does not call {', '.join(uncalled)}: name parts that `inspect` lists")
    run, was_interrupted = run_parts(modules, calls, folder / PARTS)
    results = results_of_parts(run)
    chosen = _WinnerSet(results)
    missed: Sequence[RequirementMissed] = ()
    failure = ""

    def records() -> list[Record]:
        measured = run.report.records
        return chosen.whole.records(_of_whole(measured[0], pipeline), began) if measured else []

    if not was_interrupted:
        try:
            chosen.measure(pipeline, example, function, seed, folder / WINNERS)
            # where the winners miss what is required, the best builds in fp32 are measured instead
            in_fp32 = {name: _in_fp32(result) for name, result in results.items()}
            if _may_lose_less(in_fp32, results) and (missed := _missed(records(), required)):
                chosen = _WinnerSet(in_fp32, WholeMeasured(metrics={ORIGINAL: chosen.whole.metrics[ORIGINAL]}))
                chosen.measure(pipeline, example, function, seed, folder / WINNERS)
        except KeyboardInterrupt:
            was_interrupted = True
        except Exception as error:  # a call of the user's pipeline, or a winner that does not load
            chosen.whole = WholeMeasured()
            failure = f"the whole pipeline failed while it was measured: {type(error).__name__}: {first_line(error)}"
    with written_to_the_end():
        if not chosen.is_shipped:  # what is there is of another set, or a part of this one
            shutil.rmtree(folder / WINNERS, ignore_errors=True)
        notes = [
            _note(name, result, name in chosen.winners, chosen.not_exported.get(name, ""), was_interrupted)
            for name, result in chosen.parts.items()
        ]
        is_in_fp32 = chosen.parts is not results
        if is_in_fp32:
            notes.append(
                "the winners across precisions miss what is required of the whole pipeline: "
                f"{'; '.join(doubt.unmet for doubt in missed)}. The best builds in fp32 take their place"
            )
        if failure:
            notes.append(failure)
        if was_interrupted:
            notes.append(_what_is_missing(parts, results, chosen.whole, evaluates=function is not None))
        made = records()
        report = run.report.but(
            run_id=folder.name,
            created_at=began.isoformat(timespec="seconds"),
            planned=len(made) or 2,
            complete=run.complete and not was_interrupted,
            command="",
            request={
                **run.report.request,
                "require": str(required),
                **({"precision": [Precision.FP32]} if is_in_fp32 else {}),
            },
            records=made,
            verdicts=[],
            notes=notes,
            elapsed_s=time.monotonic() - begun_s,
        )
        writer.write(report, folder)
        return PipelineResult(result_at(folder).report, folder, results)


def results_of_parts(run: Result) -> dict[str, Result]:
    """Return the result of each part in their common run, as far as it was measured."""
    store = Store(run.folder)
    planned = store.planned
    results = {}
    for model, records in grouped(run.report.records, lambda record: record.cell.model).items():
        ended = [record for record in records if store.has(record.cell.id)]
        if not ended and all(record.status is Status.NOT_REACHED for record in records):
            continue  # the run was interrupted before
        begin = f"{records[0].cell.model_slug}_"
        count = len(
            {*(cell_id for cell_id in planned if cell_id.startswith(begin)), *(record.cell.id for record in records)}
        )
        report = run.report.but(records=records, planned=count, complete=len(ended) == count, verdicts=[])
        results[model.removeprefix(LIVE)] = Result(report, run.folder)
    return results


def ship_winners(parts: Mapping[str, Result], folder: Path) -> dict[str, str]:
    """Export the winner of each part into one folder, and return why a part could not be."""
    return ship(
        {name: (result.folder, cells) for name, result in parts.items() if (cells := cells_to_ship(result))}, folder
    )


def cells_to_ship(result: Result) -> list[str]:
    """Return the ids of the winner's cells, the most frequent size first, and of the first of builds that tie. Return
    none where eager may be as fast, so that the part stays as it is."""
    mix = result.answer.mixes[0] if result.answer.mixes else None
    answer = mix or result.contests[0]
    if not answer.candidates or answer.baseline in answer.candidates:
        return []
    contests = [size.contest_id for size in mix.sizes] if mix else [result.contests[0].contest_id]
    by_contest = {
        record.cell.contest_id: record.cell.id
        for record in result.report.records
        if record.cell.label == answer.candidates[0]
    }
    return [by_contest[contest] for contest in contests]


def _in_fp32(result: Result) -> Result:
    records = [record for record in result.report.records if record.cell.precision is Precision.FP32]
    return Result(result.report.but(records=records), result.folder) if records else result


def _may_lose_less(in_fp32: Mapping[str, Result], results: Mapping[str, Result]) -> bool:
    chosen = [list(map(cells_to_ship, by_part.values())) for by_part in (in_fp32, results)]
    return any(chosen[0]) and chosen[0] != chosen[1]


def _missed(records: Sequence[Record], required: Requirements) -> list[RequirementMissed]:
    return [
        missed
        for record in records
        if record.cell.label == WITH_WINNERS and (original := record.reference_metrics) and not original.failure
        for missed in required.unmet(record)
    ]


def measure_in_turn(
    pipeline: object,
    example: object,
    winners: Winners,
    bursts: dict[str, list[Burst]],
    seconds: float = ROUNDS_OF_WHOLE_S,
) -> None:
    """Call the pipeline as it is and with the winners, in random order in each round, and add the bursts to `bursts`
    one by one. A burst is one call. Without winners there is only the original."""
    sides = _sides(winners)
    for parts in sides.values():
        with replaced(parts, pipeline):
            run_once(pipeline, example)
    bursts.update((label, []) for label in sides)
    begun_s = time.monotonic()
    for number, label in turns(list(sides), seconds, MIN_ROUNDS_OF_WHOLE, MAX_ROUNDS_OF_WHOLE):
        gc.collect()
        with replaced(sides[label], pipeline):
            started_s = time.monotonic() - begun_s
            samples_ns = [_timed_ns(pipeline, example)]
            if samples_ns[0] < SHORT_CALL_NS:
                # the first call found caches that collecting garbage had emptied, so it does not count
                samples_ns = [_timed_ns(pipeline, example) for _ in range(CALLS_OF_SHORT)]
        bursts[label].append(Burst(group=0, round=number, started_s=started_s, samples_ns=samples_ns))


def _timed_ns(pipeline: object, example: object) -> int:
    synchronise()
    start_ns = time.perf_counter_ns()
    run_once(pipeline, example)
    synchronise()
    return time.perf_counter_ns() - start_ns


def evaluate_sides(
    pipeline: object, evaluate: Evaluate, winners: Winners, seed: int, metrics: dict[str, Metrics]
) -> None:
    """Call `evaluate` with the pipeline as it is, and then with the winners in place, from the same random state, and
    keep what it returns. A side that has metrics already keeps them."""
    import torch

    from bakeoff.measuring.worker.evaluating import metrics_of

    for label, parts in _sides(winners).items():
        if label in metrics:
            continue
        with replaced(parts, pipeline), torch.no_grad():
            metrics[label] = metrics_of(lambda: evaluate, lambda: pipeline, {}, seed)


def _sides(winners: Winners) -> dict[str, Winners]:
    return {ORIGINAL: {}, **({WITH_WINNERS: winners} if winners else {})}


def _of_whole(like: Record, pipeline: object) -> Record:
    own = {"model": f"pipeline:{type(pipeline).__name__}", "dimensions": {}, "mode": "default"}
    return Record(cell=like.cell.but(**own, recorded=None, compared=()), status=Status.OK)


def _note(name: str, result: Result, is_placed: bool, reason: str, was_interrupted: bool) -> str:
    mix = result.answer.mixes
    finding = mix[0].finding if mix else result.contests[0].headline
    if is_placed:
        outcome = "its winner is in place"
    elif was_interrupted and not reason and cells_to_ship(result):
        outcome = "its winner was not put in place yet"
    else:
        outcome = f"stays as it is{f' ({reason})' if reason else ''}"
    return f"{name}: {outcome}; {finding}"


def _what_is_missing(parts: Sequence[str], results: Mapping[str, Result], whole: WholeMeasured, evaluates: bool) -> str:
    missing = [f"{name} was not compared" for name in parts if name not in results]
    missing += [f"{name} was compared in part" for name, result in results.items() if not result.complete]
    if not whole.rounds:
        missing.append("the whole pipeline was not measured with the winners")
    elif whole.rounds < MIN_ROUNDS_OF_WHOLE:
        missing.append(f"the whole pipeline was called in {whole.rounds} of at least {MIN_ROUNDS_OF_WHOLE} rounds")
    if evaluates and len(whole.metrics) < max(1, len(whole.bursts)):
        missing.append("evaluate was not called for both sides")
    return f"interrupted: {'; '.join(missing) or 'nothing is missing'}"


def open_run(run: str | Path) -> Result:
    """Return the result of any run: of `bakeoff.compare`, or of the command line.

    Args:
        run: The folder of the run, its `report.json`, or the name of a folder in `results/`.

    Returns:
        The result. It is a `PipelineResult` for a run of `parts`.

    Raises:
        bakeoff.UsageError: Where there is no run.
    """
    path = Path(run)
    if not path.exists() and (RESULTS / path).is_dir():
        path = RESULTS / path
    result = result_at(path)
    parts = result.folder / PARTS
    if not parts.is_dir():
        return result
    return PipelineResult(result.report, result.folder, results_of_parts(result_at(parts)))
