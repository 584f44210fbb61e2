"""Write one cell of a report as a script of one page that needs torch and the cell's library, and nothing of ours.

The templates lie in harness/scripts. They contain what a user of the library would write, so they repeat the set-up of
each backend; tests/harness/test_reproduce.py and benchmarks/reproduces.py compare them with the backends. Neither torch
nor a compiler is imported here: a script can be written on a machine that cannot run it.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import backends
import models
from models.base import INPUT_SETS, Family
from models.huggingface import HuggingFace
from models.user import UserModel
from records.atomic_file import write_atomically
from records.errors import UsageError, unknown
from records.precision import Precision
from records.schema import INFERENCE, Cell, Record, Report
from records.text import one_line, spell_ms

WIDTH = 120
MAX_CELLS_NAMED = 6


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
                f"'{name}' stands for {len(found)} cells: give one of {_some(one.cell.id for one in found)}"
            )
    labels = {record.cell.label for record in report.records}
    raise unknown("cell", name, labels if "_" not in name else ids, f"of {report.run_id}")


def script_for(report: Report, record: Record) -> str:
    """Return a Python script that builds and measures the record's cell and prints its median beside the record's.

    Paths of models become absolute, relative to the current folder. Raises UsageError for a cell that no script covers,
    and for a model that is not found from here.
    """
    cell = record.cell
    _check_covered(record)
    try:
        family = models.find(cell.model)
        dimensions = family.resolve(cell.dimensions)
    except UsageError as error:
        raise UsageError(f"{error}; reproduce it from the folder that it was measured from") from None
    model = _model_part(cell, family, dimensions)
    backend = BACKENDS[cell.backend]
    cuda = cell.device.is_cuda
    graph = cell.mode == "cuda-graph"
    # LD_PRELOAD only works before a process starts, so the heading names it
    variables = {name: value for name, value in report.environment.variables.items() if name != "LD_PRELOAD"}
    imports = [*COMMON_IMPORTS, *model.imports, *backend.imports]
    placed_on_cores = report.environment.os.startswith("Linux")  # elsewhere a thread cannot be put on a core
    if variables or cuda or placed_on_cores:
        imports.append("import os")
    if model.structured:
        imports.append("from torch.utils import _pytree as pytree")
    if not graph or cell.backend == "onnx":
        imports.append("from functools import partial")
    dtype = f"torch.{cell.precision.input_type}" if cell.precision.input_type != "float32" else ""
    return _render(
        "script.py.jinja",
        {
            "heading": _heading(report, record),
            "standard_imports": _imports(imports, standard=True),
            "library_imports": _imports(imports, standard=False),
            "variables": variables,
            "threads": _threads(report, record),
            "cuda": cuda,
            "placed_on_cores": placed_on_cores,
            "device_kind": cell.device.kind,
            "device_index": cell.device.cuda_index or 0,
            "tf32": cell.precision.allows_tf32,
            "device_and_type": ", ".join(filter(None, [json.dumps(cell.device) if cuda else "", dtype])),
            "device": cell.device,
            "dtype": dtype,
            "model": f"models/{model.template}.py.jinja",
            "structured": model.structured,
            "dimensions": dimensions,
            "seed": cell.seed,
            "input_sets": INPUT_SETS,
            **model.facts,
            "backend": f"backends/{cell.backend}.py.jinja",
            "flat": backend.flat,
            "as_list": cell.backend == "aotinductor",
            "linked": json.dumps({LINKED_LIBRARY: [record.settings[LINKED_LIBRARY]]})
            if LINKED_LIBRARY in record.settings
            else "",
            "lazy": cell.backend in ("torchscript", "inductor"),
            "graph": graph,
            **_options(cell),
            "reported": spell_ms(record.latency.median_ms) if record.latency else "",
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


@dataclass(frozen=True)
class ModelPart:
    """The part of a script for a model. A `structured` input set is (args, kwargs); others are tuples of one tensor."""

    template: str
    imports: Sequence[str]
    structured: bool
    facts: dict[str, Any]


@dataclass(frozen=True)
class BackendPart:
    """The part of a script for a backend. The graphs of a `flat` one take only tensors, by position."""

    imports: Sequence[str]
    flat: bool


COMMON_IMPORTS = ("import gc", "import statistics", "from time import perf_counter_ns", "import torch")
TRANSFORMER_IMPORTS = ("from torch import Tensor, nn", "from torch.nn import functional")
USER_IMPORTS = ("import importlib.util", "import sys", "from collections.abc import Mapping")

BACKENDS = {
    "eager": BackendPart((), flat=False),
    "torchscript": BackendPart((), flat=True),
    "inductor": BackendPart((), flat=False),
    "aotinductor": BackendPart(("from tempfile import TemporaryDirectory", "import torch._inductor"), flat=True),
    "onnx": BackendPart(
        ("from tempfile import TemporaryDirectory", "import onnxruntime", "from onnx import TensorProto"), flat=True
    ),
    "openvino": BackendPart(("import openvino",), flat=True),
}
"""The backends with a template in harness/scripts/backends."""

MODELS = ("mlp", "conv", "transformer")
"""Our models with a template in harness/scripts/models."""

UNCOVERED_MODES = ("buckets", "surgical")

ONNX_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""ONNX Runtime's providers that the template sets up."""

OPENVINO_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16", Precision.FP16: "f16"}

LINKED_LIBRARY = "aot_inductor.custom_op_libs"
"""The setting in which the AOTInductor backend records the library that it had to link."""


def _check_covered(record: Record) -> None:
    """Raise UsageError with the reason if no script is made for the record's cell."""
    cell = record.cell
    if record.status.is_absence:
        raise UsageError(f"{cell.id} has nothing to reproduce: it was {record.status}: {one_line(record.reason)}")
    reason = ""
    if cell.backend not in BACKENDS:
        reason = f"backend {cell.backend}: there is one for each of {', '.join(BACKENDS)}"
    elif cell.mode not in backends.create(cell.backend).modes:
        reason = f"mode {cell.label}, which this version does not have"
    elif cell.backend == "onnx" and _provider(cell) not in ONNX_PROVIDERS:
        reason = f"mode {cell.label}: of ONNX Runtime's providers there is one for the CPU's and CUDA's"
    elif cell.mode in UNCOVERED_MODES:
        reason = f"mode {cell.label}: which parts or paddings are compiled takes more than a page"
    elif cell.model not in MODELS and (cell.model in models.TABLE or _is_library_model(cell)):
        reason = f"model {cell.model}: there is one for each of {', '.join(MODELS)}, and for your own"
    elif cell.task != INFERENCE:
        reason = f"task {cell.task}: there is one for {INFERENCE} only"
    elif cell.precision.is_quantised:
        reason = f"precision {cell.precision}: quantising the model takes more than a page"
    if reason:
        raise UsageError(f"no script for {reason}; to measure it again: {one_line(record.command)}")


def _is_library_model(cell: Cell) -> bool:
    return cell.model.startswith(("timm:", "torchvision:", "pt2:"))


def _model_part(cell: Cell, family: Family, dimensions: dict[str, int | str]) -> ModelPart:
    if isinstance(family, UserModel):
        facts: dict[str, Any] = {
            "folder": str(family.path.parent.resolve()),
            "path": str(family.path.resolve()),
            "factory": family.factory,
            "arguments": {**dimensions, **({"seed": cell.seed} if family.takes_seed else {})},
        }
        return ModelPart("user", USER_IMPORTS, structured=True, facts=facts)
    if isinstance(family, HuggingFace):
        if not family.architecture.isidentifier():
            raise UsageError(
                f"{cell.model}: config.json names the architecture {family.architecture!r}, which is no class"
            )
        if not family.is_of_text_or_images:
            raise UsageError(f"no script for {cell.model}: there is one for folders with weights, of text or of images")
        text = ("import inspect",) if "seq" in dimensions else ()
        facts = {"folder": str(family.folder.resolve()), "architecture": family.architecture}
        return ModelPart("huggingface", (*text, "import transformers"), structured=True, facts=facts)
    if cell.model == "transformer":
        return ModelPart(
            "transformer", TRANSFORMER_IMPORTS, structured=False, facts={"layers_source": _layers_source()}
        )
    return ModelPart(cell.model, ("from torch import nn",), structured=False, facts={})


def _layers_source() -> str:
    """Return the classes and functions of models/encoder.py without its imports. The file is not run."""
    text = Path(models.__file__).with_name("encoder.py").read_text(encoding="utf-8")
    first = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return "\n".join(text.splitlines()[first.lineno - 1 :])


def _options(cell: Cell) -> dict[str, Any]:
    """Return what the backend's mode sets, under the names in its template."""
    mode = _mode(cell)
    if cell.backend in ("inductor", "aotinductor"):
        return {"options": mode}
    if cell.backend == "openvino":
        return {
            "options": mode,
            "hint": OPENVINO_HINTS[cell.precision],
            "bfloat16": cell.precision is Precision.BF16,
        }
    if cell.backend == "onnx":
        return {
            "options": mode.get("options", {}),
            "opset": mode.get("opset"),
            "provider": ONNX_PROVIDERS[_provider(cell)],
            "onnx_type": cell.precision.input_type.upper().replace("FLOAT32", "FLOAT"),
        }
    return {}


def _mode(cell: Cell) -> Mapping[str, object]:
    """Return what the backend sets for the cell's mode."""
    return backends.create(cell.backend).modes[cell.mode]


def _provider(cell: Cell) -> str:
    """Return the name of ONNX Runtime's provider. The default mode takes the device's own."""
    return str(_mode(cell).get("provider", cell.device.kind))


def _threads(report: Report, record: Record) -> int:
    """Return the threads of the cell, or those of the run if the cell died before it told."""
    told = record.settings.get("threads", report.environment.torch_threads)
    if not isinstance(told, int):
        raise UsageError(f"{report.run_id} does not say how many threads {record.cell.id} had: measure it again")
    return told


def _heading(report: Report, record: Record) -> list[str]:
    """Return lines of text that say where the number comes from."""
    machine = report.environment
    preload = machine.variables.get("LD_PRELOAD")
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
        "Preload": f"LD_PRELOAD={preload} was set; set it before Python starts" if preload else "",
    }
    title = f"{record.cell.label}: {record.cell.title}. One cell of a Bakeoff report, standing alone."
    lines = textwrap.wrap(one_line(title), WIDTH - 2)
    for name, text in facts.items():
        if text:
            lines += textwrap.wrap(f"{name + ':':10}{one_line(text)}", WIDTH - 2, subsequent_indent=" " * 10)
    return lines


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


def _pairs(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _imports(lines: Iterable[str], standard: bool) -> str:
    """Return the imports of the standard library, or the others, with `import` before `from`."""
    chosen = {line for line in lines if (line.split()[1].partition(".")[0] in sys.stdlib_module_names) == standard}
    return "\n".join(sorted(chosen, key=lambda line: (line.startswith("from "), line)))


def _render(template: str, facts: dict[str, Any]) -> str:
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


def _literal(value: object) -> str:
    """Return `value` as Python source. Reports come from anywhere, and none of their text may become code."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _begins(cell: Cell, name: str) -> bool:
    return cell.id.startswith(name) or cell.label.startswith(name)


def _some(ids: Iterable[str]) -> str:
    names = list(ids)
    more = f" and {len(names) - MAX_CELLS_NAMED} more" if len(names) > MAX_CELLS_NAMED else ""
    return ", ".join(names[:MAX_CELLS_NAMED]) + more
