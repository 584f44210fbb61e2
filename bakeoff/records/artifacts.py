"""Keeps what backends have built, such as an .onnx or an engine: one folder for each cell, below the run's folder."""

import os
import shutil
from pathlib import Path

FOLDER = "artifacts"


class Artifacts:
    """The artefacts of a run, up to `limit_bytes` of all of them together."""

    def __init__(self, run: Path, limit_bytes: float) -> None:
        self._run = run
        self._limit_bytes = limit_bytes

    def keep(self, cell_id: str, built: Path) -> str:
        """Keep the files of the folder `built` in the cell's own, and return its path within the run's folder, or an
        empty string if nothing was built. Raise ArtifactTooLarge where it is."""
        kept, partial = self._run / FOLDER / cell_id, self._run / FOLDER / f".{cell_id}.partial"
        self.remove(cell_id)
        shutil.rmtree(partial, ignore_errors=True)
        size_bytes = folder_bytes(built)
        if not size_bytes:
            return ""
        if folder_bytes(self._run / FOLDER) + size_bytes > self._limit_bytes:
            raise ArtifactTooLarge(size_bytes)
        # what begins with a dot is a note for later processes; the folder appears whole or not at all
        shutil.copytree(built, partial, ignore=shutil.ignore_patterns(".*"), copy_function=_link)
        partial.rename(kept)
        return f"{FOLDER}/{cell_id}"

    def remove(self, cell_id: str) -> None:
        shutil.rmtree(self._run / FOLDER / cell_id, ignore_errors=True)


class ArtifactTooLarge(Exception):
    """An artefact does not fit below the limit."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes are too many")
        self.size_bytes = size_bytes


def _link(source: str, target: str) -> None:
    """Make `target` another name of the file `source`, or a copy where the disk does not allow that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
