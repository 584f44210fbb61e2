"""What the doctor reads of a machine: files, the metadata of packages, NVML, and what torch reports in a worker.

Nothing here imports a compiler or torch. Values that cannot be read are None.
"""

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bakeoff import backends
from bakeoff.backends.traps import Facts, GpuState, Library
from bakeoff.commands.listing import installed
from bakeoff.doctor.traps import OVERRIDES
from bakeoff.measuring.controller import environment
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.messages import TorchFacts, TryImport
from bakeoff.measuring.nvml import cards, nvml
from bakeoff.measuring.probes import why_not
from bakeoff.records.package import requirements

COMPILERS = ("g++", "clang++", "c++")
NVIDIA, DISPLAY = "0x10de", "0x03"
"""PCI's numbers for the vendor and for the class of VGA and 3D controllers."""


def gather(
    names: Iterable[str], torch_facts: TorchFacts, launcher: Launcher, say: Callable[[str], None] = lambda _: None
) -> Facts:
    """Read everything that the traps look at. The packages of the backends `names` are imported in a worker, and each
    import is reported to `say`."""
    asked = set(names)

    def imported(library: Library) -> Library:
        say(f"importing {library.name}")
        return tried(library, launcher)

    return Facts(
        python=platform.python_version(),
        libraries={
            name: imported(library) if asked.intersection(library.backends) else library
            for name, library in libraries([*backends.names(), *asked.difference(backends.names())]).items()
        }
        | {"torchvision": imported(Library(name="torchvision", version=installed("torchvision")))},
        torch=torch_facts.torch,
        torch_cuda=torch_facts.cuda,
        cuda_devices=torch_facts.cuda_devices,
        linked=linked(),
        nvidia_cards=nvidia_cards(Path("/sys/bus/pci/devices")),
        has_nvml=find_spec("pynvml") is not None,
        driver_cuda=_driver_cuda(),
        gpus=_gpus(),
        cxx=compiler(os.environ),
        shared_memory_bytes=_size_of(Path("/dev/shm")),
        governor=environment.governor(),
        cores=psutil.cpu_count(),
        affinity_cores=len(usable_cores()) or None,
        quota_cores=quota_cores(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")),
        container=environment.container(),
        variables={name: os.environ[name] for name in OVERRIDES if name in os.environ},
    )


def libraries(names: Iterable[str]) -> dict[str, Library]:
    """Return the packages that these backends need, by canonical name, from their metadata."""
    used: dict[str, list[str]] = {}
    for name in names:
        backend = backends.if_it_loads(name)
        for library in backend.libraries if backend else ():
            used.setdefault(canonicalize_name(library), []).append(name)
    wanted = [Requirement(text) for text in requirements()]
    needed: dict[str, str] = {
        canonicalize_name(requirement.name): str(requirement.specifier)
        for requirement in wanted
        if requirement.specifier
    }
    return {
        library: Library(
            name=library,
            version=installed(library),
            needed=needed.get(library, ""),
            requires=[text for text in _requires(library) if canonicalize_name(Requirement(text).name) in used],
            backends=users,
        )
        for library, users in used.items()
    }


def tried(library: Library, launcher: Launcher) -> Library:
    if library.version is None:
        return library
    reason = why_not(launcher, TryImport(module=module_of(library.name)))
    return library.but(imports=not reason, import_error=reason)


def module_of(library: str) -> str:
    """Return the module of an installed package: the one with its name, or else the first that it installs."""
    own = library.replace("-", "_")
    distribution = metadata.distribution(library)
    listed = (distribution.read_text("top_level.txt") or "").split()
    first_parts = [path.parts[0].removesuffix(".py") for path in distribution.files or () if path.suffix == ".py"]
    modules = [name for name in listed or first_parts if name.isidentifier() and not name.startswith("_")]
    return own if own in modules or not modules else modules[0]


def compiler(variables: Mapping[str, str]) -> str | None:
    named = variables.get("CXX")
    paths = (shutil.which(name, path=variables.get("PATH")) for name in ([named] if named else COMPILERS))
    return next((path for path in paths if path), None)


def quota_cores(control_groups: Path, membership: Path) -> float | None:
    """Return the cores' worth of time that the control groups (version 2 or 1) of this process allow, or None.
    `membership` is the kernel's list of groups, /proc/self/cgroup."""
    granted = [_quota(folder / "cpu.max") for folder in _own_groups(control_groups, membership)]
    granted.append(_quota(control_groups / "cpu/cpu.cfs_quota_us", control_groups / "cpu/cpu.cfs_period_us"))
    return min((quota for quota in granted if quota is not None), default=None)


def linked() -> dict[str, int]:
    versions = {}
    for link in (link for backend in backends.all_that_load() for link in backend.links):
        with contextlib.suppress(metadata.PackageNotFoundError):
            file = Path(str(metadata.distribution(link.distribution).locate_file(link.file)))
            if (major := linked_major(file, link.library)) is not None:
                versions[link.name] = major
    return versions


def linked_major(library: Path, name: str) -> int | None:
    """Return the major version of a library such as `libnvinfer.so` that an ELF file is linked against, or None."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:  # the rest of the program works without it
        return None
    try:
        with library.open("rb") as file:
            section: Any = ELFFile(file).get_section_by_name(".dynamic")
            asked = [tag.needed for tag in section.iter_tags("DT_NEEDED")] if section else []
    except (OSError, ELFError):
        return None
    matches = (re.fullmatch(re.escape(name) + r"\.(\d+).*", one) for one in asked)
    return next((int(match[1]) for match in matches if match), None)


def nvidia_cards(bus: Path) -> int:
    cards = 0
    for device in bus.glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / file).read_text().strip() for file in ("vendor", "class"))
            cards += vendor == NVIDIA and kind.startswith(DISPLAY)
    return cards


def _own_groups(control_groups: Path, membership: Path) -> list[Path]:
    """Return the folders of the process' own group and of those above it. In version 1 it is the mounted one."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = control_groups / own
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(control_groups))]


def _quota(*files: Path) -> float | None:
    """Return the quota of cores from files that hold it and its period. Without a quota, it is `max` or negative."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int(number) for file in files for number in file.read_text().split())
        return quota / period if quota > 0 else None
    return None


def _requires(library: str) -> list[str]:
    try:
        texts = metadata.requires(library) or []
    except metadata.PackageNotFoundError:
        return []
    wanted = [Requirement(text) for text in texts]
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in wanted
        if requirement.specifier and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
    ]


def _gpus() -> list[GpuState]:
    with nvml() as library:
        return [
            GpuState(
                index=index,
                name=card.name,
                persistence_mode=card.persistence_mode,
                application_sm_clock_mhz=card.ask("nvmlDeviceGetApplicationsClock", library.NVML_CLOCK_SM),
                default_sm_clock_mhz=card.ask("nvmlDeviceGetDefaultApplicationsClock", library.NVML_CLOCK_SM),
                held_down_by=card.throttle_reasons,
                processes=card.processes,
            )
            for index, card in enumerate(cards(library))
        ]


def _driver_cuda() -> str | None:
    with nvml() as library:
        if library is None:
            return None
        try:
            number = library.nvmlSystemGetCudaDriverVersion_v2()
        except library.NVMLError:
            return None
        return f"{number // 1000}.{number % 1000 // 10}"


def _size_of(folder: Path) -> int | None:
    try:
        return int(shutil.disk_usage(folder).total)
    except OSError:
        return None
