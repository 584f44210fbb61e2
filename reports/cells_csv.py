"""A report as a table of cells, one row each, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping

from judging.judgement import CellJudgement, contests_of
from records.schema import Cell, Interval, Report
from records.text import one_line, visible

Value = str | int | float | None


def to_csv(report: Report) -> str:
    """One row per cell, contest by contest in the order of reading. What a cell has no number for is empty."""
    rows = [row for contest in contests_of(report) for row in contest.cells]
    dimensions = _dimensions(row.record.cell for row in rows)
    table = [_columns(row, dimensions) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]) if table else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _dimensions(cells: Iterable[Cell]) -> list[str]:
    """Names of the dimensions of all cells, in the order in which they first appear."""
    return list(dict.fromkeys(name for cell in cells for name in cell.dimensions))


def _columns(row: CellJudgement, dimensions: list[str]) -> dict[str, Value]:
    record, cell = row.record, row.record.cell
    return {
        "model": cell.model,
        **{f"dim_{name}": cell.dimensions.get(name) for name in dimensions},
        "task": cell.task,
        "device": cell.device,
        "precision": cell.precision,
        "seed": cell.seed,
        "backend": cell.backend,
        "mode": cell.mode,
        "status": record.status.value,
        "died_in": record.died_in,
        "signal": record.signal,
        "reason": visible(record.reason),
        **_speed(row),
        **_cost(row),
        **_quality(row),
        **_floor(row),
        "doubts": "; ".join(one_line(doubt) for doubt in record.doubts),
        "contest_id": cell.contest_id,
        "cell_id": cell.id,
    }


def _speed(row: CellJudgement) -> dict[str, Value]:
    latency, standing = row.record.latency, row.standing
    ratio = standing.speedup_over_baseline if standing else None
    median_low, median_high = _ends(latency.median_ci95_ms if latency else None)
    ratio_low, ratio_high = _ends(ratio.ci95 if ratio else None)
    throughput, device_time = row.record.throughput, row.record.device_time
    return {
        "rank": standing.rank if standing else None,
        "median_ms": latency.median_ms if latency else None,
        "median_ci95_low_ms": median_low,
        "median_ci95_high_ms": median_high,
        "mean_ms": latency.mean_ms if latency else None,
        "std_ms": latency.std_ms if latency else None,
        "min_ms": latency.min_ms if latency else None,
        "p90_ms": latency.p90_ms if latency else None,
        "p95_ms": latency.p95_ms if latency else None,
        "p99_ms": latency.p99_ms if latency else None,
        "p999_ms": latency.p999_ms if latency else None,
        "calls": latency.calls if latency else None,
        "speedup": ratio.value if ratio else None,
        "speedup_ci95_low": ratio_low,
        "speedup_ci95_high": ratio_high,
        "speedup_paired": str(ratio.paired).lower() if ratio else None,
        "break_even_calls": standing.break_even_calls if standing else None,
        "break_even_established": str(standing.break_even_established).lower() if standing else None,
        "throughput_calls_per_s": throughput.calls_per_s if throughput else None,
        "device_median_ms": device_time.median_ms if device_time else None,
    }


def _cost(row: CellJudgement) -> dict[str, Value]:
    record = row.record
    phases_s: dict[str, float] = {}
    for phase in record.phases:
        phases_s[phase.name] = phases_s.get(phase.name, 0.0) + phase.seconds
    memory, warm = record.memory, record.warm_start
    return {
        "export_s": phases_s.get("export"),
        "compile_s": phases_s.get("compile"),
        "load_s": phases_s.get("load"),
        "first_call_s": record.first_call_s,
        "build_s": record.build_s if record.phases else None,
        "warm_build_s": warm.build_s if warm else None,
        "warm_first_answer_s": warm.first_answer_s if warm else None,
        "joules_per_call": record.energy.joules_per_call if record.energy else None,
        "peak_resident_bytes": memory.peak_resident_bytes if memory else None,
        "peak_device_bytes": memory.peak_device_bytes if memory else None,
        "artifact_bytes": memory.artifact_bytes if memory else None,
    }


def _quality(row: CellJudgement) -> dict[str, Value]:
    accuracy, placement = row.record.accuracy, row.record.placement
    return {
        "rmse": accuracy.rmse if accuracy else None,
        "relative_rmse": accuracy.relative_rmse if accuracy else None,
        "max_abs_error": accuracy.max_abs_error if accuracy else None,
        "eager_rmse": accuracy.eager_rmse if accuracy else None,
        "accuracy_rule": accuracy.rule if accuracy else None,
        "placement": placement.extent.value if placement else None,
        "fallbacks": "; ".join(map(one_line, placement.fallbacks)) if placement else None,
        "engines": _object(placement.engines) if placement else None,
        "time_share": _object(placement.time_share) if placement else None,
    }


def _floor(row: CellJudgement) -> dict[str, Value]:
    roofline = row.record.roofline
    return {
        "flops": roofline.flops if roofline else None,
        "bytes_moved": roofline.bytes_moved if roofline else None,
        "floor_ms": roofline.floor_ms if roofline else None,
        "floor_share": roofline.share if roofline else None,
        "bound": roofline.bound if roofline else None,
    }


def _object(values: Mapping[str, float]) -> str | None:
    """As JSON, so that no engine's name can be taken for a separator."""
    return json.dumps({one_line(name): value for name, value in values.items()}) if values else None


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (interval.low, interval.high) if interval else (None, None)
