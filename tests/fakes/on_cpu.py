"""The two backends as they are, with the fakes of their libraries in the place of a GPU.

All that differs: the CPU is where they are available, and a stream is nothing.
"""

from __future__ import annotations

import backends.tensorrt
from backends.base import YES, Availability
from backends.tensorrt import TensorRT
from backends.torch_tensorrt import TorchTensorRT

backends.tensorrt.stream_handle = lambda: 0


class TensorRTOnCpu(TensorRT):
    name = "tensorrt-on-cpu"

    def available(self, device: str) -> Availability:
        return YES if device == "cpu" else Availability("the fake knows only the CPU")


class TorchTensorRTOnCpu(TorchTensorRT):
    name = "torch-tensorrt-on-cpu"

    def available(self, device: str) -> Availability:
        return YES if device == "cpu" else Availability("the fake knows only the CPU")
