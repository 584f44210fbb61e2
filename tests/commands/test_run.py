"""Whole runs over the null backend: every way a cell can end costs one row, and the rest is measured as if alone."""

import contextlib
import re
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from scripted_backends import Null

from bakeoff import backends
from bakeoff.commands import run as runs
from bakeoff.judging.doubts_of_cells import PartlyElsewhere
from bakeoff.judging.judgement import contests_of, judge
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.measuring import session
from bakeoff.measuring.controller import others
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.messages import TorchFacts
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.records.device import CPU
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.shipping import export
from bakeoff.shipping.start_runs import measure_run
from bakeoff.why.controller import blame_cell, profile_run
from tests.conftest import CommandLine
from tests.support import measuring
from tests.support.measuring import Silent, by_label

SMALL = {"batch": ("2",), "features": ("8",), "hidden": ("8",)}


def measure(folder: Path, *backends: str, **fields: object) -> Report:
    return measuring.measure(folder, *backends, **{"set": SMALL, **fields})


MODES = tuple(f"null/{mode}" for mode in Null.mode_names() if mode not in ("default", "slow-start", "hang-in-run"))


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Nearly every mode of the null backends, beside eager, in one run."""
    folder = tmp_path_factory.mktemp("endings") / "run"
    return measure(folder, "eager", "null", *MODES, "null-packaged/all", time_limit_s=8.0)


def of_cells(report: Report, *labels: str) -> Report:
    """Return the report as if only these cells had been asked for."""
    return report.model_copy(update={"records": [by_label(report)[label] for label in labels]})


@pytest.mark.parametrize(
    ("mode", "status", "reason", "died_in", "signal"),
    [
        ("null", Status.OK, "", None, None),
        ("null/unsupported", Status.UNSUPPORTED, "found out while building", None, None),
        ("null/error", Status.ERROR, "RuntimeError: scripted failure", "compile", None),
        ("null/oom", Status.OOM, "MemoryError: scripted: no memory left: smaller inputs or", "compile", None),
        ("null/crash-in-compile", Status.CRASH, "died of signal 11 (SIGSEGV) in compile", "compile", 11),
        ("null/hang", Status.TIMEOUT, "not done within 8 s, in compile: raise --time-limit", "compile", None),
        ("null/crash-in-load", Status.CRASH, "died of signal 11 (SIGSEGV) in load", "load", 11),
        ("null/wrong", Status.INCORRECT, "output: rmse 1", None, None),
        ("null/nan", Status.INCORRECT, "value(s) not finite", None, None),
        ("null/missing-output", Status.INCORRECT, "0 outputs where the model has 1", None, None),
        ("null/wrong-later", Status.INCORRECT, "right at first, wrong after measuring", None, None),
        ("null/grandchildren", Status.OK, "", None, None),
        ("null/noisy-output", Status.OK, "", None, None),
        ("null/partial", Status.OK, "", None, None),
        ("null/fallback", Status.OK, "", None, None),
    ],
)
def test_every_ending_is_one_row_with_its_reason(
    endings: Report, mode: str, status: Status, reason: str, died_in: str | None, signal: int | None
) -> None:
    record = by_label(endings)[mode]
    assert record.status is status
    assert reason in record.reason
    assert (record.died_in, record.signal) == (died_in, signal)


def test_every_planned_cell_has_exactly_one_record(endings: Report) -> None:
    assert endings.complete
    assert len(endings.records) == endings.planned == len(by_label(endings))


def test_a_crash_in_run_keeps_its_phases(endings: Report) -> None:
    record = by_label(endings)["null/crash-in-run"]
    assert record.died_in in ("warm-up", "measure")
    assert [phase.name for phase in record.phases] == ["export", "compile", "load", "first_call"]


def test_an_incorrect_cell_keeps_its_numbers_and_is_never_ranked(endings: Report) -> None:
    record = by_label(endings)["null/wrong"]
    assert record.latency.median_ms == pytest.approx(1.0, rel=0.2)
    assert "null/wrong" not in contests_of(endings)[0].contenders


def test_a_failure_keeps_the_last_words_of_its_log(endings: Report) -> None:
    assert "Segmentation fault" in by_label(endings)["null/crash-in-compile"].log_tail
    assert "RuntimeError: scripted failure" in by_label(endings)["null/error"].log_tail


def test_scripted_latencies_are_measured_and_ranked(endings: Report) -> None:
    records = by_label(endings)
    for mode, expected_ms in (("null", 1.0), ("null/slow", 1.2), ("null/double", 2.0)):
        latency = records[mode].latency
        assert latency.median_ms == pytest.approx(expected_ms, rel=0.1)
        assert latency.calls >= 34
    assert records["null"].memory.artifact_bytes == 1000
    assert (records["null"].memory.peak_resident_bytes or 0) > 50e6


def test_cells_of_a_contest_are_measured_in_the_same_rounds_in_changing_order(endings: Report) -> None:
    report = of_cells(endings, "eager", "null", "null/double")
    bursts = [(burst.started_s, burst.round, record.cell.label) for record in report.records for burst in record.bursts]
    ordered = sorted(bursts)
    rounds = [number for _, number, _ in ordered]
    assert rounds == sorted(rounds)  # a round ends before the next begins
    orders = {tuple(label for _, number, label in ordered if number == one) for one in range(10)}
    assert all(len(order) == 3 for order in orders)
    assert len(orders) > 1
    lead = contests_of(report)[0].fastest.lead
    assert lead is not None and lead.paired


def test_two_copies_of_one_backend_tie(endings: Report) -> None:
    (contest,) = contests_of(of_cells(endings, "null", "null/again"))
    assert contest.fastest.winner is None
    assert sorted(contest.fastest.tied) == ["null", "null/again"]


# --- ahead of time: built in one process, and measured in another one that never saw the model


def test_what_is_built_ahead_of_time_is_measured_in_another_process_and_kept(
    endings: Report, tmp_path_factory: pytest.TempPathFactory
) -> None:
    record = by_label(endings)["null-packaged"]
    assert record.status is Status.OK, record.reason
    assert record.settings["built_by"] != record.settings["loaded_by"]
    assert [phase.name for phase in record.phases] == ["compile", "load", "first_call"]
    kept = tmp_path_factory.getbasetemp().glob(f"endings*/run/{record.artifact}/*")
    assert {path.name for path in kept} == {"module.pt", "built_by"}
    assert record.memory and record.memory.artifact_bytes and record.memory.artifact_bytes > 500


@pytest.mark.parametrize(("phase", "done"), [("compile", []), ("load", ["compile"])])
def test_a_crash_in_either_process_is_known_by_its_phase(endings: Report, phase: str, done: list[str]) -> None:
    record = by_label(endings)[f"null-packaged/crash-in-{phase}"]
    assert (record.status, record.died_in, record.signal) == (Status.CRASH, phase, 11)
    assert [ended.name for ended in record.phases] == done


@pytest.mark.slow
def test_nothing_of_it_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_servers: None) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (record,) = measuring.measure(tmp_path / "run", "null-packaged/default", no_artifacts=True).records
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert (record.artifact, (tmp_path / "run" / "artifacts").exists()) == ("", False)


@pytest.mark.slow
def test_spawned_children_measure_the_same_and_the_report_says_how(tmp_path: Path) -> None:
    labels = ("eager", "null", "null/crash-in-load", "null-packaged")
    report = measure(tmp_path / "run", *labels, start_method="spawn")
    records = by_label(report)
    assert records["null"].status is Status.OK
    assert records["null"].settings["start_method"] == "spawn"
    assert records["null-packaged"].settings["built_by"] != records["null-packaged"].settings["loaded_by"]
    assert records["null/crash-in-load"].signal == 11
    assert any("spawned as fresh interpreters" in note for note in report.notes)


def test_a_model_that_cannot_be_loaded_fails_every_cell_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def factory(batch: int = 1):\n    raise ValueError('no weights here')\n")
    report = measuring.measure(tmp_path / "run", "eager", "null", "null/double", models=[f"{file}:factory"])
    assert [record.status for record in report.records] == [Status.ERROR] * 3
    assert {record.reason for record in report.records[1:]} == {"your model failed to load: see eager"}
    said = "your model failed to load: ValueError: no weights here (broken.py, line 2, in factory)"
    assert said in report.records[0].reason
    assert runs.ending_of(judge(report))[0] == 3


@pytest.mark.slow
def test_the_parent_sleeps_while_its_children_work(tmp_path: Path) -> None:
    def parent_cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    measure(tmp_path / "imports", "null")  # whatever is imported on the way is imported now
    before_s, begun = parent_cpu_s(), time.monotonic()
    measure(tmp_path / "run", "null", "null/double", min_time_s=4.0)
    assert time.monotonic() - begun > 8
    assert parent_cpu_s() - before_s < 0.05 * (time.monotonic() - begun)


class Watching(Silent):
    """A progress that checks that each record is on disk the moment its cell ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def ended(self, record: Record) -> None:
        super().ended(record)
        assert Store(self.folder).has(record.cell.id)


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A run of four cells, which tests resume in a copy of its folder."""
    folder = tmp_path_factory.mktemp("once") / "run"
    watching = Watching(folder)
    asked = ("null", "null/double", "null/error", "tensorrt")
    report = measure(folder, *asked, progress=watching)
    assert sorted(watching.ended_labels) == sorted(asked)
    return folder, report


def test_a_run_that_lost_a_record_is_resumed_and_measures_nothing_else_again(
    tmp_path: Path, measured_once: tuple[Path, Report]
) -> None:
    folder, first = shutil.copytree(measured_once[0], tmp_path / "run"), by_label(measured_once[1])
    has_one_floor(first)

    (lost,) = (folder / "cells").glob("*null.double.json")
    lost.unlink()
    kept = {path: path.stat().st_mtime_ns for path in [*folder.glob("ceilings/*"), *folder.glob("reference/*")]}
    assert len(kept) == 6  # ceilings, origin, reference, sample, traits, work
    watching = Watching(folder)
    report, _ = runs.resume(folder, watching)
    assert watching.ended_labels == ["null/double"]
    (note,) = watching.notes
    assert note.startswith("comparing eager with the float64 reference of mlp_")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert report.complete
    again = by_label(report)
    fitted_anew = {"latency": None, "roofline": None}  # null/double has other rounds now, and both are fitted together
    assert again["null"].model_copy(update=fitted_anew) == first["null"].model_copy(update=fitted_anew)
    assert again["null/double"].roofline is not None
    assert again["null/double"].bursts[0].group not in {burst.group for burst in first["null"].bursts}
    assert any("interrupted and resumed" in note for note in report.notes)


def has_one_floor(records: Mapping[str, Record]) -> None:
    """Check that every latency has its share of one floor."""
    assert records["null/error"].roofline is None
    one, other = records["null"].roofline, records["null/double"].roofline
    assert one.flops == 2 * 2 * (8 * 8 + 8 * 8 + 8 * 8)
    assert one.bytes_moved == 4 * (3 * (8 * 8 + 8) + 2 * 2 * 8)
    assert one.ceiling_flops_per_s > 1e8 and one.ceiling_bytes_per_s > 1e8
    assert one.model_copy(update={"share": None}) == other.model_copy(update={"share": None})
    assert one.share == pytest.approx(one.floor_ms / records["null"].latency.median_ms)


def test_the_conditions_of_every_burst_are_on_record(endings: Report) -> None:
    for record in endings.records:
        for burst in record.bursts:
            assert burst.conditions.calibration_ms and burst.conditions.calibration_ms > 0.05
            assert burst.conditions.wait_share is not None and burst.conditions.wait_share >= 0


def test_cells_of_a_round_begin_on_the_same_core_and_rounds_on_all_of_them_in_turn(endings: Report) -> None:
    cores = usable_cores()
    by_round: dict[tuple[int, int], set[int | None]] = {}
    for record in of_cells(endings, "eager", "null", "null/double").records:
        for burst in record.bursts:
            by_round.setdefault((burst.group, burst.round), set()).add(burst.conditions.core)
    assert all(len(used) == 1 for used in by_round.values())
    begun = [used.pop() for _, used in sorted(by_round.items())]
    assert set(begun[: len(cores)]) == set(cores[: len(begun)])


# --- --strict


STRICT = ("eager", "null", "null/partial", "null/fallback", "null/wrong")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("strict") / "run"
    return folder, measure(folder, *STRICT, strict=True)


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [
        ("eager", Status.OK, ""),
        ("null", Status.FALLBACK, "null does not report where it ran, and --strict asks for full"),
        ("null/partial", Status.FALLBACK, "placement is partial, and --strict asks for full: gelu, sort and topk"),
        ("null/fallback", Status.FALLBACK, "placement is fallback, and --strict asks for full"),
        ("null/wrong", Status.INCORRECT, "output: rmse 1"),
    ],
)
def test_strict_fails_what_did_not_wholly_run_where_it_was_asked_to(
    strict: tuple[Path, Report], mode: str, status: Status, reason: str
) -> None:
    record = by_label(strict[1])[mode]
    assert record.status is status
    assert record.reason == reason or (status is Status.INCORRECT and reason in record.reason)
    assert record.latency is not None
    assert record.command.endswith(" --min-time 0.05 --processes 1 --strict")


def test_what_strict_failed_fails_the_run(strict: tuple[Path, Report]) -> None:
    report = strict[1]
    only = report.model_copy(update={"records": [by_label(report)[name] for name in ("eager", "null/partial")]})
    assert runs.ending_of(judge(only))[0] == 1
    assert runs.ending_of(judge(only.model_copy(update={"records": only.records[:1]})))[0] == 0


def test_without_strict_a_fallback_is_ranked_with_a_doubt(endings: Report) -> None:
    report = of_cells(endings, "eager", "null/partial")
    assert [record.status for record in report.records] == [Status.OK, Status.OK]
    (contest,) = contests_of(report)
    assert "null/partial" in contest.contenders
    assert [doubt.label for doubt in contest.doubts if isinstance(doubt, PartlyElsewhere)] == ["null/partial"]
    assert "--strict" not in report.records[0].command
    assert runs.ending_of(judge(report))[0] == 0


@pytest.mark.slow
def test_resume_is_as_strict_as_the_run_was(tmp_path: Path, strict: tuple[Path, Report]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(strict[0], folder)
    (lost,) = (folder / "cells").glob("*null.partial.json")
    lost.unlink()
    report, _ = runs.resume(folder, Silent())
    assert by_label(report)["null/partial"].status is Status.FALLBACK


def test_servers_import_only_where_every_model_imports_something() -> None:
    plain, one, other = (SimpleNamespace(imports=names) for names in ((), ("a.b", "a.c"), ("a.b", "d")))
    assert session.shared_imports([one, other, one]) == ["a.b", "a.c", "d"]
    assert session.shared_imports([one, plain]) == session.shared_imports([plain]) == []


# --- devices that torch does not see

WITHOUT_CUDA = TorchFacts(torch="2.13.0+cpu", cuda=None, cuda_devices=0, threads=2)
WITHOUT_DRIVER = TorchFacts(
    torch="2.13.0", cuda="13.0", cuda_devices=0, threads=2, cuda_error="Found no NVIDIA driver on your system."
)
TWO_GPUS = TorchFacts(torch="2.13.0", cuda="13.0", cuda_devices=2, threads=2)


@pytest.mark.parametrize(
    ("devices", "facts", "said"),
    [
        (["cuda"], WITHOUT_CUDA, "--devices cuda: torch 2.13.0+cpu is a build without CUDA: install one with it"),
        (["cpu", "cuda:1"], WITHOUT_CUDA, "--devices cuda:1: torch 2.13.0+cpu is a build without CUDA"),
        (["cuda"], WITHOUT_DRIVER, "built for CUDA 13.0, sees no GPU (Found no NVIDIA driver on your system.)"),
        (["cuda:2"], TWO_GPUS, "--devices cuda:2: torch 2.13.0 sees cuda:0, cuda:1 only"),
    ],
)
def test_a_device_that_torch_does_not_see_is_refused(devices: list[str], facts: TorchFacts, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        session.on_this_machine(Request(devices=devices), facts)


ONE_GPU = TWO_GPUS.but(cuda_devices=1)


@pytest.mark.parametrize(
    ("devices", "facts", "meant"),
    [
        (["cpu"], WITHOUT_CUDA, ("cpu",)),
        (["cpu", "cuda:1"], TWO_GPUS, ("cpu", "cuda:1")),
        ([], WITHOUT_CUDA, ("cpu",)),
        ([], TWO_GPUS, ("cuda",)),
        (["cuda:all"], TWO_GPUS, ("cuda:0", "cuda:1")),
        (["cuda:all"], ONE_GPU, ("cuda",)),
    ],
)
def test_devices_are_those_of_the_machine(devices: list[str], facts: TorchFacts, meant: tuple[str, ...]) -> None:
    assert session.on_this_machine(Request(devices=devices), facts).devices == meant


def test_a_wrong_input_shape_is_found_by_a_call_of_eager_before_anything_is_built(tmp_path: Path) -> None:
    code = "import torch\ndef factory():\n    return torch.nn.Linear(8, 4), torch.randn(2, 9)\n"
    (tmp_path / "narrow.py").write_text(code)
    report = measure(tmp_path / "run", "eager", "null", models=[f"{tmp_path / 'narrow.py'}:factory"], set={})
    assert [(record.status, record.phases) for record in report.records] == [(Status.ERROR, [])] * 2
    eager, null = (record.reason for record in report.records)
    assert "failed when it was called in fp32: RuntimeError: mat1 and mat2 shapes cannot be multiplied" in eager
    assert null.endswith("see eager")


READS_VARIABLES = """import os, pathlib, tempfile
import torch
def factory(batch: int = 2):
    torch.load(pathlib.Path(__file__).with_name("weights.pt"))
    (own := pathlib.Path(tempfile.gettempdir(), "own")).write_text("not kept")
    own.read_text()
    width = int(os.environ["MY_WIDTH"]) + int(os.environ.get("MY_EXTRA_WIDTH", 0))
    return torch.nn.Linear(width, 4), torch.randn(batch, width)
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_run_is_not_resumed_where_variables_that_the_model_reads_its_weights_or_its_code_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    (tmp_path / "wide.py").write_text(READS_VARIABLES)
    torch.save(torch.zeros(4), weights := tmp_path / "weights.pt")
    monkeypatch.setenv("MY_WIDTH", "48613")
    folder = tmp_path / "run"
    report = measure(folder, "eager", models=[f"{tmp_path / 'wide.py'}:factory"], set={})
    assert report.environment.own_variables_set == ["MY_WIDTH"]
    assert report.environment.own_variables["MY_EXTRA_WIDTH"] == ""
    kept = [*folder.glob("reference/*.json"), folder / "environment.json"]
    assert not any('"48613"' in file.read_text() for file in kept), "a value may be a secret"

    ended = {cell: cell.read_text() for cell in (folder / "cells").glob("*.json")}
    for cell in ended:
        cell.unlink()
    for name, value, told in (
        ("MY_WIDTH", "128", "MY_WIDTH, which has another value than when the run began: set MY_WIDTH as it was"),
        ("MY_WIDTH", None, "MY_WIDTH, which is not set and was when the run began: set MY_WIDTH as it was"),
        ("MY_EXTRA_WIDTH", "1", "MY_EXTRA_WIDTH, which is set and was not when the run began: unset MY_EXTRA_WIDTH"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value) if value else changed.delenv(name)
            with pytest.raises(UsageError, match=re.escape(told)):
                runs.resume(folder, Silent())
    for text in (READS_VARIABLES.replace("Linear", "Bilinear"), None):
        (tmp_path / "wide.py").write_text(text) if text else (tmp_path / "wide.py").unlink()
        with pytest.raises(UsageError, match=r"wide\.py is not as it was when the run began: put it back"):
            runs.resume(folder, Silent())
    (tmp_path / "wide.py").write_text(READS_VARIABLES)
    torch.save(torch.ones(4), weights)
    with pytest.raises(UsageError, match=r"weights\.pt is not as it was when the run began: put it back"):
        runs.resume(folder, Silent())
    for cell, text in ended.items():
        cell.write_text(text)
    monkeypatch.setattr(export, "_runtime_of", lambda *_: backends.create("inductor").runtime(CPU))
    for load_again in (
        lambda: profile_run(folder, "eager", None, print),
        lambda: blame_cell(folder, "eager", print),
        lambda: export.export(folder, "eager", tmp_path / "export"),
    ):
        with pytest.raises(UsageError, match=r"weights\.pt is not as it was when the run began: put it back"):
            load_again()
    [started] = measure_run(folder, ["eager"], LEAST_STARTS, False, print).cells
    status, _, said = command_line("reproduce", folder, "eager", "--out", tmp_path / "reproduced")
    assert status == 2 and "weights.pt is not as it was when the run began" in said
    assert not started.starts and "weights.pt is not as it was when the run began" in started.reason
    torch.save(torch.zeros(4), weights)
    for cell in ended:
        cell.unlink()
    resumed, _ = runs.resume(folder, Silent())
    assert [record.status for record in resumed.records] == [Status.OK]


READ_BY_NATIVE_CODE = """import pathlib
import torch
from safetensors.torch import load_file
def factory():
    linear = torch.nn.Linear(4, 4)
    linear.load_state_dict(load_file(pathlib.Path(__file__).parents[1] / "weights" / "net.safetensors"))
    return linear, torch.arange(8.0).view(2, 4)
"""


class Far:
    """A model whose weights are read by native code, out of a folder that is not its own, and a run of it."""

    def __init__(self, base: Path) -> None:
        self.file, self.folder = base / "weights" / "net.safetensors", base / "run"
        for name in ("code", "weights"):
            (base / name).mkdir()
        (base / "code" / "far.py").write_text(READ_BY_NATIVE_CODE)
        self.write(1.0)
        self.report = measure(self.folder, "eager", models=[f"{base / 'code' / 'far.py'}:factory"], set={})

    def write(self, scale: float) -> None:
        save_file({"weight": torch.full((4, 4), scale), "bias": torch.ones(4)}, self.file)


OTHER_WEIGHTS = "the model has other weights than those that were measured"


@pytest.mark.slow
def test_weights_that_no_file_names_are_compared_where_the_model_is_loaded_again(tmp_path: Path) -> None:
    far = Far(tmp_path)
    far.write(1.5)
    assert not Store.open(far.folder).changed_files()
    [(reference_id, digest)] = far.report.weights.items()
    assert far.report.own_files.keys() == {"far.py"}
    assert far.report.records[0].cell.reference_id == reference_id and digest
    with pytest.raises(BakeoffError, match=OTHER_WEIGHTS):
        profile_run(far.folder, "eager", None, print)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_programs")
def test_a_model_with_other_weights_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(tmp_path)
    far.write(1.5)
    monkeypatch.setattr(export, "_runtime_of", lambda *_: backends.create("inductor").runtime(CPU))
    with pytest.raises(UsageError, match=OTHER_WEIGHTS):
        export.export(far.folder, "eager", tmp_path / "export")
    for kept in far.folder.glob("reference/*.origin.json"):
        kept.unlink()
    with pytest.raises(UsageError, match=r"the model does not compute what was measured: the RMSE of output 0 is"):
        export.export(far.folder, "eager", tmp_path / "export")
    assert not (tmp_path / "export").exists()
    far.write(1.0)
    export.export(far.folder, "eager", tmp_path / "export")


def test_what_an_interrupted_run_did_not_reach_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_1: object, contests: list[Contest], _2: object, store: Store, *_: object, **__: object) -> None:
        first = contests[0].cells[0].cell
        store.save(Record(cell=first, status=Status.ERROR, reason="scripted"))
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "measure", interrupted)
    report = measure(tmp_path / "run", "eager", "null")
    assert not report.complete and report.reached == 1
    assert sorted(record.status for record in report.records) == [Status.ERROR, Status.NOT_REACHED]


def test_a_run_on_a_cluster_that_is_interrupted_before_any_node_begins_has_measured_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def prepared(request: Request, *_: object) -> Iterator[runs.Prepared]:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        yield runs.Prepared(request, plan(request), None, interrupted)

    monkeypatch.setattr(runs, "_prepared", prepared)
    with pytest.raises(KeyboardInterrupt, match="nothing was measured yet"):
        measure(tmp_path / "run", "null")


def test_what_is_named_twice_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "measure", lambda *_, **__: None)
    report = measure(tmp_path / "run", "null", "null", precision=["fp32", "fp32"])
    assert [record.cell.label for record in report.records] == ["null"]


def test_resume_measures_what_failed_on_a_full_disk_and_nothing_else(
    tmp_path: Path, measured_once: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = shutil.copytree(measured_once[0], tmp_path / "run"), measured_once[1]
    store, kept = Store.open(folder), by_label(report)
    failure = kept["null/error"].failure
    store.save(kept["null"].model_copy(update={"status": Status.ERROR, "failure": failure.on_full_disk}))
    resumed, _ = runs.resume(folder, Silent())
    again = by_label(resumed)
    assert {label: record.status for label, record in again.items()} == {
        label: record.status for label, record in kept.items()
    }
    assert again["null"].bursts[0].group not in {burst.group for burst in kept["null"].bursts}
    assert again["null/error"] == kept["null/error"] and resumed.complete
    assert [note.startswith("resumed at 20") for note in resumed.notes[len(report.notes) :]] == [True, False]
    assert resumed.created_at == report.created_at == store.created_at
    said: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "note", said.append)
    monkeypatch.setattr(others, "BUSY_SHARE", 0.0)  # any machine is busy
    assert runs.resume(folder, progress)[0].notes == resumed.notes, "nothing was measured"
    assert "nothing is left to measure" in said and not any("times as long" in note for note in said)
