"""Writes a file so that a reader never sees a part of it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Write `text` in UTF-8 to `path`, and return `path`. The folder must exist.

    A reader sees either the old file or the whole new one, even if this process is killed. An OSError names `path`.
    """
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk is told without the name of a file
        raise
    return path
