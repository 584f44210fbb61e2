"""One rule for every question: who wins, who ties, what is open, how sure that is, and what a ratio allows to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.answer import Answer, Certainty, Question, Score, Shared, Term, rank
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.decision import (
    FEWEST_FOR_NARROW_LEAD,
    FEWEST_PROCESSES,
    MARGIN,
    MARGIN_UNPAIRED,
    MAX_PROCESSES,
    Relation,
    is_decided,
    may_be_decided,
    relation,
)
from bakeoff.judging.estimate import ratio_over_processes, series_of
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.judgement import judge
from bakeoff.judging.start_times import judge_starts
from bakeoff.records.schema import Interval, LeftEarly, Ratio, Record, RecordedSize
from bakeoff.records.start_samples import Start, StartedCell
from tests.judging.test_costs import carrying
from tests.judging.test_suites import SIZES, staged
from tests.reports.samples import LAYOUTS, cell, ok, report, steady

Levels = Mapping[str, Sequence[float]]
"""How long each cell takes in each of its processes, as a multiple of a usual call."""

WIDE = (0.6, 1.0, 1.9, 1.2, 0.7)


def calls(levels: Levels, times: float = 1.0, **of_cell: object) -> list[Record]:
    return [
        ok(cell(name, **of_cell), steady([times * level for level in of_processes]))  # type: ignore[arg-type]
        for name, of_processes in levels.items()
    ]


def latency(levels: Levels) -> Answer:
    return judge_contest(calls(levels)).answer


def load(levels: Levels) -> Answer:
    made = [carrying(name, [400 / level for level in of_processes]) for name, of_processes in levels.items()]
    return judge_contest(made).answer


def generation(levels: Levels) -> Answer:
    tasks = {"prefill": 100.0, "decode": 10.0}
    made = [calls(levels, ms, model="transformer_lm", task=task, dimensions=SIZES) for task, ms in tasks.items()]
    return judge(report([record for records in made for record in records])).contests[1].answer


def recorded_sizes(levels: Levels) -> Answer:
    made = []
    for size, count in {"8x4": 90, "64x4": 10}.items():
        recorded = RecordedSize(file="calls.pt", calls=count, of_calls=100)
        made += calls(levels, 100 / count, dimensions={"call": size}, recorded=recorded)
    (mix,) = judge(report(made)).mixes
    return mix.answer


def whole_requests(levels: Levels) -> Answer:
    found = judge_contest([staged(record, before=0.05) for record in calls(levels)]).end_to_end
    assert found is not None
    return found.answer


def starts(levels: Levels) -> Answer:
    cells = []
    for name, of_processes in levels.items():
        seconds = [level for level in of_processes for _ in range(8 if len(of_processes) > 1 else 3)]
        stages = {"interpreter_s": 0.0, "imports_s": 0.0, "first_answer_s": 0.0, "later_answers_s": 0.1}
        sizes = {"peak_bytes": None, "steady_bytes": None, "device_bytes": None}
        made = [Start.model_validate({**stages, **sizes, "load_s": second}) for second in seconds]
        cells.append(StartedCell(cell_id=name, label=name, starts=made))
    return judge_starts(cells).answer


ASKED: Mapping[Question, Callable[[Levels], Answer]] = {
    Question.LATENCY: latency,
    Question.LOAD: load,
    Question.GENERATION: generation,
    Question.SIZES: recorded_sizes,
    Question.REQUEST: whole_requests,
    Question.START: starts,
}
every_question = pytest.mark.parametrize("question", ASKED)


def slower(times: float, layouts: Sequence[float] = LAYOUTS) -> list[float]:
    return [times * layout for layout in layouts]


@every_question
def test_what_is_surely_faster_wins(question: Question) -> None:
    answer = ASKED[question]({"eager": slower(2.0), "onnx": slower(1.0)})
    assert (answer.question, answer.winner, answer.certainty) == (question, "onnx", Certainty.SURE)
    assert (answer.runner_up, answer.tied, answer.open_labels) == ("eager", (), ())
    assert [(row.label, row.rank) for row in answer.rows] == [("onnx", 1), ("eager", 2)]
    assert answer.lead is not None and answer.lead.value == pytest.approx(2.0, rel=0.06)
    assert answer.lead.ci95 is not None and answer.lead.ci95.low > 1
    assert answer.processes >= len(LAYOUTS)


@every_question
def test_two_copies_share_the_first_place(question: Question) -> None:
    answer = ASKED[question]({"onnx": slower(1.0), "onnx/copy": slower(1.0)})
    assert (answer.winner, set(answer.candidates)) == (None, {"onnx", "onnx/copy"})
    assert [row.rank for row in answer.rows] == [1, 1]
    assert answer.certainty is Certainty.TIE


@every_question
def test_one_process_of_each_decides_no_narrow_lead(question: Question) -> None:
    answer = ASKED[question]({"onnx": [1.0], "eager": [1.02]})
    assert (answer.certainty, answer.winner, answer.tied) == (Certainty.OPEN, None, ("onnx", "eager"))
    assert answer.open_labels == ("eager",)


@every_question
def test_a_third_one_that_varies_may_still_be_as_good(question: Question) -> None:
    """Under load the number of processes was fixed before: only the first place is open. Starts go by their median."""
    is_open = question not in (Question.LOAD, Question.START)
    answer = ASKED[question]({"onnx": slower(1.0), "eager": slower(1.3), "openvino": slower(1.6, WIDE)})
    assert (answer.leader, answer.runner_up) == ("onnx", "eager")
    assert answer.candidates == (["onnx", "openvino"] if is_open else ["onnx"])
    assert answer.certainty is (Certainty.OPEN if is_open else Certainty.SURE)


@every_question
def test_a_single_cell_is_compared_with_none(question: Question) -> None:
    answer = ASKED[question]({"onnx": slower(1.0)})
    assert (answer.certainty, answer.winner, answer.lead, answer.runner_up) == (Certainty.ALONE, "onnx", None, None)


def test_without_a_cell_there_is_nothing() -> None:
    answer = rank(Question.LATENCY, Score([Term(fit({}))]), [])
    assert (answer.certainty, answer.best, answer.value, answer.candidates) == (Certainty.NOTHING, None, None, [])


def test_only_a_winner_is_doubted_and_others_say_what_is_always_said() -> None:
    sure = latency({"onnx": slower(1.0), "eager": slower(2.0)})
    assert (sure.doubted(["a", "b"]).certainty, sure.doubted(["a", "b"]).doubt) == (Certainty.DOUBTED, "a")
    assert sure.doubted([], always=["a"]).doubts == ("a",)
    tied = latency({"onnx": slower(1.0), "eager": slower(1.0)})
    assert (tied.doubted(["a", "b"]).certainty, tied.doubted(["a", "b"]).doubts) == (Certainty.TIE, ())
    assert tied.doubted(["a", "b"], always=["b"]).doubts == ("b",)


def fitted(levels: Levels) -> Fit:
    return fit({record.cell.label: series_of(record.bursts) for record in calls(levels)})


def test_a_score_is_the_weighted_sum_of_its_terms() -> None:
    few, many = fitted({"a": slower(1.0), "b": slower(4.0)}), fitted({"a": slower(10.0), "b": slower(8.0)})
    score = Score([Term(few, 0.75), Term(many, 0.25)], [Shared("before()", 2.0, None)])
    assert (score.ms("a"), score.ms("b")) == (pytest.approx(5.25, rel=0.01), pytest.approx(7.0, rel=0.01))
    assert score.ratio("a", "b").value == pytest.approx(score.ms("b") / score.ms("a"))
    assert score.ratio("a", "b").ci95 is None, "nothing is known of how much the stage before varies"
    plain = Score([Term(few)])
    assert (plain.ratio("a", "b"), plain.interval("a")) == (few.ratio("a", "b"), few.latency_ci95_ms("a"))


def test_the_interval_of_a_ratio_takes_each_term_by_its_share() -> None:
    still, wide = fitted({"a": [1.0] * 5, "b": [2.0] * 5}), fitted({"a": slower(1.0), "b": slower(1.0, LAYOUTS[::-1])})
    widths = []
    for weight in (0.0, 0.1, 1.0):
        interval = Score([Term(still), Term(wide, weight)]).ratio("a", "b").ci95
        assert interval is not None
        widths.append(interval.high / interval.low - 1)
    assert widths[0] == pytest.approx(0.0, abs=1e-9) and 0 < widths[1] < widths[2]


@pytest.mark.parametrize(("shared_ms", "is_beaten"), [(0.1, True), (30.0, False)])
def test_what_left_early_is_beaten_only_where_its_least_lead_shows(shared_ms: float, is_beaten: bool) -> None:
    left = {"b": LeftEarly(after_process=1, ratio=1.3, than="a")}
    score = Score([Term(fitted({"a": [1.0], "b": [1.02]}), left=left)], [Shared("before()", shared_ms, None)])
    assert score.is_beaten("a", "b") is is_beaten
    answer = rank(Question.REQUEST, score, ["a", "b"])
    assert answer.certainty is (Certainty.SURE if is_beaten else Certainty.TIE)


def test_a_cell_that_stayed_in_one_contest_is_not_beaten_by_having_left_another() -> None:
    left = {"b": LeftEarly(after_process=1, ratio=1.3, than="a")}
    terms = [Term(fitted({"a": [1.0], "b": [1.3]}), left=left), Term(fitted({"a": [1.0], "b": [0.7]}))]
    assert not Score(terms).is_beaten("a", "b")
    assert rank(Question.SIZES, Score(terms), ["a", "b"]).certainty is Certainty.OPEN


intervals = st.builds(
    lambda value, half, processes, paired: Ratio(
        value=value,
        ci95=Interval(low=value * np.exp(-half), high=value * np.exp(half)),
        paired=paired,
        processes=processes,
    ),
    st.floats(0.5, 2.0),
    st.floats(0.0, 0.5),
    st.integers(1, 12),
    st.booleans(),
)


def ratio(value: float, low: float, high: float, processes: int = 10, paired: bool = True) -> Ratio:
    return Ratio(value=value, ci95=Interval(low=low, high=high), paired=paired, processes=processes)


def inverse(of: Ratio) -> Ratio:
    assert of.ci95 is not None
    return ratio(1 / of.value, 1 / of.ci95.high, 1 / of.ci95.low, of.processes, of.paired)


@given(intervals)
def test_the_inverse_says_the_inverse(found: Ratio) -> None:
    mirror = {Relation.FASTER: Relation.SLOWER, Relation.SLOWER: Relation.FASTER}
    assert relation(inverse(found)) is mirror.get(relation(found), relation(found))
    assert is_decided(inverse(found)) == is_decided(found)


@given(intervals)
def test_what_is_decided_is_called_or_a_tie(found: Ratio) -> None:
    if is_decided(found):
        assert found.processes >= FEWEST_PROCESSES
        assert relation(found) is not Relation.UNDECIDED


@given(intervals)
def test_a_call_has_an_interval_without_one_and_a_difference_of_two_percent(found: Ratio) -> None:
    assert found.ci95 is not None
    if relation(found) is Relation.FASTER:
        assert found.ci95.low > 1
        assert found.value >= 1.02


@pytest.mark.parametrize(
    ("found", "call", "decided"),
    [
        (ratio(1.85, 1.80, 1.90), Relation.FASTER, True),
        (ratio(0.50, 0.49, 0.51), Relation.SLOWER, True),
        (ratio(1.05, 1.04, 1.06), Relation.FASTER, True),
        (ratio(1.019, 1.014, 1.023), Relation.TIE, True),  # under 2 %, and narrow
        (ratio(1.000, 0.985, 1.015), Relation.TIE, True),
        (ratio(1.010, 0.980, 1.040, processes=8), Relation.TIE, False),  # includes 1, but more processes might tell
        (ratio(1.010, 0.980, 1.040, processes=9), Relation.TIE, True),  # close, and after nine that is an answer
        (ratio(1.010, 0.970, 1.051, processes=9), Relation.TIE, False),
        (ratio(1.030, 1.011, 1.049, processes=9), Relation.UNDECIDED, False),  # one of them may be called faster
        (ratio(1.050, 1.010, 1.090), Relation.UNDECIDED, False),  # not at 99.9 %
        (ratio(1.050, 1.040, 1.060, processes=3), Relation.UNDECIDED, False),
        (ratio(1.050, 1.049, 1.051, processes=3), Relation.UNDECIDED, False),  # narrow, but of three processes only
        (ratio(1.050, 1.049, 1.051, processes=5), Relation.FASTER, True),
        (ratio(1.500, 1.450, 1.550, processes=3), Relation.FASTER, True),
        (ratio(1.260, 1.190, 1.334, processes=3), Relation.FASTER, True),  # at 99 %, and not at 99.9 %
        (ratio(1.240, 1.180, 1.303, processes=3), Relation.UNDECIDED, False),  # a narrow lead needs those
        (ratio(1.024, 1.0199, 1.0283, processes=10), Relation.FASTER, True),
    ],
)
def test_calls_over_processes(found: Ratio, call: Relation, decided: bool) -> None:
    assert (relation(found), is_decided(found)) == (call, decided)


def test_where_measuring_looks_once_a_lead_of_10_percent_is_wide() -> None:
    wide, narrow = ratio(1.12, 1.08, 1.161, processes=3), ratio(1.09, 1.051, 1.13, processes=3)
    assert (relation(wide), relation(wide, looks_once=True)) == (Relation.UNDECIDED, Relation.FASTER)
    assert is_decided(wide, looks_once=True) and not is_decided(narrow, looks_once=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_from_fewer_than_three_processes_a_lead_needs_a_margin_and_nothing_is_decided(processes: int) -> None:
    over, under = 1 + MARGIN + 0.001, 1 + MARGIN - 0.001
    assert relation(ratio(1.5, over, 2.0, processes)) is Relation.FASTER
    assert relation(ratio(1.5, under, 2.0, processes)) is Relation.UNDECIDED
    assert relation(ratio(1.0, 0.999, 1.001, processes)) is Relation.UNDECIDED
    assert not is_decided(ratio(1.5, over, 2.0, processes))


def test_a_lead_without_shared_rounds_needs_a_wide_margin_however_many_processes() -> None:
    over, under = 1 + MARGIN_UNPAIRED + 0.01, 1 + MARGIN_UNPAIRED - 0.01
    assert relation(ratio(1.5, over, 1.7, paired=False)) is Relation.FASTER
    assert relation(ratio(1.5, under, 1.7, paired=False)) is Relation.UNDECIDED
    assert relation(ratio(1.1, 1.05, 1.15, paired=False)) is Relation.TIE
    assert is_decided(ratio(1.10, 1.05, 1.15, paired=False))  # no number of processes would get it over the margin
    assert not is_decided(ratio(1.20, 1.05, 1.35, paired=False))


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (ratio(1.03, 0.86, 1.233, processes=8), True),
        (ratio(1.03, 0.86, 1.233, processes=9), False),
        (ratio(1.00, 0.95, 1.053, processes=9), True),  # within 5 % after twenty
        (ratio(1.10, 0.85, 1.424, processes=9), False),
        (ratio(1.20, 1.00, 1.44, processes=9), True),
    ],
)
def test_nine_processes_tell_whether_twenty_may_decide(found: Ratio, may: bool) -> None:
    assert not is_decided(found) and may_be_decided(found) is may


def test_without_an_interval_nothing_is_known() -> None:
    unknown = Ratio(value=3.0, ci95=None, paired=True)
    assert (relation(unknown), is_decided(unknown)) == (Relation.UNDECIDED, False)


def ends(biases: np.ndarray, true_ratio: float) -> list[Ratio]:
    """What measuring ends with, in each of the trials (trials x processes), looked at after each from the third on."""
    logs = biases + np.log(true_ratio)
    return [_end(trial.tolist()) for trial in logs]


def _end(logs: Sequence[float]) -> Ratio:
    looks = [ratio_over_processes(logs[:processes]) for processes in range(FEWEST_PROCESSES, len(logs) + 1)]
    return next((look for look in looks if is_decided(look)), looks[-1])


SLOW = pytest.mark.slow


@pytest.mark.parametrize("bias", [0.003, *(pytest.param(bias, marks=SLOW) for bias in (0.01, 0.03)), 0.08])
def test_equals_get_a_winner_in_at_most_one_of_a_hundred_contests(bias: float) -> None:
    trials = ends(np.random.default_rng(3).normal(0, bias * 2**0.5, (1000, MAX_PROCESSES)), 1.0)
    assert np.mean([relation(end) in (Relation.FASTER, Relation.SLOWER) for end in trials]) <= 0.01


@pytest.mark.parametrize("slower", [1.06, pytest.param(1.15, marks=SLOW)])
def test_nor_do_equals_whose_processes_come_in_two_kinds(slower: float) -> None:
    kinds = np.log(slower) * (np.random.default_rng(8).random((2, 1000, MAX_PROCESSES)) < 0.5)
    noise = np.random.default_rng(9).normal(0, 0.003, (1000, MAX_PROCESSES))
    trials = ends(kinds[0] - kinds[1] + noise, 1.0)
    assert np.mean([relation(end) in (Relation.FASTER, Relation.SLOWER) for end in trials]) <= 0.01


@pytest.mark.parametrize(("true_ratio", "power"), [(1.05, 0.99), (1.03, 0.90)])
def test_what_is_there_is_found(true_ratio: float, power: float) -> None:
    trials = ends(np.random.default_rng(4).normal(0, 0.015 * 2**0.5, (1000, MAX_PROCESSES)), true_ratio)
    assert np.mean([relation(end) is Relation.FASTER for end in trials]) >= power


def test_a_small_difference_takes_more_processes_than_a_large_one_but_never_two() -> None:
    noise = np.random.default_rng(5).normal(0, 0.01, (200, MAX_PROCESSES))
    large, small = (np.mean([end.processes for end in ends(noise, true)]) for true in (1.5, 1.05))
    assert 3 <= large < 3.5
    assert FEWEST_FOR_NARROW_LEAD <= small < 7
