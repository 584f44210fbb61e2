"""References that are kept for the next run, and when they serve again."""

import os
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from bakeoff.measuring.controller import build_cache
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.messages import ComputeReference, ReferenceComputed
from bakeoff.measuring.worker import reference, subject
from bakeoff.models.base import LoadedModel
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth import accuracy, kept_reference
from bakeoff.truth.calls import Outputs
from bakeoff.truth.reference import Reference

pytestmark = pytest.mark.usefixtures("restored_switches")

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return BODY

def factory(batch: int = 2):
    return Net(), torch.linspace(0.1, 1, 8).reshape(batch, 4)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    return tmp_path


def computed(folder: Path, body: str, precision: str = "fp32", is_fresh: bool = False) -> tuple[ReferenceComputed, int]:
    """Return what is told of the reference of a model with this body, and how often float64 was computed for it."""
    (folder / "net.py").write_text(NET.replace("BODY", body))
    cell = Cell(model=f"{folder / 'net.py'}:factory", dimensions={"batch": 2}, precision=precision, backend="eager")
    job = ComputeReference(cell=cell, reference=folder / "reference.pt", kept_in=folder / "cache", is_fresh=is_fresh)
    exact = list[torch.dtype]()

    def outputs_in(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
        exact.append(dtype)
        return subject.outputs_in(model, cell, dtype)

    return reference.compute(job, folder, folder, outputs_in), len(exact)


def kept_at(folder: Path) -> str:
    return Reference.load(folder / "reference.pt").kept_at


def outputs(folder: Path) -> torch.Tensor:
    return Reference.load(folder / "reference.pt").outputs[0][0]


def test_the_second_run_of_a_model_takes_the_reference_of_the_first(folder: Path) -> None:
    first, times = computed(folder, "x.sin()")
    assert (kept_at(folder), times) == ("", 1)
    before = outputs(folder)
    second, times = computed(folder, "x.sin()")
    assert times == 0 and second.memory == first.memory, "cells of unknown size are guessed by it"
    known = Reference.load(folder / "reference.pt")
    told = accuracy.check(known.outputs, known, Precision.FP32).reference_kept_at
    assert abs(datetime.fromisoformat(told).timestamp() - time.time()) < 60
    assert computed(folder, "x.sin()")[1] == 0 and kept_at(folder) == told, "it is as old as it was"
    cell = Cell(model=f"{folder / 'net.py'}:factory", dimensions={"batch": 2}, precision="bf16", backend="eager")
    narrow = folder / "bf16.pt"
    job = ComputeReference(cell=cell, reference=narrow, first_reference=folder / "reference.pt")
    reference.compute(job, folder, folder)
    assert Reference.load(narrow).kept_at == told, "the precisions of a contest share it"
    assert outputs(folder).dtype is torch.float64 and torch.equal(outputs(folder), before)


@pytest.mark.parametrize(
    ("body", "precision", "is_fresh"),
    [("x.cos()", "fp32", False), ("x.sin()", "bf16", False), ("x.sin()", "fp32", True)],
)
def test_another_model_another_precision_and_a_fresh_run_have_their_own(
    folder: Path, body: str, precision: str, is_fresh: bool
) -> None:
    computed(folder, "x.sin()")
    told, times = computed(folder, body, precision, is_fresh)
    assert (kept_at(folder), told.is_changed, times) == ("", False, 1)


def test_a_change_that_no_fingerprint_sees_is_seen_in_what_eager_computes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_reference, "kept_at", lambda folder, fingerprint, cell: folder / "reference-one.pt")
    computed(folder, "x.sin()")
    told, times = computed(folder, "x.sin() * 1.001")
    assert (kept_at(folder), times) == ("", 1) and told.is_changed
    assert torch.allclose(outputs(folder), 1.001 * torch.linspace(0.1, 1, 8).reshape(2, 4).double().sin(), rtol=1e-6)
    told, times = computed(folder, "x[:1].sin()")
    assert (kept_at(folder), times) == ("", 1) and outputs(folder).shape == (1, 4)
    assert computed(folder, "x[:1].sin()")[1] == 0


def test_a_number_that_forward_reads_from_a_file_is_part_of_the_fingerprint(folder: Path) -> None:
    (folder / "limit").write_text("100")
    body = "x.clamp(max=float(__import__('pathlib').Path('limit').read_text()))"
    first, _ = computed(folder, body)
    assert computed(folder, body)[0].fingerprint == first.fingerprint
    (folder / "limit").write_text("3")  # which no example input reaches
    told, times = computed(folder, body)
    assert told.fingerprint != first.fingerprint and (told.is_changed, times) == (False, 1)


def test_what_a_call_loads_from_a_file_is_part_of_the_fingerprint(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A function may keep it, so that it lies in no part of the model and was not read while the model was loaded."""
    limits = tmp_path_factory.mktemp("data") / "limits.npy"
    body = f"torch.minimum(x, torch.from_numpy(__import__('numpy').load({str(limits)!r})))"
    fingerprints = []
    for limit in (10, 10, 9):  # which no example input reaches
        np.save(limits, np.full(4, limit, dtype=np.float32))
        fingerprints.append(computed(folder, body)[0].fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize(("body", "is_other"), [("x.sin()", False), ("x.sin() * 1.001", True), ("x[:1].sin()", True)])
def test_a_resumed_run_holds_the_model_against_the_reference_that_it_has(
    folder: Path, body: str, is_other: bool
) -> None:
    computed(folder, "x.sin()")
    before = (folder / "reference.pt").read_bytes()
    (folder / "net.py").write_text(NET.replace("BODY", body))
    cell = Cell(model=f"{folder / 'net.py'}:factory", dimensions={"batch": 2}, precision="fp32", backend="eager")
    path = folder / "reference.pt"
    job = ComputeReference(cell=cell, reference=path, is_resumed=True)
    assert reference.compute(job, folder, folder).is_changed is is_other
    assert path.read_bytes() == before and [each.name for each in folder.glob("*.pt")] == [path.name]


def test_nothing_is_kept_of_a_model_that_draws_numbers(folder: Path) -> None:
    computed(folder, "x * torch.rand_like(x)")
    assert not list((folder / "cache").iterdir())


def test_damaged_and_large_ones_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed(folder, "x.sin()")
    (kept,) = (folder / "cache").iterdir()
    whole = kept.read_bytes()
    for damaged in (
        whole[:40],
        whole.replace(b"peak_resident", b"qeak_resident"),
        whole.replace(b"longest_sum", b"shortest_su"),
    ):
        kept.write_bytes(damaged)
        told, times = computed(folder, "x.sin()")
        assert (told.is_changed, times) == (False, 1) and computed(folder, "x.sin()")[1] == 0
    kept.unlink()
    monkeypatch.setattr(kept_reference, "MAX_BYTES", 10)
    computed(folder, "x.sin()")
    assert not list((folder / "cache").iterdir())


def test_the_oldest_go_where_all_together_are_too_large_and_clear_removes_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, body in enumerate(("x.sin()", "x.cos()")):
        computed(folder, body)
        newest = max((folder / "cache").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (time.time() - 100 + place,) * 2)
    old, new = sorted((folder / "cache").iterdir(), key=lambda path: path.stat().st_mtime)
    assert old.name.startswith(build_cache.REFERENCES) and build_cache.REFERENCES == kept_reference.NAME
    monkeypatch.setattr(build_cache, "MAX_REFERENCES_BYTES", new.stat().st_size)
    cache = BuildCache(folder / "cache")
    with cache:
        (cache.folder / "key").mkdir()
        assert cache._lock("key")
    assert new.exists() and not old.exists()
    cache.clear()
    assert not new.exists()
