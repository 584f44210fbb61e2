"""The file with what earlier runs learned."""

import json
import logging
from pathlib import Path

import pytest

from bakeoff_hotpath.knowledge import FILE, Knowledge, Learned, Measured, default_folder, write_atomically

COMPILED = Learned("compiled", "tried", Measured(compile_s=20.0, load_s=0.004, eager_s=2e-3, compiled_s=1e-3))
SLOWER = Learned("eager", "slower")


def test_two_programs_learn_for_the_next_run_and_keep_what_the_other_one_learned(tmp_path: Path) -> None:
    one, other = Knowledge(tmp_path), Knowledge(tmp_path)
    one.learn("a", COMPILED)
    other.learn("b", SLOWER)
    again = Knowledge(tmp_path)
    assert again.of("a") == other.of("a") == COMPILED and again.of("b") == SLOWER and again.of("c") is None
    assert COMPILED.measured.speedup == 2.0 and SLOWER.measured.speedup is None


def test_the_usual_cost_is_the_median_of_those_known(tmp_path: Path) -> None:
    knowledge = Knowledge(tmp_path)
    assert knowledge.usual_compile_s is None
    for name, seconds in (("a", 10.0), ("b", None), ("c", 30.0), ("d", 12.0)):
        knowledge.learn(name, Learned("ready", "", Measured(compile_s=seconds)))
    assert knowledge.usual_compile_s == 12.0 and knowledge.usual_burden is None
    knowledge.learn("a", Learned("ready", "", Measured(burden=0.1)))
    assert knowledge.usual_burden == 0.1


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    fields = {"verdict": "compiled", "reason": "tried", "compile_s": 20.0, "load_s": 0.004, "eager_s": 2e-3}
    path = {**fields, "compiled_s": 1e-3, "burden": None}
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "paths": {"a": path}}))
    assert Knowledge(tmp_path).of("a") == COMPILED


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


def test_a_failed_write_leaves_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / FILE
    target.mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(IsADirectoryError):
        write_atomically(target, "text")
    assert list(tmp_path.iterdir()) == [target]


def test_the_default_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hotpath"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "hotpath"
