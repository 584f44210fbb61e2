"""One meaning of each precision for every backend: the harness casts weights and inputs and sets torch's switches.

| precision | weights and inputs | products |
| --- | --- | --- |
| fp32 | float32 | IEEE float32 |
| tf32 | float32 | TF32 (10 bits of mantissa) where the hardware has it, accumulated in float32 |
| bf16, fp16 | of that type | of that type, accumulated in float32 |
| int8 | float32 | layers in int8, statically quantised (`backends.quantising`); the rest as fp32 |
| fp8 | bfloat16 | layers in float8 e4m3, dynamically quantised (`backends.quantising`); the rest as bf16 |

A backend obeys, or says in `supports` or by raising Unsupported why it cannot.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import models
from backends.quantising import BASE_TYPES
from records.errors import Unsupported
from records.schema import Cell

if TYPE_CHECKING:
    import torch

OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Variables that switch TF32 behind every library's back; the NGC images set the second."""

TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", **BASE_TYPES}
"""Of weights and inputs. TF32 is a way to multiply float32; a quantised model is cast, then quantised."""


def unsupported_reason(cell: Cell) -> str:
    """Why no backend can do this cell's precision, or an empty string. Pure."""
    if reason := models.find(cell.model).precision_reason(cell.precision):
        return reason
    if cell.precision == "tf32" and not cell.device.startswith("cuda"):
        return "TF32 is a mode of NVIDIA's matrix units, and this is the CPU"
    if cell.precision == "fp8" and not cell.device.startswith("cuda"):
        return "float8 products are done by NVIDIA's matrix units, and this is the CPU"
    return ""


def dtype_of(precision: str) -> torch.dtype:
    """The type of weights and inputs. Raises Unsupported for a precision that nobody knows."""
    import torch

    if precision not in TYPES:
        raise Unsupported(f"unknown precision {precision}")
    dtype: torch.dtype = getattr(torch, TYPES[precision])
    return dtype


def apply(precision: str) -> None:
    """Set torch's switches for this process: TF32 on for `tf32`, off for everything else.

    These are the switches that torch 2.8 to 2.13 have in common. The `fp32_precision` ones of 2.9 and later follow them
    and must not be set beside them: torch refuses to read the one kind once the other has been set to disagree.

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
    """Torch's switches as they stand; those for reductions in 16 bits are torch's defaults, which nobody changes."""
    import torch

    matmul = torch.backends.cuda.matmul
    found: dict[str, str | bool] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul_allow_tf32": matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "matmul_allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "matmul_allow_fp16_accumulation": matmul.allow_fp16_accumulation,
    }
    # oneDNN's, on the CPU: since torch 2.9
    onednn = getattr(torch.backends.mkldnn, "matmul", None)
    if onednn is not None:
        found["mkldnn_matmul_fp32_precision"] = onednn.fp32_precision
    return found
