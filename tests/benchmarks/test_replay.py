"""The rules of decision, on the stored trials of a backend against itself."""

import pytest

from bakeoff.judging.decision import Relation
from benchmarks.replay import Outcome, replay, stored_trials


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_stored_equals_get_no_winner_and_slower_copies_are_found(every: int) -> None:
    equal: list[Outcome] = []
    slower: list[Outcome] = []
    for trial in list(stored_trials())[::every]:
        (slower if "slower" in trial.source else equal).append(replay(trial))
    assert (len(equal), len(slower)) == (1320 // every, 80 // every)
    assert not [one for one in equal if one.relation in (Relation.FASTER, Relation.SLOWER)]
    assert sum(one.relation is Relation.FASTER for one in slower) >= 68 // every
    assert not [one for one in slower if one.relation is Relation.SLOWER]
    assert sum(one.decided for one in equal) >= 1060 // every
