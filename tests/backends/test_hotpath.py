"""The backend `hotpath`: what it says of itself. The conformance suite has the rest, `tests/hotpath` the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import backends
import hotpath.deciding
from backends.base import Settings
from backends.eager import Callables
from backends.hotpath import Hot
from hotpath import enable_hot_path_detection
from hotpath.compiling import Outcome
from hotpath.tests.fakes import SLOW_S, FakeCompiler, Slowly
from models.base import Inputs
from records.device import Device
from records.schema import Extent


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[FakeCompiler], Hot]:
    monkeypatch.setattr(hotpath.deciding, "COMPILE_IF_UNKNOWN_S", 0.05)

    def make(compiler: FakeCompiler) -> Hot:
        module = Slowly()
        paths = enable_hot_path_detection(module, cache=tmp_path, compiler=compiler, watch_share=0.5)
        compiled = Hot(Callables(module), paths, 10)
        compiled.bind(Inputs((torch.arange(4.0),)))
        return compiled

    return make


def run_until(done: Callable[[], bool], compiled: Hot) -> None:
    with torch.inference_mode():
        for _ in range(800):
            compiled.run()
            if done():
                return
    raise AssertionError("not done after 800 calls")


def test_at_first_it_is_eager_by_choice(hot: Callable[[FakeCompiler], Hot]) -> None:
    with hot(FakeCompiler()) as compiled:
        run_until(lambda: True, compiled)
        run_until(lambda: True, compiled)
        placement = compiled.placement()
        assert (placement.extent, placement.engines) == (Extent.FULL, {"eager modules": 1})
        assert not compiled.is_final() and compiled.compilations() == 0


def test_placement_and_settings_tell_what_it_has_come_to(hot: Callable[[FakeCompiler], Hot]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled:
        run_until(lambda: bool(compiler.started), compiled)
        compiler.end()
        run_until(compiled.is_final, compiled)
        placement, settings = compiled.placement(), compiled.settings()
        assert (placement.extent, placement.engines) == (Extent.FULL, {"inductor graphs": 1})
        assert "ms compiled" in placement.evidence[0] and "ms eager" in placement.evidence[0]
        assert compiled.compilations() == 1 and settings["hot_threshold"] == 10
        assert isinstance(settings["switched_at_call"], int) and settings["compile_s"] == 0.05
        assert torch.equal(compiled.outputs()[0], 2 * torch.arange(4.0) + 1)


def test_what_the_step_around_it_is_set_to_is_told_too(hot: Callable[[FakeCompiler], Hot]) -> None:
    class Step(Callables):
        def settings(self) -> Settings:
            return {"optimizer": "AdamW"}

    with hot(FakeCompiler()) as compiled:
        compiled._inner = Step(Slowly())
        assert compiled.settings()["optimizer"] == "AdamW"
        assert compiled.settings()["hot_threshold"] == 10


def test_eager_because_it_is_faster_is_no_fallback(hot: Callable[[FakeCompiler], Hot]) -> None:
    compiler = FakeCompiler(SLOW_S)
    with hot(compiler) as compiled:
        run_until(lambda: bool(compiler.started), compiled)
        compiler.end()
        run_until(compiled.is_final, compiled)
        assert compiled.placement().extent is Extent.FULL and not compiled.placement().fallbacks


def test_eager_because_compiling_failed_is_one(hot: Callable[[FakeCompiler], Hot]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled:
        run_until(lambda: bool(compiler.started), compiled)
        compiler.end(Outcome("LoweringException: no kernel"))
        run_until(compiled.is_final, compiled)
        assert compiled.placement().extent is Extent.FALLBACK
        assert compiled.placement().fallbacks == ["the model: eager; not compiled: LoweringException: no kernel"]


def test_when_there_is_no_more_time_it_stays_as_it_is(hot: Callable[[FakeCompiler], Hot]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled:
        run_until(lambda: bool(compiler.started), compiled)
        compiled.finalise()
        assert compiled.is_final() and compiler.jobs[0].was_cancelled
        assert "no more time was given to it" in compiled.placement().evidence[0]


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert backends.create("hotpath").available(Device("cpu")).reason.endswith("none was found: install g++ or set CXX")
