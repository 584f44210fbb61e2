"""The reference of a contest, also where there is no memory for float64."""

import sys
import weakref
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bakeoff.backends.calling import sampled_places
from bakeoff.measuring.messages import ComputeReference, PhaseBegun, receive_event
from bakeoff.measuring.worker import cell_model, eager_answers, reference, subject
from bakeoff.measuring.worker.subject import OutputsIn, Subject
from bakeoff.measuring.worker.worker_context import explain, last_frame_below
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.models.example_inputs import with_own_inputs
from bakeoff.records.device import CPU, Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from bakeoff.records.traits import ModelTraits
from bakeoff.truth import accuracy, calls
from bakeoff.truth.calls import MAX_COMPARED_ELEMENTS, Outputs, run_eager, thinned
from bakeoff.truth.errors import errors_of_eager, within_float32
from bakeoff.truth.reference import Reference
from tests.support.cells import case
from tests.support.checkout import python
from tests.support.modules import Calling

pytestmark = pytest.mark.usefixtures("restored_switches")

SMALL = {"batch": 2, "features": 8, "hidden": 8}


def cell_of(precision: str) -> Cell:
    return Cell(model="mlp", dimensions=SMALL, precision=precision, backend="eager")


def sets_that_differ_most(model: LoadedModel) -> tuple[tuple[str, ...], tuple[Inputs, ...]]:
    module, sets = cell_model.move_to_device(model, cell_of("fp32"))
    return eager_answers.sets_that_differ_most(model, cell_of("fp32"), module, sets, lambda: model)


def without_room_for(*names: str) -> OutputsIn:
    """Return `outputs_in` with too little memory for these types."""

    def computed(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
        if str(dtype).removeprefix("torch.") in names:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")
        return subject.outputs_in(model, cell, dtype)

    return computed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("lacking", "computed_in", "why"), [((), "float64", ""), (("float64",), "float32", "Tried to allocate 80 GiB")]
)
def test_beside_16_bits_the_reference_is_in_float64_or_else_in_float32(
    folder: Path, lacking: tuple[str, ...], computed_in: str, why: str
) -> None:
    found = Subject(cell_of("bf16"), folder, folder, outputs_in=without_room_for(*lacking)).exact()
    assert (str(found.outputs[0][0].dtype), found.computed_in) == (f"torch.{computed_in}", computed_in)
    assert why in found.why_narrower and bool(why) is bool(found.why_narrower)


def test_the_model_that_did_not_fit_is_gone_before_the_next_attempt(folder: Path) -> None:
    tried: list[weakref.ref[nn.Module]] = []

    def computed(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
        tried.append(weakref.ref(model.module))
        if dtype is torch.float64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert tried[0]() is None, "two models do not fit where one does not"
        return subject.outputs_in(model, cell, dtype)

    assert Subject(cell_of("bf16"), folder, folder, outputs_in=computed).exact().computed_in == "float32"


def test_what_input_sets_share_stays_shared_in_another_type() -> None:
    cache = torch.zeros(2, 3)
    sets = tuple(Inputs((torch.tensor([place]), cache)) for place in range(2))
    _, (first, second) = cell_model.move_to_device(LoadedModel(nn.Identity(), sets), cell_of("bf16"), torch.float64)
    assert first.args[1] is second.args[1]
    assert first.args[1].dtype is torch.float64
    assert first.args[0] is not second.args[0]


@pytest.mark.parametrize(("precision", "wide"), [("fp32", None), ("fp32", torch.float64), ("bf16", None)])
def test_complex_weights_and_inputs_keep_their_imaginary_parts(precision: str, wide: torch.dtype | None) -> None:
    module, given = nn.Linear(3, 2, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)
    before = module.weight.detach().clone()
    model = LoadedModel(module, (Inputs((given.requires_grad_(),)),))
    moved, (inputs,) = cell_model.move_to_device(model, cell_of(precision), wide)
    expected = torch.complex128 if wide else torch.complex64
    assert moved.weight.dtype is expected and inputs.args[0].dtype is expected
    assert torch.equal(moved.weight, before.to(expected)) and torch.equal(inputs.args[0], given.to(expected))
    assert inputs.args[0].requires_grad


def test_no_build_is_shown_the_last_input_set() -> None:
    sets = tuple(Inputs((torch.full((2,), float(value)),)) for value in range(4))
    longer = (*sets[:3], Inputs((torch.zeros(3),)))
    decode = cell_of("fp32").model_copy(update={"task": "decode"})
    assert cell_model.shown_to_builds(sets, cell_of("fp32")) == sets[:-1]
    assert cell_model.shown_to_builds(longer, cell_of("fp32")) == longer
    assert cell_model.shown_to_builds(sets, decode) == sets and cell_model.shown_to_builds(sets[:1], decode) == sets[:1]


class Masked(nn.Module):
    """Takes a mask only if its first values are ones, and positions only if no two are the same.

    It takes any temperatures but zero.
    """

    def __init__(self, *, takes_masks: bool, takes_positions: bool) -> None:
        super().__init__()
        self.takes_masks, self.takes_positions = takes_masks, takes_positions

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, temperatures: torch.Tensor | None = None
    ) -> torch.Tensor:
        if temperatures is not None:
            x = x / temperatures
        if not self.takes_masks and not bool(mask.all()):
            return x * torch.nan
        if not self.takes_positions and len(positions.unique()) < positions.numel():
            raise IndexError("positions repeat")
        return x * mask + positions


@pytest.mark.parametrize(
    ("takes_masks", "takes_positions", "kinds"),
    [
        (True, True, ("masks", "whole numbers")),
        (True, True, ("masks", "whole numbers", "scales")),
        (True, False, ("masks",)),
        (False, True, ("whole numbers",)),
        (False, False, ()),
    ],
)
def test_input_sets_differ_in_masks_and_positions_as_far_as_eager_takes_it(
    takes_masks: bool, takes_positions: bool, kinds: tuple[str, ...]
) -> None:
    module = Masked(takes_masks=takes_masks, takes_positions=takes_positions)
    example = [torch.randn(1, 6), torch.ones(1, 6, dtype=torch.int64), torch.arange(6)[None]]
    example += [torch.ones(1, 6)] if "scales" in kinds else []
    model = with_own_inputs("mine", module, tuple(example))
    found, sets = sets_that_differ_most(model)
    assert found == kinds
    in_worker = model.understood(ModelTraits(changed_kinds=found)).inputs
    for place, kind in ((1, "masks"), (2, "whole numbers"), (3, "scales"))[: len(example) - 1]:
        assert torch.equal(sets[1].args[place], example[place]) == (kind not in kinds)
        assert torch.equal(sets[1].args[place], in_worker[1].args[place])


def of_kinds(count: int) -> nn.Module:
    return Calling(lambda own, x, kinds: x + own.table(kinds), table=nn.Embedding(count, 4))


@pytest.mark.parametrize(("count", "kinds", "stay"), [(2, ("zeros",), ()), (1, (), ("input 1",))])
def test_zeros_become_ones_if_eager_takes_that_and_else_they_are_named(
    count: int, kinds: tuple[str, ...], stay: tuple[str, ...]
) -> None:
    model = with_own_inputs("mine", of_kinds(count), (torch.randn(1, 6, 4), torch.zeros(1, 6, dtype=torch.int64)))
    found, sets = sets_that_differ_most(model)
    assert (found, eager_answers.inputs_that_stay(sets)) == (kinds, stay)


MASKED = """
import torch

class Masked(torch.nn.Linear):
    def forward(self, x, mask):
        return super().forward(x) if mask.all() else super().forward(x * mask[..., None])

def factory():
    return Masked(3, 3), (torch.rand(2, 4, 3), torch.ones(2, 4, dtype=torch.long))
"""


class Span(nn.Module):
    """Sums the values of a span. One of real numbers must end where it does in the example."""

    def forward(self, x: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1])
        if span.is_floating_point() and float(span[0, 1]) != 9:
            raise IndexError("the sizes do not fit")
        return (x * ((place >= span[:, :1]) & (place < span[:, 1:]))).sum(1)


@pytest.mark.parametrize(
    ("span", "second"),
    [
        ([[3, 9]], [[2, 9]]),
        ([[9, 3]], [[9, 2]]),
        ([[1, 9]], [[1, 8]]),
        ([[0, 9], [0, 9]], [[0, 8], [0, 8]]),
        ([[0.0, 9.0]], [[0.0, 9.0]]),
    ],
)
def test_pairs_of_whole_numbers_differ_if_eager_takes_that(span: list[list[float]], second: list[list[float]]) -> None:
    given = torch.tensor(span)
    model = with_own_inputs("mine", Span(), (torch.randn(len(span), 12), given))
    found, sets = sets_that_differ_most(model)
    assert found == (() if second == span else ("pairs",))
    assert torch.equal(sets[0].args[1], given) and torch.equal(sets[1].args[1], torch.tensor(second))


ROOT = Calling(lambda _, x: x.sqrt())


@pytest.mark.parametrize(
    ("module", "value", "kinds"),
    [
        (nn.ReLU(), 0.0, ("noise",)),
        (nn.ReLU(), 0.5, ("noise",)),
        (nn.ReLU(), -0.5, ("noise",)),
        (ROOT, 0.5, ("noise",)),
        (ROOT, 0.0, ()),
        (ROOT, 3.0, ("masks", "whole numbers")),
    ],
)
def test_constants_become_noise_if_eager_takes_that(module: nn.Module, value: float, kinds: tuple[str, ...]) -> None:
    given = torch.full((2, 3, 5, 5), value)
    model = with_own_inputs("mine", module, given)
    found, sets = sets_that_differ_most(model)
    assert found == kinds and torch.equal(sets[0].args[0], given)
    other = sets[1].args[0]
    assert not torch.equal(other, given) and (len(other.unique()) > 100) == ("noise" in kinds)
    again = model.understood(ModelTraits(changed_kinds=found)).inputs
    assert torch.equal(again[1].args[0], other), "each process makes the same noise"
    if value:
        assert bool((other.abs() <= abs(value)).all() and (other.sign() == given.sign()).all())


def test_an_input_that_decides_is_varied_by_the_inputs_that_take_the_other_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_answers, "sets_that_differ_most", lambda model, cell, module, sets, load: ((), sets))
    (folder / "masked.py").write_text(MASKED)
    cell = Cell(model="masked.py:factory", precision=Precision.FP32, backend="eager")
    found = reference.compute(ComputeReference(cell=cell, reference=folder / "reference.pt"), folder, folder)
    assert found.traits is not None and found.traits.decisions[0].goes_both_ways
    assert found.traits.unvaried_inputs == ()


BOXES = """
import torch

class Boxes(torch.nn.Module):
    def __init__(self, is_widest):
        super().__init__()
        self.table, self.is_widest = torch.nn.Embedding(32, 4), is_widest

    def forward(self, x, boxes):
        assert not self.is_widest or x.max() > 0.99
        return x[..., None] + self.table(boxes[..., 2] - boxes[..., 0])

def factory(batch=2, is_widest=0):
    left = torch.tensor([[29, 24, 27, 22, 25, 21], [22, 29, 21, 28, 23, 27]])[:batch]
    boxes = torch.stack([left, left % 7, left + 3, left % 7 + 5], -1)
    return Boxes(is_widest), (torch.linspace(1, 0, batch * 6).view(batch, 6), boxes)
"""


@pytest.mark.parametrize(
    ("sizes", "kinds", "stay"),
    [
        ({"batch": 2}, ("rows of whole numbers",), ()),
        ({"batch": 1}, ("rows of whole numbers",), ("input 1",)),
        ({"batch": 2, "is_widest": 1}, ("rows",), ()),
    ],
)
def test_sets_that_a_model_raises_for_are_milder_if_it_answers_its_example(
    sizes: dict[str, int | str], kinds: tuple[str, ...], stay: tuple[str, ...], folder: Path
) -> None:
    (folder / "boxes.py").write_text(BOXES)
    cell = Cell(model="boxes.py:factory", dimensions=sizes, precision=Precision.FP32, backend="eager")
    found = reference.compute(ComputeReference(cell=cell, reference=folder / "reference.pt"), folder, folder)
    assert (found.traits.changed_kinds, found.traits.unvaried_inputs) == (kinds, stay)
    assert not found.traits.needs_autograd


def test_indices_that_may_be_out_of_range_never_reach_a_gpu_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_own_inputs("mine", of_kinds(1), (torch.randn(1, 6, 4), torch.zeros(1, 6, dtype=torch.int64)))
    cell = cell_of("fp32").model_copy(update={"device": Device("cuda:0")})
    moved = list[Device]()

    def move(model: LoadedModel, cell: Cell, dtype: object = None) -> Any:
        moved.append(cell.device)
        return model.module, model.inputs

    monkeypatch.setattr(eager_answers, "move_to_device", move)
    assert eager_answers.sets_that_differ_most(model, cell, model.module, model.inputs, lambda: model)[0] == ()
    assert moved == [CPU]


@pytest.mark.parametrize(
    ("precision", "task"),
    [("bf16", "train_step"), ("int8", "inference"), pytest.param("bf16", "inference", marks=pytest.mark.slow)],
)
def test_the_exact_outputs_are_computed_once_for_all_precisions(folder: Path, task: str, precision: str) -> None:
    cell = cell_of("fp32").model_copy(update={"task": task, "compared": tuple(map(Precision, ("fp32", precision)))})
    files = {name: folder / f"{name}.pt" for name in ("fp32", "shared", "own")}
    reference.compute(ComputeReference(cell=cell, reference=files["fp32"]), folder, folder)
    other = cell.model_copy(update={"precision": Precision(precision)})
    shared = ComputeReference(cell=other, reference=files["shared"], first_reference=files["fp32"])
    reference.compute(shared, folder, folder, without_room_for("float64"))
    reference.compute(ComputeReference(cell=other, reference=files["own"]), folder, folder)
    found, expected = (Reference.load(files[name]) for name in ("shared", "own"))
    assert found.computed_in == expected.computed_in == "float64" and found.types == expected.types
    assert found.eager_rmse == pytest.approx(expected.eager_rmse) and min(found.eager_rmse) > 0
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        assert all(torch.equal(one, another) for one, another in zip(ours, theirs, strict=True))
    assert files["shared"].stat().st_size < files["own"].stat().st_size


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, training=True)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("name", ["Dropping", "Counting"])
def test_what_is_random_or_keeps_state_has_exact_outputs_of_each_precision(folder: Path, name: str) -> None:
    (folder / "mine.py").write_text(
        f"import torch\nfrom {__name__} import {name}\n\ndef make():\n    return {name}(), (torch.rand(2, 8),)\n"
    )
    cell = Cell(model="mine.py:make", backend="eager", compared=(Precision.FP32, Precision.BF16))
    first, second = folder / "first.pt", folder / "second.pt"
    reference.compute(ComputeReference(cell=cell, reference=first), folder, folder)
    other = cell.model_copy(update={"precision": Precision.BF16})
    reference.compute(ComputeReference(cell=other, reference=second, first_reference=first), folder, folder)
    assert not torch.load(second, weights_only=False)["outputs_in"]


def test_all_precisions_of_a_contest_have_the_same_model(folder: Path) -> None:
    """Large weights and inputs are drawn on the device, and another type draws others."""
    asked = {"model": "rope", "dimensions": {"batch": 1, "seq": 2, "heads": 1, "width": 4}, "backend": "eager"}
    compared = (Precision.FP32, Precision.BF16)
    drawn, same, alone = (
        next(iter(cell_model.load(Cell(**asked, **more)).inputs[0].tensors()))
        for more in (
            {"precision": "fp32", "compared": compared},
            {"precision": "bf16", "compared": compared},
            {"precision": "bf16"},
        )
    )
    assert same.dtype is torch.float32 and torch.equal(drawn, same)
    assert alone.dtype is torch.bfloat16


def test_a_training_step_is_not_checked_against_itself(folder: Path) -> None:
    step = cell_of("fp32").model_copy(update={"task": "train_step"})
    with pytest.raises(torch.OutOfMemoryError):
        Subject(step, folder, folder, outputs_in=without_room_for("float64")).exact()


@pytest.mark.parametrize(
    ("task", "precision", "lacking"),
    [("inference", "bf16", ("float64", "float32")), ("forward_backward", "fp32", ("float64",))],
)
def test_without_memory_for_anything_wider_eager_is_the_reference_and_a_wrong_answer_is_still_found(
    task: str, precision: str, lacking: tuple[str, ...], folder: Path
) -> None:
    cell = cell_of(precision).model_copy(update={"task": task})
    files = {}
    for name, outputs_in in (("exact", subject.outputs_in), ("eager", without_room_for(*lacking))):
        files[name] = folder / name
        reference.compute(ComputeReference(cell=cell, reference=files[name]), folder, folder, outputs_in)
    exact, known = (Reference.load(files[name]) for name in ("exact", "eager"))
    assert (exact.computed_in, known.computed_in) == ("float64", precision)
    model = cell_model.load(cell)
    with cell_model.gradients(task):
        placed = cell_model.move_to_device(model, cell)
        training = cell_model.training_of(model, cell)
        outputs = run_eager(*placed, training)
    names = training.describe_outputs(placed[1][0]) if training else ()
    assert accuracy.check(outputs, known, Precision(precision), names).passed
    # the estimate of eager's error is of the size of the true one
    for estimated, true in zip(known.eager_rmse, exact.eager_rmse, strict=True):
        assert true / 30 < estimated < 30 * true or max(estimated, true) < 1e-12
    doubled = [tuple(2 * tensor for tensor in one) for one in outputs]
    assert not accuracy.check(doubled, known, Precision(precision), names).passed


BROKEN = """
import torch
from helpers import multiplied

class Broken(torch.nn.Linear):
    def forward(self, x):
        return multiplied(x)

def factory():
    return Broken(3, 3), (torch.rand(2, 3),)
"""


@pytest.mark.parametrize("task", ["inference", "train_step"])
def test_a_model_that_fails_raises_its_own_error_before_anything_exact_is_computed(
    folder: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "helpers.py").write_text("def multiplied(x):\n    return x @ x\n")
    cell = Cell(model="broken.py:factory", task=task, precision=Precision.BF16, backend="eager")
    ours, theirs = Pipe()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as raised:
        reference.compute(
            ComputeReference(cell=cell, reference=folder / "reference"), folder, folder, connection=theirs
        )
    phases = ["model", "reference", "call"] * (2 if task == "inference" else 1)  # again without inference mode
    assert [receive_event(ours) for _ in phases] == [PhaseBegun(name=name) for name in phases]
    assert not ours.poll()
    assert last_frame_below(folder.resolve(), raised.value, folder / "broken.py") == "helpers.py, line 2, in multiplied"
    assert last_frame_below(Path("/elsewhere"), raised.value, Path("/elsewhere/broken.py")) == ""
    status, failure = explain(raised.value)
    assert (status, failure.kind, failure.raised_by) == (Status.ERROR, "RuntimeError", "helpers.multiplied")


def test_of_a_huge_output_the_same_places_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_COMPARED_ELEMENTS", most := 2**16)
    huge, small = torch.arange(most + 1), torch.arange(5)
    first, second = (thinned((huge, small)) for _ in range(2))
    assert [tensor.numel() for tensor in first] == [most, 5]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert first[0].unique().numel() > most // 2


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 64), (torch.complex64, 64), pytest.param(torch.float16, 8192, marks=pytest.mark.slow)],
)
def test_a_wrong_block_of_a_large_output_is_found_between_the_values_that_are_compared(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = MAX_COMPARED_ELEMENTS if dtype is torch.float16 else 2**18
    monkeypatch.setattr(calls, "MAX_COMPARED_ELEMENTS", most)
    exact = torch.randn(most + most // 4 + 5, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    reference = thinned((exact,))
    known = Reference((reference,), *errors_of_eager([thinned((exact.to(dtype),))], [reference]))
    precision = Precision.FP16 if dtype is torch.float16 else Precision.FP32
    ours = (exact * (1 + 2 * torch.finfo(dtype).eps * torch.rand(exact.shape))).to(dtype)
    assert accuracy.check([thinned((ours,))], known, precision).passed
    is_compared = torch.zeros(exact.numel(), dtype=torch.bool)
    is_compared[sampled_places(exact.numel(), most)] = True
    between = (~is_compared).nonzero().flatten()[-size:]
    right = ours[between]
    for wrong in (torch.zeros_like(right), right.flip(0)):
        ours[between] = wrong
        assert not accuracy.check([thinned((ours,))], known, precision).passed


class Tied(nn.Module):
    """Buffers, and a part that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.rand(3))
        self.register_buffer("steps", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(self.steps)):
            x = self.linear(x) + self.offset
        return x


def test_a_layerwise_model_is_exact_beside_its_own_weights() -> None:
    module = Tied().eval()
    sets = (Inputs((torch.randn(2, 3),)),)
    weights = [tensor.clone() for tensor in module.state_dict().values()]
    cell = cell_of("fp32")
    with torch.inference_mode():
        ((found,),) = subject.outputs_in(LoadedModel(module, sets, is_layerwise=True), cell, torch.float64)
    assert all(torch.equal(one, other) for one, other in zip(module.state_dict().values(), weights, strict=True))
    with torch.inference_mode():
        ((expected,),) = subject.outputs_in(LoadedModel(module, sets), cell, torch.float64)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.slow
def test_a_reference_and_a_placement_are_found_without_importing_the_compiler(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from bakeoff.measuring.messages import ComputeReference\n"
        "import torch; from bakeoff.backends import torch_kernels\n"
        "from bakeoff.measuring.worker import reference; from bakeoff.records.schema import Cell\n"
        "cell = Cell(model='mlp', dimensions={'batch': 2, 'features': 8, 'hidden': 8}, backend='eager')\n"
        "folder = Path(sys.argv[1])\n"
        "found = reference.compute(ComputeReference(cell=cell, reference=folder / 'outputs'), folder, folder)\n"
        "assert found.work is not None and found.work.flops == 768, found\n"
        "assert torch_kernels.placement(lambda: torch.ones(2) + 1).engines == {}\n"
        "assert 'torch._dynamo' not in sys.modules, 'it takes two seconds to import'\n"
    )
    python(script, tmp_path)


@pytest.mark.gpu
def test_a_call_of_eager_on_a_gpu_has_a_rough_time(folder: Path) -> None:
    dimensions = {"batch": 2, "features": 8, "hidden": 8}
    cell = Cell(model="mlp", dimensions=dimensions, backend="eager", device=Device("cuda:0"))
    found = reference.compute(ComputeReference(cell=cell, reference=folder / "reference.pt"), folder, folder)
    assert 0 < found.eager_call.host_ms <= found.eager_call.call_ms < 1000


def test_strong_noise_is_no_witness_where_the_model_fails_with_weak_noise(folder: Path) -> None:
    known = Subject(cell_of("fp32"), folder, folder)
    eager = run_eager(*cell_model.move_to_device(known.load(), known.cell))
    may_jump = eager_answers.AsItIs(known.traits, eager, len(eager), may_jump=True)
    known.runs_with_noise = {1: (eager, eager), 16: (eager, eager)}
    assert len(reference.rounded_otherwise(known, may_jump, None)) == 4
    known.runs_with_noise[1] = ()
    assert reference.rounded_otherwise(known, may_jump, None) == ()


def test_an_eager_that_is_far_off_in_few_slices_has_noisy_witnesses(folder: Path) -> None:
    known = Subject(cell_of("fp32"), folder, folder)
    known.runs_with_noise = {1: ((), ()), 16: ((), ())}
    exact = torch.randn(64, 8, dtype=torch.float64)
    eager = exact.float()

    def witnesses() -> int:
        as_is = eager_answers.AsItIs(known.traits, ((eager,),), 1)
        return len(reference.rounded_otherwise(known, as_is, ((exact,),)))

    assert witnesses() == 0
    eager[:40] += 1e-2  # it is as far off in most
    assert witnesses() == 0
    eager[:40] -= 1e-2
    eager[7] += 1e-2
    assert witnesses() == 4


def test_stronger_noise_moves_each_result_further(folder: Path) -> None:
    known = Subject(cell_of("fp32"), folder, folder)
    eager = run_eager(*cell_model.move_to_device(known.load(), known.cell))[0]
    usual, strong = ([float((run[0][0] - eager[0]).norm()) for run in known.noisy(roundings)] for roundings in (1, 16))
    assert len(usual) == len(strong) == 2
    assert 4 * max(usual) < min(strong) < max(strong) < 64 * min(usual)


@pytest.mark.parametrize("factory", ["factory", "mixed", "jacobian"])
def test_a_model_that_needs_autograd_is_called_outside_of_inference_mode(folder: Path, factory: str) -> None:
    job = ComputeReference(cell=case(f"forces.py:{factory}"), reference=folder / "outputs.pt")
    found = reference.compute(job, folder, folder)
    assert found.traits is not None and found.traits.needs_autograd
    known = Reference.load(folder / "outputs.pt")
    assert (known.computed_in, known.traits.needs_autograd) == ("float64", True)


def test_what_no_float32_can_hold_is_expected_as_eager_gives_it() -> None:
    exact = ((torch.tensor([1.0, -1.7e308, float("inf")], dtype=torch.float64), torch.tensor([1])),)
    eager = [(torch.tensor([1.5, -3.4e38, float("inf")]), torch.tensor([1]))]
    ((values, indices),) = within_float32(exact, eager)
    assert values.tolist() == [1.0, eager[0][0][1].item(), float("inf")] and indices is exact[0][1]
    usual = ((torch.tensor([1.0], dtype=torch.float64),),)
    assert within_float32(usual, [(torch.tensor([2.0]),)]) is usual


def test_a_noisy_run_that_fails_is_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def refuse(*_: object, **__: object) -> None:
        runs.append("run")
        raise ValueError("beyond its range")

    monkeypatch.setattr("bakeoff.measuring.worker.subject.run_eager", refuse)
    known = Subject(cell_of("fp32"), folder, folder)
    assert known.noisy() == known.noisy() == ()
    assert runs == ["run"]


def test_types_that_stay_are_not_called_cast_and_other_remarks_stay(folder: Path) -> None:
    (folder / "mixed.py").write_text(MIXED)
    cell = Cell(model="mixed.py:factory", backend="eager")
    found = reference.compute(ComputeReference(cell=cell, reference=folder / "outputs.pt"), folder, folder)
    assert found.traits is not None and found.traits.keeps_types
    (form,) = found.traits.forms
    assert "training mode" in form


MIXED = """
import torch
from torch import nn

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = nn.Linear(8, 8).half(), nn.Dropout(), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.dropout(self.first(x.half()).float()))

def factory():
    return Mixed().train(), torch.randn(4, 8)
"""
