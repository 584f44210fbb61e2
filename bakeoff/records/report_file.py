"""Reads and writes `report.json`, from which everything else of a run's output can be rendered again."""

import gzip
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.errors import UsageError, first_line, os_reason
from bakeoff.records.schema import SCHEMA_VERSION, Report

REPORT_JSON = "report.json"
CHECKS_JSON = "checks.json"
"""What `--check-only` writes in place of a report."""
PARTS = "parts"
"""The folder in a pipeline's own that holds the run of its parts."""


def write_json(report: Report, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / REPORT_JSON, to_json(report))


def folder_of(path: Path) -> Path:
    """Return the folder of the run whose folder or report `path` is."""
    return path if path.is_dir() else path.parent


def has_report(folder: Path) -> bool:
    return any((folder / name).exists() for name in (REPORT_JSON, f"{REPORT_JSON}.gz"))


def refuse_checks(folder: Path) -> None:
    if (folder / CHECKS_JSON).exists():
        text = "was made by --check-only, which keeps no build and no report: run it again without --check-only"
        raise UsageError(f"{folder} {text}")


def read(path: Path, with_samples: bool = True) -> Report:
    """Read the report at `path`: a `report.json`, gzipped or not, or a folder that holds one. Without samples, hundreds
    of them fit into memory. Raise UsageError, in one line, if there is none or it is not valid."""
    file = path / REPORT_JSON if path.is_dir() else path
    packed = file.with_name(f"{file.name}.gz")
    if path.is_dir() and packed.exists() and not file.exists():
        file = packed
    try:
        content = file.read_bytes()
        document = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    except FileNotFoundError:
        refuse_checks(file.parent)
        raise UsageError(f"no report at {file}: give the folder of a run, or its {REPORT_JSON}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {os_reason(error)}") from None
    except EOFError as error:
        raise UsageError(f"cannot read {file}: {first_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON ({first_line(error)}): give the {REPORT_JSON} of a run") from None
    if not isinstance(document, dict) or "schema_version" not in document:
        raise UsageError(f"{file} is JSON but no report: it has no schema_version")
    version, (major, _, _) = document["schema_version"], SCHEMA_VERSION.split(".")
    if not isinstance(version, str) or version.split(".")[0] != major:
        raise UsageError(f"{file} has schema {version}, this Bakeoff reads {major}.x: use the one that made it")
    try:
        report = _validated(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{file} is not a valid report: {field}: {first_line(first['msg'])}") from None
    if with_samples:
        return report
    light = [record.but(bursts=[], log_tail="") for record in report.records]
    return report.but(records=light)


def to_json(report: Report) -> str:
    """Return the report as JSON. Each record is one line, so that diffs are short."""
    head = report.model_dump_json(exclude={"records"})
    records = ",\n".join(record.model_dump_json() for record in report.records)
    return f'{head[:-1]},"records":[\n{records}\n]}}\n'


def json_schema() -> str:
    schema = Report.model_json_schema(mode="serialization", schema_generator=_Schema)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


class _Schema(GenerateJsonSchema):
    """A JSON Schema in which a float may be a string: `Frozen` writes NaN and the infinities that way."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def _validated(document: dict[str, Any]) -> Report:
    """Validate the report. Unknown fields are left out only if a newer minor version may have added them."""
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        if _minor(document["schema_version"]) <= _minor(SCHEMA_VERSION):
            raise
        for unknown in (problem for problem in error.errors(include_url=False) if problem["type"] == "extra_forbidden"):
            *path, name = unknown["loc"]
            parent: Any = document
            for part in path:
                if isinstance(part, int) or part in parent:  # else it is the kind of a doubt, which is no field
                    parent = parent[part]
            del parent[name]
        return Report.model_validate(document)


def _minor(version: str) -> int:
    part = [*version.split("."), "0"][1]
    return int(part) if part.isdecimal() else 0
