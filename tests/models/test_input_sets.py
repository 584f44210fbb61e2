"""Input sets have other values than the example, int8 is calibrated with others; and the parts of a pipeline."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.commands.inspection import pipeline_of
from bakeoff.measuring.worker.cell_model import calibration_of, load
from bakeoff.models import live_model, pipeline_parts
from bakeoff.models.base import INPUT_SETS, Call, Inputs
from bakeoff.models.input_sets import COPIES, MASKS, ROWS, ROWS_OF_WHOLES, WHOLES, input_sets_of
from bakeoff.models.pipeline_parts import inspect_parts
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell

Draw = Callable[[], torch.Tensor]


def sets_of(*tensors: Any) -> list[Any]:
    torch.manual_seed(0)
    return [args for args, _ in input_sets_of((tensors, {}), INPUT_SETS)]


def all_differ(sets: list[Any], place: int) -> bool:
    values = [one[place] for one in sets]
    return not any(torch.equal(values[i], values[j]) for i in range(len(values)) for j in range(i))


def stays(sets: list[Any], place: int) -> bool:
    return all(torch.equal(one[place], sets[0][place]) for one in sets)


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "draw",
    [
        lambda batch: torch.randn(batch, 16),
        lambda batch: torch.rand(batch, 3, 8, 8),
        lambda batch: torch.rand(batch, 5) + 3,
        lambda batch: torch.randint(0, 256, (batch, 3, 8, 8)) / 255,
        lambda batch: torch.randn(batch, 7, dtype=torch.complex64),
        lambda batch: torch.randint(0, 1000, (batch, 12)),
        lambda batch: torch.randint(0, 256, (batch, 3, 8, 8), dtype=torch.uint8),
        lambda batch: torch.randint(0, 256, (batch, 9)).float(),
        lambda batch: (torch.rand(batch, 50) * 8).round() / 8,
        lambda batch: torch.ones(batch, 2, 2),
        lambda batch: torch.zeros(batch, 4),
        lambda batch: torch.arange(1, 9)[None].repeat(batch, 1),
    ],
)
def test_sets_differ_at_any_batch_size_and_keep_range_and_type(draw: Callable[[int], torch.Tensor], batch: int) -> None:
    torch.manual_seed(1)
    given = draw(batch)
    sets = sets_of(given)
    assert torch.equal(sets[0][0], given) and all_differ(sets, 0)
    for (one,) in sets:
        assert one.dtype == given.dtype and one.shape == given.shape
        if not given.is_complex() and len(given.unique()) > 1:
            assert one.min() >= given.min() and one.max() <= given.max()
        if not (given.is_floating_point() or given.is_complex()):
            assert set(one.flatten().tolist()) <= set(given.flatten().tolist())


@pytest.mark.parametrize("rows", [1, 4])
def test_sums_means_and_largest_values_differ_too(rows: int) -> None:
    sets = sets_of(torch.rand(rows, 3, 8, 8))
    for reduce in (torch.sum, torch.mean, torch.amax, torch.std):
        assert len({round(float(reduce(one[0])), 4) for one in sets}) == INPUT_SETS


def test_an_index_stays_in_the_range_of_its_column() -> None:
    vocabularies = torch.tensor([3, 1000, 50, 7, 100_000, 2, 20, 500])
    ids = (torch.rand(1, 8) * vocabularies).long()
    sets = sets_of(ids)
    assert all_differ(sets, 0) and all(bool((one[0] < vocabularies).all()) for one in sets)


def test_tokens_keep_their_ends_and_their_placeholders() -> None:
    tokens = torch.tensor([[101, 7, 90, 33, 9999, 9999, 9999, 41, 12, 55, 102, 0, 0]])
    for (one,) in sets_of(tokens)[1:]:
        assert not torch.equal(one, tokens)
        assert (one == 9999).sum() == 3 and one[0, 0] == 101 and one[0, -2:].tolist() == [0, 0]


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(12)[None],
        torch.tensor([0, 3, 7, 12]),
        torch.tensor([9, 5, 5, 2]),
        torch.tensor([[1, 1, 1, 0, 0]]),
        torch.tensor([[True, False, True]]),
        torch.triu(torch.full((5, 5), float("-inf")), 1),
        torch.tensor([[[0.0, -10000.0, -10000.0]]]),
        torch.tensor(3),
        torch.tensor([[2, 9]]),
    ],
)
def test_positions_offsets_lengths_and_masks_stay_beside_what_differs(values: torch.Tensor) -> None:
    sets = sets_of(torch.randn(1, 6), values)
    assert stays(sets, 1) and all_differ(sets, 0)


def test_rows_of_tokens_and_masks_are_rolled_together() -> None:
    lengths = torch.tensor([2, 5, 3])
    mask = (torch.arange(6) < lengths[:, None]).long()
    ids = torch.randint(5, 90, (3, 6)) * mask
    for by, (tokens, kept, labels) in enumerate(sets_of(ids, mask, lengths)[:3]):
        assert torch.equal(tokens, ids.roll(by, 0)) and torch.equal(kept, mask.roll(by, 0))
        assert torch.equal(labels, lengths.roll(by, 0)) and torch.equal(tokens != 0, kept != 0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        lambda: torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last),
        lambda: torch.randn(8, 6).t(),
        lambda: torch.randn(6, 1).expand(6, 5),
        lambda: torch.randn(12, 10)[2:8, ::2],
        lambda: torch.randn(4, 3, requires_grad=True),
    ],
)
def test_layout_and_requires_grad_are_kept(draw: Draw) -> None:
    given = draw()
    sets = sets_of(given)
    assert all_differ(sets, 0)
    assert {one[0].stride() for one in sets} == {given.stride()}
    assert {one[0].requires_grad for one in sets} == {given.requires_grad}
    assert len({one[0].untyped_storage().data_ptr() for one in [[given], *sets]}) == INPUT_SETS + 1


def test_tensors_that_share_memory_share_it_again() -> None:
    whole = torch.randn(6, 4)
    for one in sets_of(whole, whole, whole[:, 1], whole.view(24), [whole[2:]]):
        first, same, column, flat, (rest,) = one
        assert first is same
        assert torch.equal(column, first[:, 1]) and torch.equal(flat, first.view(24)) and torch.equal(rest, first[2:])
        assert len({each.untyped_storage().data_ptr() for each in (first, column, flat, rest)}) == 1


def test_a_slice_of_something_large_is_copied_alone() -> None:
    large = torch.randn(1000, 4)
    assert sets_of(large[10:12])[1][0].untyped_storage().nbytes() == 2 * 4 * 4


@pytest.mark.filterwarnings("ignore")  # such tensors are young
def test_sparse_and_nested_tensors_change_in_their_values_only() -> None:
    dense = torch.randn(5, 5) * torch.eye(5)
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for values in (dense.to_sparse().coalesce(), dense.to_sparse_csr(), nested):
        sets = sets_of(torch.arange(3), values)
        first, last = sets[0][1], sets[-1][1]
        assert last.layout == values.layout and last.shape == values.shape
        if values.is_nested:
            assert [part.shape for part in last.unbind()] == [part.shape for part in parts]
            assert not torch.equal(first.values(), last.values())
        else:
            assert torch.equal(last.to_dense() != 0, dense != 0)
            assert not torch.equal(first.to_dense(), last.to_dense())
    assert sets_of(dense.to_sparse().coalesce())[1][0].is_coalesced()


def test_of_other_kinds_of_tensors_nothing_is_changed() -> None:
    given = torch.tensor([float("nan"), 1.5, float("inf")]), torch.empty(0, 3), torch.randn(2).to(torch.float8_e4m3fn)
    sets = sets_of(torch.randn(3, 4), *given)
    assert all_differ(sets, 0) and sets[1][2].shape == (0, 3) and sets[1][3].dtype is torch.float8_e4m3fn


def test_ties_signs_and_order_are_kept() -> None:
    scores = (torch.rand(1, 200) * 20).round() / 7
    for (one,) in sets_of(scores)[1:]:
        assert len(one.unique()) == len(scores.unique())
    times = torch.linspace(0.1, 0.9, 20)
    assert all(bool((one[0].diff() > 0).all()) for one in sets_of(times))


def bolder_sets_of(values: torch.Tensor) -> list[torch.Tensor]:
    return [one[1] for one in input_sets_of((torch.randn(1, 6), values), 4, (MASKS, WHOLES))]


@pytest.mark.parametrize(
    ("values", "second"),
    [
        (torch.arange(6)[None], torch.tensor([[0, 0, 1, 2, 3, 5]])),
        (torch.tensor([0, 3, 7, 12]), torch.tensor([0, 2, 6, 12])),
        (torch.tensor([9, 5, 5, 2], dtype=torch.uint8), torch.tensor([9, 4, 4, 2], dtype=torch.uint8)),
        (torch.tensor([[1, 1, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0]])),
        (torch.ones(4, 5, dtype=torch.int64), torch.tensor([[1, 1, 1, 1, 0]]).expand(4, 5)),
        (torch.zeros(1, 4, dtype=torch.bool), torch.tensor([[False, False, False, True]])),
        (torch.ones(3, 3).tril().bool(), torch.tensor([[True, True, False], [True, True, True], [True, True, True]])),
        (torch.triu(torch.full((3, 3), -torch.inf), 1), torch.tensor([[0, 0, -torch.inf], [0, 0, 0], [0, 0, 0]])),
        (torch.tensor(981), torch.tensor(980)),
        (torch.tensor([981.0]), torch.tensor([980.0])),
        (torch.tensor(0.5), torch.tensor(0.5 * 15 / 16)),
        (torch.tensor(1.0), torch.tensor(15 / 16)),  # as of a temperature
        (torch.tensor([-2.0, -2.0]), torch.tensor([-1.875, -1.875])),
        (torch.ones(1, 3), torch.tensor([[1.0, 1.0, 0.0]])),  # as of a mask
        (torch.tensor(True), torch.tensor(False)),
    ],
)
def test_bolder_sets_differ_in_masks_positions_and_constants(values: torch.Tensor, second: torch.Tensor) -> None:
    sets = bolder_sets_of(values)
    assert torch.equal(sets[0], values) and torch.equal(sets[1], second)
    assert all(one.dtype is values.dtype for one in sets)


@pytest.mark.parametrize(
    ("kind", "whole", "real"),
    [(ROWS_OF_WHOLES, [1, 0], [0.9375, 0.46875]), (ROWS, [1, 0], [1.0, 0.5]), (COPIES, [0, 1], [0.5, 1.0])],
)
def test_milder_sets_keep_values_of_the_example(kind: str, whole: list[int], real: list[float]) -> None:
    tokens, half = torch.randint(9, (2, 12)), torch.tensor([[0.5], [1.0]])
    sets = [args for args, _ in input_sets_of(((tokens, half, half * 0), {}), INPUT_SETS, (kind,))]
    assert torch.equal(sets[1][0], tokens[whole]) and torch.equal(sets[2][0], tokens)
    assert sets[1][1].flatten().tolist() == pytest.approx(real, abs=0.1 * (kind == ROWS_OF_WHOLES))
    assert (sets[2][1].tolist() == half.tolist()) == (kind != ROWS_OF_WHOLES)
    assert all(not one[2].any() for one in sets)


@pytest.mark.parametrize("values", [torch.zeros(1, 4, dtype=torch.int64), torch.tensor([0, 16]), torch.tensor(1)])
def test_what_could_leave_its_range_stays_in_bolder_sets(values: torch.Tensor) -> None:
    assert all(torch.equal(one, values) for one in bolder_sets_of(values)[::2])


NET = """
import torch


def factory(batch: int = 2, width: int = 4):
    return torch.nn.Linear(width, 2), torch.full((batch, width), 1.0)

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cell_of(precision: str = "int8", **fields: object) -> Cell:
    asked = {
        "models": ("net.py:factory",),
        "devices": ("cpu",),
        "backends": ("eager",),
        "precision": tuple(precision.split(",")),
    }
    return plan(Request(**{**asked, **fields}))[0].cells[0].cell  # type: ignore[arg-type]


def values(sets: tuple[Inputs, ...]) -> list[float]:
    return [float(one.tensors()[0].flatten()[0]) for one in sets]


def test_calibrate_gives_the_data_and_what_is_judged_is_left_out(folder: Path) -> None:
    calibrate = (
        "def calibrate(batch):\n    for value in (1.0, 5.0, 6.0):\n        yield torch.full((batch, 4), value)\n"
    )
    (folder / "net.py").write_text(NET + calibrate)
    model = load(cell_of(set={"batch": ("3",)}))
    assert values(model.calibration) == [5.0, 6.0] and model.calibration[0].args[0].shape == (3, 4)
    assert model.forms == ("is calibrated for int8 with 2 calls from calibrate() in net.py, without 1 that are judged",)
    assert [one.args[0].dtype for one in calibration_of(model, cell_of())] == [torch.float32] * 2
    assert load(cell_of("fp32")).calibration == () and load(cell_of("fp32")).forms == ()


def test_recorded_calls_are_shared_out(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    calls = [bakeoff.Call(torch.full((2, 4), float(value))) for value in range(5)]
    bakeoff.Calls.of(calls).save("calls.pt")
    model = load(cell_of(inputs="calls.pt"))
    assert (values(model.inputs), values(model.calibration)) == ([0.0, 1.0, 2.0], [3.0, 4.0])
    assert "2 calls from the recorded calls in calls.pt, none of which is judged" in model.forms[0]
    assert values(load(cell_of("fp32", inputs="calls.pt")).inputs) == [0.0, 1.0, 2.0, 3.0, 4.0]
    beside_int8 = load(cell_of(inputs="calls.pt", precision="fp32,int8"))
    assert values(beside_int8.inputs) == [0.0, 1.0, 2.0]  # all precisions of a contest are judged by the same calls
    assert beside_int8.calibration == () and beside_int8.forms == load(cell_of("fp32", inputs="calls.pt")).forms
    bakeoff.Calls.of(calls[:2]).save("calls.pt")
    model = load(cell_of(inputs="calls.pt"))
    assert len(model.inputs) == bakeoff.INPUT_SETS and values(model.calibration) == [1.0]


def test_without_data_of_its_own_the_report_says_so(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    model = load(cell_of())
    assert model.calibration == () and "with its own input sets, all but the last one" in model.forms[0]


def test_a_function_that_calibrates_int8_is_not_called_for_other_precisions(folder: Path) -> None:
    (folder / "net.py").write_text(NET + "def calibrate():\n    raise OSError('no data')\n")
    assert load(cell_of(precision="fp32,int8")).calibration == ()
    with pytest.raises(OSError, match="no data"):
        load(cell_of())


@pytest.mark.parametrize(
    ("calibrate", "told"),
    [
        ("def calibrate():\n    return []\n", "calibrate.. returned nothing"),
        ("def calibrate(batch):\n    return [torch.ones(batch, 4)]\n", "every call is also judged"),
        ("def calibrate():\n    return [torch.ones(9, 4)]\n", r"call 0 has a tensor of shape \(9, 4\) for \(2, 4\)"),
        (
            "def calibrate(bacth=2):\n    return []\n",
            "unknown parameter of calibrate.. .*'bacth': did you mean 'batch'",
        ),
        ("def calibrate(bacth):\n    return []\n", "unknown parameter of calibrate.. .*'bacth': did you mean 'batch'"),
        ("def calibrate(model, loader):\n    pass\n", "'model': known: .*rename a function that serves something else"),
    ],
)
def test_data_that_cannot_calibrate_are_refused(folder: Path, calibrate: str, told: str) -> None:
    (folder / "net.py").write_text(NET + calibrate)
    with pytest.raises(UsageError, match=told):
        load(cell_of())


NOW_S = [0.0]


def pass_time(seconds: float) -> None:
    """Take so many seconds of the scripted clock."""
    NOW_S[0] += seconds


class Sleeping(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass_time(self.seconds)
        return self.layer(x)


class Decoding(nn.Module):
    """Only what is within it is called, as with an autoencoder that decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Sleeping(1.0)
        self.decoder = Sleeping(0.04)


class Loop:
    """Text encoder, a denoiser that is called four times, and a decoder, as in a diffusion pipeline."""

    def __init__(self, disturbed_calls: tuple[int, ...] = ()) -> None:
        self.text_encoder, self.denoiser, self.vae = Sleeping(0.02), Sleeping(0.03), Decoding()
        self.steps = 4
        self.calls, self.disturbed_calls = 0, disturbed_calls

    def __call__(self, x: torch.Tensor, steps: int = 4) -> torch.Tensor:
        self.calls += 1
        pass_time(0.3 if self.calls in self.disturbed_calls else 0)
        state = self.text_encoder(x)
        for _ in range(steps):
            state = self.denoiser(torch.cat([state, state])).chunk(2)[0]
        pass_time(0.02)  # what no part does
        return self.vae.decoder(state)


def test_shares_are_those_of_planted_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_parts, "time", SimpleNamespace(perf_counter=lambda: NOW_S[0]))
    found = bakeoff.inspect_parts(Loop(disturbed_calls=(1, 3)), torch.ones(1, 4))
    parts = {part.name: part for part in found.parts}
    assert {name: part.calls for name, part in parts.items()} == {"text_encoder": 1, "denoiser": 4, "vae.decoder": 1}
    wanted = {"text_encoder": 0.1, "denoiser": 0.6, "vae.decoder": 0.2}
    assert {name: part.share for name, part in parts.items()} == pytest.approx(wanted)
    assert found.rest == pytest.approx(0.1)
    assert found.rest + sum(part.share for part in found.parts) == pytest.approx(1.0)
    assert found.timed_calls == 9
    assert parts["denoiser"].sizes == {"2x4": 4}
    assert parts["denoiser"].parameters == 20
    assert found.parts[0].name == "denoiser"
    assert "all else" in str(found)


@pytest.mark.parametrize(
    "example", [bakeoff.Call(torch.ones(1, 4), {"steps": 2}), lambda loop: loop(torch.ones(1, 4), steps=2)]
)
def test_an_example_call_may_be_a_call_or_a_function(example: object) -> None:
    loop = Loop()
    (found,) = bakeoff.inspect_parts(loop, example, ["denoiser"]).parts
    assert found.calls == 2
    assert not loop.denoiser._forward_hooks
    assert not loop.denoiser._forward_pre_hooks


def test_what_is_no_part_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no part 'unet' in Loop.*text_encoder, denoiser, vae"):
        bakeoff.inspect_parts(Loop(), torch.ones(1, 4), ["unet"])
    with pytest.raises(UsageError, match="'steps' of Loop is a int"):
        bakeoff.inspect_parts(Loop(), torch.ones(1, 4), ["steps"])


def test_what_has_no_module_is_compared_as_a_whole() -> None:
    with pytest.raises(UsageError, match="a Linear holds no modules"):
        inspect_parts(torch.nn.Linear(4, 4), torch.ones(1, 4))


def test_a_part_that_is_not_called_is_told_as_such() -> None:
    listed = str(inspect_parts(Loop(), Call((torch.ones(1, 4),)), ["text_encoder", "vae.encoder"]))
    assert listed.endswith("\nthe example call does not call vae.encoder: nothing can be compared there")


def test_several_sizes_are_refused(command_line: Callable[..., tuple[int, str, str]]) -> None:
    for command in (["inspect"], ["run", "--parts", "unet", "--model"]):
        status, _, err = command_line(*command, "x.py:f", "--set", "n=4,8")
        assert status == 2 and "--set n=4,8: a pipeline is called in one size here: name one value" in err


def test_the_command_lists_the_parts(tmp_path: Path, command_line: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "pipe.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Pipe:\n"
        "    def __init__(self, width):\n        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, 2)\n"
        "    def __call__(self, x):\n        return self.second(self.first(x))\n"
        "def factory(width: int = 4):\n    return Pipe(width), torch.ones(3, width)\n"
    )
    status, out, _ = command_line("inspect", f"{tmp_path / 'pipe.py'}:factory", "--set", "width=6")
    assert status == 0
    assert "first" in out
    assert "1 x 3x6" in out
    (tmp_path / "photo.py").write_text(
        "import time, torch\n"
        "def example():\n    return 3\n"
        "def before(raw):\n    time.sleep(0.02)\n    return torch.ones(raw, 4)\n"
        "def factory():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
    )
    status, out, _ = command_line("inspect", f"{tmp_path / 'photo.py'}:factory", "--json")
    answer = json.loads(out)
    assert status == 0
    assert [part["sizes"] for part in answer["parts"]] == [{"3x4": 1}, {"3x4": 1}]
    assert answer["rest"] > 0.5, "the stages around the model are a part of the call"
    status, _, err = command_line("inspect", "mlp")
    assert status == 2
    assert "mlp is one model" in err


def test_classes_of_the_pipelines_file_travel_with_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Tower(torch.nn.Module):\n    def forward(self, x):\n        return twice(x)\n"
        "def twice(x):\n    return 2 * x\n"
        "class Pipe:\n    def __init__(self):\n        self.tower = Tower()\n"
        "def factory():\n    return Pipe(), torch.ones(1)\n"
    )
    pipeline, example, _ = pipeline_of(f"{tmp_path / 'own.py'}:factory", {})
    (tmp_path / "travels").mkdir()
    live_model.save(pipeline.tower, example, tmp_path / "travels", "tower")
    monkeypatch.delitem(sys.modules, type(pipeline.tower).__module__)
    tower, example = live_model._read(tmp_path / "travels", live_model.PROGRAM, live_model.WEIGHTS)
    assert tower(example).item() == 2.0
