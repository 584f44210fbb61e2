"""The reason in a library's message. The texts are what torch 2.13 and OpenVINO 2026.4 say, with long lists cut."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from bakeoff.backends.calling import FlatModule
from bakeoff.backends.exporting import export_onnx
from bakeoff.backends.reasons import OURS, failure_of
from bakeoff.models.base import Inputs

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


class Bessel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


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
        (to_onnx, Bessel(), "bessel_j0"),
        (to_openvino, Bessel(), "bessel_j0"),
        (to_openvino, Branch(), "return x if x.sum() > 0 else -x (test_reasons.py, line "),
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
