"""Everything that is known of a cell, as the blocks that unfold below its row on a page."""

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from bakeoff.judging.judgement import CellJudgement
from bakeoff.records.schema import Phase, Record
from bakeoff.records.text import spell_minutes
from bakeoff.reports import number_format, sentences
from bakeoff.reports.blocks import Block, Code, Facts, Items, Look, Text
from bakeoff.reports.tables import Column

Pairs = list[tuple[str, str]]


def details_of(row: CellJudgement, columns: Sequence[Column[CellJudgement]]) -> list[Block]:
    record = row.record
    return [
        Text(f"{sentences.ending(row)}: {record.reason}" if record.reason else ""),
        Items([doubt.say() for doubt in record.doubts], look=Look.UNSURE),
        Facts(_facts(row, columns)),
        *log_and_command(record, "The end of its log"),
    ]


def log_and_command(record: Record, title: str) -> list[Block]:
    return [Code(record.log_tail, title=title), Code(record.command, "sh", "To measure it again")]


def _facts(row: CellJudgement, columns: Sequence[Column[CellJudgement]]) -> dict[str, Pairs]:
    record = row.record
    warm = record.warm_start.phases if record.warm_start else []
    groups: dict[str, Pairs] = {
        "Until the first answer": [
            (f"{phase.name.replace('_', ' ')}{start}", f"{number_format.seconds(phase.seconds)} s{_origin(phase)}")
            for phases, start in ((record.phases, ""), (warm, ", warm start"))
            for phase in phases
        ]
    }
    for column in columns:
        if column.details and (text := column.text_of(row)) not in ("", number_format.NONE):
            groups.setdefault(column.details, []).append((column.heading, _fact(column, row, text)))
    groups |= {
        "Processes": _processes(record),
        "Stages of a call": [
            (stage.name, f"{number_format.milliseconds(stage.median_ms)} ms") for stage in record.stages
        ],
        "Precision in force": _settings(record.precision_in_force),
        "Settings": _settings(record.settings),
        "Versions": sorted(record.versions.items()),
    }
    return {title: facts for title, facts in groups.items() if facts}


def _fact(column: Column[CellJudgement], row: CellJudgement, text: str) -> str:
    """Return `1.85 [1.80, 1.90] ms (a note)`. A word, such as `never`, has no unit."""
    note, unit = column.note_of(row), column.unit if any(map(str.isdigit, text)) else ""
    return " ".join(part for part in (text, column.interval_of(row), unit, note and f"({note})") if part)


def _origin(phase: Phase) -> str:
    shared = f", shared with {phase.shared_with}" if phase.shared_with else ""
    return f"{shared}, of {spell_minutes(phase.built_at)}, from the cache" if phase.built_at else shared


def _processes(record: Record) -> Pairs:
    medians = [
        (f"process {process.index + 1}, {'warm' if process.warm else 'cold'}", process.median_ms)
        for process in record.processes
        if process.median_ms is not None
    ]
    if len(medians) < 2:
        return []
    spread = record.latency.process_spread if record.latency else None
    return [
        *((name, f"{number_format.milliseconds(median_ms)} ms") for name, median_ms in medians),
        ("slowest over fastest", f"{number_format.percent(spread)} %"),
    ]


def _settings(values: Mapping[str, JsonValue]) -> Pairs:
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    ]
