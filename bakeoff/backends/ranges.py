"""The export by torch.export: what it does not take, and the axes that one build leaves open for a range of sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.backends.reasons import failure_of
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.models.unwrapping import is_quantised, is_scripted
from bakeoff.records.errors import Unsupported, first_line
from bakeoff.records.schema import Frozen

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class OpenAxis(Frozen):
    """An axis of an input whose size varies, and the sizes that a build must serve."""

    tensor: int  # its place in `Inputs.tensors`
    axis: int
    dimensions: tuple[str, ...]  # those of the model that set its size
    low: int
    high: int


OpenAxes = Sequence[OpenAxis]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(.+)')


def of_tensor(axes: OpenAxes, tensor: int) -> dict[int, OpenAxis]:
    return {axis.axis: axis for axis in axes if axis.tensor == tensor}


def lowest_and_highest(axes: OpenAxes, tensor: int, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lowest, highest = list(shape), list(shape)
    for axis, span in of_tensor(axes, tensor).items():
        lowest[axis], highest[axis] = span.low, span.high
    return tuple(lowest), tuple(highest)


def exported(module: torch.nn.Module, inputs: Inputs, axes: OpenAxes = (), kept: Sequence[int] = ()) -> ExportedProgram:
    """Export `module` by torch.export, with these axes open, as a program that takes flat tensors and returns those
    `kept`. Raise Unsupported, with the guard, if the program serves only a part of an open range."""
    from bakeoff.backends.calling import FlatModule, as_called, plain_tensors

    with plain_tensors(), naming_the_form(module), refusing_guards(axes):
        example = as_called(inputs)
        if not axes:
            return torch.export.export(FlatModule(module, inputs, kept), example)
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple(
            {axis: dynamic(min=span.low, max=span.high) for axis, span in of_tensor(axes, tensor).items()}
            for tensor in range(len(example))
        )
        program = torch.export.export(FlatModule(module, inputs, kept), example, dynamic_shapes=(shapes,))
    _require_whole_range(program, axes)
    return program


def mark(inputs: Inputs, axes: OpenAxes) -> None:
    import torch._dynamo

    tensors = inputs.tensors()
    for axis in axes:
        torch._dynamo.mark_dynamic(tensors[axis.tensor], axis.axis, min=axis.low, max=axis.high)


@contextmanager
def refusing_guards(axes: OpenAxes) -> Iterator[None]:
    """Raise Unsupported, with the guard, if torch finds inside the block that an open axis cannot stay open."""
    try:
        yield
    except Exception as error:
        if axes and (reason := guard_in(str(error))):
            raise Unsupported(f"one build does not serve the range: {reason}") from error
        raise


def guard_in(message: str) -> str:
    """Return in one line what torch says of a violated constraint, and the line of code if it names one, or nothing."""
    if not message.startswith("Constraints violated"):
        return ""
    violations = [line.strip()[2:] for line in message.splitlines() if line.strip().startswith("- ")]
    what = next(iter(violations), first_line(message)).partition(". If you're using")[0]
    what = what.replace("You marked ", "").replace(" as dynamic but your code specialized it", " was specialised")
    frames = _FRAME.findall(message)
    where = [f"{code.strip()} ({Path(path).name}, line {line})" for path, line, code in frames[-1:]]
    return ": ".join([what, *where])


def _require_whole_range(program: ExportedProgram, axes: OpenAxes) -> None:
    wanted = set(program.graph_signature.user_inputs)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted]
    for axis in axes:
        size: Any = placeholders[axis.tensor].meta["val"].shape[axis.axis]
        if isinstance(size, int):
            raise Unsupported(f"one build does not serve the range: torch.export specialised {_name(axis)} to {size}")
        supported = program.range_constraints.get(size.node.expr)
        low, high = (float(supported.lower), float(supported.upper)) if supported is not None else (0.0, math.inf)
        # torch.export takes sizes of 0 and 1 for special, and its programs still take them
        if low > max(axis.low, 2) or high < axis.high:
            raise Unsupported(
                f"one build does not serve the range: torch.export takes {_name(axis)} from {low:g} to {high:g} only"
            )


def _name(axis: OpenAxis) -> str:
    return f"{' and '.join(axis.dimensions)} (axis {axis.axis} of input {axis.tensor})"


PACKED = "PackedParams"
"""Part of the names of the objects in which torch's own quantisation keeps weights."""


def refuse_a_script(module: torch.nn.Module) -> None:
    """Raise Unsupported for a ScriptModule: torch.compile does not take one, or leaves it to eager as a whole."""
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported("torch.compile takes no ScriptModule: use torchscript or openvino, which do")


@contextmanager
def naming_the_form(module: torch.nn.Module) -> Iterator[None]:
    """Raise Unsupported, with what the module is, where exporting it inside the block fails for that."""
    if is_scripted(module):
        raise Unsupported("torch.export takes no ScriptModule: use torchscript or openvino, which do")
    try:
        yield
    except Exception as error:
        if isinstance(error, Unsupported) or not is_quantised(module):
            raise
        if PACKED in str(error):
            raise Unsupported(
                "the model is quantised already, and torch.export does not take its packed weights: use torchscript, "
                "or eager"
            ) from error
        reason = failure_of(type(error).__name__, str(error)).text
        raise Unsupported(f"the model is quantised already, and torch.export does not take it: {reason}") from error
