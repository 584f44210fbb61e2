"""What earlier runs have learned, in a JSON file: what compiling a path cost, what it gained, and how it ended."""

from __future__ import annotations

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
class Learned:
    """What is known of one path on one machine. Seconds; None is what nobody has measured."""

    verdict: str  # "compiled", "eager" (which is faster), "failed", or "ready": compiled, and the trial to come
    reason: str
    compile_s: float | None = None  # of the process that compiled, from its start to its end
    load_s: float | None = None  # that calls were held up when the compiled version was taken up
    eager_s: float | None = None  # of one call
    compiled_s: float | None = None
    burden: float | None = None  # share of compile_s by which the calls beside it were delayed

    @property
    def speedup(self) -> float | None:
        if not self.eager_s or not self.compiled_s:
            return None
        return self.eager_s / self.compiled_s


class Knowledge:
    """The file `learned.json` in `folder`, and a folder for each path's artefacts beside it.

    Written by an atomic rename after reading it again: readers never see half a file, and a program keeps what others
    have written before. What another one writes in the milliseconds between reading and renaming is lost, of whatever
    path, and is learned again. A file that cannot be read is as good as none, and replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Learned] | None = None

    def of(self, path: str) -> Learned | None:
        with self._lock:
            return self._paths().get(path)

    def artefact(self, path: str) -> Path:
        """Where the compiled version of a path lies, if it was compiled."""
        return self.folder / path

    @property
    def usual_compile_s(self) -> float | None:
        """What a compilation usually took on this machine: the median of those learned."""
        return self._usual("compile_s")

    @property
    def usual_burden(self) -> float | None:
        """By which share of its time a compilation usually delayed the calls beside it."""
        return self._usual("burden")

    def learn(self, path: str, learned: Learned) -> None:
        """Keep it for later runs, in place of what was known of the path. Raises OSError where it cannot be written."""
        with self._lock:
            self._known = {**self._read(), path: learned}
            document = {"format": FORMAT, "paths": {key: dataclasses.asdict(one) for key, one in self._known.items()}}
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / FILE, json.dumps(document, indent=1))

    def _paths(self) -> dict[str, Learned]:
        """As they were when one was asked for first, and what was learned since."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def _usual(self, name: str) -> float | None:
        with self._lock:
            known = [value for learned in self._paths().values() if (value := getattr(learned, name)) is not None]
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
        return _parse(file, document.get("paths"))


def default_folder() -> Path:
    """`hotpath` in the user's folder for caches (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotpath"


def write_atomically(file: Path, text: str) -> None:
    """Readers see the old text or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", delete=False) as temporary:
        temporary.write(text)
    try:
        os.replace(temporary.name, file)
    except OSError:
        Path(temporary.name).unlink()
        raise


def _parse(file: Path, paths: Any) -> dict[str, Learned]:
    try:
        return {key: Learned(**fields) for key, fields in paths.items()}
    except (AttributeError, TypeError) as error:
        LOG.warning("%s holds something else and is started anew: %s", file, error)
        return {}
