"""Compilers under another name, as plug-in backends: two equal copies of one backend must tie."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from torch import nn

from bakeoff.backends.base import BuildContext
from bakeoff.backends.inductor import Inductor
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.openvino import OpenVINO
from bakeoff.backends.tensorrt import TensorRT
from bakeoff.models.base import Inputs

SHARED = Path("/tmp")
"""A folder that all workers see: each has a TMPDIR of its own."""


class InductorAgain(Inductor):
    name = "inductor-again"
    description = "Inductor under another name, for checks of the harness"


class OnnxAgain(Onnx):
    name = "onnx-again"
    description = "ONNX Runtime under another name, for checks of the harness"


class OpenVINOAgain(OpenVINO):
    name = "openvino-again"
    description = "OpenVINO under another name, for checks of the harness"


class TensorRTAgain(TensorRT):
    """A copy that takes the engine which another copy has built on this machine.

    Two builds are no copies: with the same times of tactics, too, they differed by 7 to 9 % for good.
    """

    name = "tensorrt-again"
    description = "TensorRT with one engine for all copies, for checks of the harness"

    def package(self, module: nn.Module, inputs: Inputs, context: BuildContext) -> None:
        engine = SHARED / f"one-engine-{context.cell.reference_id}"
        with open(f"{engine}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # copies are built side by side
            if engine.exists():
                with context.phase("compile"):
                    shutil.copytree(engine, context.workspace, dirs_exist_ok=True)
                return
            super().package(module, inputs, context)
            shutil.copytree(context.workspace, engine)


class TensorRTOnceMore(TensorRTAgain):
    name = "tensorrt-once-more"
