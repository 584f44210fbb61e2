"""Which operations are recorded, and how often."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bakeoff_hotpath import HotPathDetector
from bakeoff_hotpath.watching import MAX_CONSTANT_ELEMENTS, Recorder, WatchBudget, record

SOURCES = Path(__file__).parents[1] / "src"


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.function = function

    def forward(self, *rows: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight, *rows)


def recorded(function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> tuple[str | None, Recorder]:
    """The detector's signature of a call, and what was recorded."""
    detector, module = HotPathDetector(), Function(function)
    with torch.no_grad():
        _, recorder = record(detector, module, module.forward, rows, {})
    return detector.signature, recorder


ONES, TWOS = torch.ones(3), 2 * torch.ones(3)


def test_the_same_call_has_the_same_fingerprint_whatever_its_values() -> None:
    first, second = (recorded(lambda weight, rows: (rows * 2 + weight).relu(), rows) for rows in (ONES, TWOS))
    assert first[0] == second[0] and first[1].fingerprint == second[1].fingerprint
    assert first[1].operations == 3


@pytest.mark.parametrize(
    "other",
    [
        lambda weight, one, two: (one * 3 + two) * weight,  # another constant
        lambda weight, one, two: (two * 2 + one) * weight,  # the other input
        lambda weight, one, two: (one * 2 + two) * one,  # no weight
        lambda weight, one, two: (one * 2 + two) * torch.ones(3),  # a constant in its place
    ],
)
def test_another_computation_has_another_fingerprint(other: Callable[..., torch.Tensor]) -> None:
    _, first = recorded(lambda weight, one, two: (one * 2 + two) * weight, ONES, TWOS)
    _, second = recorded(other, ONES, TWOS)
    assert first.fingerprint != second.fingerprint


def test_the_values_of_a_constant_are_part_of_the_fingerprint() -> None:
    def times(constant: torch.Tensor) -> str:
        return recorded(lambda weight, rows: rows * constant, ONES)[1].fingerprint

    assert times(torch.tensor([1.0, 2.0, 3.0])) == times(torch.tensor([1.0, 2.0, 3.0]))
    assert times(torch.tensor([1.0, 2.0, 3.0])) != times(torch.tensor([1.0, 2.0, 4.0]))


def test_the_signature_is_of_operators_and_shapes_only() -> None:
    (first, _), (second, _), (third, _) = (
        recorded(lambda weight, rows: rows * 2, ONES),
        recorded(lambda weight, rows: rows * 3, ONES),
        recorded(lambda weight, rows: rows * 2, torch.ones(4)),
    )
    assert first == second != third


def test_drawing_random_numbers_is_an_obstacle() -> None:
    drawing = recorded(lambda weight, rows: torch.nn.functional.dropout(rows), ONES)[1]
    assert drawing.obstacle == "it draws random numbers, and compiled code would draw others"
    assert recorded(lambda weight, rows: rows.relu(), ONES)[1].obstacle == ""


def test_attention_draws_only_with_dropout() -> None:
    heads = torch.ones(1, 2, 4, 8)

    def attention(dropout: float) -> str:
        attend = torch.nn.functional.scaled_dot_product_attention
        return recorded(lambda weight, rows: attend(rows, rows, rows, dropout_p=dropout), heads)[1].obstacle

    assert torch.Tag.nondeterministic_seeded in torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default.tags
    assert attention(0.0) == ""
    assert "draws random numbers" in attention(0.5)


def test_reading_a_value_out_of_a_tensor_is_an_obstacle() -> None:
    for read in (lambda rows: rows.sum().item(), lambda rows: rows.sum() > 0 and 1.0):
        assert (
            "reads values out of tensors"
            in recorded(lambda weight, rows, read=read: rows * read(rows), ONES)[1].obstacle
        )
    assert recorded(lambda weight, rows: rows.relu(), ONES)[1].obstacle == ""


def test_a_large_tensor_of_unknown_origin_is_an_obstacle() -> None:
    table = torch.ones(3, MAX_CONSTANT_ELEMENTS)
    large = recorded(lambda weight, rows: rows @ table, ONES)[1].obstacle
    assert large.startswith(f"it uses a tensor of {3 * MAX_CONSTANT_ELEMENTS} elements") and "as a buffer" in large
    small = table[:, :4].clone()
    assert recorded(lambda weight, rows: rows @ small, ONES)[1].obstacle == ""
    assert recorded(lambda weight, rows, given: rows @ given, ONES, table)[1].obstacle == ""


class Remembering(torch.nn.Module):
    def __init__(self, change: Callable[[torch.nn.Module, torch.Tensor], object]) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.calls = 1000
        self.losses: list[torch.Tensor] = []
        self.change = change

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.change(self, rows)
        return self.inner(rows)


def count(module: torch.nn.Module, rows: torch.Tensor) -> None:
    module.calls += 1


def keep_loss(module: torch.nn.Module, rows: torch.Tensor) -> None:
    module.inner.aux_loss = rows.sum()


def update_mean(module: torch.nn.Module, rows: torch.Tensor) -> None:
    module.mean = 0.9 * module.mean + rows


@pytest.mark.parametrize(
    ("change", "which"),
    [
        (count, "calls of Remembering"),
        (keep_loss, "aux_loss of Linear"),
        (lambda module, rows: module.losses.append(rows.sum()), "losses of Remembering"),
        (lambda module, rows: delattr(module, "calls"), "calls of Remembering"),
        (update_mean, "_buffers of Remembering"),
        (lambda module, rows: None, ""),
    ],
)
def test_a_forward_that_changes_its_module_is_an_obstacle(
    change: Callable[[torch.nn.Module, torch.Tensor], object], which: str
) -> None:
    module = Remembering(change)
    with torch.no_grad():
        _, recorder = record(HotPathDetector(), module, module.forward, (ONES,), {})
    expected = f"its forward changes the attribute {which}, which compiled code would not" if which else ""
    assert recorder.obstacle == expected


def test_values_returned_beside_tensors_are_part_of_the_fingerprint() -> None:
    def returning(extra: object) -> Recorder:
        return recorded(lambda weight, rows: {"rows": rows * weight, "extra": extra}, ONES)[1]  # type: ignore[arg-type, return-value]

    assert returning(1).fingerprint == returning(1).fingerprint != returning(2).fingerprint
    assert returning("done").obstacle == "" and returning(None).obstacle == ""
    assert returning(Wrapping(ONES)).obstacle == "it returns a Wrapping, which compiled code cannot make"


class Wrapping:
    """A result that holds a tensor where nobody finds it."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


def test_an_iteration_that_raises_is_abandoned() -> None:
    detector, module = HotPathDetector(), Function(lambda weight, rows: rows @ rows[:2])
    with torch.no_grad(), pytest.raises(RuntimeError):
        record(detector, module, module.forward, (torch.ones(3, 3),), {})
    assert detector.signature is None
    detector.begin_iteration()


@pytest.mark.slow
def test_recording_does_not_import_a_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from bakeoff_hotpath import HotPathDetector\n"
        "from bakeoff_hotpath.watching import record\n"
        "module = torch.nn.Linear(2, 2)\n"
        "with torch.no_grad(): record(HotPathDetector(), module, module.forward, (torch.ones(1, 2),), {})\n"
        "found = [name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SOURCES, check=True)


class TestBudget:
    def test_nothing_is_watched_before_a_plain_call_was_timed(self) -> None:
        assert not WatchBudget().wants_to_watch()

    def test_the_first_watched_call_is_paid_for_by_those_before_it(self) -> None:
        budget = WatchBudget(share=0.05, first_costs=20)
        budget.add_plain(1e-3)
        plain = 1
        while not budget.wants_to_watch():
            budget.add_plain(1e-3)
            plain += 1
        assert 400 <= plain <= 401  # 20 ms are 5 % of 400 ms, which is no sum of floating-point milliseconds

    def test_a_slow_first_call_pays_too(self) -> None:
        budget = WatchBudget(share=0.05, first_costs=20)
        budget.add_plain(0.5)
        budget.add_plain(1e-3)
        assert budget.wants_to_watch()

    @pytest.mark.parametrize("watched_s", [1.1e-3, 5e-3, 50e-3])
    def test_the_share_is_kept_whatever_watching_costs(self, watched_s: float) -> None:
        budget = WatchBudget(share=0.05, first_costs=20)
        plain_s = extra_s = 0.0
        for _ in range(100_000):
            if budget.wants_to_watch():
                budget.add_watched(watched_s)
                extra_s += watched_s - 1e-3
            else:
                budget.add_plain(1e-3)
                plain_s += 1e-3
        # the first one was bought before its price was known
        assert budget.watched > 1 and extra_s - watched_s <= 0.05 * plain_s
        assert budget.extra_s == pytest.approx(extra_s)

    def test_the_gaps_double(self) -> None:
        budget = WatchBudget(share=0.5, first_costs=1)
        watched_at = []
        for number in range(200):
            if budget.wants_to_watch():
                budget.add_watched(1e-3)
                watched_at.append(number)
            else:
                budget.add_plain(1e-3)
        gaps = [later - earlier for earlier, later in itertools.pairwise(watched_at)]
        assert gaps == sorted(gaps) and gaps[-1] >= 2 * gaps[-2] - 1

    def test_calls_between_two_that_were_timed_count_as_usual_ones(self) -> None:
        budget = WatchBudget(share=0.05, first_costs=20)
        budget.add_plain(1e-3, iterations=399)
        assert not budget.wants_to_watch()
        budget.add_plain(1e-3, iterations=2)
        assert budget.wants_to_watch()

    def test_one_slow_call_does_not_make_the_calls_before_it_slow(self) -> None:
        budget = WatchBudget(share=0.05, first_costs=20)
        budget.add_plain(1e-3)
        budget.add_plain(0.05, iterations=255)
        assert budget.plain_s == pytest.approx(0.05 + 255e-3)

    def test_a_share_lies_between_zero_and_one(self) -> None:
        with pytest.raises(ValueError, match="share must be between 0 and 1, not 1"):
            WatchBudget(share=1)
