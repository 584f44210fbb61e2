"""A call as flat tensors, and back."""

import dataclasses
import enum
import weakref
from collections.abc import Callable

import pytest
import torch

from bakeoff_hotpath.flattening import Weights, key_of, rebuilder, tensors_in
from plugins.hotpath.tests.fakes import flat_of


class Tied(torch.nn.Module):
    """Two names for one weight, a buffer, a constant argument, and outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.second = torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, rows: torch.Tensor, scale: float = 1.0) -> dict[str, object]:
        shift = self.get_buffer("shift")
        return {"hidden": self.first(rows) * scale, "out": (self.second(rows) + shift, "done")}


def test_a_flat_module_computes_what_the_module_does() -> None:
    module, rows = Tied(), torch.randn(2, 3)
    flat, tensors = flat_of(module, rows)
    assert len(tensors) == 3, "the tied weight once, the buffer and the input"
    expected = module(rows)
    outputs = rebuilder(expected)(list(flat(*tensors)))
    assert torch.equal(outputs["hidden"], expected["hidden"])
    assert torch.equal(outputs["out"][0], expected["out"][0]) and outputs["out"][1] == "done"


def test_a_flat_module_computes_with_the_weights_it_is_given() -> None:
    module, rows = Tied(), torch.randn(2, 3)
    flat, (weight, shift, _) = flat_of(module, rows)
    hidden, out = flat(2 * weight.detach(), shift, rows)
    torch.testing.assert_close(hidden, 2 * module(rows)["hidden"])
    torch.testing.assert_close(out, 2 * module.second(rows) + 1)


def test_weights_may_change_and_be_replaced_by_others_of_their_kind() -> None:
    module = torch.nn.Linear(2, 2)
    weights = Weights(module)
    module.weight.data = torch.zeros(2, 2)
    module.bias = torch.nn.Parameter(torch.ones(2))
    current = weights.current()
    assert current is not None and current[0] is module.weight and current[1] is module.bias


def widen(module: torch.nn.Linear) -> None:
    module.weight = torch.nn.Parameter(torch.ones(3, 2))


def drop_bias(module: torch.nn.Linear) -> None:
    module.bias = None


@pytest.mark.parametrize(
    "change",
    [lambda module: module.double(), widen, drop_bias, lambda module: module.weight.requires_grad_(False)],
)
def test_there_are_no_current_weights_once_one_is_of_another_kind(change: Callable[[torch.nn.Linear], object]) -> None:
    module = torch.nn.Linear(2, 2)
    weights = Weights(module)
    change(module)
    assert weights.current() is None


def filled() -> torch.nn.Module:
    """Return a module with an empty place, a tensor as a plain attribute, and a tied weight."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[2].weight = model[1].weight
    model[0].table = torch.ones(2)
    model[0].scale, model[0].count, model[0].kind = 0.5, 1000, "wide"
    return model


def replace_layer(model: torch.nn.Module) -> None:
    model[1] = torch.nn.Linear(2, 2)


def untie_weight(model: torch.nn.Module) -> None:
    model[1].weight = torch.nn.Parameter(torch.ones(2, 2))


def fill_empty_place(model: torch.nn.Module) -> None:
    model[0].bias = torch.nn.Parameter(torch.ones(2))


def shorten_at_the_same_address(model: torch.nn.Module) -> None:
    model[0].weight.data = model[0].weight.data[:1]


def transpose_at_the_same_address(model: torch.nn.Module) -> None:
    model[0].weight.data = model[0].weight.data.t()


def change_type_at_the_same_address(model: torch.nn.Module) -> None:
    model[0].weight.data = model[0].weight.data.view(torch.bfloat16)[:, ::2]


def replace_table(model: torch.nn.Module) -> None:
    model[0].table = torch.ones(2)


def change_number(model: torch.nn.Module) -> None:
    model[0].scale = 0.25


def change_type_of_number(model: torch.nn.Module) -> None:
    model[0].count = 1000.0


@pytest.mark.parametrize(
    "change",
    [
        replace_layer,
        untie_weight,
        fill_empty_place,
        lambda model: model.append(torch.nn.Linear(2, 2)),
        shorten_at_the_same_address,
        transpose_at_the_same_address,
        change_type_at_the_same_address,
        replace_table,
        lambda model: model[0].table.zero_(),
        change_number,
        change_type_of_number,
        lambda model: delattr(model[0], "kind"),
        torch.jit.script,
    ],
)
def test_there_are_no_current_weights_once_what_compiled_code_takes_for_granted_has_changed(
    change: Callable[[torch.nn.Module], object],
) -> None:
    model = filled()
    weights = Weights(model)
    current = weights.current()
    assert current is not None and len(current) == len(weights.names) == 4
    changed = change(model)
    assert (Weights(changed) if isinstance(changed, torch.jit.ScriptModule) else weights).current() is None


def test_an_attribute_may_be_set_to_an_equal_value_and_modes_may_change() -> None:
    model = filled()
    weights = Weights(model)
    model[0].scale, model[0].count, model[0].kind = float("0.5"), int("1000"), "".join(("wi", "de"))
    model.eval()
    assert weights.current() is not None


def test_tied_weights_may_be_replaced_together() -> None:
    model = filled()
    weights = Weights(model)
    model[1].weight = model[2].weight = torch.nn.Parameter(torch.zeros(2, 2))
    current = weights.current()
    assert current is not None and any(tensor is model[1].weight for tensor in current)


def test_calls_that_must_not_share_code_have_different_keys() -> None:
    rows = torch.ones(4, 6)
    keys = {
        key_of((one,), {})
        for one in (rows, rows.t(), rows[:2], rows.double(), rows.clone().requires_grad_(), rows.flatten()[1:5])
    }
    assert len(keys) == 6
    assert key_of((rows, 1), {}) != key_of((rows, 2), {}) != key_of((rows,), {"scale": 2})
    assert key_of((rows,), {}) == key_of((torch.zeros(4, 6),), {})
    assert key_of((rows, object.__new__(Unhashable)), {}) is None
    assert key_of((rows, Options()), {}) is None, "what is in it may change, and may be large"
    assert key_of((rows, Point.ORIGIN), {}) is None, "it is an enumeration, and has no hash"
    assert key_of((rows, Side.LEFT, torch.float16), {}) != key_of((rows, Side.RIGHT, torch.float16), {})


def test_equal_values_of_other_types_have_different_keys() -> None:
    rows = torch.ones(2)
    assert len({key_of((rows, scale), {}) for scale in (1, 1.0, True)}) == 3


class Named(torch.Tensor):
    """A class of its own, which compiled code would not return."""


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.ones(3, device="meta"),
        lambda: torch.ones(3).as_subclass(Named),
    ],
)
def test_a_tensor_that_compiled_code_cannot_take_has_no_key(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    assert key_of((tensor,), {}) is None and key_of((torch.ones(2), [tensor]), {}) is None
    module = torch.nn.Linear(2, 2)
    module.register_buffer("strange", tensor)
    weights = Weights(module)
    assert not weights.are_fit and weights.current() is None


def test_tensors_inside_a_transform_have_no_key() -> None:
    keys = []

    def told(rows: torch.Tensor) -> torch.Tensor:
        keys.append(key_of((rows,), {}))
        return rows.sum()

    torch.vmap(told)(torch.ones(2, 3))
    torch.func.grad(told)(torch.ones(3))
    assert keys == [None, None]


class Options:
    scale = 2.0


@dataclasses.dataclass
class At:
    place: int


class Point(At, enum.Enum):
    ORIGIN = 0


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def test_a_rebuilder_keeps_no_output_alive() -> None:
    outputs = {"loss": torch.ones(2), "name": "x", "logits": (torch.ones(3), 4)}
    gone = weakref.ref(outputs["loss"])
    rebuild = rebuilder(outputs)
    del outputs
    assert gone() is None
    one, two = torch.zeros(2), torch.zeros(3)
    assert rebuild([one, two]) == {"loss": one, "name": "x", "logits": (two, 4)}


def test_tensors_come_in_the_order_of_a_tree() -> None:
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [tensor.numel() for tensor in tensors_in(((one, 5), two), {"x": [three]})] == [1, 2, 3]
    assert [tensor.numel() for tensor in tensors_in((two, one), {})] == [2, 1]
