"""OpenVINO: the precision that it chooses, and what it reports about the model that it runs."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bakeoff import backends
from bakeoff.backends.openvino import PRECISION_HINTS
from bakeoff.records.device import CPU
from bakeoff.records.errors import Unavailable
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth import accuracy
from tests.backends.building import built, loaded, reference_of

openvino = pytest.importorskip("openvino")

DIMENSIONS: dict[str, str | int] = {"batch": 3, "features": 32, "hidden": 48}
CAPABILITIES = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def cell_of(precision: str) -> Cell:
    return Cell(model="mlp", dimensions=DIMENSIONS, backend="openvino", precision=precision)


@pytest.mark.skipif("BF16" not in CAPABILITIES, reason="this CPU has no bfloat16, so nothing tempts OpenVINO")
def test_float32_is_float32_where_openvino_would_rather_compute_in_bfloat16(tmp_path: Path) -> None:
    with built(cell_of("fp32"), tmp_path, threads=2) as one:
        torch.testing.assert_close(one.call(one.sets[0]), one.eager(one.sets[0]))
        told = one.compiled.precision()
        model = openvino.Core().read_model(tmp_path / "model.xml")
    left_to_itself = openvino.Core().compile_model(model, "CPU")
    assert left_to_itself.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "bf16"
    assert told == {"inference_precision_hint": "f32", "nodes in f32": 3}


def test_its_use_is_not_reported_to_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    assert backends.create("openvino").available(CPU)
    assert sys.modules["openvino_telemetry"] is None


class RepeatsItself(nn.Module):
    """Returns tensors twice, as models that also return their hidden states do."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        hidden = self.up(x)
        last = torch.relu(hidden)
        return {"last": last, "hidden": (x, hidden, last), "again": hidden}


def test_tensors_that_a_model_returns_twice_are_outputs_twice(tmp_path: Path) -> None:
    model = loaded(RepeatsItself(), 3, 8, sets=2)
    for _ in range(2):  # the second time from the file that the first one left
        with built(cell_of("fp32"), tmp_path, model, threads=1) as one:
            for inputs in one.sets:
                torch.testing.assert_close(one.call(inputs), one.eager(inputs))


@pytest.mark.skipif("BF16" not in CAPABILITIES, reason="this CPU has no bfloat16")
def test_bfloat16_is_what_its_layers_run_in_and_what_it_hands_out(tmp_path: Path) -> None:
    with built(cell_of("bf16"), tmp_path, threads=2) as one:
        outputs = one.call(one.sets[1])
        told = one.compiled.precision()
        placement = one.compiled.placement()
        expected = one.eager(one.sets[1])
    assert outputs[0].dtype == torch.bfloat16
    torch.testing.assert_close(outputs, expected)
    assert told == {"inference_precision_hint": "bf16", "nodes in bf16": 3}
    assert placement is not None and placement.engines == {"CPU bf16": 3}


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "bf16"])
def test_layers_that_openvino_fuses_keep_their_precision(precision: str, tmp_path: Path) -> None:
    """With one thread, OpenVINO makes one node of several layers on some CPUs."""
    hint = PRECISION_HINTS[Precision(precision)]
    if hint.upper() not in {"F32", *CAPABILITIES}:
        pytest.skip(f"this CPU has no {precision}")
    with built(cell_of(precision), tmp_path, threads=1) as one:
        told = one.compiled.precision()
        found = accuracy.check([one.call(inputs) for inputs in one.sets], reference_of(one.cell), one.cell.precision)
    assert found.passed, found.rule
    assert told.keys() == {"inference_precision_hint", f"nodes in {hint}"}


@pytest.mark.skipif("FP16" in CAPABILITIES, reason="this CPU has float16")
def test_float16_on_a_cpu_without_it_is_refused_and_not_bfloat16(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="says OpenVINO: not in fp16"), built(cell_of("fp16"), tmp_path):
        pass


@pytest.mark.skipif("BF16" not in CAPABILITIES or "FP16" in CAPABILITIES, reason="the CPU is of another kind")
def test_a_precision_that_openvino_did_not_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a CPU's list of capabilities were wrong, OpenVINO would silently take bf16 for f16."""
    real = openvino.Core

    class Core:
        """A core that names float16 among what the CPU computes in."""

        def __init__(self) -> None:
            self.compile_model, self.read_model = real().compile_model, real().read_model
            self.available_devices = real().available_devices

        def get_property(self, *_: str) -> list[str]:
            return [*CAPABILITIES, "FP16"]

    monkeypatch.setattr(openvino, "Core", Core)
    with pytest.raises(Unavailable, match="was asked for f16 and took bf16"), built(cell_of("fp16"), tmp_path):
        pass


def test_int8_leaves_only_the_quantised_model_as_its_artefact(tmp_path: Path) -> None:
    with built(cell_of("int8"), tmp_path, threads=2) as one:
        assert [file.name for file in tmp_path.iterdir()] == ["int8.onnx"]
        assert one.compiled.precision()["layers run in int8"] == 3
