"""The table of cells, as Markdown, the page, the terminal and the CSV print it."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.constraints import RequirementMissed
from bakeoff.judging.history import history_of
from bakeoff.judging.judgement import Judgement
from bakeoff.records.doubts import Effect
from bakeoff.records.failure import Failure
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.schema import (
    Accuracy,
    CallStage,
    Energy,
    Extent,
    Interval,
    Placement,
    Record,
    Status,
    Throughput,
    WarmUp,
)
from bakeoff.reports import history, junit
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_markdown, to_page, to_short_markdown
from tests.reports.samples import (
    accuracy,
    bursts,
    caveat,
    cell,
    failed,
    judged,
    mlp_on_cuda,
    ok,
    over_processes,
    roofline,
    steady,
)

Table = list[dict[str, str]]
"""The rows of a table, each with its texts by the headings of the columns."""


def in_markdown(judgement: Judgement) -> Table:
    """Return the first table of cells, split at the pipes that are not escaped."""
    _, _, text = to_markdown(judgement).partition("\n## ")
    lines = text[text.index("\n| ") + 1 :].split("\n\n")[0].splitlines()
    header, _, *rows = [[field.strip() for field in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def in_csv(judgement: Judgement) -> Table:
    return list(csv.DictReader(io.StringIO(to_csv(judgement))))


def a_contest() -> list[Record]:
    """Return a winner with everything that a column can tell, the baseline, and a cell that crashed."""
    where = {"dimensions": {"batch": 4}, "device": "cuda", "precision": "fp16"}
    partly = Placement(
        extent=Extent.PARTIAL,
        engines={"TensorRT|v10": 10, "torch": 2},
        fallbacks=["gelu", "sort|x", "topk"],
        time_share={"torch": 0.034, "TensorRT|v10": 0.966},
        evidence=["a profile"],
    )
    more: dict[str, Any] = {
        "stages": [CallStage(name="backward", calls=9, median_ms=0.25, mean_ms=0.3, std_ms=0.1)],
        "precision_in_force": {"cudnn_allow_tf32": False},
        "settings": {"threads": 16},
        "versions": {"onnxruntime": "1.31.1"},
        "warm_up": WarmUp(calls=120, seconds=0.6, steady=False, trendless=True),
        "energy": Energy(joules_per_call=0.0123, idle_w=70.0, calls=1000, seconds=1.0, source="NVML"),
        "throughput": Throughput(calls_per_s=900.0, blocks=3, block_s=0.1, range_per_s=Interval(low=850.0, high=910.0)),
    }
    return [
        ok(cell(**where), steady([2.0, 2.0, 2.0])),
        ok(cell("onnx", "tuned", **where), steady([1.0, 1.01, 0.99]), build_s=2.0, roofline=roofline(1.0),
           placement=partly, doubts=[caveat("one"), caveat("two")], **more),
        failed(cell("openvino", **where), Status.CRASH, "died in load", died_in="load", signal=11,
               log_tail="Segmentation fault"),
    ]  # fmt: skip


@pytest.mark.parametrize(("levels_ms", "is_told"), [([0.01, 0.5], False), ([0.02, 0.0201], True)])
def test_an_interval_that_tells_nothing_is_unknown_in_every_output(levels_ms: list[float], is_told: bool) -> None:
    judgement = judged([ok(cell(), steady(levels_ms))])
    row = in_csv(judgement)[0]
    assert (row["median_ci95_low_ms"] != "", row["median_ci95_high_ms"] != "") == (is_told, is_told)
    outputs = {
        "JUnit": junit.of_run(judgement),
        "history": history.to_markdown(history_of({(history.moment("2026-11-27"), "run"): judgement.report}, [])),
        "details": to_markdown(judgement),
    }
    for name, text in outputs.items():
        assert ("[unknown]" in text) is not is_told, name


def test_dimensions_of_all_models_have_a_column_each() -> None:
    records = [ok(cell(dimensions={"batch": 1}), bursts(1.0)), ok(cell(dimensions={"sequence": "long"}), bursts(1.0))]
    first, second = in_csv(judged(records))
    assert (first["dim_batch"], first["dim_sequence"], second["dim_sequence"]) == ("1", "", "long")
    assert to_csv(judged([])) == "model\n"


def test_a_column_that_nothing_is_known_of_is_left_out() -> None:
    without_baseline = judged([ok(cell("onnx"), bursts(1.0))])
    assert not any("speed-up" in heading or "floor" in heading for heading in in_markdown(without_baseline)[0])


def test_a_cell_that_misses_a_requirement_says_so_in_its_row_and_changes_no_number_of_the_winner(
    tmp_path: Path,
) -> None:
    records = [ok(cell("onnx"), over_processes(1.0), build_s=3.0), ok(cell("eager"), over_processes(2.0))]
    judgement = judged(records, request={"require": "median_ms<1.5"})
    (contest,) = judgement.contests
    assert [type(doubt) for doubt in contest.doubts_by_effect[Effect.NONE]] == [RequirementMissed]
    rows = in_markdown(judgement)
    assert [(row["rank"], row["status"]) for row in rows] == [
        ("1", "ok"),
        ("-", "not as required: median\\_ms is 2.035, not &lt; 1.5"),
    ]
    short, whole = to_short_markdown(judgement, tmp_path), to_markdown(judgement)
    assert "eager may not win" not in short and "What could change" not in short + whole
    assert "eager may not win" in whole.partition("Other remarks")[2], "a row has no room for a long reason"
    assert "not as required</b>: median_ms is 2.035, not &lt; 1.5" in to_page(judgement)


def test_a_cell_says_when_it_pays_below_its_row_and_in_the_csv() -> None:
    calls = {row["backend"]: row["break_even_calls"] for row in in_csv(judged(mlp_on_cuda()))}
    assert (calls["inductor"], calls["eager"]) == ("", "0") and 10_000 < int(calls["onnx"]) < 100_000
    assert re.search(
        r"<dt>break-even</dt><dd>\d\d,\d{3} \[\d\d,\d{3},\xa0\d\d,\d{3}\] calls</dd>", to_page(judged(mlp_on_cuda()))
    )


@pytest.mark.parametrize(
    ("unheld", "told"),
    [
        (0, "2.0e-01 (allclose)"),
        (13, "2.0e-01 (allclose; bf16 cannot hold the change of 13 of 26 parameters)"),
        (26, "2.0e-01 (allclose; parameters could not be judged: bf16 cannot hold the change of any of 26)"),
    ],
)
def test_the_error_of_a_training_step_says_what_it_leaves_out(unheld: int, told: str) -> None:
    step: Accuracy = accuracy(0.2).model_copy(update={"changes": 26, "changes_unheld": unheld})
    record = ok(cell("eager", precision="bf16", task="train_step"), bursts(1.0), accuracy=step)
    assert in_markdown(judged([record]))[0]["relative RMSE"] == told


def test_a_word_in_place_of_a_number_has_no_unit() -> None:
    page = to_page(judged([ok(cell("onnx"), steady([2.0] * 3), build_s=1.0), ok(cell(), steady([1.0] * 3))]))
    assert "<dt>break-even</dt><dd>never</dd>" in page and "<dt>p99.9</dt><dd>n/a</dd>" in page


def test_a_long_reason_is_cut_in_the_table() -> None:
    row = in_markdown(judged([failed(cell("onnx"), Status.ERROR, "word " * 100)]))[0]
    assert row["status"].endswith("…") and len(row["status"]) < 200


def evaluated(label: str, top1: list[float] | None, reference: list[float], ms: float) -> Record:
    """A record with a metric of the user's own, or with the reason why it has none."""
    failure = Failure(kind="UsageError", text="evaluate returned nan as top1")
    ours = Metrics(values={"top1": Metric.of_scores(top1)}, seconds=1.5) if top1 else Metrics(failure=failure)
    theirs = Metrics(values={"top1": Metric.of_scores(reference)})
    record = ok(cell(label), bursts(ms))
    return record.model_copy(update={"metrics": ours, "reference_metrics": theirs})


def with_metrics() -> list[Record]:
    """Return eager, a build whose metric is worse, and one that has none."""
    reference = [1.0] * 90 + [0.0] * 10
    worse = [0.0] * 20 + reference[20:]
    rows = [evaluated("eager", reference, reference, 2.0), evaluated("onnx", worse, reference, 1.0)]
    return [*rows, evaluated("inductor", None, reference, 1.5)]


def test_programs_get_a_metric_of_ones_own() -> None:
    [answer] = answer_of(judged(with_metrics()), Path("run")).contests
    found = answer.metrics["onnx"]["top1"]
    assert (found.value, found.reference, found.samples) == (0.7, 0.9, 100) and found.change_ci95 is not None
