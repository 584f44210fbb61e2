"""Builds are made for the memory layouts that calls have, whatever they are."""

import json
from pathlib import Path

import pytest
import torch

from bakeoff.backends.aotinductor import PACKAGE
from bakeoff.backends.cuda_graph import Captured
from bakeoff.backends.eager import Callables
from bakeoff.backends.runtime.contract import Artifact, TensorSpec
from bakeoff.backends.runtime.torch_programs import load_aotinductor, strides_at
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.models.base import Inputs
from bakeoff.truth import accuracy
from bakeoff.truth.calls import copied
from bakeoff.truth.decisions import changed_inputs
from tests.backends.building import built, reference_of
from tests.support.cells import case

pytestmark = pytest.mark.filterwarnings("ignore")

LAYOUTS = "input_layouts.py:factory"
ENGINES = ["eager", "torchscript", "onnx", "openvino", "executorch", "litert", "iree"]
ENGINES_THAT_COMPILE = [pytest.param(name, marks=pytest.mark.slow) for name in ("inductor", "aotinductor")]


def strides(inputs: Inputs) -> list[tuple[int, ...]]:
    return [tensor.stride() for tensor in inputs.tensors()]


@pytest.mark.parametrize("backend", [*ENGINES, *ENGINES_THAT_COMPILE])
def test_a_build_is_right_for_inputs_in_every_layout(tmp_path: Path, backend: str) -> None:
    cell = case(LAYOUTS, backend)
    with built(cell, tmp_path) as one:
        outputs = [one.call(inputs) for inputs in one.sets]
        *others, first, second = one.sets[1].args
        assert first is second
        distinct = Inputs((*others, first, first.flip(0)))
        answer, expected = one.call(distinct), one.module(*distinct.args)
    found = accuracy.check(outputs, reference_of(cell), cell.precision)
    assert found.passed, found.rule
    for ours, theirs in zip(answer, expected, strict=True):  # nor does it take two inputs for one
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["torchscript", *ENGINES_THAT_COMPILE])
def test_every_other_column_is_exported_as_such(tmp_path: Path, backend: str) -> None:
    cell = case("strided_inputs.py:factory", backend)
    with built(cell, tmp_path) as one:
        outputs = [one.call(inputs) for inputs in one.sets]
    found = accuracy.check(outputs, reference_of(cell), cell.precision)
    assert found.passed, found.rule


@pytest.mark.slow
def test_a_package_is_called_with_the_strides_that_it_was_compiled_for(tmp_path: Path) -> None:
    """A user's own tensors are contiguous, such as those that `load.py` reads from a file."""
    cell = case("strided_inputs.py:factory", "aotinductor")
    with built(cell, tmp_path) as one:
        loading = one.backend.loading(cell, one.compiled.settings())
        expected = one.call(one.sets[0])
        contiguous = [tensor.contiguous() for tensor in one.sets[0].tensors()]
        artifact = Artifact(
            tmp_path / PACKAGE,
            "cpu",
            {**json.loads(json.dumps(loading)), "graph": False, "channels_last": False},
            tuple(TensorSpec("", "float32", tuple(tensor.shape), {}) for tensor in contiguous),
            (),
            list,
        )
        answer = load_aotinductor(artifact).run(contiguous)
    for ours, theirs in zip(answer, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("strides", "larger"),
    [
        ((16, 2), (16, 2)),  # every other column
        ((1, 4), (1, 7)),  # transposed
        ((0, 1), (0, 1)),  # expanded
        ((32, 4), (32, 4)),
    ],
)
def test_a_build_for_several_sizes_has_the_layout_at_each(strides: tuple[int, int], larger: tuple[int, int]) -> None:
    assert strides_at((4, 8), strides, (4, 8)) == strides
    assert strides_at((7, 8), strides, (4, 8)) == larger


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layouts_stay_in_every_precision_and_in_copies_and_in_changed_inputs(precision: str) -> None:
    cell = case(LAYOUTS, "eager", precision=precision)
    model = load(cell)
    expected = strides(model.inputs[0])
    assert expected[:3] == [(16, 2), (2, 16), (0, 1)]
    _, sets = move_to_device(model, cell)
    assert [strides(inputs) for inputs in sets] == [expected] * len(sets)
    assert strides(copied(sets[0])) == expected
    assert all(strides(changed) == expected for changed in changed_inputs(sets[0]))


def test_what_a_graph_reads_is_bound_in_every_layout() -> None:
    """Without a GPU, the graph is a call of the module."""
    cell = case(LAYOUTS, "eager")
    model = load(cell)
    static = copied(model.inputs[0])
    called = Callables(model.module)
    called.bind(static)

    class Graph:
        def replay(self) -> None:
            called.run()

    captured = Captured(called, Graph(), static)
    for inputs in model.inputs:
        captured.bind(inputs)
        captured.run()
        for ours, theirs in zip(captured.outputs(), model.module(*inputs.args), strict=True):
            torch.testing.assert_close(ours, theirs)
