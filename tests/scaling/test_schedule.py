"""Which contest of a pool is measured next, without processes and without time."""

from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.scaling.schedule import MAX_ATTEMPTS, Schedule, chains_of


def contests(*models: str, **fields: object) -> list[Contest]:
    asked = {"models": models, "devices": ("cpu",), "backends": ("null",), **fields}
    return plan(Request(**asked))


def lasting(found: list[Contest], *seconds: float) -> dict[str, float]:
    return {contest.id: each for contest, each in zip(found, seconds, strict=True)}


def test_the_longest_contest_comes_first_and_each_goes_to_the_place_that_is_free() -> None:
    short, long, middle = found = contests("mlp", "conv", "transformer")
    schedule = Schedule(found, lasting(found, 1, 9, 4))
    assert schedule.next_for("a") is long
    assert schedule.next_for("b") is middle
    assert schedule.has_begun_at("b")
    schedule.ended("b")
    assert not schedule.has_begun_at("b") and not schedule.has_begun_at("c")
    assert schedule.waiting == [short] and schedule.waiting_s == 1
    assert schedule.next_for("b") is short
    schedule.ended("b")
    assert schedule.next_for("b") is None
    schedule.ended("a")
    assert schedule.next_for("a") is None


def test_a_contest_whose_controller_died_is_begun_again_at_its_place_and_given_up_in_the_end() -> None:
    first, second = found = contests("mlp", "conv")
    schedule = Schedule(found, lasting(found, 9, 1))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert schedule.next_for("a") is first
        assert schedule.lost("a") is (first if attempt == MAX_ATTEMPTS else None)
        assert schedule.next_for("b") is second, "the first one waits for its own place"
    schedule.ended("b")
    assert schedule.next_for("a") is schedule.next_for("b") is None


def test_contests_that_share_a_build_stay_at_one_place_one_after_the_other() -> None:
    found = contests("mlp", backends=("onnx",), set={"batch": ("1", "4", "8")}, dynamic=("batch=1:8",))
    other = contests("conv")
    assert chains_of([*found, *other]) == [found, other]
    schedule = Schedule([*found, *other], lasting([*found, *other], 1, 1, 1, 1))
    assert schedule.next_for("a") is found[0]
    assert schedule.next_for("b") is other[0]
    schedule.ended("b")
    assert schedule.next_for("b") is None
    assert schedule.lost("a") is None
    assert schedule.next_for("b") is None
    schedule.is_gone("a")
    assert [schedule.next_for("b"), schedule.ended("b"), schedule.next_for("b")] == [found[0], None, found[1]]


def test_a_contest_that_was_interrupted_goes_on_where_it_has_begun() -> None:
    first, second = found = contests("mlp", "conv")
    schedule = Schedule(found, lasting(found, 9, 1), {first.id: "b"})
    assert schedule.next_for("a") is second
    assert schedule.next_for("b") is first


def test_a_contest_gets_its_share_of_the_time_that_is_left() -> None:
    found = contests("mlp", "conv", "transformer")
    schedule = Schedule(found, lasting(found, 1, 6, 3))
    first = schedule.next_for("a")
    assert first is not None and schedule.share_of_waiting(first) == 0.6
    schedule.next_for("b")
    last = schedule.next_for("c")
    assert last is not None and schedule.share_of_waiting(last) == 1.0
