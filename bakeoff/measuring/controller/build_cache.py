"""Builds that are kept for the next run of the same model, with the same libraries, on the same machine.

Each build lies in a folder whose name is a key of all that decides it. A run works in that folder, because the caches
of compilers do not survive a move. A lock keeps a second run out, which then builds in a folder of its own.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self

from bakeoff import backends
from bakeoff.measuring import isolation
from bakeoff.measuring.controller.build_folder import built_as
from bakeoff.measuring.variables import variables_of_builds
from bakeoff.planning.plan import PlannedCell
from bakeoff.records.artifacts import folder_bytes
from bakeoff.records.atomic_file import locked, write_atomically
from bakeoff.records.device import Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Environment
from bakeoff.records.store import BUILD_FILE, FirstBuild, Store

MAX_BYTES = 20 * 10**9
"""Builds that were used longest ago are removed while all together are larger than this."""

CEILINGS_LIMIT_S = 7 * 24 * 3600.0
"""Ceilings that were measured longer ago are measured anew: firmware, cooling and neighbours change without a word."""

BUSY_CEILINGS_LIMIT_S = 3600.0
"""Those of a busy machine are rough, and took ten seconds. They serve the next runs of the same hour."""

LOCK = "lock"
CEILINGS = "ceilings-"
REFERENCES = "reference-"
"""As `bakeoff.truth.kept_reference` names them, which imports torch."""

MAX_REFERENCES_BYTES = 10**9
"""The oldest references are removed while all together are larger than this."""

USED = "used"

PLACES = "builds", "builds-anew"
"""Folders of an entry. The builds lie in one of them, and with `--fresh` the next ones are made in the other one."""


def default_folder() -> Path:
    if given := os.environ.get("BAKEOFF_CACHE_DIR"):
        return Path(given).resolve()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home).resolve() / "bakeoff" / "builds"


@dataclass(frozen=True)
class CachedBuild:
    key: str
    what: str  # model, device, backend and mode
    built_at: str
    size_bytes: int
    used_s: float  # when it was used last, in seconds of the epoch


class BuildCache:
    """The folder of all kept builds. It is a context manager: leaving it gives up its locks and makes room."""

    def __init__(self, folder: Path | None = None, *, is_fresh: bool = False, max_bytes: float = MAX_BYTES) -> None:
        """With `is_fresh`, everything is built anew, and replaces what is there once it is complete."""
        self.folder = folder or default_folder()
        self.is_fresh = is_fresh
        self._max_bytes = max_bytes
        self._locks: dict[str, IO[bytes]] = {}
        self._claimed: dict[str, Path] = {}  # folders of builds by their key
        self.used_by_others: list[str] = []  # labels of cells whose builds another run makes or uses
        self._distrusted: set[str] = set()  # contests whose model is not the one of the builds that its key finds
        self._used: dict[str, list[str]] = {}  # labels of cells by the key of their builds

    def why_unusable(self) -> str:
        """Return why no build can be kept in the folder, or nothing. It is made unless it is there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                return ""
        except OSError as error:
            why = "it is a file" if self.folder.is_file() else error.strerror
            return f"{self.folder} cannot be written ({why})"

    def claim(self, planned: PlannedCell, fingerprint: str, threads: int) -> Path | None:
        """Return the folder for the builds of a cell, or None where they are not kept or another run uses them."""
        # A dynamic build belongs to several cells, and another environment's libraries are not known.
        if planned.cell.dynamic or planned.cell.environment:
            return None
        key = key_of(planned, fingerprint, threads)
        entry = self.folder / key
        try:
            entry.mkdir(parents=True, exist_ok=True)
            if not self._lock(key):
                if (entry / LOCK).exists():  # this platform has locks
                    self.used_by_others.append(planned.cell.label)
                return None
            if key not in self._claimed:  # by another cell that shares the build
                self._claimed[key] = self._place_in(entry, planned.cell.contest_id in self._distrusted)
            used = self._used[key] = [*self._used.get(key, []), planned.cell.label]
            (entry / USED).write_text(f"{planned.cell.title}: {', '.join(used)}", encoding="utf-8")
        except OSError:
            return None  # a cache that cannot be written costs time, and no result
        return self._claimed[key]

    def _place_in(self, entry: Path, is_distrusted: bool) -> Path:
        """Return the folder of an entry whose builds serve, or an empty one where they are made anew."""
        if is_distrusted:
            for place in PLACES:
                shutil.rmtree(entry / place, ignore_errors=True)
        kept, other = _places(entry)
        if not (self.is_fresh and Store.build_in(kept / "0")):
            return kept
        shutil.rmtree(other, ignore_errors=True)
        return other

    def distrust(self, contest_id: str) -> None:
        """Have the cells of a contest built anew, and replace what is there."""
        self._distrusted.add(contest_id)

    def keep_ceilings(
        self, machine: Environment | None, device: Device, precision: Precision, ceilings: Ceilings
    ) -> None:
        """Keep what the machine can do for its next runs. Other load does not replace what was measured without it."""
        if machine is None:
            return
        kept = self._kept_ceilings(self._ceilings(machine, device, precision))
        if kept and ceilings.are_of_busy_machine and not kept.are_of_busy_machine:
            return
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, and no result
            self.folder.mkdir(parents=True, exist_ok=True)
            dated = ceilings.but(kept_at=datetime.now(UTC).isoformat(timespec="seconds"))
            text = dated.model_dump_json()
            write_atomically(self._ceilings(machine, device, precision), f"{_digest(text)} {text}")

    def ceilings(self, machine: Environment | None, device: Device, precision: Precision) -> Ceilings | None:
        if machine is None or self.is_fresh:
            return None
        return self._kept_ceilings(self._ceilings(machine, device, precision))

    def _kept_ceilings(self, path: Path) -> Ceilings | None:
        with contextlib.suppress(OSError, ValueError):  # another version may have written it, or it is damaged
            age_s = time.time() - path.stat().st_mtime
            digest, _, text = path.read_text(encoding="utf-8").partition(" ")
            ceilings = Ceilings.model_validate_json(text)
            limit_s = BUSY_CEILINGS_LIMIT_S if ceilings.are_of_busy_machine else CEILINGS_LIMIT_S
            if 0 <= age_s < limit_s and digest == _digest(text):
                return ceilings
        return None

    def _ceilings(self, machine: Environment, device: Device, precision: Precision) -> Path:
        """Return the file of what a machine can do. Its name is a key of all that decides that, and of its source."""
        source = Path(isolation.__file__).parent / "worker" / "ceilings.py"
        gpu = {"name", "driver", "max_sm_clock_mhz", "power_limit_w"}
        fixed = {"hostname", "os", "cpu", "usable_cores", "governor", "torch_threads", "cuda", "container", "variables"}
        facts = {
            "device": device.slug,
            "precision": precision,
            "machine": machine.model_dump(mode="json", include=fixed),
            "gpus": [card.model_dump(mode="json", include=gpu) for card in machine.gpus],
            "torch": machine.versions.get("torch"),
            "measured by": hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else "",
        }
        return self.folder / f"{CEILINGS}{_digest(facts)}.json"

    def entries(self) -> list[CachedBuild]:
        builds = []
        for entry, build, what in self._complete():
            used_s = (entry / USED).stat().st_mtime
            builds.append(CachedBuild(entry.name, what, build.built_at, folder_bytes(entry), used_s))
        return sorted(builds, key=lambda build: -build.used_s)

    def labels_served(self) -> dict[str, set[str]]:
        served: dict[str, set[str]] = {}
        for _, _, what in self._complete():
            title, _, labels = what.rpartition(": ")
            served.setdefault(title, set()).update(labels.split(", "))
        return served

    def _complete(self) -> Iterator[tuple[Path, FirstBuild, str]]:
        for entry in self.folder.glob("*/"):
            build = Store.build_in(_places(entry)[0] / "0")
            if build is not None and (entry / USED).exists():
                yield entry, build, (entry / USED).read_text(encoding="utf-8", errors="replace")

    def clear(self) -> int:
        """Remove every build that no run uses, all ceilings and references. Return how many bytes the builds took."""
        for path in (*self.folder.glob(f"{CEILINGS}*.json"), *self.folder.glob(f"{REFERENCES}*")):
            path.unlink(missing_ok=True)
        return sum(map(self._remove, self.folder.glob("*/")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in self._claimed:  # what was built anew replaces what was there
            shutil.rmtree(_places(self.folder / key)[1], ignore_errors=True)
        self._claimed.clear()
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            lock.close()
        if locks:
            self._make_room()

    def _make_room(self) -> None:
        """Remove what was begun and not built, and then what was used longest ago, down to the limit."""
        with contextlib.suppress(FileNotFoundError):  # another run may do the same
            whole = [path for path in self.folder.glob(f"{REFERENCES}*") if path.suffix != ".partial"]
            references = sorted(whole, key=lambda path: path.stat().st_mtime)  # also those of earlier versions
            while sum(path.stat().st_size for path in references) > MAX_REFERENCES_BYTES:
                references.pop(0).unlink()
        entries = self.entries()
        complete = {entry.key for entry in entries}
        for entry in self.folder.glob("*/"):
            if entry.name not in complete:
                self._remove(entry)
        total = sum(entry.size_bytes for entry in entries)
        while entries and total > self._max_bytes:
            oldest = entries.pop()
            total -= oldest.size_bytes
            self._remove(self.folder / oldest.key)

    def _remove(self, entry: Path) -> int:
        """Remove an entry, unless a run uses it. Return its size."""
        with contextlib.suppress(OSError):
            if not self._lock(entry.name):
                return 0
            size_bytes = folder_bytes(entry)
            shutil.rmtree(entry, ignore_errors=True)
            self._locks.pop(entry.name).close()
            return size_bytes
        return 0

    def _lock(self, key: str) -> bool:
        """Return True when this process holds the entry. The lock ends with the process, however that ends."""
        if key not in self._locks and (lock := locked(self.folder / key / LOCK)):
            self._locks[key] = lock
        return key in self._locks


def _places(entry: Path) -> list[Path]:
    """Return the folders of an entry: the one with the newest complete builds, or else the first one, comes first."""

    def completed_s(place: Path) -> float:
        return (place / "0" / BUILD_FILE).stat().st_mtime if Store.build_in(place / "0") else 0.0

    return sorted((entry / place for place in PLACES), key=completed_s, reverse=True)


def key_of(planned: PlannedCell, fingerprint: str, threads: int) -> str:
    """Return the key of a cell's builds, which is the same for all cells that start from the same build."""
    cell = built_as(planned.cell)
    backend = sys.modules[type(backends.create(cell.backend)).__module__]
    source = Path(backend.__file__ or "")
    facts = {
        "model": fingerprint,
        "cell": cell.model_dump(mode="json", exclude={"model", "compared", "cold_cache", "inputs_from"}),
        "surgical": planned.surgical,
        "weights_at": dict(planned.weights_at),
        "threads": threads,
        "backend": hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else "",
        "variables": dict(sorted(variables_of_builds(os.environ).items())),
    }
    return _digest(facts)


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
