"""Asks a library about its models in another process, because the controller plans without torch.

`answer` runs in that process. It starts with the first question, imports each library once, and ends
with the process that asks. A process that has imported torch already answers its own questions.
"""

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bakeoff.models.lazily import torch
from bakeoff.records.errors import BakeoffError, UsageError, chain_of, first_line
from bakeoff.records.package import import_statement

Facts = dict[str, Any]
"""What a library says of one of its models, in types of JSON."""


@functools.cache
def facts_of(module: str, source: str) -> Facts:
    """Return `describe(source)` of one of our modules, such as `bakeoff.models.timm`. Raise UsageError if the library
    does not know the model, or is not installed."""
    if "torch" in sys.modules:
        return _described(module, source)
    process = _process()
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps([module, source, str(Path.cwd())]) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
    except (OSError, ValueError):
        _process.cache_clear()
        raise BakeoffError(f"the process that was asked about {source} died (exit status {process.wait()})") from None
    if "error" in answer:
        raise UsageError(answer["error"])
    facts: Facts = answer["facts"]
    return facts


def import_library(library: str, model: str) -> Any:
    """Import `library`. Raises UsageError with the remedy if it is missing or does not fit torch."""
    with naming_torchvision(model):
        try:
            return importlib.import_module(library)
        except ImportError as error:
            if error.name and error.name.partition(".")[0] not in (library.partition(".")[0], "torchvision"):
                raise
            raise UsageError(f"{model} needs {error.name or library}: pip install {library}") from error


@contextmanager
def naming_torchvision(model: str) -> Iterator[None]:
    """Raise UsageError, with the remedy, where what is imported inside the block fails for a torchvision that does not
    fit torch. Libraries that import it tell of themselves alone."""
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if (cause := next((one for one in chain_of(error) if "torchvision::" in str(one)), None)) is None:
            raise
        raise torchvision_of_another_torch(model, cause) from error


def torchvision_of_another_torch(model: str, cause: BaseException) -> UsageError:
    reason = next((line.strip() for line in str(cause).splitlines() if "torchvision::" in line), first_line(cause))
    return UsageError(
        f"{model} needs torchvision, and the one here is built for another torch than {torch.__version__} "
        f"({reason}): {torchvision_remedy(torch.__version__, torch.version.cuda)}"
    )


def torchvision_remedy(version: str, cuda: str | None) -> str:
    """Return the command that installs torchvision for a torch of this version, built for this CUDA or for the CPU."""
    build = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    index = f"https://download.pytorch.org/whl/{build}"
    return f"pip install --force-reinstall --no-deps '{torchvision_of(version)}' --index-url {index}"


def torchvision_of(version: str) -> str:
    major, minor, *_ = version.split(".")
    return f"torchvision=={int(major) - 2}.{int(minor) + 15}.*"


@functools.cache
def _process() -> subprocess.Popen[str]:
    command = f"{import_statement()}; from bakeoff.models.libraries import answer; answer()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


def answer() -> None:
    import torch  # noqa: F401 - from now on, this process answers for itself

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        module, source, folder = json.loads(line)
        os.chdir(folder)
        try:
            said: Facts = {"facts": _described(module, source)}
        except Exception as error:
            prefix = "" if isinstance(error, BakeoffError) else f"{type(error).__name__}: "
            said = {"error": prefix + first_line(error)}
        print(json.dumps(said), file=answers, flush=True)


def _described(module: str, source: str) -> Facts:
    describe: Callable[[str], Facts] = importlib.import_module(module).describe
    return describe(source)
