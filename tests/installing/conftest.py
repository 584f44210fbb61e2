"""Bakeoff as people install it: a wheel that is built here, in an environment that does not know the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

BUILT_FROM = ("bakeoff", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt")
"""What a build reads. It is copied first, because building leaves files beside it."""

BRIEFLY = ("--processes", "1", "--min-time", "0.05", "--devices", "cpu")

OURS = ("bakeoff", "__editable__")
"""How the names of what `pip install -e .` left in this environment begin."""


def build(project: Path, out: Path, *kinds: str) -> None:
    """Build a project with what is installed here, so that no index is asked."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *kinds, project]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    project, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("dist")
    for name in (*BUILT_FROM, "runner.py"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, project / name)
    build(project, out, "--sdist", "--wheel")
    return out


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


class Installed:
    """An environment of its own, with the libraries of this one, but not with its Bakeoff."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.programs / "python"
        libraries = folder / "libraries"
        libraries.mkdir()
        for path in dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")):
            for entry in path.iterdir():
                if not entry.name.startswith(OURS) and entry.suffix != ".pth" and not (libraries / entry.name).exists():
                    (libraries / entry.name).symlink_to(entry)
        where = {"base": str(folder), "platbase": str(folder)}
        packages = Path(sysconfig.get_path("purelib", scheme="venv", vars=where))
        (packages / "libraries.pth").write_text(f"{libraries}\n")

    def install(self, *wheels: Path) -> None:
        """Install wheels without an index, and without what they require."""
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", "--no-index", "--no-deps", *wheels]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=self._variables())
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: object, cwd: Path) -> str:
        """Return what a command prints."""
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=cwd, env=self._variables())
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _variables(self) -> dict[str, str]:
        """Return an environment whose programs come first, with no checkout on Python's search path."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**variables, "PATH": f"{self.programs}{os.pathsep}{variables['PATH']}"}


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment into which the wheel is installed."""
    made = Installed(tmp_path_factory.mktemp("environment"))
    made.install(wheel)
    return made
