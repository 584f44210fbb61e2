"""AOTInductor: how its package is linked, and what is known about its placement."""

import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends.aotinductor import LINKED, PACKAGE, AOTInductor, linker_options
from bakeoff.backends.base import Availability
from bakeoff.records.device import CPU
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import built, loaded


class WithAKeptOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.inv(x @ x.mT + torch.eye(4)).relu()


@pytest.mark.slow
def test_an_operator_that_stays_pytorchs_is_named_after_loading(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="aotinductor"), tmp_path, loaded(WithAKeptOperator(), 4, 4)) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert any(kept.startswith("aten.linalg_inv") for kept in placement.fallbacks), placement.fallbacks
    assert (tmp_path / PACKAGE).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "settings"),
    [("freezing", {"freezing": True}), ("max-autotune-freezing", {"freezing": True, "max_autotune": True})],
)
def test_a_package_with_frozen_weights_is_right_and_says_what_it_is(
    mode: str, settings: dict[str, bool], tmp_path: Path
) -> None:
    model = loaded(nn.Linear(64, 64), 4, 64)
    with built(Cell(model="own", backend="aotinductor", mode=mode), tmp_path, model) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        assert settings.items() <= one.compiled.settings().items()
    with zipfile.ZipFile(tmp_path / PACKAGE) as package:
        wrapper = "".join(package.read(name).decode() for name in package.namelist() if name.endswith(".wrapper.cpp"))
    assert "aoti_torch_cpu_addmm_out" not in wrapper, "this product takes plain weights, which are not prepared"


def test_a_package_is_loaded_where_no_compiler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.backends.inductor.compiler_available", lambda: Availability("no compiler"))
    assert not AOTInductor().available(CPU)
    assert AOTInductor().available_to_load(CPU)


def compiler_that_finds(runtime: str, folder: Path) -> Any:
    """Return a context in which Inductor's compiler is g++, and says that the shared C++ runtime is at `runtime`."""
    from torch._inductor import config

    script = folder / "g++"
    script.write_text(
        f"#!/bin/sh\ncase $1 in -print-file-name=*) echo '{runtime}' ;; *) exec {shutil.which('g++')} \"$@\" ;; esac\n"
    )
    script.chmod(0o755)
    return config.patch({"cpp.cxx": (str(script),)})


with_gcc = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="is about GCC on Linux")


@with_gcc
def test_where_the_compiler_finds_no_shared_runtime_it_is_named_to_the_linker(tmp_path: Path) -> None:
    """With a dangling libstdc++.so, GCC prints the bare name and the linker takes the static library."""
    with compiler_that_finds("libstdc++.so", tmp_path):
        assert linker_options() == {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}


@with_gcc
def test_where_it_finds_one_the_linker_is_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "libstdc++.so"
    there.touch()
    with compiler_that_finds(str(there), tmp_path):
        assert linker_options() == {}
        there.unlink()
        assert linker_options() != {}


@with_gcc
@pytest.mark.slow
def test_naming_the_runtime_links_it_and_the_package_still_runs(tmp_path: Path) -> None:
    cell = Cell(model="own", backend="aotinductor")
    with compiler_that_finds("libstdc++.so", tmp_path), built(cell, tmp_path, loaded(nn.Linear(4, 4), 4, 4)) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        settings = one.compiled.settings()
        assert settings["loaded_and_called_through"] == "AOTIModelPackageLoader"
        assert settings[LINKED] == ":libstdc++.so.6"
