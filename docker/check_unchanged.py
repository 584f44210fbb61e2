"""Fail if installing has replaced or removed a package that was there before.

    python3 check_unchanged.py before.json after.json

Both files come from `pip list --format=json`. It prints what was added and what changed. A change is exit status 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def changes(before: str, after: str) -> list[str]:
    """Return a line for each package of `before` that `after` has in another version, or not at all."""
    old, new = _versions(before), _versions(after)
    return [
        f"{name} {version} became {new.get(name, 'nothing')}"
        for name, version in sorted(old.items())
        if new.get(name) != version
    ]


def additions(before: str, after: str) -> list[str]:
    old, new = _versions(before), _versions(after)
    return [f"{name} {version}" for name, version in sorted(new.items()) if name not in old]


def _versions(listing: str) -> dict[str, str]:
    return {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listing)}


def main(before: str, after: str) -> int:
    sys.stdout.writelines(f"added: {line}\n" for line in additions(before, after))
    changed = changes(before, after)
    sys.stderr.writelines(f"the base image's {line}: loosen pyproject.toml, or move its tag\n" for line in changed)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(*(Path(path).read_text() for path in sys.argv[1:])))
