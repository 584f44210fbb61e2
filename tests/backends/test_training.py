"""A step of training gives what it should, and a wrong step is found out."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bakeoff import backends
from bakeoff.backends import training as trainings
from bakeoff.backends.eager import Steps
from bakeoff.backends.training import MAX_COMPARED_ELEMENTS, Training, mean_square
from bakeoff.measuring.worker.cell_model import move_to_device, training_of
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import FORWARD_BACKWARD, TASKS, TRAIN_STEP, Accuracy, Cell
from bakeoff.truth import accuracy
from bakeoff.truth.calls import run_eager
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference
from tests.support.modules import Calling

TRAINING_TASKS = (FORWARD_BACKWARD, TRAIN_STEP)


def loaded(width: int = 12, seed: int = 0) -> LoadedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.GELU(), nn.Linear(width, 3))
        return LoadedModel(module.eval(), tuple(Inputs((torch.randn(5, 6),)) for _ in range(4)))


def training_on(model: LoadedModel, cell: Cell) -> Training:
    found = training_of(model, cell)
    assert found is not None
    return found


def cell_of(task: str, precision: str = "fp32", backend: str = "eager", mode: str = "default") -> Cell:
    return Cell(model="own", task=task, precision=precision, backend=backend, mode=mode)


def checked(task: str, precision: str, change: Callable[[Training], None] = lambda _: None) -> Accuracy:
    """Check eager, with `change` made to it, against the reference, as the harness does."""
    cell = cell_of(task, precision)
    exact, eager = loaded(), loaded()
    reference = run_eager(*move_to_device(exact, cell, torch.float64), training_of(exact, cell))
    placed = move_to_device(eager, cell)
    outputs = run_eager(*placed, training_of(eager, cell))
    other = loaded()
    sets = move_to_device(other, cell)[1]
    training = training_on(other, cell)
    change(training)
    ours = run_eager(other.module, sets, training)
    errors = errors_of_eager(outputs, reference)
    return accuracy.check(ours, Reference(reference, *errors), Precision(precision), training.describe_outputs(sets[0]))


@pytest.mark.parametrize("task", TRAINING_TASKS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_eager_passes_its_own_check(task: str, precision: str) -> None:
    found = checked(task, precision)
    assert found.passed, found.rule


def wrong_gradient(training: Training) -> None:
    """Leave out one row in twelve of one weight's gradient."""
    weight = training.module[0].weight

    def backward(loss: Tensor) -> None:
        Training.backward(training, loss)
        weight.grad[0] = 0

    training.backward = backward  # type: ignore[method-assign]


def added_up(training: Training) -> None:
    """Never drop gradients."""
    training.forget_gradients = lambda inputs=None: None  # type: ignore[method-assign]


def never_stepped(training: Training) -> None:
    training.optimise = lambda: None  # type: ignore[method-assign]


def plain_descent(training: Training) -> None:
    """Use SGD in place of AdamW."""
    descent = torch.optim.SGD(training.module.parameters(), lr=trainings.LEARNING_RATE)
    training.optimise = lambda: descent.step()  # type: ignore[method-assign]


def updating(change: Callable[[str, Tensor, Tensor], None]) -> Callable[[Training], None]:
    """Plant a fault in the optimiser: `change(name, before, after)` alters each parameter `after` in place."""

    def plant(training: Training) -> None:
        parameters = dict(training.module.named_parameters())

        def optimise() -> None:
            before = {name: one.detach().clone() for name, one in parameters.items()}
            Training.optimise(training)
            with torch.no_grad():
                for name, one in parameters.items():
                    change(name, before[name], one)

        training.optimise = optimise  # type: ignore[method-assign]

    return plant


def skipping(*names: str) -> Callable[[Training], None]:
    """Plant a step that leaves some parameters alone."""

    def skip(name: str, before: Tensor, after: Tensor) -> None:
        if name in names:
            after.copy_(before)

    return updating(skip)


def moving_a_hundredfold(wild: str) -> Callable[[Training], None]:
    """Plant a step that moves one parameter a hundred times too far. In bfloat16 it should not move at all."""

    def move(name: str, before: Tensor, after: Tensor) -> None:
        if name == wild:
            after.copy_(before - 100 * 0.48 * trainings.LEARNING_RATE)

    return updating(move)


def with_group(**options: float | tuple[float, float]) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.optimiser.param_groups[0].update(options)

    return change


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("task", "change"),
    [
        (FORWARD_BACKWARD, wrong_gradient),
        (FORWARD_BACKWARD, added_up),
        (TRAIN_STEP, never_stepped),
        (TRAIN_STEP, plain_descent),
        (TRAIN_STEP, with_group(lr=2e-3)),
    ],
)
def test_what_is_wrong_is_called_wrong(precision: str, task: str, change: Callable[[Training], None]) -> None:
    found = checked(task, precision, change)
    assert not found.passed
    assert found.rule.startswith(("gradient of", "change of"))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (skipping("0.weight"), "change of 0.weight"),  # the largest
        (skipping("3.weight", "3.bias"), "change of 3."),
        (skipping("3.weight"), "change of 3.weight"),
        (skipping("0.weight", "1.bias", "3.weight", "3.bias"), "change of "),
        (moving_a_hundredfold("1.weight"), "change of 1.weight"),
    ],
)
def test_a_step_that_leaves_a_parameter_alone_or_throws_one_about_is_wrong_in_bfloat16(
    change: Callable[[Training], None], rule: str
) -> None:
    found = checked(TRAIN_STEP, "bf16", change)
    assert not found.passed
    assert found.rule.startswith(rule)
    assert found.relative_rmse > 0.95


def test_what_bfloat16_cannot_hold_is_counted_and_nobodys_error() -> None:
    """The normalisation's weight stays at 1, and the gradient of the bias before it is only rounding."""
    found = checked(TRAIN_STEP, "bf16")
    assert (found.changes, found.changes_unheld) == (6, 2)
    assert found.passed and found.relative_rmse < 0.9
    same = checked(TRAIN_STEP, "bf16", skipping("0.bias", "1.weight"))
    assert same.passed and same.relative_rmse == found.relative_rmse
    assert checked(TRAIN_STEP, "fp32").changes_unheld == checked(FORWARD_BACKWARD, "bf16").changes == 0


@pytest.mark.parametrize(
    "options", [{"betas": (0.8, 0.999)}, {"betas": (0.9, 0.99)}, {"weight_decay": 0.0}, {"eps": 1e-3}]
)
def test_in_float32_every_hyperparameter_shows(options: dict[str, float | tuple[float, float]]) -> None:
    assert not checked(TRAIN_STEP, "fp32", with_group(**options)).passed


def test_gradients_are_autograds() -> None:
    model = loaded()
    reference = copy.deepcopy(model.module).train()
    (x,) = model.inputs[0].args
    expected = torch.autograd.grad(reference(x).square().mean(), list(reference.parameters()))
    (outputs, *_) = run_eager(
        *move_to_device(model, cell_of(FORWARD_BACKWARD)), training_of(model, cell_of(FORWARD_BACKWARD))
    )
    torch.testing.assert_close(outputs[0], reference(x).square().mean().detach())
    for ours, theirs in zip(outputs[1:], expected, strict=True):
        torch.testing.assert_close(ours, theirs.reshape(-1))


def test_a_gradient_of_rounding_alone_does_not_decide() -> None:
    """The normalisation cancels the first layer's bias. The bias has a gradient of 1e-9, and Adam still moves it."""
    model, cell = loaded(), cell_of(TRAIN_STEP)
    module, sets = move_to_device(model, cell)
    training = training_on(model, cell)
    names = [str(one) for one in training.describe_outputs(sets[0])]
    outputs = run_eager(module, sets, training)[0]
    assert len(names) == len(outputs)
    gradient, change = (outputs[names.index(f"{kind} of 0.bias")] for kind in ("gradient", "change"))
    assert gradient.abs().max() < 1e-6
    assert change.abs().max() < 1e-4 * trainings.LEARNING_RATE
    assert outputs[names.index("change of 3.weight")].abs().max() > 0.1 * trainings.LEARNING_RATE


def test_a_step_is_adamws_eleventh_with_moments_of_zero() -> None:
    model, cell = loaded(), cell_of(TRAIN_STEP)
    move_to_device(model, cell)
    weight = model.module[0].weight
    before = weight.detach().clone()
    training = training_on(model, cell)
    torch.testing.assert_close(weight.detach(), before)
    training.restore()
    training.step(*model.inputs[0].args)
    gradient = weight.grad
    (first, second), steps = trainings.BETAS, trainings.STEPS_BEFORE + 1
    mean = (1 - first) * gradient / (1 - first**steps)
    square = (1 - second) * gradient.square() / (1 - second**steps)
    decayed = before * (1 - trainings.LEARNING_RATE * trainings.WEIGHT_DECAY)
    expected = decayed - trainings.LEARNING_RATE * mean / (square.sqrt() + trainings.EPSILON)
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("task", TRAINING_TASKS)
def test_restoring_goes_back_to_the_first_bit_in_move_to_device(task: str) -> None:
    model, cell = loaded(), cell_of(task)
    move_to_device(model, cell)
    before = copy.deepcopy(model.module.state_dict())
    training = training_on(model, cell)
    training.restore()
    addresses = [tensor.data_ptr() for tensor in model.module.state_dict().values()]
    first = [float(training.step(*one.args)) for one in model.inputs]
    assert not torch.equal(model.module[1].running_mean, before["1.running_mean"])
    training.restore()
    now = model.module.state_dict()
    assert all(torch.equal(now[name], tensor) for name, tensor in before.items())
    assert [tensor.data_ptr() for tensor in now.values()] == addresses
    assert [float(training.step(*one.args)) for one in model.inputs] == first


def test_the_optimiser_changes_parameters_and_forward_backward_does_not() -> None:
    for task, changes in ((TRAIN_STEP, True), (FORWARD_BACKWARD, False)):
        model, cell = loaded(), cell_of(task)
        before = model.module[0].weight.detach().clone()
        training = training_on(model, cell)
        training.step(*model.inputs[0].args)
        assert torch.equal(model.module[0].weight.detach(), before) is not changes


WITHOUT_PARAMETERS = Calling(lambda _, x, y: x * y)


def test_inputs_that_ask_for_gradients_get_them() -> None:
    sets = tuple(Inputs((torch.randn(3, 2), torch.randn(3, 2))) for _ in range(4))
    model, cell = LoadedModel(WITHOUT_PARAMETERS, sets, input_gradients=True), cell_of(FORWARD_BACKWARD)
    module, placed = move_to_device(model, cell)
    for given, (loss, *found) in zip(sets, run_eager(module, placed, training_of(model, cell)), strict=True):
        x, y = given.args
        torch.testing.assert_close(loss, (x * y).square().mean())
        torch.testing.assert_close(found[0], (2 * x * y * y / 6).reshape(-1))
        torch.testing.assert_close(found[1], (2 * x * x * y / 6).reshape(-1))
    assert not any(tensor.requires_grad for one in sets for tensor in one.tensors())


def test_gradients_of_inputs_do_not_stay_with_the_next_set() -> None:
    sets = tuple(Inputs((torch.randn(3, 2), torch.randn(3, 2))) for _ in range(4))
    model, cell = LoadedModel(WITHOUT_PARAMETERS, sets, input_gradients=True), cell_of(FORWARD_BACKWARD)
    _, placed = move_to_device(model, cell)
    training = training_on(model, cell)
    steps = Steps(training)
    for one in placed:
        steps.bind(one)
        steps.run()
    assert [sum(tensor.grad is not None for tensor in one.tensors()) for one in placed] == [0, 0, 0, 2]


def test_a_model_without_parameters_has_no_step() -> None:
    with pytest.raises(Unsupported, match="no parameter to train: use --task forward_backward"):
        Training(WITHOUT_PARAMETERS, None, TRAIN_STEP)


def test_a_model_without_a_floating_output_has_no_loss() -> None:
    with pytest.raises(TypeError, match="no floating-point output"):
        mean_square((torch.ones(3, dtype=torch.int64),))


def test_the_models_own_loss_gets_outputs_and_arguments() -> None:
    module = nn.Linear(2, 1)

    def loss(outputs: Tensor, x: Tensor) -> Tensor:
        return (outputs - x.sum(-1, keepdim=True)).abs().sum()

    model = LoadedModel(module, (Inputs((torch.tensor([[1.0, 2.0]]),)),), loss)
    training = training_on(model, cell_of(FORWARD_BACKWARD))
    expected = (module(model.inputs[0].args[0]) - 3).abs().item()
    assert float(training.step(*model.inputs[0].args)) == pytest.approx(expected)


def test_of_a_large_gradient_the_same_places_stand_for_all() -> None:
    module = nn.Linear(MAX_COMPARED_ELEMENTS, 2, bias=False)
    model = LoadedModel(module, (Inputs((torch.randn(3, MAX_COMPARED_ELEMENTS),)),))
    found = [run_eager(module.train(), model.inputs, Training(module, None, FORWARD_BACKWARD))[0][1] for _ in range(2)]
    assert found[0].shape == (MAX_COMPARED_ELEMENTS,)
    assert torch.equal(*found)
    assert module.weight.grad is None  # the steps are over
    assert found[0].unique().numel() > MAX_COMPARED_ELEMENTS // 2


def test_dropout_is_off_in_training() -> None:
    model = LoadedModel(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (Inputs((torch.randn(2, 4),)),))
    training = training_of(model, cell_of(FORWARD_BACKWARD))
    move_to_device(model, cell_of(FORWARD_BACKWARD))
    assert training is not None and model.module.training
    assert training.step(*model.inputs[0].args) == training.step(*model.inputs[0].args)


def test_the_parts_of_a_step_together_are_the_step() -> None:
    model, cell = loaded(), cell_of(TRAIN_STEP)
    module, sets = move_to_device(model, cell)
    training = training_on(model, cell)
    steps = Steps(training)
    steps.bind(sets[0])
    steps.restore()
    steps.run()
    whole = steps.outputs()
    steps.restore()
    for _, part in steps.stages():
        part()
    assert all(torch.equal(one, other) for one, other in zip(whole, steps.outputs(), strict=True))
    assert module.training


@pytest.mark.parametrize("name", backends.TABLE)
def test_what_does_not_train_says_why(name: str) -> None:
    backend = backends.create(name)
    for task in TRAINING_TASKS:
        answer = backend.supports(cell_of(task, backend=name))
        assert bool(answer) is (task in backend.tasks)
        if not answer:
            assert answer.reason == f"{name} does not do task '{task}': its graph is inference's and has no backward"
        elif backend.quantises:
            assert "nothing is trained in int8" in backend.supports(cell_of(task, "int8", name)).reason
    assert backend.tasks[:1] == (() if name == "onnxruntime-genai" else TASKS[:1])  # it does nothing but generate
