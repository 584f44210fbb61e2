"""`bakeoff.record`, the file that keeps the calls, runs of such a file, and the verdict over its sizes."""

import copy
import io
import json
import math
import pickle
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import bakeoff
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.mix import Mix
from bakeoff.measuring.worker.cell_model import load
from bakeoff.models import find_for
from bakeoff.models.calls_file import sizes_in
from bakeoff.planning.plan import command_for, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell, Record, RecordedSize, Status
from bakeoff.reports import summary
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.over_sizes import of_mix, why_not
from bakeoff.reports.run_report import print_report, to_markdown, to_page
from tests.reports.samples import cell, failed, ok, report, steady
from tests.support.golden import same_as_golden
from tests.support.modules import Calling


class Scale(nn.Module):
    """Takes what it is given, and returns the first tensor doubled."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x * 2


def hooks_of(module: nn.Module) -> tuple[int, int]:
    return len(module._forward_pre_hooks), len(module._forward_pre_hooks_with_kwargs)


def test_sizes_are_counted_and_a_few_values_are_kept() -> None:
    module = Scale()
    with bakeoff.record(module, calls_per_shape=2) as calls:
        for batch in (2, 2, 2, 5):
            module(torch.full((batch, 3), float(batch)), flag=True)
    assert calls.sizes == {"2x3": 3, "5x3": 1}
    assert (calls.count, len(calls), len(list(calls))) == (4, 3, 3)
    assert all(call.args[0].eq(len(call.args[0])).all() and call.kwargs == {"flag": True} for call in calls)
    assert hooks_of(module) == (0, 0)
    module(torch.ones(7, 3))
    assert calls.count == 4


def test_the_table_is_in_the_repr() -> None:
    with bakeoff.record(Scale()) as calls:
        pass
    assert "not called" in repr(calls)
    module = Scale()
    with bakeoff.record(module) as calls:
        for batch in (2, 2, 2, 5):
            module(torch.ones(batch, 3))
    assert repr(calls).splitlines()[0] == "4 calls of Scale, 4 of them with values (0.0 MiB)"
    assert repr(calls).splitlines()[2].split() == ["3", "75%", "3", "2x3"]


def test_values_are_those_before_the_module_writes_into_them() -> None:
    module, given = Calling(lambda _, x: x.zero_()), torch.ones(3)
    with bakeoff.record(module) as calls:
        module(given)
    assert given.eq(0).all() and next(iter(calls)).args[0].eq(1).all()


def test_hooks_of_the_program_change_arguments_after_they_were_recorded() -> None:
    module = Scale()
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    with bakeoff.record(module) as calls:
        assert module(torch.ones(2)).eq(4).all()
    assert next(iter(calls)).args[0].eq(1).all() and hooks_of(module) == (1, 0)


def test_arguments_that_are_one_tensor_or_share_memory_do_so_in_the_copy(tmp_path: Path) -> None:
    module, one = Scale(), torch.arange(6.0)
    with bakeoff.record(module) as calls:
        module(one, one, part=one[:2])
    for kept in (calls, bakeoff.load_calls(calls.save(tmp_path / "calls.pt"))):
        (call,) = kept
        assert call.args[1].data_ptr() == call.args[0].data_ptr() == call.kwargs["part"].data_ptr()
        assert call.args[0].data_ptr() != one.data_ptr()
    assert next(iter(calls)).args[0] is next(iter(calls)).args[1]


def test_copies_are_detached_and_can_be_used_outside_of_inference_mode() -> None:
    module = Scale()
    with bakeoff.record(module) as calls:
        module(torch.ones(2, requires_grad=True) * 1)
        with torch.inference_mode():
            module(torch.ones(3))
    assert not any(call.args[0].requires_grad or call.args[0].is_inference() for call in calls)


def test_calls_from_threads_are_all_counted() -> None:
    module = Scale()

    def call() -> None:
        for _ in range(50):
            module(torch.ones(2))

    with bakeoff.record(module) as calls:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls.sizes == {"2": 200} and len(calls) == 8


def test_a_part_and_its_whole_are_recorded_apart() -> None:
    whole = nn.Sequential(nn.Linear(4, 2), Scale())
    with bakeoff.record(whole) as outer, bakeoff.record(whole[1]) as inner:
        whole(torch.ones(3, 4))
    assert (outer.sizes, inner.sizes) == ({"3x4": 1}, {"3x2": 1})


def test_compiled_callers_are_recorded_as_eager_ones() -> None:
    part = Scale()
    whole = torch.compile(lambda x: part(x) + 1, backend="eager", fullgraph=True)
    whole(torch.ones(2))  # compiled without hooks
    with bakeoff.record(part) as calls:
        whole(torch.ones(2))
        torch.compile(part, backend="eager")(torch.ones(3))
    assert calls.sizes == {"2": 1, "3": 1}
    compiled = torch.compile(Scale(), backend="eager")
    with bakeoff.record(compiled) as calls:  # type: ignore[arg-type]
        compiled(torch.ones(2))
    assert calls.module == "Scale" and calls.count == 1


def test_scripted_modules_are_recorded_and_tracing_is_not() -> None:
    module = nn.Linear(2, 2)
    with bakeoff.record(module) as calls:
        torch.export.export(module, (torch.ones(1, 2),))
    assert calls.count == 0
    scripted = torch.jit.script(nn.Linear(2, 2))
    with bakeoff.record(scripted) as calls:
        scripted(torch.ones(1, 2))
    assert calls.count == 1 and hooks_of(scripted) == (0, 0)


def test_calls_under_autocast_are_recorded_as_given_and_said() -> None:
    module = Scale()
    with bakeoff.record(module) as calls, torch.autocast("cpu", torch.bfloat16):
        module(torch.ones(2))
    assert next(iter(calls)).args[0].dtype is torch.float32 and "under autocast" in repr(calls)


def test_the_module_is_left_as_it_was_after_an_error() -> None:
    module = Scale()
    with pytest.raises(ZeroDivisionError), bakeoff.record(module):
        raise ZeroDivisionError
    assert hooks_of(module) == (0, 0)
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        compilations.append(1)
        return graph.forward

    torch.compile(module, backend=backend)(torch.ones(1))
    assert compilations


def test_a_copy_made_in_the_block_records_nothing() -> None:
    module = Scale()
    with bakeoff.record(module) as calls:
        for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            made(torch.ones(2))
    assert calls.count == 0


def test_the_limit_leaves_room_for_a_call_of_each_size() -> None:
    module = Scale()
    with bakeoff.record(module, limit_bytes=4 * 100) as calls:
        for size in (30, 30, 30, 40, 500):
            module(torch.ones(size))
    assert calls.sizes == {"30": 3, "40": 1, "500": 1}
    assert [len(calls.of_size(size)) for size in ("30", "40", "500")] == [2, 1, 0]
    assert "limit_bytes" in repr(calls)


@dataclass
class Config:
    width: int


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"config": {"a": [Config(3)]}}, r"kwargs\['config'\]\['a'\]\[0\] is a dataclass Config: calls hold tensors"),
        ({"rows": (row for row in [])}, r"kwargs\['rows'\] is a generator, which can be read only once"),
        ({"noise": torch.Generator()}, r"kwargs\['noise'\] is a value of type Generator"),
    ],
)
def test_what_a_file_cannot_hold_is_reported_by_its_path(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    module = Scale()
    with bakeoff.record(module) as calls:
        module(torch.ones(2), **arguments)
    assert calls.count == 1 and len(calls) == 0
    with pytest.raises(bakeoff.UsageError, match=told):
        calls.save(tmp_path / "calls.pt")
    with pytest.raises(bakeoff.UsageError, match=told):
        bakeoff.Calls.of(bakeoff.Call((torch.ones(2),), arguments))


def test_a_file_is_plain_data_with_a_table_that_needs_no_torch(tmp_path: Path) -> None:
    module = Scale()
    nested = {"a": (torch.ones(2, dtype=torch.int64), [None, 2.5, "text"]), "b": {}}
    with bakeoff.record(module) as calls:
        module(torch.ones(2, 3).to(memory_format=torch.contiguous_format), nested)
        module(torch.ones(2, 3).T)
    path = calls.save(tmp_path / "calls.pt")
    torch.load(path, weights_only=True)
    again = bakeoff.load_calls(path)
    assert again.sizes == calls.sizes and repr(again) == repr(calls) and len(again) == 2
    read = {len(call.args): call for call in again}
    assert read[2].args[1]["a"][1] == [None, 2.5, "text"] and read[2].args[1]["b"] == {}
    assert read[1].args[0].stride() == (1, 3)
    assert [row.label for row in sizes_in(path)] == list(calls.sizes)
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("archive/table.json"))["module"] == "Scale"
    assert [file.name for file in tmp_path.iterdir()] == ["calls.pt"]


def test_labels_name_what_differs() -> None:
    def labels(*calls: bakeoff.Call) -> list[str]:
        return list(bakeoff.Calls.of(list(calls)).sizes)

    ids = [torch.ones(2, size, dtype=torch.int64) for size in (5, 9)]
    assert labels(*(bakeoff.Call((), {"ids": each, "mask": each, "w": torch.ones(4)}) for each in ids)) == [
        "2x5",
        "2x9",
    ]
    assert labels(bakeoff.Call((ids[0], 1)), bakeoff.Call((ids[0], 2))) == ["args[1]=1", "args[1]=2"]
    assert labels(bakeoff.Call((ids[0],)), bakeoff.Call((ids[0].int(),))) == ["2x5.int64", "2x5.int32"]
    assert labels(bakeoff.Call(torch.ones(()))) == ["scalar"]


@pytest.mark.parametrize(
    "example", [torch.ones(2), (torch.ones(2),), {"x": torch.ones(2)}, bakeoff.Call(torch.ones(2))]
)
def test_inputs_of_every_form_are_calls(example: object) -> None:
    assert bakeoff.Calls.of(example).sizes == {"2": 1}


def test_another_file_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "other.pt")
    with pytest.raises(bakeoff.UsageError, match=r"is no file of calls: bakeoff.Calls.of\(inputs\)"):
        bakeoff.load_calls(tmp_path / "other.pt")
    with pytest.raises(bakeoff.UsageError, match="no file"):
        bakeoff.load_calls(tmp_path / "none.pt")
    with pytest.raises(bakeoff.UsageError, match="not a value of type function"), bakeoff.record(lambda x: x):  # type: ignore[arg-type]
        pass


NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)

    def forward(self, ids, mask=None):
        return self.linear(ids)


def factory(batch: int = 1, width: int = 4):
    return Net(width), torch.randn(batch, width)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(*batches: int) -> bakeoff.Calls:
    return bakeoff.Calls.of([bakeoff.Call(torch.full((batch, 4), float(batch))) for batch in batches])


def request(**fields: object) -> Request:
    return Request(**{"models": ("net.py:factory",), "devices": ("cpu",), "backends": ("eager",), **fields})


def test_recorded_calls_make_a_contest_of_each_size(folder: Path) -> None:
    recorded(8, 2, 2, 2).save("calls.pt")
    contests = plan(request(inputs="calls.pt"))
    cells = [contest.cells[0].cell for contest in contests]
    assert [cell.dimensions for cell in cells] == [{"call": "2x4"}, {"call": "8x4"}]
    assert [(cell.recorded.calls, cell.recorded.of_calls) for cell in cells if cell.recorded] == [(3, 4), (1, 4)]
    assert "--set call=2x4" in command_for(cells[0]) and "--inputs calls.pt" in command_for(cells[0])
    assert len(plan(request(inputs="calls.pt", set={"call": ("8x4",)}))) == 1


def test_only_the_most_frequent_sizes_are_measured(folder: Path) -> None:
    recorded(*range(1, 12), 12, 12).save("calls.pt")
    contests = plan(request(inputs="calls.pt"))
    assert len(contests) == 8 and contests[0].cells[0].cell.dimensions == {"call": "12x4"}


def test_the_recorded_calls_of_a_size_are_its_input_sets(folder: Path) -> None:
    recorded(8, 2, 2, 2).save("calls.pt")
    first, second = (contest.cells[0].cell for contest in plan(request(inputs="calls.pt", set={"width": ("4",)})))
    assert first.dimensions == {"call": "2x4", "width": 4}
    sets = load(first).inputs
    assert len(sets) == 3 and all(one.args[0].eq(2).all() and one.args[0].shape == (2, 4) for one in sets)
    made = load(second).inputs  # of a single call, further sets are made
    assert len(made) == bakeoff.INPUT_SETS and made[0].args[0].eq(8).all()
    assert len({float(one.args[0].sum()) for one in made}) == bakeoff.INPUT_SETS


def test_arrays_are_arguments_by_the_names_of_parameters(folder: Path) -> None:
    np.savez("sample.npz", ids=np.ones((5, 4)), mask=np.ones(5, dtype=bool))
    (contest,) = plan(request(inputs="sample.npz"))
    cell = contest.cells[0].cell
    assert cell.dimensions == {"call": "5x4+5"}
    first = load(cell).inputs[0]
    assert first.args == () and {name: value.dtype for name, value in first.kwargs.items()} == {
        "ids": torch.float32,
        "mask": torch.bool,
    }


def test_a_wrong_name_is_reported_with_the_nearest_one(folder: Path) -> None:
    np.savez("sample.npz", idz=np.ones((5, 4)))
    (contest,) = plan(request(inputs="sample.npz"))
    with pytest.raises(UsageError, match=r"unknown parameter of Net.forward in sample.npz 'idz': did you mean 'ids'"):
        load(contest.cells[0].cell)


@pytest.mark.slow
def test_models_of_other_sources_take_them_too(folder: Path) -> None:
    bakeoff.Calls.of(torch.ones(3, 3, 8, 8)).save("calls.pt")
    family = find_for("timm:resnet18", "inference", "calls.pt")
    assert family.resolve({}) == {"call": "3x3x8x8"}
    cell = plan(Request(models=("mlp",), devices=("cpu",), backends=("eager",), inputs="calls.pt"))[0].cells[0].cell
    assert load(cell).inputs[0].args[0].shape == (3, 3, 8, 8)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"inputs": "none.pt"}, "no file none.pt"),
        ({"inputs": "net.py"}, "is no file of calls"),
        ({"inputs": "text.npz"}, "cannot read text.npz"),
        ({"inputs": "calls.pt", "set": {"call": ("9x9",)}}, "did you mean|known: 2x4"),
        ({"inputs": "calls.pt", "set": {"batch": ("stream:2:8",)}}, "sizes are those of the file"),
        ({"inputs": "calls.pt", "dynamic": ["batch=1:8"]}, "each size is built"),
        ({"inputs": "calls.pt", "task": "generate", "models": ("transformer_lm",)}, "leave it out"),
    ],
)
def test_what_cannot_be_is_reported_before_anything_is_measured(
    folder: Path, fields: dict[str, object], told: str
) -> None:
    recorded(2).save("calls.pt")
    (folder / "text.npz").write_text("no arrays")
    with pytest.raises(UsageError, match=told):
        plan(request(**fields))


def test_a_factory_may_leave_its_inputs_to_the_file(folder: Path) -> None:
    (folder / "net.py").write_text(NET.replace(", torch.randn(batch, width)", ""))
    recorded(2, 2).save("calls.pt")
    with_file, alone = (plan(request(**fields))[0].cells[0].cell for fields in ({"inputs": "calls.pt"}, {}))
    assert len(load(with_file).inputs) == 2
    with pytest.raises(UsageError, match=r"gives a module alone: return \(nn.Module, example inputs\), or name"):
        load(alone)


COUNTS = {"8x4": 90, "64x4": 10}

PROCESSES = 6


def of(label: str, size: str, of_calls: int = 100) -> Cell:
    recorded = RecordedSize(file="calls.pt", calls=COUNTS[size], of_calls=of_calls)
    return cell(label, model="net.py:factory", dimensions={"call": size}).but(recorded=recorded)


def measured(label: str, size: str, milliseconds: float, spread: float = 0.0, of_calls: int = 100) -> Record:
    """Return a cell whose processes differ, each label in another order."""
    turns = [1 + spread * ((process * (len(label) + 2)) % 5 - 2) for process in range(PROCESSES)]
    return ok(of(label, size, of_calls), steady([milliseconds * turn for turn in turns], rounds=6), build_s=2.0)


def judged(latencies_ms: Mapping[str, tuple[float, float]], **more: float) -> Judgement:
    records = [
        measured(label, size, ms, **more)  # type: ignore[arg-type]
        for label, both in latencies_ms.items()
        for size, ms in zip(COUNTS, both, strict=True)
    ]
    return judge(report(records))


def only(judgement: Judgement) -> Mix:
    (mix,) = judgement.mixes
    return mix


def in_short(mix: Mix) -> list[str]:
    """Return what is found over all sizes, and for each cell its mean, its place and its speed-up, or why not."""
    sizes = ", ".join(f"{size.name} {size.weight:.3g} ({size.contest.fastest.candidates[0]})" for size in mix.sizes)
    rows = [
        f"{row.label} {row.rank}, {row.value:.4g} ms, {row.speedup and round(row.speedup.value, 3)}"
        if row.value
        else f"{row.label}: {why_not(row, mix)}"
        for row in mix.rows
    ]
    return [of_mix(mix).answer.removesuffix("."), sizes, *rows]


def test_recorded_sizes_are_judged_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies_ms = {"eager": (2.0, 20.0), "onnx": (1.0, 30.0), "openvino": (2.0, 10.0)}
    records = [measured(label, size, ms) for label, ms in (("eager", 2.0), ("onnx", 1.0)) for size in COUNTS]
    records += [measured("tensorrt", "8x4", 0.1), failed(of("tensorrt", "64x4"), Status.UNSUPPORTED, "no such axis")]
    cases = {
        "one that is best at the larger size": judged({**latencies_ms, "openvino": (1.5, 5.0)}),
        "another one in each size": judged({**latencies_ms, "openvino": (1.01, 5.0)}),
        "9 of 10 calls are small": judged(latencies_ms),
        "no build for a size": judge(report(records)),
        "100 of 125 calls": judged({"eager": (2.0, 20.0), "onnx": (1.0, 10.0)}, of_calls=125),
    }
    monkeypatch.setitem(COUNTS, "8x4", 990)
    cases["99 of 100 calls are small"] = judged(latencies_ms, of_calls=1000)
    same_as_golden(
        "mixes.txt", "\n".join(f"{name}: {each}" for name, made in cases.items() for each in in_short(only(made)))
    )


def test_intervals_of_sizes_add_up_as_squares() -> None:
    mix = only(judged({"eager": (4.0, 40.0), "onnx": (1.0, 11.0)}, spread=0.01))
    row, contests = mix.rows[0], [size.contest for size in mix.sizes]
    assert row.interval is not None and row.value is not None
    ends = [contest.fit.latency_ci95_ms("onnx") for contest in contests]
    above = [
        weight * (interval.high - contest.fit.latency_ms["onnx"])
        for weight, interval, contest in zip((0.9, 0.1), ends, contests, strict=True)
        if interval
    ]
    assert row.interval.high - row.value == pytest.approx(math.hypot(*above))
    lead = mix.answer.leads["eager"]
    single = [contest.fit.ratio("onnx", "eager") for contest in contests]
    widths = [ratio.ci95.high / ratio.ci95.low for ratio in (lead, *single) if ratio.ci95]
    assert 1 < widths[0] < max(widths[1:]) and lead.processes == PROCESSES and lead.paired


def test_every_output_has_the_verdict_over_the_mix(tmp_path: Path) -> None:
    judgement = judged({"eager": (2.0, 20.0), "onnx": (1.0, 10.0)})
    printed = io.StringIO()
    print_report(judgement, Console(file=printed, width=200))
    sentence = "onnx wins at a mean of 1.900 ms a request, 2.00x as fast as eager, sure winner"
    for output in (printed.getvalue(), to_markdown(judgement), to_page(judgement), summary.of_run(judgement)):
        assert sentence in output
    (answer,) = answer_of(judgement, tmp_path).mixes
    result = bakeoff.Result(judgement.report, tmp_path)
    assert result.winner == "onnx" and result.speedup is not None and result.speedup.value == pytest.approx(2.0)
    assert (answer.winner, answer.outcome, answer.finding) == ("onnx", "sure", sentence)
    assert [(size.name, size.weight) for size in answer.sizes] == [("8x4", 0.9), ("64x4", 0.1)]
    assert answer.rows[0].latency_ms == pytest.approx({"8x4": 1.0, "64x4": 10.0})


def test_contests_without_recorded_calls_make_no_mix() -> None:
    records = [ok(cell("eager", dimensions={"call": size}), steady([1.0] * 3)) for size in COUNTS]
    assert judge(report(records)).mixes == ()
    one = [measured("eager", "8x4", 1.0)]
    assert judge(report(one)).mixes == ()


@pytest.mark.slow
def test_what_a_program_asked_for_is_measured_and_judged_as_one(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with bakeoff.record(module) as calls:
        for rows in (2, 2, 2, 32):
            module(torch.randn(rows, 16))
    brief = {"min_time": 0.05, "processes": 3, "progress": False}
    result = bakeoff.compare(module, calls, backends="eager,onnx", devices="cpu", out=tmp_path / "run", **brief)  # type: ignore[arg-type]
    (mix,) = result.answer.mixes
    assert [(size.name, size.calls) for size in mix.sizes] == [("2x16", 3), ("32x16", 1)]
    means = {row.label: row.mean_ms for row in mix.rows}
    for row in mix.rows:
        small, large = row.latency_ms["2x16"], row.latency_ms["32x16"]
        assert small and large and means[row.label] == pytest.approx(0.75 * small + 0.25 * large, rel=1e-3)
    assert set(means) == {"eager", "onnx"} and len(result.contests) == 2
    if mix.winner:
        assert result.winner == mix.winner and result.speedup is not None
