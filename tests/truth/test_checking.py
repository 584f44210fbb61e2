"""Builds of models with traits are judged as eager is: state, random numbers, and choices that a trace froze."""

import copy
import itertools
import json
import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from bakeoff.backends import fast_path
from bakeoff.backends.base import Compiled
from bakeoff.backends.calling import FlatModule
from bakeoff.backends.eager import Callables
from bakeoff.measuring.messages import ComputeReference
from bakeoff.measuring.worker import cell_model, reference
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import CPU
from bakeoff.records.doubts import EAGER_DIFFERS
from bakeoff.records.schema import Accuracy, Extent
from bakeoff.records.traits import Access, AccessKind, Decision
from bakeoff.truth import checking, steps, tensor_content
from bakeoff.truth.calls import AlikeCalls, call
from bakeoff.truth.decisions import noting_frozen_choices
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.reference import BEYOND, Reference, traits_in
from bakeoff.truth.traits import OUTSIDE
from bakeoff.truth.witnesses import RoundingNoise
from tests.support import cells
from tests.support.golden import same_as_golden

pytestmark = pytest.mark.usefixtures("restored_switches")

Build = Callable[[nn.Module, Inputs], Callable[..., Any]]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compute the reference of a case once, and return its file."""
    known: dict[str, Path] = {}

    def found(case: str) -> Path:
        if case not in known:
            folder = tmp_path_factory.mktemp("reference")
            known[case] = folder / "outputs.pt"
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                reference.compute(ComputeReference(cell=cells.case(case), reference=known[case]), folder, folder)
        return known[case]

    return found


def checker_of(
    case: str, path: Path, build: Build, frozen: tuple[Decision, ...] = (), has_module: bool = True
) -> checking.Checker:
    """Return the checker of a build that this process made, or of an artefact that was made in another one."""
    cell = cells.case(case)
    traits = traits_in(path)
    module, sets = cell_model.move_to_device(cell_model.load(cell).understood(traits), cell)
    return checking.Checker(
        path,
        cell,
        AlikeCalls(module if has_module else None, traits),
        Callables(build(module, sets[0])),
        sets,
        synchronise=Clock(CPU).synchronise,
        frozen_choices=frozen,
        unchanged=checking.unchanged_inputs(cell, traits, sets),
    )


def checked(case: str, path: Path, build: Build, **more: Any) -> Accuracy:
    with torch.inference_mode():
        return checker_of(case, path, build, **more).check()


def as_it_is(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return module


def build_of(call_of: Callable[[Any], Callable[..., Any]]) -> Build:
    """Return a build whose calls need nothing of the first inputs."""
    return lambda module, _: call_of(module)


def with_fault(build: Build, alter: Callable[[torch.Tensor], torch.Tensor], place: int = 0) -> Build:
    """Return a build that alters one of its outputs."""

    def made(module: nn.Module, first: Inputs) -> Callable[..., Any]:
        own = build(module, first)

        def call(*args: torch.Tensor) -> Any:
            leaves, structure = pytree.tree_flatten(own(*args))
            leaves[place] = alter(leaves[place])
            return pytree.tree_unflatten(leaves, structure)

        return call

    return made


def forgetful(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda *args: copy.deepcopy(module)(*args)


def with_a_state_of_its_own(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    """Copy the module, and call the copy as a build does that tries itself."""
    own = copy.deepcopy(module)
    for _ in range(3):
        call(own, first)
    return own


wrong = with_fault(with_a_state_of_its_own, lambda each: 1.01 * each)


def without_casts(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    own = cast("Any", module)
    return lambda x: own.narrow(1.001 * torch.relu(own.wide(x)))


def off_at(place: int) -> Build:
    """Return a build whose answer is wrong at one place of each row. As a graph does, it leaves out numbers."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def answer(**inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            found = module(**inputs)[0]
            found = found.index_add(1, torch.tensor([place]), torch.ones_like(found[:, :1]))
            return {"scores": found, "cache": found.unflatten(-1, (4, 4)).transpose(1, 2)}

        return answer

    return build


STREAMING = "streaming_state.py:factory"
CHANNELS_LAST = "channels_last.py:factory"


@pytest.mark.parametrize("build", [as_it_is, with_a_state_of_its_own])
def test_a_build_that_keeps_the_state_is_right_before_and_after_it_is_measured(
    build: Build, references: Callable[[str], Path]
) -> None:
    with torch.inference_mode():
        checker = checker_of(STREAMING, references(STREAMING), build)
        assert checker.check().passed
        assert checker.check().passed


def empty_line(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    """Answer as if nothing had come before, as what a trace makes of a queue."""
    zeros = torch.zeros_like(first.args[0])
    return lambda x: x + cast("Any", module).linear(zeros)


RANDOM = "mc_dropout.py:factory"


def without_dropout(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: cast("Any", module).b(torch.relu(cast("Any", module).a(x)))


def with_other_numbers(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        torch.rand(1)
        return module(x)

    return forward


def with_less_dropout(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    a, b = cast("Any", module).a, cast("Any", module).b
    return lambda x: b(nn.functional.dropout(torch.relu(a(x)), 0.2, training=True))


SAMPLING = "sampling.py:factory"


EARLY_EXIT = "early_exit.py:factory"


def test_a_trace_that_lost_a_branch_is_wrong_for_inputs_of_the_other_way(references: Callable[[str], Path]) -> None:
    path, frozen = references(EARLY_EXIT), []

    def noting(module: nn.Module, first: Inputs) -> Callable[..., Any]:
        with noting_frozen_choices() as noted:
            made = traced(module, first)
        frozen.extend(noted.among(traits_in(path).decisions))
        return made

    assert not checked(EARLY_EXIT, path, noting).passed
    found = checked(EARLY_EXIT, path, noting, frozen=tuple(frozen))
    assert not found.passed
    assert "wrong for inputs with which the model decides otherwise: the trace froze a choice" in found.rule
    assert f"early_exit.py, line {frozen[0].line} (if logits.softmax(-1).max() > 0.9" in found.rule
    assert checked(EARLY_EXIT, path, as_it_is).passed


def test_inputs_of_the_other_way_get_the_random_numbers_that_eager_had_there(
    references: Callable[[str], Path],
) -> None:
    case = "early_exit.py:dropping"
    path = references(case)

    def wrong_if_sure(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> Any:
            answer = module(x)
            return answer * 1.001 if x.abs().max() > 50 else answer

        return forward

    assert checked(case, path, as_it_is).passed
    found = checked(case, path, wrong_if_sure)
    assert not found.passed and found.rule.startswith("wrong for inputs with which the model decides otherwise")


def twice_after_the_first(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    return lambda x: module(x) if torch.equal(x, first.args[0]) else [2 * each for each in call(module, Inputs((x,)))]


def without_the_last_output(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: call(module, Inputs((x,)))[:-1]


SKIPPED = "skipped_mask.py:factory"


def test_a_build_with_a_frozen_choice_is_partial() -> None:
    choice = Decision(file="/home/me/mine.py", line=20, function="forward")
    compiled = Callables(nn.Identity())
    compiled.bind(Inputs((torch.ones(1),)))
    placement = checking.WithFrozenChoices(compiled, [choice]).placement()
    assert placement is not None
    assert (placement.extent, placement.frozen_choices) == (Extent.PARTIAL, ["mine.py, line 20"])


def test_each_binding_gives_a_model_that_writes_its_inputs_the_same_values() -> None:
    given = Inputs((torch.ones(3),))
    compiled: Compiled = checking.WithFreshInputs(Callables(lambda x: x.mul_(2)), [given])
    for _ in range(2):
        compiled.bind(given)
        compiled.run()
        assert compiled.outputs()[0].tolist() == [2.0, 2.0, 2.0]
    assert given.args[0].tolist() == [1.0, 1.0, 1.0]


WRITTEN = "inplace_normalise.py:factory"


def on_a_copy(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda image: module(image.clone())


def writing_half(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    """Answer rightly, and write half of the change into the input."""

    def forward(image: torch.Tensor) -> Any:
        own = image.clone()
        answer = module(own)
        image.lerp_(own, 0.5)
        return answer

    return forward


@pytest.mark.parametrize(("build", "told"), [(as_it_is, []), (on_a_copy, ["input 0"]), (writing_half, ["input 0"])])
def test_a_build_that_does_not_write_into_its_inputs_as_eager_does_is_told(
    build: Build, told: list[str], references: Callable[[str], Path]
) -> None:
    with torch.inference_mode():
        checker = checker_of(WRITTEN, references(WRITTEN), build)
        found = checker.check()
        assert (found.passed, found.unwritten_inputs) == (True, told)
        assert checker.check().unwritten_inputs == [], "it is asked once"


BEFORE = torch.zeros(2, 8, 16)
WITH_OUTLIERS = torch.linspace(1, 2, 256).view(2, 8, 16) * torch.tensor([100.0, *[1.0] * 15])


@pytest.mark.parametrize(
    ("change", "is_right"),
    [
        (lambda cache: cache * (1 + 1e-5), True),
        (lambda cache: cache.bfloat16().float(), True),
        (lambda cache: cache.where(torch.arange(16) < 8, BEFORE), False),  # less than a tenth of the norm
        (lambda cache: cache.where(torch.arange(8)[:, None] < 4, BEFORE), False),
        (lambda cache: cache + torch.tensor([0.0, torch.nan] * 8), False),
    ],
)
def test_each_part_of_what_a_call_writes_must_be_there(
    change: Callable[[torch.Tensor], torch.Tensor], is_right: bool
) -> None:
    assert checking.is_kept(change(WITH_OUTLIERS), BEFORE, WITH_OUTLIERS) == is_right


def calling_on(change: Callable[[torch.Tensor], Any]) -> Build:
    """Change the inputs before the model's own call."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(*args: torch.Tensor) -> Any:
            for tensor in args:
                change(tensor)
            return module(*args)

        return forward

    return build


def but_the_first() -> Callable[[torch.Tensor], Any]:
    seen: list[torch.Tensor] = []

    def change(x: torch.Tensor) -> None:
        seen.append(x.clone())
        if not torch.equal(x, seen[0]):
            x.zero_()

    return change


@pytest.mark.parametrize(
    ("change", "is_answer_right"),
    [
        (lambda x: x.mul_(1 + 1e-6), True),
        (torch.relu_, False),
        (lambda x: x[0].zero_(), False),
        (but_the_first(), False),
    ],
)
def test_a_build_that_writes_into_inputs_that_the_model_leaves_alone_is_wrong(
    change: Callable[[torch.Tensor], Any], is_answer_right: bool, references: Callable[[str], Path]
) -> None:
    case = "dataclass_output.py:factory"
    with torch.inference_mode():
        checker = checker_of(case, references(case), calling_on(change))
        checker._run(checker._sets[0])  # as the first call is timed
        found = checker.check()
    assert not (found.passed or found.unchecked or found.is_only_inexact)
    assert found.rule.startswith(told := checking.OVERWRITES.format("input 0"))
    assert (found.rule == told) == is_answer_right


def test_what_a_build_changed_in_inputs_while_it_was_made_is_put_back(references: Callable[[str], Path]) -> None:
    path, cell = references(CHANNELS_LAST), cells.case(CHANNELS_LAST)
    module, sets = cell_model.move_to_device(cell_model.load(cell), cell)
    unchanged = checking.unchanged_inputs(cell, traits_in(path), sets)
    sets[0].tensors()[0].zero_()
    calls, build = AlikeCalls(module, traits_in(path)), Callables(module)
    with torch.inference_mode():
        checker = checking.Checker(
            path, cell, calls, build, sets, synchronise=Clock(CPU).synchronise, unchanged=unchanged
        )
        assert checker.check().passed and not checker.check().unchecked


@pytest.mark.parametrize("change", [lambda x: x.view(-1)[[0, -1]], lambda x: x.view(-1)[[-1, 0]] + 1])
def test_the_digest_of_a_gpu_differs_if_two_values_change_places_or_one_is_another(
    change: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_content, "PIECE_ELEMENTS", 1000)
    words = torch.arange(3000, dtype=torch.int32).view(3, 1000)
    changed = words.clone()
    changed.view(-1)[[-1, 0]] = change(words)
    sums = tensor_content._sums
    assert sums(words.view(-1)) == sums(words.clone().view(-1)) != sums(changed.view(-1))


def traced(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    made: Any = torch.jit.trace(module, first.args, check_trace=False)  # type: ignore[no-untyped-call]
    return cast("Callable[..., Any]", made)


@pytest.mark.filterwarnings("ignore")  # what models do is deprecated, or warned of
@pytest.mark.usefixtures("heard_logs")
@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        ("wall_clock.py:factory", ["clock"]),
        ("wall_clock.py:slow", ["clock"]),
        ("wall_clock.py:ageing", ["clock"]),
        ("wall_clock.py:switch", ["variable", "read file"]),
        ("other_worlds.py:clock", ["clock"]),
        ("side_effects.py:factory", ["written file", "attribute"]),
        ("side_effects.py:printing", ["print", "log"]),
        ("side_effects.py:keeping", ["attribute"]),
        ("side_effects.py:reporting", ["print"]),
    ],
)
def test_a_trace_drops_what_the_model_reads_and_does_outside_and_eager_is_right(
    case: str,
    kinds: list[str],
    references: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # as the process of a cell has a folder of its own
    path = references(case)
    traits = traits_in(path)
    assert [access.kind for access in traits.accesses] == kinds
    with clock_at(traits.clock_s):  # as in the process of a cell
        found = [checked(case, path, build) for build in (as_it_is, traced)]
        artefact = checked(case, path, traced, has_module=False)
    assert [(right.passed, right.dropped) for right in found] == [(True, []), (True, list(traits.accesses))]
    assert artefact.dropped == list(traits.accesses)


@pytest.mark.filterwarnings("ignore")  # what models do is deprecated
@pytest.mark.parametrize(("build", "is_held"), [(as_it_is, True), (traced, False)])
def test_what_grows_outside_of_the_module_grows_only_where_its_code_runs(
    build: Build, is_held: bool, references: Callable[[str], Path]
) -> None:
    with torch.inference_mode():
        checker = checker_of(CHANNELS_LAST, references(CHANNELS_LAST), build)
        checker._calls.traits = checker._calls.traits.model_copy(update={"grows": (OUTSIDE,)})
        outside = Access(kind=AccessKind.ATTRIBUTE, name=OUTSIDE)
        assert checker.check().dropped == ([] if is_held else [outside])


def with_last_ties_first(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def call(scores: torch.Tensor, values: torch.Tensor) -> Any:
        places = (scores * 99).round().flip(-1).argsort(dim=-1, descending=True, stable=True)
        return values.gather(-1, scores.shape[-1] - 1 - places), values.sum(-1)

    return call


def with_other_signs(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def call(x: torch.Tensor) -> Any:
        values, vectors = module(x)
        return values, vectors * torch.tensor([1.0, -1.0, 1.0, -1.0])

    return call


def with_other_ends(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def call(x: torch.Tensor) -> Any:
        angles = module(x)
        return torch.where(angles > 3.1415926, -angles, angles)

    return call


KEPT = "kept_buffers.py:factory"


class MovingMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x + 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_buffers_of_a_build_that_was_loaded_are_found(tmp_path: Path) -> None:
    given = Inputs((torch.ones(2, 8),))
    traced: Any = torch.jit.trace(FlatModule(MovingMean(), given), given.args, check_trace=False)
    torch.jit.save(torch.jit.freeze(traced.eval()), tmp_path / "it.pt")
    frozen: Any = torch.jit.load(tmp_path / "it.pt")
    buffer, *_ = checking.buffers_in(Callables(frozen), "mean")
    before = buffer.clone()
    frozen(*given.args)
    assert not torch.equal(buffer, before)


CANCELLATION = "cancellation.py:factory"


def in_another_order(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    """Add the same numbers up from the other end, in two halves."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.flip(-1) + 1e6
        halves = (y * y).unflatten(-1, (-1, 2)).mean(-1).mean(-1)
        return cast("torch.Tensor", halves - y.mean(-1) ** 2)

    return forward


def in_one_pass(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    """Subtract a mean that is off by a rounding."""
    return lambda x: (x - x.mean(-1, keepdim=True) * (1 + 2**-24)).square().sum(-1) / (x.shape[-1] - 1)


def with_other_products(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    """Add the products up from the other end."""
    return lambda x: (x.square().sum(-1)[:, None] + x.square().sum(-1) - 2 * x.flip(-1) @ x.flip(-1).mT).sqrt()


def with_other_distances(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    roots = with_other_products(module, first)
    return lambda x: roots(x).nan_to_num()


def without_ones(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    most = 1 - 2**-24
    return lambda x, y: nn.functional.binary_cross_entropy(x.sigmoid().clamp_max(most), (y > 0).to(x), reduction="none")


SEEDED = "seeded_draw.py:factory"


def drawing(seed: int | None) -> Build:
    """Draw with another seed in each call, or with none as a trace does, which leaves out the seeding."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            if seed is not None:
                torch.manual_seed(seed)
            model = cast("Any", module)
            return cast("torch.Tensor", model.linear(x) + model.share * torch.randn_like(x))

        return forward

    return build


def shaken_by(share: float) -> Build:
    """Return sums whose order differs from call to call, as atomic additions on a GPU do, with so large a change."""
    return with_fault(as_it_is, lambda each: each * (1 + share * torch.rand(())))


def test_answers_that_pass_but_differ_by_more_than_the_check_allows_are_incorrect(
    references: Callable[[str], Path],
) -> None:
    path = references(CANCELLATION)
    by = 2.5 * Reference.load(path).eager_rmse[0]
    signs = itertools.chain([1], itertools.repeat(-1))
    found = checked(CANCELLATION, path, with_fault(as_it_is, lambda each: each + by * next(signs)))
    assert not found.passed and found.rule.startswith(checking.VARIES)


TIES = "topk_ties.py:factory"


PADDING = "encoder_padding.py:factory"


def without_fast_path(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def forward(x: torch.Tensor, padding: torch.Tensor) -> Any:
        with fast_path.switched_off():
            return module(x, padding)

    return forward


def with_last_off(values: torch.Tensor) -> torch.Tensor:
    return torch.cat((values[:, :-1], values[:, -1:] + 1e-3), dim=1)


def constant(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    answer = call(module, first)[0]
    return lambda *args: answer.clone()


OTHER_PROCESS = "other_worlds.py:process"


def constant_sum(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: cast("Any", module).linear(x) + 0.1


@pytest.mark.parametrize("build", [as_it_is, wrong])
def test_no_build_fails_where_eager_fails_as_well(
    build: Build, references: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference was computed in a process of another number."""
    path, number = references(OTHER_PROCESS), os.getpid() + 500
    monkeypatch.setattr(os, "getpid", lambda: number)
    found = checked(OTHER_PROCESS, path, build)
    assert (found.passed, found.unchecked, found.has_errors) == (True, EAGER_DIFFERS, False)


def keeping_answers(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    kept: dict[int, Any] = {}

    def call(*args: torch.Tensor) -> Any:
        address = args[0].data_ptr()
        kept[address] = kept[address] if address in kept else module(*args)
        return kept[address]

    return call


@pytest.mark.parametrize("case", [CHANNELS_LAST, "input_layouts.py:factory"])
def test_a_build_that_keeps_answers_by_addresses_is_wrong_and_the_inputs_stay(
    case: str, references: Callable[[str], Path]
) -> None:
    with torch.inference_mode():
        checker = checker_of(case, references(case), keeping_answers)
        before = [each.map(torch.clone) for each in checker._sets]
        found = checker.check()
        assert not found.passed and found.rule.startswith(checking.STALE)
        for inputs, kept in zip(checker._sets, before, strict=True):
            assert all(map(torch.equal, inputs.tensors(), kept.tensors()))


def with_scaled_weights(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    with torch.no_grad():
        next(module.parameters()).mul_(1.5)
    return module


def choosing(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    """Choose among equal values from the other end after the first call."""
    is_from_the_end = itertools.chain([False], itertools.repeat(True))

    def forward(scores: torch.Tensor) -> Any:
        if not next(is_from_the_end):
            return module(scores)
        values, indices = module(scores.flip(-1))
        return values, scores.shape[-1] - 1 - indices

    return forward


def at_places(shift: float) -> Build:
    """Return what is beside the places that are asked for."""
    return build_of(lambda module: lambda image, places: module(image, places + shift))


def with_first_off(values: torch.Tensor, by: float) -> torch.Tensor:
    first = torch.zeros_like(values, dtype=torch.bool)
    first.view(-1)[0] = True
    return torch.where(first, values + by, values).to(values.dtype)


CHOICE = {"frozen": (Decision(file="/home/me/mine.py", line=20, function="forward"),)}
LOADED = {"has_module": False}


def with_noise(seed: int) -> Build:
    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(*given: torch.Tensor) -> Any:
            with RoundingNoise(seed):
                return module(*given)

        return forward

    return build


def some_off_by(share: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes every hundredth value larger by this share."""
    return lambda each: each + share * each * (torch.arange(each.numel()) % 100 == 0).view(each.shape)


ALTERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "without its negative values": lambda each: each.clamp_min(0),
    "in bfloat16": lambda each: each.bfloat16().float(),
}
OTHER = {
    "small_differences.py:distances": with_other_distances,
    "small_differences.py:roots": with_other_products,
    "small_differences.py:saturated": without_ones,
    "topk_ties.py:ranked": with_last_ties_first,
    "linalg_cond.py:axes": with_other_signs,
    "linalg_cond.py:angles": with_other_ends,
}
PICTURE, SHAPES, ALIASED = "threshold_nonzero.py:picture", "threshold_nonzero.py:factory", "input_layouts.py:aliased"

BUILDS: dict[str, dict[str, Build | tuple[Build, dict[str, Any]]]] = {
    STREAMING: {"with a state of its own, loaded": (with_a_state_of_its_own, LOADED), "that forgets": forgetful,
                "that is wrong": wrong},
    "streaming_state.py:delayed": {"that is eager, loaded": (as_it_is, LOADED), "with an empty line": empty_line,
                                   "with an empty line, loaded": (empty_line, LOADED)},
    "streaming_state.py:counting": {},
    RANDOM: {"without dropout": without_dropout, "with other numbers": with_other_numbers,
             "with less dropout": with_less_dropout, "with another shape": with_fault(as_it_is, lambda each: each[:1])},
    SAMPLING: {"that draws otherwise": with_other_numbers,
               "that is off in what is not drawn": with_fault(with_other_numbers, lambda each: each * 1.0001, place=1),
               "that is off in what is drawn": with_fault(with_other_numbers, lambda each: each * 2)},
    **{
        f"dataclass_output.py:{name}": {"with a choice, off for other inputs": (twice_after_the_first, CHOICE),
                                        "with a choice and another form": (without_the_last_output, CHOICE)}
        for name in ("only", "numbered")
    },
    SKIPPED: {"without a mask": build_of(lambda module: lambda x, mask: module.linear(x))},
    ALIASED: {
        "that overwrites another input": build_of(
            lambda module: lambda *inputs: (module(*inputs), inputs[2].zero_())[0]
        ),
        "that takes two views for two tensors": build_of(lambda module: lambda a, b, x: module(a, b.clone(), x)),
    },
    "answer_cache.py:factory": {},
    SHAPES: {
        f"above {limit:g}": build_of(lambda _, limit=limit: lambda scores: torch.nonzero(scores > limit))
        for limit in (0.2 - 1e-6, 0.5, -1.0)
    },
    **{
        case: {
            f"of an image that is {share:g} brighter": build_of(
                lambda module, share=share: lambda image: module(image * (1 + share))
            )
            for share in (2e-6, 1e-4)
        }
        | {
            f"with a value {by} steps off": with_fault(as_it_is, partial(with_first_off, by=by * step))
            for by in (1, 2)
        }
        for case, step in ((PICTURE, 1), ("threshold_nonzero.py:decimals", 0.01))
    },
    "threshold_nonzero.py:dense": {},
    "threshold_nonzero.py:warped": {
        "that takes other neighbours": at_places(1e-6),
        "that takes other neighbours, 3 % larger": with_fault(at_places(1e-6), lambda each: each * 1.03),
        "that takes the next pixels": at_places(2 / 15),
    },
    "threshold_nonzero.py:cells": {
        "that multiplies": build_of(lambda _: lambda points: (points * 10).floor()),
        "that is 0.3 larger": with_fault(as_it_is, lambda each: each + 0.3),
        "that is 1 larger": with_fault(as_it_is, lambda each: each + 1),
    },
    "threshold_nonzero.py:octaves": {
        "that divides logarithms": build_of(lambda _: lambda sizes: (sizes.float().log() / math.log(2)).floor().long()),
        "that is 2 smaller": with_fault(as_it_is, lambda each: each - 2),
    },
    "threshold_nonzero.py:in_place": {
        "that rounds up": build_of(lambda module: lambda x: (x * module.gain / 0.1 + 0.5).floor() * 0.1),
        "that rounds up, 1 % larger": with_fault(
            build_of(lambda module: lambda x: (x * module.gain / 0.1 + 0.5).floor() * 0.1), lambda each: each * 1.01
        ),
        "that is 0.03 larger": with_fault(as_it_is, lambda each: each + 0.03),
    },
    "inplace_normalise.py:limited": {"that never writes": build_of(lambda _: lambda x: x * 2)},
    "early_exit.py:suppressing": {
        "that keeps all": build_of(lambda module: lambda x: module.head(x)[:, 2].sort(descending=True).values)
    },
    "mc_dropout.py:paths": {
        "with other numbers": with_other_numbers,
        "that drops nothing": build_of(lambda _: lambda x: x / 0.95),
        "that drops half": build_of(lambda _: lambda x: x * torch.bernoulli(torch.full((len(x), 1), 0.5)) / 0.95),
    },
    "mc_dropout.py:kept_on": {},
    "forces.py:jagged": {},
    "quantised_lazy.py:narrow": {"that is 10 % larger": with_fault(as_it_is, lambda each: each * 1.1, place=1)},
    "linalg_cond.py:cancelled": {},
    **{
        case: {"that is right otherwise": build}
        | {
            f"that is right otherwise, {name}": with_fault(build, alter, place=int(case.endswith("axes")))
            for name, alter in ALTERED.items()
        }
        for case, build in OTHER.items()
    },
    "small_differences.py:spread": {"in one pass": in_one_pass,
                                    "that is 2 % larger": with_fault(as_it_is, lambda each: each * 1.02)},
    "small_differences.py:factory": {"that is 0.01 larger": with_fault(as_it_is, lambda each: each + 0.01)},
    "small_differences.py:offset": {"that is 2 % larger": with_fault(as_it_is, lambda each: each * 1.02)},
    "small_differences.py:whitened": {"that is 1 % larger": with_fault(as_it_is, lambda each: each * 1.01)},
    "small_differences.py:tiny": {"that is 1 % larger": with_fault(as_it_is, lambda each: each * 1.01)},
    KEPT: {"that leaves buffers alone": forgetful, "that is eager, loaded": (as_it_is, LOADED)},
    CANCELLATION: {"in another order": in_another_order,
                   "off by a million": with_fault(as_it_is, lambda each: each + 2e6),
                   "that differs by 0.001": shaken_by(1e-3)},
    **{case: {"with another seed": drawing(1), "without a seed": drawing(None)}
       for case in (SEEDED, "seeded_draw.py:dithered")},
    CHANNELS_LAST: {"that differs by 1e-6": shaken_by(1e-6), "that differs by 0.001": shaken_by(1e-3),
                    "that scales weights": with_scaled_weights},
    TIES: {"that chooses otherwise in each call": choosing},
    **{case: {} for case in (
        "not_finite.py:factory", "not_finite.py:empty", "already_compiled.py:factory", "already_compiled.py:parallel",
        "already_compiled.py:scripted", "quantised_lazy.py:lazy", "quantised_lazy.py:quantised",
        "quantised_lazy.py:half", "quantised_lazy.py:double", "inplace_normalise.py:factory", "sparse.py:factory",
        "complex_tracing.py:factory", "dataclass_output.py:factory", "parameter_output.py:factory",
        "encoder_padding.py:pooled", "one_answer.py:beside", "one_answer.py:detector", "one_answer.py:emptied",
        "other_worlds.py:late", "higher_order.py:factory", "higher_order.py:flex", "changed_batch.py:factory",
        "late_layers.py:factory",
    )},
    PADDING: {"without the fast path": without_fast_path,
              "off without the fast path": with_fault(without_fast_path, with_last_off)},
    "one_answer.py:factory": {"that is constant": constant},
    "one_answer.py:gated": {"that is constant": constant},
    "other_worlds.py:counter": {"that is constant": constant_sum},
    OTHER_PROCESS: {"that is wrong": wrong},
    "own_casts.py:factory": {"without casts": without_casts, "that is wrong": wrong},
    "own_casts.py:mixed": {"that is 3 % larger": with_fault(as_it_is, lambda each: each * 1.03)},
    "own_casts.py:narrow_output": {"that rounds otherwise": with_noise(9),
                                   "off in many values": with_fault(as_it_is, some_off_by(2.0**-7))},
    "own_casts.py:running": {"that rounds otherwise": with_noise(9),
                             "off in many values": with_fault(as_it_is, some_off_by(0.03))},
    "streaming_state.py:pixels": {"that rounds otherwise": with_noise(9), "that forgets": forgetful,
                                  "off by one": with_fault(with_noise(9), lambda each: each + 1)},
    "text_output.py:labelled": {"without the text": lambda module, _: lambda x: module(x)[1],
                                "that is wrong": with_fault(as_it_is, lambda each: each * 1.01, 1)},
    "topk_ties.py:suppressed": {"with another order": with_noise(9),
                                "without the last": with_fault(as_it_is, lambda each: each[:-1])},
    "kept_buffers.py:observed": {"that observes nothing": forgetful},
    "not_finite.py:beyond": {"that is too small": with_fault(as_it_is, lambda each: each * 0.99),
                             "that is never infinite": with_fault(as_it_is, torch.nan_to_num)},
    "mc_dropout.py:dithered": {"without noise": lambda module, _: lambda x: cast("Any", module).linear(x)},
    "left_padding.py:factory": {"off where nothing is seen": off_at(0), "off where it is seen": off_at(3)},
}  # fmt: skip
"""Models of tests/cases, and what builds of them answer. Eager itself is the first build of each."""


NUMBER = re.compile(r"(?<!input )(?<!input set )(?<!\[)\b\d[\d.,]*(e[-+]?\d+)?")
SIZE_OF_ERROR = re.compile(
    r"(rmse|a value is off by) [^;]*; .*? times the limit\)|whole numbers are wrong; .*?expected [^ ;)]+"
)


def in_short(found: Accuracy) -> str:
    """Return whether a build passed and why, without numbers: machines round otherwise."""
    parts = ["right" if found.passed else f"wrong{', only inexact' if found.is_only_inexact else ''}", found.rule]
    if found.passed and found.unchecked:
        parts.append(f"unchecked{' in part' if found.others_compared else ''}: {found.unchecked}")
    parts += [f"drops {access.kind}" for access in found.dropped]
    return NUMBER.sub("#", SIZE_OF_ERROR.sub("too far off", "; ".join(parts)))


def of_reference(path: Path) -> str:
    known = Reference.load(path)
    hidden = {"threads": True, "recall": True, "decisions": {"__all__": {"file", "line"}}}
    traits = known.traits.model_dump(mode="json", exclude_defaults=True, exclude=hidden)
    told = [f"{name} {json.dumps(value)}" for name, value in traits.items()]
    told += [known.why_narrower] if known.why_narrower else []
    told += ["with inputs beyond its own"] if path.with_suffix(BEYOND).exists() else []
    return re.sub(
        r"\d+\.\d+(e[-+]\d+)?|\b\d{2,}|(?<=differing\": )[1-9]|(?<=nan\": )[1-9]",
        "#",
        "; ".join([f"computed in {known.computed_in}", *told]),
    )


@pytest.mark.filterwarnings("ignore")  # what models do is deprecated, or told to be slow
def test_builds_are_checked_as_before(references: Callable[[str], Path]) -> None:
    lines = []
    for case, builds in BUILDS.items():
        path = references(case)
        lines.append(f"## {case}: {of_reference(path)}")
        for name, build in {"that is eager": as_it_is, **builds}.items():
            made, more = build if isinstance(build, tuple) else (build, {})
            lines.append(f"{name}: {in_short(checked(case, path, made, **more))}")
    same_as_golden("checks.txt", "\n".join(lines))


def in_one_order(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: torch.from_numpy(np.cumsum(x.numpy(), -1, dtype=np.float32))


@pytest.mark.slow
def test_a_long_sum_decides_nothing_by_its_order(references: Callable[[str], Path]) -> None:
    case = "cancellation.py:running"
    found = checked(case, references(case), in_one_order)
    assert found.passed and "depends on rounding" not in found.rule and not found.unchecked
    for alter in ALTERED.values():
        assert not checked(case, references(case), with_fault(in_one_order, alter)).passed


UNWRITTEN = "undefined_values.py:factory"
one_larger = with_fault(as_it_is, lambda each: each + 1)


def test_memory_that_nothing_wrote_may_hold_anything_and_all_else_is_compared(
    references: Callable[[str], Path],
) -> None:
    assert traits_in(references(UNWRITTEN)).unwritten == ("output[1]",)
    others = [with_fault(as_it_is, lambda each, by=by: each + by, place=1) for by in (1, torch.inf)]
    for build in (as_it_is, *others):
        found = checked(UNWRITTEN, references(UNWRITTEN), build)
        assert (found.passed, found.unchecked) == (True, checking.UNWRITTEN.format("output[1]"))
    assert not checked(UNWRITTEN, references(UNWRITTEN), one_larger).passed


def test_of_several_values_in_one_place_any_may_stay(references: Callable[[str], Path]) -> None:
    case = "undefined_values.py:cells"
    assert traits_in(references(case)).writes_in_any_order
    assert not checked(case, references(case), as_it_is).unchecked
    found = checked(case, references(case), one_larger)
    assert (found.passed, found.unchecked) == (True, checking.ANY_ORDER)


def test_input_sets_may_have_other_numbers_of_outputs() -> None:
    answers = [(torch.ones(4), torch.ones(2)), (torch.ones(4),)]
    assert steps.without_jumps(answers, answers, [answers, answers], 1e-7) == (answers, {})


def test_other_weights_at_each_load_are_no_change_from_call_to_call(references: Callable[[str], Path]) -> None:
    case = "unseeded_weights.py:factory"
    found = checked(case, references(case), one_larger)
    assert (found.passed, found.unchecked) == (True, checking.OTHER_WEIGHTS)
