"""How long a run takes, and how its budget is shared."""

import math
from dataclasses import replace

import pytest

from bakeoff.backends.base import Backend
from bakeoff.backends.eager import Eager
from bakeoff.backends.inductor import Inductor
from bakeoff.judging.estimate import FEWEST_ROUNDS
from bakeoff.planning.load_plan import MAX_WINDOW_S, LoadPlan
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import (
    BETWEEN_BURSTS_S,
    FACTOR_IF_NOT,
    USUAL_EVALUATE_S,
    USUAL_WARM_UP_S,
    PlanStep,
    TimePlan,
    end_of_budget,
    likely_to_run,
    usual_build_s,
)
from bakeoff.records.load_samples import Objective
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Cell

SAMPLING = SamplingPlan.lasting(1.5)
LABELS = ("eager", "onnx", "inductor")


def expecting(*contests: str, processes: int = 3, budget_ends_s: float = math.inf) -> TimePlan:
    plan = TimePlan(SAMPLING, budget_ends_s)
    for contest in contests:
        plan.expect(contest, LABELS, processes)
    return plan


def test_two_contests_take_twice_as_long_as_one_and_more_processes_longer() -> None:
    one = expecting("a").left_s()
    assert expecting("a", "b").left_s() == pytest.approx(2 * one)
    assert one > sum(usual_build_s(label) for label in LABELS)
    assert expecting("a", processes=6).left_s() > one
    assert expecting("a", processes=1).left_s() < one


def test_a_step_that_is_done_lies_ahead_no_more_and_corrects_the_others() -> None:
    plan = expecting("a", "b")
    plan.begin("a", 0.0)
    before_s = plan.left_s()
    plan.done(PlanStep.BUILD, "inductor", 3 * usual_build_s("inductor"))
    assert plan.seconds_of(PlanStep.BUILD, ["inductor"]) == 3 * usual_build_s("inductor")
    for label, usual_s in (("eager", usual_build_s("eager")), ("unheard-of/mode", Backend.usual_build_s)):
        assert usual_s < plan.seconds_of(PlanStep.BUILD, [label]) < 3 * usual_s, "a slow machine is slow for others"
    assert plan.left_s() > before_s
    for _ in range(2):  # a baseline takes its bursts in several groups
        plan.done(PlanStep.BUILD, "onnx", usual_build_s("onnx"))
    assert plan.seconds_of(PlanStep.BUILD, ["onnx"]) == usual_build_s("onnx")


def test_it_is_said_how_much_longer_a_budget_must_be_for_eager_and_the_quickest_other_cell() -> None:
    plan = expecting("a", budget_ends_s=10.0)
    plan.begin("a", 9.0)
    pair = ("eager", "onnx")
    steps_s = sum(plan.seconds_of(step, pair) for step in (PlanStep.BUILD, PlanStep.ROUNDS, PlanStep.FINISH))
    lacks_s = 2.0 + FACTOR_IF_NOT * (plan.seconds_of(PlanStep.GROUNDWORK, [""]) + steps_s)
    assert plan.lack(LABELS, 12.0) == f"about {math.ceil(lacks_s)} s more would do for eager and onnx"
    assert plan.lack(LABELS, 40.0) == "the reference was not computed within 31 s, and resume begins it anew"
    plan.done(PlanStep.GROUNDWORK, "", 0.4)
    lacks_s = 2.0 + FACTOR_IF_NOT * steps_s
    assert plan.lack(LABELS, 12.0) == f"about {math.ceil(lacks_s)} s more would do for eager and onnx"
    assert expecting("a", "b", budget_ends_s=10.0).lack(LABELS, 12.0) == "", "the other contest would share it"


@pytest.mark.parametrize(("seconds", "told"), [(40.0, "the reference took 40 of 47 s; about "), (5.0, "about ")])
def test_a_reference_that_took_most_of_a_budget_is_named(seconds: float, told: str) -> None:
    plan = expecting("a", budget_ends_s=47.0)
    plan.begin("a", 0.0)
    plan.done(PlanStep.GROUNDWORK, "", seconds)
    assert plan.lack(LABELS, 47.0).startswith(told)


@pytest.mark.parametrize("label", ["inductor", "inductor/freezing", "inductor@old", "inductor/freezing@old[dynamic]"])
def test_a_label_has_the_usual_time_of_its_backend(label: str) -> None:
    assert usual_build_s(label) == Inductor.usual_build_s != Backend.usual_build_s


def test_nothing_is_left_when_all_is_done() -> None:
    plan = expecting("a", processes=1)
    plan.begin("a", 0.0)
    plan.done(PlanStep.GROUNDWORK, "", 5.0)
    for label in ("eager", "onnx"):
        for step in (PlanStep.BUILD, PlanStep.ROUNDS, PlanStep.FINISH):
            plan.done(step, label, 1.0)
    assert plan.left_s() > 0
    plan.dropped("inductor")  # it crashed
    assert plan.left_s() == 0


def test_a_further_process_of_some_cells_is_all_that_is_left_of_a_contest() -> None:
    plan = expecting("a")
    plan.begin("a", 0.0)
    plan.expect_further(["eager"], 2)
    steps_s = plan.seconds_of(PlanStep.START, ["eager"]) + plan.seconds_of(PlanStep.ROUNDS, ["eager"])
    assert plan.left_s() == pytest.approx(2 * steps_s)


def test_a_budget_is_shared_by_what_contests_will_take() -> None:
    plan = expecting("a", "b", budget_ends_s=100.0)
    plan.expect("small", ["eager"], 1)
    small_s, all_s = plan.left_s() - expecting("a", "b").left_s(), plan.left_s()
    plan.begin("small", 20.0)
    assert plan.contest_ends_s == pytest.approx(20.0 + 80.0 * small_s / all_s)
    plan.ended("small")
    plan.begin("a", 30.0)
    assert plan.contest_ends_s == pytest.approx(65.0)
    plan.ended("a")
    plan.begin("b", 40.0)
    assert plan.contest_ends_s == 100.0


def test_long_calls_leave_a_build_less_time() -> None:
    plan = expecting("a", budget_ends_s=60.0)
    plan.begin("a", 0.0)
    short_s = plan.build_ends_s("onnx", ["eager"])
    plan.called("eager", 1.0)
    rounds_s = 2 * FEWEST_ROUNDS * (SAMPLING.burst_calls * 1.0 + BETWEEN_BURSTS_S)
    warm_ups_s = 2 * USUAL_WARM_UP_S
    assert 53.0 < short_s < 60.0 - warm_ups_s
    assert plan.build_ends_s("onnx", ["eager"]) == pytest.approx(60.0 - warm_ups_s - rounds_s)


def test_a_third_build_leaves_the_other_two_all_their_rounds_and_the_second_only_those_that_rank() -> None:
    plan = expecting("a", budget_ends_s=60.0)
    plan.begin("a", 0.0)
    pair_s, all_s = (plan.seconds_of(PlanStep.ROUNDS, labels) for labels in (LABELS[:2], LABELS))
    kept_s = [60.0 - plan.build_ends_s(LABELS[alive], LABELS[:alive]) for alive in (1, 2)]
    assert kept_s[0] == pytest.approx(2 * USUAL_WARM_UP_S + pair_s * FEWEST_ROUNDS / SAMPLING.rounds)
    assert kept_s[1] == pytest.approx(3 * USUAL_WARM_UP_S + all_s)


def test_the_last_check_is_expected_to_take_as_long_as_the_first() -> None:
    plan = expecting("a")
    usual_s = plan.seconds_of(PlanStep.FINISH, ["eager"])
    plan.called("eager", 0.1, check_s=7.0)
    plan.called("onnx", 0.1, check_s=0.0)
    assert [plan.seconds_of(PlanStep.FINISH, [label]) for label in ("eager", "onnx")] == [7.0, usual_s]


def test_what_would_not_end_in_time_finds_no_room() -> None:
    plan = expecting("a", budget_ends_s=30.0)
    plan.begin("a", 0.0)
    assert plan.leaves_room_for_build("inductor", ["eager", "onnx"], 5.0)
    assert not plan.leaves_room_for_build("inductor", ["eager", "onnx"], 15.0)
    for alive in ([], ["eager"]):
        assert plan.leaves_room_for_build("inductor", alive, 15.0), "one alone ranks nothing"
    assert plan.leaves_room_for_epoch(["eager", "onnx"], 20.0)
    assert not plan.leaves_room_for_epoch(["eager", "onnx"], 28.0)
    assert plan.build_ends_s("onnx", ["eager"]) < 30.0


def test_a_backend_that_says_at_once_that_it_cannot_run_finds_room() -> None:
    cells = [Cell(model="mlp", backend=name) for name in ("eager", "tensorrt")]
    assert likely_to_run(cells) == ["eager"]
    plan = TimePlan(SAMPLING, 12.0)
    plan.expect("a", likely_to_run(cells), 3)
    plan.begin("a", 0.0)
    assert plan.leaves_room_for_build("tensorrt", ["eager", "onnx"], 5.0)


def test_a_backend_that_is_not_installed_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Eager, "module", "no_such_module_of_anybody")
    cells = [Cell(model="mlp", backend="eager"), Cell(model="mlp", backend="torchscript")]
    assert likely_to_run(cells) == ["torchscript"]
    elsewhere = [cell.model_copy(update={"environment": "other"}) for cell in cells]
    assert likely_to_run(elsewhere) == [cell.label for cell in elsewhere], "nobody has looked there"


def test_half_of_the_further_processes_are_expected_in_a_race() -> None:
    plain, race = SamplingPlan.lasting(1.5, 5), replace(SamplingPlan.lasting(1.5, 5), races=True)
    left_s = []
    for sampling in (plain, race):
        plan = TimePlan(sampling)
        plan.expect("a", LABELS, sampling.processes)
        left_s.append(plan.left_s())
    further_s = 4 * sum(plan.seconds_of(step, LABELS) for step in (PlanStep.START, PlanStep.ROUNDS))
    assert left_s[0] - left_s[1] == pytest.approx(further_s / 2)


def test_without_a_budget_there_is_always_room() -> None:
    plan = expecting("a")
    plan.begin("a", 0.0)
    assert not plan.has_budget
    assert plan.leaves_room_for_build("inductor", ["eager"], 1e9) and plan.leaves_room_for_epoch(LABELS, 1e9)


def test_a_budget_keeps_time_for_the_report() -> None:
    assert end_of_budget(100.0, 20.0) == 118.0
    assert end_of_budget(100.0, 600.0) == 692.0
    assert end_of_budget(100.0, None) == math.inf


def test_load_is_part_of_the_time_left() -> None:
    load, sampling = LoadPlan(Scenario.OFFLINE, soak_s=30.0), replace(SAMPLING, races=False)
    quiet, loaded = TimePlan(sampling), TimePlan(sampling, load=load)
    for time_plan in (quiet, loaded):
        time_plan.expect("contest", ["eager", "onnx"], 3)
    assert loaded.left_s() - quiet.left_s() == pytest.approx(2 * (3 * load.turns_s(3) + load.once_s))
    assert load.once_s > 30.0


def test_few_calls_in_a_second_make_turns_under_load_longer() -> None:
    load = LoadPlan(Scenario.SERVER, objective=Objective(percentile="p99", limit_ms=400.0))
    plan = TimePlan(replace(SAMPLING, races=False), load=load)
    plan.expect("contest", ["eager", "onnx"], 3)
    short_s = plan.seconds_of(PlanStep.LOAD, ["onnx"])
    plan.called("eager", 0.08)
    plan.called("onnx", 0.001)
    assert short_s == plan.seconds_of(PlanStep.LOAD, ["onnx"]) == load.turns_s(3)
    assert plan.seconds_of(PlanStep.LOAD, ["eager"]) == pytest.approx(short_s * MAX_WINDOW_S / load.window_s)


def test_a_further_process_is_expected_to_take_no_time_for_settings_and_soak() -> None:
    plan = TimePlan(replace(SAMPLING, races=False), 100.0, LoadPlan(Scenario.OFFLINE, soak_s=30.0))
    plan.expect("contest", ["eager"], 2)
    plan.begin("contest", 0.0)
    for step, seconds in (
        (PlanStep.BUILD, 2.0),
        (PlanStep.ROUNDS, 2.0),
        (PlanStep.SETTINGS, 50.0),
        (PlanStep.LOAD, 10.0),
    ):
        plan.done(step, "eager", seconds)
    assert plan.leaves_room_for_epoch(["eager"], 80.0)
    assert not plan.leaves_room_for_epoch(["eager"], 90.0)


def evaluating(budget_ends_s: float = math.inf) -> TimePlan:
    plan = TimePlan(SAMPLING, budget_ends_s)
    plan.expect("a", LABELS, 3, evaluates=True)
    return plan


def test_a_metric_is_counted_for_the_reference_and_each_build() -> None:
    plan = evaluating()
    plan.begin("a", 0.0)
    assert plan.left_s() - expecting("a").left_s() == pytest.approx(4 * USUAL_EVALUATE_S)
    plan.done(PlanStep.EVALUATE, "", 30.0)
    assert plan.seconds_of(PlanStep.EVALUATE, LABELS) == pytest.approx(90.0), "builds take as long as the reference"
    plan.evaluates_nothing()
    assert plan.left_s() == pytest.approx(expecting("a").left_s())


def test_builds_and_rounds_leave_a_budget_time_for_the_metrics() -> None:
    plan = evaluating(100.0)
    plan.begin("a", 0.0)
    plan.done(PlanStep.EVALUATE, "", 10.0)
    assert plan.rounds_end_s(["eager", "onnx"]) == pytest.approx(80.0)
    fewest_s = plan.seconds_of(PlanStep.ROUNDS, ["eager", "onnx"]) * FEWEST_ROUNDS / SAMPLING.rounds
    assert plan.build_ends_s("onnx", ["eager"]) == pytest.approx(80.0 - fewest_s - 2 * USUAL_WARM_UP_S)
    plan.done(PlanStep.BUILD, "eager", 3.0)
    assert plan.build_ends_s("onnx", ["eager"]) == pytest.approx(80.0 - fewest_s - USUAL_WARM_UP_S), "eager is warm"
    plan.done(PlanStep.EVALUATE, "eager", 10.0)
    assert plan.rounds_end_s(["eager", "onnx"]) == pytest.approx(90.0)


def test_evaluating_the_reference_leaves_half_of_a_budget() -> None:
    plan = evaluating(100.0)
    plan.begin("a", 0.0)
    assert plan.reference_evaluation_ends_s(20.0) == 60.0
    assert evaluating().reference_evaluation_ends_s(20.0) == math.inf
