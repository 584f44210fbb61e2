"""What a row of the page's table unfolds to: everything that is known of one cell, as named facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from judging.judgement import CellJudgement
from records.schema import Latency, Phase, Placement, Record
from records.text import visible
from reports import format

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Group:
    """Facts under a heading: plain text, nothing is escaped yet."""

    title: str
    facts: Facts


@dataclass(frozen=True)
class Details:
    groups: Sequence[Group]
    reason: str
    doubts: Sequence[str]
    log_tail: str
    command: str


def details_of(row: CellJudgement) -> Details:
    """All that the table has no room for. Groups without a fact are left out."""
    record = row.record
    groups = [
        Group("Until the first answer", _phases(record)),
        Group("Latency", _latency(record.latency)),
        Group("Processes", _processes(record)),
        Group(
            "Stages of a call",
            [(stage.name, f"{format.milliseconds(stage.median_ms)} ms") for stage in record.stages],
        ),
        Group("Beside the latency", _beside(record)),
        Group("Memory", _memory(record)),
        Group("Accuracy", _accuracy(record)),
        Group("Placement", _placement(record.placement)),
        Group("Precision in force", _json(record.precision_in_force)),
        Group("Settings", _json(record.settings)),
        Group("Versions", sorted(record.versions.items())),
    ]
    return Details(
        groups=[group for group in groups if group.facts],
        reason=record.reason,
        doubts=record.doubts,
        log_tail=visible(record.log_tail).strip("\n"),
        command=visible(record.command).strip(),
    )


def _phases(record: Record) -> Facts:
    cold = _seconds(record.phases)
    warm = record.warm_start
    return [*cold, *((f"{name}, warm start", text) for name, text in (_seconds(warm.phases) if warm else []))]


def _seconds(phases: Sequence[Phase]) -> Facts:
    return [(phase.name.replace("_", " "), f"{format.seconds(phase.seconds)} s") for phase in phases]


def _latency(latency: Latency | None) -> Facts:
    if latency is None:
        return []
    percentiles = {"p90": latency.p90_ms, "p95": latency.p95_ms, "p99": latency.p99_ms, "p99.9": latency.p999_ms}
    return [
        ("median [95 %]", f"{format.median(latency)} ms"),
        ("mean", f"{format.milliseconds(latency.mean_ms)} ms"),
        ("standard deviation", f"{format.milliseconds(latency.std_ms)} ms"),
        ("least", f"{format.milliseconds(latency.min_ms)} ms"),
        *((name, "n/a" if ms is None else f"{format.milliseconds(ms)} ms") for name, ms in percentiles.items()),
        ("calls", f"{latency.calls:,}"),
    ]


def _processes(record: Record) -> Facts:
    medians = [
        (f"process {process.index + 1}, {'warm' if process.warm else 'cold'}", process.median_ms)
        for process in record.processes
        if process.median_ms is not None
    ]
    if len(medians) < 2:
        return []
    spread = record.latency.process_spread if record.latency else None
    return [
        *((name, f"{format.milliseconds(median_ms)} ms") for name, median_ms in medians),
        ("slowest over fastest", f"{format.percent(spread)} %"),
    ]


def _beside(record: Record) -> Facts:
    found: list[tuple[str, str]] = []
    if record.throughput:
        found.append(("throughput", f"{format.quantity(record.throughput.calls_per_s, 'calls/s')}"))
    if record.device_time:
        found.append(("device time", f"{format.milliseconds(record.device_time.median_ms)} ms"))
    if record.energy:
        found.append(("energy per call", f"{1e3 * record.energy.joules_per_call:.3g} mJ ({record.energy.source})"))
    if record.warm_up:
        state = "steady" if record.warm_up.steady else "no trend" if record.warm_up.trendless else "never steady"
        found.append(
            ("warm-up", f"{record.warm_up.calls:,} calls, {format.seconds(record.warm_up.seconds)} s, {state}")
        )
    if record.elapsed_s:
        found.append(("the whole cell took", f"{format.seconds(record.elapsed_s)} s"))
    return found


def _memory(record: Record) -> Facts:
    memory = record.memory
    if memory is None:
        return []
    found = [
        ("peak resident", memory.peak_resident_bytes),
        ("peak on the device", memory.peak_device_bytes),
        ("artefact on disk", memory.artifact_bytes),
    ]
    facts = [(name, f"{format.mebibytes(size)} MiB") for name, size in found if size is not None]
    return [*facts, ("device memory read from", memory.device_bytes_source)] if memory.device_bytes_source else facts


def _accuracy(record: Record) -> Facts:
    accuracy, unheld = record.accuracy, format.unheld(record)
    if accuracy is None:
        return []
    return [
        ("verdict", f"{'passed' if accuracy.passed else 'failed'}: {accuracy.rule}"),
        ("relative RMSE", format.error(accuracy.relative_rmse)),
        *([("not judged", unheld)] if unheld else []),
        ("RMSE", format.error(accuracy.rmse)),
        ("eager's RMSE", format.error(accuracy.eager_rmse)),
        ("RMSE after the last burst", format.error(accuracy.rmse_after)),
        ("largest error", format.error(accuracy.max_abs_error)),
        ("tolerances", f"relative {accuracy.rtol:g}, absolute {accuracy.atol:g}"),
    ]


def _placement(placement: Placement | None) -> Facts:
    if placement is None:
        return []
    found = [
        ("extent", placement.extent.value),
        ("engines", "; ".join(f"{name} {count}" for name, count in placement.engines.items())),
        ("elsewhere", "; ".join(placement.fallbacks)),
        ("time", "; ".join(format.time_shares(placement.time_share))),
        ("read from", "; ".join(placement.evidence)),
    ]
    return [(name, text) for name, text in found if text]


def _json(values: Mapping[str, JsonValue]) -> Facts:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    ]
