"""Builds of models with traits are judged as eager is: state, random numbers, and choices that a trace froze."""

import copy
import itertools
import os
from collections.abc import Callable
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
from bakeoff.measuring.worker import loading, reference
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.records.device import CPU
from bakeoff.records.doubts import EAGER_DIFFERS
from bakeoff.records.schema import Accuracy, Extent
from bakeoff.records.traits import Access, AccessKind, Decision, ModelTraits
from bakeoff.truth import checking, steps, tensor_content
from bakeoff.truth.calls import AlikeCalls, call
from bakeoff.truth.decisions import noting_frozen_choices
from bakeoff.truth.moved_clock import clock_at
from bakeoff.truth.reference import BEYOND, Reference, traits_in
from bakeoff.truth.traits import OUTSIDE
from tests.support import cells

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
    module, sets = loading.move_to_device(loading.load(cell).understood(traits), cell)
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


def forgetful(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda *args: copy.deepcopy(module)(*args)


def with_a_state_of_its_own(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    """Copy the module, and call the copy as a build does that tries itself."""
    own = copy.deepcopy(module)
    for _ in range(3):
        call(own, first)
    return own


def wrong(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    own = with_a_state_of_its_own(module, first)
    return lambda *args: 1.01 * own(*args)


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


def test_an_artefact_that_keeps_the_state_is_right(references: Callable[[str], Path]) -> None:
    assert checked(STREAMING, references(STREAMING), with_a_state_of_its_own, has_module=False).passed


def test_a_build_that_forgets_the_state_is_incorrect_and_that_is_the_reason(references: Callable[[str], Path]) -> None:
    found = checked(STREAMING, references(STREAMING), forgetful)
    assert (found.passed, found.rule) == (False, checking.FORGETS.format("buffer past"))


def test_a_wrong_build_of_a_model_with_state_is_still_found(references: Callable[[str], Path]) -> None:
    found = checked(STREAMING, references(STREAMING), wrong)
    assert not found.passed
    assert found.rule.endswith("the model keeps state from call to call (buffer past)")


def empty_line(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    """Answer as if nothing had come before, as what a trace makes of a queue."""
    zeros = torch.zeros_like(first.args[0])
    return lambda x: x + cast("Any", module).linear(zeros)


def test_a_build_without_the_models_queue_is_incorrect_though_that_shows_calls_later(
    references: Callable[[str], Path],
) -> None:
    path = references("streaming_state.py:delayed")
    assert traits_in(path).state[0].startswith("attribute line")
    assert checked("streaming_state.py:delayed", path, as_it_is).passed
    found = checked("streaming_state.py:delayed", path, empty_line)
    assert not checked("streaming_state.py:delayed", path, empty_line, has_module=False).passed
    assert checked("streaming_state.py:delayed", path, as_it_is, has_module=False).passed
    assert not found.passed and found.rule.startswith("it does not keep the state")


def test_a_variable_of_the_file_begins_anew_for_each_witness(references: Callable[[str], Path]) -> None:
    known = Reference.load(references("streaming_state.py:counting"))
    assert (known.traits.state, known.traits.depends_on_rounding) == (("variable COUNTED",), "")
    assert known.computed_in == "float64" and max(known.eager_rmse) < 1e-6


RANDOM = "mc_dropout.py:factory"


def without_dropout(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: cast("Any", module).b(torch.relu(cast("Any", module).a(x)))


def with_other_numbers(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        torch.rand(1)
        return module(x)

    return forward


DRAWN = f"{checking.OWN_NUMBERS}; {checking.LIKE_EAGERS.format(16)}"


def with_less_dropout(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    a, b = cast("Any", module).a, cast("Any", module).b
    return lambda x: b(nn.functional.dropout(torch.relu(a(x)), 0.2, training=True))


def with_another_shape(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: module(x)[:1]


@pytest.mark.parametrize(
    ("build", "passed", "rule", "unchecked"),
    [
        (as_it_is, True, "no more than rounding", ""),
        (without_dropout, False, checking.NOT_RANDOM, ""),
        (with_other_numbers, True, f"not compared: {DRAWN}", DRAWN),
        (with_less_dropout, False, "output has another spread", ""),
        (with_another_shape, False, "has shape (1, 10)", ""),
    ],
)
def test_a_random_model_is_compared_with_eagers_seed_or_not_at_all(
    build: Build, passed: bool, rule: str, unchecked: str, references: Callable[[str], Path]
) -> None:
    found = checked(RANDOM, references(RANDOM), build)
    assert (found.passed, found.unchecked) == (passed, unchecked)
    assert rule in found.rule


SAMPLING = "sampling.py:factory"


def off_in(place: int, by: float) -> Build:
    """Draw other numbers, and return one of the outputs too large by this share."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(x: torch.Tensor) -> list[torch.Tensor]:
            torch.rand(1)
            return [each * (1 + by) if number == place else each for number, each in enumerate(module(x))]

        return forward

    return build


def test_of_a_random_model_the_outputs_that_do_not_vary_are_compared_as_ever(
    references: Callable[[str], Path],
) -> None:
    path = references(SAMPLING)
    known = Reference.load(path)
    assert known.traits.varying == ("output[0]",) and known.computed_in == "float64"
    assert checked(SAMPLING, path, as_it_is).unchecked == ""
    right = checked(SAMPLING, path, off_in(0, 0.0))
    assert (right.passed, right.unchecked, right.others_compared) == (True, DRAWN, True) and right.rmse < 1e-6
    assert checked(SAMPLING, path, off_in(1, 1e-4)).rule.startswith("output[1]: rmse")
    assert checked(SAMPLING, path, off_in(0, 1.0)).rule.startswith("output[0] has another")


EARLY_EXIT = "early_exit.py:factory"


def test_a_trace_that_lost_a_branch_is_wrong_for_inputs_of_the_other_way(references: Callable[[str], Path]) -> None:
    path, frozen = references(EARLY_EXIT), []

    def traced(module: nn.Module, first: Inputs) -> Callable[..., Any]:
        with noting_frozen_choices() as noted:
            made: Any = torch.jit.trace(module, first.args, check_trace=False)  # type: ignore[no-untyped-call]
        frozen.extend(noted.among(traits_in(path).decisions))
        return cast("Callable[..., Any]", made)

    assert not checked(EARLY_EXIT, path, traced).passed
    found = checked(EARLY_EXIT, path, traced, frozen=tuple(frozen))
    assert not found.passed
    assert "wrong for inputs with which the model decides otherwise: the trace froze a choice" in found.rule
    assert f"early_exit.py, line {frozen[0].line} (if logits.softmax(-1).max() > 0.9" in found.rule
    assert checked(EARLY_EXIT, path, as_it_is).passed


def twice_after_the_first(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    return lambda x: module(x) if torch.equal(x, first.args[0]) else [2 * each for each in call(module, Inputs((x,)))]


def without_the_last_output(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: call(module, Inputs((x,)))[:-1]


@pytest.mark.parametrize(
    ("build", "is_the_reason"),
    [(twice_after_the_first, True), (without_the_last_output, False)],
)
@pytest.mark.parametrize("case", ["dataclass_output.py:only", "dataclass_output.py:numbered"])
def test_a_frozen_choice_is_no_reason_for_another_form_with_the_inputs_of_the_trace(
    case: str, build: Build, is_the_reason: bool, references: Callable[[str], Path]
) -> None:
    choice = Decision(file="/home/me/mine.py", line=20, function="forward")
    found = checked(case, references(case), build, frozen=(choice,))
    assert not found.passed
    assert found.rule.startswith(checking.FROZEN.format("mine.py, line 20")) == is_the_reason


SKIPPED = "skipped_mask.py:factory"


def test_a_model_whose_own_input_sets_go_both_ways_needs_no_others(references: Callable[[str], Path]) -> None:
    path = references(SKIPPED)
    (decision,) = traits_in(path).decisions
    assert decision.goes_both_ways and not path.with_suffix(BEYOND).exists()
    assert checked(SKIPPED, path, as_it_is).passed
    assert not checked(SKIPPED, path, lambda module, _: lambda x, mask: cast("Any", module).linear(x)).passed


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


def test_a_build_that_overwrites_another_input_than_the_model_is_wrong(references: Callable[[str], Path]) -> None:
    case = "input_layouts.py:aliased"

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(cache: torch.Tensor, last: torch.Tensor, x: torch.Tensor) -> Any:
            outputs = module(cache, last, x)
            x.zero_()
            return outputs

        return forward

    assert checked(case, references(case), as_it_is).passed
    found = checked(case, references(case), build)
    assert not found.passed and found.rule == checking.OVERWRITES.format("input 2")


def test_what_a_build_changed_in_inputs_while_it_was_made_is_put_back(references: Callable[[str], Path]) -> None:
    path, cell = references(CHANNELS_LAST), cells.case(CHANNELS_LAST)
    module, sets = loading.move_to_device(loading.load(cell), cell)
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


def test_a_build_that_takes_two_views_of_one_tensor_for_two_is_wrong(references: Callable[[str], Path]) -> None:
    case = "input_layouts.py:aliased"
    apart = checked(case, references(case), lambda module, _: lambda cache, last, x: module(cache, last.clone(), x))
    assert not apart.passed and checked(case, references(case), as_it_is).relative_rmse < 1e-6


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


def test_a_model_that_keeps_answers_by_their_inputs_drops_nothing_when_they_come_again(
    references: Callable[[str], Path],
) -> None:
    path = references("answer_cache.py:factory")
    assert [access.kind for access in traits_in(path).accesses] == [AccessKind.ATTRIBUTE]
    assert checked("answer_cache.py:factory", path, as_it_is).dropped == []


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


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("threshold_nonzero.py:factory", "output 0 has other shapes"),
        ("threshold_nonzero.py:dense", "output 0 has 16 of 16 whole numbers different"),
        ("linalg_cond.py:cancelled", "output 0 is not finite at the same places"),
    ],
)
def test_where_rounding_decides_eager_in_the_cells_type_is_the_reference(
    case: str, told: str, references: Callable[[str], Path]
) -> None:
    known = Reference.load(references(case))
    assert known.computed_in == "fp32"
    assert told in known.traits.depends_on_rounding
    assert checked(case, references(case), as_it_is).passed


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


def in_one_order(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: torch.from_numpy(np.cumsum(x.numpy(), -1, dtype=np.float32))


RIGHT_BUT_OTHER = (
    ("topk_ties.py:ranked", with_last_ties_first),
    ("linalg_cond.py:axes", with_other_signs),
    ("linalg_cond.py:angles", with_other_ends),
    pytest.param("cancellation.py:running", in_one_order, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("case", "build"), RIGHT_BUT_OTHER)
def test_another_right_answer_is_no_error_and_is_noted(
    case: str, build: Build, references: Callable[[str], Path]
) -> None:
    assert not checked(case, references(case), as_it_is).unchecked
    other = checked(case, references(case), build)
    assert other.passed and "depends on rounding" in other.rule
    assert bool(other.unchecked) == (not case.endswith("running")), "a few of very many values are no doubt"


@pytest.mark.parametrize("alter", [lambda each: each.clamp_min(0), lambda each: each.bfloat16().float()])
@pytest.mark.parametrize(("case", "build"), RIGHT_BUT_OTHER)
def test_beside_other_right_answers_a_fault_is_found(
    case: str, build: Build, alter: Callable[[torch.Tensor], torch.Tensor], references: Callable[[str], Path]
) -> None:
    def with_fault(module: nn.Module, first: Inputs) -> Callable[..., Any]:
        own, place = build(module, first), 1 if case.endswith("axes") else 0

        def call(*args: torch.Tensor) -> Any:
            leaves, structure = pytree.tree_flatten(own(*args))
            leaves[place] = alter(leaves[place])
            return pytree.tree_unflatten(leaves, structure)

        return call

    assert not checked(case, references(case), with_fault).passed


@pytest.mark.parametrize(("limit", "passed"), [(0.2 - 1e-6, True), (0.5, False), (-1.0, False)])
def test_other_shapes_are_no_error_if_rounding_gives_other_ones(
    limit: float, passed: bool, references: Callable[[str], Path]
) -> None:
    case = "threshold_nonzero.py:factory"
    found = checked(case, references(case), lambda module, _: lambda scores: torch.nonzero(scores > limit))
    assert (found.passed, bool(found.unchecked)) == (passed, passed)


@pytest.mark.parametrize(("change", "passed"), [(2e-6, True), (1e-4, False)])
def test_a_few_of_many_pixels_may_lie_on_the_other_side_of_an_edge(
    change: float, passed: bool, references: Callable[[str], Path]
) -> None:
    case = "threshold_nonzero.py:picture"
    found = checked(case, references(case), lambda module, _: lambda image: module(image * (1 + change)))
    assert (found.passed, found.unchecked) == (passed, "")
    assert ("depends on rounding" in found.rule) == passed


KEPT = "kept_buffers.py:factory"


def without_writing(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: copy.deepcopy(module)(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_build_must_change_the_buffers_that_the_model_changes(references: Callable[[str], Path]) -> None:
    path = references(KEPT)
    assert traits_in(path).kept_buffers == ("calls", "mean", "variance")
    assert traits_in(path).state == ()
    assert checked(KEPT, path, as_it_is).passed
    found = checked(KEPT, path, without_writing)
    assert (found.passed, found.rule) == (False, checking.LEAVES_OUT.format("calls"))
    unread = checked(KEPT, path, as_it_is, has_module=False)
    assert unread.passed and unread.unchecked == checking.UNREAD.format("calls, mean, variance")


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


def off_by_a_million(module: nn.Module, _: Inputs) -> Callable[..., Any]:
    return lambda x: module(x) + 2e6


def test_an_answer_that_is_lost_to_rounding_is_shown_against_float64(references: Callable[[str], Path]) -> None:
    path = references(CANCELLATION)
    known = Reference.load(path)
    assert known.computed_in == "float64" and "off what float64 gives" in known.traits.depends_on_rounding
    for build in (as_it_is, in_another_order):
        found = checked(CANCELLATION, path, build)
        assert found.passed and found.rmse > 1000
        assert "the answer depends on rounding, and eager's own output is" in found.unchecked, "zeros would pass, too"
    assert not checked(CANCELLATION, path, off_by_a_million).passed


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


@pytest.mark.parametrize("case", [SEEDED, "seeded_draw.py:dithered"])
def test_where_float64_draws_other_numbers_eager_is_the_reference(case: str, references: Callable[[str], Path]) -> None:
    path = references(case)
    known = Reference.load(path)
    assert (known.computed_in, known.traits.depends_on_rounding, known.traits.is_random) == ("fp32", "", False)
    assert known.why_narrower.endswith("off what float64 gives, and not by rounding")
    assert checked(case, path, as_it_is).passed
    assert checked(case, path, drawing(seed=1)).rule.startswith("output: rmse")
    assert checked(case, path, drawing(seed=None)).rule.startswith(f"{checking.VARIES} (output: ")


def shaken_by(share: float) -> Build:
    """Return sums whose order differs from call to call, as atomic additions on a GPU do, with so large a change."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        return lambda x: module(x) * (1 + share * torch.rand(()))

    return build


def test_a_build_must_repeat_its_answers_up_to_what_the_check_allows(references: Callable[[str], Path]) -> None:
    path = references(CANCELLATION)
    assert checked(CANCELLATION, path, shaken_by(1e-3)).passed, "rounding moves this answer by far more"
    path = references(CHANNELS_LAST)
    assert checked(CHANNELS_LAST, path, shaken_by(1e-6)).passed
    found = checked(CHANNELS_LAST, path, shaken_by(1e-3))
    assert not found.passed and found.rule.startswith(checking.VARIES)


def test_answers_that_pass_but_differ_by_more_than_the_check_allows_are_incorrect(
    references: Callable[[str], Path],
) -> None:
    path = references(CANCELLATION)
    by = 2.5 * Reference.load(path).eager_rmse[0]

    def swinging(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        signs = itertools.chain([1], itertools.repeat(-1))
        return lambda x: module(x) + by * next(signs)

    found = checked(CANCELLATION, path, swinging)
    assert not found.passed and found.rule.startswith(checking.VARIES)


TIES = "topk_ties.py:factory"


def test_a_build_may_choose_other_equal_values_in_each_call(references: Callable[[str], Path]) -> None:
    def choosing(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        is_from_the_end = itertools.chain([False], itertools.repeat(True))

        def forward(scores: torch.Tensor) -> Any:
            if not next(is_from_the_end):
                return module(scores)
            values, indices = module(scores.flip(-1))
            return values, scores.shape[-1] - 1 - indices

        return forward

    assert checked(TIES, references(TIES), choosing).passed


@pytest.mark.parametrize("case", ["not_finite.py:factory", "not_finite.py:empty"])
def test_a_model_whose_answers_cannot_be_compared_is_no_builds_fault(
    case: str, references: Callable[[str], Path]
) -> None:
    found = checked(case, references(case), as_it_is)
    assert found.passed and found.unchecked.startswith("the model's own answers have no")


def test_values_that_are_not_finite_are_counted_in_each_output_of_the_models_own_inputs(
    references: Callable[[str], Path],
) -> None:
    assert traits_in(references("not_finite.py:empty")).not_finite == ()
    assert traits_in(references(SEEDED)).not_finite == ()
    (told,) = traits_in(references("not_finite.py:factory")).not_finite
    assert (told.output, told.infinite) == ("output", 0) and told.nan == told.values > 0


CAST = "came with weights in {}: each cell casts them to its own precision"


@pytest.mark.filterwarnings("ignore")  # what models do is deprecated, or told to be slow
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("already_compiled.py:factory", ModelTraits(unwrapped=("torch.compile",))),
        ("already_compiled.py:parallel", ModelTraits(unwrapped=("DataParallel",))),
        ("already_compiled.py:scripted", ModelTraits(forms=("is a ScriptModule",))),
        ("quantised_lazy.py:lazy", ModelTraits(forms=("was lazy, and was initialised by a call",))),
        ("quantised_lazy.py:quantised", ModelTraits(forms=("is quantised already, and stays so in each precision",))),
        ("quantised_lazy.py:half", ModelTraits(forms=(CAST.format("float16"),))),
        ("quantised_lazy.py:double", ModelTraits(forms=(CAST.format("float64"),))),
        ("inplace_normalise.py:factory", ModelTraits(written_inputs=("input 0",))),
        ("sparse.py:factory", ModelTraits()),
        ("changed_batch.py:factory", ModelTraits()),
        ("higher_order.py:factory", ModelTraits()),
        ("higher_order.py:flex", ModelTraits()),
        ("complex_tracing.py:factory", ModelTraits()),
        ("dataclass_output.py:factory", ModelTraits()),
        ("parameter_output.py:factory", ModelTraits()),
        ("topk_ties.py:factory", ModelTraits()),
    ],
)
def test_eager_is_right_and_the_traits_are_these(
    case: str, expected: ModelTraits, references: Callable[[str], Path]
) -> None:
    found = traits_in(references(case))
    assert found.model_copy(update={"threads": None}) == expected
    assert checked(case, references(case), as_it_is).passed


PADDING = "encoder_padding.py:factory"


def without_fast_path(change: float) -> Build:
    """Answer as the layers do without eager's fast path, with another number at the last place of each sequence."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
            with fast_path.switched_off():
                answer = cast("torch.Tensor", module(x, padding))
            answer[:, -1] += change
            return answer

        return forward

    return build


def test_zeros_of_eagers_fast_path_at_padded_places_are_not_asked_of_a_build(references: Callable[[str], Path]) -> None:
    path = references(PADDING)
    found = traits_in(path).fast_path
    assert found and found.are_zeros and 0.1 < found.differing / found.values < 0.3
    assert checked(PADDING, path, as_it_is).rule == "no more than rounding"
    right = checked(PADDING, path, without_fast_path(change=0.0))
    assert right.passed and right.rule.endswith(checking.WITHOUT_FAST_PATH)
    assert not checked(PADDING, path, without_fast_path(change=1e-3)).passed
    pooled = references("encoder_padding.py:pooled")
    assert traits_in(pooled).fast_path is None and Reference.load(pooled).without_fast_path is None


def constant(module: nn.Module, first: Inputs) -> Callable[..., Any]:
    answer = call(module, first)[0]
    return lambda *args: answer.clone()


def test_where_every_answer_is_the_same_other_scales_are_tried_and_nothing_is_sure(
    references: Callable[[str], Path],
) -> None:
    always, gated = (references(f"one_answer.py:{name}") for name in ("factory", "gated"))
    for path, case in ((always, "one_answer.py:factory"), (gated, "one_answer.py:gated")):
        found = checked(case, path, as_it_is)
        assert found.passed and "the model gives one answer to all of its input sets" in found.unchecked
    assert checked("one_answer.py:factory", always, constant).passed, "nothing can tell it from the model"
    wrong_build = checked("one_answer.py:gated", gated, constant)
    assert not wrong_build.passed and "wrong for inputs with which the model answers otherwise" in wrong_build.rule
    traits = traits_in(gated).one_answer
    assert traits and 0 < traits.differing < traits.tried
    assert traits_in(references(PADDING)).one_answer is None


@pytest.mark.parametrize(
    ("name", "constant", "unchecked"),
    [
        ("beside", ("output[1]", "output[2]"), ""),
        ("detector", ("output[1]",), "the model's own output[1] had no element for any inputs"),
        ("emptied", ("output[1]",), ""),
    ],
)
def test_outputs_that_do_not_vary_beside_others_are_named_and_empty_ones_are_not_checked(
    name: str, constant: tuple[str, ...], unchecked: str, references: Callable[[str], Path]
) -> None:
    case = f"one_answer.py:{name}"
    assert traits_in(references(case)).constant_outputs == constant
    found = checked(case, references(case), as_it_is)
    assert (found.passed, found.unchecked, found.others_compared) == (True, unchecked, bool(unchecked))


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


def test_a_build_that_changes_the_models_weights_is_incorrect_though_eager_then_answers_alike(
    references: Callable[[str], Path],
) -> None:
    found = checked(CHANNELS_LAST, references(CHANNELS_LAST), with_scaled_weights)
    name = next(iter(dict(loading.load(cells.case(CHANNELS_LAST)).module.named_parameters())))
    assert not found.passed and found.rule.startswith(checking.REWRITES.format(name))


@pytest.mark.parametrize(("build", "passed"), [(as_it_is, True), (constant_sum, False)])
def test_calls_that_count_in_hidden_places_are_not_told_from_eagers(
    build: Build, passed: bool, references: Callable[[str], Path]
) -> None:
    case = "other_worlds.py:counter"
    known = traits_in(references(case))
    assert (known.is_random, known.repeats_with_seed, known.state) == (True, False, ())
    found = checked(case, references(case), build)
    assert (found.passed, found.rule) == (passed, f"not compared: {EAGER_DIFFERS}" if passed else checking.ALWAYS_ALIKE)


def test_an_answer_that_changes_late_is_not_told_to_depend_on_rounding(references: Callable[[str], Path]) -> None:
    """Beside it eager answers alike from the third call on, as a build does."""
    path = references("other_worlds.py:late")
    known = Reference.load(path)
    assert (known.traits.is_random, known.traits.repeats_with_seed) == (True, False)
    assert (known.why_narrower, known.traits.depends_on_rounding) == (reference.NO_REPEAT, "")
    found = checked("other_worlds.py:late", path, as_it_is)
    assert (found.passed, found.unchecked) == (True, EAGER_DIFFERS)


def test_a_wrong_build_fails_where_eager_passes(references: Callable[[str], Path]) -> None:
    found = checked(OTHER_PROCESS, references(OTHER_PROCESS), wrong)
    assert (found.passed, found.unchecked) == (False, "")


@pytest.mark.parametrize(
    ("case", "build", "cause"),
    [
        ("own_casts.py:factory", without_casts, checking.LEAVES_OUT_CASTS),
        ("own_casts.py:factory", wrong, ""),
        ("left_padding.py:factory", off_at(0), checking.HIDDEN.format("attention_mask is 0")),
        ("left_padding.py:factory", off_at(3), ""),
    ],
)
def test_what_explains_all_that_is_wrong_is_in_the_reason(
    case: str, build: Build, cause: str, references: Callable[[str], Path]
) -> None:
    found = checked(case, references(case), build)
    assert not found.passed and found.is_only_inexact
    rest, _, ending = found.rule.rpartition(" times the limit)")
    assert rest and ending.removeprefix("; ") == cause


def adding(*added: float) -> Build:
    """Answer as the model does, with a number added to each output, or to the only one."""

    def build(module: nn.Module, _: Inputs) -> Callable[..., Any]:
        def forward(*given: torch.Tensor) -> Any:
            answer = module(*given)
            if isinstance(answer, torch.Tensor):
                return answer + added[0]
            return tuple(value + by for value, by in zip(answer, added, strict=True))

        return forward

    return build


UNWRITTEN = "undefined_values.py:factory"


def test_memory_that_nothing_wrote_may_hold_anything_and_all_else_is_compared(
    references: Callable[[str], Path],
) -> None:
    assert traits_in(references(UNWRITTEN)).unwritten == ("output[1]",)
    for build in (as_it_is, adding(0, 1), adding(0, torch.inf)):
        found = checked(UNWRITTEN, references(UNWRITTEN), build)
        assert (found.passed, found.unchecked) == (True, checking.UNWRITTEN.format("output[1]"))
    assert not checked(UNWRITTEN, references(UNWRITTEN), adding(1, 0)).passed


def test_of_several_values_in_one_place_any_may_stay(references: Callable[[str], Path]) -> None:
    case = "undefined_values.py:cells"
    assert traits_in(references(case)).writes_in_any_order
    assert not checked(case, references(case), as_it_is).unchecked
    found = checked(case, references(case), adding(1))
    assert (found.passed, found.unchecked) == (True, checking.ANY_ORDER)


def test_input_sets_may_have_other_numbers_of_outputs() -> None:
    answers = [(torch.ones(4), torch.ones(2)), (torch.ones(4),)]
    assert steps.without_jumps(answers, answers, [answers, answers], 1e-7) == (answers, {})


def test_other_weights_at_each_load_are_no_change_from_call_to_call(references: Callable[[str], Path]) -> None:
    case = "unseeded_weights.py:factory"
    found = checked(case, references(case), adding(1))
    assert (found.passed, found.unchecked) == (True, checking.OTHER_WEIGHTS)
