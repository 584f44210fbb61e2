"""The released versions of a package, as pip finds them for this Python and platform."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from bakeoff.commands.environments import reason_of
from bakeoff.records.errors import UsageError


def released(package: str) -> list[str]:
    """Return the versions that pip could install, without pre-releases. Raises UsageError where it finds none."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        reason = reason_of(done.stderr)
        raise UsageError(f"--package {package}: pip finds no versions ({reason}): name them, --versions 1.2,1.3")
    return [text for text in found[1].split(", ") if "+" not in text]  # `2.13.0+cpu` is a build of 2.13.0


def from_good_to_bad(versions: Iterable[str], good: str, bad: str) -> tuple[str, ...]:
    """Return `good`, the versions between the two in order, and `bad`. Raises UsageError for what is no version."""
    first, last = _parsed(good), _parsed(bad)
    if first >= last:
        raise UsageError(f"--good {good} has to be older than --bad {bad}")
    between = {parsed: text for text in versions if first < (parsed := _parsed(text)) < last}
    return good, *(between[parsed] for parsed in sorted(between)), bad


def _parsed(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"'{text}' is not a version such as 2.13 or 2.13.0") from None
