"""The errors that a user sees.

BakeoffError            an error that is shown as one line, never as a traceback
├── UsageError          the request is wrong (exit status 2)
├── Unavailable         this machine lacks what the cell needs
├── Unsupported         the backend cannot build this cell, which it learns only while building
└── NotServed           what was built does not serve a call with such arguments
"""

import difflib
import errno
from collections.abc import Iterable, Iterator

INTERRUPTED = 130
"""The exit status of a command that was interrupted."""

NOTHING_YET = "nothing was measured yet, and the command can be run again"  # what an interruption says then

FILES_LACK = (errno.EMFILE, errno.ENFILE)
"""The errors of a process, or of a machine, that may not open any more files."""


class BakeoffError(Exception):
    """Base of the errors that are shown by their message alone."""


class UsageError(BakeoffError, ValueError):
    """The request cannot be carried out as written: the message says why, and what to do."""


class Unavailable(BakeoffError):
    """This machine lacks what the cell needs: the message says what, and how to get it."""


class Unsupported(BakeoffError):
    """This backend cannot build this cell, and no other version of the request would help: the message says why."""


class NotServed(BakeoffError):
    """What was built does not serve a call with such arguments: the message says which ones it serves."""


def first_line(error: object) -> str:
    """Return the first line of the message that is not empty, or else the name of the error's type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def os_reason(error: OSError) -> str:
    """Return why the system refused something, and what to do where only its user can know that."""
    if error.errno == errno.EMFILE:
        return "this process may not open any more files: raise its limit, such as by `ulimit -n 4096`"
    if error.errno == errno.ENFILE:
        return "this machine cannot open any more files: end what holds many, or raise the limit, fs.file-max"
    return error.strerror or first_line(error)


def in_plain_words(message: str) -> str:
    """Return what pydantic says of a value, in the words of our own messages."""
    return message.partition(", unable to parse")[0].replace("Input should be", "it must be")


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Return True if a name is nearly a known one, and no longer form of it such as `batches`."""
    return any(one not in name for one in difflib.get_close_matches(name, list(known), n=1, cutoff=0.75))


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """Return an error for an unknown name. It names the nearest known one, or all of them, and `where` it stands."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(known) or 'none'}"
    return UsageError(f"unknown {kind} '{name}': {hint}{f' ({where})' if where else ''}")
