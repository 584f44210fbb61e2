"""The tables of the two sweeps, with the columns that notebooks made for earlier benchmarks read. Pure.

| file | one row for each |
| --- | --- |
| attention_sweep-VARIANT-DEVICE-PRECISION.csv | size of `attention`, eager and compiled, in task `forward_backward` |
| transformer_sweep-DEVICE-PRECISION.csv | size and context of `transformer_lm`, over all three tasks |

Its columns name neither a batch nor a kind of attention: of several, each has a file of its own, with both in the name.
Compiled means Inductor's default mode. A cell without numbers leaves its columns empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from judging.judgement import Judgement
from records.schema import Record, Status
from reports.format import MEBIBYTE

Value = str | int | float | None

ATTENTION_COLUMNS = (
    "batch_size", "seq_len", "d_model", "compiled", "forward_mean_ms", "forward_std_ms", "backward_mean_ms",
    "backward_std_ms", "total_mean_ms", "peak_memory_mb", "status",
)  # fmt: skip
TRANSFORMER_COLUMNS = (
    "model_size", "context_length", "num_params", "num_params_millions", "forward_vanilla_ms", "forward_compiled_ms",
    "forward_speedup", "fwd_bwd_vanilla_ms", "fwd_bwd_compiled_ms", "fwd_bwd_speedup", "full_step_vanilla_ms",
    "full_step_compiled_ms", "full_step_speedup",
)  # fmt: skip

TASKS = {"forward": "inference", "fwd_bwd": "forward_backward", "full_step": "train_step"}
"""Of the columns' names -> ours."""

COMPILED = {"eager": False, "inductor": True}


def sweep_tables(judgement: Judgement) -> dict[str, str]:
    """Name of each sweep's file -> its text; nothing for a report that holds neither."""
    files = {}
    for ((variant,), where), records in _groups(judgement.report.records, "attention", "variant").items():
        trained = [record for record in records if record.cell.task == TASKS["fwd_bwd"]]
        if trained:
            rows = [_attention_row(record) for record in trained]
            files[f"attention_sweep-{variant}-{where}.csv"] = _csv(ATTENTION_COLUMNS, rows)
    families = _groups(judgement.report.records, "transformer_lm", "lengths", "batch", "attention")
    models = {key: records for key, records in families.items() if key[0][0] == "fixed"}
    for ((_, batch, attention), where), records in models.items():
        is_alone = sum(other == where for _, other in models) == 1
        kind = "" if is_alone else f"batch{batch}-{attention}-"
        files[f"transformer_sweep-{kind}{where}.csv"] = _csv(TRANSFORMER_COLUMNS, transformer_rows(records))
    return files


def transformer_rows(records: Sequence[Record]) -> list[dict[str, Value]]:
    """One row for each size and context, in the order of the records. Latencies are medians; a speed-up is the ratio of
    the two beside it."""
    found: dict[tuple[str, int], dict[tuple[str, bool], Record]] = {}
    for record in records:
        size = (str(record.cell.dimensions["size"]), int(record.cell.dimensions["context"]))
        found.setdefault(size, {})[record.cell.task, COMPILED[record.cell.backend]] = record
    parameters = {
        str(record.cell.dimensions["size"]): record.settings["parameters"]
        for record in records
        if isinstance(record.settings.get("parameters"), int)
    }
    return [_transformer_row(size, context, parameters.get(size), cells) for (size, context), cells in found.items()]


def _transformer_row(
    size: str, context: int, parameters: object, cells: Mapping[tuple[str, bool], Record]
) -> dict[str, Value]:
    count = parameters if isinstance(parameters, int) else None
    row: dict[str, Value] = {
        "model_size": size,
        "context_length": context,
        "num_params": count,
        "num_params_millions": None if count is None else count / 1e6,
    }
    for column, task in TASKS.items():
        vanilla, compiled = (_median_ms(cells.get((task, is_compiled))) for is_compiled in (False, True))
        row[f"{column}_vanilla_ms"] = vanilla
        row[f"{column}_compiled_ms"] = compiled
        row[f"{column}_speedup"] = vanilla / compiled if vanilla and compiled else None
    return row


def _attention_row(record: Record) -> dict[str, Value]:
    stages = {stage.name: stage for stage in record.stages}
    forward, backward = stages.get("forward"), stages.get("backward")
    latency, dimensions = record.latency, record.cell.dimensions
    return {
        "batch_size": dimensions["batch"],
        "seq_len": dimensions["seq"],
        "d_model": dimensions["d_model"],
        "compiled": str(COMPILED[record.cell.backend]),
        "forward_mean_ms": forward.mean_ms if forward else None,
        "forward_std_ms": forward.std_ms if forward else None,
        "backward_mean_ms": backward.mean_ms if backward else None,
        "backward_std_ms": backward.std_ms if backward else None,
        "total_mean_ms": latency.mean_ms if latency else None,
        "peak_memory_mb": _peak_mib(record),
        "status": "OOM" if record.status is Status.OOM else record.status.value,
    }


def _groups(records: Sequence[Record], model: str, *dimensions: str) -> dict[tuple[tuple[str, ...], str], list[Record]]:
    """The records of eager and of Inductor's default mode, by their `dimensions` and by device and precision."""
    found: dict[tuple[tuple[str, ...], str], list[Record]] = {}
    for record in records:
        cell = record.cell
        if cell.model == model and cell.mode == "default" and cell.backend in COMPILED:
            where = f"{cell.device.slug}-{cell.precision}"
            values = tuple(str(cell.dimensions.get(name, "")) for name in dimensions)
            found.setdefault((values, where), []).append(record)
    return found


def _median_ms(record: Record | None) -> float | None:
    """Of a cell whose outputs are right."""
    return record.latency.median_ms if record and record.status is Status.OK and record.latency else None


def _peak_mib(record: Record) -> float | None:
    """On a GPU what the process had of its memory, PyTorch's own share and CUDA's; on a CPU what was resident."""
    if record.memory is None:
        return None
    peak = record.memory.peak_resident_bytes if not record.cell.device.is_cuda else record.memory.peak_device_bytes
    return None if peak is None else peak / MEBIBYTE


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
