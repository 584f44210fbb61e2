"""The energy of calls on a GPU, by its own counter."""

import time

import pytest
import torch

from bakeoff.backends.base import Compiled
from bakeoff.measuring.worker import energy
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device

pytestmark = pytest.mark.gpu


def test_the_energy_of_large_products_is_resolved_within_seconds() -> None:
    class Products(Compiled):
        def __init__(self) -> None:
            self.left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

        def bind(self, inputs: Inputs) -> None:
            """There is nothing to bind."""

        def run(self) -> None:
            self.result = self.left @ self.left

        def outputs(self) -> tuple[torch.Tensor, ...]:
            return (self.result,)

    device = Device("cuda:0")
    clock, counter = Clock(device), energy.counter_for(device)
    begun_s = time.monotonic()
    with clock.on_stream():
        found = energy.measure(Products(), [Inputs(())], clock, counter)
    if found is None:
        pytest.skip("NVML counts no energy here")
    print(found)  # noqa: T201 - for the record
    assert time.monotonic() - begun_s < 6
    assert found.resolved_j is not None and found.ci95 is not None
    assert found.ci95.high - found.ci95.low < 0.3 * found.joules_per_call
