"""What the last run of a contest said, and whether this one can be true beside it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.certainty import Effect
from bakeoff.judging.compare import compare
from bakeoff.judging.doubts import LastRunDiffers
from bakeoff.judging.judgement import judge
from bakeoff.judging.last_run import last_verdicts
from bakeoff.records.report_file import write_json
from bakeoff.records.schema import Report
from bakeoff.reports import doubt_sentences, headline
from bakeoff.reports.comparison import to_markdown
from bakeoff.reports.sentences import stored_verdict
from tests.reports.samples import cell, environment, lived, report

LATE = "2026-05-02T10:00:00Z"
LATER = "2026-05-03T10:00:00Z"


def run(onnx_ms: float, **more: object) -> Report:
    """Return a run of eager at 1 ms and of onnx, with its verdict."""
    made = report([lived(1.0, "eager"), lived(onnx_ms, "onnx")], **more)
    return made.model_copy(update={"verdicts": [stored_verdict(contest) for contest in judge(made).contests]})


def after(last_onnx_ms: float, onnx_ms: float) -> Report:
    last = run(last_onnx_ms).verdicts[0].model_copy(update={"run_id": "yesterday"})
    return run(onnx_ms, last_verdicts=[last])


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "certainty", "effect"),
    [
        (0.5, 0.5, Certainty.SURE, None),
        (0.4, 0.5, Certainty.SURE, Effect.NUMBER),
        (1.8, 0.5, Certainty.DOUBTED, Effect.WINNER),
    ],
)
def test_a_run_that_says_other_than_the_last_one_has_a_doubt(
    before_ms: float, now_ms: float, certainty: Certainty, effect: Effect | None
) -> None:
    (contest,) = judge(after(before_ms, now_ms)).contests
    told = [
        (its, each)
        for its, doubts in contest.doubts_by_effect.items()
        for each in doubts
        if isinstance(each, LastRunDiffers)
    ]
    assert (contest.fastest.certainty, [its for its, _ in told]) == (certainty, [effect] if effect is not None else [])
    if effect is Effect.WINNER:
        assert headline.certainty(contest) == "but the last run said the opposite"
        said = doubt_sentences.doubt(told[0][1])
        assert said.startswith("the last run (yesterday) said the opposite: onnx was 0.56x as fast as eager")


def test_two_runs_that_say_the_opposite_are_told_in_a_comparison() -> None:
    ((title, found),) = compare(run(0.5), run(1.8)).opposite
    assert (title, found.label, found.other) == ("conv on cpu, fp32", "onnx", "eager")
    assert "The two runs say the opposite" in to_markdown(compare(run(0.5), run(1.8)))
    assert compare(run(0.5), run(0.4)).opposite == []


@pytest.mark.parametrize(
    ("more", "is_found"),
    [
        ({}, True),
        ({"created_at": LATER}, False),
        ({"own_files": {"net.py": "ab"}}, False),
        ({"environment": environment().model_copy(update={"hostname": "another"})}, False),
        ({"environment": environment().model_copy(update={"python": "3.0"})}, False),
    ],
)
def test_the_last_run_is_one_of_the_same_files_on_the_same_machine(
    tmp_path: Path, more: Mapping[str, object], is_found: bool
) -> None:
    write_json(run(0.5, **more), tmp_path / "last")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    found = last_verdicts(tmp_path / "now", run(0.4, created_at=LATE))
    assert [each.run_id for each in found] == (["20260501-100000-conv"] if is_found else [])


def test_the_latest_of_several_runs_counts_for_each_contest(tmp_path: Path) -> None:
    other = report([lived(1.0, "eager").model_copy(update={"cell": cell("eager").model_copy(update={"seed": 3})})])
    write_json(run(0.5, run_id="first"), tmp_path / "a")
    write_json(run(0.4, run_id="second"), tmp_path / "b")
    write_json(other, tmp_path / "c")
    assert [each.run_id for each in last_verdicts(tmp_path / "now", run(0.4, created_at=LATE))] == ["second"]
