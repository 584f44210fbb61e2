"""A fake of Torch-TensorRT 2.8: it puts the whole graph into one engine, by the real names, and runs it in torch.

A keyword that the real library would ignore is an error here. A test may replace what stands above the first function.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.passes.split_module import split_module

__version__ = "2.8.0"

builds_engines = True
"""Below min_block_size the library only logs a warning, and returns a plain torch module."""
switched: list[bool] = []
"""Each time that CUDA graphs were switched on or off."""


@dataclass
class CompilationSettings:
    """The settings that the backend uses. Blocks are smaller than the real default of 5, for small models."""

    device: torch.device | None = None
    disable_tf32: bool = False
    min_block_size: int = 1
    pass_through_build_failures: bool = False
    timing_cache_path: str = ""
    use_explicit_typing: bool = False
    use_fp32_acc: bool = False


def compile(exported_program: ExportedProgram, *, arg_inputs: Sequence[Any], **settings: Any) -> torch.fx.GraphModule:
    assert isinstance(exported_program, ExportedProgram) and arg_inputs
    assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    graph = exported_program.run_decompositions().module()
    assert isinstance(graph, torch.fx.GraphModule)
    return _partitioned(graph, CompilationSettings(**settings))


def torch_tensorrt_backend(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any], **kwargs: Any) -> torch.nn.Module:
    assert kwargs.keys() == {"options"}
    return _partitioned(gm, CompilationSettings(**kwargs["options"]))


@contextmanager
def enable_cudagraphs(compiled_module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    switched.append(True)
    yield compiled_module
    switched.append(False)


class TorchTensorRTModule(torch.nn.Module):
    """The module that takes the place of a part for which an engine was built."""

    def __init__(self, graph: torch.fx.GraphModule, settings: CompilationSettings) -> None:
        super().__init__()
        self.graph_in_torch, self.settings = graph, settings

    def forward(self, *inputs: Any) -> Any:
        return self.graph_in_torch(*inputs)

    def get_layer_info(self) -> str:
        """Return only names, since the real library builds without details."""
        names = [node.name for node in self.graph_in_torch.graph.nodes if node.op == "call_function"]
        return json.dumps({"Layers": names, "Bindings": []})


dynamo = SimpleNamespace(
    compile=compile,
    CompilationSettings=CompilationSettings,
    backend=SimpleNamespace(torch_tensorrt_backend=torch_tensorrt_backend),
)
runtime = SimpleNamespace(enable_cudagraphs=enable_cudagraphs)


def _partitioned(gm: torch.fx.GraphModule, settings: CompilationSettings) -> torch.fx.GraphModule:
    if not builds_engines:
        return gm
    split = split_module(gm, gm, lambda node: 0)
    (node,) = (node for node in split.graph.nodes if node.target == "submod_0")
    engine = TorchTensorRTModule(split.submod_0, settings)
    split.delete_submodule("submod_0")
    split.add_module("_run_on_acc_0", engine)
    node.target = "_run_on_acc_0"
    split.recompile()
    return split
