"""A run's folder, and its report as a file, with the values that JSON keeps as strings."""

import contextlib
import copy
import errno
import gzip
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bakeoff.planning.request import Request
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.device import CPU, Device
from bakeoff.records.doubts import Recompiled
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import json_schema, read, to_json, write_json
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Ceilings, Cell, Record, Report, Status, Work
from bakeoff.records.store import BUILD_FILE, Origin, Store, file_digest
from tests.reports.samples import accuracy, bursts, cell, conv_on_cpu, environment, ok, report

REPOSITORY = Path(__file__).resolve().parents[2]


def cell_in(mode: str) -> Cell:
    return Cell(model="mlp", backend="null", mode=mode)


def record(mode: str, group: int | None = None) -> Record:
    if group is None:
        return Record(cell=cell_in(mode), status=Status.ERROR, reason="scripted")
    return ok(cell_in(mode), [burst.but(group=group) for burst in bursts(1.0, rounds=2, calls=3)])


MODES = ("slow", "default", "again")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    request = Request(models=("mlp",), set={"batch": ("1",)})
    return Store.create(tmp_path / "run", request, [cell_in(mode).id for mode in MODES], "runner.py run")


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(UsageError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_is_opened_as_it_was_created(store: Store) -> None:
    opened = Store.open(store.root)
    assert Request(**opened.request()) == Request(models=("mlp",), set={"batch": ("1",)})
    assert opened.planned == [cell_in(mode).id for mode in MODES]
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
    assert refusal(make, tmp_path).endswith(f"--out {tmp_path}: the folder is not empty; name another")
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


def test_only_one_process_measures_a_run_at_a_time(store: Store) -> None:
    other = Store.open(store.root)
    with store.measured_here():
        assert "another process measures this run" in refusal(other.measured_here().__enter__)
    with other.measured_here():
        assert other.planned == store.planned


def test_records_come_in_the_order_planned(store: Store) -> None:
    for mode in sorted(MODES):
        assert not store.has(cell_in(mode).id)
        store.save(record(mode))
        assert store.has(cell_in(mode).id)
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
    assert not store.has(cell_in("slow").id)
    assert [found.cell.mode for found in store.records()] == ["again"]
    store.save(record("slow"))
    assert [found.cell.mode for found in store.records()] == ["slow", "again"]


@pytest.mark.parametrize("content", [b'{"records": [', b"\x8f"])
def test_a_damaged_file_of_a_run_is_named_and_a_damaged_build_is_none(store: Store, content: bytes) -> None:
    store.keep_so_far("contest", [record("slow")])
    (damaged,) = store.root.glob("so_far/*.json")
    damaged.write_bytes(content)
    with pytest.raises(BakeoffError, match=re.escape(f"{damaged} is damaged (")):
        store.records()
    (store.root / BUILD_FILE).write_bytes(content)
    assert Store.build_in(store.root) is None


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
    contest, work = cell_in("slow").contest_id, Work(flops=2**60, bytes_moved=7)
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


def test_the_kernels_kills_are_reported_once(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 7\noom_kill 3\n")
    store = Store(tmp_path, vmstat)
    assert not store.kernel_killed()
    vmstat.write_text("pgfault 9\noom_kill 4\n")
    assert store.kernel_killed()
    assert not store.kernel_killed()
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


def test_json_has_a_record_a_line_and_is_utf8(tmp_path: Path) -> None:
    made = report(notes=["größer als 2 µs"])
    path = write_json(made, tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(made.records) + 2
    assert "größer als 2 µs" in lines[0]
    assert json.loads(lines[1].rstrip(","))["cell"]["backend"] == "eager"
    assert read(write_atomically(tmp_path / "empty.json", to_json(report([])))) == report([])


def test_not_a_number_survives_as_standard_json(tmp_path: Path) -> None:
    wrong = accuracy(math.inf, passed=False).but(max_abs_error=math.nan)
    text = to_json(report([ok(cell(), bursts(1.0), accuracy=wrong)]))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(text, parse_constant=refuse)
    found = read(write_atomically(tmp_path / "report.json", text)).records[0].accuracy
    assert math.isinf(found.relative_rmse) and math.isnan(found.max_abs_error)


def changed(tmp_path: Path, **more: Any) -> Path:
    document = json.loads(to_json(report([ok(cell(), bursts(1.0))]))) | more
    return write_atomically(tmp_path / "report.json", json.dumps(document))


def error_line(path: Path) -> str:
    return refusal(read, path)


def test_errors_say_what_is_wrong_and_where(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"run_id": "x"', encoding="utf-8")
    assert "is not JSON" in error_line(tmp_path)
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    assert "is not JSON" in error_line(tmp_path)
    (tmp_path / "report.json").write_text("[1]", encoding="utf-8")
    assert "no schema_version" in error_line(tmp_path)
    assert "has schema 4.0.0, this Bakeoff reads 3.x" in error_line(changed(tmp_path, schema_version="4.0.0"))
    assert "has schema None" in error_line(changed(tmp_path, schema_version=None))
    assert "planned: Input should be a valid integer" in error_line(changed(tmp_path, planned="many"))
    assert "colour: Extra inputs" in error_line(changed(tmp_path, colour="red"))
    bad = json.loads(to_json(report([ok(cell(), bursts(1.0))])))["records"]
    bad[0]["cell"]["backend"] = 3
    assert "records.0.cell.backend: Input should be a valid string" in error_line(changed(tmp_path, records=bad))


def test_a_newer_minor_version_may_have_more_fields(tmp_path: Path) -> None:
    made = report([ok(cell(), bursts(1.0), doubts=[Recompiled(count=2)])])
    records = json.loads(to_json(made))["records"]
    records[0]["cell"]["colour"] = records[0]["bursts"][2]["mood"] = records[0]["doubts"][0]["why"] = "red"
    found = read(changed(tmp_path, schema_version="3.99.0", records=records, colour="red"))
    assert found == made.but(schema_version="3.99.0")
    assert "planned" in error_line(changed(tmp_path, schema_version="3.99.0", planned="many", colour="red"))


class Interrupted(type(Path())):  # type: ignore[misc]
    """A path at which Ctrl-C comes when the old file is about to be replaced."""

    def with_name(self, name: str) -> Path:
        return Path(str(self)).with_name(name)

    def __fspath__(self) -> str:
        raise KeyboardInterrupt


def test_a_full_disk_leaves_the_old_file_and_is_reported_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write_atomically(tmp_path / "report.json", "old")
    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{path}'")):
        write_atomically(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: is_full(0))  # as a disk that may only be read answers
    with pytest.raises(OSError, match=re.escape(f"No space left on device: '{path}'")):
        write_atomically(path, "new")


def test_interrupted_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "report.json", "old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(Interrupted(str(path)), "new")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half of it \udcff")
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_written_file_can_be_read_by_others(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        assert write_atomically(tmp_path / "a", "ü\n").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)
    assert (tmp_path / "a").read_bytes() == "ü\n".encode()


def test_the_schema_describes_what_is_written() -> None:
    schema = json.loads(json_schema())
    assert schema["title"] == "Report"
    assert set(schema["properties"]) == set(Report.model_fields) == set(json.loads(to_json(report())))
    assert {"enum": ["NaN", "Infinity", "-Infinity"]} in schema["$defs"]["Accuracy"]["properties"]["rmse"]["anyOf"]


def test_a_gzipped_report_is_read_too_and_a_broken_one_is_one_line(tmp_path: Path) -> None:
    packed = tmp_path / "report.json.gz"
    packed.write_bytes(gzip.compress(to_json(report()).encode()))
    assert read(tmp_path) == read(packed) == report()
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path)


@pytest.mark.parametrize("sample_ns", [0, -5, math.inf])
def test_a_latency_that_no_clock_can_read_is_refused_with_its_place(tmp_path: Path, sample_ns: float) -> None:
    records = json.loads(to_json(report([ok(cell(), bursts(1.0))])))["records"]
    records[0]["bursts"][2]["samples_ns"][1] = sample_ns
    assert "records.0.bursts.2.samples_ns.1: Input should be" in error_line(changed(tmp_path, records=records))
    records = json.loads(to_json(report([ok(cell(), bursts(1.0))])))["records"]
    records[0]["latency"]["median_ms"] = sample_ns
    assert "records.0.latency.median_ms: Input should be" in error_line(changed(tmp_path, records=records))


def test_a_cell_keeps_both_as_strings_in_json() -> None:
    cell = Cell(model="mlp", backend="eager", device="cuda:1", precision="bf16")
    assert (cell.device, cell.precision) == (Device("cuda:1"), Precision.BF16)
    assert '"device":"cuda:1","precision":"bf16"' in cell.model_dump_json()
    assert Cell.model_validate_json(cell.model_dump_json()) == cell


@pytest.mark.parametrize(
    ("name", "kind", "index", "slug"),
    [("cpu", "cpu", None, "cpu"), ("cuda", "cuda", 0, "cuda"), ("cuda:12", "cuda", 12, "cuda12")],
)
def test_a_device_knows_its_parts(name: str, kind: str, index: int | None, slug: str) -> None:
    device = Device(name)
    assert (str(device), device.kind, device.cuda_index, device.slug) == (name, kind, index, slug)
    assert device.is_cuda == (kind == "cuda")
    assert isinstance(pickle.loads(pickle.dumps(device)), Device) and isinstance(copy.deepcopy(device), Device)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "cuda:1\n", " cuda", "cuda:\u0661"])
def test_any_other_name_is_no_device(name: str) -> None:
    with pytest.raises(UsageError, match="write cpu, cuda or cuda:N"):
        Device(name)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("precision", "fp4", "Input should be 'fp32', 'tf32'"), ("device", "tpu", "unknown device 'tpu'")],
)
def test_a_report_with_a_name_nobody_knows_is_refused_in_one_line(
    field: str, value: str, said: str, tmp_path: Path
) -> None:
    """No version of schema 1 could write one: the plan has always refused these names."""
    text = report(conv_on_cpu()).model_dump_json()
    (tmp_path / "report.json").write_text(
        text.replace(f'"{field}":"{conv_on_cpu()[0].cell.model_dump()[field]}"', f'"{field}":"{value}"')
    )
    with pytest.raises(UsageError, match=f"cell.{field}: .*{said}"):
        read(tmp_path)


def test_what_follows_from_a_precision() -> None:
    weight_only = ["w8a16", "w4a16", "w8a32", "w4a32"]
    assert [one.value for one in Precision if one.is_quantised] == ["int8", "fp8", *weight_only]
    assert [one.value for one in Precision if one.is_weight_only] == weight_only
    assert [Precision(one).products.value for one in (*weight_only, "int8")] == ["bf16", "bf16", "fp32", "fp32", "int8"]
    assert [Precision(one).weight_bytes for one in ("fp32", "int8", "w8a16", "w4a16")] == [None, 1, 1, 0.5625]
    assert [one.value for one in Precision if one.is_16_bit] == ["bf16", "fp16"]
    assert [one.value for one in Precision if one.allows_tf32] == ["tf32"]
    assert [one.value for one in Precision if one.reason_against_cpu] == ["tf32", "fp8"]
    assert CPU.cuda_index is None


@pytest.mark.parametrize("scenario", Scenario)
def test_a_value_and_its_milliseconds_are_two_forms_of_one_thing(scenario: Scenario) -> None:
    spec = scenario.spec
    assert spec.value_from_ms(spec.ms_per_request(250.0)) == pytest.approx(250.0)
    assert spec.rate_from(spec.value_from_ms(4.0), streams=1) == pytest.approx(250.0)
    assert (spec.unit == "requests/s") == spec.is_rate


@pytest.mark.parametrize("scenario", Scenario)
def test_the_load_generator_has_each_scenario(scenario: Scenario) -> None:
    generator = pytest.importorskip("mlperf_loadgen")
    assert hasattr(generator.TestScenario, scenario.spec.generator_name)


def test_requests_that_come_together_share_a_latency() -> None:
    assert Scenario.MULTI_STREAM.spec.rate_from(20.0, streams=8) == pytest.approx(400.0)
