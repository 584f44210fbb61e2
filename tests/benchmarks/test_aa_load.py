"""What the trials under load report."""

import pytest

from benchmarks.aa_load import report


def test_a_winner_counts_also_where_the_other_copy_carried_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tied = {"winner": None, "gap": 0.02, "settings": {"eager": {}, "eager-again": {}}, "seconds": 60.0}
    report([tied, {**tied, "winner": "eager-again", "gap": None}])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| 2 | 1 | 1 | 2 |")
