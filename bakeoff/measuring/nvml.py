"""What NVIDIA's management library (NVML) reports of a GPU, without waking the GPU up."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

THROTTLE_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "software power cap",
    "nvmlClocksEventReasonSwThermalSlowdown": "software thermal slowdown",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hardware power brake",
}
"""NVML's bits that mean that a clock is held down. An idle GPU and an application's setting are no such reasons."""


def import_pynvml() -> Any:
    """Return the library, initialised, or None without the library or a driver. The caller shuts it down."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    library = import_pynvml()
    try:
        yield library
    finally:
        if library is not None:
            library.nvmlShutdown()


def handle(library: Any, index: int) -> Any:
    """Return the device that CUDA numbers `index`. CUDA_VISIBLE_DEVICES may have renumbered it."""
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    if index < len(visible):
        if visible[index].isdigit():
            return library.nvmlDeviceGetHandleByIndex(int(visible[index]))
        return library.nvmlDeviceGetHandleByUUID(visible[index].encode())
    return library.nvmlDeviceGetHandleByIndex(index)


def device_free_bytes(index: int) -> int | None:
    with nvml() as library:
        return None if library is None else int(library.nvmlDeviceGetMemoryInfo(handle(library, index)).free)


def max_sm_clock_mhz(index: int, opened: Callable[[], AbstractContextManager[Any]] = nvml) -> int | None:
    with opened() as library:
        card = card_at(library, index)
        return card.ask("nvmlDeviceGetMaxClockInfo", library.NVML_CLOCK_SM) if card else None


def compute_capability(index: int) -> tuple[int, int] | None:
    """Return a CUDA device's version, as (9, 0), or None if NVML does not report it. CUDA is not initialised."""
    with nvml() as library:
        card = card_at(library, index)
        version = card.ask("nvmlDeviceGetCudaComputeCapability") if card else None
        return (version[0], version[1]) if version else None


class Card:
    """One GPU. What it does not answer is None."""

    def __init__(self, library: Any, device: Any) -> None:
        self.library = library
        self._device = device

    @property
    def name(self) -> str:
        name = self.library.nvmlDeviceGetName(self._device)
        return name.decode() if isinstance(name, bytes) else str(name)

    @property
    def persistence_mode(self) -> bool | None:
        mode = self.ask("nvmlDeviceGetPersistenceMode")
        return None if mode is None else bool(mode)

    @property
    def processes(self) -> int | None:
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else len(processes)

    @property
    def throttle_reasons(self) -> list[str]:
        bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return [words for name, words in THROTTLE_REASONS.items() if bits & getattr(self.library, name, 0)]

    def ask(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self.library, question)(self._device, *arguments)
        except self.library.NVMLError:  # not every card answers everything
            return None


def card_at(library: Any, index: int) -> Card | None:
    if library is not None:
        with contextlib.suppress(library.NVMLError):
            return Card(library, handle(library, index))
    return None


def cards(library: Any) -> list[Card]:
    count = 0 if library is None else library.nvmlDeviceGetCount()
    return [Card(library, library.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


class GpuWatch:
    """Reads a GPU's clock, temperature, processes and energy. NVML stays open: opening it takes longer than a burst."""

    def __init__(self, index: int | None, library: Any = None) -> None:
        """Without an `index` there is nothing to read. Tests pass a `library` of their own."""
        self._card = None if index is None else card_at(library or import_pynvml(), index)

    def read(self) -> Mapping[str, Any]:
        if (card := self._card) is None:
            return {}
        return {
            "sm_clock_mhz": card.ask("nvmlDeviceGetClockInfo", card.library.NVML_CLOCK_SM),
            "temperature_c": card.ask("nvmlDeviceGetTemperature", card.library.NVML_TEMPERATURE_GPU),
            "throttle_reasons": card.throttle_reasons,
        }

    def processes(self) -> int | None:
        return self._card.processes if self._card else None

    def energy_j(self) -> float | None:
        found = self._card.ask("nvmlDeviceGetTotalEnergyConsumption") if self._card else None
        return None if found is None else found / 1e3
