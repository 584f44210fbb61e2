"""Notebooks: one whose model stands in a cell, and those in examples/, run by a kernel."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.support.checkout import ROOT

pytestmark = pytest.mark.slow

CELLS = [
    """
import torch
import bakeoff

class Gate(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * FACTOR

FACTOR = 2.0
""",
    """
result = bakeoff.compare(Gate(), torch.randn(4, 8), backends="eager", devices="cpu", min_time=0.05, processes=1)
result
""",
    """
import asyncio
assert asyncio.get_running_loop().is_running()
print(result.rows[0]["status"], result.contests[0].title)
""",
    """
class Broken(Gate):
    def forward(self, x):
        return x.view(3, 5)

bakeoff.compare(Broken(), torch.randn(4, 8), backends="eager", devices="cpu", progress=False).rows[0]["reason"]
""",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    folder = tmp_path_factory.mktemp("notebook")
    notebook = new_notebook(cells=[new_code_cell(source.strip()) for source in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
        client.execute(env=dict(os.environ))
    assert {path.name for path in folder.iterdir()} == {"ipython", "results"}
    return notebook


def test_class_of_a_cell_is_measured(notebook: nbformat.NotebookNode) -> None:
    assert notebook.cells[2].outputs[0].text == "ok live:Gate on cpu, fp32\n"


def test_cell_shows_the_answer_and_progress_has_gone(notebook: nbformat.NotebookNode) -> None:
    progress, shown = notebook.cells[1].outputs
    assert progress.output_type == "display_data" and progress.data["text/html"] == ""
    assert "only eager could be ranked" in shown.data["text/html"] and "live:Gate on cpu" in shown.data["text/plain"]


def test_error_of_a_cell_is_reported_with_its_line(notebook: nbformat.NotebookNode) -> None:
    assert "(a cell of the notebook, line 3, in forward)" in notebook.cells[3].outputs[-1].data["text/plain"]


DECLARING = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch
            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            FOUND.append(self)

FOUND = []
sys.meta_path.insert(0, Finder())
"""
"""Every process declares two operators before torchvision is imported: PyPI's one lacks them beside the CPU's torch."""


def executed(name: str, folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    """Run a notebook in a folder of its own, and return its code cells."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(DECLARING)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), str(ROOT)]))
    patch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute(env=dict(os.environ))
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_model_in_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, compared, _, rows, loaded = executed("model_in_a_cell", tmp_path, monkeypatch)
    assert "live:Classifier on cpu, fp32" in compared.outputs[-1].data["text/html"]
    assert "('torchscript', 'ok', " in rows.outputs[0].data["text/plain"]
    assert float(loaded.outputs[-1].data["text/plain"]) < 1e-6


def test_recorded_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, recorded, compared = executed("recorded_pipeline", tmp_path, monkeypatch)
    name = "UNet2DConditionModel" if find_spec("diffusers") else "UNet"
    assert f"8 calls of {name}" in recorded.outputs[-1].data["text/plain"]
    shown = compared.outputs[-1].data["text/html"]
    assert f"live:{name} on cpu" in shown and "8 recorded calls of 2 sizes" in shown
