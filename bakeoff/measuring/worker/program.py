"""Writes a cell's model as a program of torch.export, with its weights, that torch loads without the model's source."""

from pathlib import Path

import torch

from bakeoff.backends.calling import FlatModule
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.records.schema import Cell


def export(cell: Cell, cwd: Path, path: Path) -> None:
    """Write the model, on the cell's device and in its precision, to `path`. It takes and returns flat tensors."""
    module, sets = move_to_device(load(cell, cwd), cell)
    with torch.no_grad():
        program = torch.export.export(FlatModule(module, sets[0]), sets[0].tensors())
    torch.export.save(program, path)
