"""Inductor's mode `surgical` compiles only the modules that are named."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends import surgical
from bakeoff.backends.base import SURGICAL
from bakeoff.backends.surgical import Outside, find_repeated, find_targets, stays_outside
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.records.errors import Unsupported, UsageError
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import Built, built, loaded


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.activation = nn.Sequential(nn.GELU(), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.linear(x))
        return torch.sinh(activated)


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block()).eval()


def with_targets() -> LoadedModel:
    sets = tuple(Inputs((torch.randn(4, 8),)) for _ in range(INPUT_SETS))
    return LoadedModel(blocks(), sets, surgical_targets=("*.activation",))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*.activation"], ["0.activation", "1.activation"]),
        (["1.linear", "0.linear"], ["1.linear", "0.linear"]),
        (["0*", "*.linear"], ["0", "1.linear"]),
    ],
)
def test_patterns_find_modules_and_the_outermost_one_holds_its_parts(patterns: list[str], expected: list[str]) -> None:
    module = blocks()
    found = find_targets(module, patterns)
    assert list(found) == expected
    assert all(found[name] is module.get_submodule(name) for name in found)


def test_a_pattern_that_matches_nothing_names_the_nearest_module() -> None:
    with pytest.raises(UsageError, match=r"module in --surgical '0\.linaer': did you mean '0\.linear'"):
        find_targets(blocks(), ["*.activation", "0.linaer"])


def test_a_model_without_targets_says_how_to_name_them() -> None:
    with pytest.raises(Unsupported, match=r"--surgical 'layers\.\*\.rope'"):
        find_targets(blocks(), ())


def test_operators_are_counted_where_they_run_outside_of_the_targets() -> None:
    module = blocks()
    inputs = Inputs((torch.randn(4, 8),))
    with torch.inference_mode():
        outside = stays_outside(module, find_targets(module, ["*.activation"]), inputs).operators
        everything = stays_outside(module, {}, inputs).operators
    assert "aten.sinh" in outside and outside["aten.sinh"] == 2
    assert "aten.gelu" not in outside and everything["aten.gelu"] == 2
    assert outside["aten.addmm"] + outside["aten.linear"] == 2


class Foreign(nn.Module):
    """A layer of a library that bypasses the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() @ self.weight.numpy().T)


ForeignLinear = type("Linear", (Foreign,), {"__module__": "transformer_engine.pytorch.module.linear"})


class Wrapper(nn.Module):
    """A layer of another library, hidden from `modules`, with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self._engine = (ForeignLinear(),)
        self.weight = self._engine[0].weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._engine[0](x)
        return result


class Rounding(nn.Module):
    """A layer with a part that has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.round = nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.round(x) @ self.weight
        return product


def test_modules_outside_are_counted_by_class_though_their_operators_pass_the_dispatcher_by() -> None:
    shared = nn.Linear(8, 8)
    module = nn.Sequential(ForeignLinear(), shared, nn.Sequential(nn.GELU(), ForeignLinear()), Wrapper(), shared).eval()
    inputs = Inputs((torch.randn(4, 8),))
    with torch.inference_mode():
        some = stays_outside(module, find_targets(module, ["2.0"]), inputs)
        fewer = stays_outside(module, find_targets(module, ["2", "3"]), inputs)
    assert some.modules == {"te.Linear": 3, "Linear": 1}
    assert fewer.modules == {"te.Linear": 1, "Linear": 1}
    assert set(some.operators) <= {"aten.linear", "aten.addmm"}


def test_a_layer_with_weights_is_one_module_whatever_it_calls_and_has_its_packages_name() -> None:
    module = nn.Sequential(Rounding(), nn.Tanh(), Rounding()).eval()
    with torch.inference_mode():
        outside = stays_outside(module, {}, Inputs((torch.randn(4, 8),)))
    assert outside.modules == {"tests.Rounding": 2, "Tanh": 1}


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="inductor", mode=SURGICAL)
    with built(cell, tmp_path_factory.mktemp("surgical"), with_targets()) as one:
        yield one


def test_what_is_compiled_computes_what_it_computed_before(operated: Built) -> None:
    expected = [blocks_of(operated, inputs) for inputs in operated.sets]
    for inputs, exact in zip(operated.sets, expected, strict=True):
        torch.testing.assert_close(operated.call(inputs)[0], exact)


def blocks_of(operated: Built, inputs: Inputs) -> Tensor:
    """Return the module's outputs without the compiled `forward` of its parts."""
    (x,) = inputs.tensors()
    assert isinstance(operated.module, nn.Sequential)
    for block in operated.module:
        x = torch.sinh(nn.functional.gelu(block.linear(x)).tanh())
    return x


def test_the_record_lists_what_was_compiled_and_what_stayed_out(operated: Built) -> None:
    assert operated.compiled.settings()["compiled_modules"] == "0.activation, 1.activation"
    placement = operated.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert placement.engines["modules compiled"] == 2
    assert placement.engines["eager operators"] == 4
    assert placement.engines["eager modules"] == 2
    assert placement.fallbacks[0] == "modules that stayed eager: Linear (2)"
    assert "aten.sinh stayed eager (2)" in placement.fallbacks
    assert not any("gelu" in fallback for fallback in placement.fallbacks)


def test_closing_gives_the_parts_their_own_forward_back(tmp_path: Path) -> None:
    module = blocks()
    targets = find_targets(module, ["*.activation"])
    for part in targets.values():
        part.forward = torch.compile(part.forward, backend="eager")
    assert all("forward" in vars(part) for part in targets.values())
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="eager")
    with built(cell, tmp_path, with_targets()) as eager:
        surgical.SurgicalModule(eager.compiled, targets, Outside()).close()
    assert not any("forward" in vars(part) for part in targets.values())


def test_every_operator_that_stayed_out_is_named_the_most_frequent_first(tmp_path: Path) -> None:
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="eager")
    with built(cell, tmp_path, with_targets()) as eager:
        operators = Counter({f"aten.op{number}": number for number in range(1, 31)})
        modules = Counter({f"some.Layer{number}": number for number in range(1, surgical.MAX_CLASSES_SHOWN + 3)})
        placement = surgical.SurgicalModule(eager.compiled, {}, Outside(operators, modules)).placement()
    first, *others = placement.fallbacks
    assert first.startswith("modules that stayed eager: some.Layer8 (8), some.Layer7 (7), ")
    assert first.endswith("some.Layer3 (3) and 2 others")
    assert others == [f"aten.op{number} stayed eager ({number})" for number in range(30, 0, -1)]


class Numbered(Block):
    """A block that knows its place, and reads it as a number."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.place


def repeating() -> nn.Module:
    layers = nn.ModuleDict({"stem": nn.Linear(8, 8), "layers": nn.Sequential(*map(Numbered, range(4)))})
    return nn.Sequential(layers["stem"], layers["layers"], nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))).eval()


def test_layers_that_repeat_are_found_by_their_class_and_shapes() -> None:
    assert list(find_repeated(repeating())) == [f"1.{place}" for place in range(4)]
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)))
    assert list(find_repeated(inner)) == ["0", "1"], "what is inside of them repeats, too"
    with pytest.raises(Unsupported, match=r"^the model repeats no layer, .*: use inductor$"):
        find_repeated(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.ReLU(), nn.ReLU()))


@pytest.mark.slow
def test_one_of_the_layers_that_repeat_is_compiled_for_all(tmp_path: Path) -> None:
    model = loaded(repeating(), 4, 8)
    with built(Cell(model="own", backend="inductor", mode="regional"), tmp_path, model) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
        assert one.compiled.recompiled() == ()
    assert placement is not None and placement.engines["modules compiled"] == 4
    # one for the first layer, and one where its place is an input
    assert placement.engines["inductor graphs"] <= 2
    assert placement.fallbacks[0] == "modules that stayed eager: Linear (3)"
