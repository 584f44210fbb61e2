"""What can be read of the machine and its software, without torch and without waking a GPU up.

What cannot be read is None.
"""

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from bakeoff.measuring.controller.worker_process import Worker
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.isolation import has_full_disk
from bakeoff.measuring.messages import TorchFacts
from bakeoff.measuring.nvml import Card, GpuWatch, cards, device_free_bytes, nvml
from bakeoff.measuring.variables import variables_of_speed
from bakeoff.measuring.versions import all_versions
from bakeoff.records.device import Device
from bakeoff.records.package import checkout, digests
from bakeoff.records.schema import Environment, Gpu

CALIBRATION_DATA = bytes(2**21)

CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}


def capture() -> Environment:
    """Describe this machine, without what only torch knows of it."""
    git = git_state(checkout())
    with nvml() as library:
        gpus = gpus_of(library)
    return Environment(
        hostname=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=_cpu_name(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=len(usable_cores()) or None,
        governor=governor(),
        memory_bytes=psutil.virtual_memory().total,
        torch_threads=None,
        gpus=gpus,
        python=platform.python_version(),
        # the package is loaded already; importing it from here would be an arrow upward
        versions=all_versions() | {"bakeoff": sys.modules["bakeoff"].__version__},
        git_commit=git[0],
        git_dirty=git[1],
        source_digest=None if git[0] else hashlib.sha256("".join(digests()).encode()).hexdigest()[:16],
        container=container(),
        variables=variables_of_speed(os.environ),
    )


def with_torch(captured: Environment, torch: TorchFacts, others: Mapping[str, TorchFacts]) -> Environment:
    """Add what a worker found out, since the controller does not import torch. `others` are named environments, whose
    versions become those of `torch@NAME`."""
    of_others = {
        f"{library}@{name}": version
        for name, facts in others.items()
        for library, version in {"Python": facts.python, **facts.versions}.items()
    }
    versions = captured.versions | {"torch": torch.torch} | of_others
    return captured.but(torch_threads=torch.threads, cuda=torch.cuda, versions=versions)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()


def gpus_of(library: Any) -> list[Gpu]:
    return [_gpu(index, card) for index, card in enumerate(cards(library))]


def _gpu(index: int, card: Card) -> Gpu:
    library = card.library
    power_mw = card.ask("nvmlDeviceGetEnforcedPowerLimit")
    memory = card.ask("nvmlDeviceGetMemoryInfo")
    driver = library.nvmlSystemGetDriverVersion()
    return Gpu(
        index=index,
        name=card.name,
        memory_bytes=memory.total if memory else None,
        driver=driver.decode() if isinstance(driver, bytes) else driver,
        sm_clock_mhz=card.ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
        max_sm_clock_mhz=card.ask("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM),
        memory_clock_mhz=card.ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
        power_limit_w=power_mw / 1000 if power_mw is not None else None,
        temperature_c=card.ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
        persistence_mode=card.persistence_mode,
        other_processes=card.processes,
    )


def git_state(folder: Path | None) -> tuple[str | None, bool | None]:
    """Return the commit of a checkout, and whether tracked files differ from it. Both are None without one, or git."""
    if folder is None:
        return None, None
    try:
        commit = _output(folder, "git", "rev-parse", "HEAD")
        return commit, bool(_output(folder, "git", "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _output(folder: Path, *command: str) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()


def calibrate_ms() -> float:
    """Return the milliseconds that a fixed piece of work takes on one core: SHA-256 of two megabytes."""
    # It hardly needs memory and no other thread: only the core's speed and other work on it change it.
    begun_ns = time.perf_counter_ns()
    hashlib.sha256(CALIBRATION_DATA).digest()
    return (time.perf_counter_ns() - begun_ns) / 1e6


def available_bytes() -> int:
    return int(psutil.virtual_memory().available)


class Machine:
    """What the controller reads of the machine while it measures. Tests pass a made-up one."""

    now_s = staticmethod(time.monotonic)
    calibrate_ms = staticmethod(calibrate_ms)
    usable_cores = staticmethod(usable_cores)
    wait = staticmethod(Worker.wait)
    has_full_disk = staticmethod(has_full_disk)

    def __init__(self, sharers: int = 1) -> None:
        """So many places share its free memory, where others may start cells meanwhile."""
        self._sharers = sharers
        self._gpus: dict[Device, GpuWatch] = {}

    def available_bytes(self) -> int:
        return available_bytes() // self._sharers

    def device_free_bytes(self, device: Device) -> int | None:
        return None if device.cuda_index is None else device_free_bytes(device.cuda_index)

    def gpu_processes(self, device: Device) -> int | None:
        if device not in self._gpus:
            self._gpus[device] = GpuWatch(device.cuda_index)
        return self._gpus[device].processes()


def governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


def container() -> str | None:
    return next((name for mark, name in CONTAINER_MARKS.items() if os.path.exists(mark)), None)
