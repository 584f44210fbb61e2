"""Indices that choose equal values are right, and all others are wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bakeoff.backends.calling import Returned
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy
from bakeoff.truth.accuracy import check
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference

Chosen = Callable[[torch.Tensor], Any]
SCORES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, 2.0], [5.0, 5.0, 4.0, 4.0, 0.0, 1.0]])


class Choosing(nn.Module):
    def __init__(self, choose: Chosen) -> None:
        super().__init__()
        self.choose = choose

    def forward(self, scores: torch.Tensor) -> Any:
        return self.choose(scores * 2)  # an intermediate result, which is not returned


def reference_of(choose: Chosen) -> Reference:
    with torch.inference_mode():
        exact = run_eager(Choosing(choose), (Inputs((SCORES.double(),)),))
        eager = run_eager(Choosing(choose), (Inputs((SCORES,)),))
    return Reference(exact, *errors_of_eager(eager, exact))


def compared(choose: Chosen, *ours: torch.Tensor) -> Accuracy:
    return check([ours], reference_of(choose), Precision.FP32)


def best(scores: torch.Tensor) -> Any:
    return scores.topk(2)


VALUES = best(SCORES * 2).values


@pytest.mark.parametrize("indices", [[[1, 2], [0, 1]], [[4, 2], [1, 0]], [[2, 1], [0, 1]]])
def test_ties_of_a_top_k_are_right_in_any_order(indices: list[list[int]]) -> None:
    found = compared(best, VALUES, torch.tensor(indices))
    assert found.passed and found.rmse == 0
    assert found.rule.startswith("no more than rounding")


@pytest.mark.parametrize(
    "indices",
    [
        [[1, 3], [0, 1]],  # a smaller value
        [[1, 1], [0, 1]],  # the same place twice
        [[1, 6], [0, 1]],  # outside
        [[1, -1], [0, 1]],
    ],
)
def test_indices_of_other_values_are_wrong(indices: list[list[int]]) -> None:
    found = compared(best, VALUES, torch.tensor(indices))
    assert not found.passed and "output.indices" in found.rule


def test_the_rule_says_why_other_indices_are_right() -> None:
    (outputs,) = reference_of(best).outputs
    other = outputs[1].clone()
    other[0] = torch.tensor([4, 1]) if outputs[1][0].tolist() != [4, 1] else torch.tensor([1, 4])
    rule = compared(best, VALUES, other).rule
    assert rule == "no more than rounding; other indices in output.indices, which choose equal values"


@pytest.mark.parametrize(
    ("choose", "other", "wrong"),
    [
        (lambda s: s.argmax(-1), [4, 1], [3, 1]),
        (lambda s: s.long().argmax(-1), [4, 1], [3, 1]),  # among whole numbers
        (lambda s: s.argmax(-1, keepdim=True), [[2], [1]], [[0], [1]]),
        (lambda s: s.argmax(), 7, 1),
        (lambda s: s.argmin(0), [0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 1, 1]),
        (lambda s: s.max(1).indices, [1, 0], [5, 0]),
        (lambda s: s.sort(-1).indices[:, 3:], [[4, 2, 1], [2, 1, 0]], [[4, 2, 0], [2, 1, 0]]),
        (lambda s: s.argsort(-1).to(torch.int32)[:, -1], [1, 1], [0, 1]),
        (lambda s: s.t().argsort(0).t()[:, 5], [2, 0], [3, 0]),
        (lambda s: s.kthvalue(6).indices, [4, 1], [0, 1]),
        (lambda s: nn.functional.max_pool2d(s.view(1, 1, 2, 6), (2, 6), return_indices=True)[1], [[[[7]]]], [[[[1]]]]),
    ],
)
def test_all_that_choose_are_recognised(choose: Chosen, other: Any, wrong: Any) -> None:
    assert compared(choose, torch.tensor(other)).passed
    assert not compared(choose, torch.tensor(wrong)).passed


@pytest.mark.parametrize(
    ("choose", "right"),
    [
        (lambda s: s.argmax(-1), [[4, 0], [2, 1]]),
        (lambda s: s.argsort(-1).argsort(-1), [[[0, 3, 4, 1, 5, 2], [4, 5, 2, 3, 0, 1]]]),  # eager's ranks
    ],
)
def test_a_near_tie_that_rounding_decides_is_right(choose: Chosen, right: list[Any]) -> None:
    def nearly(scores: torch.Tensor) -> Any:
        return choose(scores + torch.tensor([0, 1e-9, 0, 0, 0, 0], dtype=scores.dtype))

    assert all(compared(nearly, torch.tensor(each)).passed for each in right)


@pytest.mark.parametrize(
    ("choose", "wrong"),
    [
        (lambda s: s.argmax(-1) + 1, [5, 2]),  # it is no index any more
        (lambda s: s.sort(dim=-1, stable=True).indices[:, -1], [1, 0]),  # which of equal values comes last is specified
        (lambda s: (s > 5).long().sum(-1), [4, 2]),
        (lambda s: s[:, 0].long(), [2, 11]),
    ],
)
def test_other_whole_numbers_are_exact(choose: Chosen, wrong: list[int]) -> None:
    assert not compared(choose, torch.tensor(wrong)).passed


def test_choices_are_saved_with_the_reference(tmp_path: Path) -> None:
    known = reference_of(best)
    known.save(tmp_path / "reference")
    loaded = Reference.load(tmp_path / "reference")
    assert isinstance(loaded.outputs[0], Returned) and set(loaded.outputs[0].choices) == {".indices"}
    assert check([(VALUES, torch.tensor([[2, 1], [1, 0]]))], loaded, Precision.FP32).passed
    assert not check([(VALUES, torch.tensor([[2, 3], [1, 0]]))], loaded, Precision.FP32).passed
