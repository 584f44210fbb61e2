from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._compiler import compile_module
from .._settings import CompilationSettings


def torch_tensorrt_backend(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any], **kwargs: Any) -> torch.nn.Module:
    """Compile a graph. An unknown option is an error here, and the real library silently drops it."""
    assert kwargs.keys() == {"options"}
    return compile_module(gm, sample_inputs, settings=CompilationSettings(**kwargs["options"]))
