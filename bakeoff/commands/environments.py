"""Environments beside the one that runs Bakeoff: other versions of a library, as contestants.

An environment is an overlay. It finds every package of the environment that runs Bakeoff, but those that were installed
into it come first. So two environments differ by what was named, and an overlay takes seconds and little space.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from bakeoff.measuring import malloc
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError, first_line, unknown

BASE = "bakeoff-base.pth"
"""The file of an overlay that names the packages below it."""

ASKED = "packages.txt"
"""The file of an overlay that names what it was made with. It is written last: an overlay without it is unfinished."""


def folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches, "bakeoff", "environments").expanduser()


def names() -> list[str]:
    return sorted(path.parent.name for path in folder().glob(f"*/{ASKED}"))


def python_of(name: str) -> Path:
    """Return the interpreter of an environment. Raises UsageError for an unknown name."""
    if name not in names():
        raise unknown("environment", name, names(), "bakeoff env add")
    return _python_in(folder() / name)


def contents(name: str) -> dict[str, str]:
    installed = metadata.distributions(path=[str(_packages_in(folder() / name))])
    return dict(sorted((distribution.name, distribution.version) for distribution in installed))


def add(name: str, packages: Sequence[str]) -> Path:
    """Make an environment with `packages`, such as `onnxruntime==1.30.0`, and return its interpreter. Raise UsageError
    for a bad name, one that exists, and packages that do not install."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UsageError(f"environment '{name}': use letters, digits, '.', '_' and '-'")
    if name in names():
        raise UsageError(f"environment {name} exists: bakeoff env remove {name}")
    if not packages:
        raise UsageError("name what is to differ, such as onnxruntime==1.30.0")
    made = folder() / name
    shutil.rmtree(made, ignore_errors=True)  # what was left when an earlier one was killed
    venv.create(made, symlinks=os.name != "nt")
    below = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in below)
    (_packages_in(made) / BASE).write_text(lines, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(_python_in(made)), "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "--quiet", *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(made)
        raise UsageError(f"{' '.join(packages)}: {reason_of(done.stderr)}")
    (made / ASKED).write_text("\n".join(packages), encoding="utf-8")
    return _python_in(made)


def reason_of(said: str) -> str:
    """Return the last error in what pip said, or its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.partition(": ")[2] for line in lines if line.lower().startswith("error: ")]
    return next(reversed(errors or lines), "pip failed and said nothing")


def ensure(name: str, packages: Sequence[str]) -> Path:
    """Make an environment unless it is there, and return its interpreter. Raise UsageError where one of this name has
    other packages."""
    if name not in names():
        return add(name, packages)
    if (folder() / name / ASKED).read_text(encoding="utf-8").splitlines() != list(packages):
        raise UsageError(f"environment {name} was not made with {' '.join(packages)}: bakeoff env remove {name}")
    return python_of(name)


def remove(name: str) -> None:
    """Remove an environment. Raises UsageError for an unknown name, and where it cannot be removed."""
    python_of(name)
    try:
        shutil.rmtree(folder() / name)
    except OSError as error:
        raise UsageError(f"environment {name} cannot be removed: {first_line(error)}") from None


def with_interpreters(request: Request) -> Request:
    """Return the request with the interpreter of each environment that a backend names and --env does not. The name of
    an allocator is an environment, too: this one, started with that allocator. Raise UsageError for an unknown name."""
    made, pythons = names(), dict(request.env)
    for name in request.environments:
        if name in pythons:
            continue
        if name in made:
            pythons[name] = str(_python_in(folder() / name))
        elif name in malloc.NAMES:
            pythons[name] = str(malloc.interpreter_with(name, folder()))
        else:
            raise unknown("environment", name, [*request.env, *made, *malloc.NAMES], "--env NAME=PYTHON")
    return request.but(env=pythons)


def _python_in(made: Path) -> Path:
    return made / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _packages_in(made: Path) -> Path:
    where = {"base": str(made), "platbase": str(made)}
    return Path(sysconfig.get_path("purelib", scheme="venv", vars=where))
