"""Big libraries, each of which is imported when something of it is first asked for: the controller imports none.

Files that name them here also load where they are not installed. Code that a compiler traces imports them itself, as
does what is timed: asking takes a microsecond.
"""

from typing import TYPE_CHECKING

from bakeoff.records.library import Library

__all__ = ["ir", "nn", "onnx", "onnxruntime", "openvino", "pytree", "torch", "torch_tensorrt", "trt"]
__all__ += ["dynamo_utils", "inductor_config", "iree_compiler", "iree_runtime"]

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    import openvino
    import tensorrt as trt
    import torch
    import torch_tensorrt
    from iree import compiler as iree_compiler
    from iree import runtime as iree_runtime
    from onnxscript import ir
    from torch import nn
    from torch._dynamo import utils as dynamo_utils
    from torch._inductor import config as inductor_config
    from torch.utils import _pytree as pytree
else:
    onnx, onnxruntime, openvino = map(Library, ("onnx", "onnxruntime", "openvino"))
    torch, nn, pytree = map(Library, ("torch", "torch.nn", "torch.utils._pytree"))
    dynamo_utils, inductor_config = map(Library, ("torch._dynamo.utils", "torch._inductor.config"))
    ir, trt, torch_tensorrt = map(Library, ("onnxscript.ir", "tensorrt", "torch_tensorrt"))
    iree_compiler, iree_runtime = map(Library, ("iree.compiler", "iree.runtime"))
