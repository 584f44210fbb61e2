"""Carries out a bisection: makes an environment for each version, measures the contest of each step, and says it."""

import contextlib
import functools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

from bakeoff.commands import environments
from bakeoff.commands import run as runs
from bakeoff.commands.environments import reason_of
from bakeoff.judging.bisection import Bisection, Call, TriedVersion, judge_step
from bakeoff.judging.stored_report import report_of
from bakeoff.measuring.controller.progress import Progress
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import INTERRUPTED, BakeoffError, UsageError, first_line
from bakeoff.records.schema import Frozen, Report
from bakeoff.records.store import Store
from bakeoff.reports import markdown
from bakeoff.reports.bisection import conclusion, step_line, steps_table
from bakeoff.reports.blocks import Look, Text
from bakeoff.reports.command_answers import of_bisection
from bakeoff.reports.console import answered, console_for, print_blocks, say, stderr, write
from bakeoff.reports.live_table import LiveTable

FILE = "bisection.json"


class BisectionState(Frozen):
    """What the folder of a bisection holds beside the runs of its steps."""

    command: str
    request: Request  # of a single cell
    bisection: Bisection


def is_in(folder: Path) -> bool:
    return (folder / FILE).exists()


def begin(
    request: Request,
    package: str,
    good: str,
    bad: str,
    versions: Sequence[str] = (),
    folder: Path | None = None,
    command: str = "",
) -> Path:
    """Prepare a bisection of the one cell of `request`, over `versions` or every released one between the two, and
    return its folder. Nothing is installed or measured yet. Raise UsageError for what cannot be bisected."""
    if request.environments:
        raise UsageError(f"each version gets an environment of its own: leave out @{request.environments[0]}")
    contests = plan(request.but(devices=request.devices or ("cpu",)))
    cells = sum(len(contest.cells) for contest in contests)
    if cells != 1:
        raise UsageError(f"a bisection follows one cell, and these are {cells}: name one model, size, precision, mode")
    whole = from_good_to_bad(versions or released_versions(package), good, bad)
    folder = folder or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}-bisect-{package}"
    Store.check(folder)
    bisection = Bisection(package=package, backend=contests[0].cells[0].cell.configuration, versions=whole)
    _keep(BisectionState(command=command, request=request, bisection=bisection), folder)
    return folder


def take_steps(folder: Path, quiet: bool, as_json: bool) -> int:
    console = console_for(as_json)

    def say_step(bisection: Bisection, step: TriedVersion) -> None:
        if not quiet:
            say(step_line(bisection, step), console)

    take = functools.partial(measure_step, progress=lambda: LiveTable(console, quiet))
    bisected = go_on(folder, take, say_step)
    steps = steps_table(bisected)
    write(folder / "bisection.md", lambda: markdown.render([Text(conclusion(bisected)), steps]))
    is_over, blocks = bisected.next_version is None, [steps, Text(conclusion(bisected), Look.STRONG)]
    status = (0 if bisected.first_slow else 1) if is_over else INTERRUPTED
    answered(of_bisection(bisected, folder), status, as_json, lambda: print_blocks(blocks))
    if not is_over:
        say(f"Interrupted. To measure the rest: bakeoff resume {shlex.quote(str(folder))}", stderr)
    return status


def go_on(
    folder: Path,
    take: Callable[[BisectionState, str, Path], TriedVersion | None],
    on_step: Callable[[Bisection, TriedVersion], None],
) -> Bisection:
    """Take the steps that are left, and keep and report each; the next call goes on after an interruption. `take`
    returns None where a step was interrupted, and what it raises passes through."""
    kept = BisectionState.model_validate_json((folder / FILE).read_text(encoding="utf-8"))
    with contextlib.suppress(KeyboardInterrupt):
        while version := kept.bisection.next_version:
            step = take(kept, version, folder / version)
            if step is None:
                break
            after = kept.bisection.but(steps=(*kept.bisection.steps, step))
            kept = kept.but(bisection=after)
            _keep(kept, folder)
            on_step(after, step)
    return kept.bisection


def measure_step(
    kept: BisectionState, version: str, folder: Path, progress: Callable[[], AbstractContextManager[Progress]]
) -> TriedVersion | None:
    """Measure and judge one version in `folder`, or go on with what is there. Return None if it was interrupted. Raise
    BakeoffError where the good or the bad version does not install, or the model fails with it."""
    bisection = kept.bisection
    names = {
        measured: re.sub(r"[^A-Za-z0-9_.-]", "-", f"{bisection.package}-{measured}")
        for measured in (bisection.good, bisection.bad, version)
    }
    try:
        for version_name, name in names.items():
            environments.ensure(name, [f"{bisection.package}=={version_name}"])
        backends = tuple(f"{bisection.backend}@{name}" for name in names.values())
        request = kept.request.but(backends=backends, no_artifacts=True)
        with progress() as shown:
            report = _report(request, folder, kept.command, shown)
    except BakeoffError as error:
        if version == bisection.bad:
            raise
        return TriedVersion(version=version, call=Call.SKIPPED, reason=first_line(error))
    if not report.complete:
        return None
    step = judge_step(version, report.records, names[bisection.good], names[bisection.bad], names[version])
    if version == bisection.bad and step.call is Call.SKIPPED:
        raise BakeoffError(step.reason)
    return step


def _report(request: Request, folder: Path, command: str, progress: Progress) -> Report:
    """Return the report of a step. One that was killed goes on from what is in its folder."""
    if not Store.is_run(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return runs.run(request, folder, command, progress)[0]
    report = report_of(Store.open(folder))
    return report if report.complete else runs.resume(folder, progress)[0]


def _keep(kept: BisectionState, folder: Path) -> None:
    write_atomically(folder / FILE, kept.model_dump_json(indent=1))


def released_versions(package: str) -> list[str]:
    """Return the versions that pip could install, without pre-releases. Raises UsageError where it finds none."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    match = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or match is None:
        reason = reason_of(done.stderr)
        raise UsageError(f"--package {package}: pip finds no versions ({reason}): name them, --versions 1.2,1.3")
    return [text for text in match[1].split(", ") if "+" not in text]  # `2.13.0+cpu` is a build of 2.13.0


def from_good_to_bad(versions: Iterable[str], good: str, bad: str) -> tuple[str, ...]:
    """Return `good`, the versions between the two in order, and `bad`. Raises UsageError for what is no version."""
    first, last = _parsed(good), _parsed(bad)
    if first >= last:
        raise UsageError(f"--good {good} has to be older than --bad {bad}")
    between = {parsed: text for text in versions if first < (parsed := _parsed(text)) < last}
    return good, *(between[parsed] for parsed in sorted(between)), bad


def _parsed(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"'{text}' is not a version such as 2.13 or 2.13.0") from None
