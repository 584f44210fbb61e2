"""The backend of hand-written kernels: which cells it supports, and how it chooses a variant. This needs no Triton."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bakeoff import backends, models
from bakeoff.backends import kernels
from bakeoff.backends.base import BuildContext
from bakeoff.backends.kernels import Launch, Variant
from bakeoff.backends.triton import CHOSEN, Handwritten, choose_variant, possible_variants
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.schema import Cell

BY_POINTER: Variant = {"loads": "pointer", "block": 8}
BY_DESCRIPTOR: Variant = {"loads": "descriptor", "block": 16}


def cell_of(model: str, mode: str = "default", device: str = "cuda", **fields: object) -> Cell:
    return Cell.model_validate(
        {"model": model, "dimensions": {}, "device": device, "precision": "bf16", "backend": "triton", "mode": mode}
        | fields
    )


def prepare(module: torch.nn.Module, inputs: Sequence[torch.Tensor], variant: Variant) -> Launch:
    """Return a kernel that writes its variant's block size, on any device."""
    result = torch.zeros_like(inputs[0])
    return Launch(lambda: result.fill_(int(variant["block"])), (result,))


def context_in(folder: Path) -> BuildContext:
    return BuildContext(cell_of("tma_copy", device="cpu"), lambda _: contextlib.nullcontext(), folder, 1)


def test_every_kernel_is_of_a_model_that_there_is_and_has_a_file() -> None:
    folder = Path(kernels.__file__).parent
    for model, row in kernels.TABLE.items():
        assert model in models.TABLE
        assert (folder / f"{row.module.rpartition('.')[2]}.py").is_file()
        assert set(row.loads) <= {"pointer", "descriptor"}


def test_on_the_cpu_kernels_are_only_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    answer = backends.create("triton").available(Device("cpu"))
    assert not answer and "TRITON_INTERPRET=1" in answer.reason


def test_a_mode_leaves_the_variants_that_load_its_way() -> None:
    cell = cell_of("tma_copy", device="cpu")
    assert possible_variants([BY_POINTER, BY_DESCRIPTOR], None, cell) == [BY_POINTER, BY_DESCRIPTOR]
    assert possible_variants([BY_POINTER, BY_DESCRIPTOR], "descriptor", cell) == [BY_DESCRIPTOR]


def test_without_a_gpu_no_variant_is_timed(tmp_path: Path) -> None:
    chosen, settings = choose_variant(
        prepare, [BY_POINTER, BY_DESCRIPTOR], torch.nn.Identity(), Inputs((torch.ones(4),)), context_in(tmp_path)
    )
    assert chosen == BY_POINTER and "no time means anything" in str(settings["chosen"])
    assert not (tmp_path / CHOSEN).exists()


def test_later_processes_of_a_cell_take_what_the_first_one_chose(tmp_path: Path) -> None:
    (tmp_path / CHOSEN).write_text(json.dumps(BY_DESCRIPTOR))
    chosen, settings = choose_variant(
        prepare, [BY_POINTER, BY_DESCRIPTOR], torch.nn.Identity(), Inputs((torch.ones(4),)), context_in(tmp_path)
    )
    assert chosen == BY_DESCRIPTOR and settings == {"chosen": "by the cell's first process"}


def test_outputs_are_copies_that_the_next_call_leaves_alone() -> None:
    compiled = Handwritten("somewhere", prepare, torch.nn.Identity(), BY_POINTER, {"chosen": "so"})
    compiled.bind(Inputs((torch.ones(4),)))
    compiled.run()
    (first,) = compiled.outputs()
    first.zero_()
    compiled.run()
    assert compiled.outputs()[0].tolist() == [8.0] * 4
    assert compiled.settings() == {"chosen": "so", **BY_POINTER}
