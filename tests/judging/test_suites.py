"""Sums over many models. Latencies are planted, so that every mean is known."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.judging.judgement import judge
from bakeoff.judging.suites import MIN_MODELS, TAUS, Profile, Suite, chance_of_win, holm
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Record, Status
from tests.reports.samples import MIB, cell, constant, failed, judged, ok, report, steady, suite

Planted = Mapping[str, float | Status]
"""The latency of each backend on one model in ms, or how it failed."""


def records_of(models: Sequence[Planted], spread: float = 0.001, processes: int = 3) -> list[Record]:
    """Return cells whose processes differ by about `spread`, in an order of their own for each."""
    found = []
    for number, planted in enumerate(models):
        for place, (label, value) in enumerate(planted.items()):
            measured = cell(label, model=f"net{number}")
            if isinstance(value, Status):
                found.append(failed(measured, value, f"no {label} of {number}"))
            else:
                turns = [1 + spread * ((process * (place + 2) + number) % 5 - 2) for process in range(processes)]
                found.append(ok(measured, steady([value * turn for turn in turns], rounds=6)))
    return found


def suite_of(models: Sequence[Planted], **more: float) -> Suite:
    (found,) = judge(report(records_of(models, **more))).suites  # type: ignore[arg-type]
    return found


def row(found: Suite, label: str):  # type: ignore[no-untyped-def]
    return next(row for row in found.rows if row.label == label)


FIVE: list[Planted] = [
    {"eager": 4.0, "onnx": 2.0, "openvino": 1.0},
    {"eager": 4.0, "onnx": 2.0, "openvino": Status.CRASH},
    {"eager": 4.0, "onnx": Status.ERROR, "openvino": 2.0},
    {"eager": 4.0, "onnx": 8.0, "openvino": 2.0},
    {"eager": 4.0, "onnx": 1.0, "openvino": 1.0},
]


@pytest.fixture(scope="module")
def five() -> Suite:
    return suite_of(FIVE)


def test_fewer_models_and_models_apart_in_device_or_precision_are_no_suite() -> None:
    few = records_of(FIVE[: MIN_MODELS - 1])
    assert judge(report(few)).suites == ()
    elsewhere = [ok(cell(model="net9", precision="fp16"), steady([1.0] * 3))]
    assert judge(report([*few, *elsewhere])).suites == ()


def test_sizes_of_one_model_are_contests_of_that_model_and_no_models_of_their_own() -> None:
    sizes = [ok(cell(model="net0", dimensions={"batch": 2**n}), steady([1.0] * 3)) for n in range(8)]
    assert judge(report(sizes)).suites == ()


def test_means_are_over_what_every_ranked_backend_passed(five: Suite) -> None:
    assert [contest.cell.model for contest in five.common] == ["net0", "net3", "net4"]
    onnx, openvino = row(five, "onnx").means, row(five, "openvino").means
    assert onnx.speedup == pytest.approx((2 * 0.5 * 4) ** (1 / 3), rel=0.01)
    assert openvino.speedup == pytest.approx((4 * 2 * 4) ** (1 / 3), rel=0.01)
    assert (onnx.lowest, onnx.highest) == (pytest.approx(0.5, rel=0.01), pytest.approx(4, rel=0.01))
    assert five.labels[0] == "openvino" and five.lead and five.lead.processes == 3


def test_a_backend_counts_what_it_was_asked_and_passed(five: Suite) -> None:
    assert {row.label: (row.passed, row.asked) for row in five.rows} == {
        "eager": (5, 5), "onnx": (4, 5), "openvino": (4, 5)
    }  # fmt: skip


def test_what_cannot_run_here_or_was_not_reached_is_not_asked_but_what_is_unsupported_is() -> None:
    endings = [Status.UNAVAILABLE, Status.NOT_REACHED, Status.UNSUPPORTED, Status.OOM]
    found = suite_of([*({"eager": 1.0, "onnx": ending} for ending in endings), {"eager": 1.0, "onnx": 0.5}])
    onnx = row(found, "onnx")
    assert (onnx.passed, onnx.asked, onnx.cannot_run, onnx.not_reached) == (1, 3, 1, 1)


def test_what_was_never_tried_has_no_row() -> None:
    found = suite_of([{"eager": 1.0, "tensorrt": Status.UNAVAILABLE, "onnx": Status.OOM}] * 4)
    assert sorted(found.labels) == ["eager", "onnx"]
    assert row(found, "onnx").means is None and row(found, "onnx").profile.share(1e9) == 0


def test_a_backend_that_passed_too_little_takes_nobodys_models_away() -> None:
    rare: list[Planted] = [{"eager": 2.0, "onnx": 1.0, "openvino": 0.1 if n == 0 else Status.ERROR} for n in range(5)]
    found = suite_of(rare)
    assert len(found.common) == 5
    assert row(found, "openvino").means is None and found.labels[-1] == "openvino"


def test_wrong_outputs_are_not_passed() -> None:
    models = records_of([{"eager": 2.0, "onnx": 1.0}] * 4)
    wrong = [each.model_copy(update={"status": Status.INCORRECT}) if each.cell.backend == "onnx" else each
             for each in models]  # fmt: skip
    (found,) = judge(report(wrong)).suites
    assert (row(found, "onnx").passed, row(found, "onnx").asked) == (0, 4)


def test_requirements_decide_what_is_passed() -> None:
    made = report(records_of([{"eager": 2.0, "onnx": 1.0}] * 4), request={"require": "median_ms<1.5"})
    (found,) = judge(made).suites
    assert (row(found, "eager").passed, row(found, "onnx").passed) == (0, 4)
    (failures,) = found.failures
    assert failures.cell.unmet


def test_memory_is_over_the_baselines_and_build_time_is_the_median() -> None:
    made = [
        each.model_copy(update={"memory": each.memory.model_copy(update={"peak_resident_bytes": 300 * MIB})})
        if each.cell.backend == "onnx" and each.memory
        else each
        for each in records_of([{"eager": 2.0, "onnx": 1.0}] * 4)
    ]
    (found,) = judge(report(made)).suites
    assert row(found, "onnx").means.memory == pytest.approx(1 / 3)
    assert row(found, "eager").means.memory == 1
    built = judged(suite(5)).suites[0]
    assert row(built, "onnx").means.build_s == pytest.approx(7.0)


def test_failures_of_one_sort_are_one_group_over_models_and_backends() -> None:
    def ended(label: str, number: int, operator: str, text: str) -> Record:
        failure = Failure(kind="ValueError", operator=operator, place=f"net{number}.py, line {number}", text=text)
        lost = failed(cell(label, model=f"net{number}"), Status.ERROR, failure.sentence)
        return lost.model_copy(update={"failure": failure})

    alike = [
        ended(label, n, "aten.mm", f"shape [{n}, 3] of 'x{n}'") for n in range(4) for label in ("onnx", "openvino")
    ]
    sound = records_of([{"eager": 1.0}] * 4)
    other = ended("inductor", 0, "aten.sort", "shape [0, 3] of 'x0'")
    found = judge(report([*sound, *alike, other])).suites[0].failures
    assert [(each.labels, len(each.contests)) for each in found] == [(("onnx", "openvino"), 4), (("inductor",), 1)]
    assert [each.differ for each in found] == [True, False]


def test_failures_of_reports_before_schema_3_are_one_group_where_their_reasons_are_equal() -> None:
    lost = [failed(cell("onnx", model=f"net{n}"), Status.ERROR, "no memory" if n else "no disk") for n in range(4)]
    found = judge(report([*records_of([{"eager": 1.0}] * 4), *lost])).suites[0].failures
    assert [len(each.contests) for each in found] == [3, 1]


def test_wins_need_a_winner_that_is_sure_over_all_contests_together() -> None:
    quiet = suite_of([{"eager": 2.0, "onnx": 1.0}] * 4)
    assert {row.label: row.wins for row in quiet.rows} == {"onnx": 4, "eager": 0} and quiet.wins == 4
    loud = suite_of([{"eager": 1.3, "onnx": 1.0}] * 4, spread=0.05)
    assert loud.wins == 0


def leaders_of(suite: Suite) -> list[str]:
    return [row.label for row in suite.rows if row.may_lead]


def test_backends_that_cannot_be_told_apart_both_lead() -> None:
    up_and_down: list[Planted] = [{"eager": 4.0, "onnx": 1.0 + n % 2, "openvino": 2.0 - n % 2} for n in range(4)]
    assert sorted(leaders_of(suite_of(up_and_down))) == ["onnx", "openvino"]
    assert leaders_of(suite_of([{"eager": 4.0, "onnx": 1.0, "openvino": 2.0}] * 4)) == ["onnx"]


def test_a_contest_that_a_killed_run_left_half_done_is_not_part_of_the_profile() -> None:
    half: list[Planted] = [*[{"eager": 2.0, "onnx": 1.0}] * 4, {"onnx": Status.ERROR}]
    found = suite_of(half)
    assert row(found, "onnx").profile.contests == 4
    assert (row(found, "onnx").passed, row(found, "onnx").asked) == (4, 5)


def test_the_order_of_contests_changes_nothing_but_their_order() -> None:
    made = records_of(FIVE)
    (there,), (back,) = (judge(report(each)).suites for each in (made, made[::-1]))
    assert {row.label: row for row in there.rows} == {row.label: row for row in back.rows}
    assert there.lead and back.lead and there.lead.value == pytest.approx(back.lead.value)


latencies = st.floats(0.5, 50).map(lambda value: round(value, 2))
values = st.one_of(latencies, latencies, latencies, st.sampled_from([Status.ERROR, Status.UNAVAILABLE]))
model = st.fixed_dictionaries({"eager": latencies, "onnx": values, "openvino": values})


@settings(max_examples=12, deadline=None)
@given(st.lists(model, min_size=MIN_MODELS, max_size=MIN_MODELS + 1))
def test_any_suite_adds_up(models: list[Planted]) -> None:
    found = suite_of(models)
    for each in found.rows:
        shares = [each.profile.share(tau) for tau in (1.0, *TAUS, 1e9)]
        assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] == each.passed / len(models)
        assert each.passed <= each.asked == len(models) - each.cannot_run
    eager = row(found, "eager")
    if found.common:
        assert eager.is_baseline and eager.means.speedup == pytest.approx(1) and eager.means.memory == 1
        assert found.rows[0].label in leaders_of(found)
    assert sum(each.profile.share(1.0) for each in found.rows) >= 1
    assert found.wins <= len(models)
    assert sum(len(each.labels) * len(each.contests) for each in found.failures) == sum(
        each.asked - each.passed for each in found.rows
    )


@given(st.lists(st.floats(1, 1e3), max_size=30), st.integers(0, 10), st.floats(1, 1e3), st.floats(1, 1e3))
def test_a_profile_rises_to_the_pass_rate(ratios: list[float], lost: int, one: float, other: float) -> None:
    profile = Profile(tuple(sorted(ratios)), len(ratios) + lost)
    assert profile.share(min(one, other)) <= profile.share(max(one, other)) <= profile.share(1e4)
    if ratios:
        assert profile.share(1e4) == len(ratios) / (len(ratios) + lost)


@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0.001, 0.2))
def test_holm_is_as_strict_as_each_test_alone_and_less_strict_than_bonferroni(
    chances: list[float], error: float
) -> None:
    rejected = holm(chances, error)
    for chance, is_rejected in zip(chances, rejected, strict=True):
        assert not is_rejected or chance <= error
        assert is_rejected or chance > error / len(chances)
    worst = max((chance for chance, is_rejected in zip(chances, rejected, strict=True) if is_rejected), default=-1)
    assert all(is_rejected or chance >= worst for chance, is_rejected in zip(chances, rejected, strict=True))


def test_holm_by_hand() -> None:
    """0.005 is within 0.05 / 4, and 0.01 within 0.05 / 3, but 0.03 not within 0.05 / 2: it ends there."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]


def test_a_win_that_a_verdict_calls_is_unlikely_by_chance_and_a_tie_is_not() -> None:
    (called,) = judge(report(records_of([{"eager": 2.0, "onnx": 1.0}]))).contests
    assert called.fastest.winner == "onnx" and chance_of_win(called.fit, "onnx", ["eager"]) < 1e-3
    (tied,) = judge(report(records_of([{"eager": 1.0, "onnx": 1.0}], spread=0.01))).contests
    assert chance_of_win(tied.fit, tied.ranked[0].label, [tied.ranked[1].label]) > 0.05


@pytest.mark.parametrize(("lead", "is_clear"), [(1.3, True), (1.05, False), (1.03, False)])
def test_a_single_process_must_lead_by_more_than_equal_processes_differ(lead: float, is_clear: bool) -> None:
    noise = [1 + 0.01 * (n % 4) for n in range(12)]
    made = [
        ok(cell(label), constant([level * turn for turn in turns]))
        for label, level, turns in (("onnx", 1.0, noise), ("eager", lead, noise[::-1]))
    ]
    (contest,) = judge(report(made)).contests
    assert (chance_of_win(contest.fit, "onnx", ["eager"]) < 0.001) is is_clear
