"""`bakeoff.record`, and the file that keeps the calls."""

import copy
import json
import pickle
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.models.calls_file import sizes_in


class Scale(nn.Module):
    """Takes what it is given, and returns the first tensor doubled."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x * 2


class Overwriting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.zero_()


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
    module, given = Overwriting(), torch.ones(3)
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
def test_what_a_file_cannot_hold_is_told_by_its_path(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
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
