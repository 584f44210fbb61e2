"""The search for the highest rate within an objective, on queues whose answer is known."""

import math

import pytest

from bakeoff.measuring.controller.rate_search import NARROW, RateSearch


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
