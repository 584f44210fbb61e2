"""The two TensorRT backends over the fakes of their libraries. They differ only in running on the CPU, without a
stream."""

from __future__ import annotations

from bakeoff.backends.base import AVAILABLE, Availability
from bakeoff.backends.tensorrt import TensorRT
from bakeoff.backends.torch_tensorrt import TorchTensorRT
from bakeoff.records.device import Device


class TensorRTOnCpu(TensorRT):
    name = "tensorrt-on-cpu"

    def available(self, device: Device) -> Availability:
        return AVAILABLE if not device.is_cuda else Availability("the fake knows only the CPU")

    def stream_handle(self) -> int:
        return 0


class TorchTensorRTOnCpu(TorchTensorRT):
    name = "torch-tensorrt-on-cpu"

    def available(self, device: Device) -> Availability:
        return AVAILABLE if not device.is_cuda else Availability("the fake knows only the CPU")
