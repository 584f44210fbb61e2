"""A distribution of somebody else's, with a backend and a family of models, installed beside Bakeoff's wheel."""

from __future__ import annotations

from pathlib import Path

from bakeoff.records import report_file
from bakeoff.records.schema import Status
from tests.installing.conftest import BRIEFLY, Installed, build

PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "bakeoff-example"
version = "1.0"
dependencies = ["bakeoff"]

[project.entry-points."bakeoff.backends"]
traced = "bakeoff_example:Traced"

[project.entry-points."bakeoff.models"]
gated = "bakeoff_example:Gated"

[tool.setuptools]
py-modules = ["bakeoff_example"]
"""

MODULE = '''
"""A backend and a family of models for Bakeoff."""

from bakeoff import (
    ANYWHERE,
    Backend,
    Callables,
    Dimension,
    Family,
    LoadedModel,
    Mode,
    Suits,
    normal_inputs,
    seeded,
    torch_available,
)


class Traced(Backend):
    name = "traced"
    description = "torch.jit.trace, without any pass"
    modes = (Mode(worth_trying=ANYWHERE), Mode("optimised", {"is_optimised": True}, Suits("cpu")))

    def available(self, device):
        return torch_available(device)

    def build(self, module, inputs, context):
        import torch

        is_optimised = self.mode(context.cell.mode).options.get("is_optimised", False)
        with context.phase("compile"), torch.jit.optimized_execution(is_optimised):
            return Callables(torch.jit.trace(module, inputs.args))


class Gated(Family):
    name = "gated"
    description = "a gated linear unit"
    dimensions = {"batch": Dimension(4, "rows per call"), "features": Dimension(16, "width")}

    def load(self, dimensions, seed):
        from torch import nn

        batch, features = (int(dimensions[name]) for name in ("batch", "features"))
        with seeded(seed):
            module = nn.Sequential(nn.Linear(features, 2 * features), nn.GLU())
            return LoadedModel(module.eval(), normal_inputs(batch, features))
'''


def test_a_plug_in_brings_its_backend_and_its_model(installed: Installed, tmp_path: Path) -> None:
    project = tmp_path / "plug-in"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "bakeoff_example.py").write_text(MODULE)
    build(project, tmp_path / "dist", "--wheel")
    installed.install(*(tmp_path / "dist").glob("*.whl"))

    listed = installed.run("bakeoff", "list", "--devices", "cpu", cwd=tmp_path)
    assert "traced" in listed and "gated" in listed and "features (16)" in listed

    measured = ["--model", "gated", "--backends", "eager,traced,traced/optimised", "--set", "features=8", *BRIEFLY]
    out = installed.run("bakeoff", *measured, "--out", "run", cwd=tmp_path)
    assert "traced/optimised" in out
    records = {record.cell.label: record for record in report_file.read(tmp_path / "run").records}
    assert {label: (record.status, record.reason) for label, record in records.items()} == dict.fromkeys(
        ("eager", "traced", "traced/optimised"), (Status.OK, "")
    )
    assert {record.cell.dimensions["features"] for record in records.values()} == {8}
