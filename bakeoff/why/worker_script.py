"""Writes a part of a model as Python that needs torch alone: it defines `model` and `inputs`.

torch.export traces the part, and torch prints the graph. Weights and inputs have other values in the same shapes and
types.
"""

import operator
from dataclasses import replace

import torch

from bakeoff.backends.calling import FlatModule
from bakeoff.models.base import Inputs
from bakeoff.why.worker_parts import ModelPart, exported, is_assertion

HEAD = """from math import inf, nan

import torch
from torch import device


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()"""


def source_of(part: ModelPart, dtype: torch.dtype) -> str:
    """Return the source of a part that takes and returns flat tensors, or nothing for one that has none."""
    try:
        flat = replace(part, module=FlatModule(part.module, part.inputs), inputs=Inputs(part.inputs.tensors()))
        graph = exported(flat, dtype)
        inputs = [source_of_tensor(tensor) for tensor in flat.given(dtype).tensors()]
        return f"{source_of_graph(graph)}\n\n\nmodel = Model().eval()\ninputs = ({', '.join(inputs)},)"
    except Exception:  # the user's own code may keep it from being exported
        return ""


def source_of_graph(module: torch.fx.GraphModule) -> str:
    """Return torch's printout of a graph as the class `Model`, with its weights under flat names.

    Raises TypeError for a graph that holds other graphs.
    """
    graph, weights = module.graph, dict[str, str]()
    for node in list(graph.nodes):
        if is_assertion(node):
            graph.erase_node(node)
        elif node.op == "get_attr":
            weight = operator.attrgetter(str(node.target))(module)
            if not isinstance(weight, torch.Tensor):
                raise TypeError(f"{node.target} is no tensor")
            node.target = weights.setdefault(str(node.target), f"weight_{len(weights)}")
            setattr(module, node.target, weight)
    graph.set_codegen(torch.fx.graph.CodeGen())
    made = [(name, source_of_tensor(getattr(module, name))) for name in weights.values()]
    buffers = [f"        self.register_buffer({name!r}, {value})" for name, value in made]
    forward = [f"    {line}".rstrip() for line in graph.python_code("self").src.strip().splitlines()]
    return "\n".join([HEAD, *buffers, "", *forward])


def source_of_tensor(tensor: torch.Tensor) -> str:
    """Return the source of a tensor like this one: of its shape and type, with other values."""
    shape = tuple(tensor.shape)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return f"torch.randn({shape}).to({tensor.dtype})"
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}, dtype={tensor.dtype})"
    if tensor.dtype == torch.bool:
        return f"torch.ones({shape}, dtype=torch.bool)"
    low, high = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
    return f"torch.randint({low}, {high}, {shape}, dtype={tensor.dtype})"
