"""Everything that a model returns is found and matched with what a build returned."""

import math
import warnings
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from bakeoff.backends.calling import FlatModule, Returned, comparable, flatten_outputs, returned_by_call
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Accuracy
from bakeoff.truth.accuracy import Outputs, check
from bakeoff.truth.calls import thinned
from bakeoff.truth.errors import errors_of_eager
from bakeoff.truth.reference import Reference

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


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, Detections(x * 2, [x.sum().item(), self.scale])


def test_a_graph_has_all_tensors_and_the_numbers_that_it_computes() -> None:
    x, other = torch.ones(3), torch.arange(3.0)
    flat = FlatModule(Detector(), Inputs((x,)))
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
