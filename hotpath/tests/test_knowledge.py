"""What outlives a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hotpath.knowledge import FILE, Knowledge, Learned, default_folder

COMPILED = Learned("compiled", "tried", compile_s=20.0, load_s=0.004, eager_s=2e-3, compiled_s=1e-3)


def test_what_was_learned_is_there_in_the_next_run(tmp_path: Path) -> None:
    Knowledge(tmp_path).learn("a", COMPILED)
    again = Knowledge(tmp_path)
    assert again.of("a") == COMPILED and again.of("b") is None
    assert COMPILED.speedup == 2.0 and Learned("eager", "why").speedup is None


def test_two_programs_keep_what_the_other_one_learned(tmp_path: Path) -> None:
    one, other = Knowledge(tmp_path), Knowledge(tmp_path)
    one.learn("a", COMPILED)
    other.learn("b", Learned("eager", "slower"))
    assert set(json.loads((tmp_path / FILE).read_text())["paths"]) == {"a", "b"}
    assert other.of("a") == COMPILED


def test_the_usual_cost_is_the_median_of_those_known(tmp_path: Path) -> None:
    knowledge = Knowledge(tmp_path)
    assert knowledge.usual_compile_s is None
    for name, seconds in (("a", 10.0), ("b", None), ("c", 30.0), ("d", 12.0)):
        knowledge.learn(name, Learned("ready", "", compile_s=seconds))
    assert knowledge.usual_compile_s == 12.0 and knowledge.usual_burden is None
    knowledge.learn("a", Learned("ready", "", burden=0.1))
    assert knowledge.usual_burden == 0.1


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "paths": {"a": {"verdict": "x"}}}', '{"format": 1}'])
def test_a_file_that_cannot_be_read_is_started_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(text)
    with caplog.at_level(logging.WARNING, "hotpath"):
        knowledge = Knowledge(tmp_path)
    assert knowledge.of("a") is None
    assert text == "[]" or "started anew" in caplog.text
    knowledge.learn("a", COMPILED)
    assert Knowledge(tmp_path).of("a") == COMPILED


def test_nothing_half_written_is_ever_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge = Knowledge(tmp_path)
    knowledge.learn("a", COMPILED)
    before = (tmp_path / FILE).read_text()

    def full(source: str, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        knowledge.learn("b", COMPILED)
    assert (tmp_path / FILE).read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_the_default_folder_is_the_users_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hotpath"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "hotpath"
