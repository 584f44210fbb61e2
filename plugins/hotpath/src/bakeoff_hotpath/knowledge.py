"""What earlier runs learned, in a JSON file: what compiling a path cost, what it gained, and how it ended."""

import dataclasses
import json
import logging
import os
import statistics
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
FILE = "learned.json"
LOG = logging.getLogger("hotpath")


@dataclass(frozen=True)
class Measured:
    """The costs of one path. None stands for what nobody has measured."""

    compile_s: float | None = None  # from the start of the compiling process to its end
    load_s: float | None = None  # by which the compiled version held up a call when it was loaded
    eager_s: float | None = None  # of one call
    compiled_s: float | None = None  # of one call
    burden: float | None = None  # the share of compile_s by which compiling delayed the calls beside it

    @property
    def speedup(self) -> float | None:
        if not self.eager_s or not self.compiled_s:
            return None
        return self.eager_s / self.compiled_s


NOTHING_MEASURED = Measured()


@dataclass(frozen=True)
class Learned:
    """What was learned about one path on this machine."""

    verdict: str  # "compiled", "eager" (which is faster), "failed", or "ready": compiled, and not yet tried
    reason: str
    measured: Measured = NOTHING_MEASURED


class Knowledge:
    """The file `learned.json` in `folder`, with a folder for each path's compiled version beside it.

    A program reads the file again before it replaces it, so it keeps what other programs wrote. Two that write within
    the same milliseconds may lose one entry, which a later run learns again. An unreadable file is replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Learned] | None = None

    def of(self, path: str) -> Learned | None:
        with self._lock:
            return self._paths().get(path)

    def artefact(self, path: str) -> Path:
        """Return the folder of a path's compiled version. It exists once the path was compiled."""
        return self.folder / path

    @property
    def usual_compile_s(self) -> float | None:
        """The median time of the compilations learned on this machine."""
        return self._median("compile_s")

    @property
    def usual_burden(self) -> float | None:
        """The median share of a compilation's time by which it delayed the calls beside it."""
        return self._median("burden")

    def learn(self, path: str, learned: Learned) -> None:
        """Write down what was learned of a path, in place of what was known. Raises OSError."""
        with self._lock:
            self._known = {**self._read(), path: learned}
            paths = {key: _document(entry) for key, entry in self._known.items()}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / FILE, json.dumps({"format": FORMAT, "paths": paths}, indent=1))

    def _paths(self) -> dict[str, Learned]:
        """Return the file's content as of the first question, with what this program has learned since."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def _median(self, name: str) -> float | None:
        with self._lock:
            values = [getattr(learned.measured, name) for learned in self._paths().values()]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def _read(self) -> dict[str, Learned]:
        file = self.folder / FILE
        try:
            document = json.loads(file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("%s cannot be read and is started anew: %s", file, error)
            return {}
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            return {}
        try:
            return {key: _learned(**fields) for key, fields in document["paths"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            LOG.warning("%s holds something else and is started anew: %s", file, error)
            return {}


def default_folder() -> Path:
    """Return `hotpath` in the user's cache folder (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotpath"


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, and never a part."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as temporary:
        temporary.write(text)
    try:
        os.replace(temporary.name, file)
    except OSError:
        Path(temporary.name).unlink()
        raise


def _document(learned: Learned) -> dict[str, Any]:
    return {"verdict": learned.verdict, "reason": learned.reason, **dataclasses.asdict(learned.measured)}


def _learned(verdict: str, reason: str, **measured: float | None) -> Learned:
    return Learned(verdict, reason, Measured(**measured))
