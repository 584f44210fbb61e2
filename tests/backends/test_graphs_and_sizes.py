"""Graphs in an older opset and of experts compute what they did; one build serves a range of sizes, or buckets."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxscript import ir
from torch import Tensor, nn

from bakeoff import backends, models
from bakeoff.backends import older_opset, ranges
from bakeoff.backends.buckets import Buckets
from bakeoff.backends.ranges import OpenAxis
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.device import CPU
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell, Range
from tests.backends.building import built
from tests.support.cells import labelled
from tests.support.modules import Calling

X = np.random.default_rng(0).uniform(0.5, 2, (2, 7, 4, 4)).astype(np.float32)


def model_of(nodes: str, weights: str = "", opset: int = 18) -> ir.Model:
    """Return a graph from `x` to `y`. Its other inputs are `weights`, in ONNX's syntax."""
    graph = f"graph (float[2,7,4,4] x) => (float[a,b,c,d] y) <{weights or 'float unused = {0}'}> {{ {nodes} }}"
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')


def computed(model: ir.Model) -> np.ndarray:
    serialized = ir.to_proto(model).SerializeToString()
    onnx.checker.check_model(serialized)
    session = onnxruntime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    (y,) = session.run(["y"], {"x": X})
    assert isinstance(y, np.ndarray)
    return y


INDICES = "int64[1,1,1,2] places = {0, 0}, float[1,1,1,2] values = {3, 4}"
SIZES = "float[4] factors = {1, 1, 2, 2}"
HAVE_A_FORM = {
    **{f"Reduce{name}": (f"y = Reduce{name}(x, axes)", "int64[2] axes = {1, -1}") for name in older_opset.REDUCTIONS},
    "ReduceMean of all axes": ("y = ReduceMean<noop_with_empty_axes=0>(x)", ""),
    "ReduceMean by a node": ("axes = Constant<value_ints=[1]>()  y = ReduceMean<keepdims=1>(x, axes)", ""),
    "ReduceMean in a branch": (
        "y = If(yes) <then_branch = g () => (float[2,1,4,4] a) { a = ReduceMean(x, axes) },"
        " else_branch = h () => (float[2,7,4,4] b) { b = Identity(x) }>",
        "bool yes = {1}, int64[1] axes = {1}",
    ),
    "Split equally": ("z, y = Split<axis=3, num_outputs=2>(x)", ""),
    "Split by sizes": ("z, y = Split<axis=1>(x, sizes)", "int64[2] sizes = {4, 3}"),
    "Pad": ("y = Pad(x, pads, value)", "int64[8] pads = {0, 1, 0, 0, 0, 0, 2, 0}, float value = {7}"),
    "Resize": ('y = Resize<mode="linear", antialias=0, keep_aspect_ratio_policy="stretch">(x, , factors)', SIZES),
    "ScatterElements": ('y = ScatterElements<axis=3, reduction="add">(x, places, values)', INDICES),
    "ScatterND": (
        'y = ScatterND<reduction="mul">(x, places, values)',
        "int64[1,4] places = {0, 1, 2, 3}, float[1] values = {5}",
    ),
}
HAVE_NO_FORM = {
    "ReduceMean of axes that are computed": (
        "ReduceMean",
        "shape = Shape<start=0, end=1>(x)  axes = Sub(shape, shape)  y = ReduceMean(x, axes)",
        "",
    ),
    "ReduceMax of no axes": ("ReduceMax", "y = ReduceMax<noop_with_empty_axes=1>(x)", ""),
    "Split with a smaller last part": ("Split", "y, z = Split<axis=1, num_outputs=2>(x)", ""),
    "Pad of some axes": ("Pad", "y = Pad(x, pads, , axes)", "int64[2] pads = {1, 0}, int64[1] axes = {1}"),
    "Resize of some axes": ("Resize", "y = Resize<axes=[2]>(x, , factor)", "float[1] factor = {2}"),
    "Resize that smooths": ("Resize", 'y = Resize<mode="linear", antialias=1>(x, , factors)', SIZES),
    "Resize that keeps proportions": (
        "Resize",
        'y = Resize<keep_aspect_ratio_policy="not_larger">(x, , , sizes)',
        "int64[4] sizes = {2, 7, 8, 9}",
    ),
    "ScatterElements of the largest": (
        "ScatterElements",
        'y = ScatterElements<reduction="max">(x, places, values)',
        INDICES,
    ),
    "two operators that are new": (
        "BitwiseNot, Mish",
        "m = Mish(x)  i = Cast<to=7>(m)  n = BitwiseNot(i)  y = Cast<to=1>(n)",
        "",
    ),
}


def test_each_rewrite_has_an_example() -> None:
    assert {name.split()[0] for name in HAVE_A_FORM} == older_opset.REWRITES.keys()


@pytest.mark.parametrize(("nodes", "weights"), HAVE_A_FORM.values(), ids=HAVE_A_FORM)
def test_a_graph_in_opset_17_computes_what_it_did(nodes: str, weights: str) -> None:
    model = model_of(nodes, weights)
    before = computed(model)
    older_opset.lower(model, 17)
    assert model.graph.opset_imports == {"": 17}
    np.testing.assert_array_equal(computed(model), before)


@pytest.mark.parametrize(("operators", "nodes", "weights"), HAVE_NO_FORM.values(), ids=HAVE_NO_FORM)
def test_operators_without_an_older_form_are_named(operators: str, nodes: str, weights: str) -> None:
    model = model_of(nodes, weights)
    computed(model)
    with pytest.raises(Unsupported, match=f"in ONNX's opset 18, and this engine reads 17: {operators} cannot be"):
        older_opset.lower(model, 17)


def test_rewrites_are_those_of_one_opset() -> None:
    """ReduceMax of opset 20 also takes booleans."""
    with pytest.raises(Unsupported, match=r"opset 20, .*: ReduceMax cannot"):
        older_opset.lower(model_of("y = ReduceMax(x, axes)", "int64[1] axes = {1}", opset=20), 17)


def test_a_file_that_is_old_enough_stays_as_it_is(tmp_path: Path) -> None:
    for opset in (18, 17):
        path = tmp_path / f"{opset}.onnx"
        ir.save(model_of("y = Relu(x)", opset=opset), path)
        before = path.read_bytes()
        older_opset.lower_file(path, 17)
        assert onnx.load(path).opset_import[0].version == 17
        assert (path.read_bytes() == before) is (opset == 17)


TINY_MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 40, "hidden_size": 8,
                "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                "num_local_experts": 4, "max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize(
    "backend", ["onnx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("aotinductor", "openvino"))]
)
def test_experts_are_computed_by_operators_that_the_engine_has(tmp_path: Path, backend: str) -> None:
    pytest.importorskip("transformers", minversion="5")
    (tmp_path / "config.json").write_text(json.dumps(TINY_MIXTRAL))
    family = models.find(f"hf:{tmp_path}")
    cell = Cell(model=family.name, dimensions={"batch": 2, "seq": 4}, device=CPU, backend=backend)
    loaded = family.load(cell.dimensions, 0)
    with torch.inference_mode():
        expected = loaded.module(**loaded.inputs[0].kwargs).logits
    (tmp_path / "built").mkdir()
    with built(cell, tmp_path / "built", loaded) as made:
        torch.testing.assert_close(made.call(loaded.inputs[0])[0], expected, rtol=1e-4, atol=1e-5)
        assert made.compiled.settings()["experts_implementation"] == "batched_mm"


ROWS = OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=2, high=16)
SIZES_IN_RANGE = {"batch": 6, "features": 8, "hidden": 8}
BATCHES = (2, 6, 16)


HALVES = Calling(lambda _, rows: rows[:1] if rows.shape[0] > 4 else rows * 2)
"""It takes the first row for a special case of many rows."""

FIXED = Calling(lambda _, rows: rows.reshape(6, 2, 4))


def dynamic_cell(label: str, **changes: object) -> Cell:
    span = {"batch": Range(low=2, built_at=6, high=16)}
    return labelled(label, **{"dimensions": SIZES_IN_RANGE, "dynamic": span, **changes})


def test_shapes_have_open_axes_at_their_ends() -> None:
    assert ranges.lowest_and_highest([ROWS], 0, (6, 8)) == ((2, 8), (16, 8))
    assert ranges.lowest_and_highest([ROWS], 1, (6, 8)) == ((6, 8), (6, 8))


@pytest.mark.parametrize(
    ("module", "said"),
    [(FIXED, r"specialised|specialized"), (HALVES, r"takes batch \(axis 0 of input 0\) from 5 to 16")],
)
def test_an_export_that_serves_less_than_the_range_is_refused(module: torch.nn.Module, said: str) -> None:
    with pytest.raises(Unsupported, match=f"one build does not serve the range: .*({said})"):
        ranges.exported(module, Inputs((torch.ones(6, 8),)), [ROWS])


def test_a_violated_guard_is_reported_with_its_line() -> None:
    message = (
        "Constraints violated (L['x'].size()[1])! For more information, run with TORCH_LOGS=\"+dynamic\".\n"
        "  - You marked L['x'].size()[1] as dynamic but your code specialized it to be a constant (64). "
        "If you're using mark_dynamic, either remove it.\n\nUser stack:\n"
        '  File "/home/me/net.py", line 3, in outer\n    return self.inner(x)\n'
        '  File "/home/me/net.py", line 8, in forward\n    return x.reshape(2, 64)\n'
    )
    expected = "L['x'].size()[1] was specialised to be a constant (64): return x.reshape(2, 64) (net.py, line 8)"
    assert ranges.guard_in(message) == expected
    assert ranges.guard_in("RuntimeError: something else") == ""


def test_without_open_axes_no_error_is_taken_for_a_guard() -> None:
    with pytest.raises(RuntimeError, match="Constraints violated"), ranges.refusing_guards(()):
        raise RuntimeError("Constraints violated (x)!\n  - You marked x")


@pytest.mark.parametrize(
    "label",
    [
        "torchscript",
        "onnx",
        pytest.param("openvino", marks=pytest.mark.slow),
        pytest.param("inductor", marks=pytest.mark.slow),
        pytest.param("aotinductor", marks=pytest.mark.slow),
    ],
)
def test_one_build_is_right_at_every_size(label: str, tmp_path: Path) -> None:
    with built(dynamic_cell(label), tmp_path, open_axes=(ROWS,)) as one:
        for batch in BATCHES:
            given = Inputs((torch.randn(batch, 8, generator=torch.Generator().manual_seed(batch)),))
            torch.testing.assert_close(one.call(given), one.eager(given), rtol=1e-4, atol=1e-5)
        assert one.compiled.recompiled() == ()


@pytest.mark.slow
def test_inductor_names_the_guard_that_a_size_does_not_pass(tmp_path: Path) -> None:
    """Torch makes code of its own for a size of 1."""
    from_one = ROWS.model_copy(update={"low": 1})
    with built(dynamic_cell("inductor"), tmp_path, open_axes=(from_one,)) as one:
        one.call(Inputs((torch.randn(1, 8),)))
        (reason,) = one.compiled.recompiled()
        assert "size" in reason


@pytest.mark.slow
def test_inductor_refuses_a_range_that_the_code_specialises(tmp_path: Path) -> None:
    model = LoadedModel(FIXED, (Inputs((torch.ones(6, 8),)),))
    with (
        pytest.raises(Unsupported, match=r"was specialised to be a constant \(6\): return rows.reshape\(6, 2, 4\)"),
        built(dynamic_cell("inductor"), tmp_path, model, open_axes=(ROWS,)),
    ):
        pass


@pytest.mark.parametrize(
    ("label", "changes", "said"),
    [
        ("triton", {}, "triton builds for one size"),
        ("inductor/static", {}, "this mode builds for one size"),
        ("inductor/buckets", {}, "this mode builds for each power of two"),
        ("inductor/freezing", {}, "a size that torch.compile compiles again would get no constants"),
        ("onnx/cuda-graph", {"device": "cuda"}, "a CUDA graph replays calls of one size"),
        ("inductor", {"task": "train_step"}, "one build for a range of sizes is for inference"),
        ("onnx", {"precision": "int8"}, "in a precision that casting gives"),
        ("onnx", {}, ""),
        ("tensorrt", {"device": "cuda"}, ""),
        ("torch-tensorrt", {"device": "cuda"}, ""),
    ],
)
def test_what_takes_no_range_says_why(label: str, changes: dict[str, object], said: str) -> None:
    cell = dynamic_cell(label, **changes)
    assert said in backends.create(cell.backend).supports(cell).reason
    assert bool(backends.create(cell.backend).supports(cell)) is not bool(said)


class Masked(nn.Module):
    """A value for each token and a mean over the tokens that count, so that padding changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, tokens: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
        each = self.linear(tokens)
        counted = each * mask[..., None]
        return {"each": each, "mean": counted.sum(1) / mask.sum(1, keepdim=True)}


def of_length(length: int, batch: int = 2) -> Inputs:
    return Inputs((torch.randn(batch, length, 8),), {"mask": torch.ones(batch, length)})


@pytest.mark.parametrize(("length", "bucket"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 12), (12, 12)])
def test_padding_goes_to_the_next_power_of_two_or_the_largest_size(length: int, bucket: int) -> None:
    seen: list[tuple[int, ...]] = []

    def doubled(tensor: Tensor) -> Tensor:
        seen.append(tuple(tensor.shape))
        return 2 * tensor

    buckets = Buckets(doubled, [Inputs((torch.ones(2, each, 3),)) for each in (12, 1, 7)])
    seen.clear()
    given = torch.randn(2, length, 3)
    torch.testing.assert_close(buckets.around(doubled)(given), (2 * given,))
    assert seen == [(2, bucket, 3)]


def test_every_input_that_varies_is_padded_and_only_outputs_that_vary_are_cut() -> None:
    module, sets = Masked(), [of_length(length) for length in (5, 3, 11)]
    around = Buckets(module, sets).around(module)
    for one in sets:
        torch.testing.assert_close(around(*one.args, **one.kwargs), tuple(module(*one.args, **one.kwargs).values()))


@pytest.mark.parametrize(
    ("module", "lengths", "reason"),
    [
        (nn.ReLU(), (4, 4), "are for inputs of several sizes"),
        (lambda tensor: tensor[:, 1:], (4, 6), "padding cannot be cut off axis 1 of output 0"),
    ],
)
def test_what_buckets_are_not_for_says_why(module: nn.Module, lengths: tuple[int, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        Buckets(module, [Inputs((torch.ones(2, length, 3),)) for length in lengths])


@pytest.mark.slow
def test_any_model_with_a_stream_of_sizes_is_built_for_its_buckets(tmp_path: Path) -> None:
    sets = tuple(of_length(length) for length in (5, 3, 11, 7, 6))
    with built(Cell(model="own", backend="inductor", mode="buckets"), tmp_path, LoadedModel(Masked(), sets)) as one:
        for inputs in one.sets:
            torch.testing.assert_close(one.call(inputs), one.eager(inputs))
        placement = one.compiled.placement()
    assert placement is not None and placement.engines["inductor graphs"] == 3  # for 4, 8 and 11
