"""Libraries that only some artefacts need, each imported when something of it is first asked for."""

from typing import TYPE_CHECKING

from .library import Library

__all__ = ("numpy", "onnxruntime", "openvino", "torch", "trt")

if TYPE_CHECKING:
    import numpy
    import onnxruntime
    import openvino
    import tensorrt as trt
    import torch
else:
    numpy, onnxruntime, openvino = map(Library, ("numpy", "onnxruntime", "openvino"))
    torch, trt = map(Library, ("torch", "tensorrt"))
