"""References that are kept for the next run of the same model: the outputs in float64, and eager's error to them.

They serve again only where eager's outputs, which every run computes anew, are as far from them as they were. So what
the model's fingerprint does not see, and changes what the model computes, is seen here.
"""

import contextlib
import hashlib
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Cell, Memory
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.matching import Outputs
from bakeoff.truth.reference import Reference, save_whole

NAME = "reference-"

SAME_ERROR = 1.1
"""Eager's error is what it was up to this factor: on a GPU, sums are rounded in another order in each run."""

UNREADABLE = (OSError, zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, ImportError)
"""What a file raises that is missing, damaged, or of a version whose classes are gone."""

MAX_BYTES = 256 * 10**6
"""A larger reference is not kept."""


def kept_at(folder: Path, fingerprint: str, cell: Cell) -> Path:
    """Return the file for the reference of a model with this fingerprint, on the cell's device in its precision."""
    asked = cell.model_dump_json(include={"task", "device", "precision"})
    return folder / f"{NAME}{hashlib.sha256(f'{fingerprint} {asked}'.encode()).hexdigest()[:32]}.pt"


class KeptReference(NamedTuple):
    reference: Reference
    memory: Memory


def load(path: Path) -> KeptReference | None:
    with contextlib.suppress(*UNREADABLE), zipfile.ZipFile(path) as archive:
        if archive.testzip() is None:
            kept: KeptReference = torch.load(path, weights_only=False, mmap=True)
            return kept
    return None


def keep(reference: Path, path: Path, memory: Memory) -> None:
    """Keep a copy of the file. It appears whole or not at all, and a folder that cannot be written costs time only."""
    with contextlib.suppress(OSError, RuntimeError):
        kept_at = datetime.now(UTC).isoformat(timespec="seconds")
        kept = replace(Reference.load(reference), kept_at=kept_at, witnesses=(), without_fast_path=None)
        if sum(tensor.nbytes for outputs in kept.outputs for tensor in outputs) <= MAX_BYTES:
            save_whole(KeptReference(kept, memory), path)


def has_same_error(eager: Sequence[Outputs], exact: Sequence[Outputs], rmse: Sequence[float]) -> bool:
    try:
        errors = errors_of_eager(eager, exact).rmse
    except BakeoffError:  # other outputs
        return False
    return all(error <= SAME_ERROR * before for error, before in zip(errors, rmse, strict=True))
