import csv
import io

import pytest

from reports.schema import Report
from reports.table_csv import to_csv
from tests.reports.samples import HOSTILE, cell, ok, report
from tests.reports.samples import bursts as bursts_of


def rows(made: Report) -> dict[str, dict[str, str]]:
    return {row["cell_id"]: row for row in csv.DictReader(io.StringIO(to_csv(made)))}


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


def test_no_records_make_a_header() -> None:
    assert to_csv(report([])) == "model\n"
