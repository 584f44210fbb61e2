"""The tables of cells and of sweeps, as Markdown, the page, the terminal and the CSV print them."""

import csv
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.constraints import RequirementMissed
from bakeoff.judging.history import history_of
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records import schema
from bakeoff.records.doubts import Effect
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.start_samples import StartedCell
from bakeoff.reports import charts, history, junit, writer
from bakeoff.reports.csv_files import sweep_tables, to_csv
from bakeoff.reports.markdown import MOST_COLUMNS
from bakeoff.reports.run_report import to_markdown, to_page, to_short_markdown
from tests.judging.test_costs import load, window
from tests.reports import samples
from tests.reports.samples import (
    accuracy,
    bursts,
    caveat,
    cell,
    failed,
    judged,
    ok,
    over_processes,
    report,
    roofline,
    scored,
    start,
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


def a_contest() -> list[schema.Record]:
    """Return a winner with everything that a column can tell, the baseline, and a cell that crashed."""
    where = {"dimensions": {"batch": 4}, "device": "cuda", "precision": "fp16"}
    partly = schema.Placement(
        extent=schema.Extent.PARTIAL,
        engines={"TensorRT|v10": 10, "torch": 2},
        fallbacks=["gelu", "sort|x", "topk"],
        time_share={"torch": 0.034, "TensorRT|v10": 0.966},
        evidence=["a profile"],
    )
    more: dict[str, Any] = {
        "stages": [schema.CallStage(name="backward", calls=9, median_ms=0.25, mean_ms=0.3, std_ms=0.1)],
        "precision_in_force": {"cudnn_allow_tf32": False},
        "settings": {"threads": 16},
        "versions": {"onnxruntime": "1.31.1"},
        "warm_up": schema.WarmUp(calls=120, seconds=0.6, steady=False, trendless=True),
        "energy": schema.Energy(joules_per_call=0.0123, idle_w=70.0, calls=1000, seconds=1.0, source="NVML"),
        "throughput": schema.Throughput(
            calls_per_s=900.0, blocks=3, block_s=0.1, range_per_s=schema.Interval(low=850.0, high=910.0)
        ),
    }
    return [
        ok(cell(**where), steady([2.0, 2.0, 2.0])),
        ok(cell("onnx", "tuned", **where), steady([1.0, 1.01, 0.99]), build_s=2.0, roofline=roofline(1.0),
           placement=partly, doubts=[caveat("one"), caveat("two")], **more),
        failed(cell("openvino", **where), schema.Status.CRASH, "died in load", died_in="load", signal=11,
               log_tail="Segmentation fault"),
    ]  # fmt: skip


@pytest.mark.parametrize(("levels_ms", "is_told"), [([0.01, 0.5], False), ([0.02, 0.0201], True)])
def test_an_interval_that_decides_nothing_is_unknown_in_every_output(levels_ms: list[float], is_told: bool) -> None:
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


@pytest.mark.parametrize(
    ("unheld", "told"),
    [
        (0, "2.0e-01 (allclose)"),
        (13, "2.0e-01 (allclose; bf16 cannot hold the change of 13 of 26 parameters)"),
        (26, "2.0e-01 (allclose; parameters could not be judged: bf16 cannot hold the change of any of 26)"),
    ],
)
def test_the_error_of_a_training_step_says_what_it_leaves_out(unheld: int, told: str) -> None:
    step: schema.Accuracy = accuracy(0.2).but(changes=26, changes_unheld=unheld)
    record = ok(cell("eager", precision="bf16", task="train_step"), bursts(1.0), accuracy=step)
    assert in_markdown(judged([record]))[0]["relative RMSE"] == told


def test_a_long_reason_is_cut_in_the_table() -> None:
    row = in_markdown(judged([failed(cell("onnx"), schema.Status.ERROR, "word " * 100)]))[0]
    assert row["status"].endswith("…") and len(row["status"]) < 200


def with_metrics() -> list[schema.Record]:
    """Return eager, a build whose metric is worse, and one that has none."""
    reference = [1.0] * 90 + [0.0] * 10
    worse = [0.0] * 20 + reference[20:]
    of_cells = {"eager": (2.0, reference), "onnx": (1.0, worse), "inductor": (1.5, None)}
    return [
        scored(ok(cell(label), bursts(ms)), scores, reference, seconds=1.5) for label, (ms, scores) in of_cells.items()
    ]


KINDS = ("precisions", "metrics", "end to end", "energy", "dynamic", "load", "generation", "calls", "starts")
COMBINATIONS = [
    pytest.param(each, marks=[pytest.mark.slow] if count == len(KINDS) - 1 else [], id=", ".join(each))
    for count in (0, 1, len(KINDS) - 1, len(KINDS))
    for each in itertools.combinations(KINDS, count)
]
"""Nothing, each alone, all but one, and all of it."""
SCORES = Metrics(values={name: Metric.of_scores([1.0] * 50) for name in ("top1", "top5", "recall", "f1", "bleu")})
SOAK = [window(joules=50.0, resident_bytes=9, device_bytes=9)] * 6
SIZES = {"batch": 4, "prompt": 64, "new_tokens": 11}


def records(chosen: Iterable[str]) -> list[schema.Record]:
    """Return a contest of three backends, or the two of a generation, with all that was chosen."""
    chosen = set(chosen)
    precisions = (Precision.FP32, Precision.BF16) if "precisions" in chosen else (Precision.FP32,)
    made = []
    for task in (schema.PREFILL, schema.DECODE) if "generation" in chosen else ("inference",):
        for precision, (place, name) in itertools.product(precisions, enumerate(("onnx", "openvino", "eager"), 1)):
            compared = precisions if len(precisions) > 1 else ()
            measured = cell(name, task=task, dimensions=SIZES, precision=precision, compared=compared)
            if "dynamic" in chosen and name == "onnx":
                measured = measured.but(dynamic={"batch": schema.Range(low=1, built_at=4, high=4)})
            made.append(
                ok(measured, steady([1.0 * place] * 3, rounds=4), build_s=2.0, **more(chosen, measured.id, name, place))
            )
    return made


def more(chosen: set[str], cell_id: str, name: str, place: int) -> dict[str, object]:
    fields: dict[str, dict[str, object]] = {
        "metrics": {"metrics": SCORES, "reference_metrics": SCORES},
        "end to end": {"around": [schema.AroundCall(name="before", calls=9, median_ms=2.0)]},
        "energy": {"energy": schema.Energy(joules_per_call=0.1, idle_w=70.0, calls=1000, seconds=1.0, source="RAPL")},
        "load": {"load": load([rate / place for rate in (400, 404, 396)], soak=SOAK)},
        "generation": {"settings": {"caches": "in place"}, "generated": GENERATED},
        "starts": {"starts": [started(cell_id, name)]},
    }
    chosen_fields = {key: value for kind in fields if kind in chosen for key, value in fields[kind].items()}
    return {"accuracy": accuracy(), **chosen_fields}


GENERATED = schema.Generated(
    tokens=10, sequences=4, agreed=10, usual_margin=0.5, first=Precision.FP32, agreed_with_first=9
)


def started(cell_id: str, label: str) -> StartedCell:
    starts = [start(1.0, peak_bytes=9, steady_bytes=9, device_bytes=9)] * 3
    return StartedCell(cell_id=cell_id, label=label, distributions={"torch": 9}, artifact_bytes=9, starts=starts)


def columns(markdown: str) -> list[list[str]]:
    """Return the headings of each table."""
    lines = markdown.splitlines()
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"\|( :?-+:? \|)+", line)]
    return [[text.strip() for text in re.split(r"(?<!\\)\|", lines[number - 1])[1:-1]] for number in rules]


@pytest.mark.parametrize("chosen", COMBINATIONS)
def test_no_table_has_more_than_nine_columns(chosen: tuple[str, ...], tmp_path: Path) -> None:
    calls = {"calls": 1000} if "calls" in chosen else {}
    judgement = judge(report(records(chosen), request=calls | {"price": "1/h"}))
    tables = columns(to_short_markdown(judgement, tmp_path))
    assert tables and max(map(len, tables)) <= MOST_COLUMNS == 9
    of_cells = next(table for table in tables if "median latency (ms) [95 %]" in table)
    assert {"rank", "backend", "status"} <= set(of_cells)
    if not {"metrics", "precisions"} & set(chosen):
        assert len(of_cells) == 9 and "throughput (calls/s)" in of_cells
    if "metrics" in chosen:
        assert "top1 (change) [95 %]" in of_cells and max(map(len, columns(to_markdown(judgement)))) > 9


def attention(backend: str, seq: int, median_ms: float, width: int = 16, **more: object) -> schema.Record:
    dimensions = {"batch": 8, "seq": seq, "d_model": width, "variant": "naive"}
    measured = samples.cell(backend, model="attention", device="cuda", dimensions=dimensions, task="forward_backward")
    stages = [
        schema.CallStage(name="forward", calls=20, median_ms=1.0, mean_ms=1.5, std_ms=0.25),
        schema.CallStage(name="backward", calls=20, median_ms=2.0, mean_ms=2.5, std_ms=0.5),
    ]
    return samples.ok(measured, samples.over_processes(median_ms), stages=stages, **more)


def language(
    backend: str, task: str, size: str, median_ms: float, context: int = 128, **more: str | int
) -> schema.Record:
    dimensions = {"batch": 4, "size": size, "context": context, "attention": "sdpa", "lengths": "fixed", **more}
    measured = samples.cell(backend, model="transformer_lm", device="cuda", dimensions=dimensions, task=task)
    settings = {"parameters": {"small": 128_625_408, "large": 969_411_840}[size]}
    return samples.ok(measured, samples.over_processes(median_ms), settings=settings)


def lost(record: schema.Record, status: schema.Status = schema.Status.OOM) -> schema.Record:
    return samples.failed(record.cell, status, "OutOfMemoryError: no memory left")


def report_of(records: Iterable[schema.Record]) -> schema.Report:
    records = list(records)
    made = samples.report()
    return made.but(records=records, planned=len(records))


def judged_of(records: Iterable[schema.Record]) -> Judgement:
    return judge(report_of(records))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


SWEPT = [
    attention("eager", 256, 4.0),
    attention("inductor", 256, 2.0),
    lost(attention("eager", 16384, 4.0)),
    attention("inductor", 16384, 3.0),
]
MODELS = [
    language(backend, task, size, median_ms / (2 if backend == "inductor" else 1))
    for size, median_ms in (("small", 4.0), ("large", 30.0))
    for task in ("inference", "forward_backward", "train_step")
    for backend in ("eager", "inductor")
]


def test_variants_devices_and_precisions_have_files_of_their_own() -> None:
    other = SWEPT[0].but(cell=SWEPT[0].cell.but(precision=Precision.BF16))
    fused = {**SWEPT[0].cell.dimensions, "variant": "sdpa"}
    third = SWEPT[0].but(cell=SWEPT[0].cell.but(dimensions=fused))
    assert set(sweep_tables(judged_of([SWEPT[0], other, third]))) == {
        "attention_sweep-naive-cuda-fp32.csv",
        "attention_sweep-naive-cuda-bf16.csv",
        "attention_sweep-sdpa-cuda-fp32.csv",
    }


def test_batches_and_kinds_of_attention_that_the_columns_do_not_name_have_files_of_their_own() -> None:
    more = [
        language(backend, "inference", "small", median_ms, **other)
        for backend, median_ms in (("eager", 8.0), ("inductor", 2.0))
        for other in ({"batch": 1}, {"attention": "naive"})
    ]
    tables = sweep_tables(judged_of([*MODELS, *more]))
    assert set(tables) == {
        "transformer_sweep-batch4-sdpa-cuda-fp32.csv",
        "transformer_sweep-batch1-sdpa-cuda-fp32.csv",
        "transformer_sweep-batch4-naive-cuda-fp32.csv",
    }
    (row,) = rows(tables["transformer_sweep-batch1-sdpa-cuda-fp32.csv"])
    assert 3.8 < float(row["forward_speedup"]) < 4.2


def test_a_stream_of_lengths_is_no_row() -> None:
    stream = language("eager", "inference", "large", 30.0, lengths="stream")
    (text,) = sweep_tables(judged_of([*MODELS[:6], stream])).values()
    assert [row["model_size"] for row in rows(text)] == ["small"]


def test_a_model_that_ran_out_of_memory_or_was_wrong_is_a_row_without_that_number() -> None:
    records = [lost(MODELS[0]), MODELS[1], MODELS[2], MODELS[3].but(status=schema.Status.INCORRECT)]
    (row,) = rows(sweep_tables(judged_of(records))["transformer_sweep-cuda-fp32.csv"])
    assert row["forward_vanilla_ms"] == row["forward_speedup"] == row["fwd_bwd_compiled_ms"] == ""
    assert float(row["forward_compiled_ms"]) > 0 and float(row["fwd_bwd_vanilla_ms"]) > 0
    assert row["num_params"] == "128625408"


def test_a_report_without_them_has_no_such_file() -> None:
    assert sweep_tables(samples.judged()) == {}


def in_two_precisions() -> list[schema.Record]:
    """Return compiled attention in two precisions of one contest. Each is over eager in its own precision."""
    both = (Precision.FP32, Precision.BF16)
    return [
        record.but(cell=record.cell.but(precision=precision, compared=both))
        for precision, times in ((Precision.FP32, 4.0), (Precision.BF16, 1.0))
        for seq in (256, 512)
        for record in (attention("eager", seq, 2 * times), attention("inductor", seq, times))
    ]  # fmt: skip


def test_a_sweep_is_among_the_figures_and_a_single_size_is_none(tmp_path: Path) -> None:
    names = {file.name for file in charts.draw(judged_of(SWEPT), tmp_path)}
    assert "sweep-seq.svg" in names and "sweep-size.svg" not in names
    names = {file.name for file in charts.draw(judged_of(SWEPT[:2]), tmp_path)}
    assert "latency.svg" in names and not {"sweep-seq.svg", "sweep-size.svg"} & names


def test_they_are_written_beside_the_report_and_the_parts_of_a_call_stand_in_it(tmp_path: Path) -> None:
    made = report_of(SWEPT)
    written = writer.write(made, tmp_path, figures=False)
    assert written["attention_sweep-naive-cuda-fp32.csv"].read_text(encoding="utf-8") == next(
        iter(sweep_tables(judge(made)).values())
    )
    assert "<dt>backward</dt><dd>2.000 ms</dd>" in written["report.html"].read_text(encoding="utf-8")
