"""The two sweeps' CSV files, with the columns that notebooks read, and their figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.precision import Precision
from bakeoff.records.schema import CallStage, Record, Report, Status
from bakeoff.reports import charts, writer
from bakeoff.reports.charts.chart import Dots
from bakeoff.reports.charts.paint import save_svg
from bakeoff.reports.charts.sweep import compiled_attention, compiled_language_models
from bakeoff.reports.csv_files import sweep_tables
from tests.reports import samples


def attention(backend: str, seq: int, median_ms: float, width: int = 16, **more: object) -> Record:
    dimensions = {"batch": 8, "seq": seq, "d_model": width, "variant": "naive"}
    measured = samples.cell(backend, model="attention", device="cuda", dimensions=dimensions, task="forward_backward")
    stages = [
        CallStage(name="forward", calls=20, median_ms=1.0, mean_ms=1.5, std_ms=0.25),
        CallStage(name="backward", calls=20, median_ms=2.0, mean_ms=2.5, std_ms=0.5),
    ]
    return samples.ok(measured, samples.over_processes(median_ms), stages=stages, **more)


def language(backend: str, task: str, size: str, median_ms: float, context: int = 128, **more: str | int) -> Record:
    dimensions = {"batch": 4, "size": size, "context": context, "attention": "sdpa", "lengths": "fixed", **more}
    measured = samples.cell(backend, model="transformer_lm", device="cuda", dimensions=dimensions, task=task)
    settings = {"parameters": {"small": 128_625_408, "large": 969_411_840}[size]}
    return samples.ok(measured, samples.over_processes(median_ms), settings=settings)


def lost(record: Record, status: Status = Status.OOM) -> Record:
    return samples.failed(record.cell, status, "OutOfMemoryError: no memory left")


def report_of(records: Iterable[Record]) -> Report:
    records = list(records)
    made = samples.report()
    return made.model_copy(update={"records": records, "planned": len(records)})


def judged_of(records: Iterable[Record]) -> Judgement:
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
    other = SWEPT[0].model_copy(update={"cell": SWEPT[0].cell.model_copy(update={"precision": Precision.BF16})})
    fused = {**SWEPT[0].cell.dimensions, "variant": "sdpa"}
    third = SWEPT[0].model_copy(update={"cell": SWEPT[0].cell.model_copy(update={"dimensions": fused})})
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
    records = [lost(MODELS[0]), MODELS[1], MODELS[2], MODELS[3].model_copy(update={"status": Status.INCORRECT})]
    (row,) = rows(sweep_tables(judged_of(records))["transformer_sweep-cuda-fp32.csv"])
    assert row["forward_vanilla_ms"] == row["forward_speedup"] == row["fwd_bwd_compiled_ms"] == ""
    assert float(row["forward_compiled_ms"]) > 0 and float(row["fwd_bwd_vanilla_ms"]) > 0
    assert row["num_params"] == "128625408"


def test_a_report_without_them_has_no_such_file() -> None:
    assert sweep_tables(samples.judged()) == {}


def test_figures_have_a_panel_for_each_kind_a_line_for_each_width_and_a_cross_for_what_is_lost(tmp_path: Path) -> None:
    wider = [attention(backend, seq, 3.0, width=64) for seq in (256, 16384) for backend in ("eager", "inductor")]
    svg = save_svg(compiled_attention(judged_of([*SWEPT, *wider]).contests), "", tmp_path / "attention.svg")
    texts = "".join(ElementTree.parse(svg).getroot().itertext())
    assert all(text in texts for text in ("naive, cuda, fp32", "d_model 16", "d_model 64", "16384", "sequence length"))
    svg = save_svg(compiled_language_models(judged_of(MODELS).contests), "", tmp_path / "models.svg")
    texts = "".join(ElementTree.parse(svg).getroot().itertext())
    assert all(text in texts for text in ("inference, cuda", "train_step, cuda", "context 128", "small", "large"))


def test_several_precisions_of_one_contest_have_a_panel_each(tmp_path: Path) -> None:
    """Each is over eager in its own precision."""
    both = (Precision.FP32, Precision.BF16)
    made = [
        record.model_copy(
            update={"cell": record.cell.model_copy(update={"precision": precision, "compared": both})}
        )
        for precision, times in ((Precision.FP32, 4.0), (Precision.BF16, 1.0))
        for seq in (256, 512)
        for record in (attention("eager", seq, 2 * times), attention("inductor", seq, times))
    ]  # fmt: skip
    panels = compiled_attention(judged_of(made).contests)
    assert [panel.finding for panel in panels] == [f"naive, cuda, {each}" for each in both]
    drawn = [shape for panel in panels for mark in panel.marks[1:] for shape in mark.shapes if isinstance(shape, Dots)]
    assert [ratio for dots in drawn for ratio in dots.ys] == pytest.approx([2.0] * 4, rel=0.05)


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
