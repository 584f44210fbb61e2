"""The notebooks in examples/ run, and what they show holds."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.checkout import ROOT

pytestmark = pytest.mark.slow


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
