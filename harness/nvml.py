"""What NVIDIA's management library tells of a GPU, without waking the GPU up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

THROTTLING = {
    "nvmlClocksEventReasonSwPowerCap": "software power cap",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hardware power brake",
}
"""NVML's bits that mean a clock held down; that it is idle, or follows an application's setting, is no such reason."""


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """NVIDIA's management library, initialised; None where it is not to be had."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def handle(library: Any, index: int) -> Any:
    """The device that CUDA numbers `index`, which CUDA_VISIBLE_DEVICES may have renumbered."""
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    if index < len(visible):
        if visible[index].isdigit():
            return library.nvmlDeviceGetHandleByIndex(int(visible[index]))
        return library.nvmlDeviceGetHandleByUUID(visible[index].encode())
    return library.nvmlDeviceGetHandleByIndex(index)


def device_free_bytes(index: int) -> int | None:
    """Free memory of a CUDA device, or None without NVML."""
    with nvml() as library:
        return None if library is None else int(library.nvmlDeviceGetMemoryInfo(handle(library, index)).free)


class GpuWatch:
    """A GPU's clock, temperature and reasons to slow down. NVML stays open: opening it takes longer than a burst."""

    def __init__(self, index: int | None) -> None:
        self._library: Any = None
        if index is None:
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = handle(pynvml, index)
        except pynvml.NVMLError:  # no driver, or not such a GPU
            return
        self._library = pynvml

    def read(self) -> Mapping[str, Any]:
        """Fields of `Conditions`; none where there is no such GPU, or no NVML."""
        if self._library is None:
            return {}
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return {
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU),
            "throttle_reasons": [
                words for name, words in THROTTLING.items() if reasons & getattr(self._library, name, 0)
            ],
        }

    def processes(self) -> int | None:
        """How many processes use the GPU for computing."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses") if self._library else None
        return None if found is None else len(found)

    def energy_j(self) -> float | None:
        """What the GPU has taken since its driver was loaded."""
        found = self._ask("nvmlDeviceGetTotalEnergyConsumption") if self._library else None
        return None if found is None else found / 1e3

    def _ask(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, question)(self._handle, *arguments)
        except self._library.NVMLError:  # not every card answers everything
            return None
