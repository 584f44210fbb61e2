"""The machine and the software of a run, read without torch and without touching the device. Unreadable is None."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness import isolation
from harness.controller.launcher import ROOT
from harness.messages import TorchFacts
from harness.nvml import nvml
from records.schema import Environment, Gpu

# fmt: off
LIBRARIES = (
    "torch", "triton", "numpy", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt",
    "torch-tensorrt", "transformers", "safetensors", "pydantic", "scipy", "matplotlib", "nvidia-ml-py",
)
# fmt: on

CALIBRATION_DATA = bytes(2**21)

CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}


def capture(torch: TorchFacts | None) -> Environment:
    """Describe this machine. `torch` is what a worker found out, since the controller does not import torch."""
    git = _git()
    return Environment(
        hostname=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=_cpu_name(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=len(usable_cores()) or None,
        governor=governor(),
        memory_bytes=psutil.virtual_memory().total,
        torch_threads=torch.threads if torch else None,
        gpus=_gpus(),
        python=platform.python_version(),
        versions=_versions() | ({"torch": torch.torch} if torch else {}),
        cuda=torch.cuda if torch else None,
        git_commit=git[0],
        git_dirty=git[1],
        container=container(),
        variables={
            name: value
            for name, value in isolation.allowed(os.environ).items()
            if (name.startswith(isolation.PASSED_ON_PREFIXES) and not name.startswith("LC_"))
            or name in ("CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "CUDA_MODULE_LOADING")
        },
    )


def differences(old: Environment, new: Environment) -> list[str]:
    """What changed between two captures that makes numbers taken under them incomparable."""
    compared = (
        "hostname",
        "cpu",
        "usable_cores",
        "torch_threads",
        "python",
        "versions",
        "cuda",
        "git_commit",
        "governor",
    )
    changed = [
        f"{name}: {getattr(old, name)} -> {getattr(new, name)}"
        for name in compared
        if getattr(old, name) != getattr(new, name)
    ]
    if [(gpu.name, gpu.driver) for gpu in old.gpus] != [(gpu.name, gpu.driver) for gpu in new.gpus]:
        changed.append("GPUs or their driver")
    return changed


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    return found


def _gpus() -> list[Gpu]:
    with nvml() as library:
        if library is None:
            return []
        return [_gpu(library, index) for index in range(library.nvmlDeviceGetCount())]


def _gpu(library: Any, index: int) -> Gpu:
    device = library.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str, *arguments: Any) -> Any:
        try:
            return getattr(library, question)(device, *arguments)
        except library.NVMLError:  # not every card answers everything
            return None

    power_mw = ask("nvmlDeviceGetEnforcedPowerLimit")
    memory = ask("nvmlDeviceGetMemoryInfo")
    persistence = ask("nvmlDeviceGetPersistenceMode")
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    name = library.nvmlDeviceGetName(device)
    driver = library.nvmlSystemGetDriverVersion()
    return Gpu(
        index=index,
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=memory.total if memory else None,
        driver=driver.decode() if isinstance(driver, bytes) else driver,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
        max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
        power_limit_w=power_mw / 1000 if power_mw is not None else None,
        temperature_c=ask("nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
        persistence_mode=bool(persistence) if persistence is not None else None,
        other_processes=len(processes) if processes is not None else None,
    )


def _git() -> tuple[str | None, bool | None]:
    """Commit of this checkout and whether tracked files differ from it; None in an exported tree."""
    try:
        commit = _output("git", "rev-parse", "HEAD")
        return commit, bool(_output("git", "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _output(*command: str) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    return result.stdout.strip()


def calibrate_ms() -> float:
    """Milliseconds that a fixed piece of work takes on one core: SHA-256 of two megabytes.

    It needs next to no memory and no other thread, so it changes only with the core's speed and with what else the core
    is made to do.
    """
    begun_ns = time.perf_counter_ns()
    hashlib.sha256(CALIBRATION_DATA).digest()
    return (time.perf_counter_ns() - begun_ns) / 1e6


def usable_cores() -> list[int]:
    """Cores that this process may run on; empty where a thread cannot be put on one."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def available_bytes() -> int:
    """Memory of this machine that new processes may take without swapping."""
    return int(psutil.virtual_memory().available)


def governor() -> str | None:
    """What decides the CPU's clock."""
    return _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def container() -> str | None:
    """The kind of container that this runs in."""
    return next((name for mark, name in CONTAINER_MARKS.items() if os.path.exists(mark)), None)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
