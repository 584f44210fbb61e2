"""Buckets: what is padded, what is cut off again, and which models they are for."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends.buckets import Buckets
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import built


class Masked(nn.Module):
    """A value for each token and a mean over the tokens that count, so that padding changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, tokens: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
        each = self.linear(tokens)
        counted = each * mask[..., None]
        return {"each": each, "mean": counted.sum(1) / mask.sum(1, keepdim=True)}


def of_length(length: int, batch: int = 2) -> Inputs:
    return Inputs((torch.randn(batch, length, 8),), {"mask": torch.ones(batch, length)})


@pytest.mark.parametrize(("length", "bucket"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 12), (12, 12)])
def test_padding_goes_to_the_next_power_of_two_or_the_largest_size(length: int, bucket: int) -> None:
    seen: list[tuple[int, ...]] = []

    def doubled(tensor: Tensor) -> Tensor:
        seen.append(tuple(tensor.shape))
        return 2 * tensor

    buckets = Buckets(doubled, [Inputs((torch.ones(2, each, 3),)) for each in (12, 1, 7)])
    seen.clear()
    given = torch.randn(2, length, 3)
    torch.testing.assert_close(buckets.around(doubled)(given), (2 * given,))
    assert seen == [(2, bucket, 3)]


def test_every_input_that_varies_is_padded_and_only_outputs_that_vary_are_cut() -> None:
    module, sets = Masked(), [of_length(length) for length in (5, 3, 11)]
    around = Buckets(module, sets).around(module)
    for one in sets:
        torch.testing.assert_close(around(*one.args, **one.kwargs), tuple(module(*one.args, **one.kwargs).values()))


@pytest.mark.parametrize(
    ("module", "lengths", "reason"),
    [
        (nn.ReLU(), (4, 4), "are for inputs of several sizes"),
        (lambda tensor: tensor[:, 1:], (4, 6), "padding cannot be cut off axis 1 of output 0"),
    ],
)
def test_what_buckets_are_not_for_says_why(module: nn.Module, lengths: tuple[int, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        Buckets(module, [Inputs((torch.ones(2, length, 3),)) for length in lengths])


@pytest.mark.slow
def test_any_model_with_a_stream_of_sizes_is_built_for_its_buckets(tmp_path: Path) -> None:
    sets = tuple(of_length(length) for length in (5, 3, 11, 7, 6))
    with built(Cell(model="own", backend="inductor", mode="buckets"), tmp_path, LoadedModel(Masked(), sets)) as one:
        for inputs in one.sets:
            torch.testing.assert_close(one.call(inputs), one.eager(inputs))
        placement = one.compiled.placement()
    assert placement is not None and placement.engines["inductor graphs"] == 3  # for 4, 8 and 11
