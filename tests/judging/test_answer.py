"""One rule for every question: who wins, who ties, what is open, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from bakeoff.judging.answer import Answer, Certainty, Question, Score, Shared, Term, rank
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.judgement import judge
from bakeoff.judging.start_times import judge_starts
from bakeoff.records.schema import LeftEarly, Record, RecordedSize
from bakeoff.records.start_samples import Start, StartedCell
from tests.judging.test_end_to_end import staged
from tests.judging.test_generation import SIZES
from tests.judging.test_load import carrying
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
