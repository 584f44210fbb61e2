"""From eager to what is faster, with a compiler that compiles nothing."""

import copy
import inspect
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from bakeoff_hotpath import enable_hot_path_detection
from bakeoff_hotpath.compiling import Outcome
from bakeoff_hotpath.enabling import HotPaths, PathReport
from bakeoff_hotpath.handover import CannotHandOver
from bakeoff_hotpath.knowledge import FILE, Measured
from bakeoff_hotpath.switch import MAX_COUNTED_CALLS, MAX_PATHS, MIN_STRIDE
from plugins.hotpath.tests.fakes import DONE, EAGER_S, OTHER_PATH, SLOW_S, FakeCompiler, Slowly, make_compiling_cheap

ROWS = torch.arange(4.0)
ENOUGH_CALLS = 5000
NEVER_HOT = 100_000


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return make_compiling_cheap(tmp_path)


def follow(module: torch.nn.Module, compiler: FakeCompiler, cache: Path, **options: Any) -> HotPaths:
    # half of the time may go into recording, so that a test need not wait for the budget
    given = {"watch_share": 0.5, "cache": cache, "compiler": compiler, **options}
    return enable_hot_path_detection(module, **given)


def call_until(done: Callable[[], bool], module: torch.nn.Module, rows: torch.Tensor = ROWS) -> int:
    """Call until `done`, and return the number of calls. Each must give `Slowly`'s answer."""
    for number in range(1, ENOUGH_CALLS + 1):
        assert torch.equal(module(rows), 2 * rows + 1)
        if done():
            return number
    raise AssertionError(f"not done after {ENOUGH_CALLS} calls")


def settle(
    module: torch.nn.Module,
    compiler: FakeCompiler,
    cache: Path,
    rows: torch.Tensor = ROWS,
    outcome: Outcome = DONE,
    step: Callable[[], object] | None = None,
) -> HotPaths:
    """Call until all is settled. A compilation ends as soon as it has started."""
    hot = follow(module, compiler, cache)
    for _ in range(ENOUGH_CALLS):
        if step is None:
            module(rows)
        else:
            step()
        if compiler.is_running:
            compiler.end(outcome)
        if hot.is_settled:
            return hot
    raise AssertionError(f"not settled: {hot.report()}")


def only(hot: HotPaths) -> PathReport:
    (report,) = hot.report()
    return report


def is_in_the_way(module: torch.nn.Module) -> bool:
    return "forward" in vars(module)


def verdicts(folder: Path) -> list[str]:
    """Return what was learned of the test's own paths."""
    paths = json.loads((folder / FILE).read_text())["paths"]
    return [known["verdict"] for name, known in paths.items() if name != OTHER_PATH]


def test_a_model_starts_eager_and_switches_when_compiled_code_is_ready_and_faster(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = follow(module, compiler, cache)
    call_until(lambda: bool(compiler.started), module)
    assert (only(hot).stage, only(hot).runs, only(hot).reason) == ("compiling", "eager", "being compiled")
    eager_calls = module.calls
    for _ in range(40):
        module(ROWS)
    assert module.calls == eager_calls + 40 and compiler.compiled_calls == 0, "eager goes on meanwhile"
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled" and "as fast" in only(hot).reason, only(hot)
    assert only(hot).switched_at_call and only(hot).compile_s == 0.05
    eager_calls = module.calls
    call_until(lambda: True, module)
    assert module.calls == eager_calls and hot.compilations == 1


def test_nothing_is_compiled_below_the_threshold(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    with follow(module, compiler, cache, hot_threshold=150):
        assert call_until(lambda: bool(compiler.started), module) >= 150


@pytest.mark.parametrize(("shapes", "paths"), [("any", 12), ("exact", 0)])
def test_calls_of_any_shape_reach_the_threshold_together(shapes: str, paths: int, cache: Path) -> None:
    """Twelve lengths take turns, with nine calls each: there are many calls, and fewer than ten of each length."""
    module = Slowly()
    with follow(module, FakeCompiler(), cache, shapes=shapes, watch_share=0.9) as hot:
        for _ in range(9):
            for length in range(1, 13):
                module(torch.ones(length, 4))
        assert len(hot.report()) == paths
        assert len({report.signature for report in hot.report()} - {None}) == (1 if paths else 0)


def test_a_model_goes_back_to_eager_when_compiled_code_is_slower_and_the_next_run_knows(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler(SLOW_S)
    hot = settle(module, compiler, cache)
    assert only(hot).runs == "eager" and "tried, and compiled is 0." in only(hot).reason
    assert not only(hot).has_failed and not is_in_the_way(module)
    compiled_calls = compiler.compiled_calls
    call_until(lambda: True, module)
    assert compiler.compiled_calls == compiled_calls
    second, next_compiler = Slowly(), FakeCompiler()
    hot = settle(second, next_compiler, cache)
    assert only(hot).reason.startswith("an earlier run found: tried, and compiled is 0.")
    assert not next_compiler.started and not next_compiler.loaded


def test_a_version_that_the_compiling_process_found_slower_is_not_even_loaded(cache: Path) -> None:
    compiler = FakeCompiler()
    slower = Outcome("", Measured(0.05, 0.0, eager_s=1e-3, compiled_s=2e-3))
    hot = settle(Slowly(), compiler, cache, outcome=slower)
    assert "compiled is 0.50x as fast, as the compiling process measured" in only(hot).reason
    assert not compiler.loaded


def test_a_version_that_the_compiling_process_found_about_as_fast_is_tried(cache: Path) -> None:
    equal = Outcome("", Measured(0.05, 0.0, eager_s=1e-2, compiled_s=1.02e-2))
    hot = settle(Slowly(), FakeCompiler(), cache, outcome=equal)
    assert only(hot).runs == "compiled" and only(hot).reason.startswith("tried, and "), only(hot)


@pytest.mark.parametrize(
    ("compiler", "outcome", "why", "learned"),
    [
        (FakeCompiler(), Outcome("no kernel"), "not compiled: no kernel", ["failed"]),
        (FakeCompiler(), Outcome("disk full", is_for_good=False), "not compiled: disk full", []),
        (FakeCompiler(start_error=CannotHandOver("not pickled")), DONE, "not pickled", []),
        (
            FakeCompiler(load_error=torch.OutOfMemoryError("full")),
            DONE,
            "not taken up: OutOfMemoryError: full",
            ["ready"],
        ),
        (FakeCompiler(own_error=ZeroDivisionError("a bug")), DONE, "ZeroDivisionError: a bug", []),
        (FakeCompiler(made=lambda given: [2 * given[1] + given[0] + 1]), DONE, "tensor 0 is off by 2", ["failed"]),
        (FakeCompiler(made=lambda given: [given[1], given[0]]), DONE, "2 tensors instead of 1", ["failed"]),
        (FakeCompiler(made=lambda given: [given[1].double()]), DONE, "is torch.float64 [4] instead of", ["failed"]),
    ],
)
def test_a_failure_leaves_the_model_eager_and_says_why(
    compiler: FakeCompiler, outcome: Outcome, why: str, learned: list[str], cache: Path
) -> None:
    module = Slowly()
    hot = settle(module, compiler, cache, outcome=outcome)
    assert only(hot).runs == "eager" and only(hot).has_failed and why in only(hot).reason
    assert not is_in_the_way(module)
    assert verdicts(cache) == learned, "a failure is remembered if it would happen again"


def test_the_next_run_takes_up_what_was_compiled(cache: Path) -> None:
    compiler, next_compiler = FakeCompiler(), FakeCompiler()
    settle(Slowly(), compiler, cache)
    hot = settle(Slowly(), next_compiler, cache)
    assert only(hot).runs == "compiled" and hot.compilations == 1, only(hot)
    assert not next_compiler.started and next_compiler.loaded == compiler.loaded


def test_the_next_run_compiles_anew_where_a_part_is_gone(cache: Path) -> None:
    settle(Slowly(), FakeCompiler(load_error=FileNotFoundError("forward.pt2 is gone")), cache)
    next_compiler = FakeCompiler()
    settle(Slowly(), next_compiler, cache)
    assert len(next_compiler.started) == 1


def test_the_next_run_tries_again_what_a_trial_did_not_decide(cache: Path) -> None:
    module, now_and_then_slow = Slowly(), FakeCompiler(0.0, 0.0, 3 * EAGER_S, 0.0, 3 * EAGER_S)
    hot = settle(module, now_and_then_slow, cache)
    assert only(hot).runs == "eager" and only(hot).reason.endswith("which shows no lead of 1.03"), only(hot)
    assert not is_in_the_way(module) and verdicts(cache) == ["ready"]
    next_compiler = FakeCompiler()
    hot = settle(Slowly(), next_compiler, cache)
    assert only(hot).runs == "compiled" and next_compiler.loaded and not next_compiler.started, only(hot)


class ByNumber(Slowly):
    """Every call multiplies by another constant."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        super().forward(rows)
        return rows * float(self.calls)


class Random(Slowly):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().forward(rows), 0.5, training=True)


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


class Sparse(Slowly):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(4).to_sparse())


@pytest.mark.parametrize(
    ("kind", "rows", "why"),
    [
        (ByNumber, ROWS, "differ from call to call"),
        (Random, ROWS, "draws random numbers"),
        (Counting, ROWS, "changes the attribute seen of Counting"),
        (Reading, ROWS, "reads values out of tensors"),
        (Tabulated, ROWS, "register it as a buffer"),
        (Sparse, ROWS, "it has a weight that is sparse"),
        (Slowly, torch.zeros(5)[1:], "a multiple of 16 bytes"),
    ],
)
def test_what_compiled_code_could_not_do_stays_eager(
    kind: type[Slowly], rows: torch.Tensor, why: str, cache: Path
) -> None:
    module, compiler = kind(), FakeCompiler()
    hot = settle(module, compiler, cache, rows)
    assert why in only(hot).reason and only(hot).has_failed and not compiler.started
    assert not is_in_the_way(module)


def test_a_forward_that_somebody_else_put_in_place_is_kept_and_not_compiled(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    own = module.forward
    module.forward = patched = lambda rows: own(rows) + 1  # type: ignore[method-assign, assignment]
    with follow(module, compiler, cache) as hot:
        for _ in range(60):
            assert torch.equal(module(ROWS), 2 * ROWS + 2)
        assert hot.is_settled and only(hot).has_failed and "its forward was replaced" in only(hot).reason
    assert vars(module)["forward"] is patched and not compiler.started


@pytest.mark.parametrize("make", [lambda: torch.eye(4).to_sparse(), lambda: torch.ones(4, device="meta")])
def test_calls_with_tensors_that_compiled_code_cannot_take_are_eagers(
    make: Callable[[], torch.Tensor], cache: Path
) -> None:
    class Doubling(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows * 2

    module, given = Doubling(), make()
    with follow(module, FakeCompiler(), cache) as hot:
        for _ in range(2 * MAX_COUNTED_CALLS):
            assert module(given).layout is given.layout
            assert torch.equal(torch.vmap(module)(torch.ones(2, 3)), 2 * torch.ones(2, 3))
        assert hot.report() == []


class TestOnceCompiled:
    def test_weights_that_change_in_place_or_are_replaced_are_seen(self, cache: Path) -> None:
        module = Slowly()
        settle(module, FakeCompiler(), cache)
        calls = module.calls
        module.weight.add_(1)
        assert torch.equal(module(ROWS), 2 * ROWS + 2)
        module.weight = torch.nn.Parameter(torch.zeros(4))
        assert torch.equal(module(ROWS), 2 * ROWS)
        assert module.calls == calls, "compiled code has answered"

    def test_weights_of_another_type_send_the_model_back_to_eager(self, cache: Path) -> None:
        module = Slowly()
        hot = settle(module, FakeCompiler(), cache)
        module.double()
        assert module(ROWS).dtype == torch.float64
        assert only(hot).runs == "eager" and "another shape, type or device" in only(hot).reason
        assert not is_in_the_way(module)

    def test_a_submodule_that_is_replaced_sends_the_model_back_to_eager(self, cache: Path) -> None:
        module = Branched()
        hot = settle(module, FakeCompiler(), cache)
        module.head = torch.nn.Threshold(100.0, 7.0).eval()
        assert torch.equal(module(ROWS), torch.full((4,), 7.0))
        assert only(hot).runs == "eager" and "its submodules are others" in only(hot).reason
        assert not is_in_the_way(module)

    def test_a_call_with_a_submodule_in_another_mode_or_under_autocast_is_eagers(self, cache: Path) -> None:
        module, compiler = Branched(), FakeCompiler()
        hot = settle(module, compiler, cache)
        compiled_calls, calls = compiler.compiled_calls, module.calls
        module.head.train()
        assert not torch.equal(torch.stack([module(ROWS) for _ in range(20)]), (2 * ROWS + 1).expand(20, 4))
        module.head.eval()
        with torch.autocast("cpu"):
            module(ROWS)
        assert (compiler.compiled_calls, module.calls) == (compiled_calls, calls + 21)
        call_until(lambda: True, module)
        assert compiler.compiled_calls == compiled_calls + 1 and only(hot).runs == "compiled"

    def test_other_inputs_get_eager_and_a_path_of_their_own(self, cache: Path) -> None:
        module, compiler = Slowly(), FakeCompiler()
        hot = settle(module, compiler, cache)
        compiled_calls = compiler.compiled_calls
        for _ in range(MAX_COUNTED_CALLS + 1):
            assert torch.equal(module(torch.zeros(3, 4)), torch.ones(3, 4))
            with torch.enable_grad():
                assert module(ROWS).requires_grad
        assert compiler.compiled_calls == compiled_calls
        assert [report.is_training for report in hot.report()] == [False, False, True]
        assert compiler.started[0].args[0] is ROWS

    def test_a_kind_that_was_being_counted_gets_no_path_after_settling(self, cache: Path) -> None:
        module, compiler = Slowly(), FakeCompiler()
        hot = settle(module, compiler, cache)
        module(torch.ones(2, 4))
        hot.settle()
        for _ in range(MAX_COUNTED_CALLS + 20):
            module(torch.ones(2, 4))
        assert [report.runs for report in hot.report()] == ["compiled"] and len(compiler.started) == 1


class Branched(Slowly):
    """`Slowly` with a submodule that can be replaced, or be in another mode than the module."""

    def __init__(self) -> None:
        super().__init__()
        self.head: torch.nn.Module = torch.nn.Dropout(0.5)
        self.eval()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(rows))  # type: ignore[no-any-return]


def test_a_trial_waits_while_a_submodule_is_in_another_mode(cache: Path) -> None:
    module, compiler = Branched(), FakeCompiler()
    hot = follow(module, compiler, cache)
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
    assert only(hot).runs == "compiled", only(hot)


def test_calls_under_autocast_neither_begin_a_path_nor_stop_one(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    hot = follow(module, compiler, cache)
    with torch.autocast("cpu"):
        for _ in range(2 * MAX_COUNTED_CALLS):
            module(ROWS)
    assert hot.report() == []
    call_until(lambda: bool(compiler.started), module)
    with torch.autocast("cpu"):
        call_until(lambda: True, module)
    compiler.end()
    call_until(lambda: hot.is_settled, module)
    assert only(hot).runs == "compiled", only(hot)


class Told(int):
    """An argument that counts how often calls are told apart, which needs its hash."""

    count = 0

    def __hash__(self) -> int:
        Told.count += 1
        return int(self)


class Fast(torch.nn.Module):
    def forward(self, rows: torch.Tensor, scale: int = 2) -> torch.Tensor:
        time.sleep(EAGER_S / 2)
        return rows * int(scale)


@pytest.mark.parametrize("period", [2, 3])
def test_most_calls_pass_without_being_told_apart_and_a_kind_that_takes_turns_is_met(period: int, cache: Path) -> None:
    module, scale = Fast(), Told(2)
    with follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT) as hot:
        for _ in range(100):
            module(ROWS, scale)
        Told.count = 0
        for _ in range(300):
            module(ROWS, scale)
        hashes_per_look = 2  # one when the key is made, and one when the path is looked up
        assert 0 < Told.count <= hashes_per_look * (300 / (MIN_STRIDE / 2) + 1)
        assert only(hot).calls > 300
        for number in range(400):
            module(torch.ones(2, 4) if number % period == 1 else ROWS, scale)
        assert len(hot.report()) == 2


def test_calls_below_the_threshold_are_only_counted(cache: Path) -> None:
    module, scale = Fast(), Told(2)
    with follow(module, FakeCompiler(), cache, hot_threshold=3, watch_share=1e-9) as hot:  # however slow one call is
        Told.count = 0
        module(ROWS, scale)
        assert Told.count == 0, "the very first call is not even looked at"
        for _ in range(3):
            module(ROWS, scale)
        assert Told.count > 0 and hot.report() == []
        module(ROWS, scale)
        assert (only(hot).calls, only(hot).watched_calls, only(hot).reason) == (4, 0, "not hot yet")


@pytest.mark.parametrize(("calls", "stages"), [(1, []), (MAX_COUNTED_CALLS + 5, ["settled"])])
def test_settling_leaves_nothing_in_the_calls_way(calls: int, stages: list[str], cache: Path) -> None:
    module = Slowly()
    hot = follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT)
    for _ in range(calls):
        module(ROWS)
    hot.settle()
    assert not is_in_the_way(module) and hot.is_settled
    assert [report.stage for report in hot.report()] == stages


def test_a_path_that_settles_on_eager_waits_for_a_kind_that_is_being_counted(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler(SLOW_S)
    with follow(module, compiler, cache) as hot:
        call_until(lambda: bool(compiler.started), module)
        # a kind is met when a call of it falls on a look
        for _ in range(2 * MIN_STRIDE):
            module(torch.ones(2, 4))
        compiler.end()
        call_until(lambda: hot.report()[0].stage == "settled", module)
        assert hot.report()[0].runs == "eager" and is_in_the_way(module)


def test_closing_cancels_what_is_under_way_and_gives_the_forward_back(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    with follow(module, compiler, cache):
        call_until(lambda: bool(compiler.started), module)
    assert compiler.jobs[0].was_cancelled and not is_in_the_way(module)
    call_until(lambda: True, module)


def test_a_call_that_raises_reaches_the_caller_and_does_not_make_its_kind_known(cache: Path) -> None:
    class Refusing(Slowly):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.shape[0] > 4 or (rows.dim() == 1 and self.calls % 3 == 2):
                self._count.calls += 1
                raise ValueError("a bad batch")
            return super().forward(rows)

    module = Refusing()
    with follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT) as hot:
        raised = 0
        for _ in range(60):
            try:
                module(ROWS)
            except ValueError:
                raised += 1
        assert raised == 20 and len(hot.report()) == 1
        for number in range(3 * MAX_PATHS * MIN_STRIDE):  # no kind of these is met
            with pytest.raises(ValueError, match="a bad batch"):
                module(torch.ones(5 + number % MAX_PATHS))
        for _ in range(3 * MAX_COUNTED_CALLS * MIN_STRIDE):
            module(torch.ones(2, 4))
        assert len(hot.report()) == 2, "there is room for one more kind"


def test_a_copied_or_saved_model_has_its_own_forward_and_can_be_followed_itself(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    with follow(module, FakeCompiler(), cache) as hot:
        twin = copy.deepcopy(module)
        twin.weight.zero_()
        assert torch.equal(twin(ROWS), 2 * ROWS) and torch.equal(module(ROWS), 2 * ROWS + 1)
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        assert torch.equal(saved(ROWS), 2 * ROWS + 1)
        for _ in range(MAX_COUNTED_CALLS + 2):
            module(ROWS)
        assert len(hot.report()) == 1
        with follow(saved, compiler, cache):
            call_until(lambda: bool(compiler.started), saved)
        assert not is_in_the_way(saved)


def test_torch_compile_traces_the_module_once(cache: Path) -> None:
    module, graphs = torch.nn.Linear(4, 4), []

    def keep(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    with follow(module, FakeCompiler(), cache):
        whole = torch.compile(module, backend=keep, fullgraph=True)
        for _ in range(3):
            whole(ROWS)
    assert len(graphs) == 1


def test_a_trainer_still_sees_the_inputs_that_the_model_takes(cache: Path) -> None:
    module = Slowly()
    before = inspect.signature(module.forward)
    with follow(module, FakeCompiler(), cache):
        assert list(before.parameters) == ["rows"] and inspect.signature(module.forward) == before


def test_an_ended_compilation_keeps_no_other_one_waiting_if_its_calls_no_longer_come(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    with follow(module, compiler, cache):
        call_until(lambda: bool(compiler.started), module)
        compiler.end()
        call_until(lambda: len(compiler.started) == 2, module, torch.ones(2, 4))


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_threads_may_call_at_the_same_time(cache: Path) -> None:
    module, compiler = Slowly(), FakeCompiler()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(100):
                    assert torch.equal(module(ROWS), 2 * ROWS + 1)
                    if compiler.is_running:
                        compiler.end()
        except BaseException as error:
            errors.append(error)

    with follow(module, compiler, cache):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert len(compiler.started) == 1, "one kind of call is compiled once"


@pytest.mark.usefixtures("eager_threads")
def test_another_thread_may_begin_paths_while_they_are_reported(cache: Path) -> None:
    modules = [torch.nn.ReLU() for _ in range(40)]
    found = [follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT) for module in modules]

    def begin_paths() -> None:
        with torch.no_grad():
            for module in modules:
                for length in range(1, MAX_PATHS + 1):
                    for _ in range(MAX_COUNTED_CALLS + 2):
                        module(torch.ones(length))

    thread = threading.Thread(target=begin_paths)
    thread.start()
    while thread.is_alive():
        for hot in found:
            assert len(hot.report()) <= MAX_PATHS and not hot.is_settled
    thread.join()
    assert all(hot.report() for hot in found)


class Outer(Slowly):
    """Its forward does what a test wants, for calls with rows of one dimension."""

    def __init__(self, inside: Callable[[Slowly], object]) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.dim() == 1:
            self.inside(self)
        return super().forward(rows)


def within(seconds: float, work: Callable[[], object]) -> None:
    """Fail, and do not hang, where `work` does."""

    def without_gradients() -> None:
        with torch.no_grad():
            work()

    thread = threading.Thread(target=without_gradients, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for itself"


def test_a_module_that_calls_itself_does_not_wait_for_itself(cache: Path) -> None:
    def call_itself(module: Slowly) -> None:
        # by the switch only when the call around it is looked at, and with the same operations before
        inner = module if module.calls > 3 * MAX_COUNTED_CALLS else own
        inner(torch.ones(2, 4))

    module = Outer(call_itself)
    own = module.forward
    with follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT) as hot:
        within(20, lambda: [module(ROWS) for _ in range(3 * MAX_COUNTED_CALLS)])
        assert len(hot.report()) == 1, "a call within a call that is looked at begins no path"


@pytest.mark.parametrize("at_call", [MAX_COUNTED_CALLS // 2, 3 * MAX_COUNTED_CALLS])
def test_a_forward_may_close_the_detection_that_follows_it(at_call: int, cache: Path) -> None:
    def close_once(module: Slowly) -> None:
        if module.calls == at_call:
            hot.close()

    module = Outer(close_once)
    hot = follow(module, FakeCompiler(), cache, hot_threshold=NEVER_HOT)
    within(20, lambda: [module(ROWS) for _ in range(4 * MAX_COUNTED_CALLS)])
    assert not is_in_the_way(module) and hot.is_settled
    assert all(report.reason == "it was called off" for report in hot.report())


class _Once(torch.autograd.Function):
    """The identity. Its backward writes into what the forward has saved."""

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
        time.sleep(EAGER_S)
        return 2 * rows + _Once.apply(self.weight)


class _Scaled(torch.autograd.Function):
    """The identity, with a gradient that is `factor` times as large."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.factor * gradient, None


class Scaled(Slowly):
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

    def test_frozen_and_trained_weights_share_no_compiled_version(self, cache: Path) -> None:
        rows = ROWS.clone().requires_grad_()
        for is_frozen, compilations in ((True, 1), (False, 1), (False, 0)):
            module, compiler = Slowly(), FakeCompiler()
            module.weight.requires_grad_(not is_frozen)
            hot = settle(module, compiler, cache, rows)
            assert only(hot).runs == "compiled" and len(compiler.started) == compilations, only(hot)

    @pytest.mark.parametrize(
        "made",
        [
            lambda given: [2 * given[1] + given[0].detach()],
            lambda given: [2 * given[1] + 3 * given[0] - 2 * given[0].detach()],
        ],
    )
    def test_a_version_with_other_gradients_is_not_taken_up(self, made: Any, cache: Path) -> None:
        module, rows = Slowly(), ROWS.clone().requires_grad_()
        hot = settle(module, FakeCompiler(made=made), cache, rows)
        assert only(hot).runs == "eager" and "was not taken up" in only(hot).reason
        assert module.weight.grad is None and rows.grad is None, "comparing adds nothing to them"

    def test_taking_a_version_up_leaves_the_programs_gradients_hooks_and_graph_alone(self, cache: Path) -> None:
        """The program has a hook on a gradient, and a backward pass that can be made only once."""
        module, compiler = OnceOnly(), FakeCompiler()
        seen: list[torch.Tensor] = []
        module.weight.register_hook(seen.append)
        steps: list[int] = []

        def step() -> None:
            module(ROWS).sum().backward()
            steps.append(1)

        hot = settle(module, compiler, cache, step=step)
        assert compiler.loaded and only(hot).runs == "compiled", only(hot)
        assert len(seen) == len(steps) and all(torch.equal(gradient, torch.ones(4)) for gradient in seen)

    def test_a_version_of_another_module_with_other_gradients_is_kept_for_its_own(self, cache: Path) -> None:
        """Two layers may differ by a constant that only their backward passes have."""
        compiler = FakeCompiler()
        settle(Scaled(1.0), compiler, cache)
        hot = settle(Scaled(-1.0), FakeCompiler(), cache)
        assert "was not taken up" in only(hot).reason
        hot = settle(Scaled(1.0), FakeCompiler(), cache)
        assert only(hot).runs == "compiled", only(hot)

    def test_a_call_under_checkpointing_is_eagers(self, cache: Path) -> None:
        """The forward is made again in the backward pass, and has to save what the first one did."""
        module, compiler = Slowly(), FakeCompiler(made=lambda given: [(2 * given[1] + given[0]).exp().log()])
        with follow(module, compiler, cache) as hot:
            for _ in range(60):
                torch.utils.checkpoint.checkpoint(module, ROWS, use_reentrant=False).sum().backward()
                if compiler.is_running:
                    compiler.end()
            assert not hot.report() and not compiler.started

    def test_two_calls_in_a_step_do_not_decide_the_trial(self, cache: Path) -> None:
        """The time between two steps falls to the second call of a step. The version of that call is drawn."""
        module, compiler = Slowly(), FakeCompiler(EAGER_S)

        def step() -> None:
            (module(ROWS) + module(ROWS)).sum().backward()
            time.sleep(2 * EAGER_S)

        hot = settle(module, compiler, cache, step=step)
        assert only(hot).runs == "eager" and "shows no lead" in only(hot).reason, only(hot)
        assert compiler.loaded


class TestParts:
    def test_equal_parts_share_what_was_compiled(self, cache: Path) -> None:
        model, compiler = torch.nn.Sequential(Slowly(), Slowly()), FakeCompiler()
        hot = follow(model, compiler, cache, modules=["*"])
        expected = 2 * (2 * ROWS + 1) + 1
        for _ in range(ENOUGH_CALLS):
            assert torch.equal(model(ROWS), expected)
            if compiler.is_running:
                compiler.end()
            if hot.is_settled:
                break
        assert [(report.module, report.runs) for report in hot.report()] == [
            ("0", "compiled"),
            ("1", "compiled"),
        ], hot.report()
        assert len(compiler.started) == 1 and len(compiler.loaded) == 2

    def test_a_part_inside_another_one_is_not_followed_twice(self, cache: Path) -> None:
        model = torch.nn.Sequential(torch.nn.Sequential(Slowly()), Slowly())
        with follow(model, FakeCompiler(), cache, modules=["*"]) as hot:
            for _ in range(MAX_COUNTED_CALLS + 2):
                model(ROWS)
            assert [report.module for report in hot.report()] == ["0", "1"]

    def test_a_pattern_that_matches_nothing_is_named(self, cache: Path) -> None:
        with pytest.raises(ValueError, match=r"no part of Slowly has a name that matches layers\.\*"):
            follow(Slowly(), FakeCompiler(), cache, modules=["layers.*"])
