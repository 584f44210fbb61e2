"""What is said of a cell's warm-up, where no whole run is needed to see it."""

from __future__ import annotations

import pytest

from harness.controller.cell_run import doubt_of
from records.schema import WarmUp


@pytest.mark.parametrize(
    ("steady", "trendless", "doubt"),
    [
        (True, False, ""),
        (
            False,
            True,
            "latencies differed by more than 2 % to the end of the warm-up, getting neither faster nor slower",
        ),
        (False, False, "the warm-up did not become steady within 2 % in 30 s"),
    ],
)
def test_a_warm_up_that_was_not_steady_is_a_doubt(steady: bool, trendless: bool, doubt: str) -> None:
    assert doubt_of(WarmUp(calls=120, seconds=30.2, steady=steady, trendless=trendless)) == doubt
