"""Writes the part of a model that fails as a script, and runs it without Bakeoff."""

import ast
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bakeoff import backends
from bakeoff.backends.reasons import failure_of
from bakeoff.planning.request import Request
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import one_line
from bakeoff.shipping import script_parts
from bakeoff.why.records import Blame, PartTrial, Script

SCRIPT_LIMIT_S = 300.0

MIN_ALIKE = 48
"""So many letters of two messages are compared."""


def with_script(blame: Blame, report: Report, record: Record, say: Callable[[str], None]) -> Blame:
    script = None
    if blame.place is not None and blame.source:
        with contextlib.suppress(UsageError):  # no script does what this backend does
            text = script_of_part(report, record, blame.source, blame.place.failure)
            say(f"{blame.label}: script of {blame.place.name or 'the model'}, in a fresh process")
            python = str(Request(**report.request).env.get(record.cell.environment, sys.executable))
            script = run_alone(text, blame.place, python)
    return blame.but(script=script, source="")


def script_of_part(report: Report, record: Record, source: str, failure: str) -> str:
    """Return the script. `source` defines `model` and `inputs`. Raises UsageError if no script does what the backend
    does."""
    cell = record.cell
    part = backends.create(cell.backend).script(cell, record.settings)
    if part is None:
        having = script_parts.backends_that(lambda backend: backend.script(cell.but(mode="default"), {}))
        raise UsageError(f"no script does what {cell.backend} does, only what {having} do")
    settings = script_parts.common_settings(report, record, part.variables)
    imports = ["import torch", *part.imports, "from functools import partial"]
    if settings["variables"] or settings["cuda"]:
        imports.append("import os")
    return script_parts.render(
        "failing.py.jinja",
        {
            **settings,
            "heading": one_line(f"The smallest part of {cell.model} that {cell.label} does not build."),
            "failure": one_line(failure),
            "standard_imports": script_parts.import_lines(imports, standard=True),
            "library_imports": script_parts.import_lines(imports, standard=False),
            "seed": cell.seed,
            "source": source,
            "part": part,
        },
    )


def write_script(script: str, path: Path) -> None:
    """Write `script` to `path`. Raises UsageError for a file name under which the script would import itself."""
    nodes = list(ast.walk(ast.parse(script)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    if path.stem in {name.partition(".")[0] for name in names}:
        raise UsageError(f"{path}: the script would import itself as '{path.stem}': give the file another name")
    write_atomically(path, script)


def run_alone(text: str, place: PartTrial, python: str) -> Script:
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
            text=text, ending=f"it ended by signal {-done.returncode}" if done.returncode else "it builds and runs"
        )
    lines = done.stderr.rpartition("Traceback (most recent call last):")[2].splitlines()
    begin = next((place for place, line in enumerate(lines) if line and not line.startswith((" ", "\t"))), 0)
    message = "\n".join(lines[begin:])
    match = _EXCEPTION.match(message)
    failure = failure_of(match[1], match[2] or "") if match else failure_of("", message)
    return Script(text=text, fails_alike=are_alike(failure, place), ending=failure.text)


_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w+)(?:: ?(.*))?$", re.DOTALL)


def are_alike(failure: Failure, place: PartTrial) -> bool:
    """Return True if a script ended as the part did: by the same operator, or with the same words but for numbers."""
    if failure.operator and failure.operator in place.failure:
        return True
    ours, theirs = (re.sub(r"\W|\d", "", text)[:MIN_ALIKE] for text in (failure.text, place.failure))
    return bool(ours) and (ours.startswith(theirs) or theirs.startswith(ours))
