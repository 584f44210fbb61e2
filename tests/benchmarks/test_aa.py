"""Trials of two copies: their fixed order, what counts as wrong, and the usual method."""

from typing import Any

import pytest

from benchmarks import aa


def answer(slower: float, winner: str | None, is_open: bool = False) -> dict[str, Any]:
    return {"slower": slower, "winner": winner, "is_open": is_open, "seconds": 20.0, "processes": 4}


@pytest.mark.parametrize(("device", "trials"), [("cpu", 800), ("cuda", 150)])
def test_the_plan_has_its_trials_and_each_part_of_it_has_all_kinds(device: str, trials: int) -> None:
    plan = aa.in_order(device)
    equal = [kind.name for kind, _ in plan if kind.name.startswith("A/A")]
    assert len(equal) == trials
    assert {name: round(3 * equal[: trials // 5].count(name) / (trials // 5), 1) for name in set(equal)} == {
        "A/A, templates": 1.0,
        "A/A, real models": 1.0,
        "A/A, many cells": 1.0,
    }
    assert len(set(plan)) == len(plan)


def test_every_backend_has_its_second_copy_in_the_plug_in() -> None:
    entries = (aa.COPIES / "bakeoff_copies-1.0.dist-info" / "entry_points.txt").read_text()
    copied = {label for kind in aa.TRIALS for label in kind.copied}
    names = {aa.twin(label).partition("/")[0] for label in copied} - {"eager-again"}  # Bakeoff itself has that one
    assert all(f"{name} = " in entries for name in names)


def test_what_counts_as_wrong_and_as_right() -> None:
    trials = [
        {"answers": [answer(1.0, None), answer(1.05, "first")]},
        {"answers": [answer(1.0, "again"), answer(1.05, "again")]},
        {"answers": [answer(1.0, None, is_open=True), answer(1.05, None)]},
        {"failure": "no such backend"},
    ]
    equal, slower = aa.rows_of("A/A", trials)
    assert equal[1:4] == ["equal", 3, 1] and equal[5:7] == [1, 1]
    assert slower[1:4] == ["5% slower", 3, 1] and slower[5:7] == [1, 1]
    assert equal[-1] == 1


def test_a_winner_with_a_copy_is_wrong_and_so_is_a_gap_over_two_per_cent() -> None:
    many = [
        {"first": ["onnx"], "is_wrong": wrong, "is_open": False, "took_s": 60.0, "processes": 3} for wrong in (0, 1)
    ]
    assert next(aa.rows_of("A/A, many cells", many))[2:4] == [2, 1]
    usual = [{"gap": gap, "took_s": 6.0} for gap in (0.01, 0.03, 0.2)]
    assert next(aa.rows_of("usual, templates", usual))[2:4] == [3, 2]


def test_lanes_share_no_core() -> None:
    lanes = aa.lanes_of("cpu", 1, None)
    assert sum(len(lane.cores) for lane in lanes) == len(frozenset().union(*(lane.cores for lane in lanes)))
    assert len(aa.lanes_of("cpu", 1, 1)) == 1


def test_each_gpu_has_a_lane_with_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(aa, "usable_cores", lambda: set(range(1000, 1016)))
    first, second = aa.lanes_of("cuda", None, None)
    assert (first.gpu, second.gpu) == ("3", "5")
    assert len(first.cores) == len(second.cores) == 8 and not first.cores & second.cores


@pytest.mark.slow
def test_the_usual_method_has_a_gap() -> None:
    kind = next(kind for kind in aa.TRIALS if kind.is_usual and kind.device == "cpu")
    assert aa.usual_gap(kind, 0) >= 0
