"""Hand-written kernels and surgical compilation on a GPU are right."""

import importlib
from pathlib import Path

import pytest
import torch

from bakeoff.backends import kernels
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import built
from tests.gpu.test_cuda import measure_on_cuda
from tests.support.measuring import by_label

pytestmark = pytest.mark.gpu

PRECISION = {"matmul_fp16": "fp16"}
MULTIPLES = {
    "fused_add_relu_mul": {"elements": "1000003"},
    "matmul_fp16": {"m": "528", "n": "784", "k": "272"},
    "matmul_fp8": {"m": "528", "n": "784", "k": "272"},
    "rope": {"batch": "3", "seq": "77", "heads": "4", "width": "64"},
    "tma_copy": {"rows": "1001", "columns": "272"},
}
"""Sizes that are not multiples of any block."""

ROUNDING = {"fp16": 6e-4, "bf16": 5e-3}


def cell_of(model: str) -> Cell:
    asked = PRECISION.get(model, "bf16")
    request = Request(
        models=(model,),
        backends=("triton",),
        devices=("cuda",),
        precision=(asked,),
        set={name: (value,) for name, value in MULTIPLES[model].items()},
    )
    (contest,) = plan(request)
    return next(planned.cell for planned in contest.cells if planned.cell.backend == "triton")


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("model", kernels.TABLE)
def test_every_variant_that_this_gpu_runs_is_right(model: str) -> None:
    """A GPU before Hopper lacks descriptors, and has too little shared memory for the largest variants."""
    from triton.runtime.errors import OutOfResources, PTXASError

    cell = cell_of(model)
    kernel = importlib.import_module(kernels.TABLE[model].module)
    has_descriptors = torch.cuda.get_device_capability() >= (9, 0)
    ran = 0
    with torch.inference_mode():
        exact_module, exact_sets = move_to_device(load(cell), cell, torch.float64)
        exact = exact_module(*exact_sets[0].args)
        module, sets = move_to_device(load(cell), cell)
        for variant in kernel.VARIANTS:
            if variant["loads"] == "descriptor" and not has_descriptors:
                continue
            launch = kernel.prepare(module, sets[0].tensors(), variant)
            try:
                launch.run()
            except (OutOfResources, PTXASError):
                assert torch.cuda.get_device_capability() != (9, 0), variant
                continue
            torch.cuda.synchronize()
            for ours, truth in zip(launch.outputs, exact if isinstance(exact, tuple) else (exact,), strict=True):
                assert ours.dtype == dtype_of(cell.precision)
                assert relative_error(ours, truth) < ROUNDING[cell.precision], variant
            ran += 1
    if not ran:
        pytest.skip("its kernels all need tensor descriptors: compute capability 9.0")


@pytest.mark.parametrize("mode", ["default", "cuda-graph"])
def test_the_fastest_variant_is_chosen_and_kept_for_later_processes(tmp_path: Path, mode: str) -> None:
    cell = cell_of("fused_add_relu_mul").model_copy(update={"mode": mode})
    with built(cell, tmp_path) as first:
        chosen = first.compiled.settings()
        assert "tried" in chosen and str(chosen["chosen"]).startswith("the fastest of")
    with built(cell, tmp_path) as second:
        for inputs in second.sets:
            torch.testing.assert_close(second.call(inputs), second.eager(inputs), rtol=1.6e-2, atol=1e-2)
        settings = second.compiled.settings()
    assert settings["chosen"] == "by the cell's first process"
    assert (settings["block"], settings["warps"]) == (chosen["block"], chosen["warps"])


def test_a_rotary_embedding_is_measured_by_a_kernel_and_by_a_compiler(tmp_path: Path) -> None:
    report = measure_on_cuda(tmp_path / "run", "eager", "inductor", "triton", models=["rope"], precision=["bf16"])
    assert [record.reason for record in report.records] == [""] * 3


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
    reason="float8 products need compute capability 8.9",
)
def test_surgery_on_a_float8_decoder_is_right_and_told(tmp_path: Path) -> None:
    sizes = {"layers": ("1",), "linears": ("torch",)}
    report = measure_on_cuda(
        tmp_path / "run", "eager", "inductor/surgical", models=["fp8_transformer"], precision=["bf16"], set=sizes
    )
    found = by_label(report)
    surgical = found["inductor/surgical"]
    assert surgical.placement is not None and surgical.placement.extent is Extent.PARTIAL
    assert any("_scaled_mm stayed eager (4)" in fallback for fallback in surgical.placement.fallbacks)
    assert "layers.0.rope" in str(surgical.settings["compiled_modules"])
    for record in found.values():
        assert record.accuracy is not None and record.accuracy.relative_rmse < 0.05
        assert record.memory is not None and (record.memory.peak_device_bytes or 0) > 0
