"""The conformance suite over the two TensorRT backends with fakes of their libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import suite

pytest.importorskip("tests.fakes.tensorrt")  # needs ONNX Runtime


@pytest.mark.slow
def test_they_pass_the_conformance_suite_on_the_cpu(tmp_path: Path) -> None:
    fakes = {"tensorrt-on-cpu": "on_cpu:TensorRTOnCpu", "torch-tensorrt-on-cpu": "on_cpu:TorchTensorRTOnCpu"}
    assert all(passed > 40 for passed in suite.conformance(fakes, tmp_path).values())
