"""Trials alone and beside another contest are compared in pairs."""

import pytest

from benchmarks.beside import ORDER, report


def test_a_drift_of_the_machine_is_no_difference_between_the_situations(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [
        {"situation": situation, "winner": None, "medians_ms": [level * number, 2.0 * level * number]}
        for number, situation in enumerate(2 * ORDER, start=10)
        for level in [1.05 if situation == "beside" else 1.0]
    ]
    trials[1]["winner"] = "eager"
    report(trials)
    alone, beside, ratio = capsys.readouterr().out.splitlines()
    assert "4 trials | 0 winners" in alone
    assert "4 trials | 1 winners" in beside
    value, low, high = map(float, ratio.split("|")[3].replace("[", "").replace("]", "").replace(",", "").split())
    assert low < 1.05 < high
    assert value == pytest.approx(1.05, abs=0.01)
