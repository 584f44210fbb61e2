"""What contests beside other programs come to, as a table."""

from __future__ import annotations

from typing import Any

from bakeoff.judging.answer import Certainty
from benchmarks.under_load import PAIRS, table

COPIES, TWICE = "1.00, short, 1 thread", "2, medium, 2 threads"


def one(pair: str, load: str, ratio: float, **more: Any) -> dict[str, Any]:
    """Return a contest that was told as sure, with an interval of 5 % to either side."""
    ends = [ratio * 0.95, ratio * 1.05]
    told = {"certainty": Certainty.SURE, "winner": "fast", "ends": ends, "seconds": 6.0}
    return {"pair": pair, "load": load, "ratio": ratio} | told | more


def test_wrong_winners_and_sure_intervals_without_the_quiet_ratio_are_counted() -> None:
    assert PAIRS[TWICE].ratio == 2.0
    rows = table(
        [
            one(TWICE, "none", 1.9),
            one(TWICE, "memory", 1.92),
            one(TWICE, "memory", 2.2),  # the quiet one is 1.9
            one(TWICE, "memory", 2.0, winner="slow", certainty=Certainty.DOUBTED),
            one(COPIES, "memory", 1.04),
            one(COPIES, "memory", 1.0, winner=None, certainty=Certainty.TIE),
            one(TWICE, "memory", 1.0, winner=None, certainty=Certainty.TIE),
            one(TWICE, "memory", 40.0, winner=None, certainty=Certainty.OPEN, ends=None),
        ]
    )
    contests, wrong, sure, outside, ties, missed, undecided, seconds = rows[3].split("|")[2:-1]
    assert rows[2].startswith("|none|1|0|1|0|")
    assert (contests, wrong, sure, outside) == ("7", "2", "3", "1")
    assert (ties, missed, undecided, seconds) == ("2", "1", "1", "6")
    assert "2, medium, 2 threads: 1.900" in rows[-1]
