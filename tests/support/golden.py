"""Texts that are held against files."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "reports" / "golden"


def same_as_golden(name: str, text: str) -> None:
    """Compare a text with its file. `UPDATE_GOLDEN=1 pytest -k as_before` writes it anew: read `git diff`."""
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text.splitlines() == file.read_text(encoding="utf-8").splitlines()
