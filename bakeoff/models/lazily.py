"""Big libraries, each of which is imported when something of it is first asked for: the controller imports none.

Files that name them here also load where they are not installed. Code that a compiler traces imports them itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ("ir", "nn", "onnx", "onnxruntime", "openvino", "pytree", "torch", "torch_tensorrt", "trt")


class Library:
    """Stands for a module that is imported when an attribute of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self._name,)


if TYPE_CHECKING:
    import onnx
    import onnxruntime
    import openvino
    import tensorrt as trt
    import torch
    import torch_tensorrt
    from onnxscript import ir
    from torch import nn
    from torch.utils import _pytree as pytree
else:
    onnx, onnxruntime, openvino = map(Library, ("onnx", "onnxruntime", "openvino"))
    torch, nn, pytree = map(Library, ("torch", "torch.nn", "torch.utils._pytree"))
    ir, trt, torch_tensorrt = map(Library, ("onnxscript.ir", "tensorrt", "torch_tensorrt"))
