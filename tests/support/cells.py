"""Cells of the models that tests build."""

from collections.abc import Mapping

from bakeoff import models
from bakeoff.records.schema import Cell
from tests.support.checkout import ROOT

CASES = ROOT / "tests/cases"


def labelled(label: str, model: str = "mlp", **fields: object) -> Cell:
    """Return the cell of a label such as `onnx/cuda-graph`, without any dimensions."""
    backend, _, mode = label.partition("/")
    return Cell.model_validate({"model": model, "backend": backend, "mode": mode or "default", **fields})


def cell_of(model: str, label: str = "eager", sizes: Mapping[str, int | str] | None = None, **fields: object) -> Cell:
    dimensions = models.find(model).resolve(dict(sizes or {}))
    return labelled(label, model, **{"dimensions": dimensions, **fields})


def case(name: str, label: str = "eager", **fields: object) -> Cell:
    return cell_of(f"{CASES}/{name}", label, **fields)
