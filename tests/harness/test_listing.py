"""What `runner.py list` shows."""

from io import StringIO

import pytest
from rich.console import Console

from backends.eager import Eager
from harness.listing import backends_table


def shown() -> str:
    file = StringIO()
    Console(file=file, width=200).print(backends_table({("eager", "cpu"): ""}))
    return file.getvalue()


def test_a_caveat_stands_under_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.names", lambda: ["eager"])
    before = shown().splitlines()
    monkeypatch.setattr(Eager, "caveat", "takes its [time]")
    after = shown().splitlines()
    (added,) = [number for number, line in enumerate(after) if "takes its [time]" in line]
    assert Eager.description in after[added - 1]
    assert len(after) == len(before) + 1
