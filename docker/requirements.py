"""Print the requirements in pyproject.toml, without what the base image brings.

    python3 requirements.py pyproject.toml cuda,hf

It runs while the image is built and needs only the standard library.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

MATCHED = frozenset({"torch", "triton", "pytorch-triton", "tensorrt", "torch-tensorrt", "torchao"})
"""The image brings these. Their versions (2.8.0a0+nv25.8) match no release, so pip must not see them."""


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """Return the requirements of the project and of `extras`, without `MATCHED`. An unknown extra is a KeyError."""
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in optional[extra])]
    return [one for one in wanted if _name(one) not in MATCHED]


def _name(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    path, extras = sys.argv[1:]
    sys.stdout.writelines(f"{one}\n" for one in requirements(Path(path).read_text(), extras.split(",")))
