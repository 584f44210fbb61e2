"""A package of AOTInductor is exported with a program in C++ that builds, checks it and measures it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bakeoff import backends
from bakeoff.backends.standalone import CppRuntime
from bakeoff.backends.torchscript import TorchScript
from bakeoff.records import report_file
from bakeoff.records.device import CPU
from bakeoff.records.errors import UsageError
from bakeoff.shipping import cpp_program, export
from bakeoff.shipping.cpp_program import BuildFailed
from bakeoff.shipping.export import Format
from bakeoff.shipping.sample_facts import Sample, SampleOutput
from tests.shipping.conftest import SMALL, record_of, report_on, runtime_of
from tests.support.measuring import measure

SAMPLE = Sample(
    inputs=("int64", "bfloat16"),
    input_shapes=((2, 8), ()),
    outputs=(SampleOutput(shape=(100,), type="float32", allowed=1e-5),),
)


def written(folder: Path, label: str = "aotinductor", sample: Sample = SAMPLE, **fields: Any) -> str:
    """Write the program for a record, and return its text."""
    folder.mkdir()
    arrays = {"output_0": np.ones(10), "places_0": np.arange(10), "input_0": np.ones((2, 8), np.int64)}
    np.savez(folder / "sample.npz", facts=np.array("{}"), **arrays)
    record = record_of(label, **fields)
    runtime = runtime_of(record)
    if runtime.triton and runtime.triton.names:  # there is no artefact to read them from
        runtime = replace(runtime, triton=replace(runtime.triton, names=lambda path: (["a", "b"], ["c"])))
    return (folder / cpp_program.write(report_on(record), record, runtime, sample, folder, "model.pt2")).read_text()


def test_the_program_reads_the_sample_as_raw_numbers(tmp_path: Path) -> None:
    program = written(tmp_path / "new")
    assert "at::from_blob(inputs.at(0).data(), { 2, 8 }, at::kLong)" in program
    assert "at::from_blob(inputs.at(1).data(), {  }, at::kBFloat16)" in program
    assert 'numbers<int64_t>(folder + "/sample/places_0.bin")' in program
    assert "CUDA" not in program
    assert np.fromfile(tmp_path / "new" / "sample" / "places_0.bin", np.int64).tolist() == list(range(10))
    assert "CMAKE_CXX_STANDARD 20" in (tmp_path / "new" / "CMakeLists.txt").read_text()


def test_on_a_gpu_it_waits_for_the_device(tmp_path: Path) -> None:
    program = written(tmp_path / "new", cell={"device": "cuda:1", "mode": "single-threaded"})
    assert '"model", true, 1, 1);' in program
    assert "getCurrentCUDAStream(1).synchronize()" in program
    assert ".to(at::Device(at::kCUDA, 1))" in program


def test_other_builds_are_refused() -> None:
    with pytest.raises(UsageError, match="only that of onnx, aotinductor, openvino has a program"):
        cpp_program.require(record_of("torchscript"), TorchScript().runtime(CPU))


def test_onnx_runtime_gets_names_types_and_memory(tmp_path: Path) -> None:
    sample = SAMPLE.model_copy(update={"inputs": ("int64", "bool")})
    program = written(tmp_path / "new", "onnx", sample)
    assert "add(inputs_, memory, inputs.at(0).data(), inputs.at(0).size(), { 2, 8 }, 7);" in program
    assert "buffers_[0].resize(400);" in program and "call(SET_INTRA_OP_NUM_THREADS, options, 2);" in program
    with pytest.raises(UsageError, match="no type bfloat16 in the program"):
        written(tmp_path / "refused", "onnx", SAMPLE)


def test_a_program_that_does_not_build_says_why(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.18)\nno_such_command()\n")
    with pytest.raises(BuildFailed, match=r"^it could not be built: .*CMake Error"):
        cpp_program.build(tmp_path, CppRuntime("onnxruntime", "NOWHERE", "print()"))


def built(label: str, run: Path, folder: Path) -> list[str]:
    """Export and build the program of a cell, and return the command that runs it."""
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
    check(built(label, run, tmp_path / "program"), tmp_path / "program")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_program_of_aotinductor_builds_and_finds_its_package_right(tmp_path: Path) -> None:
    report_file.write_json(measure(tmp_path / "run", "aotinductor", set=SMALL), tmp_path / "run")
    check(built("aotinductor", tmp_path / "run", tmp_path / "program"), tmp_path / "program")
