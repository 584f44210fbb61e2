"""Why a build failed, in one line that names the operator: libraries often say it in the middle of a long message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from bakeoff.records.text import visible

_ONNX_SUMMARY = re.compile(r"## Exception summary\s+<class '[\w.]*?(\w+)'>: (.*)", re.DOTALL)
_NO_ONNX_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>")
_NOT_IN_OPENVINO = re.compile(
    r"^-- (?:No conversion rule found for operations|Conversion is failed for): (.+)$", re.MULTILINE
)
_GUARD = re.compile(
    r"Could not (?:guard on|extract specialized \w+ from) data-dependent expression (.+?)(?: \(unhinted|$)",
    re.MULTILINE,
)
_FRAME_BELOW = re.compile(
    r"(?:The following call raised this error|from user code|Found from\s*):\s*"
    r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.+)'
)
_TORCHSCRIPT = re.compile(r"failed in the TorchScript interpreter\..*\n(?:builtins\.)?(\w+: .+)$", re.DOTALL)
_COMPILER = re.compile(r"^.*\berror: .+$", re.MULTILINE)
_LOWERED = re.compile(r"^\s*target: (\S+)$", re.MULTILINE)
_SAYS_NOTHING = re.compile(
    r"(?:Exception from|Check '.*' failed at) \S+:\d+:$|FrontEnd API failed with \w+:$|backend='\w+' raised:$"
)


def reason_of(kind: str, message: str) -> str:
    """Return why a build failed, by the name of its exception's type and its message."""
    text = visible(message).strip()
    if found := _ONNX_SUMMARY.search(text):
        kind, text = found[1], found[2].strip()
    for explain in (_of_operators, _of_a_branch, _of_torchscript, _of_a_compiler, _of_a_lowering):
        if reason := explain(kind, text):
            return reason
    return ": ".join(filter(None, [kind, _first_that_says_something(text), _source_line(text)]))


def _of_operators(kind: str, text: str) -> str:
    if found := _NO_ONNX_FUNCTION.search(text):
        return f"ONNX has no function for {_operator(f'{found[1]}.{found[2]}')}"
    if names := [name for listed in _NOT_IN_OPENVINO.findall(text) for name in listed.split(", ")]:
        return f"OpenVINO cannot convert {', '.join(dict.fromkeys(map(_operator, names)))}"
    told = _TORCH_EXPORT.get(kind)
    return f"torch.export: {told(_operator(_first_that_says_something(text)))}" if told else ""


_TORCH_EXPORT: dict[str, Callable[[str], str]] = {
    "UnsupportedOperatorException": "{} has no fake (meta) implementation".format,
    "DynamicOutputShapeException": "the shape of what {} returns depends on the values in its inputs".format,
    "DataDependentOutputException": "what {} returns depends on the values in its inputs".format,
}
"""Exceptions of torch that have an operator as their only message."""


def _of_a_branch(kind: str, text: str) -> str:
    if not (found := _GUARD.search(text)):
        return ""
    return f"torch.export cannot follow what depends on the values in a tensor: {_source_line(text) or found[1]}"


def _of_torchscript(kind: str, text: str) -> str:
    return f"in TorchScript: {found[1]}" if (found := _TORCHSCRIPT.search(text)) else ""


def _of_a_compiler(kind: str, text: str) -> str:
    found = _COMPILER.search(text) if "compile error" in _first_that_says_something(text) else None
    return f"the C++ compiler failed: {found[0].strip()}" if found else ""


def _of_a_lowering(kind: str, text: str) -> str:
    found = _LOWERED.search(text)
    return f"{kind}: {_operator(found[1])}: {_first_that_says_something(text)}" if found else ""


def _operator(name: str) -> str:
    """Return `aten.sort` for `aten.sort.default`, and other overloads as they are."""
    return name.strip().removesuffix(".default")


def _source_line(text: str) -> str:
    """Return `if x.sum() > 0: (mine.py, line 26, in forward)` from a traceback in the message, or nothing."""
    found = _FRAME_BELOW.search(text)
    return f"{found[4].strip()} ({Path(found[1]).name}, line {found[2]}, in {found[3]})" if found else ""


def _first_that_says_something(text: str) -> str:
    """Return the first line that is more than the place in a library's source."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not _SAYS_NOTHING.match(line)), lines[0] if lines else "")
