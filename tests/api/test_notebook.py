"""A notebook whose model stands in a cell, run by a kernel."""

import os

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


def test_error_of_a_cell_is_told_with_its_line(notebook: nbformat.NotebookNode) -> None:
    assert "(a cell of the notebook, line 3, in forward)" in notebook.cells[3].outputs[-1].data["text/plain"]
