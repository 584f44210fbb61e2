"""Whole requests: the stages around the model are in every sum, and decide who is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.judging.judgement import judge
from bakeoff.records.schema import AroundCall, Record
from bakeoff.reports import end_to_end, headline
from bakeoff.reports.json_answer import _answer
from bakeoff.reports.run_report import to_markdown, to_short_markdown
from tests.reports.samples import LAYOUTS, lived, once, report


def staged(record: Record, **stages_ms: float) -> Record:
    """Return the record with these stages, timed in each of its processes."""
    around = [
        AroundCall(name=name, process=process, calls=10, median_ms=ms * LAYOUTS[process])  # type: ignore[arg-type]
        for name, ms in stages_ms.items()
        for process in range(len(record.processes))
    ]
    return record.model_copy(update={"around": around})


def judged(*records: Record) -> EndToEnd:
    found = judge_contest(records).end_to_end
    assert found is not None
    return found


def test_a_model_four_times_faster_behind_slow_stages_is_a_tie_and_says_where_the_time_is() -> None:
    records = [staged(lived(0.1, "onnx"), before=20.0), staged(lived(0.4, "eager"), before=20.0)]
    found = judged(*records)
    assert judge_contest(records).fastest.winner == "onnx"
    assert found.answer.certainty is Certainty.TIE
    assert found.answer.tied == ("onnx", "eager")
    assert [(row.label, row.rank) for row in found.answer.rows] == [("onnx", 1), ("eager", 1)]
    assert found.longest.name == "before()"
    assert found.longest.share == pytest.approx(0.995, abs=0.001)
    told = headline.line(judge_contest(records))
    whole = "whole requests: onnx or eager, 20.11 ms (100 % of it before()), tie"
    assert told == f"onnx, 0.1000 ms, 4.00x eager, sure winner; {whole}"


def test_the_speedup_of_a_request_is_that_of_the_sums() -> None:
    records = [staged(lived(1.0, "onnx"), before=1.0, after=0.5), staged(lived(4.0, "eager"), before=1.0, after=0.5)]
    found = judged(*records)
    assert found.answer.certainty is Certainty.SURE
    assert found.answer.winner == "onnx"
    assert found.answer.speedup is not None
    assert found.answer.speedup.value == pytest.approx(5.5 / 2.5, rel=0.01)
    assert found.answer.speedup.ci95 is not None
    assert found.answer.speedup.ci95.low < 5.5 / 2.5 < found.answer.speedup.ci95.high
    assert [step.name for step in found.steps] == ["before()", "the model", "after()"]
    assert sum(step.share for step in found.steps) == pytest.approx(1.0)
    assert found.answer.rows[0].interval is not None


def test_one_disturbed_process_of_an_epoch_moves_no_stage() -> None:
    records = [staged(lived(ms, name), before=20.0) for ms, name in ((1.0, "onnx"), (2.0, "eager"), (3.0, "null"))]
    steady = judged(*records).steps[0].ms
    disturbed = records[2].model_copy(
        update={"around": [each.model_copy(update={"median_ms": 50.0}) for each in records[2].around[:1]]}
    )
    assert judged(*records[:2], disturbed).steps[0].ms == pytest.approx(steady, rel=0.01)


def test_without_stages_nothing_is_said() -> None:
    contest = judge_contest([lived(1.0, "onnx"), lived(4.0, "eager")])
    assert contest.end_to_end is None
    assert "end to end" not in headline.line(contest)
    assert _answer(contest).end_to_end is None


def test_a_stage_that_failed_is_told_and_nothing_is_judged() -> None:
    failed = lived(1.0, "onnx").model_copy(update={"around": [AroundCall(name="after", failure="KeyError: 'boxes'")]})
    found = judged(failed, lived(4.0, "eager"))
    assert found.answer.rows == ()
    assert found.failures == ("after() failed: KeyError: 'boxes'",)
    assert "after() failed" in to_markdown(judge(report([failed])))


def test_one_process_shows_a_tie_where_the_model_hardly_counts_and_says_else_what_decides() -> None:
    """Even a model that takes no time at all could not shorten such a request by 2 %."""
    tied = [staged(once(0.0036, "onnx"), before=2.11), staged(once(0.0155, "eager"), before=2.11)]
    assert judged(*tied).answer.certainty is Certainty.TIE
    undecided = [staged(once(0.1, "onnx"), before=2.11), staged(once(0.18, "eager"), before=2.11)]
    assert judged(*undecided).answer.certainty is Certainty.OPEN
    contest = judge_contest(undecided)
    assert "sure winner (one process); whole requests: onnx or eager, 2.210 ms (" in headline.line(contest)
    assert end_to_end.sentences(contest)[1] == (
        "One process of each cannot show how whole requests compare, because equal processes can be 4 % apart. "
        "Measure more of them: --processes 3"
    )


@pytest.mark.parametrize(
    ("spread", "certainty"), [(0.01, Certainty.SURE), (0.9, Certainty.OPEN), (None, Certainty.OPEN)]
)
def test_a_stage_of_one_process_has_the_interval_of_its_calls(spread: float | None, certainty: Certainty) -> None:
    """The stage is timed by one cell alone. Without parts of its calls, as in old records, nothing is known of it."""
    record = staged(once(1.0, "onnx"), before=3.0)
    blocks = [] if spread is None else [3.0 * (1.0 + spread * (number - 5.5) / 5.5) for number in range(12)]
    around = [each.model_copy(update={"block_medians_ms": blocks}) for each in record.around]
    found = judged(record.model_copy(update={"around": around}), once(1.2, "eager"))
    assert found.answer.certainty is certainty
    assert (found.answer.rows[0].interval is None) is (spread is None)


def test_every_output_shows_whole_requests(tmp_path: Path) -> None:
    records = [staged(lived(0.1, "onnx"), before=20.0, after=1.0), staged(lived(0.4, "eager"), before=20.0, after=1.0)]
    whole = judge(report(records))
    for text in (to_markdown(whole), to_short_markdown(whole, tmp_path)):
        assert "whole requests: onnx or eager, 21.1" in text and "before()), tie" in text
        assert "before() 20.0" in text
    answer = _answer(whole.contests[0]).end_to_end
    assert answer is not None
    assert answer.tied == ["onnx", "eager"]
    assert answer.request_ms["eager"] == pytest.approx(21.4, rel=0.01)
