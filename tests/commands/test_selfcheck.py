"""Trials of eager against itself: what they say of planted slowdowns, and when they would have stopped."""

import pytest

from bakeoff.commands import selfcheck
from bakeoff.commands.selfcheck import AGAIN, FIRST, SlowdownAnswer
from bakeoff.measuring.controller.progress import Silent
from bakeoff.records.conditions import Conditions
from bakeoff.records.schema import Interval, Ratio, Record
from tests.reports import samples


def records(first: tuple[float, ...], again: tuple[float, ...]) -> list[Record]:
    """Two records of 1 ms, whose processes are so many times as slow."""
    return [
        samples.ok(samples.cell(backend), samples.over_processes(1.0, biases))
        for backend, biases in ((FIRST, first), (AGAIN, again))
    ]


EQUAL = records((1.0, 1.002, 0.999, 1.001, 1.0, 1.003), (1.001, 1.0, 1.0, 1.002, 0.999, 1.001))


def test_equal_copies_tie_at_the_first_look() -> None:
    answer = selfcheck.answer_for(EQUAL, 1.0, [10.0, 14.0, 18.0, 22.0], fewest=3)
    assert (answer.winner, answer.unstable, answer.processes, answer.seconds) == (None, False, 3, 10.0)
    assert answer.is_right


def test_a_planted_slowdown_is_found_at_the_look_at_which_it_is_decided() -> None:
    answer = selfcheck.answer_for(EQUAL, 1.05, [10.0, 14.0, 18.0, 22.0], fewest=3)
    assert answer.winner == FIRST
    assert answer.ratio.value == pytest.approx(1.05, rel=0.01)
    assert answer.seconds == 10.0 + 4.0 * (answer.processes - 3)
    assert answer.is_right


def test_where_time_ran_out_the_last_look_counts_and_says_unstable() -> None:
    noisy = records((1.0, 1.1, 0.92), (1.08, 0.95, 1.0))
    answer = selfcheck.answer_for(noisy, 1.0, [10.0], fewest=3)
    assert (answer.winner, answer.unstable, answer.processes) == (None, True, 3)


def test_only_the_second_copy_is_slowed() -> None:
    first, again = selfcheck.with_slowdown(EQUAL, 2.0)
    assert first == EQUAL[0]
    assert again.latency is not None and EQUAL[1].latency is not None
    assert again.latency.median_ms == pytest.approx(2 * EQUAL[1].latency.median_ms, rel=1e-3)
    assert again.bursts[0].samples_ns[0] == 2 * EQUAL[1].bursts[0].samples_ns[0]


def test_a_burst_that_waited_is_slowed_as_far_as_it_counts() -> None:
    conditions = Conditions(wait_share=0.5, quiet_ms=1.0, quiet_calls=9, quiet_wait_share=0.0, others_cores=1.0)
    waited = []
    for record in EQUAL:
        bursts = [burst.model_copy(update={"conditions": conditions}) for burst in record.bursts]
        waited.append(record.model_copy(update={"bursts": bursts}))
    assert selfcheck.answer_for(waited, 1.05, [10.0], fewest=6).ratio.value == pytest.approx(1.05, rel=0.001)


def answer(planted: float, winner: str | None, unstable: bool = False) -> SlowdownAnswer:
    ratio = Ratio(value=planted, ci95=Interval(low=planted - 0.01, high=planted + 0.03), paired=True)
    return SlowdownAnswer(planted=planted, winner=winner, unstable=unstable, ratio=ratio, processes=4, seconds=20.0)


def test_a_summary_counts_winners_and_bounds_their_rate() -> None:
    trials = [[answer(1.0, None), answer(1.05, FIRST)] for _ in range(99)]
    trials.append([answer(1.0, AGAIN), answer(1.05, None, unstable=True)])
    equal, slower = selfcheck.summarise_trials("mlp", "default", trials)
    assert (equal.planted, equal.trials, equal.winners, equal.right) == (1.0, 100, 1, 99)
    assert equal.upper == pytest.approx(0.0466, abs=0.0002)  # Clopper and Pearson, from tables
    assert (slower.winners, slower.unstable) == (99, 1)
    assert (equal.half_width, equal.processes, equal.seconds) == (pytest.approx(0.02), 4, 20.0)


def test_no_winner_in_100_trials_bounds_the_rate_by_three_per_cent() -> None:
    (equal,) = selfcheck.summarise_trials("mlp", "default", [[answer(1.0, None)]] * 100)
    assert equal.upper == pytest.approx(1 - 0.05 ** (1 / 100))


@pytest.mark.slow
def test_a_trial_measures_eager_against_itself() -> None:
    (trial,) = selfcheck.run("mlp", "cpu", "default", 1, Silent(), planted=(1.0, 2.0), max_processes=3)
    assert [record.cell.backend for record in trial.records] == [FIRST, AGAIN]
    assert all(len(record.processes) == 3 for record in trial.records)
    assert all(record.latency and not record.throughput for record in trial.records)  # a trial measures nothing else
    assert [found.planted for found in trial.answers] == [1.0, 2.0]
