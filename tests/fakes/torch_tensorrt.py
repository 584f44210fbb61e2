"""A fake of Torch-TensorRT 2.8: it partitions a graph as the real library does, and runs every part in torch.

Its signatures have no `**kwargs`, so a keyword that the real library would ignore is an error. A test may replace what
stands above the first function.
"""

import json
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.passes.split_module import split_module

__version__ = "2.8.0"

not_converted: set[str] = set()
"""Operators that stay in torch."""
least_block = 1
"""Below so many operators no engine is built, whatever the settings say."""
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


def compile(
    exported_program: ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    device: torch.device | None = None,
    disable_tf32: bool = False,
    min_block_size: int = 1,
    pass_through_build_failures: bool = False,
    timing_cache_path: str = "",
    use_explicit_typing: bool = False,
) -> torch.fx.GraphModule:
    assert isinstance(exported_program, ExportedProgram) and (arg_inputs or inputs)
    assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    settings = CompilationSettings(
        device, disable_tf32, min_block_size, pass_through_build_failures, timing_cache_path, use_explicit_typing
    )
    graph = exported_program.run_decompositions().module()
    assert isinstance(graph, torch.fx.GraphModule)
    return _partitioned(graph, settings)


def torch_tensorrt_backend(gm: torch.fx.GraphModule, sample_inputs: Sequence[Any], **kwargs: Any) -> torch.nn.Module:
    """Compile a graph. An unknown option is an error here, and the real library silently drops it."""
    assert kwargs.keys() == {"options"}
    return _partitioned(gm, CompilationSettings(**kwargs["options"]))


@contextmanager
def enable_cudagraphs(compiled_module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    switched.append(True)
    yield compiled_module
    switched.append(False)


class TorchTensorRTModule(torch.nn.Module):
    """The module that takes the place of a part for which an engine was built."""

    def __init__(self, graph: torch.nn.Module, settings: CompilationSettings) -> None:
        super().__init__()
        self.graph_in_torch, self.settings = graph, settings

    def forward(self, *inputs: Any) -> Any:
        return self.graph_in_torch(*inputs)

    def get_layer_info(self) -> str:
        """Return only names, since the real library builds without details."""
        assert isinstance(self.graph_in_torch, torch.fx.GraphModule)
        names = [node.name for node in self.graph_in_torch.graph.nodes if node.op == "call_function"]
        return json.dumps({"Layers": names, "Bindings": []})


dynamo = SimpleNamespace(
    compile=compile,
    CompilationSettings=CompilationSettings,
    backend=SimpleNamespace(torch_tensorrt_backend=torch_tensorrt_backend),
)
runtime = SimpleNamespace(enable_cudagraphs=enable_cudagraphs)


def _partitioned(gm: torch.fx.GraphModule, settings: CompilationSettings) -> torch.fx.GraphModule:
    """Put neighbouring nodes of one kind into one child, with the real partitioner's names."""
    work = [node for node in gm.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    convertible = [node for node in work if str(node.target) not in not_converted]
    if len(convertible) < max(settings.min_block_size, least_block):
        return gm
    groups: dict[torch.fx.Node, int] = {}
    kinds: list[bool] = []
    for node in gm.graph.nodes:
        kind = node not in work or node in convertible
        if not kinds or (node in work and kinds[-1] != kind):
            kinds.append(kind)
        groups[node] = len(kinds) - 1
    split = split_module(gm, gm, lambda node: groups[node])
    for node in split.graph.nodes:
        if node.op == "call_module" and node.target.startswith("submod_"):
            number = int(node.target.removeprefix("submod_"))
            child = split.get_submodule(node.target)
            name = f"_run_on_{'acc' if kinds[number] else 'gpu'}_{number}"
            split.delete_submodule(node.target)
            split.add_module(name, TorchTensorRTModule(child, settings) if kinds[number] else child)
            node.target = name
    split.recompile()
    return split
