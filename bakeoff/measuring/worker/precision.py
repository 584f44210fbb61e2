"""Each precision means the same for every backend: the harness casts weights and inputs and sets torch's switches.

`records.precision` says what each one means. A backend obeys, or says why it cannot: in `supports`, or by raising
Unsupported.
"""

import os

import torch

from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision

OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Variables that switch TF32 on or off behind every library's back. The NGC images set the second one."""


def dtype_of(precision: Precision) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, precision.input_type)
    return dtype


def apply(precision: Precision) -> None:
    """Set torch's switches for this process: TF32 on for `tf32`, off for everything else. Raises Unsupported where an
    environment variable overrules the switches."""
    on = precision.allows_tf32
    for name in OVERRIDES:
        if os.environ.get(name) not in (None, "", "1" if on else "0"):
            raise Unsupported(f"{name}={os.environ[name]} overrules precision {precision}: unset it")
    # Never set torch's `fp32_precision` switches as well: it refuses to read switches that disagree.
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def in_force() -> dict[str, str | bool]:
    """Return torch's switches as they are now. Those for reductions in 16 bits are always torch's defaults."""
    matmul = torch.backends.cuda.matmul
    found: dict[str, str | bool] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "matmul_allow_tf32": matmul.allow_tf32,
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "matmul_allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "matmul_allow_fp16_accumulation": matmul.allow_fp16_accumulation,
    }
    # oneDNN's switch on the CPU exists since torch 2.9
    onednn = getattr(torch.backends.mkldnn, "matmul", None)
    if onednn is not None:
        found["mkldnn_matmul_fp32_precision"] = onednn.fp32_precision
    return found
