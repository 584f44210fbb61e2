"""Finding a backend by its name, by an alias, or in another distribution, and what each says before a build.

Also the reason in a library's message. The texts are what torch 2.13 and OpenVINO 2026.4 say, with long lists cut.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from bakeoff import backends
from bakeoff.backends import tensorrt
from bakeoff.backends.calling import FlatModule
from bakeoff.backends.exporting import export_onnx
from bakeoff.backends.inductor import DESCENTS, FROZEN
from bakeoff.backends.reasons import OURS, failure_of
from bakeoff.models.base import Inputs
from bakeoff.planning.configurations import expand_backends
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, FORWARD_BACKWARD, TRAIN_STEP, Cell, Status
from tests.support.cells import labelled
from tests.support.distributions import distribute
from tests.support.measuring import by_label, measure
from tests.support.modules import Calling

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
    cell = labelled(label, device="cuda")
    assert backends.create(cell.backend).times_kernels(cell) is expected


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
    assert ("mine", "faster", True, False) in expand_backends(["mine/faster"])
    assert ("mine", "default", False, False) in expand_backends(["all"])


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


def test_a_broken_one_of_all_is_a_row_of_the_run(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "broken", "", "bakeoff_broken:Broken")
    monkeypatch.setattr(backends, "in_all", lambda: ["null", "broken"])
    records = by_label(measure(tmp_path / "run", "all", set={"batch": ("2",), "hidden": ("8",)}))
    assert [record.status for record in records.values()] == [Status.OK, Status.UNAVAILABLE]
    assert "does not load" in records["broken"].reason


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
    *(("torchscript", of(each), f"cannot record what torchao makes of a model for {each}") for each in ("int8", "fp8")),
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
    for fields in cells:
        cell = labelled(label, **fields)
        answer = backends.create(cell.backend).supports(cell)
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


ONNX_DISPATCH = """Failed to convert the exported program to an ONNX model. \x1b[96mThis is step 3/3\x1b[0m of \
exporting the model to ONNX. Next steps:
- If there is a missing ONNX function, implement it and register it to the registry.

## Exception summary

<class 'torch.onnx._internal.exporter._errors.DispatchError'>: No ONNX function found for \
<OpOverload(op='aten._linalg_eigh', overload='default')>. Failure message: No decompositions registered for the \
real-valued input
⬆️
<class 'torch.onnx._internal.exporter._errors.ConversionError'>: Error when translating node %_linalg_eigh.

(Refer to the full stack trace above for more information.)"""

ONNX_EXPORT = """Failed to export the model with torch.export. \x1b[96mThis is step 1/3\x1b[0m of exporting the model \
to ONNX. Next steps:
- Modify the model code for `torch.export.export` to succeed.

## Exception summary

<class 'torch._subclasses.fake_tensor.DynamicOutputShapeException'>: aten.linalg_lstsq.default

(Refer to the full stack trace above for more information.)"""

INVALID_BECAUSE = (
    "This is an invalid model. Type Error: Type 'tensor(double)' of input parameter (x) of operator (Erf) in node (n) "
    "is invalid"
)
INVALID_GRAPH = (
    f"[ONNXRuntimeError] : 10 : INVALID_GRAPH : Load model from /tmp/a b/model.onnx failed:{INVALID_BECAUSE}."
)

GUARD = """Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like symbols: none)

consider using data-dependent friendly APIs such as guard_or_false, guard_or_true and statically_known_true.
Caused by: (_export/non_strict_utils.py:1205 in __torch_function__)
"""

GUARD_WITH_SOURCE = f"""{GUARD}
The following call raised this error:
  File "/home/me/mine.py", line 26, in forward
    if x.sum() > 0:

"""

OPENVINO = """Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- aten.searchsorted.Tensor with a message:
Exception happened during conversion of operation searchsorted/aten.searchsorted.Tensor with schema NONE

Summary:
-- No conversion rule found for operations: aten.dequantize.self, aten.quantize_per_tensor.default
-- Conversion is failed for: aten.searchsorted.Tensor
"""

OPENVINO_RUNTIME = """Exception from src/inference/src/cpp/core.cpp:117:
Exception from src/plugins/intel_cpu/src/config.cpp:266:
Wrong value f7 for property key INFERENCE_PRECISION_HINT. Supported values: bf16, f16, f32, undefined
"""

TORCHSCRIPT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/home/me/mine.py", line 27, in shapes
    return torch.mm(x, torch.zeros(7, 3))
           ~~~~~~~~ <--- HERE
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x4 and 7x3)
"""

TENSOR = """ -0.1197  1.1878
(1,.,.) =
-0.8521 -1.1941e-05
[ CPUFloatType{2,2} ]
"""

LOWERING = """LoweringException: NotImplementedError: no complex numbers
  target: mine.twice.default
  args[0]: TensorBox(StorageBox(
"""

COMPILER = """CppCompileError: C++ compile error

Command:
g++ /tmp/x.hpp -Wall -Werror=return-type -o /tmp/x.i

Output:
<command-line>: fatal error: nowhere.h: No such file or directory
compilation terminated.
"""

DYNAMO = """Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).

from user code:
   File "/home/me/mine.py", line 40, in forward
    return x if x.sum() > 0 else -x
"""

BRANCH = "torch.export cannot follow what depends on the values in a tensor: "


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("ConversionError", ONNX_DISPATCH, "torch's ONNX exporter has no function for aten._linalg_eigh"),
        (
            "ConversionError",
            ONNX_DISPATCH.replace("real-valued", "complex-valued"),
            "torch's ONNX exporter has no function for aten._linalg_eigh of complex numbers",
        ),
        (
            "TorchExportError",
            ONNX_EXPORT,
            "torch.export: the shape of what aten.linalg_lstsq returns depends on the values in its inputs",
        ),
        (
            "TorchExportError",
            re.sub("<class .*", "<class 'TypeError'>: zeros(): the size is no tuple of ints", ONNX_EXPORT),
            "TypeError: zeros(): the size is no tuple of ints",
        ),
        (
            "UnsupportedOperatorException",
            "mine.thrice.default\n\nThe error above occurred when calling torch.export.export.",
            "torch.export: mine.thrice has no fake (meta) implementation",
        ),
        ("GuardOnDataDependentSymNode", GUARD, f"{BRANCH}Eq(u0, 1), where only a call shows what u0 is"),
        ("GuardOnDataDependentSymNode", GUARD_WITH_SOURCE, f"{BRANCH}if x.sum() > 0 (mine.py, line 26, in forward)"),
        (
            "GuardOnDataDependentSymNode",
            GUARD_WITH_SOURCE.replace("/home/me/mine.py", str(OURS / "backends" / "calling.py")),
            f"{BRANCH}Eq(u0, 1), where only a call shows what u0 is",
        ),
        (
            "GuardOnDataDependentSymNode",
            GUARD.replace("_export/non_strict_utils.py:1205 in __torch_function__", "home/me/mine.py:26 in forward"),
            f"{BRANCH}Eq(u0, 1), where only a call shows what u0 is (mine.py, line 26, in forward)",
        ),
        (
            "OpConversionFailure",
            OPENVINO,
            "OpenVINO cannot convert aten.dequantize.self, aten.quantize_per_tensor, aten.searchsorted.Tensor",
        ),
        (
            "OpConversionFailure",
            "-- No conversion rule found for operations: <function sym_sum at 0x7f1871389440>, aten.sort.default",
            "OpenVINO cannot convert sym_sum, aten.sort",
        ),
        (
            "RuntimeError",
            OPENVINO_RUNTIME,
            "RuntimeError: Wrong value f7 for property key INFERENCE_PRECISION_HINT. "
            "Supported values: bf16, f16, f32, undefined",
        ),
        (
            "RuntimeError",
            TORCHSCRIPT,
            "in TorchScript: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x4 and 7x3)",
        ),
        (
            "ValueError",
            re.sub("RuntimeError: .*", f"builtins.ValueError: bad values{TENSOR}", TORCHSCRIPT),
            "in TorchScript: ValueError: bad values -0.1197  1.1878",
        ),
        (
            "ValueError",
            re.sub("RuntimeError: .*", f"builtins.ValueError: {TENSOR}", TORCHSCRIPT),
            "in TorchScript: ValueError: return torch.mm(x, torch.zeros(7, 3))",
        ),
        (
            "RuntimeError",
            f"Tracer cannot infer type of {{'y': tensor([[-0.1448,{TENSOR}]]), 'n': None}}\n:Found Tensor and int",
            "torch.jit.trace cannot infer a type: Found Tensor and int",
        ),
        (
            "RuntimeError",
            f"Tensor:\n{TENSOR}Cannot insert a Tensor that requires grad as a constant",
            "RuntimeError: Cannot insert a Tensor that requires grad as a constant",
        ),
        (
            "InductorError",
            LOWERING,
            "InductorError: mine.twice: LoweringException: NotImplementedError: no complex numbers",
        ),
        (
            "InductorError",
            COMPILER,
            "the C++ compiler failed: <command-line>: fatal error: nowhere.h: No such file or directory",
        ),
        (
            "Unsupported",
            DYNAMO,
            "Unsupported: Data-dependent branching: return x if x.sum() > 0 else -x (mine.py, line 40, in forward)",
        ),
        ("RuntimeError", "\x1b[31mno such\x1b[0m device\nand more", "RuntimeError: no such device and more"),
        ("KeyError", "", "KeyError"),
        ("InductorError", "AssertionError: ", "InductorError: AssertionError"),
        ("ValueError", "it is not possible.", "ValueError: it is not possible"),
        ("ValueError", "wait...", "ValueError: wait..."),
        ("OSError", "no file '/tmp/bakeoff-x1/cell/model.bin' here", "OSError: no file 'model.bin' here"),
        ("InvalidGraph", INVALID_GRAPH, f"ONNX Runtime does not take the graph: {INVALID_BECAUSE}"),
    ],
)
def test_a_reason_is_one_line_and_names_the_operator(kind: str, text: str, reason: str) -> None:
    assert failure_of(kind, text).sentence == reason


def test_a_failure_has_its_parts() -> None:
    assert failure_of("ConversionError", ONNX_DISPATCH).sort == ("no ONNX function", "aten._linalg_eigh", "")
    assert failure_of("GuardOnDataDependentSymNode", GUARD_WITH_SOURCE).place == "mine.py, line 26, in forward"
    assert failure_of("RuntimeError", OPENVINO_RUNTIME).raised_by == "src/plugins/intel_cpu/src/config.cpp"


BESSEL = Calling(lambda _, x: torch.special.bessel_j0(x))


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def to_onnx(module: nn.Module, inputs: Inputs, folder: Path) -> None:
    pytest.importorskip("onnxscript")
    export_onnx(module, inputs, folder)


def to_openvino(module: nn.Module, inputs: Inputs, folder: Path) -> None:
    openvino = pytest.importorskip("openvino")
    openvino.convert_model(torch.export.export(FlatModule(module, inputs), inputs.tensors()))


@pytest.mark.parametrize(
    ("export", "module", "said"),
    [
        (to_onnx, BESSEL, "bessel_j0"),
        (to_openvino, BESSEL, "bessel_j0"),
        (to_openvino, Branch(), "return x if x.sum() > 0 else -x (test_names_and_reasons.py, line "),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_the_installed_exporters_say_is_understood(
    export: Callable[[nn.Module, Inputs, Path], None], module: nn.Module, said: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each library has its own type
        export(module, Inputs((torch.ones(4),)), tmp_path)
    reason = failure_of(type(raised.value).__name__, str(raised.value)).sentence
    assert said in reason and "step" not in reason and ".cpp" not in reason


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Unable to cast NotImplemented to Tensor", "torch.export cannot follow a class of tensors"),
        ("Sparse CSR tensors do not have strides", "takes no tensors in a sparse layout"),
        (
            "zeros(): argument 'size' failed to unpack: \"type must be tuple of ints,but got FakeTensor",
            "as pack_padded_sequence does: pass padded batches to the layer",
        ),
    ],
)
def test_tensors_that_are_not_plain_are_named(message: str, said: str) -> None:
    assert said in failure_of("RuntimeError", f"{message}\n\nWhile executing %x").text


def test_what_torch_advises_its_own_developers_is_no_reason() -> None:
    advice = (
        "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug)"
    )
    failure = failure_of("BackendCompilerFailed", f"backend='inductor' raised:\nAssertionError: \n\n{advice}\n")
    assert failure.text == "BackendCompilerFailed: AssertionError"


class ChangesConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean


def reason_of(function: Callable[[], object]) -> str:
    with torch.no_grad(), pytest.raises(Exception) as raised:  # noqa: PT011 - its words are what is tried
        function()
    return failure_of(type(raised.value).__name__, str(raised.value)).text


def test_a_tensor_that_forward_changes_has_the_same_reason_wherever_torch_export_stops() -> None:
    advice = "which is no buffer: register it with register_buffer"
    program = torch.export.export(FlatModule(ChangesConstant(), Inputs((torch.ones(3, 4),))), (torch.ones(3, 4),))
    assert reason_of(program.run_decompositions) == f"torch.export: forward changes 'mean', {advice}"
    assertion = (
        'false INTERNAL ASSERT FAILED at "RegisterFunctionalization_0.cpp":2290, please report a bug to PyTorch. '
        "mutating a non-functional tensor with a functional tensor is not allowed. Please ensure that all of your "
        "inputs are wrapped inside of a functionalize() call"
    )
    text = failure_of("RuntimeError", assertion).text
    assert text == f"torch.export: forward changes a tensor that the module holds, {advice}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "made", [lambda positive: positive[None].expand(2, len(positive)) * 1, lambda some: some + torch.zeros(len(some))]
)
def test_a_size_that_a_trace_froze_is_named_as_such(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return made(x[x > 0])

    traced = torch.jit.trace(forward, (torch.tensor([1.0, 2.0, -1.0]),), check_trace=False)  # type: ignore[no-untyped-call]
    for _ in range(3):
        traced(torch.tensor([1.0, 2.0, -1.0]))
    text = reason_of(lambda: traced(torch.ones(3)))
    assert text.startswith("the trace froze a size, which is another one for other inputs (")
