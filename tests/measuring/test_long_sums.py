"""The longest sum of a call is found, whatever operator makes it."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from bakeoff.measuring.worker.counting import LongestSum


@pytest.mark.parametrize(
    ("call", "length"),
    [
        (lambda x: x.sum(1), 1000),
        (lambda x: x.mean(), 4000),
        (lambda x: x.var(0), 4),
        (lambda x: functional.mse_loss(x, x + 1), 4000),
        (lambda x: x.norm(dim=1), 1000),
        (lambda x: x.cumsum(1), 1000),
        (lambda x: x @ x.T, 1),
        (lambda x: x.relu(), 1),
        (lambda x: x[:0].sum(1).sum(), 1),
    ],
)
def test_the_longest_sum_is_found(call: Callable[[torch.Tensor], torch.Tensor], length: int) -> None:
    with torch.inference_mode(), LongestSum() as sums:
        call(torch.rand(4, 1000))
    assert sums.length == length


def written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4)
    y[:2].copy_(x.sum().expand(2))
    return y


@pytest.mark.parametrize(
    ("call", "lengths"),
    [
        (lambda x: (x.relu(), x.sum()), [1, 4000]),
        (lambda x: (x / x.sum(1, keepdim=True), x.max(), x.sum(0)), [1000, 1, 4]),
        (lambda x: (written(x), x[:2], x.mean().view(1)[0] * 2), [4000, 1, 4000]),
        (lambda x: (x * 2, x * x.sum().item()), [1, 4000]),
        (lambda x: (x.to_sparse(), x.sum(), x * 2), [4000, 4000, 1]),  # the first one's memory is not known
    ],
)
def test_the_longest_sum_of_each_output_is_found(
    call: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], lengths: list[int]
) -> None:
    with torch.inference_mode(), LongestSum() as sums:
        outputs = call(torch.rand(4, 1000))
    assert [sums.of([output]) for output in outputs] == lengths
