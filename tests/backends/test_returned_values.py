"""What models return, in all its forms, is compared right for every kind of backend: the models of tests/cases."""

from pathlib import Path

import pytest
import torch

from bakeoff import backends
from bakeoff.backends.base import BuildContext
from bakeoff.measuring.worker.cell_model import load
from bakeoff.measuring.worker.worker_context import tensors_not_taken
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy
from bakeoff.truth import accuracy
from tests.backends.building import RecordingPhases, built, reference_of
from tests.support import cells

pytestmark = [
    pytest.mark.usefixtures("restored_switches"),
    pytest.mark.filterwarnings("ignore"),  # of tracers and of young kinds of tensors, which are what is tried here
]


def checked(case: str, backend: str, folder: Path) -> Accuracy:
    cell = cells.case(case, backend)
    reference = reference_of(cell)
    with built(cell, folder) as one:
        outputs = [one.call(inputs) for inputs in one.sets]
    return accuracy.check(outputs, reference, Precision.FP32)


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        ("dataclass_output.py:factory", "eager"),
        ("dataclass_output.py:factory", "torchscript"),
        ("dataclass_output.py:factory", "onnx"),
        ("dataclass_output.py:only", "torchscript"),
        pytest.param("dataclass_output.py:only", "openvino", marks=pytest.mark.slow),
        ("changed_batch.py:taking", "eager"),
        ("changed_batch.py:taking", "onnx"),
        ("already_compiled.py:exported", "torchscript"),
        ("only_numbers.py:factory", "eager"),
        ("only_numbers.py:factory", "onnx"),
        ("parameter_output.py:factory", "eager"),
        ("parameter_output.py:factory", "torchscript"),
        pytest.param("parameter_output.py:factory", "onnx", marks=pytest.mark.slow),
        ("channels_last.py:factory", "torchscript"),
        ("topk_ties.py:factory", "torchscript"),
        pytest.param("topk_ties.py:factory", "onnx", marks=pytest.mark.slow),
        pytest.param("topk_ties.py:factory", "openvino", marks=pytest.mark.slow),
        ("complex_tracing.py:factory", "eager"),
        ("sparse.py:factory", "eager"),
        ("sparse.py:given", "torchscript"),
        ("sizes_by_values.py:factory", "onnx"),
        pytest.param("sizes_by_values.py:factory", "openvino", marks=pytest.mark.slow),
    ],
)
def test_who_is_right_passes(tmp_path: Path, case: str, backend: str) -> None:
    found = checked(case, backend, tmp_path)
    assert found.passed, found.rule
    assert found.rmse < 1e-5


@pytest.mark.parametrize("backend", ["torchscript", "onnx"])
def test_a_lost_imaginary_part_is_found(tmp_path: Path, backend: str) -> None:
    found = checked("complex_tracing.py:factory", backend, tmp_path)
    assert not found.passed and found.rmse > 0.1


def test_a_singular_matrix_is_nobodys_merit(tmp_path: Path) -> None:
    found = checked("linalg_cond.py:factory", "eager", tmp_path)
    # some libraries of linear algebra give a huge number in float64, and others infinity
    is_lost = found.passed and found.rule == "at most 4x eager's error" and found.relative_rmse > 0.9
    assert found.unchecked or is_lost or "finite where the reference's are infinite" in found.rule


@pytest.mark.parametrize(
    ("case", "backend", "reason"),
    [
        ("sparse.py:given", "onnx", "onnx takes dense tensors, and 'input 1' is sparse"),
        ("sparse.py:factory", "openvino", "openvino takes dense tensors, and 'adjacency' is sparse"),
        ("sparse.py:factory", "torchscript", ""),
        ("complex_tracing.py:factory", "openvino", "openvino takes real inputs, and 'input 0' is complex"),
        ("complex_tracing.py:factory", "onnx", ""),
    ],
)
def test_tensors_that_a_backend_does_not_take_are_named(case: str, backend: str, reason: str) -> None:
    assert tensors_not_taken(backends.create(backend), load(cells.case(case, backend))) == reason


@pytest.mark.parametrize(
    ("case", "backend", "reason"),
    [
        (
            "already_compiled.py:scripted",
            "inductor",
            "torch.compile takes no ScriptModule: use torchscript or openvino",
        ),
        ("already_compiled.py:scripted", "onnx", "torch.export takes no ScriptModule: use torchscript or openvino"),
        ("quantised_lazy.py:quantised", "openvino", "is quantised already, and torch.export does not take its packed"),
    ],
)
def test_a_form_that_is_not_taken_is_named(tmp_path: Path, case: str, backend: str, reason: str) -> None:
    cell = cells.case(case, backend)
    model = load(cell)
    context = BuildContext(cell, RecordingPhases(), tmp_path, 1, model.inputs)
    with pytest.raises(Unsupported, match=reason):
        backends.create(backend).build(model.module, model.inputs[0], context)


def test_inputs_keep_their_layout() -> None:
    cell = cells.case("channels_last.py:factory", "eager")
    assert all(one.args[0].is_contiguous(memory_format=torch.channels_last) for one in load(cell).inputs)
