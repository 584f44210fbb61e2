"""An exported folder is called like the model: with tensors or arrays, and without torch where it needs none."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bakeoff
from bakeoff.shipping import export
from tests.shipping.conftest import BUILDING

WITHOUT_TORCH = """
import sys, time
before = time.perf_counter()
sys.modules["torch"] = None
import numpy
import bakeoff
fast = bakeoff.load(sys.argv[1])
given = numpy.load(sys.argv[1] + "/sample.npz")
answer = fast(given["input_0"])
assert type(answer) is numpy.ndarray
print(numpy.abs(answer - given["output_0"]).max(), "pydantic" in sys.modules)
"""


@pytest.fixture(scope="session")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of all builds of the run."""
    folder = tmp_path_factory.mktemp("exported")
    for label in BUILDING:
        export.export(run, label, folder / label)
    return {label: folder / label for label in BUILDING}


def sample_of(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.load(folder / "sample.npz") as arrays:
        return arrays["input_0"], arrays["output_0"]


@pytest.mark.parametrize("label", BUILDING)
def test_it_answers_arrays_with_arrays_and_tensors_with_tensors(exported: dict[str, Path], label: str) -> None:
    fast = bakeoff.load(exported[label])
    given, expected = sample_of(exported[label])
    tensor = torch.from_numpy(given)
    assert list(inspect.signature(fast).parameters) == ["input"]
    assert isinstance(fast(given), np.ndarray)
    np.testing.assert_allclose(fast(given), expected, atol=1e-5)
    for answer in (fast(tensor), fast(input=tensor), fast(tensor.clone().requires_grad_(True))):
        assert type(answer) is torch.Tensor and not answer.requires_grad
        np.testing.assert_allclose(answer.numpy(), expected, atol=1e-5)
    spread = torch.empty(*tensor.shape, 2)[..., 0].copy_(tensor)
    np.testing.assert_allclose(fast(spread).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("label", BUILDING)
def test_no_call_overwrites_the_answer_of_another(exported: dict[str, Path], label: str) -> None:
    fast = bakeoff.load(exported[label])
    given, expected = sample_of(exported[label])
    first = fast(given)
    fast(np.zeros_like(given))
    np.testing.assert_allclose(first, expected, atol=1e-5)


def test_what_is_not_served_says_what_is_and_goes_to_a_fallback_if_there_is_one(exported: dict[str, Path]) -> None:
    fast = bakeoff.load(exported["onnx"])
    serves = r"this build serves 'input': float32 \(4, 64\)"
    with pytest.raises(bakeoff.NotServed, match=rf"'input' is float32 \(2, 64\), and {serves}"):
        fast(torch.zeros(2, 64))
    with pytest.raises(bakeoff.NotServed, match=rf"'input' is float64 \(4, 64\), and {serves}"):
        fast(np.zeros((4, 64)))
    with pytest.raises(bakeoff.NotServed, match="'input' is a float: give a tensor or an array"):
        fast(1.0)
    with pytest.raises(TypeError, match="missing a required argument: 'input'"):
        fast()
    calls: list[Any] = []
    fast = bakeoff.load(exported["onnx"], fallback=lambda *args, **kwargs: calls.append((args, kwargs)))
    fast(np.zeros((4, 64), np.float32))
    assert (fast.fallback_calls, calls) == (0, [])
    fast(input=np.zeros((4, 64)))
    fast(1.0)
    assert fast.fallback_calls == len(calls) == 2
    assert list(calls[0][1]) == ["input"]


@pytest.mark.parametrize("label", ["onnx", "openvino"])
def test_a_folder_that_needs_no_torch_imports_none(exported: dict[str, Path], label: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(exported[label])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    error, has_pydantic = done.stdout.split()
    assert float(error) < 1e-5 and has_pydantic == "False"


def test_another_folder_is_refused(tmp_path: Path, exported: dict[str, Path]) -> None:
    with pytest.raises(bakeoff.UsageError, match="is no folder that `bakeoff export` wrote"):
        bakeoff.load(tmp_path)
    with pytest.raises(bakeoff.UsageError, match="was built for cpu, and does not run on cuda"):
        bakeoff.load(exported["onnx"], device="cuda")
