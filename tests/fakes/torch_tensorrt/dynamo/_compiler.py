from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.passes.split_module import split_module

from .. import behaviour as _behaviour
from ._settings import CompilationSettings


def compile(
    exported_program: ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    device: torch.device | None = None,
    disable_tf32: bool = False,
    min_block_size: int = CompilationSettings.min_block_size,
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
    return compile_module(graph, arg_inputs or inputs or (), settings=settings)


def compile_module(
    gm: torch.fx.GraphModule, sample_arg_inputs: Sequence[Any], *, settings: CompilationSettings
) -> torch.fx.GraphModule:
    """Put neighbouring nodes of one kind into one child, with the real partitioner's names."""
    work = [node for node in gm.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    convertible = [node for node in work if str(node.target) not in _behaviour.not_converted]
    if len(convertible) < max(1, settings.min_block_size, _behaviour.least_block()):
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
            split.add_module(name, TorchTensorRTModule._of(child, settings) if kinds[number] else child)
            node.target = name
    split.recompile()
    return split


class TorchTensorRTModule(torch.nn.Module):
    """The module that takes the place of a part for which an engine was built."""

    @classmethod
    def _of(cls, graph: torch.nn.Module, settings: CompilationSettings) -> TorchTensorRTModule:
        module = cls()
        module.settings = settings
        module._graph = graph
        return module

    def forward(self, *inputs: Any) -> Any:
        return self._graph(*inputs)

    def get_layer_info(self) -> str:
        """Return only names, since the real library builds without details."""
        assert isinstance(self._graph, torch.fx.GraphModule)
        names = [node.name for node in self._graph.graph.nodes if node.op == "call_function"]
        return json.dumps({"Layers": names, "Bindings": []})
