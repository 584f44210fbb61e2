"""A model is understood with eager: what its answers depend on, what its calls change, and where it decides."""

import datetime
import email.utils
import itertools
import os
import queue
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bakeoff.backends.calling import VARIES, VARYING_TEXTS, Returned
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.traits import Access, AccessKind, ModelTraits
from bakeoff.truth import decisions, global_settings
from bakeoff.truth.calls import AlikeCalls, call, run_eager
from bakeoff.truth.decisions import Deciding, ReadingWatch, decisions_of, noting_frozen_choices
from bakeoff.truth.errors import decided_by_rounding, far_from_float64, is_explained_by_rounding
from bakeoff.truth.matching import match
from bakeoff.truth.module_state import ModuleState
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.outside import CLOCK
from bakeoff.truth.traits import UNNAMED, ReplayableModule, inputs_without_effect, leaves_more_behind, understand
from bakeoff.truth.witnesses import FillUnwritten

Forward = Callable[["Model", torch.Tensor], torch.Tensor]


NOTES = ModuleType("notes")
"""A module, which nobody follows for state."""

CALLED: list[int] = []
NOTES.called = CALLED  # type: ignore[attr-defined]


def note_call() -> None:
    NOTES.called.append(1)  # type: ignore[attr-defined]


class Model(nn.Module):
    """Calls a function as its forward. Its calls are counted where nobody looks for state."""

    def __init__(self, forward: Forward, **kept: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        for name, value in kept.items():
            setattr(self, name, value)
        self._forward_of = forward

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        note_call()
        return self._forward_of(self, *given)


@pytest.fixture(autouse=True)
def in_inference_mode() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def inputs(count: int = 4) -> tuple[Inputs, ...]:
    return tuple(Inputs((torch.randn(4, 8),)) for _ in range(count))


def traits_of(forward: Forward, **kept: Any) -> ModelTraits:
    return understand(Model(forward, **kept).eval(), inputs()).traits


IDS = map(str, itertools.count())


def test_a_text_of_each_call_is_noted_as_such() -> None:
    def forward(m: Any, x: torch.Tensor) -> Any:
        return {"y": m.linear(x), "id": next(IDS), "name": "head"}

    understood = understand(Model(forward).eval(), inputs())
    assert isinstance(understood.answer, Returned) and understood.traits == ModelTraits()
    known, later = understood.answer, call(Model(forward), inputs()[0])
    assert isinstance(later, Returned) and later.constants == known.constants
    assert later.constants == {"['id']": VARIES, "['name']": "'head'"}
    (x,) = known
    assert not match([later], [known])[1] and "changes from call to call" in match([(x,)], [known])[1]
    understand(Model(lambda m, x: {"id": "1", "y": m.linear(x)}), inputs())
    assert not VARYING_TEXTS


def test_a_model_that_computes_its_outputs_from_its_inputs_has_no_traits_and_is_called_twice() -> None:
    CALLED.clear()
    assert traits_of(lambda m, x: m.linear(x)) == ModelTraits()
    assert len(CALLED) == 2


NOTES.generator = torch.Generator().manual_seed(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: F.dropout(m.linear(x), 0.5, training=True),
        lambda m, x: m.linear(x) + torch.randn_like(x),
        lambda m, x: m.linear(x) * random.random(),
        lambda m, x: m.linear(x) * np.random.rand(),
        lambda m, x: m.linear(x) if random.random() > 0.1 else x,
        lambda m, x: m.linear(x) if torch.rand(1) > 0.5 else x,
    ],
)
def test_a_random_model_repeats_with_the_seed(forward: Forward) -> None:
    found = traits_of(forward)
    assert (found.is_random, found.repeats_with_seed, found.state) == (True, True, ())


@pytest.mark.parametrize(("seconds", "tried"), [(0.0, 4), (60.0, 32)])
def test_a_slow_model_that_draws_numbers_in_vain_is_tried_with_fewer_seeds(
    seconds: float, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    answer = ReplayableModule.answer

    def noting(stage: ReplayableModule, given: Inputs, seed: int) -> Any:
        seeds.append(seed)
        return answer(stage, given, seed)

    monkeypatch.setattr(ReplayableModule, "answer", noting)
    monkeypatch.setattr("bakeoff.truth.distribution.MAX_SECONDS", seconds)
    assert not traits_of(lambda m, x: m.linear(x) if random.random() < 1 else x).is_random
    assert len(set(seeds)) == tried


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator().manual_seed(1), lambda generator: torch.randn(4, 8, generator=generator)),
        (np.random.default_rng(1), lambda generator: float(generator.normal())),
        (np.random.RandomState(1), lambda generator: float(generator.normal())),
        (random.Random(1), lambda generator: generator.random()),
    ],
)
def test_a_generator_of_the_models_own_is_restored_like_a_state(generator: Any, draw: Callable[[Any], Any]) -> None:
    found = traits_of(lambda m, x: m.linear(x) + draw(m.generator), generator=generator)
    assert (found.is_random, found.repeats_with_seed) == (True, True)
    assert found.state == ("random generator attribute generator",)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.linear(x) * (1 + int.from_bytes(os.urandom(4))),
        lambda m, x: m.linear(x) * (1 + m.draws.random()),
        lambda m, x: m.linear(x) + torch.randn(4, 8, generator=NOTES.generator),  # type: ignore[attr-defined]
    ],
)
def test_what_no_seed_repeats_is_told(forward: Forward) -> None:
    found = traits_of(forward, draws=random.SystemRandom())
    assert (found.is_random, found.repeats_with_seed) == (True, False)


def fills_a_part(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.new_empty(4, 16)
    y[:, :8] = m.linear(x)
    return y[:, :8] * 2, y[:, 4:]


def test_memory_that_nothing_wrote_is_found() -> None:
    found = traits_of(fills_a_part)  # type: ignore[arg-type]
    assert (found.unwritten, found.varying, found.is_random) == (("output[1]",), ("output[1]",), True)


def test_memory_that_nothing_wrote_and_a_mask_hides_is_no_answer() -> None:
    mask = torch.tensor([1.0] * 8 + [0.0] * 8)
    with FillUnwritten(2.0):  # what memory holds may be NaN
        assert traits_of(lambda m, x: torch.cat([m.linear(x), x.new_empty(4, 8)], 1) * mask) == ModelTraits()


def changes_its_weights(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    with torch.inference_mode():
        m.linear.weight.add_(0.01 * y.mean(0))
    return y


def test_weights_that_a_call_changes_are_state_and_are_put_back() -> None:
    found = traits_of(changes_its_weights)
    assert (found.state, found.is_random) == (("parameter linear.weight",), False)


@pytest.mark.parametrize(("state", "is_put_back"), [("parameter linear.weight", True), ("buffer past", False)])
def test_weights_that_no_call_changes_are_neither_copied_nor_put_back(state: str, is_put_back: bool) -> None:
    model = Model(lambda m, x: x)
    before = model.linear.weight.clone()
    calls = AlikeCalls(model, ModelTraits(state=(state,)))
    model.linear.weight.add_(1.0)
    calls.begin()
    assert torch.equal(model.linear.weight, before) is is_put_back


def test_keys_that_hold_weights_have_short_names() -> None:
    seen: dict[Any, int] = {nn.Parameter(torch.ones(3)): 0, "a" * 100: 0, "b": 0}
    state = ModuleState(Model(lambda m, x: x, seen=seen))
    seen.update(dict.fromkeys(seen, 1))
    assert state.changed() == ("attribute seen[Parameter 0]", "attribute seen[str 1]", "attribute seen['b']")


def overwrites_a_buffer(m: Any, x: torch.Tensor) -> torch.Tensor:
    joined = x + m.past
    m.past.copy_(x)
    return m.linear(joined)


def replaces_an_attribute(m: Any, x: torch.Tensor) -> torch.Tensor:
    joined = x if m.before is None else x + m.before
    m.before = x.clone()
    return m.linear(joined)


def appends_to_a_cache(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.cache["keys"].append(x.clone())
    return m.linear(torch.stack(m.cache["keys"]).mean(0))


def counts(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return m.linear(x) * m.step


def keeps_a_tuple(m: Any, x: torch.Tensor) -> torch.Tensor:
    hidden, m.before = (0 if m.before is None else m.before[0]), (m.linear(x),)
    return m.linear(x + hidden)


def keeps_the_largest(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.past = torch.maximum(m.past, x)
    return m.linear(m.past)


def counts_in_a_large_array(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.table[7] += 1
    return m.linear(x) * float(m.table[7])


def replaces_a_member(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.seen.add(number := m.seen.pop() + 1)
    return m.linear(x) * number


def counts_by_an_iterator(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) * next(m.steps)


@pytest.mark.parametrize(
    ("forward", "kept", "named"),
    [
        (overwrites_a_buffer, {"past": nn.Buffer(torch.zeros(4, 8))}, "buffer past"),
        (replaces_an_attribute, {"before": None}, "attribute before"),
        (keeps_a_tuple, {"before": None}, "attribute before"),
        (appends_to_a_cache, {"cache": {"keys": []}}, "attribute cache['keys']"),
        (counts, {"step": 0}, "attribute step"),
        (keeps_the_largest, {"past": torch.full((4, 8), -9.0)}, "attribute past"),
        (counts_in_a_large_array, {"table": np.zeros(1_000_003)}, "attribute table"),
        (lambda m, x: m.linear(x * m.held[0].add_(1)), {"held": (torch.ones(1),)}, "attribute held[0]"),
        (replaces_a_member, {"seen": {1}}, UNNAMED),
        (counts_by_an_iterator, {"steps": itertools.count(3, 2)}, "attribute steps"),
    ],
)
def test_state_is_named_and_the_model_is_left_as_it_was(forward: Forward, kept: dict[str, Any], named: str) -> None:
    model = Model(forward, **kept).eval()
    before = ModuleState(model)
    found = understand(model, inputs()).traits
    assert (found.state, found.is_random) == ((named,), False)
    assert not before.changed()


def divides_by_the_largest(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.past.copy_(torch.maximum(m.past, x.abs().amax()))
    return m.linear(x) / m.past


def test_a_kept_maximum_is_state_where_other_inputs_lie_within_the_first() -> None:
    x = torch.randn(4, 8)
    model = Model(divides_by_the_largest, past=nn.Buffer(torch.zeros(()))).eval()
    found = understand(model, (Inputs((x,)), Inputs((x.roll(1) * 0.9,)))).traits
    assert (found.state, found.is_random) == (("buffer past",), False)


def fills_a_table(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.table is None:
        m.table = torch.arange(8.0)
    return m.linear(x) + m.table


def counts_its_calls(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.step += 1
    return m.linear(x)


@pytest.mark.parametrize(
    ("forward", "kept", "accesses"),
    [
        (fills_a_table, {"table": None}, ()),
        (counts_its_calls, {"step": 0}, (Access(kind=AccessKind.ATTRIBUTE, name="attribute step"),)),
    ],
)
def test_what_no_answer_depends_on_is_no_state(
    forward: Forward, kept: dict[str, Any], accesses: tuple[Access, ...]
) -> None:
    assert traits_of(forward, **kept) == ModelTraits(accesses=accesses)


def hands_on(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.handed_on.put(1)
    return m.linear(x)


def test_threads_of_a_pool_are_no_state_and_do_not_grow() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = traits_of(lambda m, x: m.linear(m.pool.submit(x.add, 1).result()), pool=pool)
    assert found == ModelTraits()


def test_a_queue_that_is_filled_grows() -> None:
    for made in (queue.Queue, queue.SimpleQueue):
        traits = traits_of(hands_on, handed_on=made())
        assert [name.partition(".")[0] for name in traits.grows] == ["attribute handed_on"]
        assert traits.accesses and not traits.state


CALLS = 0
PAST: list[torch.Tensor] = []


class WithVariables(nn.Module):
    """Counts in a variable of its file, and answers by another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        return x * CALLS + (PAST[-1] if PAST else 0)


class OnlyCounts(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        OnlyCounts.calls += 1
        return x


def test_variables_of_the_models_file_are_state_or_an_effect() -> None:
    before = CALLS
    assert understand(WithVariables(), inputs()).traits.state == ("variable CALLS",)
    assert before == CALLS, "they are put back"
    assert understand(OnlyCounts(), inputs()).traits.accesses == (
        Access(kind=AccessKind.ATTRIBUTE, name="variable OnlyCounts.calls"),
        Access(kind=AccessKind.ATTRIBUTE, name="variable CALLS"),
    )
    assert OnlyCounts.calls == 0


COUNTED = np.zeros(1)


def counting_helper(x: torch.Tensor) -> torch.Tensor:
    COUNTED[0] += 1
    return x * float(COUNTED[0])


def counting_attribute(x: torch.Tensor) -> torch.Tensor:
    counting_attribute.calls += 1  # type: ignore[attr-defined]
    return x * counting_attribute.calls  # type: ignore[attr-defined, no-any-return]


counting_attribute.calls = 0  # type: ignore[attr-defined]


def counting_from_none(x: torch.Tensor) -> torch.Tensor:
    function: Any = counting_from_none
    function.calls = getattr(function, "calls", 0) + 1
    return x * function.calls  # type: ignore[no-any-return]


def counting_default(self: nn.Module, x: torch.Tensor, calls: list[int] = [0]) -> torch.Tensor:  # noqa: B006
    calls[0] += 1
    return x * calls[0]


@dataclass(slots=True, frozen=True)
class Steps:
    taken: int = 0


STEPS = Steps()


def counting_slot(x: torch.Tensor) -> torch.Tensor:
    object.__setattr__(STEPS, "taken", STEPS.taken + 1)
    return x * STEPS.taken


OF_THREAD = threading.local()


def counting_in_its_thread(x: torch.Tensor) -> torch.Tensor:
    OF_THREAD.calls = getattr(OF_THREAD, "calls", 0) + 1
    return x * OF_THREAD.calls


IN_CONTEXT = ContextVar("IN_CONTEXT", default=0)


def counting_in_its_context(x: torch.Tensor) -> torch.Tensor:
    IN_CONTEXT.set(IN_CONTEXT.get() + 1)
    return x * IN_CONTEXT.get()


class Counter:
    calls = 0

    @classmethod
    def count(cls) -> int:
        cls.calls += 1
        return cls.calls


class Tally:
    def __init__(self) -> None:
        self.calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls


def calling(count: Callable[[], int]) -> type[nn.Module]:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * count()

    return Inner


METERED = [0]


class Meter:
    def count(self) -> int:
        METERED[0] += 1
        return METERED[0]


METER = Meter()


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = partial(counting_default, self, calls=[0])
        self.forward = lambda x: self.count(x)


def counting_closure() -> type[nn.Module]:
    calls = 0

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return x * calls

    return Inner


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (type("Array", (nn.Module,), {"forward": lambda self, x: counting_helper(x)}), "variable COUNTED"),
        (
            type("Attribute", (nn.Module,), {"forward": lambda self, x: counting_attribute(x)}),
            "variable counting_attribute.calls",
        ),
        (
            type("New", (nn.Module,), {"forward": lambda self, x: counting_from_none(x)}),
            "variable counting_from_none.calls",
        ),
        (type("Default", (nn.Module,), {"forward": counting_default}), "variable default 0 of counting_default[0]"),
        (counting_closure(), "variable calls of forward"),
        (type("InSlots", (nn.Module,), {"forward": lambda self, x: counting_slot(x)}), "variable STEPS.taken"),
        (
            type("InThread", (nn.Module,), {"forward": lambda self, x: counting_in_its_thread(x)}),
            "variable OF_THREAD.calls",
        ),
        (
            type("InContext", (nn.Module,), {"forward": lambda self, x: counting_in_its_context(x)}),
            "variable IN_CONTEXT",
        ),
        (
            type("InClass", (nn.Module,), {"forward": lambda self, x: x * Counter.count()}),
            "variable Counter.calls",
        ),
        (type("InMethod", (nn.Module,), {"forward": lambda self, x: x * METER.count()}), "variable METERED[0]"),
        (Held, "attribute count.keywords['calls'][0]"),
        (calling(Tally().count), "variable count of forward.calls"),
        (calling(partial(Tally.count, Tally())), "variable count of forward.args[0].calls"),
    ],
)
def test_state_in_helpers_closures_and_defaults_is_named_and_put_back(kind: type[nn.Module], named: str) -> None:
    model = kind()
    assert understand(model, inputs()).traits.state == (named,)
    (given,) = inputs()[0].tensors()
    assert torch.equal(model(given), given), "the first call counts one again"


class Exchanging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.one, self.other = self.other, self.one
        return cast("torch.Tensor", self.one(x))


def test_modules_that_a_call_exchanges_are_state_and_are_put_back() -> None:
    model = Exchanging()
    first = model.one
    traits = understand(model, inputs()).traits
    assert traits.state == ("parameter one.weight", "parameter other.weight") and not traits.is_random
    assert model.one is first


class Streaming(nn.Module):
    """Keeps tensors that are no buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.past, self.calls = torch.zeros(4, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = x + self.past
        self.past = x
        self.calls += 1
        return answer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_state_of_a_script_is_named_and_put_back() -> None:
    script: nn.Module = torch.jit.script(Streaming())  # type: ignore[no-untyped-call]
    assert understand(script, inputs()).traits.state == ("attribute calls", "attribute past")
    assert (script.calls, float(script.past.abs().sum())) == (0, 0.0)


STARTED = datetime.datetime.now()


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.linear(x) * 0.99 ** (time.time() % 1000),
        lambda m, x: m.linear(x) + int(time.time()) // 20 % 7,
        lambda m, x: m.linear(x) + time.localtime().tm_yday,
        lambda m, x: m.linear(x) + datetime.datetime.now().toordinal(),
        lambda m, x: m.linear(x) + email.utils.localtime().toordinal(),  # which reads the clock in the library
        lambda m, x: m.linear(x) + (datetime.datetime.now().hour == (STARTED.hour - 3) % 24),
        lambda m, x: m.linear(x) + (datetime.date.today().weekday() == (STARTED.weekday() - 2) % 7),
        lambda m, x: m.linear(x) + (time.localtime().tm_mon == (STARTED.month + 5) % 12 + 1),
        lambda m, x: m.linear(x) + 1e6 * (time.perf_counter() - time.perf_counter()),
    ],
)
def test_an_answer_that_depends_on_the_time_is_understood_with_a_stopped_clock(forward: Forward) -> None:
    model = Model(forward).eval()
    clock_s = understand(model, inputs()).traits.clock_s
    assert clock_s == pytest.approx(time.time(), abs=60)
    with clock_at(clock_s):
        assert understand(model, inputs()).traits == ModelTraits(accesses=(CLOCK,), clock_s=clock_s)


def halves_until_a_time(m: Any, x: torch.Tensor) -> torch.Tensor:
    y, end_s = x, time.perf_counter() + 0.005
    while time.perf_counter() < end_s:
        y = y / 2 + 1
    return y


def test_a_model_that_loops_until_a_time_ends_with_a_stopped_clock() -> None:
    model, (first, *_) = Model(halves_until_a_time), inputs()
    with clock_at(time.time()):
        assert torch.equal(*call(model, first), *call(model, first))
    # after many steps, one more changes nothing
    assert understand(model, inputs()).traits.clock_s == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize(("reads_before", "lasts_s"), [(0, 3600.0), (1000, 5.0), (0, 400 * 86400.0)])
def test_a_stopped_clock_goes_on_until_any_time(reads_before: int, lasts_s: float) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(reads_before):
            time.monotonic()
        end_s = time.monotonic() + lasts_s
        seen_s = list(itertools.takewhile(lambda now_s: now_s < end_s, (time.monotonic() for _ in range(20_000))))
        return x * len(seen_s)

    given = Inputs((torch.ones(1),))
    with clock_at(time.time()):
        (reads,) = call(Model(forward), given)
    assert reads < 10_000


def test_a_list_of_times_grows() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.times.append(time.time())
        return m.linear(x)

    found = traits_of(forward, times=[])
    assert (found.grows, found.clock_s) == (("attribute times",), None)
    assert found.accesses == (Access(kind=AccessKind.ATTRIBUTE, name="attribute times"),)


def in_its_own_type(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        return m.linear(x)


def test_an_autocast_of_the_models_own_is_named() -> None:
    assert traits_of(in_its_own_type) == ModelTraits(autocasts=("bfloat16",))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.linear(x) + 0 * time.time(),
        lambda m, x: m.linear(x) * (1 + time.time() * 0 + int.from_bytes(os.urandom(4))),
    ],
)
def test_a_model_that_reads_the_clock_and_answers_by_something_else_is_called_as_ever(forward: Forward) -> None:
    found = traits_of(forward)
    assert (found.clock_s, found.accesses) == (None, ())


def test_what_grows_from_call_to_call_is_named() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.history.append(x.mean().item())
        return m.linear(x)

    assert traits_of(forward, history=[]).grows == ("attribute history",)
    assert traits_of(fills_a_table, table=None).grows == ()


def test_restoring_keeps_the_identity_of_tensors_and_containers() -> None:
    cache: dict[str, list[torch.Tensor]] = {"keys": [torch.zeros(2)]}
    model = Model(appends_to_a_cache, cache=cache, past=nn.Buffer(torch.zeros(4, 8)))
    state, past, keys = ModuleState(model), model.past, cache["keys"]
    model.past.add_(1)
    keys[0].add_(1)
    keys.append(torch.ones(2))
    model.new = torch.ones(1)
    assert state.changed() == (
        "buffer past",
        "attribute cache['keys']'s length",
        "attribute cache['keys'][0]",
        "attribute cache['keys'][1]",
        "attribute new",
    )
    state.restore()
    assert not state.changed()
    assert model.past is past and model.cache["keys"] is keys and not hasattr(model, "new")


class FrozenConfig(OrderedDict[str, Any]):
    """Refuses changes once it is made, as the configuration of a model of diffusers does."""

    def __init__(self, **content: Any) -> None:
        super().__init__(content)
        self.is_frozen = True

    def __setitem__(self, name: str, value: Any) -> None:
        if hasattr(self, "is_frozen"):
            raise TypeError("it is frozen")
        super().__setitem__(name, value)

    update = __setitem__  # type: ignore[assignment]


def test_a_dict_that_refuses_changes_is_put_back() -> None:
    model = Model(lambda m, x: m.linear(x), config=FrozenConfig(width=8, sizes=[1, 2]))
    state, config = ModuleState(model), model.config
    config["sizes"].append(3)
    OrderedDict.move_to_end(config, "width")
    state.restore()
    assert model.config is config and list(config.items()) == [("width", 8), ("sizes", [1, 2])]


def captures_by_a_hook_of_its_first_call(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not hasattr(m, "is_hooked"):
        m.linear.register_forward_hook(lambda *call: m.found.append(call[-1]))
        m.is_hooked = True
    m.found = []
    return m.linear(x), torch.stack(m.found)


def test_hooks_are_put_back_together_with_the_attribute_that_tells_of_them() -> None:
    model = Model(captures_by_a_hook_of_its_first_call).eval()
    answers = [run_eager(model, inputs(), traits=understand(model, inputs()).traits) for _ in range(2)]
    assert {tuple(captured.shape) for answer in answers for _, captured in answer} == {(1, 4, 8)}
    state, hooks = ModuleState(model), model.linear._forward_hooks
    mine = model.linear.register_forward_hook(lambda *call: None)
    state.restore()
    assert model.linear._forward_hooks is hooks and mine.id not in hooks


def test_an_object_that_holds_itself_is_followed_once() -> None:
    class Config:
        pass

    config = Config()
    config.parent = config  # type: ignore[attr-defined]
    model = Model(lambda m, x: m.linear(x), config=config)
    state = ModuleState(model)
    state.restore()
    assert not state.changed()


@pytest.mark.parametrize("forward", [lambda m, x: m.linear(x.div_(255)), lambda m, x: m.linear(x[0].add_(1))])
def test_inputs_that_are_written_are_named_and_the_given_ones_are_spared(forward: Forward) -> None:
    sets = inputs()
    kept = [one.tensors()[0].clone() for one in sets]
    assert understand(Model(forward), sets).traits.written_inputs == ("input 0",)
    assert all(torch.equal(one.tensors()[0], before) for one, before in zip(sets, kept, strict=True))


# --- decisions


def deciding(forward: Forward, sets: tuple[Inputs, ...] | None = None) -> Deciding:
    model, sets = Model(forward).eval(), sets or inputs()
    with ReadingWatch(sets[0].tensors()) as watch:
        call(model, sets[0])
    return decisions_of(watch, model, sets, AlikeCalls(model, ModelTraits()))


def exits_early(m: Any, x: torch.Tensor) -> torch.Tensor:
    logits = m.linear(x)
    if logits.softmax(-1).max() > 0.99:
        return logits
    return m.linear(torch.relu(logits))


def loops_by_a_value(m: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int((x > 0).sum() > 20)):
        x = m.linear(x)
    return x


def test_a_branch_by_values_is_found_with_its_line_and_inputs_that_go_the_other_way() -> None:
    found = deciding(exits_early)
    (decision,) = found.decisions
    assert decision.code == "if logits.softmax(-1).max() > 0.99:"
    assert decision.place == f"test_traits.py, line {exits_early.__code__.co_firstlineno + 2}"
    assert decision.goes_both_ways and found.probes
    model = Model(exits_early)
    assert any(model.linear(probe.args[0]).softmax(-1).max() > 0.99 for probe in found.probes)


def test_a_search_that_takes_too_long_ends_with_the_lines_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MAX_SEARCH_S", 0.0)
    found = deciding(exits_early)
    assert [decision.goes_both_ways for decision in found.decisions] == [False] and not found.probes


EXPERTS = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
TABLE = nn.Embedding(10, 8)


def takes_another_expert(m: Any, x: torch.Tensor) -> torch.Tensor:
    return EXPERTS[int(x.mean(0)[:4].argmax())](x)  # type: ignore[no-any-return]


def returns_a_count(m: Any, x: torch.Tensor) -> Any:
    return m.linear(x), int((x > 50).sum())


def goes_by_mask(m: Any, mask: torch.Tensor) -> torch.Tensor:
    return m.linear(mask.float()) if 0 < mask.sum() < mask.numel() else mask.float()


def goes_by_token(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(TABLE(x)) if x.max() < 7 else TABLE(x)


def refuses_other_inputs(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(m.not_there(x) if x.abs().max() > 50 or not x.any() else x)


def goes_by_size(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) if x.shape[0] > 2 and x.dim() == 2 else x


def goes_by_weights(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) if m.linear.weight.abs().max() > 0 else x


def skips_without_hits(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) if len(x[x > 50]) else x


def skips_unused_experts(m: Any, x: torch.Tensor) -> torch.Tensor:
    rows, _ = torch.where(x > 50)
    return m.linear(x) if rows.numel() else x


def skips_unhit_rows(m: Any, x: torch.Tensor) -> torch.Tensor:
    rows = (x[:, 0] > 50).nonzero().squeeze(-1).to(torch.int32)
    return m.linear(x) if rows[:].numel() else x


def drops_without_hits(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.linear(x) if x.masked_select(x > 50).shape[0] > 0 else x


def keeps_one_of_two(m: Any, x: torch.Tensor) -> torch.Tensor:
    kept = []
    kept.append(m.linear(x) if x.max() < 50 else x)
    return torch.cat(kept)


def binds_what_it_checks(m: Any, x: torch.Tensor) -> torch.Tensor:
    if (peak := float(x.max())) != peak:
        raise ValueError("not a number")
    return m.linear(x) if peak < 50 else x


@pytest.mark.parametrize(
    ("forward", "given", "goes_both_ways"),
    [
        (loops_by_a_value, [], [True]),
        (keeps_one_of_two, [], [True]),
        (binds_what_it_checks, [], [True]),
        (takes_another_expert, [], [True]),
        (returns_a_count, [], [True]),
        (skips_without_hits, [], [True]),
        (skips_unused_experts, [], [True]),
        (skips_unhit_rows, [], [True]),
        (drops_without_hits, [], [True]),
        (goes_by_mask, [torch.ones(4, 8).bool()], [True]),
        (goes_by_mask, [torch.zeros(4, 8).bool()], [True]),
        (goes_by_token, [torch.tensor([[3, 4, 6]]), torch.tensor([[3, 3, 5]])], [False]),  # in the range of both
        (refuses_other_inputs, [], [False]),
        (goes_by_size, [], []),
        (goes_by_weights, [], []),
    ],
)
def test_a_decision_by_values_is_tried_with_inputs_that_go_the_other_way(
    forward: Forward, given: list[torch.Tensor], goes_both_ways: list[bool]
) -> None:
    found = deciding(forward, tuple(Inputs((tensor,)) for tensor in given))
    assert [decision.goes_both_ways for decision in found.decisions] == goes_both_ways
    assert bool(found.probes) == any(goes_both_ways)
    assert all(decision.function == forward.__name__ for decision in found.decisions)


TOKENS = torch.tensor([[3, 4, 6], [5, 3, 4]])


@pytest.mark.parametrize(
    ("forward", "given", "ends"),
    [
        (lambda m, x: TABLE(x) * (x != 0)[..., None], TOKENS, [0]),
        (lambda m, x: TABLE(x) * x.long().view(-1).gt(torch.tensor(1)).view(2, 3, 1), TOKENS.int(), [1]),
        (lambda m, x: TABLE(x) * (x >= 1)[..., None], TOKENS[:1].expand(2, 3), [0]),
        (lambda m, x: TABLE(x.clamp(0)) * (x[:, 1:] == -100).any() + (x == 9).any(), TOKENS, [-100, 9]),
        (lambda m, x: TABLE(x) * (x != 4)[..., None], TOKENS, []),  # which they hold
        (lambda m, x: TABLE(x) * (x != -1)[..., None], TOKENS, []),  # which the table does not take
        (lambda m, x: TABLE(x) * (x + 1 != 0)[..., None], TOKENS, []),  # another number
        (lambda m, x: TABLE(x) * (x != 0.5)[..., None], TOKENS, []),
    ],
)
def test_inputs_get_a_number_that_they_are_compared_with(
    forward: Forward, given: torch.Tensor, ends: list[int]
) -> None:
    found = deciding(forward, (Inputs((given,)),))
    assert not found.decisions and len(found.probes) == bool(ends)
    for probe in found.probes:
        (tensor,) = probe.tensors()
        assert tensor[:, 3 - len(ends) :].tolist() == [ends[::-1]] * 2
        assert torch.equal(tensor[:, : 3 - len(ends)], given[:, : 3 - len(ends)])


def test_a_number_that_inputs_are_compared_with_may_take_another_branch() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return TABLE(x) * 2 if (x == 9).any() else TABLE(x)

    (decision,) = deciding(forward, (Inputs((TOKENS,)),)).decisions
    assert decision.goes_both_ways


def test_a_mask_hides_a_part_and_not_everything() -> None:
    def forward(m: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return m.linear(x) if mask.all() else m.linear(x * mask[..., None])

    found = deciding(forward, (Inputs((torch.rand(2, 4, 8), torch.ones(2, 4, dtype=torch.long))),))
    assert [probe.args[1].tolist() for probe in found.probes] == [[[1, 1, 0, 0]] * 2]


def test_inputs_whose_answer_is_nan_are_no_probes_though_a_watched_call_gives_numbers() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()

    def forward(m: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mask.all():
            return m.layer(x)
        return m.layer(x, src_key_padding_mask=~mask)

    model = Model(forward, layer=layer).eval()
    sets = [Inputs((torch.randn(1, 4, 8), torch.ones(1, 4, dtype=torch.bool)))]
    with torch.no_grad():
        with ReadingWatch(sets[0].tensors()) as watch:
            call(model, sets[0])
        found = decisions_of(watch, model, sets, AlikeCalls(model, ModelTraits()))
        assert all(torch.isfinite(call(model, probe)[0]).all() for probe in found.probes)
        masked = Inputs((sets[0].args[0], torch.zeros(1, 4, dtype=torch.bool)))
        assert not torch.isfinite(call(model, masked)[0]).all()


def test_values_that_are_only_checked_or_printed_decide_nothing() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        assert x.isfinite().all(), "not finite"
        if x.max() > 1e30:
            raise ValueError("too large")
        m.seen.append(x.mean().item())
        lengths = (x[:, 0].long() % 2 + 1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None].expand(-1, 2, -1), lengths, True, enforce_sorted=False)
        return torch.distributions.Normal(m.gru(packed)[1], x.exp()).mean

    model, sets = Model(forward, seen=[], gru=nn.GRU(8, 8)).eval(), inputs()
    with ReadingWatch(sets[0].tensors()) as watch:
        call(model, sets[0])
    assert watch.decisions == ()


def test_what_fails_in_looking_at_a_model_is_not_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: ModuleState) -> tuple[str, ...]:
        raise NotImplementedError("no such comparison")

    monkeypatch.setattr(ModuleState, "changed", fails)
    found = understand(Model(lambda m, x: m.linear(x)).eval(), inputs())
    assert found.traits == ModelTraits(unexamined="NotImplementedError: no such comparison")
    assert found.answer[0].shape == (4, 8)


def test_what_the_model_itself_raises_is_its_own() -> None:
    with pytest.raises(AttributeError, match="not_there"):
        traits_of(lambda m, x: m.not_there(x))


def stays_if_close(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x if torch.allclose(x, m.linear(x)) else m.linear(x)


@pytest.mark.parametrize("forward", [exits_early, stays_if_close])
def test_a_trace_tells_what_it_froze_but_not_the_sizes_that_it_read(forward: Forward) -> None:
    model, sets = Model(forward).eval(), inputs()
    with ReadingWatch(sets[0].tensors()) as watch:
        call(model, sets[0])
    with noting_frozen_choices() as frozen:
        torch.jit.trace(model, sets[0].args, check_trace=False)
    assert frozen.among(watch.decisions) == watch.decisions != ()

    def by_size(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.linear(x) if x.shape[0] > 2 else x

    with noting_frozen_choices() as frozen:
        torch.jit.trace(Model(by_size), sets[0].args, check_trace=False)
    assert frozen.among(deciding(by_size).decisions) == ()


OUTSIDE_OF_IT: list[torch.Tensor] = []


@pytest.mark.parametrize(("holds", "grows"), [(0, False), (1, False), (100, True)])
def test_a_list_outside_of_the_module_is_found_if_it_grows(holds: int, grows: bool) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        OUTSIDE_OF_IT.append(m.linear(x).detach())
        del OUTSIDE_OF_IT[: len(OUTSIDE_OF_IT) - holds]
        return m.linear(x).relu()

    model = Model(forward).eval()
    assert leaves_more_behind(model, inputs()[0], AlikeCalls(model, ModelTraits())) == grows
    OUTSIDE_OF_IT.clear()


def test_one_tensor_that_each_call_fills_does_not_grow() -> None:
    filled = torch.zeros(4, 8)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return filled.copy_(m.linear(x))

    model = Model(forward).eval()
    assert not leaves_more_behind(model, inputs()[0], AlikeCalls(model, ModelTraits()))


# --- rounding


@pytest.mark.parametrize(
    ("eager", "exact", "told"),
    [
        (torch.ones(3), torch.ones(3).double() * (1 + 1e-7), ""),
        (torch.zeros(5, 2), torch.zeros(4, 2), "output 0 has other shapes, (5, 2) and (4, 2),"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "output 0 has 1 of 2 whole numbers different"),
        (torch.tensor([1.0, 3e7]), torch.tensor([1.0, torch.inf]).double(), "not finite at the same places"),
        (torch.ones(3), torch.ones(3).double() * 1.1, "is 0.091 times its own size off what float64 gives"),
        (torch.ones(3), torch.ones(3).double() * 1.001, "is 0.001 times its own size off what float64 gives"),
    ],
)
def test_an_answer_that_depends_on_rounding_is_told(eager: torch.Tensor, exact: torch.Tensor, told: str) -> None:
    answers = [(eager,)], [(exact,)], Precision.FP32
    found = decided_by_rounding(*answers) or far_from_float64(*answers)
    assert told in found and bool(found) == bool(told)


@pytest.mark.parametrize(
    ("precision", "moved_by", "is_explained"),
    [
        (Precision.FP32, (1e-7, 0.2), True),
        (Precision.FP32, (1e-7, 0.05), False),
        (Precision.BF16, (1e-7, 0.2), True),
        (Precision.BF16, (1e-7, 1e-7), False),
    ],
)
def test_rounding_explains_an_error_if_noise_moves_the_answer_about_as_far(
    precision: Precision, moved_by: tuple[float, ...], is_explained: bool
) -> None:
    eager, exact = torch.ones(3), torch.ones(3).double() * 2
    noisy = [[(eager * (1 + by),)] for by in moved_by]
    assert far_from_float64([(eager,)], [(exact,)], precision)
    assert is_explained_by_rounding([(eager,)], [(exact,)], noisy, precision) == is_explained


@pytest.mark.parametrize(
    ("precision", "ours", "exact"),
    [
        (Precision.BF16, torch.ones(3, dtype=torch.bfloat16), torch.ones(3).double() * 1.1),
        (Precision.INT8, torch.tensor([1, 2]), torch.tensor([1, 3])),
    ],
)
def test_a_coarse_precision_is_allowed_its_own_rounding(
    precision: Precision, ours: torch.Tensor, exact: torch.Tensor
) -> None:
    answers = [(ours,)], [(exact,)], precision
    assert decided_by_rounding(*answers) == far_from_float64(*answers) == ""


# --- global settings


def test_changed_settings_are_told_and_put_in_force_elsewhere(tmp_path: Path) -> None:
    threads, before = torch.get_num_threads(), global_settings.read()
    try:
        torch.set_num_threads(threads + 1)
        torch.set_flush_denormal(True)
        changed, in_force = global_settings.changed_since(before), torch.get_num_threads()
        assert [(one.name, one.after) for one in changed] == [("threads", str(threads + 1)), ("flush-denormal", "on")]
        assert in_force == threads + 1
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
        assert global_settings.put_in_force(ModelTraits(settings=changed, threads=in_force)) == threads + 1
        assert global_settings.read()["flush-denormal"] == "on"
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("is_busy", "threads"), [(True, 1), (False, 3)])
def test_on_a_busy_machine_one_thread_does_what_is_not_timed(is_busy: bool, threads: int) -> None:
    before, own = torch.get_num_threads(), torch.get_num_threads
    try:
        torch.set_num_threads(3)
        with global_settings.threads_for_untimed_work(is_busy):
            assert own() == threads
        assert own() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "loading"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 2)])
def test_two_processes_that_load_side_by_side_have_no_more_threads_than_cores(threads: int, loading: int) -> None:
    before, own = torch.get_num_threads(), torch.get_num_threads
    try:
        torch.set_num_threads(threads)
        with global_settings.few_threads():
            assert own() == loading
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("asked", "in_force"), [(None, 5), (1, 1), (2, 2), (4, 4)])
def test_loading_takes_two_threads_and_a_file_that_sets_threads_is_heard(asked: int | None, in_force: int) -> None:
    threads, own = torch.get_num_threads(), (torch.get_num_threads, torch.set_num_threads)
    try:
        torch.set_num_threads(5)
        with global_settings.few_threads(), global_settings.few_threads():
            assert own[0]() == 2
            before = torch.get_num_threads()
            assert before == 5, "a model that asks sees what will be in force"
            torch.set_num_threads(1)
            assert (own[0](), torch.get_num_threads()) == (1, 1)
            torch.set_num_threads(before)
            assert own[0]() == 2, "one that sets it for a while changes nothing"
            if asked:
                torch.set_num_threads(asked)
            kept = torch.set_num_threads, torch.get_num_threads  # by a module that was imported meanwhile
        assert torch.get_num_threads() == in_force
        assert (torch.get_num_threads, torch.set_num_threads) == own
        kept[0](4)
        assert kept[1]() == torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(threads)


class Conditioned(nn.Module):
    """Adds a condition times a gate. It may use the condition for nothing, and keep a table that only fits one set."""

    def __init__(self, gate: float, is_used: bool, fits: float) -> None:
        super().__init__()
        self.gate, self.is_used, self.fits = gate, is_used, fits

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        if self.is_used and self.fits and float(x[0] - condition[0]) != self.fits:
            raise IndexError("they do not fit")
        return x + self.gate * condition if self.is_used else x + len(condition)


@pytest.mark.parametrize(
    ("gate", "is_used", "fits", "expected"),
    [
        (0.0, True, 0.0, ("input 1",)),
        (1e-12, True, 0.0, ("input 1",)),
        (1e-3, True, 0.0, ()),
        (0.0, False, 0.0, ()),
        (0.0, True, 1.0, ()),
    ],
    ids=["no effect", "less than rounding", "a little", "unused", "not taken apart"],
)
def test_inputs_that_move_no_output_alone_are_found(
    gate: float, is_used: bool, fits: float, expected: tuple[str, ...]
) -> None:
    module = Conditioned(gate, is_used, fits)
    sets = [Inputs((torch.arange(1.0, 5.0) + by, torch.arange(4.0) + by)) for by in range(2)]
    answers = [call(module, each) for each in sets]
    for traits in (ModelTraits(), ModelTraits(written_inputs=("input 0",))):  # then calls get copies
        assert inputs_without_effect(module, sets, AlikeCalls(module, traits), answers) == expected
    same = [sets[0], Inputs((sets[1].args[0], sets[0].args[1]))]
    assert inputs_without_effect(module, same[:1], AlikeCalls(module, ModelTraits()), answers[:1]) == ()
