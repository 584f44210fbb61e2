"""PyTorch's fused operator for transformer layers: eager and a trace call it, compilers get what is in it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import profile

from bakeoff.backends import fast_path
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import Built, built, loaded
from tests.support.measuring import by_label, measure

FUSED = "aten::_transformer_encoder_layer_fwd"


def encoder() -> LoadedModel:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=48, batch_first=True)
    module = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    return LoadedModel(module, (Inputs((torch.randn(2, 8, 32),)), Inputs((torch.randn(2, 8, 32),))))


def cell_of(backend: str, mode: str = "default") -> Cell:
    return Cell(model="mine.py:factory", backend=backend, mode=mode)


def operators_of(one: Built) -> set[str]:
    with profile() as found:
        one.call(one.sets[0])
    return {event.key for event in found.key_averages()}


@pytest.mark.parametrize(
    ("backend", "mode", "is_fused"),
    [
        ("eager", "default", True),
        ("eager", "no-fast-path", False),
        ("torchscript", "default", True),
        pytest.param("inductor", "default", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_eager_and_a_trace_call_the_fused_operator(backend: str, mode: str, is_fused: bool, tmp_path: Path) -> None:
    with built(cell_of(backend, mode), tmp_path, encoder()) as one:
        assert (FUSED in operators_of(one)) == is_fused
        assert fast_path.in_force(one.module) == {"mha_fastpath": is_fused}


def test_a_model_without_such_layers_is_refused_with_the_reason(tmp_path: Path) -> None:
    plain = loaded(nn.Linear(3, 2), 1, 3, sets=1)
    assert fast_path.in_force(plain.module) == {}
    cell = cell_of("eager", "no-fast-path")
    with pytest.raises(Unsupported, match=r"^the model has no nn\.Transformer"), built(cell, tmp_path, plain):
        pass


FACTORY = """
import torch

def factory():
    return torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval(), torch.randn(1, 4, 16)
"""


@pytest.mark.slow
def test_the_records_tell_what_was_in_force(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FACTORY)
    report = measure(tmp_path / "run", "eager", "onnx", models=[f"{path}:factory"])
    found = {label: record.settings["mha_fastpath"] for label, record in by_label(report).items()}
    assert found == {"eager": True, "onnx": False}
