"""Measures what it takes to start: each contender's exported folder in fresh processes, in turns.

Every process has private, empty caches for what compilers keep, as a new container has. It does what the folder's
`load.py` does, stage by stage; `scripts/start_stages.py` stamps the end of each.
"""

import contextlib
import math
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from bakeoff import backends
from bakeoff.backends.runtime import folder as exported
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.fit import by_contest
from bakeoff.judging.judgement import contests_of, judged_anew
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.judging.stored_report import builds_at, report_of
from bakeoff.measuring import isolation, nvml
from bakeoff.measuring.controller import environment
from bakeoff.measuring.controller.server_start import temporary_folder
from bakeoff.records.errors import NOTHING_YET, BakeoffError, UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.start_samples import Start, StartedCell, Starts
from bakeoff.records.store import Store
from bakeoff.records.text import last_words, one_line
from bakeoff.shipping import cpp_program, export, script_environment

LONGEST_START_S = 600.0
"""A start that takes longer is ended."""

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

_CHILD = Path(__file__).with_name("scripts") / "start_stages.py"
_STAMPED = ("interpreter_s", "imports_s", "load_s", "first_answer_s", "later_answers_s")
_ENDS = re.compile(r"^bakeoff start: (\d+) (\d+) (\d+) (\d+) (\d+)$")
_NOT_LOADED = frozenset({export.START, exported.SAMPLE, exported.DESCRIPTION, "README.md", exported.REQUIREMENTS})
_ARTIFACTS = frozenset({".onnx", ".data", ".xml", ".bin", ".pt2"})


class StartFailed(BakeoffError):
    """A process ended before its tenth answer, or its answer was wrong."""


@dataclass
class Contender:
    """One script or program that is started, with what its cell is."""

    record: Record
    label: str
    script: str = ""  # its name
    command: list[str] = field(default_factory=list)
    artifact_bytes: int | None = None
    distributions: dict[str, int] | None = None  # None for a program: they are read from its process
    starts: list[Start] = field(default_factory=list)
    reason: str = ""  # why it cannot be started any more
    is_cut_off: bool = False  # by the time budget or an interruption


def measure_run(
    path: Path, names: Sequence[str], starts: int, drops_page_cache: bool, progress: Callable[[str], None]
) -> Starts:
    """Start the best two and eager of the run at `path`, or the cells of these names, `starts` times each, and also
    their programs in C++. An interruption keeps whole turns. Raise UsageError if nothing can start, or the page cache
    may not be dropped."""
    if starts < LEAST_STARTS:
        raise UsageError(f"--starts {starts}: at least {LEAST_STARTS}, of which a median has an interval")
    if drops_page_cache:
        drop_page_cache()
    report = builds_at(path)
    records = _named(report, names)
    try:
        cells = _start(report, path, records, progress, starts=starts, drops_page_cache=drops_page_cache, programs=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(NOTHING_YET) from None
    here = environment.capture()
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


def add_starts(store: Store, requirements: Requirements, note: Callable[[str], None], ends_s: float) -> None:
    """Start the contenders of each contest of a run that lacks starts, until `ends_s`, and keep that in their records.
    `note` gets a line for each contest. An interruption leaves the contest under way without starts."""
    report = report_of(store)
    started = by_contest(record for record in report.records if record.starts)
    whole = {contest_id for contest_id, ones in started.items() if not any(one.is_left_to_resume for one in ones)}
    with contextlib.suppress(KeyboardInterrupt):
        for contest in contests_of(judged_anew(report, require=str(requirements.without_starts()))):
            sound = [cell for cell in contest.cells if cell.record.status is Status.OK and cell.latency]
            cells = contest.ranked or sound
            if contest.contest_id in whole or not cells:
                continue
            records = [cell.record for cell in cells]
            # by default they are the best two and eager
            chosen = records if requirements.judge_starts else _contenders(records)
            labels = ", ".join(record.cell.label for record in chosen)
            note(f"starting {labels} of {contest.title} in {LEAST_STARTS} fresh processes each")
            kept = store.records([record.cell.id for record in chosen])  # without latencies that are fitted
            cells_started = _start(report, store.root, kept, lambda _: None, ends_s=ends_s)
            for record, cell in zip(kept, cells_started, strict=True):
                store.save(record.but(starts=[cell]))


def _start(
    report: Report,
    run: Path,
    records: Sequence[Record],
    progress: Callable[[str], None],
    starts: int = LEAST_STARTS,
    drops_page_cache: bool = False,
    programs: bool = False,
    ends_s: float = math.inf,
) -> list[StartedCell]:
    """Export the cells of these records, start them in turns, and return what came out, in the same order."""
    with temporary_folder("start") as temporary:
        contenders: list[Contender] = []
        for number, record in enumerate(records):
            progress(f"exporting {record.cell.label}")
            contenders.append(_prepare(report, run, record, temporary / str(number)))
            if programs and (bare := _without_compiled(contenders[-1])):
                contenders.append(bare)
            if programs and (program := _prepare_program(run, record, temporary / f"{number}-cpp", progress)):
                contenders.append(program)
        try:
            measure(contenders, starts, drops_page_cache, progress, ends_s)
        except KeyboardInterrupt:
            if not (programs and any(contender.starts for contender in contenders)):
                raise
        return [StartedCell.of(contender, cell_id=contender.record.cell.id) for contender in contenders]


def measure(
    contenders: Sequence[Contender],
    starts: int,
    drops_page_cache: bool,
    progress: Callable[[str], None],
    ends_s: float = math.inf,
) -> None:
    """Start every contender once in each turn, in random order. One that fails is not started again. After `ends_s` of
    the monotonic clock, or an interruption, nothing is started: whole turns are kept, and each contender says how many
    there were."""

    def cut_off(why: str) -> None:
        for contender in contenders:
            if not contender.reason:
                contender.reason, contender.is_cut_off = f"{why} after {turn} of {starts} starts", True
                del contender.starts[turn:]

    for turn in range(starts):
        for contender in random.sample(contenders, len(contenders)):
            if contender.reason:
                continue
            if time.monotonic() > ends_s:
                return cut_off("the time budget was over")
            try:
                progress(f"turn {turn + 1} of {starts}: {contender.label}")
                if drops_page_cache:
                    drop_page_cache()
                start_once(contender)
            except StartFailed as error:
                contender.reason = str(error)
                contender.starts.clear()
            except KeyboardInterrupt:
                cut_off("interrupted")
                raise


def start_once(contender: Contender) -> None:
    """Start a contender in a fresh process, and keep its times and its memory. Raises StartFailed."""
    cuda_index = contender.record.cell.device.cuda_index
    free_before = None if cuda_index is None else nvml.device_free_bytes(cuda_index)
    with temporary_folder("start") as temporary, tempfile.TemporaryFile("w+") as said:
        workspace = isolation.make_workspace(temporary)
        variables = isolation.child_environment(os.environ, workspace, contender.script)
        began_ns = time.monotonic_ns()
        process = subprocess.Popen(
            contender.command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        )
        watchdog = threading.Timer(LONGEST_START_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            assert process.stdout is not None
            ends = next((match for line in process.stdout if (match := _ENDS.match(line.rstrip()))), None)
            memory = _memory(process.pid) if ends else (None, None)
            if ends and contender.distributions is None and contender.script == cpp_program.PROGRAM:
                contender.distributions = _libraries(process.pid)
            free_after = None if cuda_index is None else nvml.device_free_bytes(cuda_index)
            output, _ = process.communicate("\n")
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        if ends is None or process.returncode:
            said.seek(0)
            why = last_words(said.read()) or last_words(output)
            raise StartFailed(why or f"its process ended with {process.returncode}")
    ends_ns = [began_ns, *map(int, ends.groups())]
    stages = {name: (end - begin) / 1e9 for name, begin, end in zip(_STAMPED, ends_ns[:-1], ends_ns[1:], strict=True)}
    device_bytes = None if free_before is None or free_after is None else max(0, free_before - free_after)
    start = Start(**stages, peak_bytes=memory[0], steady_bytes=memory[1], device_bytes=device_bytes)
    contender.starts.append(start)


def drop_page_cache() -> None:
    """Have the kernel forget all files that it keeps in memory. Raises UsageError where that is not allowed."""
    try:
        os.sync()
        DROP_CACHES.write_text("3", encoding="ascii")
    except (OSError, AttributeError) as error:
        raise UsageError(f"--cold: the page cache cannot be dropped ({error}): it needs root on Linux") from None


def _named(report: Report, names: Sequence[str]) -> list[Record]:
    """Return the records to start: those named, or the best two of the only contest and its baseline."""
    if names:
        return list({id(record): record for record in (export.choose(report, name) for name in names)}.values())
    contests = contests_of(report)
    if len(contests) > 1:
        raise UsageError(f"{report.run_id} has {len(contests)} contests: name the cells to start")
    ranked = [cell.record for contest in contests for cell in contest.ranked]
    if not ranked:
        raise UsageError(f"{report.run_id} has no cell that could be ranked: there is nothing to start")
    return _contenders(ranked)


def _contenders(records: Sequence[Record]) -> list[Record]:
    best = [record for record in records if record.cell.backend != BASELINE][:2]
    return best + [record for record in records if record.cell.backend == BASELINE][:1]


def _prepare(report: Report, path: Path, record: Record, folder: Path) -> Contender:
    """Export a cell into `folder`, with the environment that runs it; or say why that cannot be."""
    try:
        if record.cell.environment:
            raise UsageError(f"it ran in the environment {record.cell.environment}, and starts are those of this one")
        _, script = export.export(path, record.cell.id, folder, with_models=True, compiles=False)
    except BakeoffError as error:
        return Contender(record, record.cell.label, reason=one_line(str(error)))
    sizes = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        requirements = (folder / exported.REQUIREMENTS).read_text(encoding="utf-8").splitlines()
        sizes = script_environment.sizes_of(requirements)
    python = sys.executable
    is_model = record.cell.backend == BASELINE  # whose code may import anything that is here
    with contextlib.suppress(OSError):  # without links it runs in this environment
        if sizes and not is_model:
            python = str(script_environment.make_environment(sizes, folder / "environment"))
    runtime = backends.create(record.cell.backend).runtime(record.cell.device)
    if runtime and runtime.compiles_at_load:
        export.compile_folder(folder, python)
    files = [file for file in folder.iterdir() if file.is_file() and file.name not in _NOT_LOADED]
    files += [file for file in (folder / export.COMPILED).rglob("*") if file.is_file()]
    loaded = sum(file.stat().st_size for file in files)
    return Contender(record, record.cell.label, script.name, _staged(python, folder), loaded, sizes)


def _staged(python: str, folder: Path) -> list[str]:
    return [python, str(_CHILD), str(folder)]


def _without_compiled(contender: Contender) -> Contender | None:
    """Return the same folder without what was compiled for it, or None if nothing was."""
    if contender.reason:
        return None
    python, child, folder = contender.command
    if not (compiled := Path(folder, export.COMPILED)).exists():
        return None
    bare = Path(f"{folder}-not-compiled")
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("environment", export.COMPILED))
    size = sum(file.stat().st_size for file in compiled.rglob("*") if file.is_file())
    return replace(
        contender,
        label=f"{contender.label}, compiled at its start",
        command=[python, child, str(bare)],
        artifact_bytes=(contender.artifact_bytes or 0) - size,
        starts=[],
    )


def _prepare_program(path: Path, record: Record, folder: Path, progress: Callable[[str], None]) -> Contender | None:
    """Build the program in C++ of a cell in `folder`; or say why that failed. None: its backend has no program."""
    runtime = backends.create(record.cell.backend).runtime(record.cell.device)
    if runtime is None or not runtime.cpp:
        return None
    label = f"{record.cell.label} in C++"
    progress(f"building {label}")
    try:
        _, source = export.export(path, record.cell.id, folder, export.Format.CPP)
        program = cpp_program.build(folder, runtime.cpp)
    except BakeoffError as error:
        return Contender(record, label, cpp_program.PROGRAM, reason=one_line(str(error)))
    loaded = sum(file.stat().st_size for file in folder.iterdir() if file.is_file() and file.suffix in _ARTIFACTS)
    return Contender(record, label, source.name, [str(program), str(folder), "--start"], loaded, None)


def _memory(pid: int) -> tuple[int | None, int | None]:
    process = psutil.Process(pid)
    steady = process.memory_info()
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return getattr(steady, "peak_wset", None), steady.rss
    peak = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(peak[1]) * 1024 if peak else None, steady.rss


def _libraries(pid: int) -> dict[str, int] | None:
    """Return the sizes of the libraries that a process has loaded, without those of the system."""
    try:
        paths = {Path(mapped.path) for mapped in psutil.Process(pid).memory_maps()}
    except (AttributeError, psutil.Error):  # not on every platform
        return None
    own = [path for path in paths if ".so" in path.name and not path.is_relative_to("/lib") and path.is_file()]
    own = [path for path in own if not path.is_relative_to("/usr/lib")]
    return dict(sorted({path.name: path.stat().st_size for path in own}.items(), key=lambda item: -item[1]))
