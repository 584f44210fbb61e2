"""Programs that torch.export.save wrote: open axes, inputs, and files that cannot be read."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import INPUT_SETS
from bakeoff.records.errors import UsageError
from tests.models.loading import load


class Pooled(torch.nn.Module):
    """Takes ids and a mask by keyword, and returns a dict. It makes a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embedding(ids) + torch.arange(8)
        pooled = (hidden * mask.unsqueeze(-1)).sum(dim=1)
        return {"pooled": self.dropout(self.norm(pooled)), "any": mask.any(dim=1)}


IDS, MASK = torch.arange(12).reshape(3, 4) + 30, torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 4])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch, seq = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("seq", min=2, max=16)
    axes = {0: batch, 1: seq}
    program = torch.export.export(
        Pooled().eval(), (IDS,), {"mask": MASK}, dynamic_shapes={"ids": dict(axes), "mask": dict(axes)}
    )
    path = tmp_path_factory.mktemp("exported") / "pooled.pt2"
    torch.export.save(program, path)
    return path


def test_open_axes_are_dimensions_with_the_sizes_of_the_example(file: Path) -> None:
    family = models.find(f"pt2:{file}")
    assert family.resolve({}) == {"batch": 3, "seq": 4}
    with pytest.raises(UsageError, match="'batch' must be at least 2"):
        family.resolve({"batch": 1})
    with pytest.raises(UsageError, match="seq must be at most 16, not 17"):
        family.resolve({"seq": 17})


def test_inputs_are_the_example_rolled_and_fitted(file: Path) -> None:
    loaded = load(f"pt2:{file}")
    assert len(loaded.inputs) == INPUT_SETS
    assert torch.equal(loaded.inputs[0].args[0], IDS) and torch.equal(loaded.inputs[1].kwargs["mask"], MASK.roll(1, 0))
    longer = load(f"pt2:{file}", batch=5, seq=6).inputs[0]
    assert torch.equal(longer.args[0][:, 4:], longer.args[0][:, :2]) and longer.kwargs["mask"].shape == (5, 6)


def test_it_computes_what_the_module_did_in_every_type(file: Path) -> None:
    loaded = load(f"pt2:{file}", batch=5)
    assert not loaded.module.training
    inputs = loaded.inputs[0]
    outputs = loaded.module(*inputs.args, **inputs.kwargs)
    assert outputs["pooled"].shape == (5, 8) and outputs["any"].dtype == torch.bool
    exact = loaded.module.to("cpu", torch.float64).train(False)(*inputs.args, **inputs.kwargs)
    torch.testing.assert_close(outputs["pooled"].double(), exact["pooled"], rtol=1e-5, atol=1e-5)


def test_fixed_axes_are_no_dimensions(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),)), tmp_path / "linear.pt2")
    name = f"pt2:{tmp_path / 'linear.pt2'}"
    assert models.find(name).resolve({}) == {}
    assert load(name).inputs[0].args[0].shape == (4, 3)


def rewritten(file: Path, to: Path, change: Callable[[str, bytes], bytes]) -> str:
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(to, "w") as written:
        for name in archive.namelist():
            written.writestr(name, change(name, archive.read(name)))
    return f"pt2:{to}"


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('the pickle was run')",))


def test_code_in_the_file_is_not_run(file: Path, tmp_path: Path) -> None:
    pickled = io.BytesIO()
    torch.save(Evil(), pickled)
    name = rewritten(
        file, tmp_path / "evil.pt2", lambda name, content: pickled.getvalue() if "sample_inputs" in name else content
    )
    with pytest.raises(UsageError, match="cannot be read"):
        models.find(name)
