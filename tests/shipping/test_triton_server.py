"""A model repository says what Triton's own definition of a configuration allows, and what was built is in it."""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from google.protobuf import text_format

from bakeoff import backends
from bakeoff.backends.runtime.tensorrt import ENGINE, Manifest
from bakeoff.records.errors import UsageError
from bakeoff.records.load_samples import Load, ServingSettings
from bakeoff.records.schema import Record
from bakeoff.shipping import export, triton_server
from bakeoff.shipping.export import Format
from bakeoff.shipping.sample_facts import Sample, SampleOutput
from tests.conftest import CommandLine
from tests.shipping.conftest import BUILDING, record_of, report_on, runtime_of

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
    """Write a repository with an empty artefact, and return the folder of its model."""
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
