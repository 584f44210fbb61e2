"""Which cells are surely beaten, so that they get no further process."""

from collections.abc import Sequence

import pytest

from bakeoff.judging.constraints import Requirements
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.decision import Relation, relation
from bakeoff.judging.ranking import Ranking, beaten, contenders, undecided
from bakeoff.records.schema import LeftEarly, Record, Status
from tests.reports.samples import cell, constant, failed, lived, ok, once, under

ROUNDS = 6


def found(*records: Record, require: str = "") -> dict[str, LeftEarly]:
    return beaten(records, Requirements.parse(require))


def of_rounds(backend: str, milliseconds: Sequence[float], disturbed: int | None = None, group: int = 0) -> Record:
    """Return a cell with one round of each latency. In the round `disturbed`, its threads waited for a core."""
    made = constant(milliseconds, group=group)
    made = [under([burst], wait_share=0.5 if burst.round == disturbed else 0.0)[0] for burst in made]
    return ok(cell(backend), made)


FAST, SLOW = of_rounds("onnx", [1.0] * ROUNDS), of_rounds("inductor", [2.0, 1.8, 1.7, 1.9, 2.1, 2.0])


def test_what_is_slower_in_every_round_is_beaten_by_its_best_round() -> None:
    left = found(FAST, SLOW)["inductor"]
    assert (left.after_process, left.than) == (1, "onnx")
    assert left.ratio == pytest.approx(1.7)


def test_who_beats_it_by_most_is_named() -> None:
    lost = found(FAST, SLOW, of_rounds("openvino", [0.5] * ROUNDS))
    assert {label: left.than for label, left in lost.items()} == {"onnx": "openvino", "inductor": "openvino"}


@pytest.mark.parametrize(("disturbed", "is_beaten"), [(None, False), (2, True), (3, False)])
def test_one_round_that_is_close_saves_it_unless_that_round_was_disturbed(
    disturbed: int | None, is_beaten: bool
) -> None:
    slow = of_rounds("inductor", [2.0, 1.8, 1.2, 1.9, 2.1, 2.0], disturbed)
    assert ("inductor" in found(FAST, slow)) is is_beaten


def test_a_few_rounds_prove_nothing() -> None:
    assert not found(of_rounds("onnx", [1.0] * 3), of_rounds("inductor", [9.0] * 3))


def test_a_close_process_saves_it_and_the_slow_ones_count() -> None:
    assert found(lived(1.0, "onnx"), lived(2.0, "inductor"))["inductor"].after_process == 5
    close_once = found(lived(1.0, "onnx"), lived(2.0, "inductor", [1.0, 1.0, 0.6, 1.0, 1.0]))
    assert close_once["inductor"].seen_in == "interval", "it was not slower in every round"


def test_rounds_beat_no_baseline_and_processes_do() -> None:
    assert list(found(once(9.0, "eager"), once(8.0, "inductor"), FAST)) == ["inductor"]
    assert found(lived(9.0, "eager"), lived(1.0, "onnx"))["eager"].seen_in == "interval"


@pytest.mark.parametrize(("spread", "processes", "leaves"), [(1.01, 3, True), (1.1, 4, False), (1.1, 5, True)])
def test_the_baseline_stays_until_the_speed_up_over_it_is_known_well(
    spread: float, processes: int, leaves: bool
) -> None:
    unsteady = [1.0, spread, 1 / spread, 1.0, spread][:processes]
    records = [lived(9.0, "eager", [1.0] * processes), lived(1.0, "onnx", unsteady)]
    assert ("eager" in found(*records)) == leaves, "speed-ups are taken to it"


def test_the_energy_of_the_baseline_is_compared_with() -> None:
    assert "eager" in contenders([lived(1.12, "eager"), lived(1.0, "onnx")]), "its energy is compared with"


def test_only_a_cell_that_may_win_beats_another() -> None:
    assert not found(once(1.0, "onnx", build_s=60.0), once(2.0, "inductor"), require="build_s<10")
    assert not found(failed(cell("onnx"), Status.CRASH, "signal 11"), once(2.0, "inductor"))


def test_cells_of_two_groups_are_compared_through_the_cell_of_both_at_its_worst() -> None:
    eager = ok(cell("eager"), [*constant([4.0] * ROUNDS, group=0), *constant([4.0] * ROUNDS, group=1)])
    slow = of_rounds("inductor", [2.0, 1.8, 1.7, 1.9, 2.1, 2.0], group=1)
    assert found(eager, FAST, slow)["inductor"].ratio == pytest.approx(1.7)
    other = [*constant([3.0] * ROUNDS, group=0), *constant([3.0] * ROUNDS, group=1)]
    through_other = found(once(4.0, "eager"), FAST, ok(cell("openvino"), other), slow)
    assert through_other["inductor"].ratio == pytest.approx(1.7)
    assert not found(FAST, slow), "nothing connects the two"


def test_a_beaten_cell_asks_for_no_further_process() -> None:
    eager, fast = lived(3.0, "eager"), lived(1.0, "onnx")
    assert undecided([eager, fast, once(2.0, "inductor")]) == []
    assert undecided([eager, fast, once(1.1, "inductor")]) == [("onnx", "inductor")]


def test_an_unsteady_cell_calls_no_beaten_one_back_unless_the_verdict_depends_on_it() -> None:
    unsteady, fast, second = lived(9.0, "eager", [1.0, 2.0, 1.0, 2.0, 1.0]), lived(1.0, "onnx"), lived(1.2, "openvino")
    slow = once(2.0, "inductor")
    assert relation(Ranking([unsteady, fast, second, slow]).score.ratio("onnx", "inductor")) is not Relation.FASTER
    assert undecided([unsteady, fast, second, slow]) == []
    assert undecided([unsteady, fast, slow]) == [("onnx", "inductor")], "here it may share the first place"


def test_a_cell_that_the_best_one_is_called_faster_than_is_beaten_by_the_interval() -> None:
    eager, fast = lived(3.0, "eager"), lived(1.0, "onnx")
    slower = lived(1.2, "inductor", [1.0, 1.01, 0.99, 1.0, 1.01])
    left = found(eager, fast, slower)["inductor"]
    assert (left.seen_in, left.than, left.after_process) == ("interval", "onnx", 5)
    assert 1.1 < left.ratio < 1.2
    assert "inductor" not in found(eager, fast, lived(1.01, "inductor"))


def test_what_left_is_slower_by_no_more_than_its_interval_says() -> None:
    """Two cells lived in three processes that differ much, which one process of a third cannot show."""
    layouts = (1.0, 1.2, 1.1)
    left = LeftEarly(after_process=1, ratio=3.8, than="onnx")
    gone = once(4.0, "iree", left=left)
    contest = judge_contest([lived(1.0, "onnx", layouts), lived(2.0, "eager", layouts[::-1]), gone])
    ends = contest.fit.ratio("onnx", "iree").ci95
    least = contest.least_times_slower(contest.cells[-1])
    assert contest.cells[-1].label == "iree" and ends and least == ends.low < 3.8
    assert contest.least_times_slower(contest.cells[0]) is None
