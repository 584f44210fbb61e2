"""What each backend says before anything is built: that it supports a cell and is available here, or why not."""

from collections.abc import Callable

import pytest
import torch

from bakeoff import backends
from bakeoff.backends import tensorrt
from bakeoff.backends.inductor import DESCENTS, FROZEN
from bakeoff.records.device import Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, FORWARD_BACKWARD, TRAIN_STEP, Cell

CUDA = {"device": "cuda"}
TRAINING = {"task": TRAIN_STEP}
DECODER = {"model": "hf:folder", "task": DECODE}
RTX = "onnx/tensorrt-rtx"
WEIGHT_ONLY = [precision for precision in Precision if precision.is_weight_only]


def of(*precisions: str, **fields: str) -> list[dict[str, object]]:
    return [{"precision": precision, **fields} for precision in precisions]


ROWS: list[tuple[str, list[dict[str, object]], str]] = [
    ("inductor/reduce-overhead", [{}], "use inductor$"),
    ("inductor/max-autotune-no-cudagraphs", [{}], "use inductor/max-autotune$"),
    ("inductor/reduce-overhead", [CUDA], ""),
    ("inductor/max-autotune-no-cudagraphs", [CUDA], ""),
    *((f"inductor/{mode}", [TRAINING, *of("int8", "w8a32")], f"use {instead}$") for mode, instead in FROZEN.items()),
    *((f"inductor/{mode}", [{}], "need a CUDA device") for mode in sorted(DESCENTS)),
    *((f"inductor/{mode}", [CUDA], "") for mode in sorted(DESCENTS)),
    *((f"inductor/{mode}", [CUDA | TRAINING], "is for inference") for mode in sorted(DESCENTS)),
    ("inductor/optimizer-inside", [{}, {"task": FORWARD_BACKWARD}], "use inductor$"),
    ("inductor/surgical", of("bf16"), ""),
    ("inductor/surgical", [TRAINING, *of("int8")], "mode surgical is for inference"),
    ("inductor/regional", [TRAINING, *of("int8")], "mode regional is for inference"),
    ("inductor/emulate-precision-casts", [{}, *of("int8", "tf32")], "use inductor$"),
    ("inductor/emulate-precision-casts", of("bf16", "fp16"), ""),
    *(("inductor/cudnn-benchmark", [CUDA | fields], "") for fields in ({}, TRAINING)),
    *((f"{name}/cudnn-benchmark", [{}], "needs a CUDA device") for name in ("eager", "inductor")),
    *((f"{name}/attention-cudnn", [{}], "needs a CUDA device") for name in ("eager", "inductor")),
    *((f"{name}/attention-math", [TRAINING, *of("int8")], "is for inference") for name in ("eager", "inductor")),
    *((f"{name}/attention-math", [{}, CUDA], "") for name in ("eager", "inductor")),
    ("aotinductor/freezing", [{}], ""),
    ("aotinductor/freezing", [CUDA], "is for CPUs"),
    ("aotinductor/freezing", of("int8"), "always frozen"),
    ("aotinductor/freezing", of("w8a32"), "full size"),
    ("aotinductor/max-autotune-freezing", [{}], ""),
    ("aotinductor/max-autotune-freezing", [CUDA], "is for CPUs"),
    ("aotinductor/max-autotune-freezing", of("int8"), "always frozen"),
    ("onnx/cuda-graph", [{}], "CUDA device"),
    ("onnx/cuda-graph", of("bf16", device="cuda:1"), ""),
    ("onnx", of("bf16"), "bf16"),
    *((f"onnx/{mode}", [CUDA], f"{mode} ") for mode in ("cpu", "openvino-ep", "webgpu-ep")),
    *((f"onnx/{mode}", [{}], "") for mode in ("cpu", "openvino-ep", "webgpu-ep")),
    *((f"onnx/{mode}", [{}], f"{mode} ") for mode in ("cuda", "tensorrt-ep")),
    *((f"onnx/{mode}", [{"device": "cuda:1"}], "") for mode in ("cuda", "tensorrt-ep")),
    ("onnx", of("int8", device="cuda"), "tensorrt-ep"),
    (RTX, [{}, *of("w4a16", "fp8", device="cuda")], " "),
    (RTX, [CUDA, *of("bf16", device="cuda:1"), *of("int8", device="cuda")], ""),
    ("openvino", of("fp8"), "does not compute in fp8"),
    ("openvino", of("tf32"), "does not compute in tf32"),
    ("openvino/int8-products", [{}], "round weights alone"),
    *(("iree", of(precision), precision) for precision in ("bf16", "tf32", "int8")),
    *(("iree", of(precision, device="cuda"), precision) for precision in ("bf16", "tf32", "int8")),
    ("iree", of("fp32", "fp16", device="cuda"), ""),
    *(("executorch", of(precision), precision) for precision in ("tf32", "int8")),
    *(("litert", of(precision), precision) for precision in ("fp16", "int8", "w4a32")),
    ("executorch", [CUDA], "cuda"),
    ("litert", [CUDA], "on the CPU"),
    ("onnxruntime-genai", [{"task": "inference"}], "nothing but the models of --task generate"),
    (
        "onnxruntime-genai",
        [{"model": "transformer_lm", "task": DECODE}],
        "decoders of transformers (hf:), not transfor",
    ),
    ("onnxruntime-genai", [DECODER | {"dimensions": {"batch": 2}}], "set batch=1"),
    ("onnxruntime-genai", [DECODER | {"precision": "bf16"}], "not in bf16"),
    ("onnxruntime-genai", [DECODER | CUDA], "fp32 on the CPU"),
    ("tensorrt", of("fp32", "tf32", "bf16", "fp16", "int8", device="cuda"), ""),
    ("tensorrt", of("fp8", device="cuda"), "FP8"),
    ("tensorrt/cuda-graph", [{}], "CUDA device"),
    ("tensorrt/cuda-graph", [{"device": "cuda:1"}], ""),
    ("torch-tensorrt", of("fp32", "tf32", "bf16", "fp16", device="cuda"), ""),
    ("torch-tensorrt", of("int8", "fp8", device="cuda"), "ModelOpt"),
    ("torch-tensorrt/cuda-graph", [{}], "CUDA device"),
    ("triton", [CUDA], "only fused_add_relu_mul, matmul_fp16, matmul_fp8, rope and tma_copy have hand-written kernels"),
    ("triton/pointer", [CUDA | {"model": "rope"}], "the kernel of rope loads by pointer only: use triton"),
    ("triton/descriptor", [CUDA | {"model": "matmul_fp8"}], "loads by descriptor only: use triton"),
    ("triton/cuda-graph", [{"model": "rope"}], "CUDA"),
    ("triton", [CUDA | TRAINING | {"model": "rope"}], "inference"),
    *((f"triton/{mode}", [CUDA | {"model": "tma_copy"}], "") for mode in ("default", "pointer", "descriptor")),
    ("triton/cuda-graph", [CUDA | {"model": "tma_copy"}], ""),
    *(("torchscript", of(precision), precision) for precision in WEIGHT_ONLY),
    *(("tensorrt", of(precision, device="cuda"), precision) for precision in WEIGHT_ONLY),
    *(("triton", of(precision), precision) for precision in WEIGHT_ONLY),
    *(("onnx", of(precision), " " if precision.products.is_16_bit else "") for precision in WEIGHT_ONLY),
    *(("onnx/int8-products", of(precision), " " if precision.products.is_16_bit else "") for precision in WEIGHT_ONLY),
    ("onnx/tensorrt-ep", of(*WEIGHT_ONLY, device="cuda"), "no MatMulNBits"),
    *((label, of(*WEIGHT_ONLY), "") for label in ("openvino", "openvino/int8-products", "inductor")),
]
"""Cells of a backend and mode, and what must stand in the reason: nothing where it supports them, `$` at the end."""


@pytest.mark.parametrize(("label", "cells", "reason"), ROWS)
def test_a_backend_supports_a_cell_or_says_why_not(label: str, cells: list[dict[str, object]], reason: str) -> None:
    name, _, mode = label.partition("/")
    for fields in cells:
        cell = Cell.model_validate({"model": "mlp", "backend": name, "mode": mode or "default", **fields})
        answer = backends.create(name).supports(cell)
        assert reason in f"{answer.reason}$" and bool(answer) is not bool(reason), fields


TORCH_TENSORRT = f"pip install 'torch-tensorrt=={'.'.join(torch.__version__.split('.')[:2])}.*'$"


@pytest.mark.parametrize(
    ("name", "device", "missing", "words"),
    [
        ("tensorrt", "cpu", "", ["TensorRT runs on NVIDIA GPUs, and cpu is none$"]),
        ("torch-tensorrt", "cpu", "", ["TensorRT runs on NVIDIA GPUs, and cpu is none$"]),
        ("onnxruntime-genai", "cuda", "", ["runs on the CPU"]),
        ("executorch", "cuda", "", ["runs on the CPU"]),
        ("litert", "cuda", "", ["runs on the CPU"]),
        ("tensorrt", "cuda", "tensorrt", ["tensorrt does not import", f"{tensorrt.REMEDY}$"]),
        ("torch-tensorrt", "cuda", "torch_tensorrt", ["torch-tensorrt ", TORCH_TENSORRT]),
        *(("onnx", "cpu", name, [f"{name} is not installed", f"pip install {name}$"])
          for name in ("onnx", "onnxscript", "onnxruntime")),
        ("onnxruntime-genai", "cpu", "onnxruntime_genai", ["): pip install onnxruntime-genai transformers$"]),
        ("iree", "cpu", "iree.compiler", ["iree is not installed (", "bakeoff env add iree "]),
        ("executorch", "cpu", "executorch.runtime", ["executorch is not installed (", "bakeoff env add executorch "]),
        ("litert", "cpu", "ai_edge_litert.interpreter", ["litert is not installed (", "bakeoff env add litert "]),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_remedy(
    name: str, device: str, missing: str, words: list[str], install: Callable[[str, object], None]
) -> None:
    if missing:
        install(missing, None)
    answer = backends.create(name).available(Device(device))
    assert not answer and all(said in f"{answer.reason}$" for said in words), answer.reason
