"""Find out what is wrong with this machine: try each backend with a tiny model, and look for known traps."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from bakeoff import backends, models
from bakeoff.backends.base import Backend
from bakeoff.backends.traps import Finding, Library, Weight
from bakeoff.commands import environments
from bakeoff.commands.checks import built_and_checked, run_for
from bakeoff.commands.listing import installed
from bakeoff.doctor import facts, traps
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, OtherEnvironment, Outcome
from bakeoff.measuring.controller import groundwork
from bakeoff.measuring.controller.launcher import Launcher, Launchers, create_launcher
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.messages import ProbeTorch, TorchFacts, Tried, TryBackend
from bakeoff.measuring.probes import ask
from bakeoff.planning.configurations import ALL, expand_backends
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import Request, StartMethod
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Cell, Status
from bakeoff.records.store import Store

TRIAL_LIMIT_S = 600.0

NEEDED_BY_WORKERS = ("torch", "pydantic")
"""Every environment must have these."""

Say = Callable[[str], None]


def examine(
    backends_asked: Sequence[str], devices_asked: Sequence[str], say: Say, start_method: StartMethod = "auto"
) -> Diagnosis:
    """Try backends, by default all, on devices, by default the CPU and a GPU that torch sees, and look for known traps.
    `say` gets each step. Raises UsageError for a backend, mode or device that does not exist."""
    contests = _plan(backends_asked, devices_asked or ("cpu",))  # wrong names are found before any process starts
    with Launchers(start_method) as launchers:
        say("asking torch")
        probed = ask(launchers.first, ProbeTorch(), TorchFacts)
        if not devices_asked and probed.cuda_devices:
            contests = _plan(backends_asked, ("cpu", "cuda"))
        planned = [cell for contest in contests for cell in contest.cells]
        machine = facts.gather({cell.cell.backend for cell in planned}, probed, launchers.first, say)
        findings = traps.find_all(machine)
        store = Store.create(launchers.first.temporary / "doctor", Request(), [], "bakeoff doctor")
        trials = [
            explained(trial, findings) for contest in contests for trial in _try_all(contest, launchers, store, say)
        ]
    named = [cell.cell.backend for cell in planned if cell.asked_by_name]
    others = []
    for name in environments.names():
        say(f"looking at environment {name}")
        others.append(examine_environment(name, machine.libraries, named, start_method))
    return Diagnosis(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        facts=machine,
        trials=trials,
        findings=findings,
        environments=others,
        broken=[*broken(trials, planned, devices_asked), *broken_libraries(others, named)],
    )


def examine_environment(
    name: str, libraries: Mapping[str, Library], named: Sequence[str], start_method: StartMethod
) -> OtherEnvironment:
    """Return what differs in an environment, and what imports there: torch, pydantic and those of the `libraries` that
    differ or that a named backend needs."""
    python = str(environments.python_of(name))
    contents = {str(canonicalize_name(package)): version for package, version in environments.contents(name).items()}
    needed = {package: libraries.get(package) or Library(name=package) for package in NEEDED_BY_WORKERS}
    wanted = {
        package: cell for package, cell in libraries.items() if package in contents or set(named) & set(cell.backends)
    }
    there = [
        library.but(version=contents.get(library.name) or installed(library.name))
        for library in (needed | wanted).values()
    ]
    with create_launcher(start_method, python) as server:
        tried = [facts.tried(library, server) for library in there if library.version]
    return OtherEnvironment(name=name, python=python, differs=differing_packages(contents), libraries=tried)


def differing_packages(contents: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    both = {package: (version, installed(package)) for package, version in contents.items()}
    return {package: (there, here) for package, (there, here) in both.items() if there != here}


def broken_libraries(other_environments: Iterable[OtherEnvironment], named: Iterable[str]) -> list[str]:
    asked = set(named)
    return [
        f"{library.name} in environment {other_environment.name}"
        for other_environment in other_environments
        for library in other_environment.libraries
        if library.imports is False and asked & set(library.backends)
    ]


def explained(trial: BackendTrial, findings: Sequence[Finding]) -> BackendTrial:
    """Return the trial with the remedy of its cause. A backend that a trap keeps from working is broken, not absent."""
    causes = [finding for finding in findings if _keeps(finding, trial)]
    if trial.outcome is Outcome.PASS or not causes:
        return trial
    remedy = "; ".join(dict.fromkeys(finding.remedy for finding in causes))
    return trial.but(outcome=Outcome.FAIL, remedy=remedy)


def broken(trials: Sequence[BackendTrial], planned: Sequence[PlannedCell], devices_asked: Sequence[str]) -> list[str]:
    """Return a phrase for each thing that the user named and that does not work. A named device must have a backend
    that passes on it, and a named backend must pass on all named devices, or on one and fail on none."""
    phrases = []
    for label in dict.fromkeys(cell.cell.label for cell in planned if cell.asked_by_name):
        own = [trial for trial in trials if trial.label == label]
        wrong = [trial.device for trial in own if trial.outcome is Outcome.FAIL]
        if devices_asked or not any(trial.outcome is Outcome.PASS for trial in own):
            wrong = [trial.device for trial in own if trial.outcome is not Outcome.PASS]
        phrases += [f"{label} on {device}" for device in wrong]
    for device in dict.fromkeys(devices_asked):
        if not any(trial.outcome is Outcome.PASS for trial in trials if trial.device == device):
            phrases.append(f"every backend on {device}")
    return phrases


def _keeps(finding: Finding, trial: BackendTrial) -> bool:
    if finding.weight is not Weight.PROBLEM:
        return False
    concerned = trial.backend in finding.backends if finding.backends else bool(finding.devices)
    return concerned and (not finding.devices or trial.device.kind in finding.devices)


def _plan(backends_asked: Sequence[str], device_names: Sequence[str]) -> list[Contest]:
    devices = [Device(name) for name in device_names]
    contests: dict[str, list[PlannedCell]] = {}
    for device, (name, mode, by_name, _) in itertools.product(devices, expand_backends(backends_asked or [ALL])):
        model, sizes = (backends.if_it_loads(name) or Backend).trial
        dimensions = models.find(model).resolve(sizes)
        cell = Cell(model=model, dimensions=dimensions, device=device, backend=name, mode=mode)
        contests.setdefault(cell.contest_id, []).append(PlannedCell(cell, by_name))
    return [Contest(contest_id, tuple(cells)) for contest_id, cells in contests.items()]


def _try_all(contest: Contest, launchers: Launchers, store: Store, say: Say) -> list[BackendTrial]:
    """Try every cell. If not even the reference can be computed, ask each backend what it says of the device."""
    device = contest.cells[0].cell.device
    say(f"computing the reference on {device}")
    run = run_for(launchers, store, Request(time_limit_s=TRIAL_LIMIT_S))
    try:
        groundwork.reference(contest, run, TRIAL_LIMIT_S)
    except groundwork.NoReference as error:
        return [_without_reference(planned.cell, error, launchers.first) for planned in contest.cells]
    trials = []
    for planned in contest.cells:
        say(f"trying {planned.cell.label} on {device}")
        trials.append(trial := _try(planned, run))
        say(f"{trial.outcome.upper()} {trial.label} on {device}, after {trial.seconds:.1f} s")
    return trials


def _try(planned: PlannedCell, run: RunContext) -> BackendTrial:
    begun = time.monotonic()
    status, reason = planned.refusal
    if reason:
        outcome = Outcome.ABSENT if status is Status.UNSUPPORTED else Outcome.FAIL
        return _trial(planned.cell, outcome, status, reason, begun)
    record, accuracy = built_and_checked(planned, run)
    outcome = Outcome.PASS if record.status is Status.OK else Outcome.FAIL
    if record.status.is_absence:
        outcome = Outcome.ABSENT
    reason = f"wrong: {accuracy.rule}" if accuracy and outcome is Outcome.FAIL else record.reason
    trial = _trial(planned.cell, outcome, record.status, reason, begun, record.log_tail)
    if accuracy is not None and outcome is Outcome.PASS:
        return trial.but(relative_error=accuracy.relative_rmse)
    return trial


def _without_reference(cell: Cell, error: groundwork.NoReference, launcher: Launcher) -> BackendTrial:
    begun = time.monotonic()
    try:
        missing = ask(launcher, TryBackend(backend=cell.backend, device=cell.device), Tried).reason
    except BakeoffError as failed:
        return _trial(cell, Outcome.FAIL, Status.ERROR, str(failed), begun)
    if missing:
        return _trial(cell, Outcome.ABSENT, Status.UNAVAILABLE, missing, begun)
    return _trial(cell, Outcome.FAIL, error.status, error.failure.but(log="").sentence, begun, error.log_tail)


def _trial(cell: Cell, outcome: Outcome, status: Status, reason: str, begun: float, log_tail: str = "") -> BackendTrial:
    command = f"bakeoff --model {cell.model} --backends {cell.label} --devices {cell.device}"
    return BackendTrial(
        backend=cell.backend,
        mode=cell.mode,
        device=cell.device,
        outcome=outcome,
        status=status,
        reason=reason,
        remedy=f"read its log, which this command keeps: {command}" if outcome is Outcome.FAIL else "",
        seconds=time.monotonic() - begun,
        log_tail=log_tail,
    )
