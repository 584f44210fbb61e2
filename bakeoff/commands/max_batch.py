"""Finds the largest batch that fits into memory and meets what is required, for each backend: `bakeoff max-batch`."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import computed_field

from bakeoff.commands import run as runs
from bakeoff.commands.environments import with_interpreters
from bakeoff.commands.preview import spell_seconds
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.estimate import MIN_UNDISTURBED_SHARE, undisturbed_rounds
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.session import may_use_cuda
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request, RunOverrides
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records.errors import INTERRUPTED, UsageError
from bakeoff.records.schema import Frozen, Record, Status
from bakeoff.records.store import Store
from bakeoff.records.text import first, listed
from bakeoff.reports import markdown
from bakeoff.reports.blocks import Block, Items, Look
from bakeoff.reports.console import answered, console_for, print_blocks, say, stderr, write
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.number_format import ending, mebibytes, milliseconds, peak_memory, rate_at_least
from bakeoff.reports.tables import Column, Table

BATCH = "batch"

NARROW = 8
"""The search ends when the smallest batch that is too large is at most one eighth above the largest that is not."""


MOST_TRIES = 4
"""A batch that misses a requirement is measured so often at most while other programs disturb the measurement."""


class BatchTried(Frozen):
    """A backend at one batch."""

    batch: int
    reason: str = ""  # why this batch is too large; empty if it is not
    status: Status = Status.OK
    median_ms: float | None = None
    samples_per_s: float | None = None
    is_lower_bound: bool = False  # other load held the rate down
    is_disturbed: bool = False  # too few of its rounds were undisturbed
    peak_bytes: int | None = None  # of the device on a GPU, and else of the process

    @classmethod
    def measured(cls, batch: int, record: Record, required: Requirements) -> "BatchTried":
        """Return what a record says of its batch. Without throughput, the rate is that of single calls."""
        reason = "" if record.status is Status.OK else f"{ending(record)}: {record.reason}"
        median_ms = record.latency.median_ms if record.latency else None
        is_disturbed = undisturbed_rounds(record.bursts) < MIN_UNDISTURBED_SHARE * len(record.bursts)
        unmet = "; ".join(missed.unmet for missed in required.unmet(record))
        calls_per_s = record.throughput.calls_per_s if record.throughput else median_ms and 1000 / median_ms
        return cls(
            batch=batch,
            reason=reason or (f"on a busy machine: {unmet}" if unmet and is_disturbed else unmet),
            status=record.status,
            median_ms=median_ms,
            samples_per_s=calls_per_s and calls_per_s * batch,
            is_lower_bound=record.is_throughput_doubtful,
            is_disturbed=is_disturbed,
            peak_bytes=peak_memory(record)[0],
        )

    @property
    def rate(self) -> str:
        return rate_at_least(self.samples_per_s, self.is_lower_bound)


class BatchSearch(Frozen):
    """The batches of one backend so far: doubled until one is too large, and then between these two."""

    label: str
    most: int  # no larger batch is tried
    tried: tuple[BatchTried, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def largest(self) -> BatchTried | None:
        """Return the largest batch that is not too large."""
        return max((one for one in self.tried if not one.reason), key=lambda one: one.batch, default=None)

    @property
    def too_large(self) -> BatchTried | None:
        fits = self.largest.batch if self.largest else 0
        return min((one for one in self.tried if one.batch > fits), key=lambda one: one.batch, default=None)

    @property
    def next_batch(self) -> int | None:
        """Return the batch to try next, or None at the end of the search."""
        last = self.tried[-1] if self.tried else None
        if last and last.reason and last.status is Status.OK:
            # One bad second would end the doubling too early, so a batch that misses a requirement is tried again.
            tries = [one.is_disturbed for one in self.tried if one.batch == last.batch]
            if len(tries) < (MOST_TRIES if all(tries) else 2):
                return last.batch
        if self.largest is None:
            return None if self.tried else 1
        low = self.largest.batch
        if self.too_large is None:
            return min(2 * low, self.most) if low < self.most else None
        high = self.too_large.batch
        return (low + high) // 2 if high - low > max(1, low // NARROW) else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def finding(self) -> str:
        """Say `onnx: batch 64, 12,300 samples/s, 5.21 ms; 72 is too large (p99_ms is 6.1, not < 5)`."""
        best, above = self.largest, self.too_large
        if best is None:
            return f"{self.label}: no batch{f' ({above.reason})' if above else ' was tried'}"
        rate = f", {best.rate} samples/s" if best.samples_per_s else ""
        said = f"{self.label}: batch {best.batch}{rate}, {milliseconds(best.median_ms)} ms"
        if above:
            return f"{said}; {above.batch} is too large ({above.reason})"
        return f"{said}; nothing larger was tried"


class MaxBatchAnswer(Frozen):
    """What `bakeoff max-batch --json` prints."""

    required: str
    complete: bool  # False: it was interrupted, or --budget was over
    searches: tuple[BatchSearch, ...]
    folder: str

    def blocks(self) -> list[Block]:
        tried = [(one.label, step) for one in self.searches for step in sorted(one.tried, key=lambda step: step.batch)]
        columns: list[Column[tuple[str, BatchTried]]] = [
            Column("backend", lambda row: row[0], is_text=True),
            Column(BATCH, lambda row: row[1].batch),
            Column("median ms", lambda row: row[1].median_ms, write=milliseconds),
            Column("samples/s", lambda row: row[1].rate),
            Column("peak MiB", lambda row: row[1].peak_bytes, write=mebibytes),
            Column("", lambda row: row[1].reason or "fits", is_text=True),
        ]
        return [Table(columns, tried), Items([search.finding for search in self.searches], look=Look.STRONG, bullet="")]


def begin(request: Request, most: int) -> list[BatchSearch]:
    """Return a search for each configuration of `request`, which is one contest but for its batch. Raise UsageError for
    several contests, for a model without the dimension, and for a CPU without a requirement."""
    if BATCH in request.set:
        raise UsageError(f"the search chooses the batch: leave out --set {BATCH}")
    if request.runs or request.load:
        raise UsageError("max-batch measures single calls of one model: leave out --load and [[run]]")
    devices = request.devices or ("cpu",)
    if not request.require and not may_use_cuda(request):
        raise UsageError("a CPU's memory takes batches that nobody waits for: say what must hold, --slo 'p99_ms<50'")
    contests = plan(with_interpreters(request).but(devices=devices, set={**request.set, BATCH: ("1",)}))
    if len(contests) != 1 or len(request.precision) != 1:
        raise UsageError("max-batch is of one contest: name one model, one value for each size, and one precision")
    return [BatchSearch(label=planned.cell.configuration, most=most) for planned in contests[0].cells]


Measure = Callable[[Mapping[str, int]], Mapping[str, BatchTried]]
"""Measures each of these backends at its batch. What was not measured is missing."""


def search(searches: Sequence[BatchSearch], measure: Measure) -> list[BatchSearch]:
    """Take steps until each search has ended. An interruption, or a step that lacks a backend, ends them all."""
    ended = {one.label: one for one in searches}
    with suppress(KeyboardInterrupt):
        while wanted := {label: batch for label, one in ended.items() if (batch := one.next_batch) is not None}:
            measured = measure(wanted)
            for label, tried in measured.items():
                ended[label] = ended[label].but(tried=(*ended[label].tried, tried))
            if measured.keys() != wanted.keys():
                break
    return list(ended.values())


@dataclass
class Steps:
    """Measures each step in a run of its own. Its cells are alone on the machine, one after another."""

    folder: Path
    request: Request
    command: str
    progress: Callable[[], AbstractContextManager[Progress]]
    begun_s: float = field(default_factory=time.monotonic)
    count: int = 0
    was_interrupted: bool = False

    def __call__(self, wanted: Mapping[str, int]) -> dict[str, BatchTried]:
        self.count += 1
        each = tuple(RunOverrides(backends=(label,), set={BATCH: (str(batch),)}) for label, batch in wanted.items())
        request = self.request.but(runs=each, schedule="sequential", no_artifacts=True)
        folder = self.folder / f"step-{self.count}"
        self.was_interrupted = True  # unless the run comes to its end
        with self.progress() as shown:
            report, _ = runs.run(request, folder, self.command, shown, self.begun_s)
        self.was_interrupted = not report.complete
        return {
            record.cell.configuration: BatchTried.measured(wanted[record.cell.configuration], record, request.require)
            for record in report.records
            if record.status is not Status.NOT_REACHED
        }


def find(request: Request, most: int, out: Path | None, command: str, quiet: bool, as_json: bool) -> int:
    """Search, print and write what was found. Return 1 where a backend has no batch, and 130 after an interruption; a
    budget that is over is none."""
    searches = begin(request, most)
    folder = out or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}-max-batch"
    Store.check(folder)
    console = console_for(as_json)
    steps = Steps(folder, request, command, lambda: LiveTable(console, quiet, requirements=request.require))
    found = search(searches, steps)
    complete = all(one.next_batch is None for one in found)
    answer = MaxBatchAnswer(required=request.require.text, complete=complete, searches=tuple(found), folder=str(folder))
    write(folder / "max-batch.md", lambda: markdown.render(answer.blocks()))
    if steps.was_interrupted:
        say("Not finished: what was found so far follows.", stderr)
    elif not complete:
        say(f"The budget was over: what was found so far follows. {_what_would_do(request, found)}", stderr)
    status = INTERRUPTED if steps.was_interrupted else int(any(one.largest is None for one in found))
    return answered(answer, status, as_json, lambda: print_blocks(answer.blocks()))


def _what_would_do(request: Request, searches: Sequence[BatchSearch]) -> str:
    """Say about how much longer the budget must be for the next batch of each backend that has not ended its search."""
    sampling, ahead = request.sampling, [one.label for one in searches if one.next_batch is not None]
    time_plan = TimePlan(sampling)
    for label in ahead:
        time_plan.expect(label, [label], sampling.processes)
    return f"About {spell_seconds(time_plan.left_s())} more would do for the next batch of {listed(first(ahead))}."
