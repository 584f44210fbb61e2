"""Finding a backend by its name, by an alias, or in another distribution, and what each says before a build."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bakeoff import backends
from bakeoff.backends import tensorrt
from bakeoff.backends.base import Backend
from bakeoff.backends.inductor import DESCENTS, FROZEN
from bakeoff.planning.configurations import expand_backends
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, FORWARD_BACKWARD, TRAIN_STEP, Cell
from tests.support.distributions import distribute

ROOT = Path(__file__).parents[2]

THIRD_PARTY = """
from bakeoff.backends.base import ANYWHERE, Backend, Mode
from bakeoff.backends.eager import Callables, torch_available


class Mine(Backend):
    name = "mine"
    description = "somebody else's"
    modes = (Mode(worth_trying=ANYWHERE), Mode("faster", {"level": 3}))

    def available(self, device):
        return torch_available(device)

    def build(self, module, inputs, context):
        with context.phase("compile"):
            return Callables(module)
"""


def install(folder: Path, name: str, source: str, entry_point: str) -> None:
    """Write what pip would install of a distribution with one module and one entry point."""
    (folder / f"bakeoff_{name}.py").write_text(source)
    distribute(name, entry_point, folder, f"bakeoff-{name}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [*backends.TABLE, *backends.SELFCHECK])
def test_every_row_makes_a_backend(name: str) -> None:
    assert isinstance(backends.create(name), Backend)


@pytest.mark.parametrize(("alias", "name"), backends.ALIASES.items())
def test_an_alias_is_the_backend_it_stands_for(alias: str, name: str) -> None:
    assert backends.canonical(alias) == backends.create(alias).name == name
    assert alias not in backends.names()


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("eager", False),
        ("torchscript", False),
        ("inductor", False),
        ("inductor/reduce-overhead", False),
        ("inductor/max-autotune", True),
        ("inductor/max-autotune-no-cudagraphs", True),
        ("inductor/coordinate-descent", True),
        ("inductor/coordinate-descent-overlapped", True),
        ("aotinductor/cuda-graph", False),
        ("aotinductor/max-autotune-freezing", True),
        ("onnx", True),
        ("tensorrt", True),
        ("triton", True),
    ],
)
def test_what_tries_out_kernels_says_so(label: str, expected: bool) -> None:
    name, _, mode = label.partition("/")
    cell = Cell(model="mlp", backend=name, mode=mode or "default", device=Device("cuda"))
    assert backends.create(name).times_kernels(cell) is expected


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("onx", "onnx"), ("inducter", "inductor"), ("torch_compil", "torch_compile"), ("Eager", "eager")],
)
def test_a_name_nobody_knows_gets_the_nearest(typed: str, meant: str) -> None:
    for find in (backends.canonical, backends.create):
        with pytest.raises(
            UsageError, match=rf"^unknown backend '{typed}': did you mean '{meant}'\? \(bakeoff list\)$"
        ):
            find(typed)


def test_a_name_like_no_other_gets_all_of_them() -> None:
    with pytest.raises(UsageError, match=r"known: .*eager.*torchscript") as raised:
        backends.canonical("xyzzy")
    assert "eager-again" not in str(raised.value)


def test_the_copy_for_selfcheck_is_in_no_list() -> None:
    assert "eager-again" not in backends.names()
    assert backends.canonical("eager-again") == "eager-again"


def test_a_distribution_can_keep_its_backend_out_of_all() -> None:
    assert "null" in backends.names() and "null" not in backends.in_all()
    assert backends.canonical("null") == "null"


def test_an_installed_distribution_brings_its_backend(site: Path) -> None:
    install(site, "mine", THIRD_PARTY, "bakeoff_mine:Mine")
    assert "mine" in backends.names()[len(backends.TABLE) :]
    mine = backends.create("mine")
    assert (mine.name, mine.mode_names()) == ("mine", ["default", "faster"])
    assert mine.supports(Cell(model="mlp", backend="mine"))
    assert ("mine", "faster", True) in expand_backends(["mine/faster"])
    assert ("mine", "default", False) in expand_backends(["all"])


def test_a_distribution_does_not_replace_a_row_of_the_table(site: Path) -> None:
    install(site, "eager", THIRD_PARTY, "bakeoff_eager:Mine")
    assert backends.names().count("eager") == 1
    assert type(backends.create("eager")).__module__ == "bakeoff.backends.eager"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import a_library_that_is_not_here", "No module named 'a_library_that_is_not_here'"),
        ("def", "SyntaxError"),
        ("", "has no attribute 'Broken'"),
        ("class Broken:\n    def __init__(self):\n        raise ValueError('first\\nsecond')", "ValueError: first"),
        ("import bakeoff.backends.base\nclass Broken(bakeoff.backends.base.Backend):\n    pass", "abstract"),
    ],
    ids=["import", "syntax", "no-class", "constructor", "abstract"],
)
def test_a_broken_one_is_one_line_and_spoils_nothing(source: str, said: str, site: Path) -> None:
    name = "broken"
    sys.modules.pop(f"bakeoff_{name}", None)
    install(site, name, source, f"bakeoff_{name}:Broken")
    assert name in backends.names()
    with pytest.raises(BakeoffError) as raised:
        backends.create(name)
    message = str(raised.value)
    assert message.startswith(f"backend '{name}' (bakeoff_{name}:Broken) does not load: ")
    assert said in message
    assert len(message.splitlines()) == 1
    assert backends.create("eager").name == "eager"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('modes = {"default": {}}', "Mine.modes is no tuple of Mode"),
        ('modes = (Mode("faster"),)', "the first one is 'default'"),
        ("modes = (Mode(), Mode())", "every name is there once"),
        ('colour = "blue"', "Mine.colour is 'blue': write it as '#0072b2'"),
    ],
)
def test_a_backend_that_says_something_in_another_form_does_not_load(site: Path, line: str, said: str) -> None:
    install(
        site,
        "odd",
        THIRD_PARTY.replace('    name = "mine"\n', f'    name = "odd"\n    {line}\n', 1).replace(
            '    modes = (Mode(worth_trying=ANYWHERE), Mode("faster", {"level": 3}))\n', ""
        ),
        "bakeoff_odd:Mine",
    )
    sys.modules.pop("bakeoff_odd", None)
    with pytest.raises(BakeoffError, match=f"does not load: TypeError: .*{re.escape(said)}"):
        backends.create("odd")


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
    ("iree", [{"device": "cuda", "inputs_from": "host"}], "host memory"),
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
