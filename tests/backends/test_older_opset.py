"""Graphs in an older opset compute what they did, and so do experts whose operator an engine lacks."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxscript import ir

from bakeoff import models
from bakeoff.backends import older_opset
from bakeoff.records.device import CPU
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import built

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
    "Resize": (
        'y = Resize<mode="linear", antialias=0, keep_aspect_ratio_policy="stretch">(x, , factors)',
        SIZES,
    ),
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
