"""What a run has built becomes a folder that runs without Bakeoff, a program in C++, or Triton's repository."""

import importlib.util
import math
import re
import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from google.protobuf import text_format

import bakeoff
from bakeoff import backends
from bakeoff.backends.aotinductor import AOTInductor
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.runtime.tensorrt import ENGINE, Manifest
from bakeoff.backends.standalone import CppRuntime
from bakeoff.backends.torchscript import TorchScript
from bakeoff.records import report_file
from bakeoff.records.artifacts import Artifacts, ArtifactTooLarge
from bakeoff.records.device import CPU
from bakeoff.records.doubts import Unchecked
from bakeoff.records.errors import UsageError
from bakeoff.records.load_samples import Load, ServingSettings
from bakeoff.records.schema import Range, Record, Status
from bakeoff.shipping import cpp_program, export, script_parts, triton_server
from bakeoff.shipping.cpp_program import BuildFailed
from bakeoff.shipping.export import Format, foreign_operators
from bakeoff.shipping.sample_facts import Sample, SampleOutput, sample_file
from tests.conftest import CommandLine
from tests.reports import samples
from tests.shipping.conftest import BUILDING, SMALL, record_of, report_on, runtime_of
from tests.support.golden import same_as_golden
from tests.support.measuring import measure

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
    cell = record.cell.but(dynamic={"batch": Range(low=1, built_at=batch, high=16)})
    record = record.but(cell=cell, open_axes={0: {0: (1, 16)}})
    report_file.write_json(report.but(records=[record]), folder)
    return folder


def test_a_build_for_a_range_serves_all_of_it(run: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    ranged = of_a_range(run, "torchscript", tmp_path / "run")
    _, script = export.export(ranged, None, tmp_path / "export", say_step=steps.append)
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


@pytest.mark.slow
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
    with pytest.raises(UsageError, match=r"its best tie: name onnx$"):
        export.choose(report, None)
    report = report_on(record_of("eager", 0.1), record_of("inductor/regional", 0.1))
    with pytest.raises(UsageError, match="tie, and none of eager, inductor/regional can be exported: name another"):
        export.choose(report, None)


def test_what_a_tie_of_several_contests_names_can_be_given() -> None:
    others = [record_of(label, 0.1, cell={"model": "conv"}) for label in ("eager", "onnx")]
    report = report_on(record_of("eager", 0.1), record_of("onnx", 0.1), *others)
    with pytest.raises(UsageError, match=r"its best tie: name \S+$") as error:
        export.choose(report, "conv")
    assert export.choose(report, str(error.value).rpartition(" ")[2]).cell == others[1].cell


def found_as(name: str, *records: Record) -> str:
    return script_parts.find_record(report_on(*records), name).cell.label


def test_a_cell_is_named_by_its_id_its_label_or_the_beginning_of_one() -> None:
    records = [record_of(label) for label in ("onnx", "onnx/opset-23", "openvino", "eager")]
    assert found_as("onnx", *records) == "onnx"  # a whole label, though another begins so
    assert found_as("onnx/o", *records) == "onnx/opset-23"
    assert found_as("op", *records) == "openvino"
    for record in records:
        assert found_as(record.cell.id, *records) == record.cell.label


def test_a_name_of_several_cells_is_refused_with_what_stands_for_one() -> None:
    modes = [record_of("onnx/opset-23"), record_of("onnx/openvino-ep"), record_of("eager")]
    with pytest.raises(UsageError, match="'onnx' stands for 2 cells: give one of onnx/opset-23 or onnx/openvino-ep"):
        found_as("onnx", *modes)
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
    below = command_line("export", run, "onnx", "--out", f"{sys.executable}/export")
    assert below[0] == 2 and f"--out {sys.executable}/export: cannot be written" in below[2]
    status, out, _ = command_line("export", run, "onnx", "--out", "new/folder")
    assert (status, out) == (0, "Exported onnx. To check and to measure it: python new/folder/load.py\n")


# --- what is written


def with_spread(record: Record, spread: float) -> Record:
    assert record.latency
    latency = record.latency.but(processes=2, process_spread=spread)
    return record.but(latency=latency)


def test_what_is_written_for_readers_is_as_before() -> None:
    """Requirements are exact, and a local version is a comment. The README cautions where outputs were not compared."""
    why = "the model's own answers have no finite value"
    unchecked = samples.accuracy().but(unchecked=why, rmse=math.nan)
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


SAMPLE = Sample(
    inputs=("int64", "bool"),
    input_shapes=((2, 8), ()),
    outputs=(SampleOutput(shape=(2, 3), type="float16", allowed=0.1),),
)


def definition() -> Any:
    """Return the module with Triton's ModelConfig. Its package would import gRPC."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules.get("model_config_pb2") or importlib.util.module_from_spec(spec)
    if sys.modules.setdefault("model_config_pb2", module) is module and not hasattr(module, "ModelConfig"):
        spec.loader.exec_module(module)
    return module


def config_in(repository: Path, name: str) -> Any:
    text = (repository / name / "config.pbtxt").read_text()
    return text_format.Parse(text, definition().ModelConfig())


@pytest.mark.parametrize("label", BUILDING)
def test_the_configuration_names_what_the_artefact_has(run: Path, tmp_path: Path, label: str) -> None:
    _, start = export.export(run, label, tmp_path / "repository", Format.TRITON)
    assert start == tmp_path / "repository" / "mlp" / "config.pbtxt"
    config = config_in(tmp_path / "repository", "mlp")
    folder = tmp_path / "repository" / "mlp" / "1"
    artifact = folder / config.default_model_filename
    (given,), (answer,) = config.input, config.output
    if label == "onnx":
        session = onnxruntime.InferenceSession(artifact, providers=["CPUExecutionProvider"])
        names = session.get_inputs()[0].name, session.get_outputs()[0].name
    elif label == "openvino":
        import openvino

        model = openvino.Core().read_model(artifact)
        names = model.inputs[0].any_name, model.outputs[0].any_name
        assert (folder / "model.bin").exists()
    else:
        torch.jit.load(artifact)
        names = "INPUT__0", "OUTPUT__0"
    assert (given.name, answer.name) == names
    assert list(given.dims) == list(answer.dims) == [4, 64] and config.max_batch_size == 0
    assert given.data_type == answer.data_type == definition().TYPE_FP32
    assert config.instance_group[0].count == 1
    assert config.instance_group[0].kind == definition().ModelInstanceGroup.KIND_CPU
    assert "never ran a Triton server" in (tmp_path / "repository" / "README.md").read_text()


def written(folder: Path, record: Record, artifact: str, manifest: Manifest | None = None) -> Path:
    folder.mkdir()
    (folder / artifact).touch()
    if manifest:
        manifest.write(folder)
    return (
        folder / triton_server.write(report_on(record), record, runtime_of(record), SAMPLE, folder, artifact)
    ).parent


def test_it_has_the_instances_that_load_found_on_the_gpu_of_the_cell(tmp_path: Path) -> None:
    serving = ServingSettings(instances=3, threads=1, batch=8)
    load = Load(scenario="offline", settings=serving)
    record = record_of("torchscript", cell={"model": "file.py:make", "device": "cuda:1"}, load=load)
    config = config_in(tmp_path / "new", written(tmp_path / "new", record, "model.pt").name)
    assert config.name == "file.py_make"
    assert (config.instance_group[0].count, list(config.instance_group[0].gpus)) == (3, [1])
    assert config.parameters["INTRA_OP_THREAD_COUNT"].string_value == "1"
    assert [list(each.dims) for each in config.input] == [[2, 8], [1]]
    assert list(config.input[1].reshape.shape) == [] and config.input[1].HasField("reshape")
    assert [each.data_type for each in config.input] == [definition().TYPE_INT64, definition().TYPE_BOOL]
    assert config.output[0].data_type == definition().TYPE_FP16
    assert "Measure the model with a batch of 8 and export that." in (tmp_path / "new" / "README.md").read_text()


def test_an_engine_has_the_names_of_its_graph_and_takes_its_types(tmp_path: Path) -> None:
    manifest = Manifest(("ids", "mask"), ("y",), ("float16",), (), False, 3)
    record = record_of("tensorrt", cell={"device": "cuda"})
    model = written(tmp_path / "new", record, ENGINE, manifest)
    config = config_in(tmp_path / "new", model.name)
    assert (config.backend, config.default_model_filename) == ("tensorrt", ENGINE)
    assert [each.name for each in (*config.input, *config.output)] == ["ids", "mask", "y"]
    with pytest.raises(UsageError, match="this engine takes int32 as ids: Triton casts no inputs"):
        written(tmp_path / "narrowed", record, ENGINE, replace(manifest, narrowed=("ids",)))


class TensorOfServer:
    """Stands for a tensor of the server's Python backend."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor = name, tensor

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    from_dlpack = classmethod(lambda cls, name, tensor: cls(name, tensor))


def test_the_script_of_a_package_answers_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(tmp_path / "new", record_of("aotinductor"), "model.pt2")
    server: Any = types.ModuleType("triton_python_backend_utils")
    server.get_input_tensor_by_name = lambda request, name: request[name]
    server.Tensor = TensorOfServer
    server.InferenceResponse = lambda output_tensors: output_tensors
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", server)
    opened = []

    def open_package(path: str, name: str, is_single_threaded: bool, runners: int, device_index: int) -> Any:
        opened.append((path, device_index))
        return types.SimpleNamespace(run=lambda tensors: [tensors[0] * tensors[1]])

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", open_package)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    script: dict[str, Any] = {}
    exec((model / "1" / "model.py").read_text(), script)
    instance = script["TritonPythonModel"]()
    arguments = {"model_repository": str(model), "model_version": "1"}
    instance.initialize({**arguments, "model_instance_kind": "CPU", "model_instance_device_id": "0"})
    assert opened == [(str(model / "1" / "model.pt2"), -1)]
    request = {
        "INPUT__0": TensorOfServer("INPUT__0", torch.ones(2, 8)),
        "INPUT__1": TensorOfServer("INPUT__1", torch.tensor(3)),
    }
    (answers,) = instance.execute([request])
    assert [each.name for each in answers] == ["OUTPUT__0"]
    assert torch.equal(answers[0].tensor, torch.full((2, 8), 3.0))


def test_what_no_server_runs_is_refused(run: Path, command_line: CommandLine) -> None:
    record = record_of("inductor")
    runtime = backends.create("inductor").runtime(record.cell.device)
    assert runtime is not None
    with pytest.raises(UsageError, match="Triton has no backend for what inductor builds"):
        triton_server.require(record, runtime)
    status, _, err = command_line("export", run, "onnx", "--format", "tritom")
    assert (status, err) == (2, "error: unknown format 'tritom': did you mean 'triton'?\n")
    status, out, _ = command_line("export", run, "onnx", "--format", "triton", "--out", "served")
    assert (status, out) == (0, "Exported onnx. To serve it: tritonserver --model-repository served\n")


CPP_SAMPLE = Sample(
    inputs=("int64", "bfloat16"),
    input_shapes=((2, 8), ()),
    outputs=(SampleOutput(shape=(100,), type="float32", allowed=1e-5),),
)


def written_program(folder: Path, label: str = "aotinductor", sample: Sample = CPP_SAMPLE, **fields: Any) -> str:
    folder.mkdir()
    arrays = {"output_0": np.ones(10), "places_0": np.arange(10), "input_0": np.ones((2, 8), np.int64)}
    np.savez(folder / "sample.npz", facts=np.array("{}"), **arrays)
    record = record_of(label, **fields)
    runtime = runtime_of(record)
    if runtime.triton and runtime.triton.names:  # there is no artefact to read them from
        runtime = replace(runtime, triton=replace(runtime.triton, names=lambda path: (["a", "b"], ["c"])))
    return (folder / cpp_program.write(report_on(record), record, runtime, sample, folder, "model.pt2")).read_text()


def test_the_program_reads_the_sample_as_raw_numbers(tmp_path: Path) -> None:
    program = written_program(tmp_path / "new")
    assert "at::from_blob(inputs.at(0).data(), { 2, 8 }, at::kLong)" in program
    assert "at::from_blob(inputs.at(1).data(), {  }, at::kBFloat16)" in program
    assert 'numbers<int64_t>(folder + "/sample/places_0.bin")' in program
    assert "CUDA" not in program
    assert np.fromfile(tmp_path / "new" / "sample" / "places_0.bin", np.int64).tolist() == list(range(10))
    assert "CMAKE_CXX_STANDARD 20" in (tmp_path / "new" / "CMakeLists.txt").read_text()


def test_on_a_gpu_it_waits_for_the_device(tmp_path: Path) -> None:
    program = written_program(tmp_path / "new", cell={"device": "cuda:1", "mode": "single-threaded"})
    assert '"model", true, 1, 1);' in program
    assert "getCurrentCUDAStream(1).synchronize()" in program
    assert ".to(at::Device(at::kCUDA, 1))" in program


def test_other_builds_are_refused() -> None:
    with pytest.raises(UsageError, match="only that of onnx, aotinductor, openvino has a program"):
        cpp_program.require(record_of("torchscript"), TorchScript().runtime(CPU))


def test_onnx_runtime_gets_names_types_and_memory(tmp_path: Path) -> None:
    sample = CPP_SAMPLE.but(inputs=("int64", "bool"))
    program = written_program(tmp_path / "new", "onnx", sample)
    assert "add(inputs_, memory, inputs.at(0).data(), inputs.at(0).size(), { 2, 8 }, 7);" in program
    assert "buffers_[0].resize(400);" in program and "call(SET_INTRA_OP_NUM_THREADS, options, 2);" in program
    with pytest.raises(UsageError, match="no type bfloat16 in the program"):
        written_program(tmp_path / "refused", "onnx", CPP_SAMPLE)


def test_a_program_that_does_not_build_says_why(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nno_such_command()\n")
    with pytest.raises(BuildFailed, match=r"^it could not be built: .*CMake Error"):
        cpp_program.build(tmp_path, CppRuntime("onnxruntime", "NOWHERE", "print()"))
    onnx = tmp_path / "onnx"
    written_program(onnx, "onnx", CPP_SAMPLE.but(inputs=("int64", "bool")))
    with pytest.raises(BuildFailed, match=r"CMakeLists.txt:\d+ \(message\)"):
        cpp_program.build(onnx, CppRuntime("onnxruntime", "NOWHERE", "print()"))


def built_program(label: str, run: Path, folder: Path) -> list[str]:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    record, _ = export.export(run, label, folder, Format.CPP)
    runtime = backends.create(record.cell.backend).runtime(CPU)
    assert runtime and runtime.cpp
    return [str(cpp_program.build(folder, runtime.cpp)), str(folder)]


def check(program: list[str], folder: Path) -> None:
    """Hold that a program finds what it loads right, and a wrong sample wrong."""
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    right, median = done.stdout.splitlines()
    assert re.fullmatch(r"output 0 is right: its RMSE is \S+, and \S+ is allowed", right)
    assert re.fullmatch(r"median latency \S+ ms; in the report \S+ ms", median)
    expected = folder / "sample" / "output_0.bin"
    (np.fromfile(expected) + 1e-3).tofile(expected)
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "output 0 is wrong: its RMSE is 0.001" in done.stdout


@pytest.mark.parametrize("label", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_program_without_torch_builds_and_finds_its_build_right(label: str, run: Path, tmp_path: Path) -> None:
    check(built_program(label, run, tmp_path / "program"), tmp_path / "program")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_program_of_aotinductor_builds_and_finds_its_package_right(tmp_path: Path) -> None:
    report_file.write_json(measure(tmp_path / "run", "aotinductor", set=SMALL), tmp_path / "run")
    check(built_program("aotinductor", tmp_path / "run", tmp_path / "program"), tmp_path / "program")
