"""The export to ONNX in bfloat16: one floating type, and an opset that allows it."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends.exporting import BFLOAT16_OPSET, export_onnx
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from tests.support.cells import cell_of

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

SIZES: dict[str, dict[str, str | int]] = {
    "mlp": {"batch": 2, "features": 8, "hidden": 8},
    "conv": {"batch": 1, "size": 8, "width": 4},
    "transformer": {"batch": 1, "seq": 8, "dim": 16, "heads": 2, "ffn": 16},
}


class Vision(nn.Module):
    """Layers as in torchvision: convolutions without a bias, some of them grouped, pooling, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 8, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(
            convolution(8, 8, groups=8), nn.BatchNorm2d(8), nn.ReLU6(), convolution(8, 8), nn.BatchNorm2d(8)
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d(8), nn.Hardswish())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.BatchNorm1d(4))

    def forward(self, images: Tensor) -> Tensor:
        stem = self.stem(images)
        return self.head(self.up(torch.relu(stem + self.block(stem))))


def convolution(channels: int, width: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, stride, padding=1, groups=groups, bias=False)


@pytest.fixture(autouse=True)
def no_fast_path() -> None:
    """Keep torch's transformer layers out of a fused operator that ONNX lacks, as a worker does."""
    torch.backends.mha.set_fastpath_enabled(False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that gives the graph of one of our models in a precision."""

    @functools.cache
    def graph(model: str, precision: Precision, opset: int | None = None) -> Any:
        cell = cell_of(model, "onnx", SIZES[model], precision=precision)
        module, sets = move_to_device(load(cell), cell)
        return onnx.load(export_onnx(module, sets[0], tmp_path_factory.mktemp("graph"), opset).path)

    return graph


def exported_in_bfloat16(module: nn.Module, *shape: int, folder: Path) -> Any:
    inputs = Inputs((torch.randn(shape, dtype=torch.bfloat16),))
    return onnx.load(export_onnx(module.eval().to(torch.bfloat16), inputs, folder).path)


def opset_of(graph: Any) -> int:
    (opset,) = graph.opset_import
    return int(opset.version)


def require_valid_bfloat16(model: Any) -> None:
    """Check the graph, and that no weight, input, output or value between them has another floating type."""
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {one.type.tensor_type.elem_type for one in values} | {one.data_type for one in graph.initializer}
    assert types - {onnx.TensorProto.INT64, onnx.TensorProto.BOOL} == {onnx.TensorProto.BFLOAT16}


@pytest.mark.parametrize("model", ["mlp", "conv", pytest.param("transformer", marks=pytest.mark.slow)])
def test_our_models_are_valid_in_bfloat16(model: str, exported: Callable[..., Any]) -> None:
    require_valid_bfloat16(exported(model, Precision.BF16))


@pytest.mark.slow
def test_a_vision_model_is_valid_in_bfloat16_with_its_batch_normalisations_folded(tmp_path: Path) -> None:
    graph = exported_in_bfloat16(Vision(), 2, 3, 16, 16, folder=tmp_path)
    require_valid_bfloat16(graph)
    operators = [node.op_type for node in graph.graph.node]
    assert "BatchNormalization" not in operators
    assert [operators.count(name) for name in ("Conv", "ConvTranspose", "Gemm", "MaxPool")] == [3, 1, 1, 1]


def test_folded_weights_are_rounded_once(tmp_path: Path) -> None:
    """They are computed in float32 from the weights in bfloat16."""
    layer, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    for tensor in (*norm.parameters(), norm.get_buffer("running_mean"), norm.get_buffer("running_var")):
        nn.init.uniform_(tensor, 0.5, 1.5)
    graph = exported_in_bfloat16(nn.Sequential(layer, norm), 1, 3, 8, 8, folder=tmp_path).graph
    folded = torch.nn.utils.fuse_conv_bn_eval(layer.float(), norm.float())
    assert folded.bias is not None
    (node,) = graph.node
    found = {one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).astype("float32")) for one in graph.initializer}
    for name, expected in zip(node.input[1:], (folded.weight, folded.bias), strict=True):
        # a rounding to bfloat16 changes a number by 2**-8 of it at most
        torch.testing.assert_close(found[name], expected.detach(), rtol=2**-8, atol=1e-6)


def test_only_a_graph_that_needs_it_gets_a_higher_opset(exported: Callable[..., Any]) -> None:
    default = opset_of(exported("mlp", Precision.BF16))
    assert opset_of(exported("conv", Precision.FP16)) == default
    assert opset_of(exported("conv", Precision.BF16)) == max(default, BFLOAT16_OPSET)


@pytest.mark.slow
def test_an_opset_that_is_asked_for_is_kept(exported: Callable[..., Any]) -> None:
    graph = exported("conv", Precision.BF16, 23)
    assert opset_of(graph) == 23
    require_valid_bfloat16(graph)
