"""Reads why a build failed from a library's message, which often names the operator in the middle of many lines."""

import re
from collections.abc import Callable
from pathlib import Path

from bakeoff.records.failure import Failure
from bakeoff.records.text import visible

_OF_COMPLEX_NUMBERS = "for the complex-valued input"
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
_CAUSED_BY = re.compile(r"^Caused by: \((\S+):(\d+) in (\S+)\)$", re.MULTILINE)
_SYMBOL = re.compile(r"\b[uz]+f?\d+\b")
"""What torch.export calls a number that depends on the values in a tensor."""
_SAYS_NOTHING = re.compile(
    r"(?:Exception from|Check '.*' failed at) \S+:\d+:$|FrontEnd API failed with \w+:$|backend='\w+' raised:$"
    r"|Set TORCHDYNAMO_VERBOSE=1 for |\(Refer to the full stack trace above "
    r"|(?:Tensor:|Columns \d+ to \d+|\(\d+,.*\) =|\[ ?[\w.]+\{[\d,]*\} ?\]|[-+\d.e\s,*\[\]()]+)$"  # of a tensor
)


def failure_of(kind: str, message: str) -> Failure:
    """Return why a build failed, by the name of its exception's type and its message."""
    text = re.sub(r"(?:/var)?/tmp/(?:[^\s'\":,;)]+/)*", "", visible(message).strip())
    if match := re.search(r"## Exception summary\s+<class '[\w.]*?(\w+)'>: (.*)", text, re.DOTALL):
        kind, text = match[1], match[2].strip()
    if failure := _of_a_known_message(kind, text):
        return failure
    line, place = _source_line(text)
    raised = re.findall(r"(?:Exception from|Check '.*' failed at) (\S+):\d+:$", text, re.MULTILINE)
    sentence = ": ".join(filter(None, [kind, _short_message(text).rstrip(": "), line]))
    return Failure(kind=kind, place=place, raised_by=raised[-1] if raised else "", text=without_full_stop(sentence))


def says_nothing(failure: Failure) -> bool:
    """Return True if the message is only the name of an exception, such as `InductorError: AssertionError`."""
    return all(re.fullmatch(r"\w+(Error|Exception|Exit|Interrupt)", part) for part in failure.text.split(": "))


def without_full_stop(text: str) -> str:
    """Return the text without the full stop at its end: it becomes part of another sentence. Dots of `...` stay."""
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


_KINDS_OF_TENSORS = {
    "Unable to cast NotImplemented to Tensor": (
        "nested tensor",
        "torch.export cannot follow a class of tensors that the model makes, such as nested ones",
    ),
    "tensors do not have strides": ("sparse tensor", "the compiler takes no tensors in a sparse layout, such as CSR"),
    "type must be tuple of ints,but got FakeTensor": (
        "size from a tensor",
        "torch.export cannot follow a size that the model reads from a tensor, as pack_padded_sequence does: pass "
        "padded batches to the layer",
    ),
}
"""What torch says of tensors and sizes that are not plain, with the name and the text of the failure."""

_CHANGED_CONSTANT = re.compile(
    r"Constant (?:module\.)?(\S+) is mutated in the forward|mutating a non-functional tensor with a functional tensor"
)
"""Torch.export says it by an internal assertion, and its decompositions by the name of the tensor."""


def _of_a_known_message(kind: str, text: str) -> Failure | None:
    for words, (name, sentence) in _KINDS_OF_TENSORS.items():
        if words in text:
            return Failure(kind=name, text=sentence)
    if match := _CHANGED_CONSTANT.search(text):
        which = f"'{match[1]}'" if match[1] else "a tensor that the module holds"
        sentence = f"torch.export: forward changes {which}, which is no buffer: register it with register_buffer"
        return Failure(kind="changed constant", text=sentence)
    if match := re.match(r"^.*?\bLoad model from .+? failed:\s*(.+)$", text, re.DOTALL):
        cause = " ".join(line.strip() for line in match[1].splitlines())
        return Failure(kind=kind, text=f"ONNX Runtime does not take the graph: {without_full_stop(cause)}")
    if failure := _of_operators(kind, text) or _of_a_branch(text) or _of_torchscript(text):
        return failure
    says = _first_that_says_something(text)
    if "compile error" in says and (match := re.search(r"^.*\berror: .+$", text, re.MULTILINE)):
        return Failure(kind="C++ compiler", text=f"the C++ compiler failed: {match[0].strip()}")
    if match := re.search(r"^\s*target: (\S+)$", text, re.MULTILINE):  # an operator that Inductor does not lower
        operator = _operator(match[1])
        return Failure(kind=kind, operator=operator, text=f"{kind}: {operator}: {says}")
    return None


def _of_operators(kind: str, text: str) -> Failure | None:
    if match := re.search(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>", text):
        operator = _operator(f"{match[1]}.{match[2]}")
        numbers = (
            " of complex numbers" if text.startswith(_OF_COMPLEX_NUMBERS, text.find("for the", match.end())) else ""
        )
        reason = f"torch's ONNX exporter has no function for {operator}{numbers}"
        return Failure(kind="no ONNX function", operator=operator, text=reason)
    if names := [name for listed in _NOT_IN_OPENVINO.findall(text) for name in listed.split(", ")]:
        operators = ", ".join(dict.fromkeys(map(_operator, names)))
        return Failure(kind="not in OpenVINO", operator=operators, text=f"OpenVINO cannot convert {operators}")
    if explain := _TORCH_EXPORT.get(kind):
        operator = _operator(_first_that_says_something(text))
        return Failure(kind=kind, operator=operator, text=f"torch.export: {explain(operator)}")
    return None


_TORCH_EXPORT: dict[str, Callable[[str], str]] = {
    "UnsupportedOperatorException": "{} has no fake (meta) implementation".format,
    "DynamicOutputShapeException": "the shape of what {} returns depends on the values in its inputs".format,
    "DataDependentOutputException": "what {} returns depends on the values in its inputs".format,
}
"""Exceptions of torch that have an operator as their only message."""


def _of_a_branch(text: str) -> Failure | None:
    if not (match := _GUARD.search(text)):
        return None
    line, place = _source_line(text)
    if not place and (cause := _CAUSED_BY.search(text)) and not cause[1].startswith(("_", "torch/")):
        place = f"{Path(cause[1]).name}, line {cause[2]}, in {cause[3]}"
    unknown = ", ".join(dict.fromkeys(_SYMBOL.findall(match[1])))
    sentence = f"torch.export cannot follow what depends on the values in a tensor: {line.rstrip(':') or match[1]}"
    if unknown and not line:
        sentence += f", where only a call shows what {unknown} is"
    return Failure(kind="data-dependent branch", place=place, text=sentence)


_OTHER_SIZE = re.compile(r"size of (?:the )?tensor(?: a)? \((\d+)\) must match the (?:existing )?size[^(]* \((\d+)\)")
"""What a trace says of inputs for which a size is another one than when it was traced."""


def _of_torchscript(text: str) -> Failure | None:
    match = re.search(r"failed in the TorchScript interpreter\..*\n(?:builtins\.)?(\w+): (.+)$", text, re.DOTALL)
    if why := re.match(r"Tracer cannot infer type of .*\n:(.+)$", text, re.DOTALL):
        return Failure(kind="no type in a trace", text=f"torch.jit.trace cannot infer a type: {why[1].strip()}")
    if match and (sizes := _OTHER_SIZE.search(match[2])):
        sentence = f"the trace froze a size, which is another one for other inputs ({sizes[1]} and {sizes[2]})"
        return Failure(kind="size frozen by the trace", text=sentence)
    if not match:
        return None
    says, lines = _short_message(match[2]), re.findall(r"\n\s*(.+)\n\s*~+ <--- HERE", text)
    if lines and _SAYS_NOTHING.match(says):
        says = lines[-1]
    return Failure(kind=f"{match[1]} in TorchScript", text=f"in TorchScript: {match[1]}: {says}")


def _operator(name: str) -> str:
    """Return `aten.sort` for `aten.sort.default`, `sum` for `<function sum at 0x7f18>`, and others as they are."""
    return re.sub(r"<(?:built-in )?function (\w+).*>", r"\1", name.strip()).removesuffix(".default")


OURS = Path(__file__).resolve().parent.parent
"""The folder of Bakeoff's own code."""


def _source_line(text: str) -> tuple[str, str]:
    """Return `if x.sum() > 0:` and `mine.py, line 26, in forward` from a traceback in the message, or nothing."""
    match = _FRAME_BELOW.search(text)
    if not match or OURS in Path(match[1]).parents:  # a line of ours says nothing about the model
        return "", ""
    return match[4].strip(), f"{Path(match[1]).name}, line {match[2]}, in {match[3]}"


MOST_LINES, MOST_CHARACTERS = 4, 250
"""A message of at most so many lines and characters is shown whole."""


def _short_message(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    whole = " ".join(line for line in lines if not _SAYS_NOTHING.match(line))
    is_short = len(lines) <= MOST_LINES and len(whole) <= MOST_CHARACTERS and not _FRAME_BELOW.search(text)
    return whole if is_short and whole else _first_that_says_something(text)


def _first_that_says_something(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not _SAYS_NOTHING.match(line)), lines[0] if lines else "")


OUT_OF_MEMORY_WORDS = ("out of memory", "failed to allocate memory", "bad_alloc", "can't allocate memory")
"""Every library words it in its own way, and not all have an exception type for it."""


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_WORDS)
