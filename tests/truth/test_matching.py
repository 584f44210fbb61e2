"""Everything that a model returns is matched with what a build returned, and the reference is float64."""

import math
import warnings
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from bakeoff.backends.calling import FlatModule, Returned, comparable, flatten_outputs, returned_by_call
from bakeoff.backends.eager import Callables
from bakeoff.backends.plain_dispatch import OperatorWatch
from bakeoff.measuring.worker import subject
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL, Accuracy, Cell
from bakeoff.truth.accuracy import Outputs, check
from bakeoff.truth.calls import are_alike, thinned
from bakeoff.truth.errors import errors_of_eager, yardsticks
from bakeoff.truth.generating import Greedy, WithCaches, compare, generate, steps_in_place
from bakeoff.truth.reference import Reference
from bakeoff.truth.witnesses import KeepFloat64, RoundingNoise, use_plain_experts
from tests.support.modules import Calling

RIGHT = "right"
CPU = torch.device("cpu")
A, B, C = torch.ones(2), torch.zeros(3), torch.full((4,), 2.0)
Pair = namedtuple("Pair", "boxes scores")


@dataclass
class Detections:
    boxes: Any
    scores: Any = None
    name: str = "cat"


@dataclass
class Named(OrderedDict):  # as transformers' outputs are
    logits: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        self.update({"logits": self.logits, "hidden": self.hidden})


class Slotted:
    __slots__ = ("inner", "unset")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Holding:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@dataclass
class Cyclic:
    tensor: torch.Tensor
    itself: list[Any] = field(default_factory=list)


def cyclic() -> Cyclic:
    found = Cyclic(A)
    found.itself.append(found)
    return found


@pytest.mark.parametrize(
    ("outputs", "places"),
    [
        (A, [""]),
        ((A, [B, {"c": C, 3: A}]), ["[0]", "[1][0]", "[1][1]['c']", "[1][1][3]"]),
        (Pair(A, (B, C)), [".boxes", ".scores[0]", ".scores[1]"]),
        (torch.topk(torch.rand(5), 2), [".values", ".indices"]),
        ((A, Detections(B, C)), ["[0]", "[1].boxes", "[1].scores"]),
        (Named(A, B), [".logits", ".hidden"]),
        (Slotted(Slotted(A)), [".inner.inner"]),
        (Holding(x=A, model=nn.Linear(2, 2), settings=Holding(width=3), f=print), [".x"]),
        (deque([A, B]), ["[0]", "[1]"]),
        (cyclic(), [".tensor"]),
        ((A, A), ["[0]", "[1]"]),
        ([A, numpy.ones(3), numpy.float32(2.0)], ["[0]", "[1]", "[2]"]),
    ],
)
def test_tensors_are_found_whatever_holds_them(outputs: object, places: list[str]) -> None:
    found = returned_by_call(outputs)
    assert list(found.places) == places and not found.numbers
    assert [one.shape for one in found] == [one.shape for one in flatten_outputs(outputs)]


def test_numbers_texts_and_none_are_found_too() -> None:
    found = returned_by_call({"n": 3, "loss": 0.5, "ok": True, "z": 1j, "none": None, "of": "cat", "t": A})
    assert [one.item() for one in found[:4]] == [3, 0.5, True, 1j] and len(found) == 5
    assert found.numbers == {"['n']", "['loss']", "['ok']", "['z']"}
    assert found.constants == {"['none']": "None", "['of']": "'cat'"}


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({A}, "a set of tensors, which has no order"),
        (iter([A]), "can be read once only"),
        (None, "the model returned None: does its forward end without a return"),
        ((None,), "the model returned None: does its forward end without a return"),
        (Holding(width=3), "Holding with no tensor in it"),
    ],
)
def test_what_cannot_be_compared_is_refused(outputs: object, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        returned_by_call(outputs)


def test_sparse_nested_and_quantised_outputs_become_dense() -> None:
    dense = torch.eye(3)
    nested = torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 2)], layout=torch.jagged)
    with warnings.catch_warnings(action="ignore"):  # some of these are young, and one is to go
        quantised = torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8)
        found = comparable(returned_by_call((dense.to_sparse(), dense.to_sparse_csr(), nested, quantised)))
    assert isinstance(found, Returned)
    assert found.places == ("[0]", "[1]", "[2].values()", "[2].shapes", "[3]")
    assert torch.equal(found[0], dense) and torch.equal(found[1], dense) and torch.equal(found[4], dense)
    assert found[2].tolist() == [1.0] * 4 + [0.0] * 6 and found[3].tolist() == [[2, 2], [3, 2]]
    assert not thinned((nn.Parameter(A),))[0].requires_grad
    again = torch.nested.nested_tensor([torch.ones(2, 2), torch.zeros(3, 2)], layout=torch.jagged)
    assert are_alike((nested,), (again,)) and not are_alike((nested,), (again + 1,))


def test_a_graph_has_all_tensors_and_the_numbers_that_it_computes() -> None:
    def detect(own: Any, x: torch.Tensor) -> Any:
        return x + 1, Detections(x * 2, [x.sum().item(), own.scale])

    x, other = torch.ones(3), torch.arange(3.0)
    flat = FlatModule(Calling(detect, scale=nn.Parameter(torch.tensor(2.0))), Inputs((x,)))
    with torch.no_grad():
        program = torch.export.export(flat, (x,)).module()
        with pytest.warns(torch.jit.TracerWarning):
            traced = torch.jit.trace(flat, (x,), check_trace=False)
        assert [one.tolist() for one in program(other)] == [[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], 3.0, 2.0]
        assert [one.tolist() for one in traced(other)] == [[1.0, 2.0, 3.0], [0.0, 2.0, 4.0], 2.0]


def compared(ours: list[Any], theirs: list[Any]) -> Accuracy:
    """The check of what a build returned for each input set. Tuples stand for those of a graph."""
    reference = tuple(returned_by_call(each) for each in theirs)
    outputs: list[Outputs] = [each if isinstance(each, tuple) else returned_by_call(each[0]) for each in ours]
    return check(outputs, Reference(reference, *errors_of_eager(reference, reference)), Precision.FP32)


WHOLE = (A, Detections(B, C))
OF_TWO_SETS: list[Any] = [{"a": A, "b": B}, {"a": A, "c": C}]
EXACT, LARGE = torch.linspace(1.0, 2.0, 64, dtype=torch.float64), torch.tensor([2**60])


@pytest.mark.parametrize(
    ("ours", "theirs", "rule"),
    [
        ([(A, B, C)], [WHOLE], RIGHT),
        ([[WHOLE]], [WHOLE], RIGHT),
        ([(A, C)], [WHOLE], "2 outputs where the model has 3: output[1].boxes is missing"),
        ([(A,)], [[A] * 8], "output[1], output[2], output[3] and 4 others are missing"),
        ([[(A, {"boxes": B, "extra": C})]], [(A, {"boxes": B})], "output[1]['extra'] is not the model's"),
        ([(A, B + 1, C)], [WHOLE], "output[1].boxes: "),
        # a number or a text may be left out only if it is constant
        ([(A,), (A,)], [(A, 3), (A, 3)], RIGHT),
        ([(A, torch.tensor(3)), (A, torch.tensor(3))], [(A, 3), (A, 3)], RIGHT),
        ([(A,), (A,)], [(A, 3), (A, 4)], "1 output where the model has 2: output[1] is missing"),
        ([[(A, 3)]] * 2, [(A, 3), (A, 4)], "output[1]: 1 of 2 whole numbers are wrong; worst at [] of input set 1: 3"),
        ([(A,), [(A, "cat")]], [(A, "cat"), (A, "cat")], RIGHT),
        ([[(A, "dog")]], [(A, "cat")], "output[1] is 'dog', and the model's is 'cat'"),
        ([(A,), (A,)], [(A, "cat"), (A, "dog")], "output[1] is no tensor and depends on the inputs"),
        # a reference has other types by design, and may lie elsewhere
        ([[(A, torch.bfloat16, CPU)]], [(A, torch.float64, torch.device("cuda", 1))], RIGHT),
        ([(A,), (A,)], [(A, torch.float32), (A, torch.float64)], RIGHT),
        ([[(A, torch.int64)]], [(A, torch.float64)], "output[1] is torch.int64, and the model's is a type of real"),
        ([[(A, torch.int32)]], [(A, torch.int64)], "output[1] is torch.int32, and the model's is torch.int64"),
        ([[(A, "cpu")]], [(A, CPU)], "output[1] is 'cpu', and the model's is a device"),
        ([[(A, B)]], [(A, None)], "output[1]"),
        # a model may return other outputs for other inputs
        ([(A, B), (A, C)], OF_TWO_SETS, RIGHT),
        ([(A, B), (A, B)], OF_TWO_SETS, "output"),
        ([(LARGE + 1,)], [(LARGE,)], "1 of 1 whole numbers are wrong"),
        ([(EXACT > 2,)], [(EXACT > 1,)], "63 of 64 whole numbers are wrong"),
    ],
)
def test_what_a_build_returns_is_what_the_model_returns(ours: list[Any], theirs: list[Any], rule: str) -> None:
    found = compared(ours, theirs)
    assert found.passed is (rule == RIGHT)
    assert found.passed or rule in found.rule


def test_a_number_that_other_inputs_change_may_not_be_left_out() -> None:
    whole = (returned_by_call((A, 3)),)
    reference = Reference(whole, *errors_of_eager(whole, whole))
    assert check([(A,)], reference, Precision.FP32).passed
    frozen = check([(A,)], reference, Precision.FP32, of_other_inputs=[returned_by_call((A, 4))])
    assert not frozen.passed and frozen.rule == "1 output where the model has 2: output[1] is missing"


def test_complex_numbers_are_compared_as_pairs() -> None:
    exact = torch.complex(torch.rand(8, 64, dtype=torch.float64), torch.rand(8, 64, dtype=torch.float64))
    assert compared([(exact.to(torch.complex64),)], [exact]).passed
    as_pairs = torch.view_as_real(exact).float()
    assert compared([(as_pairs,)], [exact]).passed
    lost = compared([(exact.conj().to(torch.complex64),)], [exact])
    assert not lost.passed and lost.rmse > 0.5
    real = compared([(exact.real.float(),)], [exact])
    assert not real.passed and "not (8, 64) of complex numbers" in real.rule


def test_whole_numbers_are_exact_and_spoil_no_error() -> None:
    tokens = torch.arange(30_000, 30_064)
    right = compared([(EXACT.float(), tokens.int())], [(EXACT, tokens)])
    assert right.passed and right.allclose and right.rmse < 1e-6
    near = tokens.clone()
    near[5] += 1
    wrong = compared([(EXACT.float(), near)], [(EXACT, tokens)])
    assert not wrong.passed and wrong.rmse < 1e-6
    assert (
        wrong.rule == "output[1]: 1 of 64 whole numbers are wrong; worst at [5] of input set 0: 30006, expected 30005"
    )


def test_where_no_value_could_be_compared_nothing_was_checked() -> None:
    nothing = torch.full((4,), math.inf)
    same, finite = compared([(nothing,)], [nothing]), compared([(torch.ones(4),)], [nothing])
    assert same.passed and same.unchecked == "the model's own answers have no finite value"
    assert not finite.passed and finite.rule == "4 value(s) finite where the reference's are infinite or NaN"
    assert compared([(torch.ones(0),)], [torch.ones(0)]).unchecked == "the model's own answers have no element"


def test_a_saved_reference_keeps_its_structure(tmp_path: Path) -> None:
    returned = returned_by_call({"z": torch.ones(3, dtype=torch.complex128), "n": 2, "of": "cat", "i": torch.arange(3)})
    Reference((returned, (A,)), (0.0,) * 4).save(tmp_path / "reference")
    loaded, plain = Reference.load(tmp_path / "reference").outputs
    assert isinstance(loaded, Returned) and not isinstance(plain, Returned)
    assert (loaded.places, loaded.numbers, loaded.constants) == (returned.places, returned.numbers, returned.constants)
    assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(loaded, returned, strict=True))


@pytest.mark.parametrize(
    ("came", "rule", "widths"),
    [
        ((A, torch.tensor([1, 2])), "equal", []),
        ((A, torch.tensor([1, 2], dtype=torch.int32)), "", ["output['best'] as int32 in place of int64"]),
        ((A.double(), torch.tensor([1, 2])), "", ["output['logits'] as float64 in place of float32"]),
        ((A, torch.tensor([1.0, 2.0])), "another type than eager's: output['best'] as float32 in place of int64", []),
        ((A, torch.tensor([True, False])), "output['best'] as bool in place of int64", []),
        ((A, A.to(torch.int64)), "output['best']", []),
    ],
)
def test_another_kind_of_type_is_wrong_and_another_width_is_told(
    came: Outputs, rule: str, widths: list[str], tmp_path: Path
) -> None:
    expected = returned_by_call({"logits": A, "best": torch.tensor([1, 2])})
    types = (torch.float32, torch.int64)
    exact = expected.map(lambda one: one.double() if one.is_floating_point() else one)
    Reference((exact,), (0.0, 0.0), types=(types,)).save(tmp_path / "reference")
    found = check([came], Reference.load(tmp_path / "reference"), Precision.FP32)
    assert found.passed == (rule in ("", "equal")) and found.other_widths == widths
    assert found.passed or rule in found.rule


def test_pairs_have_the_width_of_the_complex_numbers() -> None:
    numbers = torch.tensor([1 + 2j])
    exact = Reference(((numbers.to(torch.complex128),),), (0.0,), types=((torch.complex64,),))
    pairs = torch.view_as_real(numbers)
    assert not check([(pairs,)], exact, Precision.FP32).other_widths
    told = check([(pairs.double(),)], exact, Precision.FP32)
    assert told.passed and told.other_widths == ["output 0 as float64 in place of complex64"]


def test_angles_that_are_a_whole_turn_apart_are_said_to_be() -> None:
    exact = Reference(((torch.tensor([math.pi, 0.5], dtype=torch.float64),),), (0.0,))
    found = check([(torch.tensor([-math.pi, 0.5]),)], exact, Precision.FP32)
    assert not found.passed and "2π apart: if these are angles, they are the same" in found.rule
    assert "2π" not in check([(torch.tensor([-1.0, 0.5]),)], exact, Precision.FP32).rule


transformers = pytest.importorskip("transformers")

CELL = Cell(model="mlp", dimensions={"batch": 2, "features": 8, "hidden": 8}, precision=Precision.FP32, backend="eager")
IDS = torch.arange(12).reshape(2, 6)


class NarrowResults(OperatorWatch):
    """Notes each operator that returns a floating-point tensor narrower than float64."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.names: set[str] = set()

    def _note(self, func: Any, args: object, kwargs: object, found: object) -> None:
        for each in pytree.tree_leaves(found):
            if isinstance(each, torch.Tensor) and each.dtype in (torch.float32, torch.bfloat16, torch.float16):
                self.names.add(str(func.overloadpacket))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config).eval().double()
    return model


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        num_local_experts=4,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.MixtralForCausalLM(config).eval().double()
    return model


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(IDS, use_cache=False).logits
    return found


def test_no_operator_of_a_llama_leaves_float64() -> None:
    model = llama()
    with NarrowResults() as plain:
        cast = logits(model)
    with NarrowResults() as narrow, KeepFloat64() as mode:
        exact = logits(model)
    assert plain.names  # its own code casts to float32
    assert (narrow.names, mode.in_float32) == (set(), [])
    assert exact.dtype is torch.float64
    error = ((cast - exact).square().mean() / exact.square().mean()).sqrt().item()
    assert 1e-9 < error < 1e-5  # what the casts cost


def test_a_cast_to_float32_keeps_all_digits() -> None:
    value = torch.tensor([1 / 3, 2.0], dtype=torch.float64)
    with KeepFloat64():
        for cast in (value.float(), value.to(torch.float32), value.softmax(0, dtype=torch.float32).sum().reshape(1)):
            assert cast.dtype is torch.float64
        assert torch.equal(value.float(), value)
        assert value.view(torch.float32).dtype is torch.float32  # the same bits as another type
        assert torch.arange(3).float().dtype is torch.float64


def test_an_operator_without_float64_runs_in_float32_and_is_named() -> None:
    with torch.library._scoped_library("bakeoff_tests", "DEF") as library:
        library.define("only_float32(Tensor x) -> Tensor")

        def only_float32(x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not torch.float32:
                raise RuntimeError(f"expected Float, got {x.dtype}")
            return x * 2

        library.impl("only_float32", only_float32, "CPU")
        with KeepFloat64() as mode:
            found = torch.ops.bakeoff_tests.only_float32(torch.ones(2, dtype=torch.float64))
        assert (found.dtype, found.tolist(), mode.in_float32) == (
            torch.float64,
            [2.0, 2.0],
            ["bakeoff_tests.only_float32"],
        )


def test_an_error_that_is_not_the_types_is_raised_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), KeepFloat64():
        torch.ones(2, 3, dtype=torch.float64) @ torch.ones(2, 3, dtype=torch.float64)


def test_a_mixture_of_experts_has_a_reference() -> None:
    with KeepFloat64() as mode:
        found = logits(mixtral())
    plain = mixtral()
    assert use_plain_experts(plain)
    with KeepFloat64() as of_plain:
        exact = logits(plain)
    assert of_plain.in_float32 == []
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    if mode.in_float32:
        assert all("grouped_mm" in name for name in mode.in_float32)


def test_a_model_that_fails_in_float64_alone_is_checked_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def without_float64(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
        if dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return subject.outputs_in(model, cell, dtype)

    narrow = CELL.model_copy(update={"precision": Precision.BF16})
    assert subject.Subject(narrow, tmp_path, tmp_path, outputs_in=without_float64).exact().computed_in == "float32"
    found = subject.Subject(CELL, tmp_path, tmp_path, outputs_in=without_float64).exact()
    assert (found.outputs, found.computed_in) == (None, "fp32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_noise_leaves_infinities_and_small_whole_numbers_and_moves_others_by_a_rounding(dtype: torch.dtype) -> None:
    values = torch.tensor([-math.inf, math.inf, math.nan, 0.0, 3.0, 0.3, -1.7], dtype=dtype)
    beside = torch.full((7,), 1e30, dtype=dtype)  # a large number among them needs another way
    for each in (values, torch.cat((values, beside)), torch.empty(0, dtype=dtype)):
        with RoundingNoise(1):
            moved = each * 1.0
        assert torch.equal(moved[:5].nan_to_num(7.0), each[:5].nan_to_num(7.0))
        changed = (moved - each)[5:].abs()
        assert torch.all(changed <= 1.01 * torch.finfo(dtype).eps * each[5:].abs())
        assert len(changed) < 9 or changed.any()


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x.masked_fill(x < 9, torch.finfo(x.dtype).min).softmax(-1),
        lambda x: torch.cat([x, x.relu(), x.where(x > 0, -1e30)]),
        lambda x: x.sort(-1).values.unique_consecutive(),
        lambda x: x.mode(-1).values,
        lambda x: 1 / x.round(),
        lambda x: x.double().float(),
    ],
)
def test_noise_leaves_what_each_library_has_alike(select: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).mul(8).round().div(8)
    with RoundingNoise(1):
        moved = select(values)
    torch.testing.assert_close(moved, select(values), rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("seed", range(4))
def test_noise_rounds_what_an_operator_adds_up_inside_and_leaves_the_range(seed: int) -> None:
    points = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with RoundingNoise(seed):
        distances, shares = torch.cdist(points, points), torch.full((64,), 30.0).sigmoid()
        tiny = torch.full((64,), 1e-41) * 0.3
    assert 1e-5 < distances.diag().max() < 1e-2
    assert shares.max() <= 1 and (shares < 1).any() and (shares > 1 - 1e-6).all()
    assert len(tiny.unique()) > 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_noise_leaves_complex_and_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.strided)
    values = torch.full((3,), 0.3 + 0.2j)
    with torch.inference_mode(), RoundingNoise(0):
        tanh, doubled = values.tanh(), nested * 2
    assert torch.equal(tanh, values.tanh()) and torch.equal(doubled[0], torch.full((3,), 2.0))


def test_a_fault_in_small_values_is_found_where_a_few_of_them_are_lost_to_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    terms, are_large = (torch.randn(512, 32, generator=generator) for _ in range(2))
    terms = torch.where(are_large > 0.5, terms, 0.01 * terms)
    offset = 1e5 * (torch.rand(512, 32, generator=generator) < 0.06)
    with RoundingNoise(0) as noise:
        moved = [((offset + noise.moved(terms)) - offset,)]
    exact, eager = [(terms.double(),)], [((offset + terms) - offset,)]
    errors = yardsticks(eager, exact, False).or_perturbed(yardsticks(moved, exact, True), only_parts=False)
    known = Reference(tuple(exact), *errors)
    assert check(eager, known, Precision.FP32).passed
    wrong = torch.where(are_large > 0.5, eager[0][0], 1.3 * eager[0][0])
    assert not check([(wrong,)], known, Precision.FP32).passed


def test_noise_rounds_in_place_what_is_computed_there_and_leaves_what_is_put_there() -> None:
    values = torch.full((64,), 0.3)
    with torch.inference_mode(), RoundingNoise(0):
        scaled, put = values.clone().mul_(1.1), values.clone().masked_fill_(values > 0.2, 0.7)
        squared = values.clone().pow_(2)
        added = values.clone().index_add_(0, torch.tensor([3, 9]), values[:2])
        put[3] = 0.4
        chosen = torch.cond(values.sum() > 0, torch.neg, torch.abs, (values,))
    for found, exact in ((scaled, values * 1.1), (squared, values**2)):
        assert len(found.unique()) > 1 and torch.allclose(found, exact, rtol=1e-6)
    assert (added != values).nonzero().flatten().tolist() == [3, 9] and added[3] != added[9]
    assert put.unique().tolist() == torch.tensor([0.4, 0.7]).tolist() and torch.equal(chosen, -values)


NORMS = nn.GroupNorm(4, 8), nn.LayerNorm((16, 16)), nn.InstanceNorm2d(8, affine=True)


@pytest.mark.parametrize(
    ("norm", "mode"),
    [*((norm, torch.inference_mode) for norm in NORMS), *((norm, torch.no_grad) for norm in NORMS[:2])],
)
def test_noise_rounds_the_mean_of_equal_values(norm: nn.Module, mode: Callable[[], Any]) -> None:
    image = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    image[0, :2] = 0.7
    with mode(), RoundingNoise(0):
        moved = norm(image)
    change = (moved - norm(image)).abs().amax((2, 3))
    assert change[0, :2].min() > 1e-5 and change[1].max() < 1e-5


def test_noise_leaves_the_means_of_training() -> None:
    norm, image = nn.InstanceNorm2d(8, track_running_stats=True).eval(), torch.full((2, 8, 16, 16), 0.7)
    with torch.inference_mode(), RoundingNoise(0):
        moved = norm(image)
    torch.testing.assert_close(moved, norm(image), rtol=1e-6, atol=0)


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
