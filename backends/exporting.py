"""The one exporter to ONNX, shared by every backend that starts from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from models.base import Inputs


EXPORTED = "model.onnx"
QUANTISED = "int8.onnx"


@dataclass(frozen=True)
class OnnxModel:
    """An exported model on disk. Inputs stand in the order of `Inputs.tensors`."""

    path: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def export_onnx(module: torch.nn.Module, inputs: Inputs, folder: Path, opset: int | None = None) -> OnnxModel:
    """Export `module` through torch.export to `folder`/model.onnx, shapes static as in `inputs`.

    `opset` is the version of ONNX's operators, the exporter's default where it is None.
    Weights over the 2 GB limit of protobuf go into a file beside it. Raises what torch.onnx.export raises.
    """
    import torch

    from backends.calling import FlatModule, tensor_names

    path = folder / EXPORTED
    tensors = inputs.tensors()
    # functionalisation does not take inference tensors: export in no_grad, as a user's own script would
    with torch.inference_mode(False), torch.no_grad():
        program = torch.onnx.export(
            FlatModule(module, inputs),
            tuple(tensor.clone() for tensor in tensors),
            input_names=tensor_names(module, inputs),
            opset_version=opset,
            dynamo=True,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    program.save(str(path))
    graph = program.model.graph
    return OnnxModel(
        path=path,
        input_names=tuple(str(value.name) for value in graph.inputs),
        output_names=tuple(str(value.name) for value in graph.outputs),
    )


def exported_before(folder: Path) -> OnnxModel | None:
    """The model that an earlier process of the cell left in `folder`, quantised or not: what a warm start begins with.

    None in the first process, which finds the folder empty.
    """
    import onnx

    path = next((folder / name for name in (QUANTISED, EXPORTED) if (folder / name).exists()), None)
    if path is None:
        return None
    graph = onnx.load(path, load_external_data=False).graph
    return OnnxModel(
        path=path,
        input_names=tuple(value.name for value in graph.input),
        output_names=tuple(value.name for value in graph.output),
    )
