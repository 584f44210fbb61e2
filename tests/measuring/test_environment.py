"""The record of the machine."""

import sys
from pathlib import Path

import numpy
import psutil
import pytest

from bakeoff.measuring.controller import environment
from bakeoff.measuring.messages import TorchFacts
from bakeoff.records import package
from bakeoff.records.schema import Environment, Gpu

FACTS = TorchFacts(torch="9.9.9+cpu", cuda=None, cuda_devices=0, threads=3)


@pytest.fixture
def captured() -> Environment:
    return environment.with_torch(environment.capture(), FACTS, {})


def test_this_machine_is_described(captured: Environment) -> None:
    assert captured.cpu
    assert captured.logical_cores == psutil.cpu_count()
    assert captured.memory_bytes == psutil.virtual_memory().total
    assert captured.python == ".".join(map(str, sys.version_info[:3]))
    assert captured.versions["numpy"] == numpy.__version__


def test_what_torch_says_of_itself_goes_over_its_distribution(captured: Environment) -> None:
    assert captured.versions["torch"] == "9.9.9+cpu"
    assert captured.torch_threads == 3


def test_without_answers_of_torch_its_facts_are_unknown() -> None:
    assert environment.capture().torch_threads is None


def test_without_nvml_there_is_no_gpu() -> None:
    assert environment.gpus_of(None) == []


def test_a_gpu_that_does_not_answer_everything_is_described() -> None:
    class Library:
        NVMLError = RuntimeError
        NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", "temperature"
        nvmlDeviceGetCount = staticmethod(lambda: 2)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
        nvmlDeviceGetName = staticmethod(lambda device: b"H200")
        nvmlSystemGetDriverVersion = staticmethod(lambda: "580.1")
        nvmlDeviceGetEnforcedPowerLimit = staticmethod(lambda device: 700_000)

        def __getattr__(self, question: str) -> object:
            def refuse(*_: object) -> None:
                raise RuntimeError("not supported")

            return refuse

    assert environment.gpus_of(Library()) == [
        Gpu(index=index, name="H200", driver="580.1", power_limit_w=700.0) for index in (0, 1)
    ]


def test_variables_that_bear_on_speed_are_kept_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_ALL", "SECRET_TOKEN"):
        monkeypatch.setenv(name, "1")
    kept = environment.with_torch(environment.capture(), FACTS, {}).variables
    assert {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} <= kept.keys()
    assert {"LC_ALL", "SECRET_TOKEN", "PATH", "HOME"}.isdisjoint(kept)


def test_an_exported_tree_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", "/")
    assert environment.git_state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert environment.git_state(tmp_path) == (None, None)


def test_without_a_commit_a_change_of_bakeoffs_own_files_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "checkout", lambda: None)
    monkeypatch.setattr(package, "PACKAGE", tmp_path)
    (tmp_path / "judging.py").write_text("one")
    before, same = environment.capture(), environment.capture()
    (tmp_path / "judging.py").write_text("two")
    assert environment.differences(before, same) == []
    (told,) = environment.differences(before, environment.capture())
    assert told.startswith("source_digest: ")


def test_the_same_machine_does_not_differ(captured: Environment) -> None:
    assert environment.differences(captured, captured.model_copy(update={"git_dirty": True})) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hostname", "elsewhere"),
        ("cpu", "another"),
        ("usable_cores", 999),
        ("torch_threads", 4),
        ("python", "3.99.0"),
        ("versions", {"torch": "0.1"}),
        ("cuda", "13.0"),
        ("git_commit", "abc"),
        ("governor", "imaginary"),
    ],
)
def test_what_changed_is_named(captured: Environment, name: str, value: object) -> None:
    (told,) = environment.differences(captured, captured.model_copy(update={name: value}))
    assert told.startswith(f"{name}: ") and told.endswith(f" -> {value}")


@pytest.mark.parametrize("change", [{"name": "A100"}, {"driver": "2"}])
def test_another_gpu_or_driver_is_a_difference_and_its_temperature_is_none(
    captured: Environment, change: dict[str, str]
) -> None:
    gpu = Gpu(index=0, name="H200", driver="1", temperature_c=30)
    with_gpu = captured.model_copy(update={"gpus": [gpu]})
    hotter = captured.model_copy(update={"gpus": [gpu.model_copy(update={"temperature_c": 80})]})
    other = captured.model_copy(update={"gpus": [gpu.model_copy(update=change)]})
    assert environment.differences(with_gpu, hotter) == []
    assert environment.differences(with_gpu, other) == ["GPUs or their driver"]
    assert environment.differences(with_gpu, captured) == ["GPUs or their driver"]
