"""Precisions that round the weights of linear layers alone: what each library makes, and what it tells."""

from pathlib import Path

import numpy
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from bakeoff import backends
from bakeoff.backends import weight_only
from bakeoff.backends.base import INT8_PRODUCTS
from bakeoff.backends.exporting import OnnxModel
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.onnx_quantising import onnx_layers
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.models.generation import Generating, writes_in_place
from bakeoff.models.transformer_lm import TransformerLM
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, Cell
from tests.backends.building import built, loaded

WEIGHT_ONLY = [one for one in Precision if one.is_weight_only]
IN_FLOAT32 = [Precision.W8A32, Precision.W4A32]
LARGEST_ERROR = {Precision.W8A32: 0.02, Precision.W4A32: 0.2}
"""The largest RMSE of two layers, relative to their output."""

INPUTS, HIDDEN, OUTPUTS = 48, 64, 40


def drawn() -> tuple[numpy.ndarray, ...]:
    random = numpy.random.default_rng(0)
    sizes = ((3, INPUTS), (HIDDEN, INPUTS), (HIDDEN,), (HIDDEN, OUTPUTS))
    return tuple(random.standard_normal(size).astype(numpy.float32) for size in sizes)


def relative(found: numpy.ndarray, wanted: numpy.ndarray) -> float:
    return float(numpy.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.fixture
def exported(tmp_path: Path) -> OnnxModel:
    """A Gemm with a bias, a product with a constant, and one of two activations."""
    _, first, bias, second = drawn()
    make = onnx.helper.make_node
    nodes = [
        make("Gemm", ["x", "first", "bias"], ["hidden"], transB=1),
        make("MatMul", ["hidden", "second"], ["middle"]),
        make("Transpose", ["middle"], ["turned"], perm=[1, 0]),
        make("MatMul", ["middle", "turned"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "two layers",
        [value("x", onnx.TensorProto.FLOAT, [3, INPUTS])],
        [value("y", onnx.TensorProto.FLOAT, [3, 3])],
        [
            onnx.numpy_helper.from_array(one, name)
            for one, name in ((first, "first"), (bias, "bias"), (second, "second"))
        ],
    )
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    return OnnxModel(path, ("x",), ("y",))


@pytest.mark.parametrize("precision", IN_FLOAT32)
@pytest.mark.parametrize(("mode", "level"), [("default", "1"), (INT8_PRODUCTS, "4")])
def test_onnx_runtime_multiplies_weights_of_few_bits(
    exported: OnnxModel, precision: Precision, mode: str, level: str
) -> None:
    x, first, bias, second = drawn()
    middle = (x @ first.T + bias) @ second
    before = exported.path.stat().st_size
    weight_only.onnx_weights(exported, precision, Onnx.mode(mode).options)
    told = onnx_layers(exported, precision)
    assert told == {f"{precision} linear layers": 2, "accuracy_level": level}
    assert exported.path.stat().st_size < before / 2
    session = onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    assert 1e-4 < relative(found, middle @ middle.T) < 2 * LARGEST_ERROR[precision]


def test_a_model_of_convolutions_is_unsupported(exported: OnnxModel) -> None:
    model = onnx.load(exported.path)
    large = numpy.zeros((HIDDEN, HIDDEN, 3, 3), dtype=numpy.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(large, "filter"))
    model.graph.node.append(onnx.helper.make_node("Conv", ["image", "filter"], ["filtered"]))
    onnx.save(model, exported.path)
    with pytest.raises(
        Unsupported, match="ONNX Runtime brings 13 % of the layers' weights to w4a32 here; 1 convolution"
    ):
        weight_only.onnx_weights(exported, Precision.W4A32, {})


@pytest.mark.parametrize("precision", IN_FLOAT32)
def test_nncf_rounds_layers_and_no_table(precision: Precision) -> None:
    openvino = pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    ops = pytest.importorskip("openvino.opset13")
    _, first, _, second = drawn()
    table = numpy.random.default_rng(1).standard_normal((100, INPUTS)).astype(numpy.float32)
    tokens = ops.parameter([3], dtype=numpy.int64)
    rows = ops.gather(ops.constant(table), tokens, ops.constant(0))
    product = ops.matmul(ops.matmul(rows, ops.constant(first), False, True), ops.constant(second), False, False)
    model = weight_only.openvino_weights(openvino.Model([product], [tokens], "two layers"), precision)
    assert weight_only.openvino_layers(model, precision) == {f"{precision} linear layers": 2}
    constants = {
        tuple(one.shape): one.get_element_type().get_type_name()
        for one in model.get_ops()
        if one.get_type_name() == "Constant"
    }
    assert constants[(100, INPUTS)] == "f32"
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    chosen = numpy.array([5, 50, 99])
    assert 1e-4 < relative(compiled(chosen)[0], table[chosen] @ first.T @ second) < LARGEST_ERROR[precision]


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, first, bias, second = (torch.from_numpy(one) for one in drawn())
        self.first, self.second = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(first)
            self.first.bias.copy_(bias)
            self.second.weight.copy_(second.T)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_torchao_rounds_weights_to_8_bits(tmp_path: Path) -> None:
    module, sets = TwoLayers().eval(), (Inputs((torch.randn(3, INPUTS),)),)
    cell = Cell(model="own", backend="eager", precision=Precision.W8A32)
    with built(cell, tmp_path, LoadedModel(module, sets)) as one:
        (found,) = one.call(one.sets[0])
        assert one.compiled.precision() == {"w8a32 linear layers": 2}
        (wanted,) = one.eager(one.sets[0])
    assert 1e-4 < relative(found.numpy(), wanted.numpy()) < LARGEST_ERROR[Precision.W8A32]


def test_torchao_has_no_product_with_4_bits_on_the_cpu(tmp_path: Path) -> None:
    cell = Cell(model="own", backend="eager", precision=Precision.W4A32)
    model = loaded(TwoLayers(), 3, INPUTS, sets=1)
    with pytest.raises(Unsupported, match="no product with 4-bit weights for the CPU"), built(cell, tmp_path, model):
        pass


def test_a_step_with_rounded_weights_writes_into_its_caches(tmp_path: Path) -> None:
    family = Generating(TransformerLM())
    dimensions = family.resolve({"prompt": "4", "new_tokens": "4", "size": "tiny"})
    model = family.load_graph(DECODE, dimensions, 0, Device("cpu"), torch.float32)
    cell = Cell(model="transformer_lm", dimensions=dimensions, task=DECODE, backend="eager", precision="w8a32")
    in_place = LoadedModel(writes_in_place(model.module), model.inputs)
    with built(cell, tmp_path, in_place) as one:
        _, position, *caches = one.sets[0].args
        for cache in caches:
            cache[:, :, int(position)] = 0.0
        assert len(one.call(one.sets[0])) == 1, "the logits alone"
        assert all(cache[:, :, int(position)].any() for cache in caches)


@pytest.mark.parametrize("rounds_inputs", [False, True])
def test_litert_rounds_linear_layers(rounds_inputs: bool, tmp_path: Path) -> None:
    """Needs an environment of its own: `bakeoff env add litert litert-torch ai-edge-litert`."""
    litert_torch = pytest.importorskip("litert_torch")
    pytest.importorskip("ai_edge_quantizer")
    from ai_edge_litert.interpreter import Interpreter

    module = nn.Sequential(nn.Linear(INPUTS, 256), nn.ReLU(), nn.Linear(256, OUTPUTS)).eval()
    x = torch.randn(3, INPUTS)
    path = tmp_path / "model.tflite"
    litert_torch.convert(module, (x,)).export(str(path))
    before = path.stat().st_size
    told = weight_only.litert_weights(path, Precision.W8A32, rounds_inputs)
    assert told == {"w8a32 linear layers": 2}
    assert path.stat().st_size < before / 2
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x.numpy())
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert 1e-4 < relative(found, module(x).detach().numpy()) < LARGEST_ERROR[Precision.W8A32]


def test_rounding_inputs_is_for_precisions_of_weights_alone() -> None:
    openvino = backends.create("openvino")
    assert ["rounded to 8 bits" in mode.caveat for mode in openvino.modes] == [False, True]
