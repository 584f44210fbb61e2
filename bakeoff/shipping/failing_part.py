"""A script of one page that builds a part of a model that fails alone. It needs torch and the cell's library."""

import ast
from pathlib import Path

from bakeoff import backends
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import one_line
from bakeoff.shipping import script_parts


def script_of_part(report: Report, record: Record, source: str, failure: str) -> str:
    """Return the script. `source` defines `model` and `inputs`. Raises UsageError if no script does what the backend
    does."""
    cell = record.cell
    part = backends.create(cell.backend).script(cell, record.settings)
    if part is None:
        having = script_parts.backends_that(
            lambda backend: backend.script(cell.model_copy(update={"mode": "default"}), {})
        )
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


def write(script: str, path: Path) -> None:
    """Write `script` to `path`. Raises UsageError for a file name under which the script would import itself."""
    nodes = list(ast.walk(ast.parse(script)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    if path.stem in {name.partition(".")[0] for name in names}:
        raise UsageError(f"{path}: the script would import itself as '{path.stem}': give the file another name")
    write_atomically(path, script)
