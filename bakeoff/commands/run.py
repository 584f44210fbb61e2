"""A whole run: plan, references, contests, records on disk, report. Everything else hangs on this straight line."""

import contextlib
import importlib.util
import math
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bakeoff import backends, models
from bakeoff.commands.environments import with_interpreters
from bakeoff.judging.environment_changes import within_run
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.stored_report import is_complete, report_of
from bakeoff.measuring.controller.cell_record import INTERRUPTED_BEFORE, not_reached
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.messages import TryBackend
from bakeoff.measuring.probes import launchers_for, why_not
from bakeoff.measuring.same_model import require_same_model
from bakeoff.measuring.session import completed_contests, describe_machine, measure, on_this_machine, servers_of
from bakeoff.measuring.versions import untested_torch
from bakeoff.models.base import Family
from bakeoff.planning.places import places_of
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request, RunOverrides
from bakeoff.planning.time_plan import end_of_budget, reserved_for_starts_s
from bakeoff.records.device import Device
from bakeoff.records.errors import INTERRUPTED, NOTHING_YET, BakeoffError, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Environment, Record, Report, Status
from bakeoff.records.store import OF_ANOTHER_VERSION, Store, what_is_kept_in
from bakeoff.records.text import counted, first, listed
from bakeoff.reports.console import console_for, print_json, say, stderr, write_and_print, written_to_the_end
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.live_table import LiveTable
from bakeoff.scaling.cluster import Cluster
from bakeoff.scaling.pool import Pool


@dataclass(frozen=True)
class Prepared:
    """The contests of a run, and what measures them: this machine, a pool of places of it, or a cluster."""

    request: Request
    contests: Sequence[Contest]
    environment: Environment | None  # None: that of a cluster is known when its first node begins
    measure: Callable[[Store, Progress], None]


def run(
    request: Request, folder: Path | None, command: str, progress: Progress, begun_s: float | None = None
) -> tuple[Report, Store]:
    """Carry out `request` in `folder` (default: results/<time>-<models>-<devices>).

    A time budget counts from `begun_s`, of the monotonic clock, or else from now.
    Raises UsageError before anything is measured where the request or the folder is wrong. A KeyboardInterrupt ends the
    measuring, once the run has a folder: the report then ranks what was measured so far, and is not `complete`.
    """
    if request.load and importlib.util.find_spec("mlperf_loadgen") is None:
        raise UsageError("--load needs MLPerf's load generator: pip install mlcommons-loadgen")
    begun_s = time.monotonic() if begun_s is None else begun_s
    budget_ends_s = end_of_budget(begun_s, request.budget.seconds if request.budget else None)
    store: Store | None = None
    with _reserved(folder), contextlib.ExitStack() as held:
        request, left_out = resolved(request, prepare=True)
        try:
            with _prepared(request, budget_ends_s) as prepared:
                store = _begun(prepared, folder, command, progress, left_out)
                held.enter_context(_measuring_in(store))
                prepared.measure(store, progress)
            _add_starts(prepared.request, store, progress, budget_ends_s)
        except KeyboardInterrupt:
            if store is None or store.environment() is None:
                raise KeyboardInterrupt(NOTHING_YET) from None
        with written_to_the_end():
            return report_of(store), store


@contextlib.contextmanager
def _measuring_in(store: Store) -> Iterator[None]:
    """Hold the run, and add to an error inside of the block what to do with what was measured."""
    with store.measured_here():
        try:
            yield
        except UsageError:
            raise
        except BakeoffError as error:
            raise BakeoffError(f"{error}; {what_is_kept_in(store.root)}") from error


@contextlib.contextmanager
def _reserved(folder: Path | None) -> Iterator[None]:
    """Make the folder that was named for a run, and remove it again where the block ends before the run has a plan."""
    is_new = folder is not None and not folder.exists()
    if folder is not None:
        Store.check(folder)
    try:
        yield
    except BaseException:
        if is_new and folder is not None:
            with contextlib.suppress(OSError):  # it is not empty: the run has begun
                folder.rmdir()
        raise


def _begun(prepared: Prepared, folder: Path | None, command: str, progress: Progress, left_out: Sequence[str]) -> Store:
    """Begin a run in `folder`."""
    request, captured = prepared.request, prepared.environment
    planned = [cell for contest in prepared.contests for cell in contest.cells]
    ahead = [not_reached(cell, INTERRUPTED_BEFORE) for cell in planned]
    ids = [cell.cell.id for cell in planned]
    store = Store.create(folder or _default_folder(request), request, ids, command, ahead)
    untested = untested_torch(captured.versions.get("torch", "")) if captured else ""
    for note in filter(None, [*left_out, untested]):
        store.note(note)
        progress.note(note)
    if captured:
        store.save_environment(captured)
    return store


@contextlib.contextmanager
def _prepared(
    request: Request, budget_ends_s: float = math.inf, own_variables: Mapping[str, str] | None = None
) -> Iterator[Prepared]:
    """Yield what the request asks for. Raises UsageError where a node lacks the `own_variables` of an earlier part."""
    if not request.cluster:
        with launchers_for(request, 1 if request.is_pool else servers_of(request)) as launchers:
            facts, captured = describe_machine(launchers, request)
            request = on_this_machine(request, facts)
            contests = completed_contests(request, launchers)
            measured_by_s = budget_ends_s - reserved_for_starts_s(request, contests)
            if not request.is_pool:
                here = partial(measure, launchers, contests, request, budget_ends_s=measured_by_s)
                yield Prepared(request, contests, captured, here)
                return
        places = places_of(request.devices, usable_cores())
        with Pool(places, request, contests) as pool:
            yield Prepared(request, contests, pool.begin(), partial(pool.measure, budget_ends_s=measured_by_s))
        return
    with Cluster(request.cluster) as cluster:
        if own_variables:
            cluster.require_own_variables(own_variables)
        request = cluster.request_for(request)
        with launchers_for(request) as launchers:
            contests = completed_contests(request, launchers)
        yield Prepared(request, contests, None, partial(cluster.measure, request, contests))


def _add_starts(request: Request, store: Store, progress: Progress, budget_ends_s: float = math.inf) -> None:
    if request.starts and all(map(store.has, store.planned)):
        from bakeoff.shipping.start_runs import add_starts  # it imports much, and few runs need it

        add_starts(store, request.require, progress.note, budget_ends_s)


def resume(folder: Path, progress: Progress) -> tuple[Report, Store]:
    """Measure the cells of an earlier run that have no record yet, from the last epoch of their contest on.

    Those that failed on a full disk are measured again.
    In another environment a contest that has not ended begins anew: its processes would not be comparable. There is no
    time budget. Raises UsageError where `folder` holds no run, and where a file that the model comes from or a variable
    that it reads has changed.
    """
    store = Store.open(folder)
    request = request_of(store)
    require_same_model(store)
    store.forget_left()

    # wherever an interruption comes, what was measured is reported
    with _measuring_in(store), contextlib.suppress(KeyboardInterrupt):
        with _prepared(request, own_variables=store.own_variables()) as prepared:
            _go_on_in(prepared, store)
            prepared.measure(store, progress)
        _add_starts(prepared.request, store, progress)
    with written_to_the_end():
        return report_of(store), store


def _go_on_in(prepared: Prepared, store: Store) -> None:
    """Note what has changed since the run was interrupted, and forget what cannot be gone on with."""
    if not is_complete(store):
        anew = ", and processes that were unfinished were measured anew" if store.has_unfinished_processes() else ""
        now = datetime.now(UTC)
        store.was_resumed(now.isoformat(timespec="seconds"))
        store.note(f"resumed at {now:%Y-%m-%d %H:%M:%S} UTC: what was missing was measured from then on{anew}")
    before, captured, contests = store.environment(), prepared.environment, prepared.contests
    if captured is None:
        return
    if before is None:
        store.save_environment(captured)
    elif changed := within_run(before, captured):
        store.note(f"resumed in another environment ({'; '.join(map(str, changed))}): do not compare across it")
        for contest in contests:
            if store.unfinished(contest.id):
                store.note(f"{contest.id} began anew in this environment, and was built anew")
            store.forget(contest.id, [planned.cell.build_id for planned in contest.cells])
    for contest in contests:
        have_ended = {store.has(planned.cell.id) for planned in contest.cells}
        if have_ended == {True, False} and not store.unfinished(contest.id):
            store.note(f"interrupted and resumed: cells of {contest.id} measured before and after share no rounds")


def resolved(request: Request, prepare: bool) -> tuple[Request, list[str]]:
    """Return the request with interpreters, files and models by their full names, and why files were left out. A full
    name fixes a hub's commit, so that all cells and a resumed run measure the same weights. With `prepare`, models
    fetch what workers will load. Raise UsageError for a wrong name."""
    request = with_interpreters(request)
    request, left_out = with_files(request)
    families: dict[str, Family] = {}
    for part in request.parts:
        for name in part.models:
            families[name] = models.find(name)

    def full_names(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(families[name].name if name in families else name for name in names)

    runs = tuple(run.but(models=full_names(run.models)) if run.models else run for run in request.runs)
    request = request.but(models=full_names(request.models), runs=runs)
    plan(request.but(devices=request.devices or ("cpu",)))
    for family in families.values() if prepare else ():
        family.prepare()
    return request, left_out


def with_files(request: Request) -> tuple[Request, list[str]]:
    """Return the request with a run for each file of a pattern such as `DIR/*.py`, and why files of it were left out.
    Each file gets what `set` has for its dimensions, and for those that no file has, which are refused later."""
    given = request.runs or (RunOverrides(models=request.models),)
    found = [models.expanded(run.models or request.models) for run in given]
    if all(names == list(run.models or request.models) for run, (names, _) in zip(given, found, strict=True)):
        return request, []
    runs: list[RunOverrides] = []
    for run, (names, _) in zip(given, found, strict=True):
        task, inputs = run.task or request.task, request.inputs if run.inputs is None else run.inputs
        dimensions = {name: models.find_for(name, task, inputs).dimensions for name in names}
        of_any = {key for of_model in dimensions.values() for key in of_model}
        for name in names:
            own = {
                key: values
                for key, values in (request.set | run.set).items()
                if key in dimensions[name] or key not in of_any
            }
            runs.append(run.but(models=(name,), set=own))
    whole = tuple(name for names, _ in found for name in names)
    left_out = [reason for _, reasons in found for reason in reasons]
    return request.but(models=whole, set={}, runs=tuple(runs)), left_out


def request_of(store: Store) -> Request:
    """Return the request of the run in `store`. Raises UsageError if this version cannot read it."""
    try:
        return Request(**store.request())
    except UsageError as error:
        raise UsageError(f"{store.root} {OF_ANOTHER_VERSION} ({error})") from None


NOTHING_MEETS_REQUIREMENTS = "no cell of a contest meets --require"


def ending_of(judgement: Judgement) -> tuple[int, str]:
    """Return the exit status of a complete run, and why it is not 0: 3 if nothing was measured, or 1 if a cell failed,
    a named backend is missing in all precisions, or no cell of a contest meets the requirements or `--slo`, as far as
    these were measured of the first one."""
    records = judgement.report.records
    if not any(record.latency for record in records):
        return 3, "nothing was measured"
    reasons = [*failures_of(records), *lacking_of(records, lambda record: bool(record.latency))]
    if unserved := [contest for contest in judgement.contests if contest.load and not contest.load.ranked]:
        reasons.append(f"nothing holds what --slo asks in {counted(len(unserved), 'contest')}")
    if not judgement.meets_requirements:
        reasons += judgement.unmeasured or [NOTHING_MEETS_REQUIREMENTS]
    return int(bool(reasons)), "; ".join(reasons)


def failures_of(records: Sequence[Record]) -> list[str]:
    """Return a line that says which cells of which models failed, or nothing. --budget does not fail a cell."""
    failed = [record for record in records if record.status.is_failure]
    has_several = len({record.cell.model for record in records}) > 1
    labels = dict.fromkeys(
        f"{record.cell.label}{f' of {record.cell.model}' if has_several else ''} ({record.status})" for record in failed
    )
    named = first(list(labels))
    where = ", which the tables name" if len(named) < len(labels) else ""
    return [f"{counted(len(failed), 'cell')} failed: {listed(named)}{where}"] if failed else []


def lacking_of(records: Sequence[Record], works: Callable[[Record], bool]) -> list[str]:
    """Return a line for each backend that was named and works in no precision that was asked for."""
    supported = {_in_any_precision(record.cell) for record in records if works(record)}
    lacking = [
        f"{record.cell.label}, which you named, is {record.status}"
        for record in records
        if record.asked_by_name and record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED)
        if _in_any_precision(record.cell) not in supported
    ]
    return list(dict.fromkeys(lacking))


def say_exit_reason(status: int, reason: str) -> None:
    """Say on standard error why the exit status is not 0."""
    if reason:
        say(f"exit status {status}: {reason}", stderr)


def progress_of(request: Request, quiet: bool, as_json: bool, begun_s: float | None = None) -> LiveTable:
    """Return what shows the progress of a run, whose time counts from `begun_s`. With `as_json` it goes to standard
    error."""
    requirements = request.require.without_starts()
    return LiveTable(console_for(as_json), quiet, requirements=requirements, calls=request.calls, begun_s=begun_s)


def conclude(report: Report, store: Store, quiet: bool, as_json: bool, junit: Path | None, summary: Path | None) -> int:
    """Report what came out, write the files for CI that were asked for, and return the exit status. A second Ctrl-C
    raises a KeyboardInterrupt which names the command that writes the rest."""
    with written_to_the_end():
        try:
            judgement = write_and_print(report, store.root, quiet, console_for(as_json), junit, summary)
        except KeyboardInterrupt:
            rest = f"bakeoff report {shlex.quote(str(store.root))}"
            raise KeyboardInterrupt(f"what was measured is kept; to write the rest of the report: {rest}") from None
        status, reason = ending_of(judgement) if report.complete else (INTERRUPTED, "")
        if as_json:
            print_json(answer_of(judgement, store.root).but(exit_reason=reason), status)
        say_exit_reason(status, reason)
        return status


def _in_any_precision(cell: Cell) -> str:
    return cell.but(precision=Precision.FP32).id


def availability(devices: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return, for each backend and device, why this machine lacks it, or an empty string. Each backend is tried in a
    worker of its own. Raise UsageError for an unknown device."""
    asked = [Device(name) for name in devices]
    with Launchers("auto") as launchers:
        return {
            (name, device): why_not(launchers.first, TryBackend(backend=name, device=device))
            for device in asked
            for name in backends.names()
        }


def _default_folder(request: Request) -> Path:
    models = [model for part in request.parts for model in part.models]
    names = "-".join([*dict.fromkeys(models), *request.devices])
    slug = re.sub(r"[^A-Za-z0-9]+", "-", names).strip("-")[:60]
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{slug}"
    folder = Path("results") / stem
    number = 1
    while folder.exists():  # two runs began within a second
        number += 1
        folder = Path("results") / f"{stem}-{number}"
    return folder
