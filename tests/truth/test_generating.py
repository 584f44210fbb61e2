"""Whole generations are compared token for token, and leave their inputs as they were."""

import pytest
import torch

from bakeoff.backends.eager import Callables
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, Cell
from bakeoff.truth.generating import Greedy, WithCaches, compare, generate, steps_in_place

ROWS, WIDTH = 6, 3


class Counter(torch.nn.Module):
    """A step of a model whose next token is always one more, up to 4. Its cache remembers the tokens."""

    def __init__(self, in_place: bool, wrong_at: int = -1) -> None:
        super().__init__()
        self.in_place, self.wrong_at = in_place, wrong_at

    def forward(self, token: torch.Tensor, position: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        following = (token + 1) % 5 if int(position) != self.wrong_at else token
        logits = torch.nn.functional.one_hot(following[:, 0], 5) * 2.0
        row = token.to(cache.dtype).view(-1, 1, 1, 1).expand(-1, 1, 1, WIDTH)
        if self.in_place:
            cache[:, :, int(position)] = row[:, :, 0]
            return (logits,)
        updated = cache.clone()
        updated[:, :, int(position)] = row[:, :, 0]
        return logits, updated


def sets_of_steps() -> tuple[Inputs, ...]:
    cache = torch.zeros(1, 1, ROWS, WIDTH)
    return tuple(Inputs((torch.tensor([[1]]), torch.tensor([place]), cache)) for place in (5, 4, 3, 2))


def cell(task: str) -> Cell:
    return Cell(model="transformer_lm", dimensions={"prompt": 2, "new_tokens": 4}, task=task, backend="eager")


def generated(step: Counter, sets: tuple[Inputs, ...]) -> Greedy:
    compiled = WithCaches(Callables(step), sets)

    def call(one: Inputs) -> tuple[torch.Tensor, ...]:
        compiled.bind(one)
        compiled.run()
        return compiled.outputs()

    found = generate(call, sets, cell(DECODE))
    assert found is not None
    return found


@pytest.mark.parametrize("in_place", [True, False])
def test_a_generation_feeds_each_token_to_the_next_step_and_restores_its_inputs(in_place: bool) -> None:
    sets = sets_of_steps()
    assert generated(Counter(in_place), sets).tokens == [[2, 3, 4]]
    token, position, cache = sets[-1].args
    assert (int(token), int(position), float(cache.abs().sum())) == (1, 2, 0.0)


def test_the_first_token_that_differs_is_named_with_eagers_margin() -> None:
    eager = generated(Counter(in_place=False), sets_of_steps())
    found = compare(generated(Counter(in_place=True, wrong_at=3), sets_of_steps()), eager)
    assert (found.tokens, found.agreed, found.margin, found.usual_margin) == (3, 1, 2.0, 2.0)
    assert compare(eager, eager).agreed == 3
    in_other_type = compare(eager, eager, generated(Counter(in_place=True, wrong_at=3), sets_of_steps()))
    assert (in_other_type.agreed, in_other_type.agreed_with_first, in_other_type.first) == (3, 1, Precision.FP32)


def test_a_prefill_gives_the_first_token_of_every_sequence() -> None:
    logits = {5: torch.tensor([[0.0, 3.0], [1.0, 0.5]]), 4: torch.tensor([[2.0, 1.0], [0.0, 4.0]])}
    sets = sets_of_steps()[:2]
    found = generate(lambda one: (logits[int(one.args[1])],), sets, cell(PREFILL))
    assert found == Greedy([[1], [0], [0], [1]], [[3.0], [0.5], [1.0], [4.0]], Precision.FP32)
    assert generate(lambda one: (), sets, cell("inference")) is None


def test_a_row_that_a_step_has_written_is_empty_again_after_restore() -> None:
    """So a build that writes nothing, after one call that did, is found."""
    sets = sets_of_steps()
    compiled = WithCaches(Callables(Counter(in_place=True)), sets)
    compiled.bind(sets[0])
    compiled.run()
    _, cache = compiled.outputs()
    assert cache[0, 0, 5].tolist() == [1.0] * WIDTH
    assert compiled.settings()["caches"] == "in place"
    compiled.restore()
    assert not sets[1].args[2].any()


def test_steps_in_place_show_the_rows_that_other_steps_have_written() -> None:
    """The row of the first position is empty where it has not been written in the same call. The caches given stay."""
    sets = sets_of_steps()
    step = Counter(in_place=False)
    caches = [cache for _, cache in steps_in_place(lambda inputs: step(*inputs.args), sets)]
    written = [[place for place in range(ROWS) if cache[0, 0, place].any()] for cache in caches]
    assert written == [[2, 3, 4, 5], [2, 3, 4], [2, 3, 4], [2, 3, 4]]
    assert not any(inputs.args[2].any() for inputs in sets)


def test_generate_is_planned_as_prefill_and_decode_with_the_same_sizes() -> None:
    request = Request(models=("transformer_lm",), backends=("eager",), devices=("cpu",), task="generate")
    contests = plan(request)
    assert [contest.cells[0].cell.task for contest in contests] == [PREFILL, DECODE]
    assert contests[0].cells[0].cell.dimensions == contests[1].cells[0].cell.dimensions
    with pytest.raises(UsageError, match="dimension of transformer_lm 'context'"):
        plan(request.model_copy(update={"set": {"context": ("64",)}}))
