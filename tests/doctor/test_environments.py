"""The doctor says of each environment what differs there, and which libraries import."""

from pathlib import Path

import pytest

from bakeoff.backends.traps import Library
from bakeoff.commands import environments as made
from bakeoff.doctor import examine
from tests.support.wheels import wheel

KNOWN = {
    "torch": Library(name="torch", backends=["eager", "planted"]),
    "planted": Library(name="planted", backends=["planted"]),
    "numpy": Library(name="numpy", backends=["other"]),
}


@pytest.mark.slow
def test_a_library_that_does_not_import_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = wheel(tmp_path, "planted", "0.0.1", "raise ImportError('planted')")
    made.add("old", ["--no-index", str(broken)])

    found = examine.examine_environment("old", KNOWN, [], "auto")
    assert (found.name, Path(found.python)) == ("old", made.python_of("old"))
    assert found.differs == {"planted": ("0.0.1", None)}
    assert {library.name: library.imports for library in found.libraries} == {
        "torch": True,
        "pydantic": True,
        "planted": False,
    }
    assert "planted" in found.libraries[-1].import_error
    assert examine.broken_libraries([found], ["planted"]) == ["planted in environment old"]
    assert examine.broken_libraries([found], ["eager"]) == []


def test_only_versions_that_are_not_the_same_differ() -> None:
    here = examine.differing_packages({"pytest": pytest.__version__, "numpy": "0.1"})
    assert list(here) == ["numpy"] and here["numpy"][0] == "0.1"
