"""AOTInductor: how its package is linked, and what is known about its placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backends.aotinductor import PACKAGE
from backends.linking import LINKED, linker_options
from models.base import Inputs, LoadedModel
from records.schema import Cell, Extent
from tests.backends.building import built


class WithAKeptOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(x @ x.mT + torch.eye(4)).relu()


def loaded(module: nn.Module) -> LoadedModel:
    return LoadedModel(module.eval(), tuple(Inputs((torch.randn(4, 4),)) for _ in range(4)))


@pytest.mark.slow
def test_an_operator_that_stays_pytorchs_is_named_after_loading(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="aotinductor"), tmp_path, loaded(WithAKeptOperator())) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert any(kept.startswith("aten.linalg_inv") for kept in placement.fallbacks), placement.fallbacks
    assert (tmp_path / PACKAGE).stat().st_size > 1000


def compiler_that_prints(path: Path, answer: str) -> str:
    script = path / "g++"
    script.write_text(f"#!/bin/sh\necho '{answer}'\n")
    script.chmod(0o755)
    return str(script)


def test_where_the_compiler_finds_no_shared_runtime_it_is_named_to_the_linker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dangling libstdc++.so, GCC prints the bare name and the linker takes the static library."""
    from torch._inductor import cpp_builder

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: compiler_that_prints(tmp_path, "libstdc++.so"))
    assert linker_options() == {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}


def test_where_it_finds_one_the_linker_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder

    there = tmp_path / "libstdc++.so"
    there.touch()
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: compiler_that_prints(tmp_path, str(there)))
    assert linker_options() == {}
    there.unlink()
    assert linker_options() != {}


@pytest.mark.slow
def test_naming_the_runtime_links_it_and_the_package_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.aotinductor.linker_options", lambda: {LINKED: [":libstdc++.so.6"]})
    with built(Cell(model="own", backend="aotinductor"), tmp_path, loaded(nn.Linear(4, 4))) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        compiled: Any = one.compiled
        assert compiled.settings()["loaded_and_called_through"] == "AOTIModelPackageLoader"
