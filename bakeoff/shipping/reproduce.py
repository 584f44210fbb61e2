"""Write one cell of a report as a script of one page that needs torch and the cell's library, and nothing of ours.

A script can be written on a machine that cannot run it. tests/shipping/test_reproduce.py and benchmarks/reproduces.py
compare scripts with the backends.
"""

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

from bakeoff import backends, models
from bakeoff.models.base import ends_of_stream
from bakeoff.records import call_form
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import INFERENCE, Record, Report, Status
from bakeoff.records.text import one_line
from bakeoff.shipping import script_models, script_parts
from bakeoff.shipping.sample_facts import Sample, sample_file, sample_of

WIDTH = 120


def script_for(report: Report, record: Record, run: Path | None = None) -> str:
    """Return a Python script that builds and measures the record's cell and prints its median beside the record's.

    With the folder of the run, the script checks its outputs first, with the contest's sample that lies there.
    Paths become absolute, relative to the current folder. Raises UsageError for a cell that no script covers, and for a
    model that is not found from here.
    """
    cell = record.cell
    _check_covered(record)
    try:
        family = models.find(cell.model)
        dimensions = family.resolve(cell.dimensions)
    except UsageError as error:
        raise UsageError(f"{error}; reproduce it from the folder that it was measured from") from None
    model = script_models.model_part(cell, family, dimensions)
    backend = script_parts.part_of(record)
    settings = script_parts.common_settings(report, record, backend)
    imports = [*COMMON_IMPORTS, *model.imports, *backend.imports]
    if settings["variables"] or settings["cuda"] or settings["placed_on_cores"]:
        imports.append("import os")
    if not settings["graph"] or backend.binds_outputs:
        imports.append("from functools import partial")
    dtype = f"torch.{cell.precision.input_type}" if cell.precision.input_type != "float32" else ""
    device_and_type = ", ".join(filter(None, [json.dumps(cell.device) if cell.device.is_cuda else "", dtype]))
    uses_tree = backend.flat or device_and_type or settings["graph"]
    if (model.structured and uses_tree) or settings["channels_last"]:
        imports.append(script_models.PYTREE)
    checked = _checks(record, run)
    flattens = model.structured and (backend.flat or bool(checked))
    if flattens:
        imports += script_models.FLATTENING_IMPORTS
    if checked:
        imports += ["import numpy", "import os"]
    are_bound = backend.binds_outputs or settings["graph"]
    one_tensor = not (model.structured or backend.takes_list or backend.binds_outputs)
    return script_parts.render(
        "script.py.jinja",
        {
            **settings,
            "heading": _heading(report, record),
            "standard_imports": script_parts.import_lines(imports, standard=True),
            "library_imports": script_parts.import_lines(imports, standard=False),
            "uses_torch": True,
            "artifact": "",
            "device_and_type": device_and_type,
            "dtype": dtype,
            "model": f"models/{model.template}.py.jinja",
            "structured": model.structured,
            "dimensions": dimensions,
            "seed": cell.seed,
            **model.facts,
            "flat": backend.flat,
            "flattening_source": script_models.flattening_source() if flattens else "",
            "answers": "flatten_outputs(outputs)" if model.structured else "[outputs]" if one_tensor else "outputs",
            "outputs_are_bound": are_bound,
            **checked,
        },
    )


def script_of_part(report: Report, record: Record, source: str, failure: str) -> str:
    """Return a script that builds a part of a model that fails alone. `source` defines `model` and `inputs`.

    Raises UsageError if no script does what the backend does.
    """
    backend = script_parts.part_of(record)
    settings = script_parts.common_settings(report, record, backend)
    imports = ["import torch", *backend.imports, "from functools import partial"]
    if settings["variables"] or settings["cuda"] or settings["placed_on_cores"]:
        imports.append("import os")
    return script_parts.render(
        "failing.py.jinja",
        {
            **settings,
            "heading": one_line(f"The smallest part of {record.cell.model} that {record.cell.label} does not build."),
            "failure": one_line(failure),
            "standard_imports": script_parts.import_lines(imports, standard=True),
            "library_imports": script_parts.import_lines(imports, standard=False),
            "uses_torch": True,
            "artifact": "",
            "structured": False,
            "flat": backend.flat,
            "seed": record.cell.seed,
            "source": source,
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


COMMON_IMPORTS = ("import gc", "import statistics", "from time import perf_counter_ns", "import torch")


def _check_covered(record: Record) -> None:
    """Raise UsageError with the reason if no script is made for the record's cell."""
    cell = record.cell
    if record.status.is_absence:
        raise UsageError(f"{cell.id} has nothing to reproduce: it was {record.status}: {one_line(record.reason)}")
    backend = backends.create(cell.backend)
    reason = ""
    if cell.mode not in backend.mode_names():
        reason = f"mode {cell.label}, which this version does not have"
    elif backend.script(cell, record.settings) is None:
        reason = f"backend {cell.backend}: there is one for each of {script_parts.backends_with_script()}"
    elif no_script := backend.mode(cell.mode).no_script:
        reason = f"mode {cell.label}: {no_script}"
    elif not script_models.is_covered(cell.model):
        reason = f"model {cell.model}: there is one for each of {script_models.COVERED}"
    elif cell.task != INFERENCE:
        reason = f"task {cell.task}: there is one for {INFERENCE} only"
    elif any(map(ends_of_stream, cell.dimensions.values())):
        reason = f"{cell.id}: a stream of sizes takes more than a page"
    elif cell.recorded:
        reason = f"{cell.id}: its inputs are in {cell.recorded.file}"
    elif cell.dynamic:
        reason = f"{cell.label}: a build for a range of sizes takes more than a page"
    elif cell.precision.is_quantised:
        reason = f"precision {cell.precision}: quantising the model takes more than a page"
    if reason:
        raise UsageError(f"no script for {reason}; to measure it again: {one_line(record.command)}")


def _checks(record: Record, run: Path | None) -> dict[str, Any]:
    """Return what a script needs to check its outputs: nothing where the run has no sample that they must equal."""
    if run is None or record.status is not Status.OK:
        return {}
    try:
        sample = sample_of(record, run)
    except UsageError:
        return {}
    if not _has_tensors_only(sample):
        return {}  # numbers become outputs of a graph, and nested tensors several of the sample
    return {
        "sample_file": str(sample_file(record, run).resolve()),
        "allowed_errors": sample.allowed_errors(WIDTH),
        "compares_all": sample.compares_all,
        "found": sample.as_doubles,
    }


def _has_tensors_only(sample: Sample) -> bool:
    form = sample.call.get("answer")
    if not isinstance(form, dict) or "unknown" in form:
        return False
    leaves, inner = [], [form]
    while inner:
        each = inner.pop()
        leaves.append(each)
        inner += call_form.parts(each)
    numbers = [each for each in leaves if isinstance(each.get("value"), bool | int | float)]
    return not numbers and sum(call_form.TENSOR in each for each in leaves) == len(sample.outputs)


def _heading(report: Report, record: Record) -> list[str]:
    """Return lines of text that say where the number comes from."""
    title = f"{record.cell.label}: {record.cell.title}. One cell of a Bakeoff report, standing alone."
    lines = textwrap.wrap(one_line(title), WIDTH - 2)
    for name, text in script_parts.facts_of(report, record).items():
        lines += textwrap.wrap(f"{name + ':':10}{text}", WIDTH - 2, subsequent_indent=" " * 10)
    return lines
