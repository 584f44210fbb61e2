"""The tables and figures that the scripts of plugins/hotpath/benchmarks make."""

import math
from pathlib import Path

import pytest

from plugins.hotpath.benchmarks import hot_paths, tracking

COST, BIAS = 1.02, 1.05  # of being watched; of the second copy
PLAIN_S = (0.010, 0.011, 0.010, 0.030, 0.010, 0.012)


def process(cost: float) -> dict[str, object]:
    """Return two places: the watched copy is the second one, then the first."""
    places = [[(plain, plain * cost * BIAS) for plain in PLAIN_S], [(plain * BIAS, plain * cost) for plain in PLAIN_S]]
    return {"places": [{"watching": pairs} for pairs in places]}


@pytest.mark.parametrize("share", [tracking.typical, tracking.all_in_all])
def test_the_difference_of_two_copies_cancels(share: object) -> None:
    value, low, high = tracking.over_processes(share, [process(cost) for cost in (1.01, COST, 1.03)], "watching")
    assert value == pytest.approx(0.02, abs=1e-4)
    assert low < 0.02 < high
    assert tracking.over_processes(share, [process(COST)], "watching")[1:] == (-math.inf, math.inf)


def test_one_disturbed_block_does_not_move_the_typical_one() -> None:
    pairs = [(plain, plain * COST) for plain in PLAIN_S[:-1]] + [(PLAIN_S[-1], 1.0)]
    assert math.expm1(tracking.typical(pairs)) == pytest.approx(0.02)
    assert math.expm1(tracking.all_in_all(pairs)) > 1


def test_a_ratio_is_to_the_better_rival() -> None:
    ours, rival = [1.0, 1.1, 1.2, 1.0, 1.1], [1.0, 0.9, 1.1, 1.0, 0.95]
    alone = hot_paths.ratio_interval(ours, [rival])
    assert hot_paths.ratio_interval(ours, [rival, [10 * second for second in rival]]) == alone
    low, high = hot_paths.ratio_interval(ours, [rival, rival])
    assert low >= alone[0] and high >= alone[1], "the better of two draws"
    assert hot_paths.ratio_interval(ours[:4], [rival]) == (-math.inf, math.inf), "too few processes"


def test_the_table_and_the_figure_show_every_contender(tmp_path: Path) -> None:
    each = {name: [[0.1 * factor, factor, 10.0 * factor]] * 5 for factor, name in enumerate(hot_paths.CONTENDERS, 1)}
    measured = {"task": "inference", "marks": [1, 5, 10], "each": each, "seconds": hot_paths.medians(each)}
    found = {"machine": "a machine", "calls": 10, "processes": 5, "starts": 0, "workloads": {"mlp": measured}}
    rows = [line for line in hot_paths.to_markdown(found).splitlines() if line.startswith("| mlp")]
    assert rows[0] == "| mlp, inference | eager | 0.1 | 10 |"
    assert rows[3] == "| mlp, inference | hotpath | **0.4 (4.00 [4.00, 4.00])** | **40 (4.00 [4.00, 4.00])** |"
    hot_paths.draw(found, tmp_path / "figure")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
