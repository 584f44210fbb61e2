"""The CSV files of a report, for a spreadsheet or a data frame. What is not known of a cell is an empty field."""

import csv
import io
from collections.abc import Sequence

from bakeoff.judging.judgement import CellJudgement, ContestJudgement, Judgement
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.sweeps import COMPILED
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import Record, Status
from bakeoff.records.text import one_line
from bakeoff.reports import generation, load_report, suite_report
from bakeoff.reports.columns import columns_of
from bakeoff.reports.number_format import MEBIBYTE
from bakeoff.reports.tables import Raw, fields_of

Row = dict[str, Raw]

TASK_OF_COLUMN = {"forward": "inference", "fwd_bwd": "forward_backward", "full_step": "train_step"}

IS_COMPILED = {BASELINE: False, COMPILED: True}


def to_csv(judgement: Judgement) -> str:
    return csv_text(cell_rows(judgement))


def cell_rows(judgement: Judgement) -> list[Row]:
    columns = columns_of(judgement.contests)
    cells = [cell for contest in judgement.contests for cell in contest.cells]
    return [fields_of(columns, cell) for cell in cells]


def question_tables(judgement: Judgement) -> dict[str, str]:
    """Return `load.csv` and `generation.csv`, with a row for each cell under load and of each generation, if any."""
    rows: dict[str, list[Row]] = {"load.csv": [], "generation.csv": []}
    for contest in judgement.contests:
        of_contest: Row = {"contest_id": contest.contest_id}
        if load := contest.load:
            own, columns = of_contest | {"scenario": str(load.scenario)}, load_report.columns_of(load)
            rows["load.csv"] += [own | fields_of(columns, cell) for cell in load.cells]
        if made := contest.generation:
            rows["generation.csv"] += [of_contest | fields_of(generation.columns_of(made), cell) for cell in made.cells]
    return {name: csv_text(of_file) for name, of_file in rows.items() if of_file}


def suite_tables(judgement: Judgement) -> dict[str, str]:
    if not judgement.suites:
        return {}
    suite_rows = [
        suite_report.suite_fields(suite) | fields_of(suite_report.columns_of(suite), row)
        for suite in judgement.suites
        for row in suite.rows
    ]
    cells = [
        (contest, cell) for suite in judgement.suites for contest in suite.contests for cell in contest.cells
    ]  # of which those that were never tried have no row
    dynamo_rows = [_dynamo_row(contest, cell) for contest, cell in cells if not cell.record.status.is_absence]
    return {"suite.csv": csv_text(suite_rows), "dynamo.csv": csv_text(dynamo_rows)}


def sweep_tables(judgement: Judgement) -> dict[str, str]:
    """Return the text of each sweep's file by its name; nothing for a report that holds neither sweep.

    | file | one row for each |
    | --- | --- |
    | attention_sweep-VARIANT-DEVICE-PRECISION.csv | size of `attention`, eager and compiled, in `forward_backward` |
    | transformer_sweep-DEVICE-PRECISION.csv | size and context of `transformer_lm`, over all three tasks |

    Notebooks that were written for earlier benchmarks read these columns. None of them names a batch or a kind of
    attention, so a report with several of those has a file for each, with both in its name. Compiled means Inductor's
    default mode.
    """
    files = {}
    for ((variant,), where), records in _groups(judgement.report.records, "attention", "variant").items():
        trained = [record for record in records if record.cell.task == TASK_OF_COLUMN["fwd_bwd"]]
        if trained:
            rows = [_attention_row(record) for record in trained]
            files[f"attention_sweep-{variant}-{where}.csv"] = csv_text(rows)
    families = _groups(judgement.report.records, "transformer_lm", "lengths", "batch", "attention")
    models = {key: records for key, records in families.items() if key[0][0] == "fixed"}
    for ((_, batch, attention), where), records in models.items():
        is_alone = sum(other == where for _, other in models) == 1
        kind = "" if is_alone else f"batch{batch}-{attention}-"
        files[f"transformer_sweep-{kind}{where}.csv"] = csv_text(_transformer_rows(records))
    return files


def _transformer_rows(records: Sequence[Record]) -> list[Row]:
    """Return a row for each size and context. Latencies are medians; a speed-up is the ratio of the two beside it."""
    transformer_rows: dict[tuple[str, int], dict[tuple[str, bool], Record]] = {}
    for record in records:
        key = (str(record.cell.dimensions["size"]), int(record.cell.dimensions["context"]))
        transformer_rows.setdefault(key, {})[record.cell.task, IS_COMPILED[record.cell.backend]] = record
    parameters = {
        str(record.cell.dimensions["size"]): count
        for record in records
        if isinstance(count := record.settings.get("parameters"), int)
    }
    rows: list[Row] = []
    for (size, context), cells in transformer_rows.items():
        count = parameters.get(size)
        row: Row = {
            "model_size": size,
            "context_length": context,
            "num_params": count,
            "num_params_millions": None if count is None else count / 1e6,
        }
        for column, task in TASK_OF_COLUMN.items():
            vanilla, compiled = (_median_ms(cells.get((task, is_compiled))) for is_compiled in (False, True))
            row[f"{column}_vanilla_ms"] = vanilla
            row[f"{column}_compiled_ms"] = compiled
            row[f"{column}_speedup"] = vanilla / compiled if vanilla and compiled else None
        rows.append(row)
    return rows


def _attention_row(record: Record) -> Row:
    stages = {stage.name: stage for stage in record.stages}
    forward, backward = stages.get("forward"), stages.get("backward")
    latency, dimensions = record.latency, record.cell.dimensions
    return {
        "batch_size": dimensions["batch"],
        "seq_len": dimensions["seq"],
        "d_model": dimensions["d_model"],
        "compiled": str(IS_COMPILED[record.cell.backend]),
        "forward_mean_ms": forward.mean_ms if forward else None,
        "forward_std_ms": forward.std_ms if forward else None,
        "backward_mean_ms": backward.mean_ms if backward else None,
        "backward_std_ms": backward.std_ms if backward else None,
        "total_mean_ms": latency.mean_ms if latency else None,
        "peak_memory_mb": None if record.peak_bytes is None else record.peak_bytes / MEBIBYTE,
        "status": "OOM" if record.status is Status.OOM else record.status.value,
    }


def _groups(records: Sequence[Record], model: str, *dimensions: str) -> dict[tuple[tuple[str, ...], str], list[Record]]:
    def key(record: Record) -> tuple[tuple[str, ...], str]:
        values = tuple(str(record.cell.dimensions.get(name, "")) for name in dimensions)
        return values, f"{record.cell.device.slug}-{record.cell.precision}"

    cells = ((record, record.cell) for record in records)
    swept = [
        one for one, cell in cells if (cell.model, cell.mode) == (model, "default") and cell.backend in IS_COMPILED
    ]
    return grouped(swept, key)


def _median_ms(record: Record | None) -> float | None:
    return record.latency.median_ms if record and record.status is Status.OK and record.latency else None


def csv_text(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()} for row in rows
    )
    return text.getvalue()


ACCURACY = {Status.OK: "pass", Status.INCORRECT: "fail_accuracy", Status.OOM: "OOM", Status.TIMEOUT: "timeout"}
"""What benchmarks/dynamo calls an ending. What failed otherwise is `fail_to_run`."""

GIGABYTE = 1e9


def _dynamo_row(contest: ContestJudgement, cell: CellJudgement) -> Row:
    """Return a row whose first columns and units are those of pytorch/pytorch, benchmarks/dynamo. `speedup` is over
    eager, and a cell that failed has zeros."""
    measured, record, latencies_ms = cell.cell, cell.record, contest.fit.latency_ms
    baseline = next((other.record for other in contest.cells if other.label == contest.baseline), None)
    peaks = [each.peak_bytes if each else None for each in (baseline, record)]
    eager_gb, ours_gb = (peak / GIGABYTE if peak is not None else None for peak in peaks)
    row: Row = {
        "dev": measured.device.kind,
        "name": one_line(measured.model),
        "batch_size": measured.dimensions.get("batch", 1),
        **dict.fromkeys(("speedup", "abs_latency", "compilation_latency", "compression_ratio"), 0.0),
        **dict.fromkeys(("eager_peak_mem", "dynamo_peak_mem"), 0.0),
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
