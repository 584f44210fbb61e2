"""Turn the options of the command line and of TOML files into a Request."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.plan import Request
from records.errors import UsageError, unknown

LISTS = {
    "model": "models",
    "models": "models",
    "backends": "backends",
    "devices": "devices",
    "precision": "precision",
    "surgical": "surgical",
}
SCALARS = {
    "task": "task",
    "seed": "seed",
    "time-limit": "time_limit_s",
    "min-time": "min_time_s",
    "processes": "processes",
    "schedule": "schedule",
    "start-method": "start_method",
    "calls": "calls",
    "require": "require",
}
FLAGS = {"strict": "strict"}
OF_A_RUN = ("model", "models", "backends", "precision", "task", "set")
"""The keys that a `[[run]]` may have. All others belong to the whole file."""

PRESETS = Path(__file__).resolve().parents[1] / "presets"
OPTION_OF = {target: option for option, target in (LISTS | SCALARS | FLAGS).items()}


@dataclass
class Options:
    """The options that were given: fields of the request, the folder, and whether to be quiet."""

    request: dict[str, Any] = field(default_factory=dict)
    out: Path | None = None
    quiet: bool = False

    def over(self, other: Options) -> Options:
        """Return these options, with those of `other` where these say nothing."""
        dimensions = other.request.get("set", {}) | self.request.get("set", {})
        request = other.request | self.request | ({"set": dimensions} if dimensions else {})
        if "runs" in other.request and "runs" not in self.request:
            request["runs"] = tuple(self._over_run(run) for run in other.request["runs"])
        return Options(request, self.out or other.out, self.quiet or other.quiet)

    def _over_run(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is left of one run of several: options given here apply to all of them."""
        typed = self.request.get("set", {})
        left = {name: value for name, value in run.items() if name not in self.request or name == "set"}
        return left | {"set": {key: values for key, values in run.get("set", {}).items() if key not in typed}}

    def to_request(self) -> Request:
        """Raise UsageError, in one line, for a value of the wrong type or out of range."""
        try:
            return Request(**self.request)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            option = OPTION_OF.get(str(first["loc"][0]), str(first["loc"][0]))
            raise UsageError(f"--{option} {first['input']}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def read_config(path: Path) -> Options:
    """Read the options in a TOML file, which has the keys of the command line.

    Raises UsageError for a file that cannot be read, is not TOML, or has an unknown key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    runs = document.pop("run", None)
    options = _options_of(document, path)
    if runs is not None:
        options.request["runs"] = _runs(runs, path)
    return options


def read_preset(name: str) -> Options:
    """Read the options of a preset. Raises UsageError for an unknown name."""
    known = sorted(path.stem for path in PRESETS.glob("*.toml"))
    if name not in known:
        raise unknown("preset", name, known, "or --config FILE for one of your own")
    return read_config(PRESETS / f"{name}.toml")


def _runs(tables: Any, path: Path) -> tuple[dict[str, Any], ...]:
    """Return the options of each `[[run]]`. Raises UsageError for a key that belongs to the whole file."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables) or not tables:
        raise UsageError(f"--config {path}: 'run' is a list of tables: write [[run]] above each")
    for table in tables:
        for key in table:
            if key not in OF_A_RUN:
                raise unknown("key of a [[run]]", key, OF_A_RUN, f"in {path}")
    return tuple(_options_of(table, path).request for table in tables)


def _options_of(document: Mapping[str, Any], path: Path) -> Options:
    options = Options()
    for key, value in document.items():
        name = key.replace("_", "-")
        if name in LISTS:
            options.request[LISTS[name]] = split(_texts(path, key, value))
        elif name in SCALARS and not isinstance(value, bool):  # Python counts a bool as a number
            options.request[SCALARS[name]] = value
        elif name in FLAGS and isinstance(value, bool):
            options.request[FLAGS[name]] = value
        elif name == "set":
            options.request["set"] = _dimensions_table(path, value)
        elif name == "out" and isinstance(value, str):
            options.out = Path(value)
        elif name == "quiet" and isinstance(value, bool):
            options.quiet = value
        elif name in ("out", "quiet") or name in SCALARS or name in FLAGS:
            raise UsageError(f"--config {path}: '{key}' cannot be {value!r}")
        else:
            raise unknown("key", key, [*LISTS, *SCALARS, *FLAGS, "set", "out", "quiet", "run"], f"in {path}")
    return options


def split(entries: Iterable[str]) -> tuple[str, ...]:
    """Return comma-separated and repeated names in order, each once."""
    return tuple(dict.fromkeys(name.strip() for entry in entries for name in entry.split(",")))


def parse_dimensions(entries: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse the `KEY=VALUE[,VALUE...]` of --set. Raises UsageError for any other form."""
    dimensions: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        key, equals, values = entry.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {entry}: write --set KEY=VALUE[,VALUE...]")
        dimensions[key.strip()] = split([*dimensions.get(key.strip(), ()), values])
    return dimensions


def _dimensions_table(path: Path, table: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, Mapping):
        raise UsageError(f"--config {path}: 'set' is a table: [set] with a line KEY = VALUE for each dimension")
    return {key: split(_texts(path, f"set.{key}", value)) for key, value in table.items()}


def _texts(path: Path, key: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in values):
        raise UsageError(f"--config {path}: '{key}' takes names or whole numbers, or a list of them, not {value!r}")
    return [str(one) for one in values]
