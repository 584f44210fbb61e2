"""A graph in the form of GraphNet: the tensors follow from their statistics, and what is a number stays one."""

import copy
from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import INPUT_SETS
from bakeoff.records.errors import UsageError

MODEL = """
import torch
from torch import device

class GraphModule(torch.nn.Module):
    def forward(
        self,
        L_self_modules_bn_eps: torch.Tensor,
        s0: torch.SymInt,
        L_ids_: torch.Tensor,
        L_self_modules_table_parameters_weight_: torch.nn.parameter.Parameter,
        L_self_modules_bn_buffers_running_mean_: torch.Tensor,
        L_self_modules_bn_buffers_running_var_: torch.Tensor,
    ):
        eps = L_self_modules_bn_eps
        item = eps.item()
        rows = torch.nn.functional.embedding(L_ids_, L_self_modules_table_parameters_weight_)
        steps = torch.arange(4, device=device(type="cuda", index=0))
        normed = torch.nn.functional.batch_norm(
            rows.view(s0, 3, 4), L_self_modules_bn_buffers_running_mean_, L_self_modules_bn_buffers_running_var_,
            eps=item,
        )
        return (normed + steps,)
"""
TENSORS = {
    "L_self_modules_bn_eps": ("[]", "float64", "cpu", "0.0", "0.0", "data = [0.00001]"),
    "s0": ("[]", "int64", "cpu", "None", "None", "data = [2]"),
    "L_ids_": ("[2, 3]", "int64", "cuda:0", "None", "None", "min_val = 5\n    max_val = 9"),
    "L_self_modules_table_parameters_weight_": ("[10, 4]", "float32", "cuda:0", "2.0", "0.1", "data = None"),
    "L_self_modules_bn_buffers_running_mean_": ("[3]", "float32", "cuda:0", "float('nan')", "0.1", "data = None"),
    "L_self_modules_bn_buffers_running_var_": ("[3]", "float32", "cuda:0", "0.1", "5.0", "data = None"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    written = [
        f"class Program_weight_tensor_meta_{name}:\n    name = '{name}'\n    shape = {shape}\n"
        f"    dtype = 'torch.{dtype}'\n    device = '{device}'\n    mean = {mean}\n    std = {std}\n    {more}\n"
        for name, (shape, dtype, device, mean, std, more) in TENSORS.items()
    ]
    (tmp_path / "weight_meta.py").write_text("\n".join(written))
    return tmp_path


def test_tensors_follow_their_statistics_and_a_call_has_the_models_inputs_alone(folder: Path) -> None:
    family = models.find(f"graphnet:{folder}")
    assert family.name == f"graphnet:{folder}" and family.resolve({}) == {}
    model = family.load({}, 0)
    (ids,) = model.inputs[0].args
    assert ids.shape == (2, 3) and 5 <= int(ids.min()) <= int(ids.max()) <= 9
    assert len(model.inputs) == INPUT_SETS
    weights = dict(model.module.named_parameters())["L_self_modules_table_parameters_weight_"]
    assert float(weights.detach().mean()) == pytest.approx(2.0, abs=0.1)
    variance = dict(model.module.named_buffers())["L_self_modules_bn_buffers_running_var_"]
    assert float(variance.min()) > 0
    (output,) = model.module(ids)
    assert output.shape == (2, 3, 4) and bool(torch.isfinite(output).all())
    (exact,) = copy.deepcopy(model.module).double()(ids)
    assert exact.dtype is torch.float64
    torch.testing.assert_close(output.double(), exact, rtol=1e-4, atol=1e-4)
    assert not torch.equal(weights, dict(family.load({}, 1).module.named_parameters()).popitem()[1])


def test_a_folder_that_is_no_sample_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "weight_meta.py").write_text("class A:\n    name = 'L_ids_'\n    shape = [2]\n")
    with pytest.raises(UsageError, match=r"weight_meta\.py says nothing of L_self_modules_bn_eps"):
        models.find(f"graphnet:{folder}")
    (folder / "model.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="has no class GraphModule"):
        models.find(f"graphnet:{folder}")
    with pytest.raises(UsageError, match="no file"):
        models.find(f"graphnet:{tmp_path}/nowhere")
