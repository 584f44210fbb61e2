"""What figures say in words agrees with the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from bakeoff.judging.judgement import ContestJudgement, contests_of, judged_anew
from bakeoff.records.schema import Record
from bakeoff.reports import findings
from tests.reports.samples import cell, ok, over_processes, report


def lived(level_ms: float, backend: str, layouts: Sequence[float]) -> Record:
    return ok(cell(backend), over_processes(level_ms, tuple(layouts)))


def view(*made: Record) -> ContestJudgement:
    return contests_of(judged_anew(report(list(made)), None, None))[0]


def test_a_lead_that_the_verdict_does_not_call_is_not_counted_as_faster() -> None:
    equal = view(lived(1.0, "onnx", [1.0]), lived(1.03, "eager", [1.0]))
    assert equal.fastest.tied
    assert findings.speedup(equal) == "none of 1 faster than eager, 1 more perhaps"
    faster = view(lived(1.0, "onnx", [1.0]), lived(1.5, "eager", [1.0]))
    assert findings.speedup(faster) == "1 of 1 faster than eager"


def test_what_is_not_decided_is_not_called_a_tie() -> None:
    steady, noisy = [1.0, 1.001, 0.999, 1.0, 1.001], [1.0, 1.04, 0.96]
    assert (
        findings.latency(view(lived(1.0, "onnx", steady), lived(1.0, "eager", steady))) == "onnx and eager tie on conv"
    )
    undecided = view(lived(1.0, "onnx", noisy), lived(1.03, "eager", noisy[::-1]))
    assert undecided.fastest.is_open
    assert findings.latency(undecided) == "onnx and eager are not decided on conv"


def test_a_winner_only_leads_while_another_cell_is_open() -> None:
    steady, wild = [1.0, 1.001, 0.999, 1.0, 1.001], [0.6, 1.0, 1.9, 1.2, 0.7]
    open_still = view(lived(1.0, "onnx", steady), lived(1.3, "eager", steady), lived(1.6, "openvino", wild))
    assert (open_still.fastest.leader, open_still.fastest.is_open) == ("onnx", True)
    assert findings.latency(open_still) == "onnx leads on conv, openvino not decided"
