"""A backend that is built ahead of time: made in one process, loaded and measured in one that never saw the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bakeoff.records.schema import Record, Status
from tests.support.measuring import by_label, measure


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    folder = tmp_path_factory.mktemp("ahead") / "run"
    return by_label(measure(folder, "eager", "null-packaged/all"))


def test_it_is_measured_in_another_process_than_it_was_built_in(endings: dict[str, Record]) -> None:
    record = endings["null-packaged"]
    assert record.status is Status.OK, record.reason
    assert record.settings["built_by"] != record.settings["loaded_by"]


def test_phases_of_both_processes_are_in_its_record(endings: dict[str, Record]) -> None:
    assert [phase.name for phase in endings["null-packaged"].phases] == ["compile", "load", "first_call"]


def test_its_artefact_is_kept_and_counted(tmp_path_factory: pytest.TempPathFactory, endings: dict[str, Record]) -> None:
    kept = tmp_path_factory.getbasetemp().glob(f"ahead*/run/{endings['null-packaged'].artifact}/*")
    assert {path.name for path in kept} == {"module.pt", "built_by"}
    memory = endings["null-packaged"].memory
    assert memory is not None
    assert memory.artifact_bytes and memory.artifact_bytes > 500


@pytest.mark.parametrize("phase", ["compile", "load"])
def test_a_crash_in_either_process_costs_one_row_and_is_known_by_its_phase(
    endings: dict[str, Record], phase: str
) -> None:
    record = endings[f"null-packaged/crash-in-{phase}"]
    assert (record.status, record.died_in, record.signal) == (Status.CRASH, phase, 11)
    assert [done.name for done in record.phases] == ([] if phase == "compile" else ["compile"])
    assert endings["eager"].status is Status.OK


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn"])
def test_spawned_children_do_the_same(tmp_path: Path, start_method: str) -> None:
    (record,) = measure(tmp_path / "run", "null-packaged", start_method=start_method).records
    assert record.status is Status.OK, record.reason
    assert record.settings["built_by"] != record.settings["loaded_by"]


def test_nothing_of_it_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_servers: None) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (record,) = measure(tmp_path / "run", "null-packaged/default", no_artifacts=True).records
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert (record.artifact, (tmp_path / "run" / "artifacts").exists()) == ("", False)
