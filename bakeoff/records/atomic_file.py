"""Files that several processes share: written so that no reader sees a part of them, or locked."""

import contextlib
import os
import sys
import uuid
from pathlib import Path
from typing import IO


def write_atomically(path: Path, text: str) -> Path:
    """Write `text` in UTF-8 to `path`, whose folder must exist, and return `path`. A reader sees the old file or the
    whole new one, even if this process is killed. An OSError names `path`."""
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # a disk that may only be read says so again
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk is reported without the name of a file
        raise
    return path


def locked(path: Path) -> IO[bytes] | None:
    """Lock a file, which is made, until the returned file is closed or this process ends. Return None where another
    process holds it, or on a platform without such locks. Raise OSError where it cannot be made."""
    if sys.platform == "win32":
        return None
    lock = path.open("ab")
    with contextlib.suppress(OSError):
        lock_at_once(lock)
        # another process may have removed the file meanwhile
        if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
            return lock
    lock.close()
    return None


def lock_at_once(file: IO[bytes]) -> None:
    """Lock an open file until it is closed. Raise BlockingIOError where another process holds it, and another OSError
    where its file system has no locks."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
