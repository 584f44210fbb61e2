"""Turns the JSON of an older report or record into the JSON of today's schema."""

from __future__ import annotations

from typing import Any

from bakeoff.records.schema import SCHEMA_VERSION, SETTLE

EARLIER_COLOURS = {
    "eager": "#4d4d4d",
    "torchscript": "#f0e442",
    "inductor": "#e69f00",
    "aotinductor": "#d55e00",
    "onnx": "#0072b2",
    "openvino": "#56b4e9",
    "tensorrt": "#009e73",
    "torch-tensorrt": "#cc79a7",
    "triton": "#332288",
    "hotpath": "#882255",
    "null": "#b0b0b0",
}
"""The colours that charts gave to backends before records carried them. No backend is ever added here."""


def upgrade_report(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report of an earlier major version as one of today's. A report of today's comes back as it is."""
    if _major(document["schema_version"]) == _major(SCHEMA_VERSION):
        return document
    records = document.get("records")
    if isinstance(records, list):
        document = document | {"records": [upgrade_record(record) for record in records]}
    return document | {"schema_version": SCHEMA_VERSION}


def upgrade_record(record: Any) -> Any:
    """Return a record of an earlier major version as one of today's. What is no such record comes back as it is.

    In schema 1 a doubt was a sentence, and the calls until a build was final were a field of the process. In schema 2
    a doubt had lists of labels, values and details, whose meaning depended on its kind, and charts knew the colour of
    each backend.
    """
    if not isinstance(record, dict):
        return record
    upgraded = {"colour": _earlier_colour(record.get("cell")), **record}
    if isinstance(record.get("doubts"), list):
        upgraded["doubts"] = [_upgrade_doubt(doubt) for doubt in record["doubts"]]
    if isinstance(record.get("processes"), list):
        upgraded["processes"] = [_upgrade_process(process) for process in record["processes"]]
        if isinstance(record.get("phases"), list):
            upgraded["phases"] = [*record["phases"], *_settle_phase(*record["processes"][:1])]
    return upgraded


def _earlier_colour(cell: Any) -> str:
    backend = cell.get("backend") if isinstance(cell, dict) else None
    return EARLIER_COLOURS.get(backend, "") if isinstance(backend, str) else ""


def _upgrade_doubt(doubt: Any) -> Any:
    if isinstance(doubt, str):
        return {"kind": "noted", "text": doubt}
    if not isinstance(doubt, dict) or not isinstance(doubt.get("details"), list):
        return doubt
    kind, details, values = doubt.get("kind"), doubt["details"], doubt.get("values", {})
    fields: dict[str, Any] = {}
    match kind, details:
        case (("caveat" | "noted"), [text, *_]):
            fields = {"text": text}
        case "reference", ["float64", *operators]:
            fields = {"computed_in": "float64", "in_float32": operators}
        case "reference", [computed_in, *why]:
            fields = {"computed_in": computed_in, "why": "; ".join(map(str, why))}
        case "recompiled", _:
            fields = {"count": values.get("count")}
        case "warm-up", _:
            fields = {"seconds": values.get("seconds")}
        case "process lost", [reason, *_]:
            fields = {"reason": reason}
    return {"kind": kind, **fields}


def _major(version: object) -> str:
    return str(version).split(".")[0]


def _upgrade_process(process: Any) -> Any:
    if not isinstance(process, dict) or "settling" not in process:
        return process
    kept = {name: value for name, value in process.items() if name != "settling"}
    if isinstance(process.get("phases"), list):
        kept["phases"] = [*process["phases"], *_settle_phase(process)]
    return kept


def _settle_phase(process: Any = None) -> list[dict[str, Any]]:
    settling = process.get("settling") if isinstance(process, dict) else None
    return [{"name": SETTLE, **settling}] if isinstance(settling, dict) else []
