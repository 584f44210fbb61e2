"""A run's folder."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bakeoff.planning.request import Request
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Record, Status, Work
from bakeoff.records.store import Origin, Store, file_digest
from tests.reports.samples import bursts, environment, ok

REPOSITORY = Path(__file__).resolve().parents[2]


def cell(mode: str) -> Cell:
    return Cell(model="mlp", backend="null", mode=mode)


def record(mode: str, group: int | None = None) -> Record:
    if group is None:
        return Record(cell=cell(mode), status=Status.ERROR, reason="scripted")
    return ok(cell(mode), [burst.model_copy(update={"group": group}) for burst in bursts(1.0, rounds=2, calls=3)])


MODES = ("slow", "default", "again")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    request = Request(models=("mlp",), set={"batch": ("1",)})
    return Store.create(tmp_path / "run", request, [cell(mode).id for mode in MODES], "runner.py run")


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_is_opened_as_it_was_created(store: Store) -> None:
    opened = Store.open(store.root)
    assert Request(**opened.request()) == Request(models=("mlp",), set={"batch": ("1",)})
    assert opened.planned == [cell(mode).id for mode in MODES]
    assert opened.command == "runner.py run"
    assert (opened.records(), opened.notes(), opened.elapsed_s, opened.environment()) == ([], [], 0.0, None)


def test_the_folders_above_are_made_and_an_empty_folder_will_do(tmp_path: Path) -> None:
    Store.check(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    Store.create(tmp_path / "a" / "b", Request(), [], "")
    assert (tmp_path / "a" / "b" / "plan.json").exists()


@pytest.mark.parametrize("make", [Store.check, lambda root: Store.create(root, Request(), [], "")])
def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, make: object) -> None:
    (tmp_path / "precious").write_text("")
    assert f"--out {tmp_path}: the folder is not empty" in refusal(make, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(Store.check, tmp_path / "file")
    assert "cannot be written" in refusal(Store.check, tmp_path / "file" / "below")

    def deny(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    assert "cannot be written (Permission denied)" in refusal(Store.check, tmp_path / "new")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", "{}", '{"request": 1}'])
def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "plan.json").write_text(text)
    assert str(tmp_path) in refusal(Store.open, tmp_path)


def test_records_come_in_the_order_planned(store: Store) -> None:
    for mode in sorted(MODES):
        assert not store.has(cell(mode).id)
        store.save(record(mode))
        assert store.has(cell(mode).id)
    store.save(record("nan"))  # it was not planned
    assert [found.cell.mode for found in store.records()] == list(MODES)
    assert store.records()[0] == record("slow")


def test_a_record_whose_writer_is_killed_is_not_seen(store: Store) -> None:
    store.save(record("again"))
    code = f"""
import os, signal
from pathlib import Path
from bakeoff.records.store import Store
from bakeoff.records.schema import Record
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
text = {record("slow").model_dump_json()!r}
Store.open(Path({str(store.root)!r})).save(Record.model_validate_json(text))
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((store.root / "cells").iterdir())) == 2, "nothing was being written"
    assert not store.has(cell("slow").id)
    assert [found.cell.mode for found in store.records()] == ["again"]
    store.save(record("slow"))
    assert [found.cell.mode for found in store.records()] == ["slow", "again"]


def test_a_group_gets_a_number_that_none_had(store: Store) -> None:
    assert store.next_group() == 0
    store.save(record("default"))
    assert store.next_group() == 0
    store.save(record("slow", group=4))
    store.save(record("again", group=2))
    assert store.next_group() == 5


def test_the_environment_and_each_note_are_kept_once(store: Store) -> None:
    store.save_environment(environment())
    for text in ("größer", "other", "größer"):
        store.note(text)
    opened = Store.open(store.root)
    assert (opened.environment(), opened.notes()) == (environment(), ["größer", "other"])


def test_what_a_call_takes_and_what_the_machine_can_do_are_kept(store: Store) -> None:
    contest, work = cell("slow").contest_id, Work(flops=2**60, bytes_moved=7)
    ceilings = Ceilings(flops_per_s=1.5e14, bytes_per_s=4.8e12)
    assert (store.facts(contest, Work), store.ceilings(Device("cuda:1"), Precision.BF16)) == (None, None)
    store.keep_facts(contest, work)
    store.save_ceilings(Device("cuda:1"), Precision.BF16, ceilings)
    opened = Store.open(store.root)
    assert (opened.facts(contest, Work), opened.ceilings(Device("cuda:1"), Precision.BF16)) == (work, ceilings)
    assert opened.facts("other", Work) is None
    assert opened.ceilings(Device("cuda"), Precision.BF16) is None
    assert opened.ceilings(Device("cuda:1"), Precision.FP32) is None


def test_elapsed_time_adds_up_and_counts_what_was_broken_off(store: Store) -> None:
    clock = iter([100.0, 102.0, 200.0, 203.0]).__next__
    with store.timed(clock):
        pass
    with contextlib.suppress(KeyboardInterrupt), Store.open(store.root).timed(clock):
        raise KeyboardInterrupt
    assert store.elapsed_s == pytest.approx(5.0)


def test_the_kernels_kills_are_told_once(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 7\noom_kill 3\n")
    store = Store(tmp_path, vmstat)
    assert not store.kernel_killed()
    vmstat.write_text("pgfault 9\noom_kill 4\n")
    assert store.kernel_killed()
    assert not store.kernel_killed()


def test_where_the_kernel_does_not_tell_nothing_was_killed(tmp_path: Path) -> None:
    assert not Store(tmp_path, tmp_path / "no vmstat").kernel_killed()


def test_a_run_that_is_interrupted_while_it_begins_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, text: str) -> None:
        if path.name == "plan.json":
            raise KeyboardInterrupt
        path.write_text(text)

    monkeypatch.setattr("bakeoff.records.store.write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store.create(tmp_path / "run", Request(), [], "")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "made").mkdir()
    with pytest.raises(KeyboardInterrupt):
        Store.create(tmp_path / "made", Request(), [], "")
    assert list((tmp_path / "made").iterdir()) == []


def test_a_changed_row_of_large_weights_is_seen_and_a_huge_file_is_known_by_its_time(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "run", Request(), [], "test")
    weights, huge, source = tmp_path / "weights.bin", tmp_path / "data.bin", tmp_path / "net.py"
    source.write_text("one")
    for path, size in ((weights, 2**29), (huge, 2**35)):
        with path.open("wb") as file:
            file.truncate(size)  # sparse; reading all of 32 GiB would take half a minute
    files = {str(file): file_digest(file) for file in (weights, huge, source)}
    store.keep_facts("contest", Origin(files=files))
    weights.touch()
    source.write_text("one")
    assert store.changed_files() == [], "they were written again, with the same content"
    for path, at in ((weights, 2**28 + 100_000), (huge, 2**34)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([1]) * 2**10)
    source.write_text("two")
    assert store.changed_files() == sorted(map(str, (weights, huge, source)))
    assert store.own_files().keys() == {weights.name, source.name}, "a time tells nothing of another machine's file"
