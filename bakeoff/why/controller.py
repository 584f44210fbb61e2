"""Asks a worker of its own why a cell of an ended run is slow, wrong or broken. It times nothing for a record."""

import os
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue

from bakeoff import backends, models
from bakeoff.judging.judgement import contests_of
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.stored_report import builds_at
from bakeoff.measuring import malloc
from bakeoff.measuring.controller.cell_record import products_of
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.messages import Evaluation, Found, LookInto
from bakeoff.measuring.probes import ask
from bakeoff.measuring.same_model import require_same_model
from bakeoff.planning.plan import PlannedCell
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import folder_of
from bakeoff.records.schema import DECODE, TRAINED, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.records.text import first, listed, one_line
from bakeoff.shipping import script_parts
from bakeoff.why.explanation import ProfiledCell, named_apart
from bakeoff.why.failing_script import with_script
from bakeoff.why.records import Blame, CellProfile, KeptSet

OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_")
"""Beginnings of the names of environment variables that set how many threads compute, and where."""

SEARCH_LIMIT_S = 3600.0
"""The worker of a search ends after so long, whatever it is doing."""

RELATIVE_ERROR = "relative_rmse"

Say = Callable[[str], None]
Answer = TypeVar("Answer", bound=BaseModel)


# --- explain


def profile_run(path: Path, label: str | None, against: str | None, say: Say) -> list[ProfiledCell]:
    """Profile a cell of the run at `path`, by default the best, and the cell to compare it with, by default the
    baseline. Raises UsageError for what is not in the run or cannot be profiled, and BakeoffError where it fails."""
    report = builds_at(path)
    try:
        record = script_parts.find_record(report, label) if label else best_of(report)
        other = script_parts.find_record(report, against) if against else baseline_beside(report, record)
        for asked in filter(None, (record, other)):
            refuse_with(asked, "cannot be explained", why_not_profiled(asked))
    except UsageError as error:
        if report.complete and not any(record.is_left_to_resume for record in report.records):
            raise
        rest = f"the rest of the run: bakeoff resume {shlex.quote(str(folder_of(path)))}"
        raise UsageError(f"{error}; {rest}") from None
    if other:
        mine, theirs = record.cell, other.cell
        if mine.model != theirs.model:
            raise UsageError(
                f"{mine.id} is of {mine.model}, and {theirs.id} is of {theirs.model}: only cells of one model have the "
                "same modules"
            )
        if mine.id == theirs.id:
            raise UsageError(f"{mine.id} is compared with itself: name another cell with --against")
    store = Store(folder_of(path))

    def profiled(record: Record) -> ProfiledCell:
        kept = store.root.resolve() / record.artifact
        is_used = record.artifact and kept.exists() and backends.create(record.cell.backend).profiles_artefact
        question: dict[str, JsonValue] = {"kept": str(kept) if is_used else ""}
        profile = asked_of_worker(path, report, record, "worker_profile:profile", question, CellProfile, say)
        return ProfiledCell(profile, record, store.ceilings(record.cell.device, products_of(record.cell)))

    return named_apart([profiled(one) for one in (record, other) if one])


def best_of(report: Report) -> Record:
    contests = contests_of(report)
    if len(contests) != 1:
        firsts = first([contest.cells[0].cell.id for contest in contests])  # ranked cells come first
        which = f"name a cell by its id, such as {listed(firsts, 'or')}" if firsts else "nothing was measured"
        raise UsageError(f"{report.run_id} holds {len(contests)} contests: {which}")
    best = next(iter(contests[0].answer.candidates), None)
    if best is None:
        raise UsageError(f"{report.run_id} has no cell with a latency: bakeoff blame says what fails")
    return next(cell.record for cell in contests[0].cells if cell.label == best)


def baseline_beside(report: Report, record: Record) -> Record | None:
    return next(
        (
            other
            for other in report.records
            if other.cell.contest_id == record.cell.contest_id
            and other.cell.precision is record.cell.precision
            and other.cell.configuration == BASELINE
            and other.latency
            and other.cell.id != record.cell.id
        ),
        None,
    )


def refuse_with(record: Record, said: str, reason: str) -> None:
    if reason:
        raise UsageError(f"{record.cell.id} {said}: {reason}")


def why_not_profiled(record: Record) -> str:
    if record.status not in (Status.OK, Status.INCORRECT):
        return f"it is {record.status}: {one_line(record.reason)}"
    if record.cell.task in (*TRAINED, DECODE):
        return f"task {record.cell.task} is not profiled, only inference and prefill"
    return "a build for a range of sizes is not profiled: name one for a single size" if record.cell.dynamic else ""


# --- blame


def blame_cell(path: Path, label: str, say: Say) -> tuple[Blame, Record]:
    """Find the smallest part of a cell's model that loses precision, or that fails, and run a script of what fails.
    Raises UsageError for a cell that cannot be looked into, and BakeoffError where looking fails."""
    report = builds_at(path)
    record = script_parts.find_record(report, label)
    refuse_with(record, "cannot be blamed", why_not_blamed(record))
    question: dict[str, JsonValue] = {"looks_for_failure": record.status in (Status.ERROR, Status.UNSUPPORTED)}
    blame = asked_of_worker(
        path, report, record, "worker_blame:find_blame", question, Blame, say, limit_s=SEARCH_LIMIT_S
    )
    in_run = record.reason if record.status is Status.INCORRECT else ""
    return with_script(blame.but(in_run=in_run), report, record, say), record


def kept_modules(path: Path, label: str, tolerance: float | None, say: Say) -> KeptSet:
    """Find and measure which modules of a cell must stay in float32 to hold `tolerance`, by default what the run
    required. Raises UsageError where this makes no sense, and BakeoffError where the search fails."""
    report = builds_at(path)
    record = script_parts.find_record(report, label)
    refuse_with(record, "cannot be blamed", why_not_blamed(record))
    refuse_with(record, "has no module to keep in fp32", why_none_kept(record))
    request = Request(**report.request)
    required = [requirement for requirement in request.require.items if requirement.is_of_metric]
    if tolerance is None:
        tolerance = next(
            (requirement.limit for requirement in request.require.items if requirement.name == RELATIVE_ERROR), None
        )
    if tolerance is None and not required:
        raise UsageError("--keep-fp32 needs --tolerance NUMBER: the run required neither relative_rmse nor a metric")
    evaluation = None
    if tolerance is None:
        function = models.resolve_evaluate(request.evaluate or models.find(record.cell.model).evaluated_by)
        sample = Store(folder_of(path)).sample(record.cell.reference_id).resolve()
        evaluation = Evaluation(function=function, sample=sample)
        asked = ", ".join(map(str, required))
    else:
        asked = f"a relative error of at most {tolerance:g}"
    question: dict[str, JsonValue] = {
        "requirement": asked,
        "tolerance": tolerance,
        "record": record.model_dump(mode="json"),
    }
    return asked_of_worker(
        path, report, record, "worker_keep:find_kept", question, KeptSet, say, evaluation, SEARCH_LIMIT_S
    )


def why_none_kept(record: Record) -> str:
    if record.status not in (Status.OK, Status.INCORRECT):
        return f"it is {record.status}"
    if record.cell.precision in (Precision.FP16, Precision.BF16, Precision.INT8):
        return ""
    return f"modules are kept in cells of fp16, bf16 and int8, and this is {record.cell.precision}"


def why_not_blamed(record: Record) -> str:
    if record.status not in (Status.OK, Status.INCORRECT, Status.ERROR, Status.UNSUPPORTED):
        return f"it is {record.status}, and only a wrong answer or an error has a place"
    if record.status is Status.UNSUPPORTED and (refused := PlannedCell(record.cell, asked_by_name=True).refusal[1]):
        return f"it was refused before it was built: {refused}"
    return record.cell.why_no_modules


# --- the worker


def environment_of(report: Report, threads: int | None = None) -> AbstractContextManager[None]:
    """Give the variables that set threads, such as OMP_NUM_THREADS, the values of the run, or `threads`."""
    before = {name: value for name, value in os.environ.items() if name.startswith(OF_THREADS)}
    in_run = {name: value for name, value in report.environment.variables.items() if name.startswith(OF_THREADS)}
    if threads:
        in_run |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return malloc.variables_in_place_of(before, in_run)


def asked_of_worker(
    path: Path,
    report: Report,
    record: Record,
    function: str,
    question: dict[str, JsonValue],
    answer: type[Answer],
    say: Say,
    evaluation: Evaluation | None = None,
    limit_s: float | None = None,
) -> Answer:
    """Start a worker on a cell of the run at `path`, and return what a `function` of this room says of the cell there.
    Raises BakeoffError, with the reason, where there is no answer, and UsageError where the model has changed."""
    cell, store = record.cell, Store(folder_of(path))
    require_same_model(store, cell.reference_id)
    request = Request(**report.request)
    with environment_of(report), Launchers("spawn", pythons=request.env) as launchers:
        launcher = launchers.of_environment(cell.environment).first
        job = LookInto(
            cell=cell,
            reference=store.reference(cell.reference_id).resolve(),
            sampling=request.sampling,
            shared_folder=launcher.temporary / "shared",
            surgical=request.surgical,
            weights="" if cell.environment else store.origin(cell.reference_id).weights,  # which another torch may draw
            evaluation=evaluation,
            function=f"bakeoff.why.{function}",
            question=question,
        )
        found = ask(
            launcher,
            job,
            Found,
            f"looking into {cell.id}",
            limit_s or request.time_limit_s,
            lambda phase: say(f"{cell.label}: {phase}"),
        )
    return answer.model_validate_json(found.answer)
