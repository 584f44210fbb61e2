"""What the doctor says of a machine: facts, what each backend came to when it was tried, and known traps.

Nothing here imports torch. Version of the format: `SCHEMA_VERSION`, semantic, as `records.schema`'s.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from records.device import Device
from records.schema import Frozen, Seconds, Status

SCHEMA_VERSION = "1.0.0"


class Library(Frozen):
    """A distribution that a backend stands on, by its own metadata."""

    name: str
    version: str | None = None  # None: not installed
    needed: str = ""  # by Bakeoff: ">=2.8,<2.14"; empty: any version
    requires: list[str] = Field(default_factory=list)  # of other such libraries, as it says itself: "torch<2.14,>=2.13"
    backends: list[str] = Field(default_factory=list)  # that name it among their libraries
    imports: bool | None = None  # in a child process; None: not tried
    import_error: str = ""


class GpuState(Frozen):
    """A GPU before anything of ours runs on it. What NVML does not tell is None."""

    index: int
    name: str
    persistence_mode: bool | None = None
    application_sm_clock_mhz: int | None = None  # what programs are to run at
    default_sm_clock_mhz: int | None = None  # what that is as long as nobody has set another
    held_down_by: list[str] = Field(default_factory=list)  # why its clock is below what it could be, in NVML's words
    processes: int | None = None  # that compute on it


class Facts(Frozen):
    """What was read of the machine and its software, and what the traps are judged by. Unreadable things are None."""

    python: str
    libraries: dict[str, Library] = Field(default_factory=dict)
    torch: str | None = None  # as torch says itself, with its local version: 2.13.0+cpu
    torch_cuda: str | None = None  # the CUDA that torch was built for; None: a build without
    cuda_devices: int = 0  # that torch sees
    linked: dict[str, int] = Field(
        default_factory=dict
    )  # major versions that ONNX Runtime's providers link: CUDA, TensorRT
    nvidia_cards: int = 0  # on the PCI bus, with a driver or without
    has_nvml: bool = False
    driver_cuda: str | None = None  # the newest CUDA that the driver runs
    gpus: list[GpuState] = Field(default_factory=list)
    cxx: str | None = None  # path of the C++ compiler
    shared_memory_bytes: int | None = None  # size of /dev/shm
    governor: str | None = None
    cores: int | None = None  # of the machine
    affinity_cores: int | None = None  # that this process may run on
    quota_cores: float | None = None  # that its control group grants in time
    container: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)  # that overrule precision

    def libraries_of(self, backend: str) -> list[Library]:
        return [library for library in self.libraries.values() if backend in library.backends]

    def version(self, name: str) -> str | None:
        """Of the distribution `name`; None where it is not installed."""
        library = self.libraries.get(name)
        return library.version if library else None


class Weight(StrEnum):
    PROBLEM = "problem"  # something will not work
    WARNING = "warning"  # numbers will be worse, or other than a deployment's
    NOTE = "note"


class Finding(Frozen):
    """A known trap that this machine is in."""

    trap: str  # the function of doctor.traps that found it, with dashes
    weight: Weight
    text: str
    remedy: str
    backends: list[str] = Field(default_factory=list)  # that it keeps from working
    devices: list[str] = Field(default_factory=list)  # kinds of device on which it does; none: all


class Outcome(StrEnum):
    PASS = "pass"  # built, run, and right to float64's tolerance
    FAIL = "fail"
    ABSENT = "absent"  # this machine lacks it, and nothing of it is broken


class Trial(Frozen):
    """A tiny model, built by one backend on one device in a process of its own and checked against float64."""

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
    trials: list[Trial]
    findings: list[Finding]
    broken: list[str] = Field(default_factory=list)  # what was asked for by name and does not work

    @property
    def exit_status(self) -> int:
        """1 where something that was asked for by name does not work, else 0."""
        return 1 if self.broken else 0
