import csv
import io
import json

import pytest

from judging.judgement import judge
from records.schema import Report
from reports.cells_csv import to_csv
from tests.reports.samples import HOSTILE, cell, judged, ok, report, strictly_on_cpu
from tests.reports.samples import bursts as bursts_of


def rows(made: Report) -> dict[str, dict[str, str]]:
    return {row["cell_id"]: row for row in csv.DictReader(io.StringIO(to_csv(judge(made))))}


def test_a_row_per_cell_with_the_numbers_unrounded() -> None:
    made = report()
    found = rows(made)
    assert set(found) == {record.cell.id for record in made.records}
    record = made.records[3]
    row = found[record.cell.id]
    assert record.latency is not None
    assert float(row["median_ms"]) == record.latency.median_ms
    assert (row["rank"], row["backend"], row["status"], row["placement"]) == ("1", "onnx", "ok", "full")
    assert float(row["speedup"]) == made.verdicts[0].standings[0].speedup_over_baseline.value  # type: ignore[union-attr]
    assert float(row["build_s"]) == pytest.approx(0.9)
    assert (row["dim_batch"], row["dim_size"]) == ("4", "128")


def test_what_is_not_known_is_empty_and_outside_text_survives() -> None:
    found = rows(report())
    crash = next(row for row in found.values() if row["status"] == "crash")
    assert (crash["median_ms"], crash["rank"], crash["speedup"], crash["load_s"]) == ("", "", "", "")
    assert (crash["signal"], crash["died_in"], crash["compile_s"]) == ("11", "load", "3.1")
    wrong = next(row for row in found.values() if row["status"] == "incorrect")
    assert wrong["median_ms"] and not wrong["rank"]
    error = next(row for row in found.values() if row["status"] == "error")
    assert error["reason"] == HOSTILE.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert error["dim_batch"] == ""


def test_dimensions_are_the_union_over_cells_and_doubts_are_joined() -> None:
    records = [
        ok(cell(dimensions={"batch": 1}), bursts_of(1.0), doubts=["one", "two"]),
        ok(cell(dimensions={"sequence": "long"}), bursts_of(1.0)),
    ]
    first, second = rows(report(records)).values()
    assert (first["dim_batch"], first["dim_sequence"], second["dim_sequence"]) == ("1", "", "long")
    assert first["doubts"] == "one; two"


def test_where_it_ran_and_how_near_the_floor_it_came() -> None:
    eager, onnx, openvino, inductor = rows(report(strictly_on_cpu())).values()
    assert (onnx["status"], onnx["rank"], onnx["placement"]) == ("fallback", "", "partial")
    assert onnx["fallbacks"] == "aten.gelu; sort|x; topk"
    assert json.loads(onnx["engines"]) == {"TensorRT|v10": 10, "torch": 3}
    assert json.loads(onnx["time_share"]) == {"torch": 0.034, "TensorRT|v10": 0.966}
    assert (eager["fallbacks"], eager["time_share"]) == ("", "")
    assert (openvino["placement"], openvino["fallbacks"], openvino["engines"]) == ("", "", "")
    assert (onnx["flops"], onnx["bytes_moved"], onnx["bound"]) == ("872415232", "6844416", "memory")
    assert float(onnx["floor_share"]) == pytest.approx(float(onnx["floor_ms"]) / 0.1)
    assert [inductor[name] for name in ("flops", "bytes_moved", "floor_ms", "floor_share", "bound")] == [""] * 5


def test_no_records_make_a_header() -> None:
    assert to_csv(judged([])) == "model\n"
