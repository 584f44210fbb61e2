"""The notebooks in examples/ run, and what they show holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.checkout import ROOT

pytestmark = pytest.mark.slow


def executed(name: str, folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    """Run a notebook in a folder of its own, and return its code cells."""
    patch.setenv("PYTHONPATH", str(ROOT))
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
    assert "8 calls of Denoiser" in recorded.outputs[-1].data["text/plain"]
    assert "live:Denoiser" in compared.outputs[-1].data["text/html"]
