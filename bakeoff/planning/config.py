"""Turn the options of the command line and of TOML files into a Request."""

import functools
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import typer

from bakeoff import models
from bakeoff.planning.configurations import expand_backends
from bakeoff.planning.request import OPTIONS, Request, RunOverrides
from bakeoff.records.errors import UsageError, os_reason, unknown

KEYS = {flag.removeprefix("--"): name for name, option in OPTIONS.items() for flag in option.flags}
"""Field of a request, by the key that it has in a TOML file."""

RUN_KEYS = [key for key, name in KEYS.items() if name in RunOverrides.model_fields]
"""Keys that a `[[run]]` may have. All others belong to the whole file."""

PRESETS = Path(__file__).resolve().parents[1] / "presets"

NOW_EXAMPLES = ("boxes", "digits", "minilm")
"""Presets of earlier versions, which are files of the repository's `examples/`."""


def require_names(request: Request) -> None:
    """Raise UsageError for an unknown model or backend. This needs no planner, which takes long to import."""
    for part in request.parts:
        for model in models.expanded(part.models)[0]:
            models.find(model)
        expand_backends([entry.partition("@")[0] for entry in part.backends])


@dataclass
class Options:
    """The options that were given: fields of the request, the folder, and whether to be quiet."""

    request: dict[str, Any] = field(default_factory=dict)
    out: Path | None = None
    quiet: bool = False

    def over(self, other: Self) -> Self:
        """Return these options, with those of `other` where these say nothing."""
        dimensions = other.request.get("set", {}) | self.request.get("set", {})
        request = other.request | self.request | ({"set": dimensions} if dimensions else {})
        if "runs" in other.request and "runs" not in self.request:
            request["runs"] = tuple(self._over_run(run) for run in other.request["runs"])
        return type(self)(request, self.out or other.out, self.quiet or other.quiet)

    def _over_run(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is left of one run of several: options given here apply to all of them."""
        typed = self.request.get("set", {})
        others = {name: value for name, value in run.items() if name not in self.request or name == "set"}
        return others | {"set": {key: values for key, values in run.get("set", {}).items() if key not in typed}}

    def to_request(self) -> Request:
        """Raise UsageError, in one line, for a value that cannot be read or is out of range."""
        return Request(**self.request)


def gather(
    typed: Mapping[str, Any], out: Path | None, quiet: bool, config_file: Path | None, preset: str | None
) -> Options:
    """Return what was typed, over what a file says, over what a preset says. Raises UsageError."""
    options = Options(dict(typed), out, quiet)
    options = options.over(read_config(config_file)) if config_file else options
    return options.over(read_preset(preset)) if preset else options


def read_config(path: Path) -> Options:
    """Read the options in a TOML file, which has the keys of the command line. Raise UsageError for a file that cannot
    be read, is not TOML, or has an unknown key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {os_reason(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    runs = document.pop("run", None)
    options = _options_of(document, path)
    if runs is not None:
        options.request["runs"] = _runs(runs, path)
    return options


def read_preset(name: str) -> Options:
    names = sorted(path.stem for path in PRESETS.glob("*.toml"))
    if name in NOW_EXAMPLES:
        raise UsageError(
            f"--preset {name}: it is an example now: --config examples/{name}.toml, in Bakeoff's repository"
        )
    if name not in names:
        raise unknown("preset", name, names, "or --config FILE for one of your own")
    return read_config(PRESETS / f"{name}.toml")


def _runs(tables: Any, path: Path) -> tuple[dict[str, Any], ...]:
    """Return the options of each `[[run]]`. Raises UsageError for a key that belongs to the whole file."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables) or not tables:
        raise UsageError(f"--config {path}: 'run' is a list of tables: write [[run]] above each")
    for table in tables:
        for key in table:
            if key not in RUN_KEYS:
                raise unknown("key of a [[run]]", key, RUN_KEYS, f"in {path}")
    return tuple(_options_of(table, path).request for table in tables)


def _options_of(document: Mapping[str, Any], path: Path) -> Options:
    options = Options()
    for key, value in document.items():
        name = key.replace("_", "-")
        if name not in KEYS and name not in ("out", "quiet"):
            raise unknown("key", key, [*KEYS, "out", "quiet", "run"], f"in {path}")
        kind = kind_of(KEYS[name]) if name in KEYS else None
        # Python counts a bool as a number
        if (name == "quiet" or kind is bool) != isinstance(value, bool) and kind not in (tuple, dict):
            raise UsageError(f"--config {path}: '{key}' cannot be {value!r}")
        if kind is tuple:
            options.request[KEYS[name]] = split(_texts(path, key, value))
        elif kind is dict:
            if not isinstance(value, Mapping):
                raise UsageError(f"--config {path}: 'set' is a table: [set] with a line KEY = VALUE for each dimension")
            sizes = {key: split(_texts(path, f"set.{key}", size)) for key, size in value.items()}
            options.request[KEYS[name]] = sizes
        elif kind is not None:
            options.request[KEYS[name]] = value
        elif name == "quiet":
            options.quiet = value
        elif isinstance(value, str):
            options.out = Path(value)
        else:
            raise UsageError(f"--config {path}: '{key}' cannot be {value!r}")
    return options


def kind_of(name: str) -> Any:
    if OPTIONS[name].parse:
        return OPTIONS[name].written_as
    annotation = Request.model_fields[name].annotation
    origin = get_origin(annotation)
    if origin is Literal:
        return str
    if origin is UnionType:
        return get_args(annotation)[0]
    return origin or annotation


def takes_request(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command of the command line the options of a request, in place of its first parameter, which gets the
    fields that were typed."""

    @functools.wraps(command)
    def with_options(**typed: Any) -> int:
        given = {name: typed.pop(name) for name in OPTIONS}
        return command(_parsed(given), **typed)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [*map(_parameter, OPTIONS), *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
    with_options.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    return with_options


def _parameter(name: str) -> inspect.Parameter:
    option, kind = OPTIONS[name], kind_of(name)
    default = option.default or _spell(
        option.written(Request.model_fields[name].get_default(call_default_factory=True))
    )
    typer_option = typer.Option(*option.flags, help=f"{option.help} [{default}]" if default else option.help)
    annotation = bool if kind is bool else (list[str] if kind in (tuple, dict) else kind) | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[annotation, typer_option],
    )


def _spell(default: object) -> str:
    """Return a default as a user would type it. One that changes nothing is an empty string."""
    if isinstance(default, tuple | list):
        return ",".join(default)
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, int | str) and not isinstance(default, bool) else ""


def _parsed(given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {}
    for name, value in given.items():
        if value is None or value is False:
            continue
        kind = kind_of(name)
        fields[name] = split(value) if kind is tuple else parse_dimensions(value) if kind is dict else value
    return fields


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


def single_sizes(dimensions: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the one value of each size of a pipeline. Raises UsageError for several."""
    for key, values in dimensions.items():
        if len(values) > 1:
            raise UsageError(f"--set {key}={','.join(values)}: a pipeline is called in one size here: name one value")
    return {key: values[0] for key, values in dimensions.items()}


def _texts(path: Path, key: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        raise UsageError(f"--config {path}: '{key}' takes names or whole numbers, or a list of them, not {value!r}")
    return [str(value) for value in values]
