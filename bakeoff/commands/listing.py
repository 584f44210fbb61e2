"""The tables of `bakeoff list`, and the line of `bakeoff --version`."""

import platform
from collections.abc import Mapping, Sequence

from pydantic import Field

from bakeoff import backends, models
from bakeoff.measuring.controller.environment import git_state
from bakeoff.measuring.versions import versions_of
from bakeoff.records.errors import BakeoffError, first_line
from bakeoff.records.package import checkout
from bakeoff.records.schema import Frozen
from bakeoff.reports.blocks import Block, Look, Text
from bakeoff.reports.tables import text_table


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


def installed(library: str) -> str | None:
    """Return the version of a package in the environment that runs Bakeoff, or None."""
    return versions_of([library]).get(library)


def blocks_of(listed: ListAnswer) -> list[Block]:
    """Return a table of the backends and one of the models, with a row for each thing that is said of one."""
    of_backends = {backend.name: _about_backend(backend) for backend in listed.backends}
    of_backends["aliases"] = [f"{alias} = {name}" for alias, name in backends.ALIASES.items()]
    of_models = {model.name: _about_model(model) for model in listed.models}
    of_models |= {form: [text] for form, text in OWN_FORMS.items()}
    of_models |= {source.form: [source.description] for source in models.written_sources()}
    return [
        _table("Backends", of_backends),
        Text("bakeoff doctor tries which of them work on this machine, and says what to do about the rest", Look.SOFT),
        _table("Models, and the dimensions that --set changes, with their defaults", of_models),
    ]


OWN_FORMS = {
    "FILE.py:FACTORY": "your own model; its dimensions are the factory's keyword parameters",
    "FILE.py": "a class Model with get_inputs and get_init_inputs; dimensions are the file's own numbers and texts",
    "PACKAGE.MODULE:FACTORY": "the same, for a module that Python can import from this folder",
}


def _about_backend(backend: ListedBackend) -> list[str]:
    on = [f"{device}: {f'no: {reason}' if reason else 'yes'}" for device, reason in backend.devices.items()]
    if backend.error:
        return [backend.error, *on]
    modes = [f"modes: {', '.join(backend.modes)}", f"best: {', '.join(backend.best)}"]
    return [backend.description, *modes, _spelled(backend.versions), *filter(None, [backend.caveat]), *on]


def _about_model(model: ListedModel) -> list[str]:
    sizes = ", ".join(f"{name} ({default})" for name, default in model.dimensions.items())
    return [model.error] if model.error else [model.description, f"--set: {sizes}"]


def _table(title: str, facts: Mapping[str, Sequence[str]]) -> Block:
    rows = [(name if text is texts[0] else "", text) for name, texts in facts.items() for text in texts]
    return text_table(["", ""], rows, "ll", title)


def _spelled(versions: Mapping[str, str | None]) -> str:
    """Return `torch 2.13.0, openvino 2026.4.1; not installed: torchao`."""
    installed = [f"{library} {version}" for library, version in versions.items() if version]
    missing = [library for library, version in versions.items() if not version]
    return "; ".join(filter(None, [", ".join(installed), f"not installed: {', '.join(missing)}" if missing else ""]))
