"""The CSV files of suites: one row for each backend, and one for each cell in the columns of PyTorch's own suite."""

from __future__ import annotations

from bakeoff.judging.judgement import CellJudgement, ContestJudgement, Judgement
from bakeoff.records.schema import Record, Status
from bakeoff.records.text import one_line
from bakeoff.reports import number_format, suite_report
from bakeoff.reports.column import Raw

Row = dict[str, Raw]

ACCURACY = {
    Status.OK: "pass",
    Status.INCORRECT: "fail_accuracy",
    Status.OOM: "OOM",
    Status.TIMEOUT: "timeout",
}
"""What benchmarks/dynamo calls an ending. What failed otherwise is `fail_to_run`."""

GIGABYTE = 1e9


def suite_rows(judgement: Judgement) -> list[Row]:
    """Return the rows of `suite.csv`: the table of backends of each suite."""
    return [
        suite_report.suite_fields(suite)
        | {name: value for column in suite_report.columns_of(suite) for name, value in column.csv_of(row).items()}
        for suite in judgement.suites
        for row in suite.rows
    ]


def dynamo_rows(judgement: Judgement) -> list[Row]:
    """Return the rows of `dynamo.csv`, whose first columns are those of pytorch/pytorch, benchmarks/dynamo.

    That suite writes a file for each compiler, and its accuracy to another file: here `compiler` tells them apart. As
    there, `speedup` is over eager, latencies are in ms, compiling in seconds and memory in gigabytes,
    `compression_ratio` is eager's memory over the backend's, and a cell that failed has zeros. What was never tried has
    no row.
    """
    return [
        _dynamo_row(contest, cell)
        for suite in judgement.suites
        for contest in suite.contests
        for cell in contest.cells
        if not cell.record.status.is_absence
    ]


def _dynamo_row(contest: ContestJudgement, cell: CellJudgement) -> Row:
    measured, record, latencies_ms = cell.cell, cell.record, contest.fit.latency_ms
    baseline = next((other.record for other in contest.cells if other.label == contest.baseline), None)
    eager_gb, ours_gb = (_peak_gb(each) for each in (baseline, record))
    row: Row = {
        "dev": measured.device.kind,
        "name": one_line(measured.model),
        "batch_size": measured.dimensions.get("batch", 1),
        "speedup": 0.0,
        "abs_latency": 0.0,
        "compilation_latency": 0.0,
        "compression_ratio": 0.0,
        "eager_peak_mem": 0.0,
        "dynamo_peak_mem": 0.0,
        "accuracy": ACCURACY.get(record.status, "fail_to_run"),
        "compiler": cell.label,
        "precision": str(measured.precision),
        "task": measured.task,
        "contest_id": contest.contest_id,
    }
    if record.status is not Status.OK or cell.latency is None:
        return row
    return row | {
        "speedup": latencies_ms[contest.baseline] / latencies_ms[cell.label] if contest.baseline else None,
        "abs_latency": cell.latency.median_ms,
        "compilation_latency": record.build_s + (record.first_call_s or 0.0),
        "compression_ratio": eager_gb / ours_gb if eager_gb and ours_gb else None,
        "eager_peak_mem": eager_gb,
        "dynamo_peak_mem": ours_gb,
    }


def _peak_gb(record: Record | None) -> float | None:
    peak_bytes = number_format.peak_memory(record)[0] if record else None
    return None if peak_bytes is None else peak_bytes / GIGABYTE
