"""`--check-only`: every cell is built and compared with the reference. None is timed, so the machine may be busy."""

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bakeoff.commands.run import failures_of, lacking_of, resolved
from bakeoff.measuring.controller import groundwork
from bakeoff.measuring.controller.cell_record import doubts_of_ready, record_of, refused, wrong_outputs
from bakeoff.measuring.controller.cell_run import CellEnded, CellRun
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Silent
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.messages import ProbeTorch, TorchFacts
from bakeoff.measuring.probes import ask, launchers_for
from bakeoff.measuring.session import completed_contests, on_this_machine
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import OPTIONS, Request
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records import doubts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import INTERRUPTED, UsageError
from bakeoff.records.grouping import grouped
from bakeoff.records.report_file import CHECKS_JSON
from bakeoff.records.schema import Accuracy, Frozen, Record, Status
from bakeoff.records.store import Store
from bakeoff.records.text import counted, listed, one_line
from bakeoff.records.traits import NO_TRAITS, ModelTraits
from bakeoff.reports.blocks import Block, Items, Section, Text
from bakeoff.reports.number_format import error
from bakeoff.reports.tables import text_table
from bakeoff.reports.traits import about

CALLS_S = 0.02
"""The seconds of calls in which a build warms up. They show that it works, not how fast it is."""

OF_MEASURING = (
    "load",
    "slo",
    "soak_s",
    "starts",
    "calls",
    "require",
    "evaluate",
    "budget",
    "strict",
    "cluster",
    "price",
)
"""Fields of a request that ask for more than builds and their outputs."""


Checked = tuple[Record, Accuracy | None]


class Check(Frozen):
    """How one build came out."""

    model: str
    contest: str  # title of the model with its sizes, device and precision
    label: str
    status: Status
    reason: str = ""
    relative_error: float | None = None  # RMSE / root mean square of the reference
    unchecked: str = ""  # why outputs could not be compared
    doubts: tuple[str, ...] = ()  # what else differs from the model, such as a print that the build drops
    log_tail: str = ""


class ChecksAnswer(Frozen):
    """What `bakeoff --check-only --json` prints."""

    finding: str
    complete: bool
    checks: list[Check]
    left_out: list[str]  # files of a pattern that hold no model, with the reason
    exit_reason: str  # why the exit status is 1 or 3; empty for any other one
    about_models: list[str]  # what a model does beside computing outputs, such as drawing random numbers


def built_and_checked(planned: PlannedCell, run: RunContext) -> Checked:
    """Build, call and compare the cell in one process, or in two where it is built ahead of time."""
    cell_run = CellRun(planned, run)
    try:
        cell_run.start()
        ready = cell_run.process.warm
        failure = None if cell_run.is_right else wrong_outputs(ready.accuracy)
        status = Status.INCORRECT if failure else Status.OK
        traits = run.store.facts(planned.cell.reference_id, ModelTraits)
        found = doubts_of_ready(ready, traits or NO_TRAITS)
        return record_of(planned, status, failure, doubts=found, traits=traits), ready.accuracy
    except CellEnded as ended:
        return ended.record, None
    finally:
        cell_run.clear()


def run_for(launchers: Launchers, store: Store, request: Request) -> RunContext:
    """Return what the cells of a contest have in common that are built and compared, and not measured."""
    sampling = SamplingPlan.lasting(CALLS_S, processes=1)
    return RunContext(
        launchers=launchers,
        store=store,
        progress=Silent(),
        request=request,
        sampling=sampling,
        time_plan=TimePlan(sampling),
        headers=Headers(store, Silent()),
    )


def check(request: Request, say: Callable[[Check], None]) -> tuple[ChecksAnswer, int]:
    """Build and compare every cell of the request, and return what came out with the exit status. A KeyboardInterrupt
    ends it with what there is. Raise UsageError for a wrong request."""
    defaults = Request()
    for name in OF_MEASURING:
        if getattr(request, name) != getattr(defaults, name):
            raise UsageError(f"--check-only times nothing: leave {OPTIONS[name].flags[0]} out")
    if request.is_pool:
        raise UsageError("--check-only builds one cell after the other: name a device, and no pool of them")
    request, left_out = resolved(request, prepare=True)
    records: list[Record] = []
    checks: list[Check] = []
    planned = 0
    try:
        with launchers_for(request) as launchers:
            request = on_this_machine(request, ask(launchers.first, ProbeTorch(), TorchFacts))
            contests = completed_contests(request, launchers)
            planned = sum(len(contest.cells) for contest in contests)
            for contest in contests:
                for record, accuracy in _checked(contest, request, launchers):
                    records.append(record)
                    checks.append(_check(record, accuracy))
                    say(checks[-1])
    except KeyboardInterrupt:
        pass  # what was checked is reported, and the answer is not complete
    complete = 0 < planned == len(records)
    finding = finding_of(checks)
    if not complete:
        of_tried = f": {finding}" if any(not check.status.is_absence for check in checks) else ""
        finding = f"interrupted after {len(checks)} of {counted(planned, 'build')}{of_tried}"
    by_contest = itertools.groupby(records, lambda record: (record.cell.title, record.cell.model))
    about_models = about([(model, list(of_contest)) for (_, model), of_contest in by_contest])
    status, reason = ending_of(records) if complete else (INTERRUPTED, "")
    answer = ChecksAnswer(
        finding=finding,
        complete=complete,
        checks=checks,
        left_out=left_out,
        exit_reason=reason,
        about_models=about_models,
    )
    return answer, status


def _checked(contest: Contest, request: Request, launchers: Launchers) -> Iterator[Checked]:
    folder = launchers.first.temporary / "checked"
    for own in contest.by_reference:
        store = Store.create(folder, request, [], "bakeoff --check-only")
        try:
            yield from _checked_against_reference(own, request, launchers, store)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _checked_against_reference(
    contest: Contest, request: Request, launchers: Launchers, store: Store
) -> Iterator[Checked]:
    sensible = []
    for planned in contest.cells:
        if record := refused(planned):
            yield record, None
        else:
            sensible.append(planned)
    if not sensible:
        return
    try:
        own = Contest(contest.id, tuple(sensible))
        run = run_for(launchers, store, request)
        groundwork.reference(own, run, request.time_limit_s)
    except groundwork.NoReference as error:
        for planned in sensible:
            yield record_of(planned, error.status, error.failure.but(log=""), log_tail=error.log_tail), None
        return
    for planned in sensible:
        yield built_and_checked(planned, run)


def _check(record: Record, accuracy: Accuracy | None) -> Check:
    rmse = accuracy.relative_rmse if accuracy and accuracy.has_errors else None
    return Check(
        model=record.cell.model,
        contest=record.cell.title,
        label=record.cell.label,
        status=record.status,
        reason=record.reason,
        relative_error=None if rmse is None or math.isnan(rmse) else rmse,
        unchecked=accuracy.unchecked if accuracy else "",
        doubts=tuple(
            doubt.say()
            for doubt in record.doubts
            if doubt.worst is doubts.Effect.WINNER and not isinstance(doubt, doubts.Unchecked)
        ),
        log_tail=record.log_tail,
    )


def finding_of(checks: Sequence[Check]) -> str:
    """Return the first line of the answer: how many builds are right, and which are not."""
    tried = [check for check in checks if not check.status.is_absence]
    wrong = [check for check in tried if check.status is Status.INCORRECT]
    failed = [check for check in tried if check.status.is_failure and check not in wrong]
    unchecked = [check for check in tried if check.unchecked and check.status is Status.OK]
    doubted = [check for check in tried if check.doubts and check.status is Status.OK and check not in unchecked]
    if not tried:
        return "nothing could be built here"
    said = {
        f"{len(wrong)} of {counted(len(tried), 'build')} {'is' if len(wrong) == 1 else 'are'} wrong": wrong,
        f"{len(failed)} of {counted(len(tried), 'build')} failed": failed,
        f"outputs of {len(unchecked)} could not be compared in full": unchecked,
        f"outputs of {len(doubted)} are right, with a doubt": doubted,
    }
    parts = [f"{text}: {_named(some, tried)}" for text, some in said.items() if some]
    return "; ".join(parts) or (f"all {len(tried)} builds are right" if len(tried) > 1 else "the only build is right")


def _named(some: Sequence[Check], tried: Sequence[Check]) -> str:
    """Return the labels by contest, or `all` where every build of a contest is among them."""
    counts = Counter(check.contest for check in tried)
    return "; ".join(
        f"{'all' if len(its) == counts[contest] > 1 else listed([check.label for check in its])} of {contest}"
        for contest, its in grouped(some, lambda check: check.contest).items()
    )


def ending_of(records: Sequence[Record]) -> tuple[int, str]:
    """Return 0, 1 if a build is wrong or failed or one that was named is missing, or 3 if nothing was built, and why it
    is not 0."""
    if all(record.status.is_absence for record in records):
        return 3, "nothing could be built here"
    reasons = [*failures_of(records), *lacking_of(records, lambda record: record.status is Status.OK)]
    return int(bool(reasons)), "; ".join(reasons)


def line_of(check: Check) -> str:
    """Return the line that is shown when a build was checked."""
    off = "" if check.relative_error is None else f", relative error {error(check.relative_error)}"
    reason = "; ".join(_reasons_of(check))
    return one_line(f"{check.status} {check.label} of {check.contest}{off}{f': {reason}' if reason else ''}")


def _reasons_of(check: Check) -> list[str]:
    return [*filter(None, [check.reason or check.unchecked]), *check.doubts]


def blocks_of(answer: ChecksAnswer) -> list[Block]:
    """Return the finding, and for each contest a table of its builds, with each reason once below it."""
    blocks: list[Block] = [Text(answer.finding)]
    for title, of_contest in grouped(answer.checks, lambda check: check.contest).items():
        tried = [check for check in of_contest if not check.status.is_absence]
        rows = [[check.label, check.status.value, error(check.relative_error)] for check in tried]
        reasons = [(check.label, (check.status.value, reason)) for check in of_contest for reason in _reasons_of(check)]
        said = [
            f"{', '.join(label for label, _ in alike)} {status}: {reason}"
            for (status, reason), alike in grouped(reasons, lambda pair: pair[1]).items()
        ]
        table = text_table(["backend", "", "relative error"], rows, "llr")
        blocks.append(Section(title, [table, Items(said)]))
    return [*blocks, *(Text(f"{sentence}.") for sentence in answer.about_models)]


def write(answer: ChecksAnswer, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKS_JSON
    write_atomically(path, answer.model_dump_json(indent=1))
    return path
