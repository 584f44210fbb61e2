"""From requests to cells, ranges of sizes, and places."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from bakeoff import backends, cli, models
from bakeoff.backends import onnx_plugins
from bakeoff.backends.base import ANYWHERE
from bakeoff.backends.ranges import OpenAxis
from bakeoff.commands import run as runs
from bakeoff.judging.price import Price
from bakeoff.judging.ranking import baseline_of
from bakeoff.measuring.controller.cell_record import record_of
from bakeoff.measuring.worker import open_axes
from bakeoff.measuring.worker.cell_model import load
from bakeoff.planning import places
from bakeoff.planning.configurations import expand_backends
from bakeoff.planning.plan import Contest, PlannedCell, command_for, plan
from bakeoff.planning.ranges import Span, parse, ranges_of, spell, with_ends
from bakeoff.planning.request import Request
from bakeoff.planning.values import Duration, Shard, Size
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Range, Report, Status
from tests.support.distributions import distribute


def request(**fields: object) -> Request:
    given: dict[str, object] = {"models": ("mlp",), "backends": ("null",), "devices": ("cpu",), **fields}
    return Request(**given)


def error_line(**fields: object) -> str:
    with pytest.raises(UsageError) as caught:
        plan(request(**fields))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def measured_modes(name: str) -> list[str]:
    return [mode.name for mode in backends.create(name).modes if not mode.redundant]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("inductor", [("inductor", "default", True)]),
        ("jit", [("torchscript", "default", True)]),
        ("torch_compile/freezing", [("inductor", "freezing", True)]),
        ("onnxruntime-genai", [("onnxruntime-genai", "default", True)]),  # which `all` does not stand for
        ("onnx/cpu", [("onnx", "cpu", True)]),  # which spells out the default
        ("null/best", [("null", "default", True)]),  # never nothing
        ("null null/default null/slow null", [("null", "default", True), ("null", "slow", True)]),
        ("all", [(name, "default", False) for name in backends.in_all()]),
        ("all/all", [(name, mode, False) for name in backends.in_all() for mode in measured_modes(name)]),
        ("inductor/all", [("inductor", mode, mode == "default") for mode in measured_modes("inductor")]),
        ("null/all null/slow", [("null", name, name in ("default", "slow")) for name in measured_modes("null")]),
        ("all jit", [(name, "default", name == "torchscript") for name in backends.in_all()]),
    ],
)
def test_names_stand_for_modes_of_which_some_were_asked_for_by_name(
    asked: str, expected: list[tuple[str, str, bool]]
) -> None:
    assert [configuration[:3] for configuration in expand_backends(asked.split())] == expected


def test_all_is_neither_a_backend_of_tests_nor_a_mode_that_spells_out_the_default() -> None:
    assert not {"onnxruntime-genai", "null"} & set(backends.in_all())
    plain = ["default", "cuda-graph", "opset-23", "int8-products", "tensorrt-ep"]
    assert measured_modes("onnx") == [*plain, *onnx_plugins.PLUGINS]
    assert [one.backend for one in expand_backends(["jit", "all"]) if one.asked_by_name] == ["torchscript"]


def planned_labels(**fields: object) -> list[str]:
    return [planned.cell.label for contest in plan(request(**fields)) for planned in contest.cells]


def test_best_is_what_has_won_somewhere_on_this_device_for_this_kind_of_model() -> None:
    for_images = planned_labels(models=("conv",), backends=("best",))
    for_others = planned_labels(models=("mlp",), backends=("best",))
    assert {"eager", "eager/channels-last", "torchscript/channels-last", "onnx", "openvino"} <= set(for_images)
    assert for_images[0] == for_others[0] == "eager"
    for_convolutions = {label for label in for_images if "channels-last" in label} | {"inductor/freezing"}
    assert for_others == [label for label in for_images if label not in for_convolutions]
    on_cuda = planned_labels(models=("conv",), backends=("best",), devices=("cuda",))
    assert {"eager", "eager/cuda-graph", "inductor/reduce-overhead-channels-last"} <= set(on_cuda)
    assert not {"openvino", "triton"} & set(on_cuda), "what cannot run there, or has no kernel for it, is no best mode"


def test_best_of_a_backend_that_cannot_run_there_is_its_default() -> None:
    assert planned_labels(backends=("eager", "triton/best")) == ["eager", "triton"]


def test_a_mode_for_images_is_refused_without_a_process_where_the_model_has_none() -> None:
    cells = [
        planned
        for contest in plan(request(models=("mlp", "conv"), backends=("eager/channels-last",)))
        for planned in contest.cells
    ]
    assert [planned.refusal[1] for planned in cells] == [
        "mlp has no convolution, and channels-last is for those: use eager",
        "",
    ]


@pytest.mark.parametrize("name", backends.TABLE)
def test_some_mode_is_worth_trying_and_eager_in_its_default_mode_is_so_anywhere(name: str) -> None:
    backend = backends.create(name)
    assert any(mode.worth_trying for mode in backend.modes)
    assert {mode.plain_name for mode in backend.modes} <= set(backend.mode_names())
    assert name != "eager" or backend.mode("default").worth_trying == ANYWHERE


def test_a_contest_holds_the_cells_that_differ_in_backend_and_mode_alone() -> None:
    contests = plan(
        request(models=("mlp", "conv"), backends=("eager", "null/all"), devices=("cpu", "cuda:1"), precision=("fp16",))
    )
    assert len(contests) == 4
    for contest in contests:
        assert len(contest.cells) == 1 + len(backends.create("null").modes)
        rests = {
            planned.cell.model_copy(update={"backend": "", "mode": ""}).model_dump_json() for planned in contest.cells
        }
        assert len(rests) == 1
        assert {planned.cell.contest_id for planned in contest.cells} == {contest.id}
    assert [(contest.cells[0].cell.model, contest.cells[0].cell.device) for contest in contests] == [
        ("mlp", "cpu"),
        ("mlp", "cuda:1"),
        ("conv", "cpu"),
        ("conv", "cuda:1"),
    ]


def test_values_of_dimensions_are_crossed_and_one_spelled_twice_counts_once() -> None:
    contests = plan(request(models=("mlp", "conv"), set={"batch": ("1", "8")}))
    found = [(contest.cells[0].cell.model, contest.cells[0].cell.dimensions["batch"]) for contest in contests]
    assert found == [("mlp", 1), ("mlp", 8), ("conv", 1), ("conv", 8)]
    contests = plan(request(set={"batch": ("1", "8"), "hidden": ("2", "3", "4")}))
    assert len({contest.id for contest in contests}) == 6
    (contest,) = plan(request(set={"batch": ("3", "03")}))
    assert contest.cells[0].cell.dimensions == {"batch": 3, "features": 256, "hidden": 512}, "others are the defaults"
    assert plan(request(seed=1))[0].id != plan(request(seed=0))[0].id


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"models": ("trnsformer",)}, "unknown model 'trnsformer': did you mean 'transformer'?"),
        ({"models": ("mlp", "")}, "--model: a name is missing: write --model NAME"),
        ({"models": ()}, "--model: a name is missing"),
        ({"backends": ()}, "--backends: a name is missing: write --backends NAME"),
        ({"backends": ("@old",)}, "--backends: a name is missing"),
        ({"backends": ("onnx@",)}, "--backends: a name is missing"),
        (
            {"backends": ("inductor/max-autotun",)},
            "unknown mode of inductor 'max-autotun': did you mean 'max-autotune'",
        ),
        ({"backends": ("all/freezing",)}, "write 'all/all'"),
        ({"backends": ("zzz",)}, "known: aotinductor, eager"),
        ({"precision": ()}, "--precision: a name is missing"),
        ({"devices": ("gpu",)}, "unknown device 'gpu': write cpu, cuda or cuda:N"),
        ({"devices": ("cuda:x",)}, "unknown device 'cuda:x'"),
        ({"precision": ("fp23",)}, "unknown precision 'fp23': did you mean 'fp32'?"),
        ({"task": "inferense"}, "unknown task 'inferense': did you mean 'inference'?"),
        ({"set": {"bach": ("1",)}}, "unknown dimension of mlp 'bach': did you mean 'batch'?"),
        ({"set": {"batch": ("0",)}}, "must be at least 1, not 0"),
        ({"set": {"batch": ("two",)}}, "takes a whole number, not 'two'"),
        ({"models": ("transformer",), "set": {"heads": ("3",)}}, "heads=3 does not divide dim=256"),
        ({"builds": 4, "processes": 3}, "--builds 4: each build needs a process"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(fields: dict[str, object], said: str) -> None:
    assert said in error_line(**fields)


def commanded(command: str, monkeypatch: pytest.MonkeyPatch) -> Request:
    """The request that the command line `command` makes."""
    made: list[Request] = []

    def note(request: Request, *rest: object) -> tuple[Report, object]:
        made.append(request)
        raise UsageError("noted")

    monkeypatch.setattr(runs, "run", note)
    words = shlex.split(command)
    assert words[0] == "bakeoff"
    cli.main(words[1:])
    return made[0]


@pytest.mark.parametrize("mode", ["default", "slow"])
@pytest.mark.parametrize("folder", ["plain", "with a space"])
def test_the_command_of_a_cell_plans_that_cell(
    mode: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_signals: None
) -> None:
    file = tmp_path / folder / "mine.py"
    file.parent.mkdir()
    file.write_text("def factory(batch: int = 1, text: str = 'x'): ...\n")
    (contest,) = plan(
        request(
            models=(f"{file}:factory",),
            backends=(f"null/{mode}",),
            devices=("cuda:1",),
            precision=("bf16",),
            set={"batch": ("3",), "text": ("two $words",)},
            seed=7,
        )
    )
    cell = contest.cells[0].cell
    (again,) = plan(commanded(command_for(cell), monkeypatch))
    assert [planned.cell.backend for planned in again.cells] == ["eager", "null"]
    assert again.cells[-1].cell == cell
    assert not again.cells[-1].strict
    (strictly,) = plan(commanded(command_for(cell, ["--strict"]), monkeypatch))
    assert [(planned.cell, planned.strict) for planned in strictly.cells[1:]] == [(cell, True)]


def test_a_command_says_how_the_cell_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured_by = {
        "processes": 3,  # typed, although as many as by default: every cell gets them
        "builds": 2,
        "min_time_s": 0.6,
        "time_limit_s": 90.0,
        "schedule": "sequential",
        "start_method": "spawn",
        "cold_cache": True,
        "require": "p99_ms<5, build_s<60",
        "calls": 1000,
    }
    (contest,) = plan(request(backends=("null/slow",), **measured_by))
    planned = contest.cells[0]
    again = commanded(command_for(planned.cell, planned.options), monkeypatch)
    written = again.model_dump(mode="json")
    assert {name: written[name] for name in measured_by} == measured_by
    assert "--time-limit 90" in planned.options
    assert record_of(planned, Status.OK).command.endswith("--calls 1000 --require 'p99_ms<5, build_s<60'")
    (by_default,) = plan(request(backends=("null/slow",)))
    assert by_default.cells[0].options == ()


@pytest.mark.parametrize(
    ("asked", "processes", "most", "races"),
    [
        ({}, 3, 20, True),
        ({"processes": 3}, 3, 20, False),
        ({"processes": 2}, 2, 2, False),
        ({"builds": 4}, 8, 20, True),
    ],
)
def test_who_asks_for_processes_gets_them_of_every_cell(
    asked: dict[str, int], processes: int, most: int, races: bool
) -> None:
    sampling = Request(**asked).sampling
    assert (sampling.processes, sampling.most_processes, sampling.races) == (processes, most, races)


@pytest.mark.parametrize(
    ("require", "energy", "throughput"),
    [("", False, False), ("joules_per_call<1, median_ms<5", True, False), ("calls_per_s>100", False, True)],
)
def test_what_a_requirement_names_is_measured_well_of_every_cell(require: str, energy: bool, throughput: bool) -> None:
    sampling = Request.model_validate({"require": require}).sampling
    assert (sampling.energy_of_all, sampling.throughput_of_all) == (energy, throughput)


def test_ids_do_not_depend_on_the_order_of_dimensions() -> None:
    forth = Cell(model="mlp", dimensions={"batch": 1, "hidden": 2}, backend="eager")
    back = Cell(model="mlp", dimensions={"hidden": 2, "batch": 1}, backend="eager")
    assert forth.id == back.id == "mlp_batch1_hidden2_inference_cpu_fp32_eager.default"


def test_ids_are_distinct_and_safe_as_file_names(tmp_path: Path) -> None:
    files = [tmp_path / one / f"{'long' * 40}.py" for one in ("a b", "a-b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("def factory(batch: int = 1): ...\n")
    asked = request(
        models=tuple(f"{file}:factory" for file in files),
        backends=("null/all", *(f"inductor/{mode}" for mode in backends.create("inductor").mode_names())),
        devices=("cpu", "cuda:1"),
        precision=("fp32", "fp16"),
        set={"batch": ("1", "11")},
    )
    for one in (asked, asked.model_copy(update={"models": ("mlp", "conv"), "seed": 1})):
        ids = [planned.cell.id for contest in plan(one) for planned in contest.cells]
        assert len(ids) == 2 * 2 * 2 * 2 * (len(backends.create("null").modes) + len(backends.create("inductor").modes))
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,149}", name) for name in ids)


def test_targets_are_those_of_surgical_cells_and_stand_in_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ("layers.*.rope", "norm")
    (contest,) = plan(request(backends=("inductor", "inductor/surgical"), surgical=targets))
    found = {planned.cell.label: planned.surgical for planned in contest.cells}
    assert found == {"inductor": (), "inductor/surgical": targets}
    (planned,) = (planned for planned in contest.cells if planned.cell.label == "inductor/surgical")
    cell = planned.cell
    command = command_for(cell, planned.options)
    assert command.endswith("--surgical 'layers.*.rope,norm'")
    (again,) = plan(commanded(command, monkeypatch))
    assert {planned.cell.label: planned.surgical for planned in again.cells} == {"eager": (), cell.label: targets}


def test_a_third_partys_backend_that_does_not_load_costs_one_row_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribute("broken", "no_such_module:Backend", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert ("broken", "default", False, False) in expand_backends(["all"])
    with pytest.raises(BakeoffError, match="backend 'broken'"):
        expand_backends(["broken"])


def test_shards_share_the_contests_out() -> None:
    request = Request(
        models=("mlp", "conv"), backends=("eager",), devices=("cpu",), precision=("fp32", "bf16"), separate=True
    )
    whole = [contest.id for contest in plan(request)]
    shards = [[one.id for one in plan(request.model_copy(update={"shard": Shard(number, 3)}))] for number in (1, 2, 3)]
    assert shards == [[whole[0], whole[3]], [whole[1]], [whole[2]]]


def test_precisions_are_one_contest_whose_cells_keep_their_ids() -> None:
    asked = {"models": ("mlp",), "backends": ("eager", "onnx"), "devices": ("cpu",), "precision": ("bf16", "fp32")}
    (contest,) = plan(request(**asked))
    apart = plan(request(**asked, separate=True))
    labels = [planned.cell.label for planned in contest.cells]
    assert labels == ["eager bf16", "onnx bf16", "eager fp32", "onnx fp32"]
    assert contest.id.endswith("_cpu_bf16-fp32") and contest.cells[0].cell.title.endswith("on cpu, bf16/fp32")
    assert [planned.cell.id for planned in contest.cells] == [one.cell.id for each in apart for one in each.cells]
    assert [own.id for own in contest.by_reference] == [each.id for each in reversed(apart)]  # float32 first
    assert {planned.cell.label for each in apart for planned in each.cells} == {"eager", "onnx"}
    assert baseline_of([planned.cell for planned in contest.cells]) == "eager fp32"
    assert baseline_of([planned.cell for planned in contest.cells[:2]]) == "eager bf16"
    assert "--precision fp32,bf16 " in command_for(contest.cells[1].cell)
    assert "--precision fp32 " in command_for(contest.cells[3].cell)


@pytest.mark.parametrize(
    ("more", "labels"),
    [
        ({}, [["eager fp32", "eager bf16"]]),
        ({"task": "train_step"}, [["eager fp32", "eager bf16"]]),
        ({"task": "generate", "models": ("transformer_lm",)}, [["eager fp32", "eager bf16"]] * 2),
        ({"task": "train_step", "separate": True}, [["eager"], ["eager"]]),
        ({"precision": ("fp32", "fp32")}, [["eager"]]),
    ],
)
def test_every_task_has_one_contest_for_all_precisions(more: dict[str, object], labels: list[list[str]]) -> None:
    asked = {"models": ("mlp",), "backends": ("eager",), "devices": ("cpu",), "precision": ("fp32", "bf16")} | more
    assert [[planned.cell.label for planned in contest.cells] for contest in plan(request(**asked))] == labels


@pytest.mark.parametrize("task", ["train_step", "generate"])
def test_a_metric_of_what_is_not_evaluated_is_refused(task: str) -> None:
    asked = request(models=("transformer_lm",), task=task, precision=("fp32", "bf16"), require="top1>-1%")
    with pytest.raises(UsageError, match=f"only inference is evaluated, and --task is {task}"):
        plan(asked)
    assert plan(request(models=("transformer_lm",), task=task, require="relative_rmse<1e-2"))


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/0", "5/5"])
def test_a_shard_that_is_none(shard: str) -> None:
    with pytest.raises(UsageError, match=f"--shard {shard}: "):
        plan(request(backends=("eager",), precision=("fp32", "bf16"), separate=True, shard=shard))


def test_values_are_stored_as_they_are_typed_and_read_back() -> None:
    typed = {
        "budget": "5m",
        "wait_for_quiet": "10m",
        "load": "multi-stream:4",
        "price": "2.5/h",
        "shard": "2/8",
        "require": "p99_ms<5, peak_device_bytes<4 GB",
        "artifact_limit": "500MB",
        "env": ["old=/venvs/old/bin/python"],
        "dynamic": ["batch=1:8", "hidden=16:64:128"],
        "precision": ["fp32", "bf16"],
    }
    made = request(**typed)
    assert made.model_dump(mode="json").items() >= typed.items()
    assert Request(**made.model_dump(mode="json")) == made
    assert request(**{name: getattr(made, name) for name in typed}) == made, "what was read stays as it is"
    assert request().model_dump(mode="json")["artifact_limit"] == "2GB"
    assert (made.budget, made.shard, made.price) == (Duration(300), Shard(2, 8), Price(2.5))
    assert made.env == {"old": "/venvs/old/bin/python"} and made.dynamic["hidden"] == Span(16, 64, 128)


@pytest.mark.parametrize(
    ("text", "spelled"), [("90", "90s"), ("60s", "60s"), ("2m", "2m"), ("1h", "60m"), ("3h", "3h"), ("1.5m", "90s")]
)
def test_a_duration_is_spelled_as_a_user_would(text: str, spelled: str) -> None:
    assert str(Duration.parse(text, "--budget")) == spelled
    assert Duration.parse(spelled, "--budget") == Duration.parse(text, "--budget")


@pytest.mark.parametrize("text", ["2GB", "1.5GB", "500MB", "3kB", "7B"])
def test_a_size_is_spelled_as_a_user_would(text: str) -> None:
    assert str(Size.parse_limit(text)) == text


FACTORY = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(4, width)

    def forward(self, tokens, mask):
        return self.linear(tokens) * mask[..., None]

def plain(batch: int = 2, seq: int = 8, unused: int = 3):
    return Net(4), (torch.randn(batch, 2 * seq, 4), torch.ones(batch, 2 * seq))

def inputs_first(batch: int = 2, seq: int = 8):
    inputs = (torch.randn(batch, seq, 4), torch.ones(batch, seq))
    return Net(4), inputs

def wide(batch: int = 2, width: int = 8):
    return Net(width), (torch.randn(batch, 3, 4), torch.ones(batch, 3))

def fixed(batch: int = 2, seq: int = 8):
    if seq > 10:
        raise ValueError("ten at most")
    return plain(batch, seq)
"""


def planned(**fields: Any) -> list[Contest]:
    asked = {"models": ["transformer"], "devices": ["cpu"], "backends": ["eager", "onnx"], **fields}
    return plan(Request(**asked))


def cells_of(contests: list[Contest]) -> list[PlannedCell]:
    return [cell for contest in contests for cell in contest.cells]


def test_a_range_has_two_ends_and_may_name_the_size_to_build_with() -> None:
    assert parse(["seq=16:512", "batch=1:4:8"]) == {"seq": (16, None, 512), "batch": (1, 4, 8)}
    assert spell({"seq": Range(low=16, built_at=64, high=512)}) == "seq=16:64:512"


@pytest.mark.parametrize("entry", ["seq", "seq=16", "seq=a:b", "seq=16:", "=1:2", "seq=512:16", "seq=4:4", "seq=4:2:8"])
def test_any_other_form_is_reported_in_one_line(entry: str) -> None:
    with pytest.raises(UsageError, match=r"^--dynamic [^\n]+$"):
        parse([entry])


@pytest.mark.parametrize(
    ("sizes", "built_at"), [(("16", "64", "512"), 64), (("16", "512"), 512), (("512",), 512), (("16", "8"), 16)]
)
def test_the_build_is_made_at_the_middle_one_of_the_sizes(sizes: tuple[str, ...], built_at: int) -> None:
    found = ranges_of({"seq": sizes}, parse(["seq=8:512"]))
    assert found == {"seq": Range(low=8, built_at=built_at, high=512)}


def test_two_axes_are_not_built_at_the_same_size_nor_at_one() -> None:
    asked = {"batch": ("1", "8"), "seq": ("8",)}
    found = ranges_of(asked, parse(["batch=1:8", "seq=4:16"]))
    assert (found["batch"].built_at, found["seq"].built_at) == (8, 16)
    alone = ranges_of({"batch": ("1",)}, parse(["batch=1:8"]))
    assert alone["batch"].built_at == 8


def test_a_range_without_sizes_is_measured_at_its_ends() -> None:
    assert with_ends({"batch": ("2",)}, parse(["seq=16:64"])) == {"batch": ("2",), "seq": ("16", "64")}


def test_one_build_is_planned_beside_builds_for_each_size() -> None:
    contests = planned(set={"seq": ["16", "64"]}, dynamic=["seq=16:64"])
    assert [[one.cell.label for one in contest.cells] for contest in contests] == [
        ["eager", "onnx", "onnx[dynamic]"]
    ] * 2
    cells = [planned.cell for planned in cells_of(contests)]
    assert len({cell.id for cell in cells}) == len(cells)
    dynamic = [cell for cell in cells if cell.dynamic]
    assert len({cell.build_id for cell in dynamic}) == 1
    assert all(cell.build_id == cell.id for cell in cells if not cell.dynamic)
    assert {cell.as_built.dimensions["seq"] for cell in dynamic} == {64}
    assert "--dynamic seq=16:64:64" in command_for(dynamic[0]) and "--dynamic" not in command_for(cells[1])


def test_several_dimensions_vary_at_once() -> None:
    contests = planned(set={"batch": ["1", "8"], "seq": ["16", "64"]}, dynamic=["batch=1:8", "seq=16:64"])
    dynamic = [one.cell for one in cells_of(contests) if one.cell.dynamic]
    assert len(dynamic) == 4 and len({cell.build_id for cell in dynamic}) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dynamic": ["dim=64:130"]}, "heads=4 does not divide dim=130"),
        ({"dynamic": ["sek=16:64"]}, "sek"),
        ({"dynamic": ["seq=1:8", "dmi=1:8"]}, "--dynamic seq=1:8,dmi=1:8: unknown dimension of transformer 'dmi'"),
        ({"dynamic": ["seq=0:64"]}, "must be at least 1"),
        ({"dynamic": ["seq=16:64"], "set": {"seq": ["128"]}}, "seq=128 is outside of this range"),
        ({"dynamic": ["seq=16:64"], "set": {"seq": ["long"]}}, "--set seq=long: --dynamic seq is a range of sizes"),
        (
            {"dynamic": ["size=1:2"], "models": ["transformer_lm"]},
            "unknown value for transformer_lm's dimension 'size'",
        ),
    ],
)
def test_a_range_that_the_model_refuses_is_one_line(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        planned(**asked)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def cell_of(folder: Path, factory: str, **sizes: tuple[int, int, int]) -> Cell:
    file = folder / "mine.py"
    file.write_text(FACTORY)
    model = f"{file}:{factory}"
    ranges = {name: Range(low=low, built_at=at, high=high) for name, (low, at, high) in sizes.items()}
    return Cell(model=model, dimensions=models.find(model).resolve({}), backend="onnx", dynamic=ranges)


def test_open_axes_are_found_by_comparing_inputs_of_two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = open_axes.find(cell_of(tmp_path, "plain", seq=(4, 8, 16)), tmp_path)
    assert not one.weights_vary
    assert one.axes == tuple(OpenAxis(tensor=tensor, axis=1, dimensions=("seq",), low=8, high=32) for tensor in (0, 1))
    two = open_axes.find(cell_of(tmp_path, "plain", batch=(1, 4, 8), seq=(4, 8, 16)), tmp_path)
    assert [(each.axis, each.dimensions, each.low, each.high) for each in two.axes if each.tensor == 1] == [
        (0, ("batch",), 1, 8),
        (1, ("seq",), 8, 32),
    ]


def test_weights_that_are_drawn_after_the_inputs_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_axes.find(cell_of(tmp_path, "inputs_first", seq=(4, 8, 16)), tmp_path).weights_vary


@pytest.mark.parametrize(
    ("factory", "name", "said"),
    [
        ("plain", "unused", "no input of .* changes its shape with unused"),
        ("wide", "width", "the shape of 'linear.weight' of .* changes with width"),
        ("fixed", "seq", "does not load with seq 16: ValueError: ten at most"),
    ],
)
def test_a_range_that_no_build_can_serve_is_refused(
    factory: str, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=said):
        open_axes.find(cell_of(tmp_path, factory, **{name: (4, 8, 16)}), tmp_path)


def test_all_sizes_can_have_the_weights_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cell = cell_of(tmp_path, "inputs_first", seq=(4, 8, 16))
    small = cell.model_copy(update={"dimensions": {"batch": 2, "seq": 4}})
    (expected, own, same) = (
        load(one, weights_at=at).module.state_dict()["linear.weight"]
        for one, at in ((cell, {}), (small, {}), (small, {"seq": 8}))
    )
    assert not own.equal(expected) and same.equal(expected)
    assert load(small, weights_at={"seq": 8}).inputs[0].args[0].shape == (2, 4, 4)


ONE_THREAD_EACH = {core: core for core in range(8)}
TWO_THREADS_EACH = {core: core % 4 for core in range(8)}
"""As Linux often numbers them: 0 and 4 are threads of one physical core."""


def cores_of(*devices: str, siblings: dict[int, int] = ONE_THREAD_EACH) -> dict[str, tuple[int, ...]]:
    return {place.name: place.cores for place in places.places_of(devices, range(8), siblings)}


def test_one_device_of_a_kind_is_no_pool() -> None:
    assert not any(map(places.is_pool, [(), ("cpu",), ("cuda",), ("cuda:1",), ("cpu", "cuda:1")]))
    assert cores_of("cpu", "cuda:1") == {}
    assert places.devices_of_cells(["cpu", "cuda:1"]) == ["cpu", "cuda:1"]


def test_sets_of_cores_are_a_pool_whose_cells_run_on_the_cpu() -> None:
    assert places.devices_of_cells(["cpu:0-1", "cpu:2-3"]) == ["cpu"]
    assert cores_of("cpu:0-1", "cpu:2-3") == {"cpu:0-1": (0, 1), "cpu:2-3": (2, 3)}
    assert cores_of("cpu:0+4", "cpu:1+5", siblings=TWO_THREADS_EACH) == {"cpu:0+4": (0, 4), "cpu:1+5": (1, 5)}


def test_gpus_are_a_pool_that_divides_the_physical_cores() -> None:
    assert places.devices_of_cells(["cuda:all"]) == places.devices_of_cells(["cuda", "cuda:1"]) == ["cuda"]
    assert cores_of("cuda:0", "cuda:2") == {"cuda:0": (0, 1, 2, 3), "cuda:2": (4, 5, 6, 7)}
    assert cores_of("cuda:0", "cuda:1", siblings=TWO_THREADS_EACH) == {"cuda:0": (0, 1, 4, 5), "cuda:1": (2, 3, 6, 7)}
    with pytest.raises(UsageError, match="2 contests side by side need as many cores, and this process may use 1"):
        places.divide_cores([3], {}, 2)


def test_a_place_shows_its_gpu_alone() -> None:
    second = places.places_of(["cuda:0", "cuda:1"], range(8), {})[1]
    assert second.variables({"PATH": "/bin"}) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
    assert second.variables({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert places.places_of(["cpu:0"], range(8), {})[0].variables({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu:0-"], "--devices cpu:0-: write a set of cores as cpu:0-3"),
        (["gpu:1", "cpu:0"], "unknown device 'gpu:1'"),
        (["cpu:0", "cuda"], "stand alone"),
        (["cpu", "cpu:0"], "stand alone"),
        (["cpu", "cuda:0", "cuda:1"], "stand alone"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused_before_anything_starts(devices: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        places.devices_of_cells(devices)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu:0-2", "cpu:2-4"], "a core is in two sets"),
        (["cpu:0-1", "cpu:2"], "all sets need as many cores"),
        (["cpu:0", "cpu:9"], "may use the cores 0, 1, 2, 3, 4, 5, 6, 7, and not 9"),
        (["cpu:0", "cpu:4"], "threads of one physical core"),
        (["cuda", "cuda:0"], "a GPU is named twice"),
    ],
)
def test_places_that_overlap_or_do_not_exist_are_refused(devices: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cores_of(*devices, siblings=TWO_THREADS_EACH)


def test_threads_of_one_physical_core_are_read_from_linux(tmp_path: Path) -> None:
    for core, siblings in {0: "0,4", 1: "1", 4: "0,4"}.items():
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    assert places.physical_cores([0, 1, 4, 7], tmp_path) == {0: 0, 1: 1, 4: 0}
