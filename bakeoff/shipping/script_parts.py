"""What exports and scripts have in common: the cell they are of, their templates and settings.

The templates lie in `scripts` beside this file. Neither torch nor a compiler is imported here.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from bakeoff import backends, models
from bakeoff.backends.base import Backend
from bakeoff.backends.standalone import literal
from bakeoff.measuring.variables import READ_AT_START
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.schema import Record, Report
from bakeoff.records.text import counted, first, listed, one_line, spell_ms

MAX_CELLS_NAMED = 6


def find_record(report: Report, name: str) -> Record:
    """Return the record of the cell with this id or label, or with one that begins so. Raise UsageError when no cell or
    several cells match, and name those that are near or match."""
    ids = {record.cell.id: record for record in report.records}
    if name in ids:
        return ids[name]
    named = [record for record in report.records if record.cell.label == name]
    begun = [
        record
        for record in report.records
        if name and (record.cell.id.startswith(name) or record.cell.label.startswith(name))
    ]
    for matching in (named, begun):
        if len(matching) == 1:
            return matching[0]
        if matching:
            which = listed(first(names_of(report, matching), MAX_CELLS_NAMED), "or")
            raise UsageError(f"'{name}' stands for {len(matching)} cells: give one of {which}")
    labels = {record.cell.label for record in report.records}
    raise unknown("cell", name, labels if "_" not in name else ids, f"of {report.run_id}")


def names_of(report: Report, records: Sequence[Record]) -> list[str]:
    """Return by what `find_record` finds each of these: labels, or ids where several contests have the same labels."""
    is_one_contest = len({record.cell.label for record in report.records}) == len(report.records)
    return [record.cell.label if is_one_contest else record.cell.id for record in records]


def backends_that(has: Callable[[Backend], object]) -> str:
    """Return the names of the backends of which this holds, for a message."""
    return ", ".join(backend.name for backend in backends.all_that_load() if has(backend))


def common_settings(report: Report, record: Record, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what was set in the record's process, under the names in templates and in `Artifact.settings`."""
    cell = record.cell
    mode = backends.create(cell.backend).mode(cell.mode)
    of_run = report.environment.variables
    return {
        "variables": {
            **{name: value for name, value in of_run.items() if not name.startswith(READ_AT_START)},
            **(variables or {}),
        },
        "threads": _threads(report, record),
        "cuda": cell.device.is_cuda,
        "device": cell.device,
        "device_index": cell.device.cuda_index or 0,
        "fast_path": mode.fast_path or cell.model in models.TABLE,  # ours have no layers with one
        "tf32": cell.precision.allows_tf32,
        "calling": "no_grad" if record.traits and record.traits.needs_autograd else "inference_mode",
        "graph": mode.captures,
        "channels_last": bool(mode.channels_last_of),
        "reported": ", ".join([spell_ms(record.latency.median_ms), *cell.unusual_calls]) if record.latency else "",
    }


def facts_of(report: Report, record: Record) -> dict[str, str]:
    """Return, by name, where the record's number comes from, each on one line."""
    machine = report.environment
    at_start = [f"{name}={value}" for name, value in machine.variables.items() if name.startswith(READ_AT_START)]
    own = machine.own_variables_set
    gpus = [f"{gpu.name}, driver {gpu.driver}" for gpu in machine.gpus]
    version = machine.versions.get("bakeoff", "of an unknown version")
    tool = f"Bakeoff {f'at commit {machine.git_commit}' if machine.git_commit else version}"
    facts = {
        "Command": record.command,
        "Run": f"{report.run_id}, begun {record.started_at}, {tool}",
        "Machine": ", ".join(
            [machine.hostname, machine.os, machine.cpu, counted(machine.usable_cores or 0, "usable core")]
            + (gpus if record.cell.device.is_cuda else [])
        ),
        "Versions": _pairs({"python": machine.python, **record.versions}),
        "Flags": _pairs({**record.settings, **record.precision_in_force}),
        "Result": _result(record),
        "Variables": f"the model's files read {', '.join(own)}: set as in the run" if own else "",
        "Start": f"with {' '.join(at_start)}, set before Python starts" if at_start else "",
    }
    return {name: one_line(text) for name, text in facts.items() if text}


def import_lines(lines: Iterable[str], standard: bool) -> str:
    """Return the imports of the standard library, or the others, with `import` before `from`, each module once."""
    chosen: dict[str, set[str]] = {}
    for line in lines:
        start, _, names = line.partition(" import ")
        if (line.split()[1].partition(".")[0] in sys.stdlib_module_names) == standard:
            chosen.setdefault(start, set()).update(names.split(", ") if names else ())
    merged = [f"{start} import {', '.join(sorted(names))}" if names else start for start, names in chosen.items()]
    return "\n".join(sorted(merged, key=lambda line: (line.startswith("from "), line)))


def render(template: str, facts: Mapping[str, Any]) -> str:
    """Return the template of `scripts` with these facts. One that it needs and lacks is an error."""
    return ENVIRONMENT.get_template(template).render(facts)


def _threads(report: Report, record: Record) -> int:
    """Return the threads of the cell, or those of the run if the cell died before it reported them."""
    lines = record.settings.get("threads", report.environment.torch_threads)
    if not isinstance(lines, int):
        raise UsageError(f"{report.run_id} does not say how many threads {record.cell.id} had: measure it again")
    return lines


def _result(record: Record) -> str:
    latency = record.latency
    if latency is None:
        return f"{record.status}: {record.reason}"
    interval = latency.median_ci95_ms
    said = ", ".join([f"median latency {spell_ms(latency.median_ms)}", *record.cell.unusual_calls])
    said += f" (95 % interval {spell_ms(interval.low)} to {spell_ms(interval.high)})" if interval else ""
    said += f" over {counted(latency.calls, 'call')}"
    said += f" in {latency.processes} processes" if latency.processes > 1 else " in one process"
    if latency.process_spread is not None:
        spread = latency.process_spread
        said += f", the slowest {100 * spread:,.{1 if spread < 0.1 else 0}f} % over the fastest"
    return said


def _pairs(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("scripts")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)
ENVIRONMENT.filters["literal"] = literal
