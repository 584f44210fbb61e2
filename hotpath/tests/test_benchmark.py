"""What the scripts of hotpath/benchmarks make of the seconds that they measured."""

from __future__ import annotations

import math

import pytest

from hotpath.benchmarks import hot_paths, tracking

COST, BIAS = 1.02, 1.05  # of being watched; of the second copy
PLAIN_S = (0.010, 0.011, 0.010, 0.030, 0.010, 0.012)


def process(cost: float) -> dict[str, object]:
    """Two places: the second copy is the watched one, then the first."""
    places = [[(plain, plain * cost * BIAS) for plain in PLAIN_S], [(plain * BIAS, plain * cost) for plain in PLAIN_S]]
    return {"places": [{"watching": pairs} for pairs in places]}


@pytest.mark.parametrize("share", [tracking.typical, tracking.all_in_all])
def test_the_difference_of_two_copies_cancels(share: object) -> None:
    value, low, high = tracking.over_processes(share, [process(cost) for cost in (1.01, COST, 1.03)], "watching")
    assert value == pytest.approx(0.02, abs=1e-4)
    assert low < 0.02 < high


def test_one_process_has_no_interval() -> None:
    value, low, high = tracking.over_processes(tracking.typical, [process(COST)], "watching")
    assert (low, high) == (-math.inf, math.inf) and value == pytest.approx(0.02)


def test_one_disturbed_block_does_not_move_the_typical_one() -> None:
    pairs = [(plain, plain * COST) for plain in PLAIN_S[:-1]] + [(PLAIN_S[-1], 1.0)]
    assert math.expm1(tracking.typical(pairs)) == pytest.approx(0.02)
    assert math.expm1(tracking.all_in_all(pairs)) > 1


def test_a_ratio_is_to_whichever_rival_is_better() -> None:
    ours, rival = [1.0, 1.1, 1.2, 1.0, 1.1], [1.0, 0.9, 1.1, 1.0, 0.95]
    alone = hot_paths.ratio_interval(ours, [rival])
    assert hot_paths.ratio_interval(ours, [rival, [10 * second for second in rival]]) == alone
    low, high = hot_paths.ratio_interval(ours, [rival, rival])
    assert low >= alone[0] and high >= alone[1], "the better of two draws"


def test_fewer_than_five_processes_have_no_interval() -> None:
    assert hot_paths.ratio_interval([1.0] * 4, [[1.0] * 5]) == (-math.inf, math.inf)
    assert hot_paths.ratio_interval([1.0] * 5, [[1.0] * 5, [1.0] * 4]) == (-math.inf, math.inf)
