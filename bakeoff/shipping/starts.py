"""Measures what it takes to start: each contender's exported folder in fresh processes, in turns.

Every process has private, empty caches for what compilers keep, as a new container has. It runs the script of the
folder as a user would, stage by stage; `scripts/start_stages.py` stamps the end of each.
"""

from __future__ import annotations

import ast
import itertools
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from bakeoff.judging.judgement import contests_of
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.starts import LEAST_STARTS
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring import isolation, nvml
from bakeoff.measuring.controller import environment
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Record, Report
from bakeoff.records.starts import Start, StartedCell, Starts
from bakeoff.records.text import one_line
from bakeoff.shipping import export, reproduce, wheels

LONGEST_START_S = 600.0
"""A start that takes longer is ended."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

_CHILD = Path(__file__).with_name("scripts") / "start_stages.py"
_ENDS = re.compile(r"^bakeoff start: (\d+) (\d+) (\d+) (\d+) (\d+)$")
_NOT_LOADED = frozenset({"load.py", "sample.npz", "README.md", "requirements.txt", "bakeoff.json"})


class StartFailed(BakeoffError):
    """A process ended before its tenth answer, or its answer was wrong."""


@dataclass
class Contender:
    """One script that is started, with what its cell is."""

    record: Record
    script: Path
    artifact_bytes: int | None
    distributions: dict[str, int] | None
    starts: list[Start] = field(default_factory=list)
    reason: str = ""


def measure_run(
    path: Path, names: Sequence[str], starts: int, drops_page_cache: bool, progress: Callable[[str], None]
) -> Starts:
    """Start the best two and eager of the run at `path`, or the cells of these names, so many times each.

    Raises UsageError if there is nothing to start, or the page cache may not be dropped.
    """
    if starts < LEAST_STARTS:
        raise UsageError(f"--starts {starts}: at least {LEAST_STARTS}, of which a median has an interval")
    if drops_page_cache:
        drop_page_cache()
    report = report_at(path)
    records = _chosen(report, names)
    with tempfile.TemporaryDirectory(prefix="bakeoff-start-") as temporary:
        prepared = []
        for number, record in enumerate(records):
            progress(f"exporting {record.cell.label}")
            prepared.append(_prepare(report, path, record, Path(temporary) / str(number)))
        contenders = [each for each in prepared if isinstance(each, Contender)]
        measure(contenders, starts, drops_page_cache, progress)
        cells = [each if isinstance(each, StartedCell) else _ended(each) for each in prepared]
    here = environment.capture(None)
    return Starts(
        run_id=report.run_id,
        title=next(
            contest.title for contest in contests_of(report) if contest.contest_id == records[0].cell.contest_id
        ),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{here.cpu} ({here.usable_cores or '?'} cores)",
        python=platform.python_version(),
        is_page_cache_dropped=drops_page_cache,
        cells=cells,
    )


def measure(
    contenders: Sequence[Contender], starts: int, drops_page_cache: bool, progress: Callable[[str], None]
) -> None:
    """Start every contender once in each turn, in random order. One that fails is not started again."""
    for turn in range(starts):
        for contender in random.sample(contenders, len(contenders)):
            if contender.reason:
                continue
            progress(f"turn {turn + 1} of {starts}: {contender.record.cell.label}")
            if drops_page_cache:
                drop_page_cache()
            try:
                contender.starts.append(start_once(contender.script, contender.record.cell.device.cuda_index))
            except StartFailed as error:
                contender.reason = str(error)
                contender.starts.clear()


def start_once(script: Path, cuda_index: int | None = None) -> Start:
    """Start a script in a fresh process, and return its times and its memory. Raises StartFailed."""
    lines = map(str, _stage_lines(script.read_text(encoding="utf-8")))
    free_before = None if cuda_index is None else nvml.device_free_bytes(cuda_index)
    with tempfile.TemporaryDirectory(prefix="bakeoff-start-") as temporary, tempfile.TemporaryFile("w+") as said:
        variables = isolation.child_environment(os.environ, isolation.make_workspace(Path(temporary)), script.name)
        command = [sys.executable, str(_CHILD), str(script), *lines]
        began_ns = time.monotonic_ns()
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        )
        watchdog = threading.Timer(LONGEST_START_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            assert process.stdout is not None
            found = next((match for line in process.stdout if (match := _ENDS.match(line.rstrip()))), None)
            memory = _memory(process.pid) if found else (None, None)
            free_after = None if cuda_index is None else nvml.device_free_bytes(cuda_index)
            output, _ = process.communicate("\n")
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        if found is None or process.returncode:
            said.seek(0)
            text = said.read().strip().splitlines() or output.strip().splitlines()
            raise StartFailed(one_line(text[-1], 300) if text else f"its process ended with {process.returncode}")
    ends_ns = [began_ns, *map(int, found.groups())]
    seconds = [(end - begin) / 1e9 for begin, end in itertools.pairwise(ends_ns)]
    interpreter_s, imports_s, load_s, first_answer_s, later_answers_s = seconds
    return Start(
        interpreter_s=interpreter_s,
        imports_s=imports_s,
        load_s=load_s,
        first_answer_s=first_answer_s,
        later_answers_s=later_answers_s,
        peak_bytes=memory[0],
        steady_bytes=memory[1],
        device_bytes=None if free_before is None or free_after is None else max(0, free_before - free_after),
    )


def drop_page_cache() -> None:
    """Have the kernel forget all files that it keeps in memory. Raises UsageError where that is not allowed."""
    try:
        os.sync()
        DROP_CACHES.write_text("3", encoding="ascii")
    except (OSError, AttributeError) as error:
        raise UsageError(f"--cold: the page cache cannot be dropped ({error}): it needs root on Linux") from None


def _chosen(report: Report, names: Sequence[str]) -> list[Record]:
    """Return the records to start: those named, or the best two of the only contest and its baseline."""
    if names:
        return list({id(record): record for record in (export.choose(report, name) for name in names)}.values())
    contests = contests_of(report)
    if len(contests) > 1:
        raise UsageError(f"{report.run_id} has {len(contests)} contests: name the cells to start")
    ranked = [cell.record for contest in contests for cell in contest.ranked]
    if not ranked:
        raise UsageError(f"{report.run_id} has no cell that could be ranked: there is nothing to start")
    best = [record for record in ranked if record.cell.backend != BASELINE][:2]
    return best + [record for record in ranked if record.cell.backend == BASELINE][:1]


def _prepare(report: Report, path: Path, record: Record, folder: Path) -> Contender | StartedCell:
    """Write the script of a cell into `folder`; or say why there is none."""
    try:
        if record.cell.environment:
            raise UsageError(f"it ran in the environment {record.cell.environment}, and starts are those of this one")
        if record.cell.backend == BASELINE:
            script = folder / "script.py"
            folder.mkdir()
            source = reproduce.script_for(report, record)
            reproduce.write(source, script)
            return Contender(record, script, None, _sizes(wheels.distributions_imported(source)))
        _, script = export.export(path, record.cell.id, folder)
        loaded = sum(file.stat().st_size for file in folder.iterdir() if file.name not in _NOT_LOADED)
        needed = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
        return Contender(record, script, loaded, _sizes(needed))
    except BakeoffError as error:
        return StartedCell(cell_id=record.cell.id, label=record.cell.label, reason=one_line(str(error)))


def _sizes(requirements: Sequence[str]) -> dict[str, int] | None:
    try:
        return wheels.sizes_of(requirements)
    except metadata.PackageNotFoundError:
        return None


def _ended(contender: Contender) -> StartedCell:
    return StartedCell(
        cell_id=contender.record.cell.id,
        label=contender.record.cell.label,
        script=contender.script.name,
        artifact_bytes=contender.artifact_bytes,
        distributions=contender.distributions,
        starts=contender.starts,
        reason=contender.reason,
    )


def _stage_lines(source: str) -> tuple[int, int, int, int]:
    """Return after which line imports and loading end, and between which lines the script checks its outputs."""
    body = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    imports_end = imports[-1].end_lineno or 0 if imports else 0
    main = next((node for node in reversed(body) if isinstance(node, ast.If)), None)
    if main is None:
        return imports_end, source.count("\n") + 1, 0, 0
    measuring = next(
        (node.lineno for node in main.body if isinstance(node, ast.Expr) and ast.unparse(node) == "gc.disable()"), None
    )
    return imports_end, main.lineno - 1, main.lineno, (measuring or main.lineno + 1) - 1


def _memory(pid: int) -> tuple[int | None, int | None]:
    """Return the peak and the present resident bytes of a process."""
    process = psutil.Process(pid)
    steady = process.memory_info()
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return getattr(steady, "peak_wset", None), steady.rss
    peak = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(peak[1]) * 1024 if peak else None, steady.rss
