"""TensorRT for RTX: NVIDIA's plug-in for ONNX Runtime, which brings the engine with it.

ONNX Runtime looks for GPUs, and the plug-in offers those that it serves. A session is given such a device instead of
the name of a provider, and no other provider may take a node.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.records.device import Device
from bakeoff.records.errors import Unavailable, first_line

if TYPE_CHECKING:
    from bakeoff.backends.base import BuildContext

MODE = "tensorrt-rtx"
PROVIDER = "NvTensorRTRTXExecutionProvider"
PACKAGE = "onnxruntime-ep-nv-tensorrt-rtx-cu13"

SYSTEM = Path("/sys")
"""ONNX Runtime looks for GPUs here: in class/drm, and if that is empty in bus/pci/devices."""

NVIDIA = "0x10de"

NEVER_RUN = "TensorRT for RTX never ran a model for us: none of our GPUs is one that it serves"


def find(device: Device) -> Any:
    """Return what the plug-in offers for this GPU. Raise Unavailable with the reason if that is nothing."""
    import onnxruntime
    import torch

    try:
        import onnxruntime_ep_nv_tensorrt_rtx as plugin
    except ImportError as error:
        raise Unavailable(f"TensorRT for RTX is not installed ({first_line(error)}): pip install {PACKAGE}") from error
    try:
        _register(plugin.get_library_path())
    except Exception as error:  # only some builds of ONNX Runtime have their own type for this
        raise Unavailable(f"the plug-in of TensorRT for RTX does not load: {first_line(error)}") from error
    index = device.cuda_index or 0
    offered = [offer for offer in onnxruntime.get_ep_devices() if offer.ep_name == PROVIDER]
    if torch.cuda.device_count() > 1:
        offered = [
            offer for offer in offered if offer.device.metadata.get("pci_bus_id", "").lower() == _pci_address(index)
        ]
    if offered:
        return offered[0]
    capability = torch.cuda.get_device_capability(index)
    number = ".".join(map(str, capability))
    if not is_served(capability):
        raise Unavailable(
            f"TensorRT for RTX serves compute capability 8.6, 8.9, and 12.0 and newer, and {device} has {number}"
        )
    if not shows_gpu(SYSTEM):
        raise Unavailable(
            f"ONNX Runtime finds no GPU: {SYSTEM}/class/drm and {SYSTEM}/bus/pci/devices show none, "
            "as in many containers and virtual machines"
        )
    raise Unavailable(
        f"the plug-in of TensorRT for RTX offers nothing for {device} (compute capability {number}): "
        "its log says why, such as a driver that is too old"
    )


def is_served(capability: tuple[int, int]) -> bool:
    return capability in ((8, 6), (8, 9)) or capability >= (12, 0)


def shows_gpu(system: Path) -> bool:
    vendors = [*system.glob("class/drm/card*/device/vendor"), *system.glob("bus/pci/devices/*/vendor")]
    return any(path.read_text().strip() == NVIDIA for path in vendors)


def session_options(options: Any, context: BuildContext, profile: dict[str, str]) -> None:
    """Make a session with these options run on the plug-in's device, on the current stream, and nowhere else.

    TF32 is on and no option turns it off. Its builder reads NVIDIA_TF32_OVERRIDE.
    """
    import torch

    os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if context.cell.precision.allows_tf32 else "0"
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(
        [find(context.cell.device)],
        {
            "has_user_compute_stream": "1",
            "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
            "nv_runtime_cache_path": str(context.workspace),
            **profile,
        },
    )


@cache
def _register(library: str) -> None:
    import onnxruntime

    onnxruntime.register_execution_provider_library(PROVIDER, library)


def _pci_address(index: int) -> str:
    """Return the address of a GPU as the kernel writes it, such as 0000:65:00.0."""
    import torch

    card: Any = torch.cuda.get_device_properties(index)
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
