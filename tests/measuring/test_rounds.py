"""When another round or another process is worth its time, and in which order cells take turns."""

import random
from dataclasses import replace

import pytest

from bakeoff.measuring.controller.rounds import (
    PlannedRounds,
    RefineImpreciseRounds,
    RepeatDisturbedRounds,
    RoundsSoFar,
    core_of_round,
    expected_epochs,
    next_epoch,
    order_of_round,
    round_rules,
)
from bakeoff.planning.sampling_plan import MAX_FURTHER_ROUNDS_S, MAX_ROUNDS_PER_EPOCH, SamplingPlan
from bakeoff.records.schema import Burst, Conditions, Ratio


def bursts(level_ms: float, spread: float, rounds: int = 12, disturbed: int = 0) -> list[Burst]:
    draw = random.Random(f"{level_ms} {spread}")
    return [
        Burst(
            group=0,
            round=number,
            started_s=number,
            samples_ns=[round(1e6 * level_ms * draw.lognormvariate(0, spread))],
            conditions=Conditions(calibration_ms=1.0, wait_share=0.5 if number < disturbed else 0.0),
        )
        for number in range(rounds)
    ]


PRECISE = RoundsSoFar(12, [bursts(1.0, 0.005), bursts(1.01, 0.005), bursts(3.0, 0.2)])
IMPRECISE = RoundsSoFar(12, [bursts(1.0, 0.3), bursts(1.01, 0.3)])


def test_planned_rounds_are_taken() -> None:
    assert PlannedRounds(12).takers(RoundsSoFar(11, [[], []])) == {0, 1}
    assert not PlannedRounds(12).takers(RoundsSoFar(12, [[], []]))


@pytest.mark.parametrize(
    ("done", "disturbed", "wanted"), [(12, 3, False), (12, 4, True), (23, 23, True), (24, 24, False)]
)
def test_disturbed_rounds_are_made_up_for_by_as_many_again_at_most(done: int, disturbed: int, wanted: bool) -> None:
    seen = RoundsSoFar(done, [bursts(1.0, 0.001, done), bursts(1.01, 0.001, done, disturbed)])
    # the quietest quarter of the rounds says what is usual for a cell
    seen = replace(seen, bursts=[*seen.bursts[:1], seen.bursts[1][::-1]]) if disturbed < done else seen
    assert bool(RepeatDisturbedRounds(12).takers(seen)) == (wanted and disturbed < done)


def test_disturbed_rounds_are_repeated_by_those_that_lack_them_beside_the_fastest() -> None:
    seen = RoundsSoFar(12, [bursts(1.2, 0.001), bursts(1.0, 0.001), bursts(1.1, 0.001, 12, 4)[::-1]])
    assert RepeatDisturbedRounds(12).takers(seen) == {1, 2}
    assert RepeatDisturbedRounds(12).takers(replace(seen, bridge=0)) == {0, 2}


def test_disturbed_rounds_of_a_cell_that_is_far_behind_are_not_repeated() -> None:
    seen = RoundsSoFar(12, [bursts(1.0, 0.001), bursts(3.0, 0.001, 12, 4)[::-1]])
    assert not RepeatDisturbedRounds(12).takers(seen)


HALF = [bursts(1.0, 0.001, 6), bursts(1.01, 0.02, 6), bursts(1.1, 0.001, 6), bursts(3.0, 0.01, 6)]


def test_the_second_half_of_the_rounds_is_for_cells_whose_gap_is_not_clear() -> None:
    rule = PlannedRounds(12, may_end_early=True)
    assert rule.takers(RoundsSoFar(5, HALF)) == {0, 1, 2, 3}
    assert rule.takers(RoundsSoFar(6, HALF)) == {0, 1}
    assert rule.takers(RoundsSoFar(11, [HALF[2], *HALF[1:]])) == {0, 1}, "the question is asked once"
    assert not PlannedRounds(12, may_end_early=True).takers(RoundsSoFar(6, [HALF[0], HALF[2]]))
    assert PlannedRounds(12).takers(RoundsSoFar(6, HALF)) == {0, 1, 2, 3}


def test_a_cell_with_few_calls_takes_all_rounds_and_so_do_groups() -> None:
    clear = RoundsSoFar(6, [HALF[0], HALF[2]])
    assert PlannedRounds(12, calls=1, may_end_early=True).takers(clear) == {0, 1}
    assert PlannedRounds(12, may_end_early=True).takers(replace(clear, bridge=0)) == {0, 1}


def test_all_rounds_are_taken_where_one_gap_does_not_decide() -> None:
    assert SamplingPlan.lasting(1.5).rounds_may_end_early
    for plan in (
        SamplingPlan.lasting(1.5, 3),
        SamplingPlan.lasting(1.5, wanted_calls=600),
        SamplingPlan.lasting(1.5, builds=2),
    ):
        assert not plan.rounds_may_end_early


@pytest.mark.parametrize(
    ("done", "leads", "expected"),
    [
        (0, [], 3),
        (1, [1.5, 2.0], 3),
        (1, [1.1, 2.0], 5),
        (1, [1.001], 3),
        (3, [1.001], 5),
        (4, [1.001], 5),
        (5, [1.1], 7),
    ],
)
def test_a_narrow_lead_is_expected_to_take_five_processes(done: int, leads: list[float], expected: int) -> None:
    ratios = [Ratio(value=value, ci95=None, paired=True) for value in leads]
    assert expected_epochs(SamplingPlan.lasting(1.5), done, ratios) == expected
    assert expected_epochs(SamplingPlan.lasting(1.5, max_processes=3), done, ratios) == 3


def test_rounds_that_differ_much_are_refined_and_rounds_that_agree_are_not() -> None:
    assert RefineImpreciseRounds(12).takers(IMPRECISE) == {0, 1}
    assert not RefineImpreciseRounds(12).takers(PRECISE)
    assert not RefineImpreciseRounds(12).takers(RoundsSoFar(12, [bursts(1.0, 0.3)])), "a cell by itself"


def test_only_imprecise_cells_and_the_fastest_take_further_rounds() -> None:
    seen = RoundsSoFar(12, [bursts(1.5, 0.005), bursts(1.0, 0.005), bursts(1.01, 0.3)])
    assert RefineImpreciseRounds(12).takers(seen) == {1, 2}


def test_refining_asks_once_in_as_many_rounds_as_were_planned() -> None:
    loud_and_then_calm = bursts(1.0, 0.3) + [
        burst.model_copy(update={"round": 12 + burst.round}) for burst in bursts(1.0, 0.0, 36)
    ]
    seen = RoundsSoFar(23, [loud_and_then_calm, bursts(1.01, 0.0, 48)])
    assert RefineImpreciseRounds(12).takers(seen) == {0, 1}
    assert not RefineImpreciseRounds(12).takers(replace(seen, done=36))


@pytest.mark.parametrize(
    "limit",
    [
        {"done": MAX_ROUNDS_PER_EPOCH},
        {"further_s": MAX_FURTHER_ROUNDS_S},
        {"further_s": 3.0, "most_further_s": 2.5},
        {"has_time_to_spare": False},
    ],
    ids=lambda limit: " and ".join(limit),
)
def test_refining_has_limits(limit: dict[str, float]) -> None:
    assert not RefineImpreciseRounds(12).takers(replace(IMPRECISE, **limit))


def test_in_groups_each_cell_is_compared_with_the_one_that_all_groups_hold() -> None:
    far_apart = RoundsSoFar(12, [bursts(1.0, 0.005), bursts(3.0, 0.2)])
    assert not RefineImpreciseRounds(12).takers(far_apart)
    assert RefineImpreciseRounds(12).takers(replace(far_apart, bridge=0))


def test_rounds_are_refined_only_where_that_can_save_processes() -> None:
    assert any(isinstance(rule, RefineImpreciseRounds) for rule in round_rules(SamplingPlan.lasting(1.5)))
    assert not any(isinstance(rule, RefineImpreciseRounds) for rule in round_rules(SamplingPlan.lasting(1.5, 2)))


@pytest.mark.parametrize(
    ("done", "is_open", "has_time", "wanted", "note"),
    [
        (2, False, True, True, ""),
        (3, False, True, False, ""),
        (3, True, True, True, "3 processes of each cell do not decide null against eager: more of each"),
        (3, True, False, False, "--time-limit left no room for more processes per cell"),
        (20, True, True, False, ""),
    ],
)
def test_further_processes_are_for_open_pairs_as_far_as_limits_allow(
    done: int, is_open: bool, has_time: bool, wanted: bool, note: str
) -> None:
    decision = next_epoch(SamplingPlan.lasting(1.5), done, [("null", "eager")] if is_open else [], has_time)
    assert (decision.is_wanted, decision.note) == (wanted, note)


def test_over_as_many_rounds_as_there_are_cells_each_comes_first_once() -> None:
    cells = ["a", "b", "c", "d"]
    orders = [order_of_round(7, number, cells) for number in range(8)]
    assert all(sorted(order) == cells for order in orders)
    for cycle in (orders[:4], orders[4:]):
        assert sorted(order[0] for order in cycle) == cells
    assert orders == [order_of_round(7, number, cells) for number in range(8)], "a run can be repeated"
    assert orders != [order_of_round(8, number, cells) for number in range(8)]


def test_rounds_begin_on_all_cores_in_turn() -> None:
    assert sorted(core_of_round(3, number, [0, 1, 5]) or 0 for number in range(3)) == [0, 1, 5]
    assert core_of_round(3, 0, []) is None
