"""Measures the memory of a cell's process, on the host and on the device."""

import os
import sys
from dataclasses import dataclass, field

import psutil
import torch

from bakeoff.measuring.nvml import handle, nvml
from bakeoff.records.device import Device
from bakeoff.records.schema import DRIVERS_ACCOUNT, Memory


def peak_resident_bytes() -> int | None:
    """Return the most memory that this process had resident so far, or None where the platform does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return getattr(psutil.Process().memory_info(), "peak_wset", None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass
class DeviceMemory:
    """The peak of the device memory that this process uses, from samples after each stage. Without the driver's
    account, it is the growth on the whole device, which is an estimate if others use the GPU."""

    index: int | None
    peak_bytes: int | None = None
    now_bytes: int | None = None  # at the last sample
    source: str = ""
    _used_before: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.leave_out_others(own_bytes=0)

    def leave_out_others(self, own_bytes: int) -> None:
        """Take everything on the device but `own_bytes` for the memory of others, from now on."""
        with nvml() as library:
            if library is not None and self.index is not None:
                used = library.nvmlDeviceGetMemoryInfo(handle(library, self.index)).used
                self._used_before = max(0, used - own_bytes)

    def peaks(self, artifact_bytes: int | None = None) -> Memory:
        return Memory(
            peak_resident_bytes=peak_resident_bytes(),
            peak_device_bytes=self.peak_bytes,
            device_bytes_source=self.source or None,
            artifact_bytes=artifact_bytes,
        )

    def sample(self) -> None:
        with nvml() as library:
            if library is None or self.index is None:
                return
            device = handle(library, self.index)
            mine = [
                process.usedGpuMemory
                for process in library.nvmlDeviceGetComputeRunningProcesses(device)
                if process.pid == os.getpid() and process.usedGpuMemory
            ]
            if mine:
                now, self.source = sum(mine), DRIVERS_ACCOUNT
            else:
                now = library.nvmlDeviceGetMemoryInfo(device).used - self._used_before
                self.source = "growth of the device's memory in use"
        self.now_bytes = now
        self.peak_bytes = max(self.peak_bytes or 0, now)


def held_by_torch(device: Device) -> int:
    return torch.cuda.memory_reserved(device.cuda_index) if device.is_cuda else 0


def return_unused(device: Device) -> None:
    """Give device memory that torch holds without using it back to the driver."""
    if device.is_cuda:
        torch.cuda.empty_cache()
