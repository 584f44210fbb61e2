"""Finds what a cell's error or failure comes from, in a worker of its own."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bakeoff import models
from bakeoff.backends.reasons import failure_of
from bakeoff.explaining.profiles import asked_of_worker
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.messages import BlameCell, Blamed, Evaluation, KeepModules, KeptModules
from bakeoff.planning.plan import refusal
from bakeoff.planning.request import Request
from bakeoff.records.blame import Blame, KeptSet, Script, Trial, why_no_modules
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.shipping import script_parts
from bakeoff.shipping.failing_part import script_of_part

SEARCH_LIMIT_S = 3600.0
"""The worker of a search ends after so long, whatever it is doing."""


class Blamable(NamedTuple):
    """What was found, with the record of the cell."""

    blame: Blame
    record: Record


def blame_cell(path: Path, label: str, tell: Callable[[str], None]) -> Blamable:
    """Find the smallest part of a cell's model that loses precision, or that fails.

    What fails is written as a script, which is run. Raises UsageError for a cell that cannot be looked into, and
    BakeoffError where looking fails.
    """
    report = report_at(path)
    record = script_parts.find_record(report, label)
    check_blamed(record)
    fails = record.status in (Status.ERROR, Status.UNSUPPORTED)
    request = Request(**report.request)
    blame = asked_of_worker(
        path, report, record, lambda facts: BlameCell(**facts, looks_for_failure=fails), Blamed, tell, SEARCH_LIMIT_S
    ).blame
    if blame.place is not None and blame.sources:
        python = str(request.env.get(record.cell.environment, sys.executable))
        script = script_that_fails(report, record, blame, python, tell)
        blame = blame.model_copy(update={"script": script, "sources": []})
    return Blamable(blame, record)


def kept_modules(path: Path, label: str, tolerance: float | None, tell: Callable[[str], None]) -> KeptSet:
    """Find which modules of a cell in fewer bits must stay in float32 so that it holds a tolerance, and measure that.

    Without a tolerance it is what the run required of the error, or of a metric of the user's own. Raises UsageError
    for a cell or a run that this makes no sense for, and BakeoffError where the search fails.
    """
    report = report_at(path)
    record = script_parts.find_record(report, label)
    check_blamed(record)
    check_kept(record)
    request = Request(**report.request)
    required = [each for each in request.require.each if each.is_of_metric]
    if tolerance is None:
        tolerance = next((each.limit for each in request.require.each if each.name == RELATIVE_ERROR), None)
    if tolerance is None and not required:
        raise UsageError("--keep-fp32 needs --tolerance NUMBER: the run required neither relative_rmse nor a metric")
    evaluation = None
    if tolerance is None:
        function = models.resolve_evaluate(request.evaluate or models.find(record.cell.model).evaluated_by)
        sample = Store(path if path.is_dir() else path.parent).sample(record.cell.reference_id).resolve()
        evaluation = Evaluation(function=function, sample=sample)
        asked = ", ".join(f"{each.name}{each.comparison}{each.limit_text}" for each in required)
    else:
        asked = f"a relative error of at most {tolerance:g}"
    return asked_of_worker(
        path,
        report,
        record,
        lambda facts: KeepModules(
            **facts, requirement=asked, tolerance=tolerance, record=record, evaluation=evaluation
        ),
        KeptModules,
        tell,
        SEARCH_LIMIT_S,
    ).kept


RELATIVE_ERROR = "relative_rmse"


def check_kept(record: Record) -> None:
    """Raise UsageError, with the reason, for a cell of which no module can be kept in float32."""
    cell = record.cell
    reason = ""
    if record.status not in (Status.OK, Status.INCORRECT):
        reason = f"it is {record.status}"
    elif cell.precision not in (Precision.FP16, Precision.BF16, Precision.INT8):
        reason = f"modules are kept in cells of fp16, bf16 and int8, and this is {cell.precision}"
    if reason:
        raise UsageError(f"{cell.id}: no module can be kept in fp32: {reason}")


def check_blamed(record: Record) -> None:
    """Raise UsageError, with the reason, for a cell that cannot be looked into."""
    cell = record.cell
    reason = ""
    if record.status not in (Status.OK, Status.INCORRECT, Status.ERROR, Status.UNSUPPORTED):
        reason = f"it is {record.status}, and only a wrong answer or an error has a place"
    elif record.status is Status.UNSUPPORTED and (refused := refusal(cell)[1]):
        reason = f"it was refused before it was built: {refused}"
    else:
        reason = why_no_modules(cell)
    if reason:
        raise UsageError(f"{cell.id} cannot be blamed: {reason}")


SCRIPT_LIMIT_S = 300.0


def script_that_fails(
    report: Report, record: Record, blame: Blame, python: str, tell: Callable[[str], None]
) -> Script | None:
    """Write the part that fails as a script, and run it without Bakeoff. Return the first that fails as the part does,
    or else the first that there is. None: no script does what this backend does."""
    assert blame.place is not None
    scripts = []
    for made_from, source in blame.sources:
        try:
            text = script_of_part(report, record, source, blame.place.failure)
        except UsageError:
            return None
        tell(f"{blame.label}: script of {blame.place.name or 'the model'}, made from {made_from}, in a fresh process")
        scripts.append(run_alone(text, made_from, blame.place, python))
        if scripts[-1].fails_alike:
            break
    return next((each for each in scripts if each.fails_alike), scripts[0])


def run_alone(text: str, made_from: str, place: Trial, python: str) -> Script:
    """Run a script in a fresh process that cannot import Bakeoff, and look how it ends."""
    without = "import runpy, sys; sys.modules['bakeoff'] = None; runpy.run_path(sys.argv[1])"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "failing.py")
        path.write_text(text)
        try:
            command = [python, "-I", "-c", without, str(path)]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=SCRIPT_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Script(text=text, made_from=made_from, ending=f"it did not end within {SCRIPT_LIMIT_S:.0f} s")
    if done.returncode <= 0:
        ending = f"it ended by signal {-done.returncode}" if done.returncode else "it builds and runs"
        return Script(text=text, made_from=made_from, ending=ending)
    failure = failure_at_the_end_of(done.stderr)
    return Script(text=text, made_from=made_from, fails_alike=are_alike(failure, place), ending=failure.text)


_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w+)(?:: ?(.*))?$", re.DOTALL)


def failure_at_the_end_of(printed: str) -> Failure:
    """Return the failure of the last traceback in what a process has printed."""
    lines = printed.rpartition("Traceback (most recent call last):")[2].splitlines()
    begin = next((place for place, line in enumerate(lines) if line and not line.startswith((" ", "\t"))), 0)
    message = "\n".join(lines[begin:])
    match = _EXCEPTION.match(message)
    return failure_of(match[1], match[2] or "") if match else failure_of("", message)


def are_alike(failure: Failure, place: Trial) -> bool:
    """Return True if a script ended as the part did: by the same operator, or with the same words but for numbers."""
    if failure.operator and failure.operator in place.failure:
        return True
    ours, theirs = (re.sub(r"\W|\d", "", text)[:MIN_ALIKE] for text in (failure.text, place.failure))
    return bool(ours) and (ours.startswith(theirs) or theirs.startswith(ours))


MIN_ALIKE = 48
"""So many letters of two messages are compared."""
