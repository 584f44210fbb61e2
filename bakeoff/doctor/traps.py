"""Known traps of a machine and of its libraries. Those of one backend alone stand with the backend."""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bakeoff import backends
from bakeoff.backends.traps import Facts, Finding, Library, Trap, Weight, major_version
from bakeoff.measuring.versions import TESTED_TORCH, untested_torch
from bakeoff.models.libraries import torchvision_of, torchvision_remedy
from bakeoff.records.text import counted

MIN_SHARED_MEMORY_BYTES = 2**30
MIN_QUOTA_SHARE = 0.99
"""A quota of 31.9 of 32 cores limits nobody."""

OVERRIDES = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "torch multiplies float32 matrices in TF32",
    "NVIDIA_TF32_OVERRIDE": "every CUDA library uses TF32, or does not, whatever a program asks for",
}


def find_all(facts: Facts) -> list[Finding]:
    """Return what every trap finds on this machine, those of backends last."""
    return [finding.but(trap=name_of(trap)) for trap in all_traps() for finding in trap(facts)]


def all_traps() -> list[Trap]:
    return list(dict.fromkeys([*TRAPS, *(trap for backend in backends.all_that_load() for trap in backend.traps)]))


def name_of(trap: Trap) -> str:
    return trap.__name__.replace("_", "-")


def torch_without_cuda(facts: Facts) -> Iterator[Finding]:
    if facts.has_gpu and facts.torch and facts.torch_cuda is None:
        yield Finding(
            weight=Weight.PROBLEM,
            text=f"torch {facts.torch} is a build without CUDA, and this machine has a GPU",
            remedy="install torch from an index of CUDA builds: pip install --force-reinstall torch torchvision",
            devices=["cuda"],
        )


def no_driver(facts: Facts) -> Iterator[Finding]:
    if facts.nvidia_cards and not facts.gpus and facts.has_nvml:
        where = "in a container, give it the GPU: docker run --gpus all, or compose's service `bench`"
        yield Finding(
            weight=Weight.NOTE if facts.container else Weight.PROBLEM,  # in a container it may be on purpose
            text=f"{counted(facts.nvidia_cards, 'NVIDIA card')} on the bus, but no driver answers here",
            remedy=where if facts.container else f"install NVIDIA's driver until nvidia-smi answers; {where}",
            devices=["cuda"],
        )


def nvml_not_installed(facts: Facts) -> Iterator[Finding]:
    if facts.nvidia_cards and not facts.has_nvml:
        yield Finding(
            weight=Weight.WARNING,
            text="nvidia-ml-py is not installed: reports have no device memory, clocks, throttling or energy",
            remedy="pip install nvidia-ml-py",
        )


def driver_too_old(facts: Facts) -> Iterator[Finding]:
    """A driver runs builds for newer minor versions of its CUDA, but not for a newer major version."""
    if facts.torch_cuda and facts.driver_cuda and major_version(facts.torch_cuda) > major_version(facts.driver_cuda):
        yield Finding(
            weight=Weight.PROBLEM,
            text=f"torch {facts.torch} is built for CUDA {facts.torch_cuda}, and the driver runs {facts.driver_cuda}",
            remedy=f"update the driver, or install torch and torchvision for CUDA {major_version(facts.driver_cuda)}",
            devices=["cuda"],
        )


def library_does_not_import(facts: Facts) -> Iterator[Finding]:
    """Mostly such a library was compiled against other versions of the libraries beside it."""
    for library in facts.libraries.values():
        users = [backend for backend in backends.all_that_load() if backend.name in library.backends]
        on_gpu = bool(users) and all(backend.devices == ("cuda",) for backend in users)
        if library.imports is False and not _lacks_operators(library) and (facts.has_gpu or not on_gpu):
            yield Finding(
                weight=Weight.PROBLEM,
                text=f"{library.name} {library.version} is installed and does not import: {library.import_error}",
                remedy=f"pip install --force-reinstall {library.name}",
                backends=library.backends,
                devices=["cuda"] if on_gpu else [],
            )


def torchvision_of_another_torch(facts: Facts) -> Iterator[Finding]:
    """PyPI's torchvision is compiled against torch with CUDA. Beside the CPU's torch its operators are missing."""
    library = facts.libraries.get("torchvision")
    if library and facts.torch and _lacks_operators(library):
        yield Finding(
            weight=Weight.WARNING,
            text=(
                f"torchvision {library.version} is built for another torch than {facts.torch} "
                f"({library.import_error}): torchvision and timm do not import"
            ),
            remedy=torchvision_remedy(facts.torch, facts.torch_cuda),
        )


def torch_not_tested(facts: Facts) -> Iterator[Finding]:
    if facts.torch and (text := untested_torch(facts.torch)):
        newest = TESTED_TORCH[1]
        pinned = f"'torch=={newest}.*' '{torchvision_of(newest)}'"
        remedy = f"report what fails; in an environment of its own, {newest} is tested: pip install {pinned}"
        yield Finding(weight=Weight.NOTE, text=text, remedy=remedy)


def requirement_not_met(facts: Facts) -> Iterator[Finding]:
    """Check what each installed library needs of the others, and what Bakeoff needs of each."""
    for library in facts.libraries.values():
        if library.version and not _satisfies(library.version, library.needed):
            yield _unmet(facts, "Bakeoff", library.name, library.needed, library.version, [])
        for text in library.requires if library.version else []:
            wanted = Requirement(text)
            installed = facts.version(canonicalize_name(wanted.name))
            is_said_already = {library.name, canonicalize_name(wanted.name)} == {"torch", "torch-tensorrt"}
            if installed and not is_said_already and not _satisfies(installed, str(wanted.specifier)):
                asking = f"{library.name} {library.version}"
                # a library of several backends keeps none of them from trying
                alone = library.backends if len(library.backends) == 1 else []
                yield _unmet(facts, asking, wanted.name, str(wanted.specifier), installed, alone)


def no_cxx_compiler(facts: Facts) -> Iterator[Finding]:
    if facts.cxx is None:
        names = [backend.name for backend in backends.all_that_load() if backend.writes_cxx]
        yield Finding(
            weight=Weight.PROBLEM,
            text="no C++ compiler: Inductor on the CPU and AOTInductor write C++",
            remedy="apt-get install g++, or set CXX to the compiler's path",
            backends=names,
        )


def little_shared_memory(facts: Facts) -> Iterator[Finding]:
    if facts.shared_memory_bytes is not None and facts.shared_memory_bytes < MIN_SHARED_MEMORY_BYTES:
        yield Finding(
            weight=Weight.WARNING,
            text=f"/dev/shm holds {facts.shared_memory_bytes / 2**20:.0f} MiB; loaders and NCCL share tensors there",
            remedy="in a container: docker run --ipc=host, or --shm-size=1g; else: mount -o remount,size=1G /dev/shm",
        )


def tf32_overridden(facts: Facts) -> Iterator[Finding]:
    for name, effect in OVERRIDES.items():
        if value := facts.variables.get(name):
            yield Finding(
                weight=Weight.WARNING,
                text=(
                    f"{name}={value}: {effect}. Bakeoff's workers do not see it, so the precision of its numbers is "
                    "right. A service that is started here computes in another precision"
                ),
                remedy=f"unset {name} where you deploy, or compare with --precision tf32",
            )


def persistence_off(facts: Facts) -> Iterator[Finding]:
    off = [f"{gpu.index}" for gpu in facts.gpus if gpu.persistence_mode is False]
    if off:
        yield Finding(
            weight=Weight.WARNING,
            text=f"persistence mode is off (GPU {', '.join(off)}): the first process waits seconds for the driver",
            remedy="nvidia-smi -pm 1, as root on the host",
        )


def clock_held_down(facts: Facts) -> Iterator[Finding]:
    for gpu in facts.gpus:
        set_to, default = gpu.application_sm_clock_mhz, gpu.default_sm_clock_mhz
        why = list(gpu.held_down_by)
        if set_to and default and set_to < default:
            why.append(f"application clock {set_to} MHz, by default {default}")
        if why:
            yield Finding(
                weight=Weight.WARNING,
                text=f"GPU {gpu.index} ({gpu.name}) does not run at its full clock: {', '.join(why)}",
                remedy="see nvidia-smi -q -d CLOCK,PERFORMANCE,POWER; nvidia-smi -rac resets an application clock",
            )


def gpu_in_use(facts: Facts) -> Iterator[Finding]:
    for gpu in facts.gpus:
        if gpu.processes:
            yield Finding(
                weight=Weight.WARNING,
                text=f"{gpu.processes} other process(es) compute on GPU {gpu.index}: latencies and memory are shared",
                remedy="measure on an idle GPU: nvidia-smi shows who uses which, CUDA_VISIBLE_DEVICES chooses one",
            )


def governor_saves_power(facts: Facts) -> Iterator[Finding]:
    if facts.governor not in (None, "performance"):
        yield Finding(
            weight=Weight.WARNING,
            text=f"the CPU's governor is {facts.governor}: clocks follow the load, and short calls run at low ones",
            remedy="cpupower frequency-set -g performance, as root on the host",
        )


def fewer_cores_than_the_machine(facts: Facts) -> Iterator[Finding]:
    """A quota is worse than fewer cores: torch starts a thread for each core, and all are stopped."""
    seen = facts.affinity_cores or facts.cores
    if facts.quota_cores and seen and facts.quota_cores < MIN_QUOTA_SHARE * seen:
        yield Finding(
            weight=Weight.WARNING,
            text=(
                f"the control group allows the time of {counted(facts.quota_cores, 'core')}, and {seen} are visible: "
                "torch starts a thread for each, and all are stopped when the time is used up"
            ),
            remedy=f"OMP_NUM_THREADS={max(1, int(facts.quota_cores))}, or whole cores: docker run --cpuset-cpus",
        )
    elif facts.cores and facts.affinity_cores and facts.affinity_cores < facts.cores:
        yield Finding(
            weight=Weight.NOTE,
            text=f"{facts.affinity_cores} of the machine's {facts.cores} cores may be used, and numbers are for these",
            remedy="taskset -p $$ shows which; to use all, start without taskset or --cpuset-cpus",
        )


TRAPS: tuple[Trap, ...] = (
    torch_without_cuda,
    no_driver,
    driver_too_old,
    library_does_not_import,
    torchvision_of_another_torch,
    torch_not_tested,
    requirement_not_met,
    no_cxx_compiler,
    nvml_not_installed,
    tf32_overridden,
    gpu_in_use,
    clock_held_down,
    persistence_off,
    governor_saves_power,
    fewer_cores_than_the_machine,
    little_shared_memory,
)


def _unmet(facts: Facts, asking: str, name: str, specifier: str, found: str, backends: list[str]) -> Finding:
    beside = " torchvision" if name == "torch" and facts.version("torchvision") else ""  # each release is for one torch
    return Finding(
        weight=Weight.PROBLEM if backends else Weight.WARNING,
        text=f"{asking} needs {name} {specifier}, and {found} is installed",
        remedy=f"pip install '{name}{specifier}'{beside}",
        backends=backends,
    )


def _lacks_operators(library: Library) -> bool:
    return library.name == "torchvision" and "operator torchvision::" in library.import_error


def _satisfies(version: str, specifier: str) -> bool:
    """Return True when a version meets `specifier`. NVIDIA's 2.8.0a0+nv25.8 counts as 2.8."""
    try:
        return SpecifierSet(specifier).contains(Version(version).base_version, prereleases=True)
    except InvalidVersion:
        return True  # such a build cannot be judged by its number
