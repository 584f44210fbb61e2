"""What a run has built is kept, and becomes a folder that loads, checks and measures it without Bakeoff."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bakeoff
from bakeoff.backends.aotinductor import AOTInductor
from bakeoff.backends.onnx import Onnx
from bakeoff.records import report_file
from bakeoff.records.artifacts import Artifacts, ArtifactTooLarge
from bakeoff.records.device import CPU
from bakeoff.records.doubts import Unchecked
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Range, Record, Status
from bakeoff.shipping import cpp_program, export, script_parts
from bakeoff.shipping.export import foreign_operators
from bakeoff.shipping.sample_facts import Sample, sample_file
from tests.conftest import CommandLine
from tests.reports import samples
from tests.shipping.conftest import BUILDING, record_of, report_on, runtime_of
from tests.support.golden import same_as_golden

RANGE = {"low": 1, "built_at": 4, "high": 16}

OPERATOR = """
import torch

@torch.library.custom_op("stranger::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

same.register_fake(torch.empty_like)
"""


class Strange(torch.nn.Module):
    """Ends with an operator that a module registers."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.stranger.same(output) for output in self.inner(*tensors))


def of_a_range(run: Path, label: str, folder: Path) -> Path:
    """The same run, in which this cell was built for the batches 1 to 16. TorchScript has no sizes."""
    shutil.copytree(run, folder)
    report = report_file.read(run)
    record = script_parts.find_record(report, label)
    batch = int(record.cell.dimensions["batch"])
    cell = record.cell.model_copy(update={"dynamic": {"batch": Range(low=1, built_at=batch, high=16)}})
    record = record.model_copy(update={"cell": cell, "open_axes": {0: {0: (1, 16)}}})
    report_file.write_json(report.model_copy(update={"records": [record]}), folder)
    return folder


def test_a_build_for_a_range_serves_all_of_it(run: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    ranged = of_a_range(run, "torchscript", tmp_path / "run")
    _, script = export.export(ranged, None, tmp_path / "export", tell_step=steps.append)
    assert len(steps) == 1 and "torchscript" in steps[0]
    assert "Serves: axis 0 of input 0 from 1 to 16" in (script.parent / "README.md").read_text()
    fast = bakeoff.load(script.parent)
    most = torch.randn(16, *np.load(script.parent / "sample.npz")["input_0"].shape[1:])
    torch.testing.assert_close(fast(most), torch.cat([fast(row) for row in most.split(1)]))
    with pytest.raises(bakeoff.NotServed, match=r"serves 'input': float32 \(1 to 16, 64\)"):
        fast(torch.cat([most, most]))


def test_a_range_is_no_export_with_fixed_sizes(run: Path, tmp_path: Path) -> None:
    ranged = of_a_range(run, "torchscript", tmp_path / "run")
    with pytest.raises(UsageError, match="it serves a range of sizes, and the server has fixed ones"):
        export.export(ranged, None, tmp_path / "export", export.Format.TRITON)


@pytest.mark.parametrize("format", [export.Format.TRITON, export.Format.CPP])
def test_a_cuda_graph_is_made_where_it_is_replayed(tmp_path: Path, format: export.Format) -> None:
    record = record_of("aotinductor/cuda-graph", cell={"device": "cuda"})
    report_file.write_json(report_on(record), tmp_path)
    with pytest.raises(UsageError, match="its CUDA graph is made in the process that serves it"):
        export.export(tmp_path, "aotinductor/cuda-graph", tmp_path / "export", format)


@pytest.fixture
def strange_run(run: Path, tmp_path: Path) -> Path:
    """The same run, whose TorchScript has such an operator."""
    shutil.copytree(run, tmp_path / "run")
    record = script_parts.find_record(report_file.read(run), "torchscript")
    artifact = tmp_path / "run" / record.artifact / "model.pt"
    inputs = [torch.from_numpy(np.load(sample_file(record, run))["input_0"])]
    if not hasattr(torch.ops.stranger, "same"):
        exec(OPERATOR, {})
    torch.jit.save(torch.jit.trace(Strange(torch.jit.load(artifact)), inputs, check_trace=False), artifact)
    return tmp_path / "run"


def test_what_registers_its_operators_is_named_and_imported_first(
    strange_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, script = export.export(strange_run, "torchscript", tmp_path / "export")
    said = export.Format.FOLDER.next_step(script)
    assert "IMPORT_FIRST=MODULE python " in said and said.endswith("that registers its operators stranger::same")
    assert "the operators stranger::same." in (script.parent / "README.md").read_text()
    (script.parent / "registering.py").write_text(OPERATOR)
    monkeypatch.setenv("IMPORT_FIRST", "registering")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "output 0 is right" in done.stdout, done.stderr


@pytest.mark.parametrize("format", [export.Format.TRITON, export.Format.CPP])
def test_what_imports_no_module_has_only_torchs_operators(
    strange_run: Path, tmp_path: Path, format: export.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_program, "require", lambda *given: None)
    with pytest.raises(UsageError, match=r"registers its operators stranger::same, and .* imports none"):
        export.export(strange_run, "torchscript", tmp_path / "export", format)


def test_operators_are_found_in_a_program_and_not_torchs_own(tmp_path: Path) -> None:
    if not hasattr(torch.ops.stranger, "same"):
        exec(OPERATOR, {})

    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * (x.shape[0] + 1)

    file, given = tmp_path / "program.pt2", (torch.randn(2, 3),)
    torch.export.save(torch.export.export(Strange(torch.nn.Sequential(Chosen())), given), file)
    assert foreign_operators(file) == ["stranger::same"]
    torch.export.save(torch.export.export(Chosen(), given), file)
    assert foreign_operators(file) == []


# --- what a run keeps


def test_a_run_keeps_what_was_built_and_rendering_it_again_removes_nothing(
    run: Path, command_line: CommandLine
) -> None:
    kept = {record.cell.label: record.artifact for record in report_file.read(run).records}
    assert kept["eager"] == ""
    files = {label: {path.name for path in (run / kept[label]).iterdir()} for label in BUILDING}
    assert files == {"onnx": {"model.onnx"}, "openvino": {"model.xml", "model.bin"}, "torchscript": {"model.pt"}}
    assert command_line("history", run)[0] == 0
    assert command_line("compare", run, run)[0] == 0
    assert {label: {path.name for path in (run / kept[label]).iterdir()} for label in BUILDING} == files


def built(folder: Path, size: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "model").write_bytes(bytes(size))
    return folder


def test_artefacts_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path, 100)
    assert artifacts.keep("first", built(tmp_path / "1", 60)) == "artifacts/first"
    with pytest.raises(ArtifactTooLarge) as refused:
        artifacts.keep("second", built(tmp_path / "2", 50))
    assert refused.value.size_bytes == 50
    assert artifacts.keep("third", built(tmp_path / "3", 40)) == "artifacts/third"
    assert artifacts.keep("fourth", tmp_path / "nothing") == ""
    assert sorted(path.name for path in (tmp_path / "artifacts").iterdir()) == ["first", "third"]


def test_what_a_killed_run_left_is_replaced(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path, 100)
    built(tmp_path / "artifacts" / "one", 90)
    built(tmp_path / "artifacts" / ".one.partial", 90)
    artifacts.keep("one", built(tmp_path / "1", 60))
    assert [path.stat().st_size for path in tmp_path.glob("artifacts/**/model")] == [60]


# --- which cell


CONV = {"model": "conv"}


def test_without_a_name_it_is_the_winner_of_the_only_contest() -> None:
    report = report_on(record_of("eager", 1.0), record_of("onnx", 0.1), record_of("openvino", 0.5))
    assert export.choose(report, None).cell.label == "onnx"
    assert export.choose(report, "openvino").cell.label == "openvino"


def test_a_contest_is_named_by_the_beginning_of_its_id_and_gives_its_winner() -> None:
    report = report_on(
        *(record_of("eager", 1.0), record_of("onnx", 0.1)),
        *(record_of("eager", 0.1, cell=CONV), record_of("openvino", 1.0, cell=CONV)),
    )
    assert export.choose(report, "mlp").cell.label == "onnx"
    assert export.choose(report, "conv_").cell.label == "eager"
    assert export.choose(report, "openv").cell.label == "openvino"
    with pytest.raises(UsageError, match="has 2 contests: name one of mlp_batch4"):
        export.choose(report, None)


def test_a_model_as_the_report_names_it_stands_for_the_winner_of_its_contest() -> None:
    mine, mines = {"model": "my.py:net"}, {"model": "my.py:net_2"}
    report = report_on(
        *(record_of("eager", 1.0, cell=mine), record_of("onnx", 0.1, cell=mine)),
        *(record_of("eager", 0.1, cell=mines), record_of("openvino", 1.0, cell=mines)),
    )
    assert export.choose(report, "my.py:net").cell.label == "onnx"
    assert export.choose(report, "my.py:net_2").cell.label == "eager"


def test_a_tie_is_left_to_the_user() -> None:
    report = report_on(record_of("eager", 1.0), record_of("onnx", 0.1), record_of("openvino", 0.1))
    with pytest.raises(UsageError, match="has no winner to export, its best tie: name one of onnx, openvino"):
        export.choose(report, None)
    report = report_on(record_of("eager", 1.0), record_of("onnx", 0.1), record_of("inductor/regional", 0.1))
    with pytest.raises(UsageError, match=r"its best tie: name one of onnx$"):
        export.choose(report, None)
    report = report_on(record_of("eager", 0.1), record_of("inductor/regional", 0.1))
    with pytest.raises(UsageError, match="tie, and none of eager, inductor/regional can be exported: name another"):
        export.choose(report, None)


def found_as(name: str, *records: Record) -> str:
    return script_parts.find_record(report_on(*records), name).cell.label


def test_a_cell_is_named_by_its_id_its_label_or_the_beginning_of_one() -> None:
    records = [record_of(label) for label in ("onnx", "onnx/opset-23", "openvino", "eager")]
    assert found_as("onnx", *records) == "onnx"  # a whole label, though another begins so
    assert found_as("onnx/o", *records) == "onnx/opset-23"
    assert found_as("op", *records) == "openvino"
    for record in records:
        assert found_as(record.cell.id, *records) == record.cell.label


def test_a_name_of_several_cells_is_refused_with_their_ids() -> None:
    records = [record_of("eager"), record_of("eager", cell=CONV)]
    with pytest.raises(UsageError, match="'eager' stands for 2 cells: give one of") as refused:
        found_as("eager", *records)
    assert all(record.cell.id in str(refused.value) for record in records)
    assert found_as("mlp_", *records) == "eager"


@pytest.mark.parametrize(("name", "near"), [("egaer", "eager"), ("", "known: eager, onnx")])
def test_an_unknown_cell_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"unknown cell '{name}': .*{near}"):
        found_as(name, record_of("eager"), record_of("onnx"))


@pytest.mark.parametrize(
    ("label", "fields", "said"),
    [
        ("eager", {}, "eager compiles nothing: ship the model as it is, or see bakeoff reproduce"),
        ("onnx", {"artifact": ""}, "its artefact was not kept: measure it again without --no-artifacts, or with"),
        ("onnx", {"artifact": "", "is_in_part": True}, "not kept when the run ended. .*: bakeoff resume run"),
        ("torch-tensorrt", {}, "nothing loads what torch-tensorrt builds, .*; what it built is in artifacts/x"),
        ("onnx/openvino-ep", {}, "what is exported runs by the CPU's and CUDA's providers only"),
        ("inductor/regional", {"artifact": ""}, "or pads its inputs: export another mode of inductor"),
        ("onnx/gone", {}, "this version does not have its mode"),
        ("aotinductor", {"cell": {"precision": "int8"}}, "only the ONNX of a quantised model is exported"),
        ("inductor", {"cell": {"task": "train_step"}}, "only inference is exported, and this is train_step"),
        ("inductor", {"cell": {"environment": "old"}}, "exported anew by the torch beside Bakeoff, and it ran in old"),
        ("inductor", {"cell": {"dynamic": {"batch": RANGE}}}, "no program for a range of sizes is kept of it"),
        ("onnx", {"status": Status.INCORRECT, "reason": "rmse is 7"}, "it is incorrect: rmse is 7"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    command_line: CommandLine, label: str, fields: dict[str, Any], said: str
) -> None:
    (Path("run")).mkdir()
    report_file.write_json(report_on(record_of(label, **fields)), Path("run"))
    status, out, err = command_line("export", "run", label)
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"error: .*{said}.*\n", err)
    assert not Path("export").exists()


def test_a_report_without_its_run_and_a_folder_in_use_are_refused(
    run: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "report.json").write_bytes((run / "report.json").read_bytes())
    assert "export needs the folder of the run" in command_line("export", "alone", "onnx")[2]
    built(tmp_path / "full", 1)
    assert "--out full: there is something already" in command_line("export", run, "onnx", "--out", "full")[2]
    status, out, _ = command_line("export", run, "onnx", "--out", "new/folder")
    assert (status, out) == (0, "Exported onnx. To check and to measure it: python new/folder/load.py\n")


# --- what is written


def with_spread(record: Record, spread: float) -> Record:
    assert record.latency
    latency = record.latency.model_copy(update={"processes": 2, "process_spread": spread})
    return record.model_copy(update={"latency": latency})


def test_what_is_written_for_readers_is_as_before() -> None:
    """Requirements are exact, and a local version is a comment. The README cautions where outputs were not compared."""
    why = "the model's own answers have no finite value"
    unchecked = samples.accuracy().model_copy(update={"unchecked": why, "rmse": math.nan})
    plain = record_of("onnx", precision_in_force={"use_tf32": "0"})
    lines = export.requirements(
        report_on(plain, versions={"numpy": "2.4.6"}), record_of("aotinductor"), AOTInductor().runtime(CPU)
    )
    for record in (plain, record_of("onnx", accuracy=unchecked, doubts=[Unchecked(why=why)])):
        lines.append(export.readme(report_on(record), record, Onnx().runtime(CPU), "model.onnx"))
    for spread in (12.345, 0.046, 0.0):
        record = with_spread(plain, spread)
        lines.append(script_parts.facts_of(report_on(record), record)["Result"])
    same_as_golden("export.md", "\n".join(lines))


@pytest.mark.parametrize(
    ("backend", "format", "is_refused"),
    [
        ("onnx", "folder", True),
        ("openvino", "folder", True),
        ("torchscript", "folder", False),
        ("torchscript", "triton", True),
    ],
)
def test_outputs_whose_sizes_depend_on_values_have_no_fixed_memory(backend: str, format: str, is_refused: bool) -> None:
    record = samples.ok(samples.cell(backend), [])
    runtime = runtime_of(record)
    for sizes_vary in (False, True):
        sample = Sample(inputs=("float32",), outputs=(), sizes_vary=sizes_vary)
        if sizes_vary and is_refused:
            with pytest.raises(UsageError, match="depend on the values in its inputs"):
                export.require_sizes(record, runtime, sample, export.Format(format))
        else:
            export.require_sizes(record, runtime, sample, export.Format(format))
