"""A cell under load: its settings, turns and soak, with windows of a queue whose answer is known."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted_backends import Null

from bakeoff.backends.base import ServingKnobs
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.doubt import Stop
from bakeoff.judging.under_load import judge_load, soaks_of
from bakeoff.measuring.controller.load_rounds import search_ended
from bakeoff.measuring.controller.load_run import TURN_WINDOWS, CellUnderLoad, Round, is_settled
from bakeoff.measuring.controller.rate_search import NARROW, RateSearch
from bakeoff.measuring.messages import TakeLoad, TrafficWindow
from bakeoff.planning import load_plan
from bakeoff.planning.load_plan import USUAL_MIN_TIME_S, LoadPlan, Traffic, parse_objective
from bakeoff.records.load_samples import Load, LoadTurn, LoadWindow, Objective, ServingSettings, TriedSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Cell
from bakeoff.records.store import ContestSoFar
from bakeoff.records.text import counted, spell_rate
from bakeoff.reports import headline
from bakeoff.reports import load_report as load_sentences
from tests.support import scripted
from tests.support.golden import same_as_golden
from tests.support.scripted import INTERRUPT, Script, plan_of, run_contest, window_of_load

OBJECTIVE = Objective(percentile="p99", limit_ms=20.0)
SERVER = LoadPlan(Scenario.SERVER, 1, OBJECTIVE, soak_s=6.0)
CELL = Cell(model="mlp", dimensions={"batch": 1}, backend="null")


@dataclass
class Queue:
    """Answers windows as a queue does: latency rises without end towards the capacity of the settings."""

    capacity: Callable[[ServingSettings], float]
    fails_from_batch: int = 10**9
    orders: list[TakeLoad] = field(default_factory=list)

    def take(self, order: TakeLoad) -> TrafficWindow:
        self.orders.append(order)
        if order.settings.batch >= self.fails_from_batch:
            return TrafficWindow(window=None, reason="no memory")
        return TrafficWindow(window=window_of_load(order, self.capacity(order.settings)))

    def under(self, plan: LoadPlan = SERVER, cell: Cell = CELL) -> CellUnderLoad:
        return CellUnderLoad(plan, cell, self.take, latency_ms=2.0, threads=4)


def settings_of(under: CellUnderLoad) -> Load:
    *_, load = under.search_settings()
    return load


def by_instances(settings: ServingSettings) -> float:
    """Return the capacity of a backend that is best at two instances and gains nothing from batches."""
    return {1: 300.0, 2: 500.0, 4: 400.0}[settings.instances] - 10 * settings.batch


@dataclass
class Slow(Queue):
    """A queue whose requests take long: those with one instance, all that come at a rate, or those that come alone.

    A request that comes alone takes so many milliseconds at least in each further window.
    """

    fastest_ms: tuple[float, ...] = ()
    is_late: Callable[[TakeLoad], bool] = lambda order: False

    def take(self, order: TakeLoad) -> TrafficWindow:
        window = super().take(order).window
        if window and order.scenario is Scenario.SINGLE_STREAM and self.fastest_ms:
            assert order.shed_after_ms is None and order.quantile == 0.0
            place = sum(each.scenario is Scenario.SINGLE_STREAM for each in self.orders) - 1
            fastest_ms, requests = self.fastest_ms[place % len(self.fastest_ms)], 3 * order.min_requests
            window = window.model_copy(update={"objective_ms": fastest_ms, "requests": requests})
        if window and self.is_late(order):
            window = window.model_copy(update={"objective_ms": 100.0})
        return TrafficWindow(window=window)


def searches() -> dict[str, tuple[Queue, CellUnderLoad]]:
    """Return queues, and a cell that looks for the settings with which one of them carries most."""
    one_is_late = Slow(
        lambda settings: 400.0 - 10 * settings.batch, is_late=lambda order: order.settings.instances == 1
    )
    all_are_late = Slow(
        by_instances, fastest_ms=(21.0, 21.0, 19.0), is_late=lambda order: order.scenario is Scenario.SERVER
    )
    without_batch = CELL.model_copy(update={"dimensions": {}})
    strict = LoadPlan(Scenario.SERVER, 1, Objective(percentile="p99", limit_ms=3.0))
    queues = {
        "best with two instances": Queue(by_instances),
        "best with one instance": Queue(lambda settings: 1000.0 if settings.instances == 1 else 100.0),
        "settings that fail": Queue(by_instances, fails_from_batch=2),
        "a first layout that carries nothing": one_is_late,
        "no request that comes alone is quick enough": Slow(by_instances, fastest_ms=(21.0, 20.5)),
        "each request that comes alone is quick enough": Slow(by_instances, fastest_ms=(19.0,)),
        "the second request that comes alone is quick enough": Slow(by_instances, fastest_ms=(21.0, 19.0)),
        "requests that are slow at any rate": all_are_late,
    }
    found = {name: (queue, queue.under()) for name, queue in queues.items()}
    for name, more in {
        "no batch": {"cell": without_batch},
        "an objective that nothing meets": {"plan": strict},
    }.items():
        found[name] = (queue := Queue(by_instances), queue.under(**more))
    found["single calls that are quick enough"] = (
        queue := Queue(by_instances), CellUnderLoad(SERVER, CELL, queue.take, latency_ms=1.9, threads=4)
    )  # fmt: skip
    return found


def test_settings_are_searched_as_before() -> None:
    lines = []
    for name, (queue, under) in searches().items():
        load = settings_of(under)
        orders = Counter(f"{order.scenario}{' of nothing' if order.answers_nothing else ''}" for order in queue.orders)
        chosen = load.settings and f"{load.settings.instances} x {load.settings.threads}, batch {load.settings.batch}"
        lines += [
            f"## {name}: {chosen or load.reason}",
            f"windows: {', '.join(f'{n} {what}' for what, n in orders.items())}",
        ]
        for one in load.tried:
            found = f"{one.value:.4g}/s" if one.value else one.reason
            settings = f"{one.settings.instances} x {one.settings.threads}, batch {one.settings.batch}"
            lines.append(f"- {settings}: {found}, {counted(len(one.windows), 'window')}")
        lines += [f"- left out: {note}" for note in load.left_out]
    same_as_golden("searches.txt", "\n".join(lines))


@pytest.mark.parametrize(("gain", "chosen", "searched"), [(1.3, "high", 2), (1.02, "low", 1), (0.9, "low", 1)])
def test_options_are_compared_by_what_can_be_answered_at_most(
    monkeypatch: pytest.MonkeyPatch, gain: float, chosen: str, searched: int
) -> None:
    monkeypatch.setattr(Null, "serving", ServingKnobs(instance="session", options={"hint": ("low", "high")}))
    cell = CELL.model_copy(update={"dimensions": {}})

    def capacity(settings: ServingSettings) -> float:
        return (500.0 if settings.instances == 1 else 200.0) * (gain if settings.options["hint"] == "high" else 1.0)

    queue = Queue(capacity)
    load = settings_of(queue.under(cell=cell))
    assert load.settings is not None and load.settings.options == {"hint": chosen}
    of_one = [one for one in load.tried if one.settings.instances == 1]
    assert sum(one.value is not None for one in of_one) == searched
    assert all("times as many a second as the best settings" in one.reason for one in of_one if one.value is None)


def test_probes_of_a_quick_model_last_no_longer_than_a_window_once_its_requests_are_known() -> None:
    cell = CELL.model_copy(update={"dimensions": {"batch": 1}})
    queue = Queue(lambda settings: 100.0 * settings.instances)  # single calls promise 500 a second of each instance
    load = settings_of(queue.under(cell=cell))
    probes = [order for order in queue.orders if order.scenario is Scenario.OFFLINE]
    assert len(probes) > 5 and len(load.tried) > 3
    promised = [500.0 * order.settings.instances / (4 // order.settings.threads) for order in probes]
    shares = [order.rate / rate for order, rate in zip(probes, promised, strict=True)]
    assert shares[0] == 1.0, "nothing is known yet"
    answered = [100.0 * order.settings.instances / rate for order, rate in zip(probes, promised, strict=True)]
    for place in range(1, len(probes)):
        assert shares[place] == pytest.approx(min(1.0, 1.25 * max(answered[:place])))


def test_a_probe_that_was_just_taken_is_not_taken_again_and_two_that_agree_are_enough() -> None:
    queue = Queue(lambda settings: 500.0 if settings.instances == 1 else 100.0)
    load = settings_of(queue.under())
    (batches,) = [one for one in load.tried if one.settings.batch == 2]
    probes = [order.settings.batch for order in queue.orders if order.scenario is Scenario.OFFLINE]
    assert "1.00 times as many" in batches.reason and probes[-4:] == [2, 1, 1, 2]


@dataclass
class NoisyQueue(Queue):
    """A queue whose capacity differs from window to window, by a deviation of 15 %."""

    random: random.Random = field(default_factory=lambda: random.Random(7))

    def take(self, order: TakeLoad) -> TrafficWindow:
        noise = math.exp(self.random.gauss(0.0, 0.15))
        return TrafficWindow(window=window_of_load(order, noise * self.capacity(order.settings)))


def test_two_copies_on_a_noisy_machine_serve_alike() -> None:
    """One instance carries a fifth more than two. Two looks at each chose other settings in 12 of 40 searches."""

    def capacity(settings: ServingSettings) -> float:
        return {1: 400.0, 2: 330.0, 4: 300.0}[settings.instances] - 20 * settings.batch

    chosen = [settings_of(NoisyQueue(capacity, random=random.Random(seed)).under()).settings for seed in range(40)]
    assert sum(settings == ServingSettings(instances=1, threads=4) for settings in chosen) >= 34


@pytest.mark.parametrize(
    ("leads", "expected"),
    [
        ([0.3, 0.3], False),  # too few
        ([0.3, 0.28, 0.33], True),
        ([0.0, 0.01, -0.01], True),
        ([0.5, -0.3, 0.4], False),
        ([0.5, -0.3, 0.4, 0.2], True),  # there are no more
    ],
)
def test_looks_go_on_until_the_difference_is_clear(leads: list[float], expected: bool) -> None:
    assert is_settled(leads) is expected


def test_a_turn_takes_few_windows_and_finds_the_rate_again() -> None:
    queue = Queue(by_instances)
    under = queue.under()
    load = settings_of(under)
    queue.orders.clear()
    turn = under.turn(load, process=0, round_=Round(group=0, number=1, started_s=1.0))
    assert turn.value == pytest.approx(490 * 8 / 9, rel=0.05)
    assert len(queue.orders) == len(turn.windows) <= TURN_WINDOWS
    assert {order.seed for order in queue.orders} == {Round(0, 1, 0.0).seed}
    assert all(order.keeps_latencies for order in queue.orders)


def test_a_turn_does_not_look_far_below_the_rate_that_was_found() -> None:
    queue = Queue(by_instances)
    load = settings_of(queue.under())
    busy = Queue(lambda settings: 1.0)
    turn = busy.under().turn(load, 0, Round(group=0, number=0, started_s=0.0))
    assert turn.value is None
    rates = [order.rate for order in busy.orders]
    assert rates[0] == pytest.approx(490 * 8 / 9, rel=0.05)
    assert 0.1 * rates[0] < min(rates) < 0.3 * rates[0]


def waits_ms(
    rate: float, seconds: float, random_: random.Random, servers: int = 2, service_ms: float = 4.8
) -> list[float]:
    """Return the latencies of requests that come at random times and are answered by so many servers, in order."""
    due_ms, free_ms, found = 0.0, [0.0] * servers, []
    while (due_ms := due_ms + random_.expovariate(rate / 1e3)) < 1e3 * seconds:
        ready_ms = max(due_ms, heapq.heappop(free_ms)) + service_ms * random_.gauss(1, 0.1)
        heapq.heappush(free_ms, ready_ms)
        found.append(ready_ms - due_ms)
    return sorted(found)


@pytest.mark.parametrize("limit_ms", [20.0, 50.0])
def test_the_rate_of_short_windows_holds_in_a_long_run(limit_ms: float) -> None:
    random_ = random.Random(7)

    def take(order: TakeLoad) -> TrafficWindow:
        seconds = max(order.seconds, order.min_requests / order.rate)  # a window holds so many requests
        found = waits_ms(order.rate, seconds, random_)
        p99_ms = found[int(0.99 * len(found))]
        window = window_of_load(order, 1e9).model_copy(update={"p99_ms": p99_ms, "objective_ms": p99_ms})
        return TrafficWindow(window=window)

    plan = LoadPlan.of(Traffic.parse("server"), parse_objective(f"p99_ms<{limit_ms:g}"), 0.0, USUAL_MIN_TIME_S)
    under = CellUnderLoad(plan, CELL, take, latency_ms=4.8, threads=1)
    start = TriedSettings(settings=ServingSettings(), value=330.0)
    load = Load(scenario=plan.scenario, objective=plan.objective, settings=start.settings, tried=[start])
    for process in range(20):
        for number in range(plan.rounds_in(processes=20)):
            turn = under.turn(load, process, Round(0, number, 0.0))
            load = load.model_copy(update={"turns": [*load.turns, turn]})
    rate = statistics.geometric_mean([turn.value for turn in load.turns if turn.value])
    for share, holds in ((0.92, True), (1.02, False)):
        found = waits_ms(share * rate, 300.0, random_)
        assert (found[int(0.99 * len(found))] < limit_ms) is holds


def test_a_soak_lasts_as_long_as_asked_at_the_rate_found() -> None:
    queue = Queue(by_instances)
    under = queue.under()
    load = settings_of(under)
    load = load.model_copy(update={"turns": [under.turn(load, 0, Round(0, 1, 0.0))]})
    queue.orders.clear()
    assert len(under.soak(load, seed=9)) == len(queue.orders) == 6
    assert sum(order.seconds for order in queue.orders) == pytest.approx(6.0)
    assert {order.rate for order in queue.orders} == {load.turns[0].value}


@pytest.mark.parametrize(("late_of_hundred", "parts"), [(0, 6), (1, 6), (4, 2), (50, 1)])
def test_a_soak_ends_when_nothing_can_save_it(late_of_hundred: int, parts: int) -> None:
    queue = Queue(by_instances)
    load = settings_of(queue.under())
    load = load.model_copy(update={"turns": [queue.under().turn(load, 0, Round(0, 1, 0.0))]})

    def take(order: TakeLoad) -> TrafficWindow:
        window = queue.take(order).window
        latencies_us = [25_000] * late_of_hundred + [5_000] * (100 - late_of_hundred)
        return TrafficWindow(window=window.model_copy(update={"latencies_us": latencies_us}))

    soaked = CellUnderLoad(SERVER, CELL, take, latency_ms=2.0, threads=4).soak(load, seed=9)
    assert len(soaked) == parts
    assert soaks_of(load.model_copy(update={"soak": soaked}))[0].has_missed is (late_of_hundred > 1)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [(LoadPlan(Scenario.OFFLINE), 490.0), (LoadPlan(Scenario.SINGLE_STREAM), 500.0)],
    ids=["offline", "single-stream"],
)
def test_other_scenarios_need_one_window_a_turn(plan: LoadPlan, expected: float) -> None:
    queue = Queue(by_instances)
    under = queue.under(plan)
    load = settings_of(under)
    turn = under.turn(load, 0, Round(0, 1, 0.0))
    assert turn.value == expected and len(turn.windows) == 1


# --- in a contest


def test_a_search_that_takes_too_long_ends_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_plan, "WINDOWS_OF_SEARCH", 0)
    run = run_contest(tmp_path, {"eager": Script(), "null": Script()}, plan_of(1), load=SERVER)
    loads = [record.load for record in run.records.values()]
    assert all(load.settings is not None and load.turns for load in loads)
    assert all(search_ended(SERVER) in load.left_out and len(load.tried) == 1 for load in loads)
    assert not any("--budget" in text for load in loads for text in load.left_out), "there was none"


def test_a_log_reports_each_search_each_turn_and_each_soak_when_it_is_done(tmp_path: Path) -> None:
    scripts = {"eager": Script(level_ms=2.0), "null": Script(level_ms=1.0)}
    run = run_contest(tmp_path, scripts, plan_of(3), load=SERVER)
    said = [("at first, with", 2), ("serves best", 2), ("turn ", 3 * SERVER.rounds_in(3)), (" requests/s for ", 2)]
    assert [(words, sum(words in note for note in run.said)) for words, _ in said] == said
    looks = [place for place, note in enumerate(run.said) if "with 1 instance, by a first look" in note]
    assert sorted(run.said[place].split(" carries")[0] for place in looks) == ["eager", "null"]
    searches = [place for place, note in enumerate(run.said) if "serves best" in note]
    assert max(looks) < min(searches), "every cell has a rate before any looks for its settings"


def test_the_log_and_the_report_have_one_rate_of_a_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_shares = itertools.cycle([0.97, 0.99, 1.04])

    def window(order: TakeLoad, capacity: float) -> LoadWindow:
        made = window_of_load(order, capacity)
        return made.model_copy(update={"rate": made.rate * next(sent_shares)})

    monkeypatch.setattr(scripted, "window_of_load", window)
    scripts = {"eager": Script(level_ms=2.0), "null": Script(level_ms=1.0, slower_after_s=4.0)}
    run = run_contest(tmp_path, scripts, plan_of(3), load=LoadPlan(Scenario.SERVER, 1, OBJECTIVE, soak_s=30.0))
    found = judge_load(list(run.records.values()))
    soaks = [soak for cell in found.cells for soak in cell.soaks]
    told = [note.split(" serves ")[1].split(" requests/s for ")[0] for note in run.said if " requests/s for " in note]
    assert len(told) == 3 and sorted(told) == sorted(spell_rate(soak.rate) for soak in soaks)


def test_a_run_that_is_interrupted_in_a_search_keeps_its_first_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = CellUnderLoad._try

    def interrupted(self: CellUnderLoad, settings: ServingSettings, *more: object) -> TriedSettings:
        if settings.instances > 1:
            raise KeyboardInterrupt
        return attempt(self, settings, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(CellUnderLoad, "_try", interrupted)
    run = run_contest(tmp_path, {"eager": Script(), "null": Script()}, plan_of(3), load=SERVER)
    loads = [record.load for record in run.records.values() if record.load]
    assert [(len(load.tried), load.settings, load.turns) for load in loads] == [(1, None, [])] * 2
    judged = judge_load(list(run.records.values()))
    assert judged is not None and not judged.ranked


def test_what_is_known_under_load_is_on_disk_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_turn, on_disk = CellUnderLoad.turn, []

    def turn(self: CellUnderLoad, load: Load, process: int, round_: Round) -> LoadTurn:
        kept = (ContestSoFar.model_validate_json(path.read_text()) for path in tmp_path.rglob("so_far/*.json"))
        loads = [record.load for contest in kept for record in contest.records if record.load]
        on_disk.append((len(loads), sum(len(each.turns) for each in loads)))
        return take_turn(self, load, process, round_)

    monkeypatch.setattr(CellUnderLoad, "turn", turn)
    run_contest(tmp_path, {"eager": Script(), "null": Script()}, plan_of(1), load=SERVER)
    assert on_disk[0] == (2, 0), "both searches are there, as SIGKILL would leave them"
    assert on_disk[-1][1] >= len(on_disk) - 2


@pytest.mark.parametrize("stage", ["burst 3", "load 0", "load 3"])
@pytest.mark.parametrize("label", ["eager", "null"])
def test_a_run_that_is_interrupted_before_any_turn_says_what_single_calls_show_as_such(
    tmp_path: Path, stage: str, label: str
) -> None:
    scripts = {"eager": Script(level_ms=2.0), "null": Script()}
    scripts[label].endings = {(0, stage): INTERRUPT}
    records = list(run_contest(tmp_path, scripts, load=SERVER).records.values())
    contest = judge_contest(records, stop=Stop.INTERRUPTED)
    line = headline.line(contest)
    assert line.startswith("nothing under load yet; at single calls null") and line.endswith(", so far")
    assert contest.load is not None and {cell.label for cell in contest.load.cells} == {"eager", "null"}
    told = load_sentences.verdict(contest.load)
    assert told.startswith("under load nothing could be ranked (") and told.count("no turn yet") == 2


def latency_ms(rate: float, capacity: float = 500.0) -> float:
    """Return a latency that rises without end towards the capacity, and is 20 ms at 8/9 of it."""
    return 2 + 2 / (1 - rate / capacity) if rate < capacity else 1000.0


def searched(search: RateSearch) -> RateSearch:
    while (rate := search.next_rate()) is not None:
        search.add(rate, latency_ms(rate))
    return search


@pytest.mark.parametrize("start", [100.0, 350.0, 444.0, 700.0])
def test_it_finds_the_rate_from_wherever_it_begins(start: float) -> None:
    assert searched(RateSearch(20.0, start)).result() == pytest.approx(500 * 8 / 9, rel=NARROW - 1)


def test_it_finds_no_rate_where_even_a_lone_request_takes_too_long() -> None:
    search = searched(RateSearch(3.0, 300.0, most_windows=50))
    assert search.result() is None
    assert len(search.seen) < 20, "it gives up"


def test_it_tries_no_rate_above_the_highest() -> None:
    search = searched(RateSearch(20.0, 100.0, highest=200.0))
    assert search.result() == max(rate for rate, _ in search.seen) == 200.0


def test_it_takes_no_more_windows_than_it_may() -> None:
    assert len(searched(RateSearch(20.0, 1.0, most_windows=4)).seen) == 4


def test_it_takes_more_windows_rather_than_say_that_no_rate_holds() -> None:
    search = searched(RateSearch(20.0, 4000.0, step=1.06, most_windows=2))
    assert [rate for rate, _ in search.seen] == [4000.0, 2000.0, 1000.0, 500.0, 250.0]
    assert 250.0 <= (search.result() or 0.0) < 500 * 8 / 9


def test_a_rate_that_holds_by_chance_above_one_that_does_not_is_not_believed() -> None:
    search = RateSearch(20.0, 400.0)
    search.add(400.0, 10.0)
    search.add(450.0, 30.0)
    search.add(480.0, 15.0)
    assert search.held == (400.0, 10.0)
    assert 400.0 < (search.result() or math.inf) < 450.0
