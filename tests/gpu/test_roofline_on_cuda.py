"""The ceilings of a GPU, and that the work is counted as on the CPU."""

import time

import pytest
import torch

from bakeoff import models
from bakeoff.measuring.worker import ceilings, loading
from bakeoff.measuring.worker import precision as precisions
from bakeoff.measuring.worker.counting import count
from bakeoff.records.device import Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", list(Precision))
def test_ceilings_are_measured_in_seconds_and_are_a_gpus(precision: Precision, restored_switches: None) -> None:
    if precision is Precision.FP8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    ceilings.measure(Device("cuda"), precision)  # cuBLAS starts
    begun = time.monotonic()
    precisions.apply(precision)
    found = ceilings.measure(Device("cuda"), precision)
    print(precision, f"{found.flops_per_s:.3g} FLOP/s, {found.bytes_per_s:.3g} B/s")  # noqa: T201 - for the record
    assert time.monotonic() - begun < 3
    assert 1e12 < found.flops_per_s < 1e16
    assert 1e11 < found.bytes_per_s < 2e13


def test_a_cache_is_faster_than_the_memory_behind_it() -> None:
    found = ceilings.measure(Device("cuda"), Precision.FP32)
    for level in found.levels:
        print(f"{level.working_set_bytes >> 20} MiB at {level.bytes_per_s:.3g} B/s")  # noqa: T201 - for the record
    rates = [level.bytes_per_s for level in found.levels]
    assert rates == sorted(rates, reverse=True)
    assert found.cache_bytes > 2**20
    assert found.levels[-1].working_set_bytes > 4 * found.cache_bytes
    assert 1.1 * rates[-1] < rates[0] < 100 * rates[-1]


def test_small_types_are_faster_than_float32(restored_switches: None) -> None:
    rates = {}
    for precision in (Precision.FP32, Precision.TF32, Precision.BF16, Precision.FP16):
        precisions.apply(precision)
        rates[precision] = ceilings.measure(Device("cuda"), precision).flops_per_s
    assert all(rates[precision] > 2 * rates[Precision.FP32] for precision in rates if precision is not Precision.FP32)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_a_large_product_is_near_the_rate_of_the_tensor_cores(precision: Precision, restored_switches: None) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("held against what a Hopper's tensor cores do")
    precisions.apply(precision)
    found = ceilings.measure(Device("cuda"), precision)
    assert found.tensor_cores is not None
    share = found.flops_per_s / found.tensor_cores.flops_per_s
    print(precision, found.tensor_cores, f"a product reaches {share:.1%}")  # noqa: T201 - for the record
    assert 0.30 < share < 1.05


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
def test_the_work_is_the_same_as_on_the_cpu(name: str, precision: Precision) -> None:
    family = models.find(name)
    dimensions = family.resolve({})
    counted = []
    for device in ("cpu", "cuda"):
        cell = Cell(model=name, dimensions=dimensions, device=device, precision=precision, backend="eager")
        with torch.inference_mode():
            module, sets = loading.move_to_device(loading.load(cell), cell)
            counted.append(count(module, sets[0], precision))
    assert counted[0] == counted[1]
