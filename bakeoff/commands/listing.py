"""The tables of `bakeoff list`, and the line of `bakeoff --version`."""

import platform
from collections.abc import Iterable, Mapping

from pydantic import Field
from rich import box
from rich.table import Table
from rich.text import Text

from bakeoff import backends, models
from bakeoff.measuring.controller.environment import git_state
from bakeoff.measuring.versions import versions_of
from bakeoff.records.errors import BakeoffError, first_line
from bakeoff.records.package import checkout
from bakeoff.records.schema import Frozen


def version(of_bakeoff: str) -> str:
    """Return `bakeoff 0.1.0, commit 96d6e19, torch 2.13.0, Python 3.12.4`."""
    commit, is_changed = git_state(checkout())
    at = [f"commit {commit[:10]}{' with changes' if is_changed else ''}"] if commit else []
    return ", ".join(
        [f"bakeoff {of_bakeoff}", *at, _spelled({"torch": installed("torch")}), f"Python {platform.python_version()}"]
    )


class ListedBackend(Frozen):
    """One backend. Versions are None for libraries that are not installed."""

    name: str
    description: str = ""
    modes: list[str] = Field(default_factory=list)
    best: list[str] = Field(default_factory=list)  # the modes worth trying, and where if that is not everywhere
    versions: dict[str, str | None] = Field(default_factory=dict)
    caveat: str = ""
    error: str = ""  # why it could not be loaded, or nothing
    devices: dict[str, str]  # why it cannot run on a device that was asked for, or nothing


class ListedModel(Frozen):
    """One model, with the defaults of its dimensions."""

    name: str
    description: str = ""
    dimensions: dict[str, int | str] = Field(default_factory=dict)
    error: str = ""  # why it could not be loaded, or nothing


class ListAnswer(Frozen):
    """What `bakeoff list --json` prints."""

    backends: list[ListedBackend]
    models: list[ListedModel]


def answer(availability: Mapping[tuple[str, str], str]) -> ListAnswer:
    """Return all backends, without importing their libraries, and all models. `availability` has, for each backend and
    device that was asked, why it cannot run there, or an empty string."""
    return ListAnswer(
        backends=[_listed_backend(name, availability) for name in backends.names()],
        models=list(map(_listed_model, models.names())),
    )


def _listed_backend(name: str, availability: Mapping[tuple[str, str], str]) -> ListedBackend:
    devices = {device: reason for (backend, device), reason in availability.items() if backend == name}
    try:
        backend = backends.create(name)
    except Exception as error:
        return ListedBackend(name=name, error=first_line(error), devices=devices)
    best_modes = []
    for mode in backend.modes:
        if (suits := mode.worth_trying) is not None:
            where = ", ".join(filter(None, [suits.device, "convolutions" if suits.convolutions else ""]))
            best_modes.append(f"{mode.name} ({where})" if where else mode.name)
    return ListedBackend(
        name=name,
        description=backend.description,
        modes=list(backend.mode_names()),
        best=best_modes,
        versions={library: installed(library) for library in backend.libraries},
        caveat=backend.caveat,
        devices=devices,
    )


def _listed_model(name: str) -> ListedModel:
    try:
        family = models.find(name)
    except BakeoffError as error:
        return ListedModel(name=name, error=first_line(error))
    sizes = {key: dimension.default for key, dimension in family.dimensions.items()}
    return ListedModel(name=name, description=family.description, dimensions=sizes)


def backends_table(listed: Iterable[ListedBackend]) -> Table:
    table = _table("Backends")
    for backend in listed:
        lines = [Text(backend.error, "red")]
        if not backend.error:
            lines = [
                Text(backend.description),
                _fact("modes", ", ".join(backend.modes)),
                _fact("best", ", ".join(backend.best)),
            ]
            lines += [Text(_spelled(backend.versions), "dim")]
            lines += [Text(backend.caveat, "yellow")] if backend.caveat else []
        lines += [_fact(device, f"no: {reason}" if reason else "yes") for device, reason in backend.devices.items()]
        table.add_row(backend.name, Text("\n").join(lines))
    table.add_row("aliases", "\n".join(f"{alias} = {name}" for alias, name in backends.ALIASES.items()))
    table.caption = "bakeoff doctor tries which of them work on this machine, and says what to do about the rest"
    return table


def installed(library: str) -> str | None:
    """Return the version of a package in the environment that runs Bakeoff, or None."""
    return versions_of([library]).get(library)


def models_table(listed: Iterable[ListedModel]) -> Table:
    table = _table("Models, and the dimensions that --set changes, with their defaults")
    for model in listed:
        sizes = ", ".join(f"{name} ({default})" for name, default in model.dimensions.items())
        description = Text("\n").join([Text(model.description), _fact("--set", sizes)])
        table.add_row(model.name, Text(model.error) if model.error else description)
    table.add_row("FILE.py:FACTORY", "your own model; its dimensions are the factory's keyword parameters")
    table.add_row(
        "FILE.py", "a class Model with get_inputs and get_init_inputs; dimensions are the file's own numbers and texts"
    )
    table.add_row("PACKAGE.MODULE:FACTORY", "the same, for a module that Python can import from this folder")
    for source in models.written_sources():
        table.add_row(source.form, source.description)
    return table


def _table(title: str) -> Table:
    """Return an empty table. Names stand whole in its first column, and texts break between words in its second."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", show_header=False)
    table.add_column(no_wrap=True, overflow="ignore")
    table.add_column(overflow="fold")
    return table


def _fact(name: str, text: str) -> Text:
    return Text.assemble((f"{name}: ", "bold"), text)


def _spelled(versions: Mapping[str, str | None]) -> str:
    """Return `torch 2.13.0, openvino 2026.4.1; not installed: torchao`."""
    installed = [f"{library} {version}" for library, version in versions.items() if version]
    missing = [library for library, version in versions.items() if not version]
    return "; ".join(filter(None, [", ".join(installed), f"not installed: {', '.join(missing)}" if missing else ""]))
