"""Measures the memory of an engine without torch: in a fresh process that loads what was built and calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import psutil

from bakeoff.backends import runtime
from bakeoff.backends.base import Compiled
from bakeoff.backends.runtime.folder import DESCRIPTION, FORMAT, SAMPLE
from bakeoff.measuring.messages import ENGINE_MEMORY_LIMIT_S
from bakeoff.measuring.worker.sample import words
from bakeoff.models.base import Inputs
from bakeoff.records.schema import INFERENCE
from bakeoff.truth.matching import type_name

if TYPE_CHECKING:
    from bakeoff.measuring.worker.worker_context import WorkerContext

_CHILD = """
import sys
from importlib import import_module, util
from pathlib import Path
spec = util.spec_from_file_location("runtime", sys.argv[1], submodule_search_locations=[str(Path(sys.argv[1]).parent)])
sys.modules["runtime"] = util.module_from_spec(spec)
folder, path = import_module("runtime.folder"), Path(sys.argv[2])
description = folder.read(path)
folder.set_process_up(path, description)
measured = folder.Measured(path, description)
for number in range(10):
    measured.answer(number)
sys.exit("torch was imported") if "torch" in sys.modules else print(Path("/proc/self/status").read_text())
"""


def engine_resident_bytes(worker: WorkerContext, compiled: Compiled, inputs: Inputs) -> int | None:
    """Return the peak resident bytes of a process that loads the artefact as an exported folder does, and calls it.
    Return None where nothing loads it without torch, or where that fails, and log why."""
    try:
        return _measured(worker, compiled, inputs)
    except Exception:  # whatever fails here costs this number, and not the cell
        traceback.print_exc()
        return None


def _measured(worker: WorkerContext, compiled: Compiled, inputs: Inputs) -> int | None:
    cell, backend = worker.cell, worker.backend
    engine = backend.runtime(cell.device)
    if engine is None or "torch" in engine.imports or backend.mode(cell.mode).no_script or cell.task != INFERENCE:
        return None
    file = next((worker.artifact / name for name in engine.files if (worker.artifact / name).exists()), None)
    fits = psutil.virtual_memory().available > psutil.Process().memory_info().rss
    if file is None or cell.dynamic or sys.platform != "linux" or not fits:
        return None
    inputs_and_outputs = {
        kind: [{"name": "", "type": type_name(tensor.dtype), "shape": tuple(tensor.shape)} for tensor in tensors]
        for kind, tensors in (("inputs", inputs.tensors()), ("outputs", compiled.outputs()))
    }
    description = {
        "format": FORMAT,
        "file": str(file.resolve()),
        "device": str(cell.device),
        "loader": engine.loader,
        "imports": engine.imports,
        "settings": {"options": {}, **backend.loading(cell, compiled.settings()), "threads": worker.threads},
        **inputs_and_outputs,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")
        arrays = {f"input_{number}": words(tensor) for number, tensor in enumerate(inputs.tensors())}
        numpy.savez(Path(folder, SAMPLE), **arrays)  # type: ignore[arg-type]  # these are no options
        command = [sys.executable, "-c", _CHILD, str(runtime.__file__), folder]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=ENGINE_MEMORY_LIMIT_S)
    sys.stderr.write(done.stderr)
    peak = re.search(r"VmHWM:\s*(\d+) kB", done.stdout)
    return int(peak[1]) * 1024 if peak else None
