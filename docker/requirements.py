"""Print what Bakeoff needs beside its base image: the requirements in pyproject.toml, but for the image's own stack.

    python3 requirements.py pyproject.toml cuda,hf

Runs while the image is built, on the standard library alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

MATCHED = frozenset({"torch", "triton", "pytorch-triton", "tensorrt", "torch-tensorrt", "torchao"})
"""Built for one another by the image's makers, and numbered as no release is (2.8.0a0+nv25.8): never installed here."""


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements of the project and of `extras`, without `MATCHED`. Raises KeyError for an extra there is not."""
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
