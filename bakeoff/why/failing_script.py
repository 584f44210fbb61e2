"""Writes the part of a model that fails as a script, and runs it without Bakeoff."""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bakeoff.backends.reasons import failure_of
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Record, Report
from bakeoff.shipping.failing_part import script_of_part
from bakeoff.why.records import Blame, Script, Trial

SCRIPT_LIMIT_S = 300.0


def with_script(blame: Blame, report: Report, record: Record, tell: Callable[[str], None]) -> Blame:
    """Return what was found with a script of the part that fails alone, if the backend has one, and with its ending."""
    script = None
    if blame.place is not None and blame.source:
        with contextlib.suppress(UsageError):  # no script does what this backend does
            text = script_of_part(report, record, blame.source, blame.place.failure)
            tell(f"{blame.label}: script of {blame.place.name or 'the model'}, in a fresh process")
            python = str(Request(**report.request).env.get(record.cell.environment, sys.executable))
            script = run_alone(text, blame.place, python)
    return blame.model_copy(update={"script": script, "source": ""})


def run_alone(text: str, place: Trial, python: str) -> Script:
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
            return Script(text=text, ending=f"it did not end within {SCRIPT_LIMIT_S:.0f} s")
    if done.returncode <= 0:
        return Script(
            text=text,
            ending=f"it ended by signal {-done.returncode}" if done.returncode else "it builds and runs",
        )
    failure = failure_at_the_end_of(done.stderr)
    return Script(text=text, fails_alike=are_alike(failure, place), ending=failure.text)


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
