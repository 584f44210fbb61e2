"""Every output of a run names the same winner, with the same certainty, whatever was asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bakeoff.api.pipelines import cells_to_ship
from bakeoff.api.result import Result
from bakeoff.judging.answer import Certainty, Question
from bakeoff.judging.judgement import judge
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.reports import headline, junit, sentences, summary
from bakeoff.reports.first_screen import export_command
from bakeoff.reports.json_answer import ContestAnswer, answer_of
from bakeoff.reports.markdown import escape
from bakeoff.reports.run_report import to_markdown, to_short_markdown
from bakeoff.shipping.export import choose
from tests.judging import test_end_to_end as end_to_end
from tests.judging import test_generation as generations
from tests.judging import test_load as loads
from tests.judging import test_precisions as precisions
from tests.reports import samples, test_dynamic
from tests.reports.samples import lived, once

ARTEFACT = {"artifact": "artifacts/made"}


def fast_and_slow(**more: object) -> list[Record]:
    """Return a build that is ten times as fast as eager, and took 20 s."""
    return [lived(1.0, "onnx", build_s=20.0, **ARTEFACT, **more), lived(10.0, "eager", **ARTEFACT, **more)]


def carrying(*rates: float, ceiling: float = 9000.0) -> list[Record]:
    """Return builds that carry these rates, and take the longer for a call the more they carry."""
    names = ("openvino", "eager", "onnx")
    return [
        loads.carrying(name, [rate, 1.01 * rate, 0.99 * rate], rate / 100, ceiling=ceiling)
        for name, rate in zip(names, rates, strict=False)
    ]


def generating(first_ms: float, further_ms: float) -> list[Record]:
    """Return eager beside a build that takes this for the prompt, and this for each further token."""
    return [*generations.both(100.0, 10.0, "eager"), *generations.both(first_ms, further_ms, "onnx", build_s=3.0)]


def wrong_prefill() -> list[Record]:
    wrong = samples.failed(generations.part("prefill", 1.0, "eager").cell, Status.INCORRECT, "wrong")
    return [wrong, generations.part("decode", 1.0, "eager"), generations.part("prefill", 5.0, "onnx")]


KINDS: dict[str, tuple[Callable[[], list[Record]], dict[str, object], Question, str | None, Certainty]] = {
    "latency": (fast_and_slow, {}, Question.LATENCY, "onnx", Certainty.SURE),
    "a tie": (lambda: [lived(1.0, "onnx"), lived(1.0, "eager")], {}, Question.LATENCY, None, Certainty.TIE),
    "one process": (lambda: [once(1.0, "onnx"), once(1.02, "eager")], {}, Question.LATENCY, None, Certainty.OPEN),
    "one of three open": (
        lambda: [lived(1.0, "onnx"), lived(1.3, "eager"), lived(1.6, "openvino", [0.6, 1.0, 1.9, 1.2, 0.7])],
        {},
        Question.LATENCY,
        None,
        Certainty.OPEN,
    ),
    "few calls": (fast_and_slow, {"calls": 10}, Question.CALLS, "eager", Certainty.SURE),
    "many calls": (fast_and_slow, {"calls": 10**6}, Question.CALLS, "onnx", Certainty.SURE),
    "calls about where they cross": (fast_and_slow, {"calls": 2222}, Question.CALLS, None, Certainty.OPEN),
    "load": (lambda: carrying(400, 250), {}, Question.LOAD, "openvino", Certainty.SURE),
    "a tie under load": (lambda: carrying(400, 400), {}, Question.LOAD, None, Certainty.TIE),
    "load near the generator's limit": (lambda: carrying(6000, 400), {}, Question.LOAD, "openvino", Certainty.DOUBTED),
    "nothing carried anything": (
        lambda: [
            each.model_copy(update={"load": each.load and each.load.model_copy(update={"turns": []})})
            for each in carrying(400, 250)
        ],
        {},
        Question.LOAD,
        None,
        Certainty.NOTHING,
    ),
    "load and calls": (lambda: carrying(400, 250), {"calls": 10}, Question.LOAD, "openvino", Certainty.SURE),
    "generation": (lambda: generating(500.0, 9.0), {}, Question.GENERATION, "eager", Certainty.SURE),
    "a generation that ties": (lambda: generating(100.1, 10.01), {}, Question.GENERATION, None, Certainty.TIE),
    "precisions": (precisions.records, {}, Question.LATENCY, "onnx fp32", Certainty.SURE),
    "precisions by their error": (
        precisions.records,
        {"require": "relative_rmse<5e-2"},
        Question.LATENCY,
        "onnx int8",
        Certainty.SURE,
    ),
    "end to end": (
        lambda: [end_to_end.staged(each, before=20.0) for each in fast_and_slow()],
        {},
        Question.LATENCY,
        "onnx",
        Certainty.SURE,
    ),
    "end to end over calls": (
        lambda: [end_to_end.staged(each, before=20.0) for each in fast_and_slow()],
        {"calls": 10},
        Question.CALLS,
        "eager",
        Certainty.SURE,
    ),
    "one build for sizes": (test_dynamic.records, {}, Question.LATENCY, None, Certainty.TIE),
    "a suite over calls": (samples.suite, {"calls": 10}, Question.CALLS, "eager", Certainty.SURE),
    "nothing": (
        lambda: [samples.failed(samples.cell(), Status.ERROR, "no")],
        {},
        Question.LATENCY,
        None,
        Certainty.NOTHING,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_output_has_the_same_answer(kind: str, tmp_path: Path) -> None:
    records, request, question, winner, certainty = KINDS[kind]
    made = samples.report(records(), request=request)
    judgement = judge(made)
    contest = judgement.contests[-1]
    asked = contest.answer
    assert (asked.question, asked.winner, asked.certainty) == (question, winner, certainty)

    answer = answer_of(judgement, tmp_path).contests[-1]
    assert (answer.question, answer.winner, answer.outcome) == (question, winner, certainty)
    assert answer.headline == headline.line(contest)
    assert set(answer.candidates) == {*([winner] if winner else []), *answer.tied, *answer.open, *answer.candidates[:1]}
    if answer.candidates:
        assert answer.headline.startswith(" or ".join(answer.candidates)) and answer.value and answer.latency_ms
    assert answer.doubts[: len(answer.doubts_of_winner)] == answer.doubts_of_winner
    assert bool(answer.doubts_of_winner) or certainty is not Certainty.DOUBTED
    assert (answer.at_single_calls is None) == (question is Question.LATENCY)

    stored = sentences.with_verdicts(judgement).verdicts[-1]
    assert (stored.winner, stored.unstable) == (winner, certainty is Certainty.OPEN)
    assert answer.headline in stored.sentence or question is Question.LATENCY

    answers = ElementTree.fromstring(junit.of_run(judgement)).iter("property")
    assert [each.attrib["value"] for each in answers][-1] == answer.headline
    named = escape(headline.candidates(contest) if asked.candidates else headline.certainty(contest))
    for text in (to_markdown(judgement), to_short_markdown(judgement, tmp_path), summary.of_run(judgement)):
        assert named.lower() in text.lower()

    check_what_ships(made, answer, tmp_path)


def check_what_ships(made: Report, answer: ContestAnswer, folder: Path) -> None:
    """What `export`, `Result` and `apply` take without a name is the winner of the answer."""
    judgement = judge(made)
    contest = judgement.contests[-1]
    if answer.winner is None:
        with pytest.raises(UsageError, match="no winner to export"):
            choose(made, contest.contest_id)
        return
    record = choose(made, contest.contest_id)
    assert record.cell.label == answer.winner
    if len(judgement.contests) == 1:
        assert Result(made, folder).winner == answer.winner
        shipped = cells_to_ship(Result(made, folder))
        assert shipped == ([] if answer.winner == answer.baseline else [record.cell.id])
    if record.artifact:
        command = export_command(contest, str(folder), judgement.contests).split()
        assert choose(made, command[-1].strip("'")).cell.label == answer.winner


def test_what_answers_single_calls_is_told_beside_the_answer(tmp_path: Path) -> None:
    judgement = judge(samples.report(fast_and_slow(), request={"calls": 10}))
    (answer,) = answer_of(judgement, tmp_path).contests
    beside = answer.at_single_calls
    assert (answer.winner, answer.unit, answer.runner_up) == ("eager", "s", "onnx")
    assert answer.value == pytest.approx(0.1, abs=0.01) and answer.latency_ms == pytest.approx(10.0, abs=0.1)
    assert answer.lead is not None and answer.lead.value > 100
    assert beside and (beside.winner, beside.unit, beside.latency_ms) == ("onnx", "ms", pytest.approx(1.0, abs=0.01))
    assert beside.speedup is not None and beside.speedup.value == pytest.approx(10.0, abs=0.1)
