"""Compilers under another name, as plug-in backends: two equal copies of one backend must tie."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from torch import nn

from bakeoff.backends.base import BuildContext
from bakeoff.backends.inductor import Inductor
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.tensorrt import TIMING_CACHE, TensorRT
from bakeoff.models.base import Inputs


class InductorAgain(Inductor):
    name = "inductor-again"
    description = "Inductor under another name, for checks of the harness"


class OnnxAgain(Onnx):
    name = "onnx-again"
    description = "ONNX Runtime under another name, for checks of the harness"


class TensorRTAgain(TensorRT):
    """A copy whose engines have equal tactics: builds share the times of tactics, which TensorRT measures anew else.

    Two builds with times of their own are no copies: their engines can differ by 9 % for good.
    """

    name = "tensorrt-again"
    description = "TensorRT with shared times of tactics, for checks of the harness"

    def package(self, module: nn.Module, inputs: Inputs, context: BuildContext) -> None:
        shared, own = Path(tempfile.gettempdir()) / "times-of-tactics", context.workspace / TIMING_CACHE
        if shared.exists():
            shutil.copy(shared, own)
        super().package(module, inputs, context)
        shutil.copy(own, shared)


class TensorRTOnceMore(TensorRTAgain):
    name = "tensorrt-once-more"
