"""What the backend `hotpath` reports. The conformance suite has the rest, and the other files the library."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bakeoff import TASKS, Callables, Cell, Device, Extent, Inputs, Placement, Settings, backends
from bakeoff_hotpath import enable_hot_path_detection
from bakeoff_hotpath.backend import HotModule, HotPath
from bakeoff_hotpath.compiling import Outcome
from plugins.hotpath.tests.fakes import DONE, SLOW_S, FakeCompiler, Slowly, make_compiling_cheap

ROWS = torch.arange(4.0)


class Step(Callables):
    def settings(self) -> Settings:
        return {"optimizer": "AdamW"}


@pytest.fixture
def hot(tmp_path: Path) -> Callable[[FakeCompiler], HotModule]:
    def make(compiler: FakeCompiler) -> HotModule:
        module = Slowly()
        cache = make_compiling_cheap(tmp_path)
        paths = enable_hot_path_detection(module, cache=cache, compiler=compiler, watch_share=0.5)
        compiled = HotModule(Step(module), paths, 10)
        compiled.bind(Inputs((ROWS,)))
        return compiled

    return make


def run_until_final(compiled: HotModule, compiler: FakeCompiler, outcome: Outcome = DONE) -> Placement:
    """Call until the build is final. A compilation ends as soon as it has started."""
    with torch.inference_mode():
        for _ in range(5000):
            compiled.run()
            if compiler.is_running:
                compiler.end(outcome)
            if compiled.is_final():
                return compiled.placement()
    raise AssertionError("not final after 5000 calls")


def test_a_build_is_eager_by_choice_at_first(hot: Callable[[FakeCompiler], HotModule]) -> None:
    with hot(FakeCompiler()) as compiled, torch.inference_mode():
        compiled.run()
        compiled.run()
        placement = compiled.placement()
        assert (placement.extent, placement.engines) == (Extent.FULL, {"eager modules": 1})
        assert not compiled.is_final() and compiled.compilations() == 0


def test_placement_and_settings_say_how_compiled_code_was_taken_up(hot: Callable[[FakeCompiler], HotModule]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled:
        placement = run_until_final(compiled, compiler)
        settings = compiled.settings()
        assert (placement.extent, placement.engines) == (Extent.FULL, {"inductor graphs": 1})
        assert "ms compiled" in placement.evidence[0] and "ms eager" in placement.evidence[0]
        assert compiled.compilations() == 1 and settings["hot_threshold"] == 10
        assert isinstance(settings["switched_at_call"], int) and settings["compile_s"] == 0.05
        assert settings["optimizer"] == "AdamW", "the settings of the step itself are reported too"
        assert torch.equal(compiled.outputs()[0], 2 * ROWS + 1)


def test_eager_is_no_fallback_where_it_is_faster(hot: Callable[[FakeCompiler], HotModule]) -> None:
    compiler = FakeCompiler(SLOW_S)
    with hot(compiler) as compiled:
        placement = run_until_final(compiled, compiler)
        assert placement.extent is Extent.FULL and not placement.fallbacks


def test_eager_is_a_fallback_where_compiling_failed(hot: Callable[[FakeCompiler], HotModule]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled:
        placement = run_until_final(compiled, compiler, Outcome("LoweringException: no kernel"))
        assert placement.extent is Extent.FALLBACK
        assert placement.fallbacks == ["the model: eager; not compiled: LoweringException: no kernel"]


def test_a_build_that_is_reported_to_be_final_stays_as_it_is(hot: Callable[[FakeCompiler], HotModule]) -> None:
    compiler = FakeCompiler()
    with hot(compiler) as compiled, torch.inference_mode():
        while not compiler.is_running:
            compiled.run()
        compiled.finalise()
        assert compiled.is_final() and compiler.jobs[0].was_cancelled
        assert "no more time was given to it" in compiled.placement().evidence[0]


def test_without_a_compiler_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert HotPath().available(Device("cpu")).reason.endswith("none was found: install g++ or set CXX")


def test_bakeoff_finds_it_by_its_entry_point_and_leaves_it_out_of_all() -> None:
    assert isinstance(backends.create("hotpath"), HotPath) and "hotpath" not in backends.TABLE
    assert "hotpath" in backends.names() and "hotpath" not in backends.in_all()


def test_it_does_every_task_and_rounds_nothing() -> None:
    assert all(HotPath().supports(Cell(model="mlp", backend="hotpath", task=task)) for task in TASKS)
    assert not HotPath().supports(Cell(model="mlp", backend="hotpath", precision="int8"))
