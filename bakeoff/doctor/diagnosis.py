"""What the doctor says of a machine: its facts, the trial of each backend, and the known traps that were found.

The format has a semantic version, `SCHEMA_VERSION`. `blocks_of` shows it.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from pydantic import Field

from bakeoff.backends.traps import Facts, Finding, Library, Weight
from bakeoff.records.device import Device
from bakeoff.records.schema import Frozen, Seconds, Status
from bakeoff.reports.blocks import Block, Items, Look, Text
from bakeoff.reports.tables import text_table

SCHEMA_VERSION = "1.1.0"


class OtherEnvironment(Frozen):
    name: str
    python: str  # its interpreter
    differs: dict[str, tuple[str, str | None]]  # by package: the version there, and here
    libraries: list[Library]  # that were imported there, with the versions there


class Outcome(StrEnum):
    PASS = "pass"  # it was built, it ran, and its outputs were right
    FAIL = "fail"
    ABSENT = "absent"  # this machine lacks it, and nothing is broken


class BackendTrial(Frozen):
    """The result of building a tiny model with one backend on one device, and of checking it against float64."""

    backend: str
    mode: str = "default"
    device: Device
    outcome: Outcome
    status: Status
    reason: str = ""
    remedy: str = ""
    relative_error: float | None = None
    seconds: Seconds = 0.0
    log_tail: str = ""

    @property
    def label(self) -> str:
        return self.backend if self.mode == "default" else f"{self.backend}/{self.mode}"


class Diagnosis(Frozen):
    schema_version: str = SCHEMA_VERSION
    created_at: str
    facts: Facts
    trials: list[BackendTrial]
    findings: list[Finding]
    environments: list[OtherEnvironment] = Field(default_factory=list)
    broken: list[str] = Field(default_factory=list)  # what the user named and what does not work

    @property
    def exit_status(self) -> int:
        """Return 1 where something that the user named does not work, else 0."""
        return 1 if self.broken else 0


LOOKS = {
    Outcome.FAIL: Look.FAILED,
    Outcome.ABSENT: Look.SOFT,
    Weight.PROBLEM: Look.FAILED,
    Weight.WARNING: Look.WARNING,
    Weight.NOTE: Look.SOFT,
}


def blocks_of(diagnosis: Diagnosis) -> list[Block]:
    rows = [row for trial in diagnosis.trials for row in _rows(trial, diagnosis.facts)]
    versions = "versions\u00a0(and\u00a0what\u00a0is\u00a0needed)"
    table = text_table(["", "backend", "device", "s", versions], rows, "lllrl")
    looks = {trial.outcome.upper(): LOOKS[trial.outcome] for trial in diagnosis.trials if trial.outcome in LOOKS}
    return [
        Text(_machine(diagnosis.facts)),
        replace(table, look=lambda row: looks.get(row[0], Look.PLAIN)),
        *(block for finding in diagnosis.findings for block in _finding(finding)),
        *(block for environment in diagnosis.environments for block in _environment(environment)),
        Text(_conclusion(diagnosis)),
    ]


def _machine(facts: Facts) -> str:
    cuda = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "no CUDA"
    gpus = ", ".join(gpu.name for gpu in facts.gpus) or "no GPU"
    driver = f", driver for CUDA {facts.driver_cuda}" if facts.driver_cuda else ""
    where = f", in a container ({facts.container})" if facts.container else ""
    return f"Python {facts.python}, torch {facts.torch} ({cuda}), {gpus}{driver}{where}"


def _rows(trial: BackendTrial, facts: Facts) -> list[list[str]]:
    """Return a row for a trial, and one below it for each thing that is to be said of it."""
    remedy = f"do: {trial.remedy}" if trial.remedy else ""
    first, *more = [", ".join(_versions(trial, facts)), *filter(None, [trial.reason, remedy])]
    row = [trial.outcome.upper(), trial.label, str(trial.device), f"{trial.seconds:.1f}", first]
    return [row, *(["", "", "", "", text] for text in more)]


def _versions(trial: BackendTrial, facts: Facts) -> Iterator[str]:
    """Return texts such as `torch 2.13.0 (>=2.8.0a0)`. A missing library is named if the trial did not pass."""
    for library in (library for library in facts.libraries.values() if trial.backend in library.backends):
        needed = [library.needed] if library.needed else []
        wants = "; ".join([*needed, *(f"wants {text}" for text in library.requires)])
        if library.version:
            yield f"{library.name} {library.version}{f' ({wants})' if wants else ''}"
        elif trial.outcome is not Outcome.PASS:
            yield f"{library.name} not installed{f' ({wants})' if wants else ''}"


def _finding(finding: Finding) -> list[Block]:
    more = [f"do: {finding.remedy}", f"more: docs/troubleshooting.md#{finding.trap}"]
    return [Text(f"{finding.weight.upper()} {finding.text}", LOOKS[finding.weight]), Items(more, bullet="  ")]


def _environment(other: OtherEnvironment) -> list[Block]:
    differs = [f"{package} {there} (here {here or 'none'})" for package, (there, here) in other.differs.items()]
    importing = [f"{library.name} {library.version}" for library in other.libraries if library.imports]
    failing = [
        f"{library.name} {library.version} cannot be imported: {library.import_error}"
        for library in other.libraries
        if not library.imports
    ]
    more = [other.python, f"{', '.join(importing) or 'nothing'} can be imported", *failing]
    return [Text(f"ENVIRONMENT {other.name}: {', '.join(differs) or 'no package differs'}"), Items(more, bullet="  ")]


def _conclusion(diagnosis: Diagnosis) -> str:
    passed = sum(trial.outcome is Outcome.PASS for trial in diagnosis.trials)
    failed = sum(trial.outcome is Outcome.FAIL for trial in diagnosis.trials)
    absent = len(diagnosis.trials) - passed - failed
    counted = f"{passed} passed, {failed} failed, {absent} absent"
    if diagnosis.broken:
        return f"{counted}. You asked for these, and they do not work: {', '.join(diagnosis.broken)}"
    return counted
