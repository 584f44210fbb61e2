"""Cells of the models that tests build."""

from collections.abc import Mapping

from bakeoff import models
from bakeoff.records.schema import Cell
from tests.support.checkout import ROOT

CASES = ROOT / "tests/cases"


def cell_of(model: str, backend: str = "eager", sizes: Mapping[str, int | str] | None = None, **fields: object) -> Cell:
    dimensions = models.find(model).resolve(dict(sizes or {}))
    return Cell.model_validate({"model": model, "dimensions": dimensions, "backend": backend, **fields})


def case(name: str, backend: str = "eager", **fields: object) -> Cell:
    return cell_of(f"{CASES}/{name}", backend, **fields)
