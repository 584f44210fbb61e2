"""Random outputs are compared by their distribution over several calls."""

import pytest
import torch

from bakeoff.records.precision import Precision
from bakeoff.truth.distribution import CALLS, FALSE_ALARM, difference


def drawn(seed: int, *, times: float = 1.0, plus: float = 0.0, elements: int = 40) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(CALLS, elements, generator=generator) < 0.5  # as dropout does
    return {"output": values.double() * 2.1 * times + plus}


def test_right_builds_are_blamed_as_rarely_as_is_said() -> None:
    trials = 60
    blamed = sum(bool(difference(drawn(2 * n), drawn(2 * n + 1), Precision.FP32)) for n in range(trials))
    assert blamed <= 1, f"with {FALSE_ALARM} each, two in {trials} come once in 600 runs of this test"


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (drawn(1, times=0.5), "output has another"),
        (drawn(1, plus=1.0), "output has another mean"),
        ({"output": drawn(1)["output"].mean(0).expand(CALLS, 40)}, "output has another spread"),
        (drawn(1, elements=8), "of another size"),
        ({}, "of another size"),
    ],
)
def test_another_distribution_is_told(ours: dict[str, torch.Tensor], told: str) -> None:
    assert told in difference(ours, drawn(2), Precision.FP32)


def test_rounding_is_no_other_distribution() -> None:
    still = torch.ones(CALLS, 5).double()
    assert difference({"output": still * (1 + 1e-7)}, {"output": still}, Precision.FP32) == ""
    assert "does not vary" in difference({"output": still * 1.01}, {"output": still}, Precision.FP32)
