"""Known traps: what they look at, and what they say. A backend names the traps that are its own.

A trap is a pure function from the facts of a machine to findings. docs/troubleshooting.md has a section for each of
ours, under its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from bakeoff.records.frozen import Frozen


class Library(Frozen):
    """A package that a backend needs, as its own metadata describes it."""

    name: str
    version: str | None = None  # None: not installed
    needed: str = ""  # the versions that Bakeoff needs, such as ">=2.8"; empty: any version
    requires: list[str] = Field(default_factory=list)  # what it needs of other such packages: "torch<2.14,>=2.13"
    backends: list[str] = Field(default_factory=list)  # the backends that need it
    imports: bool | None = None  # whether it imports in a process of its own; None: not tried
    import_error: str = ""


class GpuState(Frozen):
    """A GPU before anything of ours runs on it. Values that NVML does not report are None."""

    index: int
    name: str
    persistence_mode: bool | None = None
    application_sm_clock_mhz: int | None = None  # the clock that is set for programs
    default_sm_clock_mhz: int | None = None  # the clock that is set by default
    held_down_by: list[str] = Field(default_factory=list)  # NVML's reasons why its clock is low
    processes: int | None = None  # the number of processes that compute on it


class Facts(Frozen):
    """What was read of the machine and its software. The traps look at nothing else. Unreadable values are None."""

    python: str
    libraries: dict[str, Library] = Field(default_factory=dict)
    torch: str | None = None  # with the local version: 2.13.0+cpu
    torch_cuda: str | None = None  # the CUDA that torch was built for; None: a build without CUDA
    cuda_devices: int = 0  # the devices that torch sees
    # the major versions that libraries of backends are linked against, by the name in their `Link`
    linked: dict[str, int] = Field(default_factory=dict)
    nvidia_cards: int = 0  # cards on the PCI bus, with a driver or without
    has_nvml: bool = False
    driver_cuda: str | None = None  # the newest CUDA that the driver runs
    gpus: list[GpuState] = Field(default_factory=list)
    cxx: str | None = None  # path of the C++ compiler
    shared_memory_bytes: int | None = None  # size of /dev/shm
    governor: str | None = None
    cores: int | None = None  # cores of the machine
    affinity_cores: int | None = None  # cores that this process may run on
    quota_cores: float | None = None  # cores' worth of time that its control group may use
    container: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)  # variables that overrule precision

    def version(self, name: str) -> str | None:
        library = self.libraries.get(name)
        return library.version if library else None

    @property
    def has_gpu(self) -> bool:
        return bool(self.gpus or self.nvidia_cards)


class Weight(StrEnum):
    PROBLEM = "problem"  # something will not work
    WARNING = "warning"  # numbers will be worse than a deployment's, or differ from them
    NOTE = "note"


class Finding(Frozen):
    """A known trap that was found on this machine."""

    trap: str = ""  # the name of the function that found it, with dashes
    weight: Weight
    text: str
    remedy: str
    backends: list[str] = Field(default_factory=list)  # backends that do not work because of it
    devices: list[str] = Field(default_factory=list)  # kinds of device on which they do not work; empty: all


@dataclass(frozen=True)
class Link:
    """A file of a library that is linked against one major version of another library."""

    name: str
    """The other library's name in `Facts.linked`."""
    distribution: str
    file: str
    """The path of the file, as the distribution installs it."""
    library: str
    """The other library's file, such as `libcudart.so`, without the number of its version."""


Trap = Callable[[Facts], Iterator[Finding]]


def minor_version(version: str) -> str:
    """Return `2.13` for `2.13.0+cpu`."""
    from packaging.version import Version  # another environment may lack it, and no trap is looked for there

    return ".".join(str(part) for part in Version(version).release[:2])


def major_version(version: str) -> int:
    from packaging.version import Version

    return Version(version).major
