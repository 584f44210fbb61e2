"""One meaning of each precision for every backend: the harness casts weights and inputs and sets torch's switches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from reports.errors import Unsupported
from reports.schema import Cell

if TYPE_CHECKING:
    import torch

OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Variables that switch TF32 behind every library's back; the NGC images set the second."""


def unsupported_reason(cell: Cell) -> str:
    """Why no backend can do this cell's precision, or an empty string. Pure."""
    if cell.precision == "tf32" and not cell.device.startswith("cuda"):
        return "TF32 is a mode of NVIDIA's matrix units, and this is the CPU"
    if cell.precision in ("int8", "fp8"):
        return f"precision {cell.precision} is not built yet"
    return ""


def dtype_of(precision: str) -> torch.dtype:
    """The type of weights and inputs. TF32 is a way to multiply float32. Raises Unsupported for one not built."""
    import torch

    types = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if precision not in types:
        raise Unsupported(f"precision {precision} is not built yet")
    return types[precision]


def apply(precision: str) -> None:
    """Set torch's switches for this process: TF32 on for `tf32`, off for everything else.

    Raises Unsupported where an environment variable overrules the switches.
    """
    import torch

    on = precision == "tf32"
    for name in OVERRIDES:
        if os.environ.get(name) not in (None, "", "1" if on else "0"):
            raise Unsupported(f"{name}={os.environ[name]} overrules precision {precision}: unset it")
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def in_force() -> dict[str, str | bool]:
    """Torch's switches as they stand."""
    import torch

    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
    }
