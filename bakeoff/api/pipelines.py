"""Several models of one pipeline: a contest of each part, and then the whole pipeline with the winners in place."""

from __future__ import annotations

import gc
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from bakeoff.api.result import RESULTS, Ratio, Result, open_run
from bakeoff.judging.fit import summarise
from bakeoff.judging.ranking import ORIGINAL, WITH_WINNERS
from bakeoff.judging.whole_pipelines import WholePipeline, judge_whole
from bakeoff.models.calls_file import Calls
from bakeoff.models.pipeline_parts import part_of, recorded, replaced, run_once, synchronise
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Burst, Cell, Process, Record, Status
from bakeoff.records.text import spell_ms
from bakeoff.reports import writer
from bakeoff.shipping.pipelines import load_parts, ship, winners_in

WINNERS = "winners"
"""The folder in a run's own that holds the winners of all parts."""

FEWEST_ROUNDS = 8
MOST_ROUNDS = 40
ROUNDS_S = 20.0
"""The pipeline is called in turn as it was and with the winners, for so long and for at least so many rounds."""

ComparePart = Callable[[Any, Calls, Mapping[str, Any], Path], Result]


@dataclass(frozen=True, repr=False)
class PipelineResult(Result):
    """The result of `compare(..., parts=[...])`: its one contest is that of the whole pipeline, in this process."""

    parts: Mapping[str, Result] = field(default_factory=dict)
    """The result of each part."""

    @cached_property
    def whole(self) -> WholePipeline | None:
        """The pipeline with the winners against the original; None where no part has a winner to put in place."""
        by_label = {record.cell.label: record for record in self.report.records}
        return judge_whole(by_label[ORIGINAL], by_label[WITH_WINNERS]) if WITH_WINNERS in by_label else None

    @property
    def speedup(self) -> Ratio | None:
        """How many times faster a call of the pipeline is with the winners than it was."""
        if self.whole is None:
            return None
        ratio = self.whole.speedup
        return Ratio(ratio.value, ratio.ci95.low if ratio.ci95 else None, ratio.ci95.high if ratio.ci95 else None)

    def apply(self, pipeline: object, anyway: bool = False) -> None:
        """Put the winners in place of the pipeline's parts. Only their `forward` is replaced.

        Args:
            pipeline: The one that was compared, or one like it.
            anyway: Also where the pipeline was slower with them.

        Raises:
            bakeoff.UsageError: Where no part has a winner, or the pipeline was slower with the winners.
        """
        self._require_gain(anyway)
        load_parts(self.folder / WINNERS, pipeline)

    def save(self, folder: str | Path, label: str | None = None) -> Path:
        """Write the winners of all parts into a new folder, for `bakeoff.load_parts(folder, pipeline)`."""
        if label is not None:
            raise UsageError("a pipeline's winners are saved together: use `parts[name].save(folder, label)` for one")
        self._require_gain(anyway=False)
        if Path(folder).exists():
            raise UsageError(f"{folder} is there already: name a new folder")
        return Path(shutil.copytree(self.folder / WINNERS, folder))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def _require_gain(self, anyway: bool) -> None:
        if self.whole is None:
            raise UsageError(f"no part has a winner to put in place: {'; '.join(self.report.notes)}")
        if self.whole.loses and not anyway:
            raise UsageError(
                f"the pipeline is slower with the winners: {spell_ms(self.whole.winners_ms)} a call, and "
                f"{spell_ms(self.whole.original_ms)} as it was. Compare fewer parts, or apply(..., anyway=True)"
            )


def compare_parts(
    pipeline: object,
    example: object,
    parts: Sequence[str],
    compare_part: ComparePart,
    fields: Mapping[str, Any],
    out: Path | None,
) -> PipelineResult:
    """Compare each part with its recorded calls, and then the pipeline with the winners against the original."""
    modules = {name: part_of(pipeline, name) for name in parts}
    run_once(pipeline, example)
    calls = recorded(pipeline, example, modules)
    if uncalled := [name for name, of_part in calls.items() if not of_part.count]:
        raise UsageError(f"the example call does not call {', '.join(uncalled)}: name parts that `inspect` lists")
    began = datetime.now(UTC)
    folder = (out or RESULTS / f"{began:%Y%m%d-%H%M%S}-{type(pipeline).__name__}-parts").resolve()
    results = {
        name: compare_part(module, calls[name], {**_precision_of(module), **fields}, folder / name.replace(".", "-"))
        for name, module in modules.items()
    }
    chosen = {name: (each.folder, cells) for name, each in results.items() if (cells := cells_to_ship(each))}
    left = ship(chosen, folder / WINNERS)
    winners = winners_in(folder / WINNERS, pipeline)
    bursts = measure_in_turn(pipeline, example, winners)
    like = next(iter(results.values())).report
    own = {"model": f"pipeline:{type(pipeline).__name__}", "dimensions": {}, "mode": "default"}
    cell = like.records[0].cell.model_copy(update={**own, "recorded": None, "compared": ()})
    made = [_record(cell, label, taken, began) for label, taken in bursts.items()]
    report = like.model_copy(
        update={
            "run_id": folder.name,
            "created_at": began.isoformat(timespec="seconds"),
            "planned": len(made),
            "complete": all(each.complete for each in results.values()),
            "command": "",
            "records": made,
            "verdicts": [],
            "notes": [_note(name, each, name in winners, left.get(name, "")) for name, each in results.items()],
            "elapsed_s": (datetime.now(UTC) - began).total_seconds(),
        }
    )
    writer.write(report, folder)
    opened = open_run(folder)
    return PipelineResult(opened.report, opened.folder, results)


def cells_to_ship(result: Result) -> list[str]:
    """Return the ids of the winner's cells, the most frequent size first; none where the part had best stay as it is.

    Among builds that tie, it is the first one. Where eager may be as fast, the part stays.
    """
    mix = result.answer.mixes[0] if result.answer.mixes else None
    answer = mix or result.contests[0]
    candidates = [answer.winner] if answer.winner else [*answer.tied, *answer.open]
    if not candidates or answer.baseline in candidates:
        return []
    contests = [size.contest_id for size in mix.sizes] if mix else [result.contests[0].contest_id]
    by_contest = {
        record.cell.contest_id: record.cell.id for record in result.report.records if record.cell.label == candidates[0]
    }
    return [by_contest[contest] for contest in contests]


def measure_in_turn(
    pipeline: object, example: object, winners: Mapping[str, Callable[..., Any]], seconds: float = ROUNDS_S
) -> dict[str, list[Burst]]:
    """Call the pipeline as it is and with the winners, in random order in each round. A burst is one call."""
    sides = {ORIGINAL: {}, **({WITH_WINNERS: winners} if winners else {})}
    bursts: dict[str, list[Burst]] = {label: [] for label in sides}
    for parts in sides.values():
        with replaced(parts, pipeline):
            run_once(pipeline, example)
    order, begun_s = random.Random(0), time.monotonic()
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and time.monotonic() - begun_s > seconds:
            break
        for label in order.sample(list(sides), len(sides)):
            gc.collect()
            with replaced(sides[label], pipeline):
                synchronise()
                started_s, start_ns = time.monotonic() - begun_s, time.perf_counter_ns()
                run_once(pipeline, example)
                synchronise()
                taken_ns = time.perf_counter_ns() - start_ns
            bursts[label].append(Burst(group=0, round=number, started_s=started_s, samples_ns=[taken_ns]))
    return bursts


def _record(cell: Cell, label: str, bursts: list[Burst], began: datetime) -> Record:
    latency = summarise(bursts)
    assert latency is not None
    return Record(
        cell=cell.model_copy(update={"backend": label}),
        status=Status.OK,
        bursts=bursts,
        latency=latency,
        processes=[Process(index=0, warm=False, phases=[], calls=latency.calls, median_ms=latency.median_ms)],
        started_at=began.isoformat(timespec="seconds"),
    )


def _precision_of(module: Any) -> dict[str, Any]:
    """Return the precision of a part whose weights are narrower than float32, as a field of a request."""
    kinds = {str(weight.dtype) for weight in module.parameters()}
    narrow = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(kinds.pop()) if len(kinds) == 1 else None
    return {"precision": (narrow,)} if narrow else {}


def _note(name: str, result: Result, is_placed: bool, reason: str) -> str:
    mix = result.answer.mixes
    told = mix[0].finding if mix else result.contests[0].headline
    outcome = "its winner is in place" if is_placed else f"stays as it is{f' ({reason})' if reason else ''}"
    return f"{name}: {outcome}; {told}"
