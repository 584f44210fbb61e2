"""Finds this package on disk, and lets another interpreter import it without anything that lies beside it."""

import hashlib
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def checkout() -> Path | None:
    """Return the checkout that this package is run from, or None where it is installed."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "runner.py").is_file() else None


def requirements() -> list[str]:
    """Return what this package and its extras require: a checkout that is not installed has it in pyproject.toml alone,
    and an image that copies this package alone says nothing."""
    if root := checkout():
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].values()
        return [*project["dependencies"], *(text for extra in extras for text in extra)]
    try:
        return metadata.requires("bakeoff") or []
    except metadata.PackageNotFoundError:
        return []


def digests(others: Iterable[Path] = ()) -> list[str]:
    """Return digests of this package's source files, and of other files, in alphabetical order."""
    files = {*others, *(path for path in PACKAGE.rglob("*.py") if path.is_file())}
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


def import_statement() -> str:
    """Return a line of Python that imports `bakeoff` from here without changing the search path, so that an environment
    keeps its own libraries, and a user's folder `models/` has no rival."""
    return (
        "import sys, importlib.util as u;"
        f"s = u.spec_from_file_location('bakeoff', {str(PACKAGE / '__init__.py')!r});"
        "m = sys.modules['bakeoff'] = u.module_from_spec(s); s.loader.exec_module(m)"
    )
