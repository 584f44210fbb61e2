"""One verdict over recorded calls of several sizes, from records to every output."""

import io
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bakeoff
from bakeoff.judging.answer import Certainty
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.mix import Mix
from bakeoff.records.schema import Cell, Record, RecordedSize, Status
from bakeoff.reports import mix as told
from bakeoff.reports import summary
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import print_report, to_markdown, to_page
from tests.reports.samples import cell, failed, ok, report, steady

COUNTS = {"8x4": 90, "64x4": 10}

PROCESSES = 6


def of(label: str, size: str, of_calls: int = 100) -> Cell:
    recorded = RecordedSize(file="calls.pt", calls=COUNTS[size], of_calls=of_calls)
    return cell(label, model="net.py:factory", dimensions={"call": size}).model_copy(update={"recorded": recorded})


def measured(label: str, size: str, milliseconds: float, spread: float = 0.0, of_calls: int = 100) -> Record:
    """Return a cell whose processes differ, each label in another order."""
    turns = [1 + spread * ((process * (len(label) + 2)) % 5 - 2) for process in range(PROCESSES)]
    return ok(of(label, size, of_calls), steady([milliseconds * turn for turn in turns], rounds=6), build_s=2.0)


def judged(latencies_ms: Mapping[str, tuple[float, float]], **more: float) -> Judgement:
    records = [
        measured(label, size, ms, **more)  # type: ignore[arg-type]
        for label, both in latencies_ms.items()
        for size, ms in zip(COUNTS, both, strict=True)
    ]
    return judge(report(records))


def only(judgement: Judgement) -> Mix:
    (mix,) = judgement.mixes
    return mix


def test_means_are_the_latencies_weighted_by_frequency() -> None:
    mix = only(judged({"eager": (2.0, 20.0), "onnx": (1.0, 30.0), "openvino": (1.5, 5.0)}))
    assert [(size.name, size.weight) for size in mix.sizes] == [("8x4", 0.9), ("64x4", 0.1)]
    assert {row.label: row.value for row in mix.rows} == pytest.approx({"openvino": 1.85, "eager": 3.8, "onnx": 3.9})
    assert (mix.answer.winner, mix.answer.certainty, mix.covered) == ("openvino", Certainty.SURE, 1.0)
    best = mix.rows[0]
    assert best.speedup is not None and best.speedup.value == pytest.approx(3.8 / 1.85)
    assert [row.rank for row in mix.rows] == [1, 2, 3]
    assert told.finding(mix) == "openvino wins at a mean of 1.850 ms a request, 2.05x as fast as eager, sure winner"


def test_the_winner_of_every_size_may_differ_from_that_of_the_mix() -> None:
    judgement = judged({"eager": (2.0, 20.0), "onnx": (1.0, 30.0), "openvino": (1.01, 5.0)})
    assert judgement.contests[0].fastest.candidates[0] == "onnx"
    assert only(judgement).answer.winner == "openvino"


def test_the_weights_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_ms = {"eager": (2.0, 20.0), "onnx": (1.0, 30.0), "openvino": (2.0, 10.0)}
    assert only(judged(latencies_ms)).answer.winner == "openvino"
    monkeypatch.setitem(COUNTS, "8x4", 990)
    assert only(judged(latencies_ms, of_calls=1000)).answer.winner == "onnx"


def test_intervals_of_sizes_add_up_as_squares() -> None:
    mix = only(judged({"eager": (4.0, 40.0), "onnx": (1.0, 11.0)}, spread=0.01))
    row, contests = mix.rows[0], [size.contest for size in mix.sizes]
    assert row.interval is not None and row.value is not None
    ends = [contest.fit.latency_ci95_ms("onnx") for contest in contests]
    above = [
        weight * (interval.high - contest.fit.latency_ms["onnx"])
        for weight, interval, contest in zip((0.9, 0.1), ends, contests, strict=True)
        if interval
    ]
    assert row.interval.high - row.value == pytest.approx(math.hypot(*above))
    lead = mix.answer.leads["eager"]
    single = [contest.fit.ratio("onnx", "eager") for contest in contests]
    widths = [ratio.ci95.high / ratio.ci95.low for ratio in (lead, *single) if ratio.ci95]
    assert 1 < widths[0] < max(widths[1:]) and lead.processes == PROCESSES and lead.paired


def test_what_has_no_build_for_a_size_is_not_ranked_and_says_so() -> None:
    records = [measured(label, size, ms) for label, ms in (("eager", 2.0), ("onnx", 1.0)) for size in COUNTS]
    records += [measured("tensorrt", "8x4", 0.1), failed(of("tensorrt", "64x4"), Status.UNSUPPORTED, "no such axis")]
    judgement = judge(report(records))
    mix = only(judgement)
    assert mix.answer.winner == "onnx" and mix.rows[-1].label == "tensorrt" and mix.rows[-1].value is None
    assert told.why_not(mix.rows[-1], mix) == "at 64x4: no such axis"
    assert "at 64x4: no such axis" in to_markdown(judgement)


def test_sizes_that_were_not_measured_are_told() -> None:
    mix = only(judged({"eager": (2.0, 20.0), "onnx": (1.0, 10.0)}, of_calls=125))
    assert mix.covered == pytest.approx(0.8)
    assert told.title(mix) == "net.py:factory on cpu, fp32: 100 recorded calls (80 % of all) of 2 sizes"


def test_every_output_has_the_verdict_over_the_mix(tmp_path: Path) -> None:
    judgement = judged({"eager": (2.0, 20.0), "onnx": (1.0, 10.0)})
    printed = io.StringIO()
    print_report(judgement, Console(file=printed, width=200))
    sentence = "onnx wins at a mean of 1.900 ms a request, 2.00x as fast as eager, sure winner"
    for output in (printed.getvalue(), to_markdown(judgement), to_page(judgement), summary.of_run(judgement)):
        assert sentence in output
    (answer,) = answer_of(judgement, tmp_path).mixes
    result = bakeoff.Result(judgement.report, tmp_path)
    assert result.winner == "onnx" and result.speedup is not None and result.speedup.value == pytest.approx(2.0)
    assert (answer.winner, answer.outcome, answer.finding) == ("onnx", "sure", sentence)
    assert [(size.name, size.weight) for size in answer.sizes] == [("8x4", 0.9), ("64x4", 0.1)]
    assert answer.rows[0].latency_ms == pytest.approx({"8x4": 1.0, "64x4": 10.0})


def test_contests_without_recorded_calls_make_no_mix() -> None:
    records = [ok(cell("eager", dimensions={"call": size}), steady([1.0] * 3)) for size in COUNTS]
    assert judge(report(records)).mixes == ()
    one = [measured("eager", "8x4", 1.0)]
    assert judge(report(one)).mixes == ()


@pytest.mark.slow
def test_what_a_program_asked_for_is_measured_and_judged_as_one(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with bakeoff.record(module) as calls:
        for rows in (2, 2, 2, 32):
            module(torch.randn(rows, 16))
    brief = {"min_time": 0.05, "processes": 3, "progress": False}
    result = bakeoff.compare(module, calls, backends="eager,onnx", devices="cpu", out=tmp_path / "run", **brief)  # type: ignore[arg-type]
    (mix,) = result.answer.mixes
    assert [(size.name, size.calls) for size in mix.sizes] == [("2x16", 3), ("32x16", 1)]
    means = {row.label: row.mean_ms for row in mix.rows}
    for row in mix.rows:
        small, large = row.latency_ms["2x16"], row.latency_ms["32x16"]
        assert small and large and means[row.label] == pytest.approx(0.75 * small + 0.25 * large, rel=1e-3)
    assert set(means) == {"eager", "onnx"} and len(result.contests) == 2
    if mix.winner:
        assert result.winner == mix.winner and result.speedup is not None
