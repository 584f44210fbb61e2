"""What PyTorch's compilers cannot take for what it is: a ScriptModule, and a module that is quantised already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bakeoff.backends.reasons import failure_of
from bakeoff.models.unwrapping import is_quantised, is_scripted
from bakeoff.records.errors import Unsupported

if TYPE_CHECKING:
    import torch


PACKED = "PackedParams"
"""Part of the names of the objects in which torch's own quantisation keeps weights."""


def refuse_a_script(module: torch.nn.Module) -> None:
    """Raise Unsupported for a ScriptModule: torch.compile does not take one, or leaves it to eager as a whole."""
    import torch

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
