"""The backend over the fake of Torch-TensorRT. This file imports no torch, as no backend's does."""

from bakeoff.backends.base import AVAILABLE, Availability
from bakeoff.backends.torch_tensorrt import TorchTensorRT
from bakeoff.records.device import Device


class TorchTensorRTOnCpu(TorchTensorRT):
    """It takes the CPU for a GPU."""

    name = "torch-tensorrt-on-cpu"

    def available(self, device: Device) -> Availability:
        return AVAILABLE if not device.is_cuda else Availability("the fake knows only the CPU")
