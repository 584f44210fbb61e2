"""Post-training quantisation: which layers are quantised, the effect of calibration, and the error."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from bakeoff.backends import quantising
from bakeoff.backends.base import BuildContext, Settings
from bakeoff.backends.calling import flatten_outputs
from bakeoff.backends.exporting import OnnxModel, export_onnx
from bakeoff.backends.onnx_quantising import onnx_layers, static_onnx
from bakeoff.backends.quantising import torch_int8_cpu, torch_int8_cuda
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.errors import BakeoffError, Unavailable, Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth import accuracy
from tests.backends.building import Built, RecordingPhases, built, loaded, reference_of
from tests.support import cells
from tests.support.modules import Calling

pytestmark = pytest.mark.filterwarnings("ignore:.*To copy construct from a tensor.*:UserWarning")

LAYERS: dict[str, Settings] = {
    "mlp": {"int8 linear layers": 3},
    "conv": {"int8 convolution layers": 3},
    "transformer": {"int8 linear layers": 8},
}
SMALL: dict[str, dict[str, str | int]] = {
    "mlp": {},
    "conv": {"size": 32},
    "transformer": {"seq": 32, "dim": 64, "ffn": 128},
}


def cell_of(model: str, backend: str = "eager", precision: str = "int8", mode: str = "default") -> Cell:
    return cells.cell_of(model, backend, SMALL[model], mode=mode, precision=precision)


def relative_rmse(one: Built) -> float:
    found = accuracy.check([one.call(inputs) for inputs in one.sets], reference_of(one.cell), one.cell.precision)
    assert found.passed, found.rule
    return found.relative_rmse


@pytest.mark.parametrize(
    ("backend", "model"),
    [
        pytest.param("eager", "mlp", marks=pytest.mark.slow),
        ("eager", "conv"),
        pytest.param("inductor", "conv", marks=pytest.mark.slow),
        pytest.param("openvino", "conv", marks=pytest.mark.slow),
        pytest.param("openvino", "transformer", marks=pytest.mark.slow),
    ],
)
def test_int8_quantises_every_layer_says_so_and_is_right(backend: str, model: str, tmp_path: Path) -> None:
    with built(cell_of(model, backend), tmp_path) as one:
        error = relative_rmse(one)
        told = one.compiled.precision()
        assert all(torch.equal(now, was) for now, was in zip(one.sets[0].tensors(), one.before[-1:], strict=True))
    assert 1e-3 < error < 4e-2  # floating point is far below, noise far above
    assert {name: count for name, count in told.items() if name.endswith(" layers")} == LAYERS[model]
    if backend == "openvino":
        assert told["layers run in int8"] == sum(int(str(count)) for count in LAYERS[model].values())


@pytest.mark.slow
def test_inductor_multiplies_bytes_and_is_right(tmp_path: Path) -> None:
    with built(cell_of("transformer", "inductor"), tmp_path) as one:
        assert 1e-3 < relative_rmse(one) < 4e-2
        assert one.compiled.precision().items() >= LAYERS["transformer"].items()
        assert counters["inductor"]["qlinear_weight_prepack_matcher_count"] == 8
        assert one.phases == ("export", "compile")
        assert one.compiled.settings()["freezing"] is True
        assert not torch._inductor.config.freezing


@pytest.mark.slow
def test_eager_multiplies_bytes(tmp_path: Path) -> None:
    cell = cell_of("transformer")
    module, sets = move_to_device(load(cell), cell)
    lowered = torch_int8_cpu(module, sets[0], sets, lower=True).module
    targets = Counter(str(node.target) for node in lowered.graph.nodes)  # type: ignore[union-attr, operator, arg-type]
    assert sum(count for name, count in targets.items() if name.startswith("onednn.qlinear")) == 8
    assert not [name for name in targets if "addmm" in name or "linear.default" in name]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_inputs_survive_a_residual(backend: str, tmp_path: Path) -> None:
    """OneDNN adds the input to the layer's product in the input's own memory."""
    module = Calling(lambda own, x: x + own.linear(x), linear=nn.Linear(64, 64))
    sets = tuple(Inputs((torch.randn(8, 64),)) for _ in range(4))
    cell = Cell(model="own", backend=backend, precision="int8")
    with built(cell, tmp_path, LoadedModel(module.eval(), sets)) as one:
        kept = [inputs.args[0].clone() for inputs in one.sets]
        for _ in range(2):
            for inputs, before in zip(one.sets, kept, strict=True):
                torch.testing.assert_close(one.call(inputs), one.eager(inputs), rtol=0.1, atol=0.1)
                assert torch.equal(inputs.args[0], before)
        compilations = one.compiled.compilations()
        one.call_again()
        assert one.compiled.compilations() == compilations


def linear_on(inputs: Tensor) -> LoadedModel:
    """Return an identity, so that the output shows how the input was rounded."""
    layer = nn.Linear(inputs.shape[-1], inputs.shape[-1], bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(inputs.shape[-1]))
    return LoadedModel(layer.eval(), (Inputs((inputs,)),))


@pytest.mark.parametrize("backend", ["eager", pytest.param("openvino", marks=pytest.mark.slow)])
def test_the_calibration_is_the_models_own_inputs(backend: str, tmp_path: Path) -> None:
    """Inputs with a range of 100 have steps of 1/255 of it. Ranges from zeros or from noise would clip them."""
    inputs = 100 * torch.linspace(-1, 1, 8 * 32).reshape(8, 32)
    with built(Cell(model="own", backend=backend, precision="int8"), tmp_path, linear_on(inputs)) as one:
        (output,) = one.call(one.sets[0])
        (beyond,) = one.call(one.sets[0].map(lambda tensor: tensor * 4))
    step = 200 / 255
    assert 0.1 * step < float((output - inputs).abs().max()) < 2.5 * step
    assert float(beyond.abs().max()) < 110  # and what lies outside of that range is clipped


def onnx_outputs(model: OnnxModel, inputs: Inputs) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    fed = {name: tensor.numpy() for name, tensor in zip(model.input_names, inputs.tensors(), strict=True)}
    return torch.from_numpy(session.run(None, fed)[0])


@pytest.mark.parametrize(
    "model", ["conv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "transformer"))]
)
def test_onnx_is_quantised_whole_and_right(model: str, tmp_path: Path) -> None:
    cell = cell_of(model)
    module, sets = move_to_device(load(cell), cell)
    source = export_onnx(module, sets[0], tmp_path)
    before = source.path.read_bytes()
    reference = reference_of(cell)
    for symmetric in (False, True):
        folder = tmp_path / f"symmetric {symmetric}"
        folder.mkdir()
        quantised = static_onnx(source, sets, folder, symmetric)
        assert source.path.read_bytes() == before
        assert [file.name for file in folder.iterdir()] == ["int8.onnx"]
        assert onnx_layers(quantised, Precision.INT8) == LAYERS[model]
        assert onnx_layers(source, Precision.INT8).keys() == {name.replace("int8", "float32") for name in LAYERS[model]}
        found = accuracy.check([(onnx_outputs(quantised, one),) for one in sets], reference, Precision.INT8)
        assert found.passed, found.rule
        assert 1e-3 < found.relative_rmse < 4e-2


def test_what_tensorrt_is_given_is_symmetric_with_float_biases_and_outputs(tmp_path: Path) -> None:
    cell = cell_of("mlp")
    module, sets = move_to_device(load(cell), cell)
    source = export_onnx(module, sets[0], tmp_path)
    cpu, gpu = (tmp_path / name for name in ("cpu", "gpu"))
    cpu.mkdir()
    gpu.mkdir()
    for_cpu, for_gpu = static_onnx(source, sets, cpu), static_onnx(source, sets, gpu, symmetric=True)
    assert zero_points(for_gpu) == {0}
    assert zero_points(for_cpu) != {0}
    assert onnx.TensorProto.INT32 not in dequantised_types(for_gpu)
    assert onnx.TensorProto.INT32 in dequantised_types(for_cpu)
    assert count(for_gpu, "QuantizeLinear") == 3  # what each layer is fed
    assert count(for_cpu, "QuantizeLinear") > 3
    for quantised in (for_cpu, for_gpu):
        scales = [
            numpy.size(onnx.numpy_helper.to_array(tensor))
            for tensor in onnx.load(quantised.path).graph.initializer
            if tensor.name.endswith("weight_scale")
        ]
        assert sorted(scales) == [256, 512, 512]  # one per output channel


def zero_points(model: OnnxModel) -> set[int]:
    found: set[int] = set()
    for tensor in onnx.load(model.path).graph.initializer:
        if tensor.name.endswith("zero_point"):
            found |= set(onnx.numpy_helper.to_array(tensor).ravel().tolist())
    return found


def dequantised_types(model: OnnxModel) -> set[int]:
    graph = onnx.load(model.path).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {
        types[node.input[0]] for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in types
    }


def count(model: OnnxModel, operator: str) -> int:
    return sum(node.op_type == operator for node in onnx.load(model.path).graph.node)


def test_onnx_calibration_uses_the_inputs_given(tmp_path: Path) -> None:
    model = linear_on(torch.linspace(-1, 1, 8 * 32).reshape(8, 32))
    source = export_onnx(model.module, model.inputs[0], tmp_path)
    zeros = (model.inputs[0].map(torch.zeros_like),)
    errors = []
    for name, sets in (("given", model.inputs), ("zeros", zeros)):
        (tmp_path / name).mkdir()
        output = onnx_outputs(static_onnx(source, sets, tmp_path / name), model.inputs[0])
        errors.append(float((output - model.inputs[0].args[0]).abs().max()))
    assert errors[0] < 0.03
    assert errors[1] > 0.9


def without_a_layer() -> nn.Module:
    return Calling(lambda _, x: x * 2)


def mostly_transposed(outputs: int = 4) -> nn.Module:
    """A transposed convolution, which no backend quantises, and a small layer that all quantise."""
    return nn.Sequential(nn.ConvTranspose1d(32, 32, 3), nn.Linear(34, outputs))


def own(module: nn.Module) -> LoadedModel:
    return loaded(module, 2, 32, 32)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (without_a_layer, "there is nothing to quantise: the model has no linear layer and no convolution"),
        (
            mostly_transposed,
            "torchao brings 4 % of the layers' weights to int8 here; 1 convolution would stay in float32",
        ),
    ],
)
def test_what_would_stay_floating_point_is_unsupported(module: type[nn.Module], reason: str, tmp_path: Path) -> None:
    cell = Cell(model="own", backend="eager", precision="int8")
    with pytest.raises(Unsupported) as refused, built(cell, tmp_path, own(module())):
        pass
    assert str(refused.value) == reason


def test_onnx_without_layers_is_unsupported(tmp_path: Path) -> None:
    model = own(without_a_layer())
    source = export_onnx(model.module, model.inputs[0], tmp_path)
    with pytest.raises(Unsupported, match="nothing to quantise"):
        static_onnx(source, model.inputs, tmp_path)


def test_what_was_left_in_floating_point_is_counted(tmp_path: Path) -> None:
    partly = own(mostly_transposed(512))
    with built(Cell(model="own", backend="eager", precision="int8"), tmp_path, partly) as one:
        told = one.compiled.precision()
    assert told == {"int8 linear layers": 1, "float32 convolution layers": 1}


def test_a_layer_that_nothing_uses_is_left_out() -> None:
    """No output depends on it, as on the pooler of a BERT that encodes sentences."""
    unused = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    module = Calling(lambda own, x: (own.used(x).relu(), own.unused(x))[0], used=nn.Linear(8, 8), unused=unused).eval()
    inputs = Inputs((torch.randn(4, 8),))
    prepared = torch_int8_cpu(module, inputs, [inputs], lower=True)
    assert prepared.layers == {"int8 linear layers": 1}
    (found,) = flatten_outputs(prepared.module(*inputs.args))
    torch.testing.assert_close(found, module(*inputs.args), atol=0.05, rtol=0.05)


def test_without_calibration_sets_int8_is_an_error(tmp_path: Path) -> None:
    cell = cell_of("mlp")
    module, sets = move_to_device(load(cell), cell)
    context = BuildContext(cell, RecordingPhases(), tmp_path, threads=2)
    with pytest.raises(BakeoffError, match="needs the model's input sets"):
        quantising.prepare(module, sets[0], context, lower=True)


def test_a_floating_point_module_is_passed_on_as_it_is(tmp_path: Path) -> None:
    cell = cell_of("mlp", precision="fp32")
    module, sets = move_to_device(load(cell), cell)
    phases = RecordingPhases()
    prepared = quantising.prepare(module, sets[0], BuildContext(cell, phases, tmp_path, 2, sets), lower=True)
    assert prepared.module is module
    assert prepared.example() is sets[0]
    assert prepared.sparing(module) is module
    assert phases.names == []


def test_fp8_without_a_gpu_is_unsupported_with_the_reason() -> None:
    cell = cell_of("mlp", precision="fp8")
    module, sets = move_to_device(load(cell), cell)
    assert next(module.parameters()).dtype == torch.bfloat16
    with pytest.raises(Unsupported, match="float8 products need an NVIDIA GPU, not cpu"):
        quantising.torch_fp8(module, sets[0])


def test_without_torchao_the_reason_says_what_to_install(
    install: Callable[[str, object], None], tmp_path: Path
) -> None:
    install("torchao.quantization.pt2e.lowering", None)
    context = BuildContext(cell_of("mlp"), RecordingPhases(), tmp_path, 1)
    with pytest.raises(
        Unavailable, match=r"^quantised precisions in torch need torch 2.11 and torchao .*pip install torchao$"
    ):
        quantising.prepare(nn.Linear(2, 2), Inputs((torch.ones(1, 2),)), context, lower=True)


@pytest.mark.parametrize("backend", ["eager", pytest.param("openvino", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "low", "high"), [("fp32", 2e-8, 1e-6), ("bf16", 1e-3, 1e-2)])
def test_the_error_tells_the_precisions_apart(backend: str, name: str, low: float, high: float, tmp_path: Path) -> None:
    if backend == "openvino" and name == "bf16":
        pytest.importorskip("openvino")
        import openvino

        if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            pytest.skip("this CPU has no bfloat16")
    with built(cell_of("mlp", backend, name), tmp_path) as one:
        assert low < relative_rmse(one) < high


def test_the_rule_rejects_int8_in_a_cell_that_asked_for_more(tmp_path: Path) -> None:
    with built(cell_of("mlp"), tmp_path) as one:
        outputs = [one.call(inputs) for inputs in one.sets]
    for asked in ("fp32", "fp16"):
        found = accuracy.check(outputs, reference_of(cell_of("mlp", precision=asked)), Precision(asked))
        assert not found.passed
    assert precision.dtype_of(Precision.INT8) == torch.float32


@pytest.mark.parametrize("lower", [False, True])
def test_the_way_for_cuda_quantises_the_same_layers_and_is_right(lower: bool) -> None:
    """torchao's tensors and torch's int8 product also run on the CPU, so this needs no GPU."""
    cell = cells.cell_of("mlp", sizes={"batch": 32}, precision="int8")
    module, sets = move_to_device(load(cell), cell)
    before = [parameter.clone() for parameter in module.parameters()]
    prepared = torch_int8_cuda(module, sets[0], sets, lower)
    with torch.inference_mode():
        outputs = [flatten_outputs(prepared.module(*one.tensors())) for one in sets]
        found = accuracy.check(outputs, reference_of(cell), Precision.INT8)
    assert found.passed and found.eager_rmse is not None
    assert found.rmse == pytest.approx(found.eager_rmse, rel=0.1)  # the yardstick rounds as torchao does
    assert prepared.layers == {"int8 linear layers": 3}
    assert all(torch.equal(now, was) for now, was in zip(module.parameters(), before, strict=True))


def test_the_layers_for_eager_on_cuda_compute_what_torchaos_do() -> None:
    """This includes a root that is a layer, a layer without bias, and transposed inputs of three dimensions."""
    fed = torch.randn(4, 64, 32).transpose(1, 2)
    sets = (Inputs((fed,)),)
    for module in (nn.Linear(64, 48), nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 48))):
        given = torch_int8_cuda(module.eval(), sets[0], sets).module
        lowered = torch_int8_cuda(module.eval(), sets[0], sets, lower=True).module
        assert not any(isinstance(part, nn.Linear) for part in lowered.modules())
        with torch.inference_mode():
            torch.testing.assert_close(lowered(fed), given(fed), rtol=1e-6, atol=1e-6)


def test_on_cuda_too_few_rows_and_odd_sizes_are_unsupported() -> None:
    cell = cell_of("mlp")  # 4 rows
    module, sets = move_to_device(load(cell), cell)
    with pytest.raises(Unsupported, match=r"brings 0 % .*; 3 linear would stay in float32 \(cuBLAS needs 17 rows"):
        torch_int8_cuda(module, sets[0], sets)
    odd = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 60)).eval()
    sets = (Inputs((torch.randn(32, 64),)),)
    assert torch_int8_cuda(odd, sets[0], sets).layers == {"int8 linear layers": 1, "float32 linear layers": 1}


def test_a_layer_fed_with_zeros_stays_finite() -> None:
    sets = (Inputs((torch.zeros(32, 64),)),)
    prepared = torch_int8_cuda(nn.Linear(64, 64).eval(), sets[0], sets)
    with torch.inference_mode():
        output = prepared.module(*sets[0].tensors())
    assert torch.isfinite(output).all()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_keywords_constants_and_nested_outputs_keep_their_places(backend: str, tmp_path: Path) -> None:
    with built(
        cells.cell_of(f"{Path(__file__).parent / 'keywords.py'}:factory", backend, precision="int8"), tmp_path
    ) as one:
        found, expected = one.call(one.sets[1]), one.eager(one.sets[1])
    assert len(found) == len(expected) == 3
    for ours, eagers in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, eagers, rtol=0.1, atol=0.1)
    assert found[2].dtype == expected[2].dtype == torch.int64
