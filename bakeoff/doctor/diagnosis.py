"""What the doctor says of a machine: its facts, the trial of each backend, and the known traps that were found.

The format has a semantic version, `SCHEMA_VERSION`.
"""

from enum import StrEnum

from pydantic import Field

from bakeoff.backends.traps import Facts, Finding, Library
from bakeoff.records.device import Device
from bakeoff.records.schema import Frozen, Seconds, Status

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
