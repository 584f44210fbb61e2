"""A file with a class `Model`, `get_inputs` and `get_init_inputs`, as those of KernelBench, and patterns of files."""

from pathlib import Path

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import INPUT_SETS
from bakeoff.records.errors import UsageError
from tests.models.loading import load

PROBLEM = '''
import torch
from torch import nn

class Model(nn.Module):
    """A product.

    More of it.
    """
    def __init__(self, width, bias=False):
        super().__init__()
        self.linear = nn.Linear(width, half, bias=bias)
    def forward(self, x):
        return self.linear(x)

batch_size = 2 * 4
width: int = 16
half = width // 2
act = "gelu"
ratio = 0.5
_private = 3

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
'''


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "1_Product.py"
    path.write_text(PROBLEM)
    return path


def test_what_the_file_assigns_is_a_dimension_and_what_it_computes_from_it_follows(problem: Path) -> None:
    family = models.find(str(problem))
    assert family.name == str(problem) and family.description == "A product."
    assert family.resolve({"width": "32"}) == {"batch_size": 8, "width": 32, "act": "gelu"}
    for width in (32, 16, 32):  # one process measures several sizes
        model = load(str(problem), width=width)
        assert model.module.linear.weight.shape == (width // 2, width)
        assert [inputs.args[0].shape for inputs in model.inputs] == [(8, width)] * INPUT_SETS
    with pytest.raises(UsageError, match=r"unknown dimension of .* 'half'.*whole numbers and texts at its top level"):
        family.resolve({"half": 3})


def test_each_set_of_inputs_is_a_call_of_its_own_that_follows_the_seed(problem: Path) -> None:
    first, again, other = load(str(problem), 1), load(str(problem), 1), load(str(problem), 2)
    tensors = [inputs.args[0] for inputs in first.inputs]
    assert all(float(tensor.min()) >= 0 and not torch.equal(tensor, tensors[0]) for tensor in tensors[1:])
    assert all(torch.equal(inputs.args[0], tensor) for inputs, tensor in zip(again.inputs, tensors, strict=True))
    assert torch.equal(first.module.linear.weight, again.module.linear.weight)
    assert not torch.equal(first.inputs[0].args[0], other.inputs[0].args[0])
    assert not torch.equal(first.module.linear.weight, other.module.linear.weight)


@pytest.mark.parametrize(
    ("initial", "inputs", "has_bias"),
    [
        ("[width, True]", "[torch.ones(batch_size, width)]", True),
        ("[[width], {'bias': True}]", "{'x': torch.rand(batch_size, width)}", True),
        ("{'width': width}", "(torch.rand(batch_size, width),)", False),
    ],
)
def test_other_forms_of_arguments(problem: Path, initial: str, inputs: str, has_bias: bool) -> None:
    text = PROBLEM.replace("[width]", initial).replace("[torch.rand(batch_size, width)]", inputs)
    problem.write_text(text)
    model = load(str(problem))
    assert (model.module.linear.bias is not None) is has_bias
    tensors = [call.tensors()[0] for call in model.inputs]
    assert len(tensors) == INPUT_SETS and not torch.equal(*tensors[:2]), "equal calls of get_inputs are changed"


def test_a_function_of_the_form_is_no_factory(problem: Path) -> None:
    for name in ("Model", "get_inputs", "get_init_inputs"):
        with pytest.raises(UsageError, match=rf"write --model .*1_Product\.py, without {name}"):
            models.find(f"{problem}:{name}")
    assert models.option_for(str(problem)) == f"--model {problem}"


def test_a_pattern_stands_for_the_files_with_a_model(problem: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def factory(batch: int = 1): ...\n")
    (tmp_path / "helper.py").write_text("def factorial(): ...\n")
    (tmp_path / "broken.py").write_text("def factory(:\n")
    names, left_out = models.expanded(["mlp", f"{tmp_path}/*.py"])
    assert names == ["mlp", str(problem), f"{tmp_path}/own.py:factory"]
    assert [reason.partition(" was left out: ")[0] for reason in left_out] == [
        f"{tmp_path}/broken.py",
        f"{tmp_path}/helper.py",
    ]
    assert "line 1" in left_out[0]
    with pytest.raises(UsageError, match=r"no file there has a function factory, or a class Model"):
        models.expanded([f"{tmp_path}/h*.py"])
