"""ONNX Runtime's plug-ins: execution providers in distributions of their own, `onnxruntime-ep-*`.

ONNX Runtime looks for hardware, and a plug-in offers the devices that it serves. A session is given such a device
instead of the name of a provider.
"""

import importlib
import importlib.util
import json
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bakeoff.backends.base import BuildContext, require
from bakeoff.models.lazily import onnxruntime, torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unavailable, first_line

PREFIX = "onnxruntime_ep_"
"""How the modules of all plug-ins begin."""

SYSTEM = Path("/sys")
"""On Linux, ONNX Runtime looks for GPUs here: in class/drm, and if that is empty in bus/pci/devices."""

NVIDIA, DISPLAY = "0x10de", "0x03"
"""A vendor of GPUs, and how the PCI classes of all GPUs begin."""

NO_GPU = "ONNX Runtime finds no GPU"


@dataclass(frozen=True)
class Plugin:
    """A plug-in, and the mode of `onnx` that runs on what it offers."""

    mode: str
    module: str
    package: str  # that pip installs
    device: str = ""  # the kind that a cell's inputs are on; empty: every kind
    options: Callable[[BuildContext], Mapping[str, str]] = lambda _: {}
    why_not: Callable[[Device], str] = lambda _: ""  # why it serves no such device, or an empty string
    caveat: str = ""
    profile: str = ""  # how options begin that give TensorRT a range of sizes; empty: it has none

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def provider(self) -> str:
        """Load the plug-in into ONNX Runtime, once, and return its provider. Raise Unavailable if that fails."""
        require(f"{self.package} is not installed", self.package, self.module)
        library = importlib.import_module(self.module)
        try:
            name = str(library.get_ep_name())
            _register(name, library.get_library_path())
        except Exception as error:  # only some builds of ONNX Runtime have their own type for this
            raise Unavailable(f"{self.package} does not load: {first_line(error)}") from error
        return name

    def find(self, device: Device) -> Any:
        """Return what the plug-in offers for inputs on this device: that GPU, or else the CPU. Raise Unavailable with
        the reason if that is nothing."""
        name = self.provider()
        offered = [offer for offer in onnxruntime.get_ep_devices() if offer.ep_name == name]
        if device.is_cuda:
            offered = [offer for offer in offered if offer.device.type.name == "GPU" and _is_at(offer, device)]
        if offered:
            return min(offered, key=lambda offer: offer.device.type.name != "CPU")
        reason = self.why_not(device)
        if not reason and SYSTEM.is_dir() and not _shows_gpu(NVIDIA if device.is_cuda else ""):
            reason = f"{NO_GPU}: {SYSTEM}/class/drm and {SYSTEM}/bus/pci/devices show none, as in many containers"
        reason = reason or "its log says why, such as a driver that is too old"
        raise Unavailable(f"{self.package} offers nothing for {device}: {reason}")

    def add_to(self, options: Any, context: BuildContext, profile: Mapping[str, str]) -> None:
        device = context.cell.device
        if device.is_cuda:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        options.add_provider_for_devices([self.find(device)], {**self.options(context), **profile})


def openvino_options(context: BuildContext) -> dict[str, str]:
    """Return the options. Without the hint for the precision, OpenVINO computes fp32 in bf16 where the CPU has it."""
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(context.threads),
    }
    return {"load_config": json.dumps({"CPU": properties})}


def _rtx_options(context: BuildContext) -> dict[str, str]:
    """Return the options. TF32 is on and no option turns it off: its builder reads NVIDIA_TF32_OVERRIDE."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if context.cell.precision.allows_tf32 else "0"
    return {
        "has_user_compute_stream": "1",
        "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
        "nv_runtime_cache_path": str(context.workspace),
    }


def _not_for_rtx(device: Device) -> str:
    capability = torch.cuda.get_device_capability(device.cuda_index)
    if capability in ((8, 6), (8, 9)) or capability >= (12, 0):
        return ""
    number = ".".join(map(str, capability))
    return f"it serves compute capability 8.6, 8.9, and 12.0 and newer, and {device} has {number}"


NOT_RTX = "TensorRT for RTX never ran a model for us: none of our GPUs is one that it serves"
COPIES = "WebGPU never ran a model for us. A call copies its inputs to the GPU, and its outputs back"
UNKNOWN = "Bakeoff does not know this plug-in: only the errors show which precision it computes in"

OPENVINO = Plugin("openvino-ep", f"{PREFIX}openvino", "onnxruntime-ep-openvino", "cpu", openvino_options)
WEBGPU = Plugin("webgpu-ep", f"{PREFIX}webgpu", "onnxruntime-ep-webgpu", "cpu", caveat=COPIES)
RTX = Plugin(
    "tensorrt-rtx",
    f"{PREFIX}nv_tensorrt_rtx",
    "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    "cuda",
    _rtx_options,
    _not_for_rtx,
    NOT_RTX,
    "nv",
)
KNOWN = (RTX, OPENVINO, WEBGPU)


def _others() -> list[Plugin]:
    """Return a row for each plug-in that is installed and has none. Its mode is `ep-` and the rest of its name."""
    names = {module.name for module in pkgutil.iter_modules() if module.name.startswith(PREFIX)}
    modes = {name: name.replace(PREFIX, "ep-").replace("_", "-") for name in names - {row.module for row in KNOWN}}
    return [Plugin(mode, name, f"onnxruntime-{mode}", caveat=UNKNOWN) for name, mode in sorted(modes.items())]


PLUGINS = {plugin.mode: plugin for plugin in (*KNOWN, *_others())}


def _shows_gpu(vendor: str) -> bool:
    """Return True if the kernel shows a GPU of this vendor, or of any where it is empty."""
    cards = [*SYSTEM.glob("class/drm/card*/device"), *SYSTEM.glob("bus/pci/devices/*")]
    return any(
        (card / "class").read_text().startswith(DISPLAY) and (card / "vendor").read_text().startswith(vendor)
        for card in cards
        if (card / "class").exists()
    )


@cache
def _register(provider: str, library: str) -> None:
    onnxruntime.register_execution_provider_library(provider, library)


def _is_at(offer: Any, device: Device) -> bool:
    """Return True if a GPU is the only one, or at the address of the device as the kernel writes it: 0000:65:00.0."""
    if torch.cuda.device_count() < 2:
        return True
    card: Any = torch.cuda.get_device_properties(device.cuda_index or 0)
    address = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    return bool(offer.device.metadata.get("pci_bus_id", "").lower() == address)
