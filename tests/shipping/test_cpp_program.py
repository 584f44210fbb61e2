"""A package of AOTInductor is exported with a program in C++ that builds, checks it and measures it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bakeoff.backends.aotinductor import AOTInductor
from bakeoff.records import report_file
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import UsageError
from bakeoff.shipping import cpp_program, export
from bakeoff.shipping.export import Format
from bakeoff.shipping.sample_facts import Sample, SampleOutput
from tests.reports import samples
from tests.shipping.conftest import SMALL
from tests.shipping.test_triton_server import record_of
from tests.support.measuring import measure

SAMPLE = Sample(
    inputs=("int64", "bfloat16"),
    input_shapes=((2, 8), ()),
    outputs=(SampleOutput(shape=(100,), type="float32", allowed=1e-5),),
)


def written(folder: Path, **fields: Any) -> str:
    """Write the program for a record, and return its text."""
    folder.mkdir()
    arrays = {"output_0": np.ones(10), "places_0": np.arange(10), "input_0": np.ones((2, 8), np.int64)}
    np.savez(folder / "sample.npz", facts=np.array("{}"), **arrays)
    record = record_of("aotinductor", **fields)
    report = samples.report([record], environment=samples.environment())
    runtime = AOTInductor().runtime(CPU)
    return (folder / cpp_program.write(report, record, runtime, SAMPLE, folder, "model.pt2")).read_text()


def test_the_program_reads_the_sample_as_raw_numbers(tmp_path: Path) -> None:
    program = written(tmp_path / "new")
    assert 'read(folder + "/sample/input_0.bin", { 2, 8 }, at::kLong),' in program
    assert 'read(folder + "/sample/input_1.bin", {  }, at::kBFloat16),' in program
    assert 'index_select(0, read(folder + "/sample/places_0.bin", { 10 }, at::kLong))' in program
    assert "CUDA" not in program
    assert np.fromfile(tmp_path / "new" / "sample" / "places_0.bin", np.int64).tolist() == list(range(10))
    assert "CMAKE_CXX_STANDARD 20" in (tmp_path / "new" / "CMakeLists.txt").read_text()


def test_on_a_gpu_it_waits_for_the_device(tmp_path: Path) -> None:
    program = written(tmp_path / "new", cell={"device": "cuda:1", "mode": "single-threaded"})
    assert '"model", true, 1, 1);' in program
    assert "getCurrentCUDAStream(1).synchronize()" in program
    assert ".to(at::Device(at::kCUDA, 1))" in program


def test_other_builds_are_refused() -> None:
    from bakeoff.backends.onnx import Onnx

    with pytest.raises(UsageError, match="only AOTInductor's package has a program in C"):
        cpp_program.require(record_of("onnx"), Onnx().runtime(CPU), captures=False)
    runtime = AOTInductor().runtime(Device("cuda"))
    with pytest.raises(UsageError, match="its CUDA graph is made in the process that serves it"):
        cpp_program.require(record_of("aotinductor"), runtime, captures=True)


@pytest.mark.slow
def test_the_program_builds_and_finds_the_package_right_and_a_wrong_one_wrong(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    report_file.write_json(measure(tmp_path / "run", "aotinductor", set=SMALL), tmp_path / "run")
    folder = tmp_path / "program"
    export.export(tmp_path / "run", "aotinductor", folder, Format.CPP)
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(["cmake", "-B", folder / "build", "-S", folder, prefix], check=True, timeout=120)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, timeout=600)
    program = [folder / "build" / "shipped", folder]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    right, median = done.stdout.splitlines()
    assert re.fullmatch(r"output 0 is right: its RMSE is \S+, and \S+ is allowed", right)
    assert re.fullmatch(r"median latency \S+ ms; in the report \S+ ms", median)
    expected = folder / "sample" / "output_0.bin"
    (np.fromfile(expected) + 1e-3).tofile(expected)
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "output 0 is wrong: its RMSE is 0.001" in done.stdout
