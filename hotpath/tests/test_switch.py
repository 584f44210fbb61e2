"""From eager to what is faster, with a compiler that compiles nothing."""

from __future__ import annotations

import copy
import inspect
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import hotpath.deciding
from hotpath import enable_hot_path_detection, settings
from hotpath.compiling import Outcome
from hotpath.deciding import Trial
from hotpath.enabling import HotPaths, PathReport, has_spare_cores
from hotpath.flattening import key_of
from hotpath.handover import CannotHandOver
from hotpath.knowledge import Knowledge, Learned
from hotpath.switch import ONLY_COUNTED, STRIDES, Stage, Switch
from hotpath.switch import Path as Path_
from hotpath.tests.fakes import SLOW_S, FakeCompiler, Slowly

ROWS = torch.arange(4.0)


@pytest.fixture(autouse=True)
def cheap_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it pays after a few calls of two milliseconds."""
    monkeypatch.setattr(hotpath.deciding, "COMPILE_IF_UNKNOWN_S", 0.05)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def watched(module: torch.nn.Module, compiler: FakeCompiler, cache: Path, **options: object) -> HotPaths:
    # half of the time may go into watching, so that a test need not wait for the budget
    given = {"watch_share": 0.5, "cache": cache, "compiler": compiler, **options}
    return enable_hot_path_detection(module, **given)  # type: ignore[arg-type]


def call_until(done: Callable[[], bool], module: torch.nn.Module, rows: torch.Tensor = ROWS, most: int = 800) -> int:
    """Calls until `done`; each must give the right answer."""
    for number in range(1, most + 1):
        assert torch.equal(module(rows), 2 * rows + 1)
        if done():
            return number
    raise AssertionError(f"not done after {most} calls")


def only(hot: HotPaths) -> PathReport:
    (report,) = hot.report()
    return report


def test_it_starts_eager_and_switches_when_compiled_is_ready_and_faster(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    assert only(hot).runs == "eager" and only(hot).reason == "being compiled"
    eager_calls = module.calls
    for _ in range(40):
        module(ROWS)
    assert module.calls == eager_calls + 40 and compiler.compiled_calls == 0, "eager goes on meanwhile"
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled" and "as fast" in only(hot).reason
    eager_calls = module.calls
    call_until(lambda: True, module)
    assert module.calls == eager_calls
    assert hot.compilations == 1


def test_nothing_is_compiled_below_the_threshold(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path, hot_threshold=150)
    assert call_until(lambda: bool(compiler.started), module) >= 150
    hot.close()


@pytest.mark.parametrize("shapes", ["any", "exact"])
def test_calls_of_any_shape_reach_the_threshold_together(tmp_path: Path, shapes: str) -> None:
    """Twelve lengths in turns, nine calls of each: together they are many, and of none there are ten."""
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path, shapes=shapes, watch_share=0.9)
    for _ in range(9):
        for length in range(1, 13):
            module(torch.ones(length, 4))
    assert len(hot.report()) == (12 if shapes == "any" else 0)
    signatures = {report.signature for report in hot.report()} - {None}
    assert len(signatures) == (1 if shapes == "any" else 0)
    hot.close()


def test_it_goes_back_to_eager_when_compiled_is_slower(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler(SLOW_S)
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "eager" and "tried, and compiled is 0." in only(hot).reason
    assert "forward" not in module.__dict__, "nothing is left in the way"
    compiled_calls = compiler.compiled_calls
    module(ROWS)
    assert compiler.compiled_calls == compiled_calls


def test_what_the_compiling_process_found_slower_is_not_even_loaded(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end(Outcome("", 0.05, 0.0, eager_s=1e-3, compiled_s=2e-3))
    call_until(lambda: hot.is_settled, module)
    assert "compiled is 0.50x as fast, as the compiling process measured" in only(hot).reason
    assert not compiler.loaded


def test_what_the_compiling_process_did_not_tell_apart_is_tried(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end(Outcome("", 0.05, 0.0, eager_s=1e-2, compiled_s=1.02e-2))  # both waited for what the calls keep busy
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled" and only(hot).reason.startswith("tried, and ")


def test_a_compilation_that_fails_leaves_it_eager_and_says_why(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end(Outcome("LoweringException: no kernel"))
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "eager" and only(hot).reason == "not compiled: LoweringException: no kernel"


def test_a_module_that_cannot_be_handed_over_stays_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, compiler = Slowly(), FakeCompiler()

    def refuse(*_: object) -> None:
        raise CannotHandOver("Slowly cannot be pickled: why")

    monkeypatch.setattr(compiler, "start", refuse)
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: hot.is_settled, module)
    assert only(hot).reason == "Slowly cannot be pickled: why"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda given: [2 * given[1] + given[0] + 1], "tensor 0 is off by 2"),
        (lambda given: [given[1], given[0]], "2 tensors instead of 1"),
        (lambda given: [given[1].double()], "is torch.float64 [4] instead of torch.float32 [4]"),
    ],
)
def test_a_version_that_computes_something_else_is_not_taken_up(
    made: Callable[[list[torch.Tensor]], list[torch.Tensor]], why: str, tmp_path: Path
) -> None:
    module, compiler = Slowly(), FakeCompiler(made=made)
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "eager" and why in only(hot).reason


def test_what_was_learned_spares_the_next_run_the_compilation(tmp_path: Path) -> None:
    first, compiler = Slowly(), FakeCompiler()
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end()
    call_until(lambda: hot.is_settled, first)
    second, next_compiler = Slowly(), FakeCompiler()
    hot = watched(second, next_compiler, tmp_path)
    call_until(lambda: hot.is_settled, second)
    assert only(hot).runs == "compiled"
    assert not next_compiler.started and next_compiler.loaded == compiler.loaded


def test_that_compiled_was_slower_is_remembered(tmp_path: Path) -> None:
    first, compiler = Slowly(), FakeCompiler(SLOW_S)
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end()
    call_until(lambda: hot.is_settled, first)
    second, next_compiler = Slowly(), FakeCompiler()
    hot = watched(second, next_compiler, tmp_path)
    call_until(lambda: hot.is_settled, second)
    assert only(hot).reason.startswith("an earlier run found: tried, and compiled is 0.")
    assert not next_compiler.started and not next_compiler.loaded


def test_what_a_trial_does_not_tell_apart_stays_eager_and_is_tried_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, compiler = Slowly(), FakeCompiler()
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end()
    with monkeypatch.context() as undecided:
        found = Trial(1.2, 0.9, 1.5, is_over=True)
        undecided.setattr(hotpath.deciding, "trial_of", lambda eager_s, _: found if eager_s else None)
        call_until(lambda: hot.is_settled, first)
    assert only(hot).runs == "eager" and "1.20x [0.90, 1.50] as fast" in only(hot).reason
    assert only(hot).reason.endswith("which shows no lead of 1.03")
    assert "forward" not in first.__dict__, "nothing is left in the way"
    second, next_compiler = Slowly(), FakeCompiler()
    hot = watched(second, next_compiler, tmp_path)
    call_until(lambda: hot.is_settled, second)
    assert only(hot).runs == "compiled" and next_compiler.loaded and not next_compiler.started


class ByNumber(Slowly):
    """Every call multiplies by another constant, or takes another way."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.002)
        return rows * float(self.calls)


class Random(Slowly):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return torch.nn.functional.dropout(rows, 0.5, training=True)


@pytest.mark.parametrize(("kind", "why"), [(ByNumber, "differ from call to call"), (Random, "draws random numbers")])
def test_what_compiled_code_could_not_repeat_stays_eager(kind: type[Slowly], why: str, tmp_path: Path) -> None:
    module, compiler = kind(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    for _ in range(800):
        module(ROWS)
        if hot.is_settled:
            break
    assert why in only(hot).reason and not compiler.started


def compiled(module: torch.nn.Module, tmp_path: Path) -> tuple[FakeCompiler, HotPaths]:
    """`module` is called until it has settled on the compiled version."""
    compiler = FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled"
    return compiler, hot


def settled(tmp_path: Path) -> tuple[Slowly, FakeCompiler, HotPaths]:
    module = Slowly()
    return module, *compiled(module, tmp_path)


def test_weights_that_change_in_place_or_are_replaced_are_seen(tmp_path: Path) -> None:
    module, _, _ = settled(tmp_path)
    calls = module.calls
    module.weight.add_(1)
    assert torch.equal(module(ROWS), 2 * ROWS + 2)
    module.weight = torch.nn.Parameter(torch.zeros(4))
    assert torch.equal(module(ROWS), 2 * ROWS)
    assert module.calls == calls, "all of that by compiled code"


def test_weights_of_another_type_send_it_back_to_eager(tmp_path: Path) -> None:
    module, _, hot = settled(tmp_path)
    module.double()
    assert module(ROWS).dtype == torch.float64
    assert only(hot).runs == "eager" and "another shape, type or device" in only(hot).reason


def test_other_inputs_get_eager_and_a_path_of_their_own(tmp_path: Path) -> None:
    module, compiler, hot = settled(tmp_path)
    compiled_calls = compiler.compiled_calls
    for _ in range(ONLY_COUNTED + 1):
        assert torch.equal(module(torch.zeros(3, 4)), torch.ones(3, 4))
        with torch.enable_grad():
            assert module(ROWS).requires_grad
    assert compiler.compiled_calls == compiled_calls
    assert [report.is_training for report in hot.report()] == [False, False, True]
    hot.close()
    assert compiler.started[0].args[0] is ROWS


@pytest.mark.parametrize("period", [2, 3])
def test_most_calls_pass_without_being_told_apart_and_a_kind_that_takes_turns_is_met_all_the_same(
    period: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0

    def counted(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        nonlocal told
        told += 1
        return key_of(args, kwargs)

    monkeypatch.setattr("hotpath.switch.key_of", counted)
    monkeypatch.setattr("hotpath.switch.CLOSE_CALLS", 4)
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=1000)
    for _ in range(200):
        module(ROWS)
    assert told < 200 / (STRIDES[0] / 2) + 8
    (path,) = module.forward.paths.values()
    assert path.calls > 150
    for number in range(400):
        module(torch.ones(2, 4) if number % period == 1 else ROWS)
    assert len(hot.report()) == 2


def test_once_told_to_settle_nothing_is_left_in_the_calls_way(tmp_path: Path) -> None:
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=1000)
    for _ in range(ONLY_COUNTED + 5):
        module(ROWS)
    hot.settle()
    assert "forward" not in vars(module)
    assert (only(hot).stage, only(hot).runs) == ("settled", "eager")


def test_an_iteration_that_raises_is_the_callers_and_counts_for_nothing(tmp_path: Path) -> None:
    class Refusing(Slowly):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls % 3 == 0:
                raise ValueError("a bad batch")
            return rows * 2

    module, compiler = Refusing(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    raised = 0
    for _ in range(60):
        try:
            module(ROWS)
        except ValueError:
            raised += 1
    assert raised == 20
    hot.close()


def test_a_model_that_is_copied_or_saved_has_its_own_forward(tmp_path: Path) -> None:
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path)
    twin = copy.deepcopy(module)
    twin.weight.zero_()
    assert torch.equal(twin(ROWS), 2 * ROWS) and torch.equal(module(ROWS), 2 * ROWS + 1)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(ROWS), 2 * ROWS + 1)
    for _ in range(ONLY_COUNTED + 2):
        module(ROWS)
    assert len(hot.report()) == 1


def test_calls_below_the_threshold_are_counted_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("hotpath.switch.key_of", lambda *given: told.append(given) or "the only kind")
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=3)
    module(ROWS)
    assert not told, "the first call of all is not even looked at"
    for _ in range(3):
        module(ROWS)
    assert len(told) == 3 and hot.report() == []
    module(ROWS)
    (path,) = module.forward.paths.values()
    assert path.calls == 4 and path.budget.plain == 4 and only(hot).reason == "not hot yet"


def test_told_to_settle_before_it_has_looked_it_goes(tmp_path: Path) -> None:
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path)
    module(ROWS)
    hot.settle()
    assert "forward" not in vars(module) and hot.report() == [] and hot.is_settled


def test_once_told_to_settle_a_kind_that_was_being_counted_gets_no_path(tmp_path: Path) -> None:
    module, compiler, hot = settled(tmp_path)
    module(torch.ones(2, 4))
    hot.settle()
    for _ in range(ONLY_COUNTED + 20):
        module(torch.ones(2, 4))
    assert [report.runs for report in hot.report()] == ["compiled"] and len(compiler.started) == 1


def test_what_settles_eager_waits_for_a_kind_that_is_being_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotpath.switch.CLOSE_CALLS", 10_000)
    module, compiler = Slowly(), FakeCompiler(SLOW_S)
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    for _ in range(2):
        module(torch.ones(2, 4))
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "eager" and "forward" in vars(module)
    for _ in range(ONLY_COUNTED):
        module(torch.ones(2, 4))
    assert len(hot.report()) == 2
    hot.close()


def test_a_kind_whose_calls_raise_is_not_met(tmp_path: Path) -> None:
    class Refusing(Slowly):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.shape[0] > 4:
                raise ValueError("a bad batch")
            return super().forward(rows)

    module, compiler = Refusing(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    module(ROWS)
    for number in range(40):
        with pytest.raises(ValueError, match="a bad batch"):
            module(torch.ones(5 + number))
    call_until(lambda: bool(compiler.started), module)
    hot.close()


def test_who_compiles_the_module_sees_nothing_of_the_switch_change(tmp_path: Path) -> None:
    module, compiled_graphs = torch.nn.Linear(4, 4), []

    def keep(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., object]:
        compiled_graphs.append(graph)
        return graph.forward

    with watched(module, FakeCompiler(), tmp_path):
        whole = torch.compile(module, backend=keep, fullgraph=True)
        for _ in range(3):
            whole(ROWS)
    assert len(compiled_graphs) == 1


def test_closing_calls_off_what_is_under_way_and_gives_the_forward_back(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    with watched(module, compiler, tmp_path):
        call_until(lambda: bool(compiler.started), module)
    assert compiler.jobs[0].was_cancelled
    assert "forward" not in module.__dict__
    call_until(lambda: True, module)


def test_threads_may_call_at_the_same_time(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(100):
                    assert torch.equal(module(ROWS), 2 * ROWS + 1)
                    if compiler.jobs and compiler.jobs[-1].outcome is None:
                        compiler.end()
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert len(compiler.started) == 1, "one kind of call is compiled once"
    hot.close()


def call(module: torch.nn.Module, done: Callable[[], bool], rows: torch.Tensor = ROWS, most: int = 800) -> None:
    """Calls until `done`, whatever they answer."""
    for _ in range(most):
        module(rows)
        if done():
            return
    raise AssertionError(f"not done after {most} calls")


class Counting(Slowly):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen = getattr(self, "seen", 0) + 1
        return super().forward(rows)


class Reading(Slowly):
    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, float]:  # type: ignore[override]
        return super().forward(rows), rows.sum().item()


class Tabulated(Slowly):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(300)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) * self.table[:4]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counting, "changes the attribute seen of Counting"),
        (Reading, "reads values out of tensors"),
        (Tabulated, "register it as a buffer"),
    ],
)
def test_what_compiled_code_would_not_do_stays_eager_and_out_of_the_way(
    kind: type[Slowly], why: str, tmp_path: Path
) -> None:
    module, compiler = kind(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call(module, lambda: hot.is_settled)
    assert why in only(hot).reason and only(hot).has_failed and not compiler.started
    assert "forward" not in vars(module), "nothing is left in the way"


class Branched(Slowly):
    """With a submodule that can be replaced, or be in another mode than the module."""

    def __init__(self) -> None:
        super().__init__()
        self.head: torch.nn.Module = torch.nn.Dropout(0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(rows))  # type: ignore[no-any-return]


def settled_branched(tmp_path: Path) -> tuple[Branched, FakeCompiler, HotPaths]:
    module = Branched()
    module.eval()
    return module, *compiled(module, tmp_path)


def test_a_submodule_that_is_replaced_sends_it_back_to_eager(tmp_path: Path) -> None:
    module, _, hot = settled_branched(tmp_path)
    module.head = torch.nn.Threshold(100.0, 7.0).eval()
    assert torch.equal(module(ROWS), torch.full((4,), 7.0))
    assert only(hot).runs == "eager" and "its submodules are others" in only(hot).reason
    assert "forward" not in vars(module), "nothing is left in the way"


def test_a_call_with_a_submodule_in_another_mode_is_eagers_this_once(tmp_path: Path) -> None:
    module, compiler, hot = settled_branched(tmp_path)
    module.head.train()
    assert not torch.equal(torch.stack([module(ROWS) for _ in range(20)]), (2 * ROWS + 1).expand(20, 4))
    module.head.eval()
    compiled_calls = compiler.compiled_calls
    call_until(lambda: True, module)
    assert compiler.compiled_calls == compiled_calls + 1 and only(hot).runs == "compiled"


def test_a_call_under_autocast_is_eagers_this_once(tmp_path: Path) -> None:
    module, compiler, hot = settled(tmp_path)
    compiled_calls, calls = compiler.compiled_calls, module.calls
    with torch.autocast("cpu"):
        module(ROWS)
    assert (compiler.compiled_calls, module.calls) == (compiled_calls, calls + 1)
    call_until(lambda: True, module)
    assert compiler.compiled_calls == compiled_calls + 1 and only(hot).runs == "compiled"


def test_what_is_met_under_autocast_is_met_again_outside_of_it(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    with torch.autocast("cpu"):
        for _ in range(2 * ONLY_COUNTED):
            module(ROWS)
    assert hot.report() == []
    call_until(lambda: bool(compiler.started), module)
    with torch.autocast("cpu"):
        call_until(lambda: True, module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled"


def test_a_trial_waits_while_a_submodule_is_in_another_mode(tmp_path: Path) -> None:
    module, compiler = Branched(), FakeCompiler()
    module.eval()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: only(hot).stage == "trial", module)
    compiled_calls = compiler.compiled_calls
    module.head.train()
    for _ in range(20):
        module(ROWS)
    assert compiler.compiled_calls == compiled_calls and only(hot).stage == "trial"
    module.head.eval()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled"


@pytest.mark.parametrize("make", [lambda: torch.eye(4).to_sparse(), lambda: torch.ones(4, device="meta")])
def test_calls_with_tensors_that_compiled_code_cannot_take_are_eagers(
    make: Callable[[], torch.Tensor], tmp_path: Path
) -> None:
    class Multiplying(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows * 2

    module, given = Multiplying(), make()
    hot = watched(module, FakeCompiler(), tmp_path)
    for _ in range(2 * ONLY_COUNTED):
        assert module(given).layout is given.layout
        assert torch.equal(torch.vmap(module)(torch.ones(2, 3)), 2 * torch.ones(2, 3))
    assert hot.report() == []
    hot.close()


def test_a_module_with_a_sparse_buffer_is_not_followed(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    module.register_buffer("graph", torch.eye(4).to_sparse())
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: hot.is_settled, module)
    assert "it has a weight that is sparse" in only(hot).reason and not compiler.started
    assert "forward" not in vars(module)


def test_a_compilation_whose_calls_no_longer_come_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: len(compiler.started) == 2, module, torch.ones(2, 4))
    hot.close()


def test_a_forward_that_somebody_else_put_in_place_is_kept_and_not_compiled(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    own = module.forward
    module.forward = patched = lambda rows: own(rows) + 1  # type: ignore[method-assign, assignment]
    hot = watched(module, compiler, tmp_path)
    for _ in range(60):
        assert torch.equal(module(ROWS), 2 * ROWS + 2)
    assert hot.is_settled and only(hot).has_failed and "its forward was replaced" in only(hot).reason
    hot.close()
    assert vars(module)["forward"] is patched and not compiler.started


def test_a_copy_of_a_model_that_is_watched_can_be_watched_itself(tmp_path: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    watched(module, FakeCompiler(), tmp_path)
    twin = copy.deepcopy(module)
    with watched(twin, compiler, tmp_path):
        call_until(lambda: bool(compiler.started), twin)
    assert "forward" not in vars(twin)


class Outer(Slowly):
    """Its forward does what a test wants, for calls with rows of one dimension."""

    def __init__(self, inside: Callable[[torch.nn.Module], object]) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.dim() == 1:
            self.inside(self)
        return super().forward(rows)


def within(seconds: float, work: Callable[[], object]) -> None:
    """Fails, and does not hang, where `work` does."""

    def without_gradients() -> None:
        with torch.no_grad():
            work()

    thread = threading.Thread(target=without_gradients, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for itself"


def test_a_module_that_calls_itself_does_not_wait_for_itself(tmp_path: Path) -> None:
    def call_itself(module: torch.nn.Module) -> None:
        # by the switch only when the call around it is looked at, and with the same operations before
        inner = module if module.calls > 3 * ONLY_COUNTED else own
        inner(torch.ones(2, 4))

    module = Outer(call_itself)
    own = module.forward
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=1000)
    within(20, lambda: [module(ROWS) for _ in range(3 * ONLY_COUNTED)])
    assert len(hot.report()) == 1, "calls within a call that is looked at begin no path"
    hot.close()


@pytest.mark.parametrize("at_call", [ONLY_COUNTED // 2, 3 * ONLY_COUNTED])
def test_a_forward_may_close_what_is_watching_it(at_call: int, tmp_path: Path) -> None:
    def close_once(module: torch.nn.Module) -> None:
        if module.calls == at_call:
            hot.close()

    module = Outer(close_once)
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=1000)
    within(20, lambda: [module(ROWS) for _ in range(4 * ONLY_COUNTED)])
    assert "forward" not in vars(module) and hot.is_settled
    assert all(report.reason == "it was called off" for report in hot.report())


def test_another_thread_may_meet_a_kind_while_paths_are_told(tmp_path: Path) -> None:
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path, hot_threshold=1000)
    for _ in range(ONLY_COUNTED + 2):
        module(ROWS)
    switch = module.forward
    assert isinstance(switch, Switch)
    (path,) = switch.paths.values()

    class Meanwhile(Path_):
        """Another one is begun whenever its stage is asked for."""

        @property  # type: ignore[misc, override]
        def stage(self) -> Stage:
            switch.paths[len(switch.paths)] = path
            switch._met[len(switch.paths)] = path.budget
            return Stage.SETTLED

        @stage.setter
        def stage(self, stage: Stage) -> None:
            pass

    switch.paths["meanwhile"] = Meanwhile("meanwhile", False, path.meter, path.budget)
    assert not hot.is_settled and len(hot.report()) > 1
    hot.close()


def test_whatever_has_failed_leaves_nothing_in_the_calls_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CannotHandOver("why")

    compiler = FakeCompiler()
    monkeypatch.setattr(compiler, "start", refuse)
    misaligned = torch.zeros(5)[1:]
    for rows, why in ((ROWS, "why"), (misaligned, "a multiple of 16 bytes")):
        module = Slowly()
        hot = watched(module, compiler, tmp_path)
        call_until(lambda hot=hot: hot.is_settled, module, rows)
        assert why in only(hot).reason and "forward" not in vars(module)


def test_weights_that_changed_leave_nothing_in_the_calls_way(tmp_path: Path) -> None:
    module, _, hot = settled(tmp_path)
    module.double()
    module(ROWS)
    assert only(hot).runs == "eager" and "forward" not in vars(module)


@pytest.mark.parametrize("is_for_good", [True, False])
def test_only_what_would_fail_again_is_remembered(is_for_good: bool, tmp_path: Path) -> None:
    first, compiler = Slowly(), FakeCompiler()
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end(Outcome("it ended", is_for_good=is_for_good))
    call_until(lambda: hot.is_settled, first)
    assert only(hot).reason == "not compiled: it ended"
    assert [known.verdict for known in learned(tmp_path)] == (["failed"] if is_for_good else [])


def test_a_version_that_does_not_load_is_loaded_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    first, compiler = Slowly(), FakeCompiler()
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end()
    monkeypatch.setattr(compiler, "load", full)
    call_until(lambda: hot.is_settled, first)
    assert only(hot).reason.endswith("OutOfMemoryError: CUDA out of memory")
    assert [known.verdict for known in learned(tmp_path)] == ["ready"]


def test_a_version_of_which_a_part_is_gone_is_compiled_anew_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError("forward.pt2 is gone")

    first, compiler = Slowly(), FakeCompiler()
    hot = watched(first, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), first)
    compiler.end()
    monkeypatch.setattr(compiler, "load", gone)
    call_until(lambda: hot.is_settled, first)
    second, next_compiler = Slowly(), FakeCompiler()
    watched(second, next_compiler, tmp_path)
    call_until(lambda: bool(next_compiler.started), second)


def test_a_program_that_uses_torchs_newer_switches_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs to set the matmul precision")

    module, compiler = Slowly(), FakeCompiler()
    before = settings.read()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert settings.read() != before
    hot = watched(module, compiler, tmp_path)
    call_until(lambda: bool(compiler.started), module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled"


def test_what_fails_of_ours_is_told_and_the_call_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in the middle of it")

    monkeypatch.setattr(Switch, "_consider", broken)
    module = Slowly()
    hot = watched(module, FakeCompiler(), tmp_path)
    call_until(lambda: hot.is_settled, module)
    assert only(hot).has_failed and only(hot).reason == "ZeroDivisionError: in the middle of it"


def test_who_asks_the_model_for_its_inputs_is_told_its_own(tmp_path: Path) -> None:
    module = Slowly()
    before = inspect.signature(module.forward)
    with watched(module, FakeCompiler(), tmp_path):
        assert list(before.parameters) == ["rows"] and inspect.signature(module.forward) == before


class _Once(torch.autograd.Function):
    """Identity, whose backward writes into what the forward has saved."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.ones_like(weight))
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (ones,) = ctx.saved_tensors
        return ones.mul_(gradient)


class OnceOnly(Slowly):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return 2 * rows + _Once.apply(self.weight)


class _Scaled(torch.autograd.Function):
    """Identity, whose gradient is `factor` times what comes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.factor * gradient, None


class Scaled(Slowly):
    """What `Slowly` computes, with gradients `factor` times as large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return _Scaled.apply(super().forward(rows), self.factor)


class TestTraining:
    @pytest.fixture(autouse=True)
    def gradients(self, no_gradients: None) -> Iterator[None]:
        with torch.enable_grad():
            yield

    def test_frozen_and_trained_weights_share_no_compiled_version(self, tmp_path: Path) -> None:
        rows = ROWS.clone().requires_grad_()
        for number, is_frozen in enumerate((True, False, False)):
            module, compiler = Slowly(), FakeCompiler()
            module.weight.requires_grad_(not is_frozen)
            hot = watched(module, compiler, tmp_path)
            if number < 2:
                call_until(lambda: bool(compiler.started), module, rows)  # noqa: B023 - done before the next one
                compiler.end()
            call_until(lambda: hot.is_settled, module, rows)  # noqa: B023
            assert only(hot).runs == "compiled" and len(compiler.started) == (1 if number < 2 else 0)

    def test_a_version_with_other_gradients_is_not_taken_up(self, tmp_path: Path) -> None:
        rows = ROWS.clone().requires_grad_()
        for made in (
            lambda given: [2 * given[1] + given[0].detach()],
            lambda given: [2 * given[1] + 3 * given[0] - 2 * given[0].detach()],
        ):
            module, compiler = Slowly(), FakeCompiler(made=made)
            hot = watched(module, compiler, tmp_path / str(id(made)))
            call_until(lambda: bool(compiler.started), module, rows)  # noqa: B023
            compiler.end()
            call_until(lambda: hot.is_settled, module, rows)  # noqa: B023
            assert only(hot).runs == "eager" and "was not taken up" in only(hot).reason
            assert module.weight.grad is None and rows.grad is None, "nothing of the trial is added to them"

    def test_taking_a_version_up_leaves_the_programs_gradients_hooks_and_graph_alone(self, tmp_path: Path) -> None:
        """A step in the hook of a gradient, and a backward pass that can be made only once."""
        module, compiler = OnceOnly(), FakeCompiler(made=lambda given: [2 * given[1] + given[0]])
        seen: list[torch.Tensor] = []
        module.weight.register_hook(seen.append)
        hot, steps = watched(module, compiler, tmp_path), 0
        while not hot.is_settled:
            module(ROWS).sum().backward()
            steps += 1
            if compiler.jobs:
                compiler.end()
        assert compiler.loaded and only(hot).runs == "compiled", only(hot)
        assert len(seen) == steps and all(torch.equal(gradient, torch.ones(4)) for gradient in seen)

    def test_a_version_taken_over_that_has_other_gradients_is_not_the_end_of_it(self, tmp_path: Path) -> None:
        """Two layers may differ by a constant that only their backward passes have."""
        right, compiler = Scaled(1.0), FakeCompiler()
        hot = watched(right, compiler, tmp_path)
        call_until(lambda: bool(compiler.started), right)
        compiler.end()
        call_until(lambda: hot.is_settled, right)
        other = Scaled(-1.0)
        hot = watched(other, FakeCompiler(), tmp_path)
        call_until(lambda: hot.is_settled, other)
        assert "was not taken up" in only(hot).reason
        again = Scaled(1.0)
        hot = watched(again, FakeCompiler(), tmp_path)
        call_until(lambda: hot.is_settled, again)
        assert only(hot).runs == "compiled", only(hot)

    def test_under_checkpointing_a_call_is_eagers(self, tmp_path: Path) -> None:
        """The forward made again in the backward pass has to save what the first one did."""
        made = lambda given: [(2 * given[1] + given[0]).exp().log()]  # noqa: E731 - which saves more
        module, compiler = Slowly(), FakeCompiler(made=made)
        with watched(module, compiler, tmp_path) as hot:
            for _ in range(60):
                torch.utils.checkpoint.checkpoint(module, ROWS, use_reentrant=False).sum().backward()
                if compiler.jobs:
                    compiler.end()
            assert not hot.report() and not compiler.started

    def test_two_calls_in_a_step_do_not_decide_the_trial(self, tmp_path: Path) -> None:
        """What lies between two steps falls to whoever is called second in one: were that always the same, it lost."""
        module, compiler = Slowly(), FakeCompiler(0.002)
        hot = watched(module, compiler, tmp_path)
        for _ in range(400):
            (module(ROWS) + module(ROWS)).sum().backward()
            time.sleep(0.004)
            if compiler.jobs:
                compiler.end()
            if hot.is_settled:
                break
        assert only(hot).runs == "eager" and "shows no lead" in only(hot).reason, only(hot)
        assert compiler.loaded


def learned(folder: Path) -> list[Learned]:
    knowledge = Knowledge(folder)
    return [known for one in folder.iterdir() if (known := knowledge.of(one.name)) is not None]


class TestParts:
    def test_parts_that_are_equal_share_what_was_compiled(self, tmp_path: Path) -> None:
        model, compiler = torch.nn.Sequential(Slowly(), Slowly()), FakeCompiler()
        hot = watched(model, compiler, tmp_path, modules=["*"])
        expected = 2 * (2 * ROWS + 1) + 1
        for _ in range(800):
            assert torch.equal(model(ROWS), expected)
            if compiler.jobs and compiler.jobs[-1].outcome is None:
                compiler.end()
            if hot.is_settled:
                break
        assert [(report.module, report.runs) for report in hot.report()] == [("0", "compiled"), ("1", "compiled")]
        assert len(compiler.started) == 1 and len(compiler.loaded) == 2

    def test_a_part_inside_of_another_one_is_not_followed_twice(self, tmp_path: Path) -> None:
        model = torch.nn.Sequential(torch.nn.Sequential(Slowly()), Slowly())
        hot = watched(model, FakeCompiler(), tmp_path, modules=["*"])
        for _ in range(ONLY_COUNTED + 2):
            model(ROWS)
        assert [report.module for report in hot.report()] == ["0", "1"]

    def test_a_pattern_that_matches_nothing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"no part of Slowly has a name that matches layers\.\*"):
            watched(Slowly(), FakeCompiler(), tmp_path, modules=["layers.*"])


@pytest.mark.parametrize(
    ("usable", "cores", "load", "threads", "is_spare"),
    [
        (2, 2, 0.1, 2, False),  # every core is the model's
        (2, 2, 0.9, 1, True),  # one is left
        (2, 2, 1.9, 1, False),  # somebody else has it
        (16, 128, 60.0, 4, True),  # the load is that of the whole machine
        (16, 128, 125.0, 4, False),
    ],
)
def test_a_spare_core_is_one_that_nobody_else_uses(
    usable: int, cores: int, load: float, threads: int, is_spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(usable)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert has_spare_cores(Slowly()) is is_spare
