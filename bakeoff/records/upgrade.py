"""Turns the JSON of an older report or record into the JSON of today's schema."""

from __future__ import annotations

from typing import Any

from bakeoff.records.schema import SCHEMA_VERSION, SETTLE, DoubtKind


def upgrade_report(document: dict[str, Any]) -> dict[str, Any]:
    """Return a report of schema 1 as one of schema 2. A report of schema 2 comes back as it is."""
    if not str(document["schema_version"]).startswith("1."):
        return document
    records = document.get("records")
    if isinstance(records, list):
        document = document | {"records": [upgrade_record(record) for record in records]}
    return document | {"schema_version": SCHEMA_VERSION}


def upgrade_record(record: Any) -> Any:
    """Return a record of schema 1 as one of schema 2. What is no such record comes back as it is.

    In schema 1 a doubt was a sentence, and the calls until a build was final were a field of the process.
    """
    if not isinstance(record, dict):
        return record
    upgraded = dict(record)
    if isinstance(record.get("doubts"), list):
        upgraded["doubts"] = [_upgrade_doubt(doubt) for doubt in record["doubts"]]
    if isinstance(record.get("processes"), list):
        upgraded["processes"] = [_upgrade_process(process) for process in record["processes"]]
        if isinstance(record.get("phases"), list):
            upgraded["phases"] = [*record["phases"], *_settle_phase(*record["processes"][:1])]
    return upgraded


def _upgrade_doubt(doubt: Any) -> Any:
    return {"kind": DoubtKind.NOTED, "details": [doubt]} if isinstance(doubt, str) else doubt


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
