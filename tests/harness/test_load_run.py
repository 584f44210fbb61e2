"""A cell under load: its settings, turns and soak, with windows of a queue whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.controller.load_run import CellUnderLoad, Round
from harness.load_plan import LoadPlan
from harness.messages import LoadTaken, TakeLoad
from records.load import LoadWindow, Objective, Scenario, ServingSettings
from records.schema import Cell

OBJECTIVE = Objective(percentile="p99", limit_ms=20.0)
SERVER = LoadPlan(Scenario.SERVER, 1, OBJECTIVE, soak_s=6.0)
CELL = Cell(model="mlp", dimensions={"batch": 1}, backend="null")


@dataclass
class Queue:
    """Answers windows as a queue does: latency rises without end towards the capacity of the settings."""

    capacity: Callable[[ServingSettings], float]
    fails_from_batch: int = 10**9
    orders: list[TakeLoad] = field(default_factory=list)

    def take(self, order: TakeLoad) -> LoadTaken:
        self.orders.append(order)
        if order.settings.batch >= self.fails_from_batch:
            return LoadTaken(window=None, reason="no memory")
        capacity = 50_000.0 if order.answers_nothing else self.capacity(order.settings)
        is_server = order.scenario is Scenario.SERVER
        sent = order.rate if is_server else capacity
        latency_ms = 2 + 2 / (1 - sent / capacity) if is_server and sent < capacity else 1e3
        return LoadTaken(
            window=LoadWindow(
                asked_rate=order.rate if is_server else None,
                rate=sent,
                requests=200,
                seconds=order.seconds,
                p50_ms=latency_ms / 2,
                p90_ms=latency_ms,
                p99_ms=latency_ms,
                objective_ms=latency_ms,
            )
        )

    def under(self, plan: LoadPlan = SERVER, cell: Cell = CELL) -> CellUnderLoad:
        return CellUnderLoad(plan, cell, self.take, latency_ms=2.0, threads=4)


def by_instances(settings: ServingSettings) -> float:
    """Return the capacity of a backend that is best at two instances and gains nothing from batches."""
    return {1: 300.0, 2: 500.0, 4: 400.0}[settings.instances] - 10 * settings.batch


def test_the_best_settings_are_found_and_all_others_are_told() -> None:
    load = Queue(by_instances).under().find_settings(seed=1)
    assert load.settings == ServingSettings(instances=2, threads=2)
    assert {(one.settings.instances, one.settings.threads) for one in load.tried} == {(1, 4), (2, 2), (4, 1)}
    chosen = next(one for one in load.tried if one.settings == load.settings)
    assert chosen.value == pytest.approx(490 * 8 / 9, rel=0.05)
    assert load.ceiling is not None and load.ceiling > 10_000


def test_settings_whose_capacity_is_below_the_best_rate_are_not_searched() -> None:
    queue = Queue(lambda settings: 1000.0 if settings.instances == 1 else 100.0)
    load = queue.under().find_settings(seed=1)
    beaten = [one for one in load.tried if one.settings.instances > 1]
    assert [one.reason for one in beaten] == ["answers 100 requests/s at most"] * 2
    assert all(len(one.windows) == 1 for one in beaten)


def test_settings_that_fail_are_one_result_of_the_search() -> None:
    load = Queue(by_instances, fails_from_batch=2).under().find_settings(seed=1)
    assert load.settings is not None and load.settings.batch == 1
    assert "no memory" in [one.reason for one in load.tried]


def test_an_objective_that_nothing_meets_is_told() -> None:
    plan = LoadPlan(Scenario.SERVER, 1, Objective(percentile="p99", limit_ms=3.0))
    load = Queue(by_instances).under(plan).find_settings(seed=1)
    assert load.settings is None
    assert load.reason.startswith("p99 < 3 ms does not hold even at")


def test_a_model_without_a_batch_is_served_without_batches() -> None:
    load = Queue(by_instances).under(cell=CELL.model_copy(update={"dimensions": {}})).find_settings(seed=1)
    assert {one.settings.batch for one in load.tried} == {1}
    assert "no dimension batch" in load.left_out[0]


def test_a_turn_takes_few_windows_and_finds_the_rate_again() -> None:
    queue = Queue(by_instances)
    under = queue.under()
    load = under.find_settings(seed=1)
    queue.orders.clear()
    turn = under.turn(load, process=0, round_=Round(group=0, number=1, started_s=1.0))
    assert turn.value == pytest.approx(490 * 8 / 9, rel=0.05)
    assert len(queue.orders) == len(turn.windows) <= 4
    assert {order.seed for order in queue.orders} == {Round(0, 1, 0.0).seed}
    assert all(order.keeps_latencies for order in queue.orders)


def test_a_soak_lasts_as_long_as_asked_at_the_rate_found() -> None:
    queue = Queue(by_instances)
    under = queue.under()
    load = under.find_settings(seed=1)
    load = load.model_copy(update={"turns": [under.turn(load, 0, Round(0, 1, 0.0))]})
    queue.orders.clear()
    assert len(under.soak(load, seed=9)) == len(queue.orders) == 6
    assert sum(order.seconds for order in queue.orders) == pytest.approx(6.0)
    assert {order.rate for order in queue.orders} == {load.turns[0].value}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [(LoadPlan(Scenario.OFFLINE), 490.0), (LoadPlan(Scenario.SINGLE_STREAM), 500.0)],
    ids=["offline", "single-stream"],
)
def test_other_scenarios_need_one_window_a_turn(plan: LoadPlan, expected: float) -> None:
    queue = Queue(by_instances)
    under = queue.under(plan)
    load = under.find_settings(seed=1)
    turn = under.turn(load, 0, Round(0, 1, 0.0))
    assert turn.value == expected and len(turn.windows) == 1
