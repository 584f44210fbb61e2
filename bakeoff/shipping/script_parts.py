"""What the scripts of `reproduce` and of `export` have in common: the cell they are of, their templates and settings.

The templates lie in harness/scripts. They contain what a user of the library would write, so they repeat the set-up of
each backend. Neither torch nor a compiler is imported here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from bakeoff import backends, models
from bakeoff.backends.aotinductor import inductor_configs
from bakeoff.backends.inductor import FROZEN
from bakeoff.backends.openvino import INPUTS_PER_SCALE
from bakeoff.measuring.isolation import READ_AT_START
from bakeoff.models.base import INPUT_SETS
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Record, Report
from bakeoff.records.text import one_line, spell_ms

MAX_CELLS_NAMED = 6

ONNX_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""ONNX Runtime's providers that the template sets up."""

OPENVINO_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16", Precision.INT8: "f32"}


def find_record(report: Report, name: str) -> Record:
    """Return the record of the cell with this id or label, or with one that begins so.

    Raises UsageError when no cell or several cells match, and names those that are near or match.
    """
    ids = {record.cell.id: record for record in report.records}
    if name in ids:
        return ids[name]
    named = [record for record in report.records if record.cell.label == name]
    begun = [record for record in report.records if name and _begins(record.cell, name)]
    for found in (named, begun):
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"'{name}' stands for {len(found)} cells: give one of {some(one.cell.id for one in found)}"
            )
    labels = {record.cell.label for record in report.records}
    raise unknown("cell", name, labels if "_" not in name else ids, f"of {report.run_id}")


def some(names: Iterable[str]) -> str:
    """Return the first of many names, and how many more there are."""
    known = list(names)
    more = f" and {len(known) - MAX_CELLS_NAMED} more" if len(known) > MAX_CELLS_NAMED else ""
    return ", ".join(known[:MAX_CELLS_NAMED]) + more


def options_of(cell: Cell) -> Mapping[str, object]:
    """Return what the backend sets for the cell's mode."""
    return backends.create(cell.backend).mode(cell.mode).options


def provider_of(cell: Cell) -> str:
    """Return the name of ONNX Runtime's provider. The default mode takes the device's own."""
    return str(options_of(cell).get("provider", cell.device.kind))


def common_settings(report: Report, record: Record) -> dict[str, Any]:
    """Return what both kinds of scripts set, under the names in the templates."""
    cell = record.cell
    mode = backends.create(cell.backend).mode(cell.mode)
    return {
        "variables": {
            **{
                name: value
                for name, value in report.environment.variables.items()
                if not name.startswith(READ_AT_START)
            },
            **({"TORCHINDUCTOR_FREEZING": "1"} if cell.backend == "inductor" and cell.mode in FROZEN else {}),
        },
        "threads": _threads(report, record),
        "cuda": cell.device.is_cuda,
        "placed_on_cores": report.environment.os.startswith("Linux"),  # elsewhere a thread cannot be put on a core
        "device": cell.device,
        "device_kind": cell.device.kind,
        "device_index": cell.device.cuda_index or 0,
        "fast_path": mode.fast_path or cell.model in models.TABLE,  # ours have no layers with one
        "tf32": cell.precision.allows_tf32,
        "input_sets": INPUT_SETS,
        "backend": f"backends/{cell.backend}.py.jinja",
        "as_list": cell.backend == "aotinductor",
        "lazy": cell.backend in ("torchscript", "inductor"),
        "graph": mode.captures,
        "channels_last": bool(mode.channels_last_of),
        "bfloat16": cell.precision is Precision.BF16,
        **_options(cell),
        "reported": spell_ms(record.latency.median_ms) if record.latency else "",
    }


def facts_of(report: Report, record: Record) -> dict[str, str]:
    """Return, by name, where the record's number comes from, each on one line."""
    machine = report.environment
    at_start = [f"{name}={value}" for name, value in machine.variables.items() if name.startswith(READ_AT_START)]
    gpus = [f"{gpu.name}, driver {gpu.driver}" for gpu in machine.gpus]
    facts = {
        "Command": record.command,
        "Run": f"{report.run_id}, begun {record.started_at}, Bakeoff at commit {machine.git_commit or 'unknown'}",
        "Machine": ", ".join(
            [machine.hostname, machine.os, machine.cpu, f"{machine.usable_cores} usable cores"]
            + (gpus if record.cell.device.is_cuda else [])
        ),
        "Versions": _pairs({"python": machine.python, **record.versions}),
        "Flags": _pairs({**record.settings, **record.precision_in_force}),
        "Result": _result(record),
        "Start": f"with {' '.join(at_start)}, set before Python starts" if at_start else "",
    }
    return {name: one_line(text) for name, text in facts.items() if text}


def import_lines(lines: Iterable[str], standard: bool) -> str:
    """Return the imports of the standard library, or the others, with `import` before `from`."""
    chosen = {line for line in lines if (line.split()[1].partition(".")[0] in sys.stdlib_module_names) == standard}
    return "\n".join(sorted(chosen, key=lambda line: (line.startswith("from "), line)))


def render(template: str, facts: Mapping[str, Any]) -> str:
    """Return the template of harness/scripts with these facts. One that it needs and lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("scripts")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["literal"] = _literal
    return environment.get_template(template).render(facts)


def _options(cell: Cell) -> dict[str, Any]:
    """Return what the backend's mode sets, under the names in its template."""
    mode = options_of(cell)
    if cell.backend == "inductor":
        return {"options": mode}
    if cell.backend == "aotinductor":
        configs = inductor_configs(mode)
        return {"options": {name: value for name, value in mode.items() if name not in configs}, "configs": configs}
    if cell.backend == "openvino":
        unrounded = {INPUTS_PER_SCALE: "0"} if cell.precision.is_weight_only else {}
        return {"options": {**unrounded, **mode}, "hint": OPENVINO_HINTS[cell.precision.products]}
    if cell.backend == "onnx":
        return {
            "options": mode.get("options", {}),
            "opset": mode.get("opset"),
            "provider": ONNX_PROVIDERS[provider_of(cell)],
            "onnx_type": cell.precision.input_type.upper().replace("FLOAT32", "FLOAT"),
        }
    return {}


def _threads(report: Report, record: Record) -> int:
    """Return the threads of the cell, or those of the run if the cell died before it told."""
    told = record.settings.get("threads", report.environment.torch_threads)
    if not isinstance(told, int):
        raise UsageError(f"{report.run_id} does not say how many threads {record.cell.id} had: measure it again")
    return told


def _result(record: Record) -> str:
    latency = record.latency
    if latency is None:
        return f"{record.status}: {record.reason}"
    interval = latency.median_ci95_ms
    said = f"median latency {spell_ms(latency.median_ms)}"
    said += f" (95 % interval {spell_ms(interval.low)} to {spell_ms(interval.high)})" if interval else ""
    said += f" over {latency.calls} calls"
    said += f" in {latency.processes} processes" if latency.processes > 1 else " in one process"
    if latency.process_spread is not None:
        said += f", the slowest {100 * latency.process_spread:.2g} % over the fastest"
    return said


def _pairs(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _literal(value: object) -> str:
    """Return `value` as Python source. Reports come from anywhere, and none of their text may become code."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _begins(cell: Cell, name: str) -> bool:
    return cell.id.startswith(name) or cell.label.startswith(name)
