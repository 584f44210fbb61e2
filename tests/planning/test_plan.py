"""From requests to cells."""

import re
import shlex
from pathlib import Path

import pytest

from bakeoff import backends, cli
from bakeoff.backends import onnx_plugins
from bakeoff.backends.base import ANYWHERE
from bakeoff.commands import run as runs
from bakeoff.judging.price import Price
from bakeoff.judging.ranking import baseline_of
from bakeoff.measuring import session as measuring
from bakeoff.measuring.controller.cell_record import common_fields
from bakeoff.planning.configurations import expand_backends
from bakeoff.planning.plan import command_for, plan, refusal
from bakeoff.planning.ranges import Span
from bakeoff.planning.request import Request
from bakeoff.planning.values import Shard, Size
from bakeoff.records.duration import Duration
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Report
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
    assert expand_backends(asked.split()) == expected


def test_all_is_neither_a_backend_of_tests_nor_a_mode_that_spells_out_the_default() -> None:
    assert not {"onnxruntime-genai", "null"} & set(backends.in_all())
    plain = ["default", "cuda-graph", "opset-23", "int8-products", "tensorrt-ep"]
    assert measured_modes("onnx") == [*plain, *onnx_plugins.PLUGINS]
    assert [backend for backend, _, by_name in expand_backends(["jit", "all"]) if by_name] == ["torchscript"]


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
        planned.cell
        for contest in plan(request(models=("mlp", "conv"), backends=("eager/channels-last",)))
        for planned in contest.cells
    ]
    assert [refusal(cell)[1] for cell in cells] == [
        "mlp has no convolution, and channels-last is for those: use eager",
        "",
    ]


@pytest.mark.parametrize("name", backends.TABLE)
def test_some_mode_is_worth_trying_and_eager_in_its_default_mode_is_so_anywhere(name: str) -> None:
    backend = backends.create(name)
    assert any(mode.worth_trying for mode in backend.modes)
    assert {mode.plain_name for mode in backend.modes} <= set(backend.mode_names())
    assert name != "eager" or backend.mode("default").worth_trying == ANYWHERE


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("onx", "unknown backend 'onx': did you mean 'onnx'?"),
        ("inductor/max-autotun", "unknown mode of inductor 'max-autotun': did you mean 'max-autotune'?"),
        ("all/freezing", "write 'all/all'"),
        ("zzz", "known: aotinductor, eager"),
    ],
)
def test_an_unknown_configuration_is_refused_with_the_nearest(asked: str, said: str) -> None:
    assert said in error_line(backends=(asked,))


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
        ({"models": ("mlp", "")}, "no model named"),
        ({"models": ()}, "no model named"),
        ({"backends": ()}, "no backend named"),
        ({"precision": ()}, "no precision named"),
        ({"devices": ("gpu",)}, "unknown device 'gpu': write cpu, cuda or cuda:N"),
        ({"devices": ("cuda:x",)}, "unknown device 'cuda:x'"),
        ({"precision": ("fp23",)}, "unknown precision 'fp23': did you mean 'fp32'?"),
        ({"task": "inferense"}, "unknown task 'inferense': did you mean 'inference'?"),
        ({"set": {"bach": ("1",)}}, "unknown dimension of mlp 'bach': did you mean 'batch'?"),
        ({"set": {"batch": ("0",)}}, "must be at least 1, not 0"),
        ({"set": {"batch": ("two",)}}, "takes a whole number, not 'two'"),
        ({"set": {"batch": ()}}, "--set batch= has no value"),
        ({"models": ("transformer",), "set": {"heads": ("3",)}}, "heads"),
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
    assert common_fields(planned)["command"].endswith("--calls 1000 --require 'p99_ms<5, build_s<60'")
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
    sampling = measuring.sampling_of(Request(**asked))
    assert (sampling.processes, sampling.most_processes, sampling.races) == (processes, most, races)


@pytest.mark.parametrize(
    ("require", "energy", "throughput"),
    [("", False, False), ("joules_per_call<1, median_ms<5", True, False), ("calls_per_s>100", False, True)],
)
def test_what_a_requirement_names_is_measured_well_of_every_cell(require: str, energy: bool, throughput: bool) -> None:
    sampling = measuring.sampling_of(Request.model_validate({"require": require}))
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
    assert ("broken", "default", False) in expand_backends(["all"])
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
