"""Compilers under another name, as plug-in backends: two equal copies of one backend must tie."""

from __future__ import annotations

from bakeoff.backends.inductor import Inductor
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.tensorrt import TensorRT


class InductorAgain(Inductor):
    name = "inductor-again"
    description = "Inductor under another name, for checks of the harness"


class OnnxAgain(Onnx):
    name = "onnx-again"
    description = "ONNX Runtime under another name, for checks of the harness"


class TensorRTAgain(TensorRT):
    name = "tensorrt-again"
    description = "TensorRT under another name, for checks of the harness"
