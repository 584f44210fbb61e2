"""Writing a file so that a reader sees all of it or nothing of it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Puts `text` (UTF-8) at `path` so that a reader sees all of it or the old file, whenever we are killed.

    Returns `path`. The folder must exist.
    """
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
