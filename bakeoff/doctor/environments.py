"""What the doctor says of the environments beside the one that runs Bakeoff: what differs there, and what imports."""

from collections.abc import Iterable, Mapping, Sequence

from packaging.utils import canonicalize_name

from bakeoff.backends.traps import Library
from bakeoff.commands import environments
from bakeoff.commands.listing import installed
from bakeoff.doctor import facts
from bakeoff.doctor.diagnosis import OtherEnvironment
from bakeoff.measuring.controller.launcher import create_launcher
from bakeoff.planning.request import StartMethod

NEEDED = ("torch", "pydantic")
"""A worker needs these, so that every environment must have them."""


def examine_environment(
    name: str, known: Mapping[str, Library], named: Sequence[str], start_method: StartMethod
) -> OtherEnvironment:
    """Return what differs in an environment, and what imports there: torch, pydantic and the libraries of backends.

    `known` are the libraries of all backends. Those that differ are tried, and those that a named backend needs.
    """
    python = str(environments.python_of(name))
    contents = {str(canonicalize_name(package)): version for package, version in environments.contents(name).items()}
    needed = {package: known.get(package) or Library(name=package) for package in NEEDED}
    wanted = {
        package: each for package, each in known.items() if package in contents or set(named) & set(each.backends)
    }
    there = [
        library.model_copy(update={"version": contents.get(library.name) or installed(library.name)})
        for library in (needed | wanted).values()
    ]
    with create_launcher(start_method, python) as server:
        tried = [facts.tried(library, server) for library in there if library.version]
    return OtherEnvironment(name=name, python=python, differs=differences(contents), libraries=tried)


def differences(contents: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Return the version there and that in the environment of Bakeoff, if any, for each package that differs."""
    both = {package: (version, installed(package)) for package, version in contents.items()}
    return {package: (there, here) for package, (there, here) in both.items() if there != here}


def broken_libraries(other_environments: Iterable[OtherEnvironment], named: Iterable[str]) -> list[str]:
    """Return a phrase for each library of a named backend that does not import in an environment."""
    asked = set(named)
    return [
        f"{library.name} in environment {other_environment.name}"
        for other_environment in other_environments
        for library in other_environment.libraries
        if library.imports is False and asked & set(library.backends)
    ]
