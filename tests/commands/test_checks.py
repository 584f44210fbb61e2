"""Commands without a run of their own: checks, previews, lists, the largest batch, and the self-check."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from bakeoff import backends, cli, models
from bakeoff.backends.inductor import Inductor
from bakeoff.backends.tensorrt import TensorRT
from bakeoff.commands import checks, max_batch, selfcheck
from bakeoff.commands.checks import Check, ChecksAnswer, finding_of
from bakeoff.commands.listing import answer, blocks_of
from bakeoff.commands.max_batch import BatchSearch, BatchTried, MaxBatchAnswer, search
from bakeoff.commands.preview import Preview, preview, preview_of
from bakeoff.commands.run import with_files
from bakeoff.commands.selfcheck import AGAIN, FIRST, SlowdownAnswer
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.models.base import Family
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import USUAL_EVALUATE_S, USUAL_FRESH_START_S, reserved_for_starts_s
from bakeoff.planning.values import Duration
from bakeoff.records.conditions import Conditions
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Interval, Memory, Ratio, Record, Report, Status
from bakeoff.records.store import FirstBuild, Store
from bakeoff.reports import terminal
from bakeoff.reports.blocks import Items, Section
from bakeoff.reports.tables import Table
from tests.conftest import CommandLine
from tests.reports import samples
from tests.reports.samples import cell, failed, ok, once, steady, under

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(width, width)
width = 4
def get_inputs():
    return [torch.rand(2, width)]
def get_init_inputs():
    return []
"""


def test_builds_are_compared_and_none_is_timed(command_line: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems" / "1_product.py").write_text(PROBLEM)
    (tmp_path / "problems" / "2_fails.py").write_text(PROBLEM.replace("[torch.rand(2, width)]", "1 / 0"))
    (tmp_path / "problems" / "utils.py").write_text("")
    asked = ("--model", "problems/*.py", "--backends", "eager,null/wrong,tensorrt", "--devices", "cpu", "--check-only")
    status, out, err = command_line(*asked, "--json", "--out", "checked")
    answer = json.loads(out)
    assert status == 1 and answer["complete"]
    assert answer["exit_reason"] == (
        "4 cells failed: null/wrong of problems/1_product.py (incorrect), eager of problems/2_fails.py (error), null/"
        "wrong of problems/2_fails.py (error) and tensorrt of problems/2_fails.py (error); tensorrt, which you named, "
        "is unavailable"
    )
    assert err.splitlines()[-1] == f"exit status 1: {answer['exit_reason']}"
    assert answer["finding"] == (
        "1 of 5 builds is wrong: null/wrong of problems/1_product.py (width 4) on cpu, fp32; 3 of 5 builds failed: "
        "all of problems/2_fails.py (width 4) on cpu, fp32"
    )
    statuses = {(check["model"], check["label"]): check["status"] for check in answer["checks"]}
    assert statuses == {
        ("problems/1_product.py", "eager"): "ok",
        ("problems/1_product.py", "null/wrong"): "incorrect",
        ("problems/1_product.py", "tensorrt"): "unavailable",
        ("problems/2_fails.py", "eager"): "error",
        ("problems/2_fails.py", "null/wrong"): "error",
        ("problems/2_fails.py", "tensorrt"): "error",
    }
    eager, wrong = answer["checks"][1:3] if answer["checks"][0]["label"] == "tensorrt" else answer["checks"][:2]
    assert eager["relative_error"] < 1e-6 < wrong["relative_error"] and wrong["reason"]
    failed = [check for check in answer["checks"] if check["status"] == "error"]
    assert all(".log" not in check["reason"] and "ZeroDivisionError" in check["log_tail"] for check in failed)
    assert [reason.partition(" ")[0] for reason in answer["left_out"]] == ["problems/utils.py"]
    assert json.loads((tmp_path / "checked" / "checks.json").read_text())["finding"] == answer["finding"]
    assert "latency" not in out and "ok eager of problems/1_product.py" in err
    for command, *more in (["blame", "null/wrong"], ["explain"], ["export"], ["resume"]):
        status, _, err = command_line(command, "checked", *more)
        assert status == 2 and len(err.splitlines()) == 1
        assert {"checked", "--check-only"} <= set(err.replace(",", "").split())

    status, out, _ = command_line("--model", "mlp", "--backends", "null", "--devices", "cpu", "--check-only", "--quiet")
    assert status == 0 and out.splitlines()[0] == "the only build is right"
    assert "The model" not in out


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return x + torch.rand_like(x)", "The model is random: two calls with the same inputs differ."),
        ("return torch.ones(2, width)", "The model gives one answer"),
    ],
)
def test_what_a_model_does_beside_its_outputs_is_reported(
    command_line: CommandLine, tmp_path: Path, body: str, sentence: str
) -> None:
    (tmp_path / "net.py").write_text(PROBLEM.replace("return x @ torch.ones(width, width)", body))
    asked = ("--model", "net.py", "--backends", "eager", "--devices", "cpu", "--check-only", "--quiet")
    _, out, _ = command_line(*asked, "--out", "checked")
    assert sentence in out.replace("\n", " ")
    assert json.loads((tmp_path / "checked" / "checks.json").read_text())["about_models"][0].startswith(sentence)


def test_a_size_is_that_of_the_files_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "1.py").write_text(PROBLEM)
    (tmp_path / "2.py").write_text(PROBLEM.replace("width = 4", "width = height = 3\nheight = 4"))
    asked = Request(models=("mlp", f"{tmp_path}/*.py"), set={"width": ("5", "6"), "batch": ("2",)})
    request, _ = with_files(asked)
    assert [(part.models, part.set) for part in request.parts] == [
        (("mlp",), {"batch": ("2",)}),
        ((f"{tmp_path}/1.py",), {"width": ("5", "6")}),
        ((f"{tmp_path}/2.py",), {}),
    ]
    assert with_files(request) == (request, [])
    with pytest.raises(UsageError, match="unknown dimension of mlp 'depth'"):
        plan(with_files(asked.but(devices=("cpu",), set={"depth": ("2",)}))[0])


PRINTS = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        print("called")
        return x.tanh()

def factory():
    return Net(), torch.randn(2, 4)
"""


def test_a_build_that_drops_what_the_model_does_is_right_with_a_doubt(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prints.py").write_text(PRINTS, encoding="utf-8")
    asked = ("--model", "prints.py:factory", "--backends", "eager,torchscript", "--devices", "cpu", "--check-only")
    status, out, err = command_line(*asked, "--json")
    assert status == 0, err
    answer = json.loads(out)
    assert [bool(found["doubts"]) for found in answer["checks"]] == [False, True]
    assert answer["finding"].startswith("outputs of 1 are right, with a doubt: torchscript of prints.py:factory")
    assert "and this build does not" in err


def check(label: str, status: Status, **more: str) -> Check:
    return Check(model="net", contest="net on cpu, fp32", label=label, status=status, **more)


@pytest.mark.parametrize(
    ("ended", "finding"),
    [
        ([], "nothing could be built here"),
        ([check("a", Status.UNAVAILABLE)], "nothing could be built here"),
        ([check("a", Status.OK), check("b", Status.OK), check("c", Status.UNSUPPORTED)], "all 2 builds are right"),
        ([check("a", Status.OK), check("b", Status.CRASH)], "1 of 2 builds failed: b of net on cpu, fp32"),
        (
            [check("a", Status.OK, unchecked="random"), check("b", Status.INCORRECT)],
            "1 of 2 builds is wrong: b of net on cpu, fp32; outputs of 1 could not be compared in full: a of net on "
            "cpu, fp32",
        ),
    ],
)
def test_the_finding_names_what_is_not_right(ended: list[Check], finding: str) -> None:
    assert finding_of(ended) == finding


def test_a_reason_of_many_builds_stands_once_below_the_table() -> None:
    absent = [check(label, Status.UNAVAILABLE, reason="no GPU") for label in "abc"]
    made = [check("eager", Status.OK), *absent, check("onnx", Status.CRASH, reason="signal 11")]
    answer = ChecksAnswer(finding="", complete=True, checks=made, left_out=[], exit_reason="", about_models=[])
    (section,) = [block for block in checks.blocks_of(answer) if isinstance(block, Section)]
    table, reasons = section.blocks
    assert isinstance(table, Table) and [row[0] for row in table.rows] == ["eager", "onnx"]
    assert isinstance(reasons, Items)
    assert list(reasons.texts) == ["a, b, c unavailable: no GPU", "onnx crash: signal 11"]


def test_an_interruption_keeps_what_was_checked() -> None:
    def interrupt(_: Check) -> None:
        raise KeyboardInterrupt

    answer, status = checks.check(Request(models=("mlp",), backends=("tensorrt", "null"), devices=("cpu",)), interrupt)
    assert (len(answer.checks), answer.complete, status) == (1, False, 130)
    assert answer.finding == "interrupted after 1 of 2 builds", "the other one may be built"


@pytest.mark.slow
def test_a_build_for_a_range_is_one_for_all_its_sizes(command_line: CommandLine) -> None:
    asked = ("--model", "mlp", "--set", "features=8", "--set", "hidden=8", "--dynamic", "batch=1:8", "--devices", "cpu")
    status, out, _ = command_line(*asked, "--backends", "null", "--check-only", "--json")
    checked = [(check["label"], check["status"]) for check in json.loads(out)["checks"]]
    assert status == 0 and checked == [("null", "ok"), ("null[dynamic]", "ok")] * 2


FACTORY = "def factory(batch: int = 4): ...\n"


def previewed(file: Path, text: str, **asked: Any) -> Preview:
    file.write_text(text)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",), **asked)
    contests = plan(request)
    absences = {(cell.cell.backend, cell.cell.device, ""): "" for each in contests for cell in each.cells}
    return preview_of(request, contests, absences)


def test_evaluations_are_part_of_the_plan_and_of_its_seconds(tmp_path: Path) -> None:
    without = previewed(tmp_path / "bare.py", FACTORY)
    assert "evaluate" not in "".join(without.lines())
    preview = previewed(tmp_path / "net.py", FACTORY + "def evaluate(predict): ...\n")
    contest, untold, _ = preview.lines()
    assert "with net.py:evaluate for the reference and each cell" in contest
    assert untold.startswith("nobody knows how long evaluate takes: 2 s a call")
    assert preview.contests[0].seconds - without.contests[0].seconds == pytest.approx(3 * USUAL_EVALUATE_S)


def test_cells_are_named_that_may_start_from_a_build_in_the_cache() -> None:
    request = Request(models=("mlp",), backends=("eager", "null"), devices=("cpu",))
    (contest,) = plan(request)
    with BuildCache() as cache:
        kept, begun = (cache.claim(planned, "the model", 2) for planned in contest.cells)
        assert kept and begun, "the second one was not built"
        (kept / "0").mkdir(parents=True)
        Store.keep_build(FirstBuild(folder=str(kept / "0"), phases=[], memory=Memory()))
    absences = {(each.cell.backend, each.cell.device, ""): "" for each in contest.cells}
    warm = preview_of(request, [contest], absences)
    assert warm.contests[0].cached == ("eager",)
    assert "s; less if builds in the cache still fit: eager)" in next(warm.lines())
    fresh = preview_of(request.model_copy(update={"fresh": True}), [contest], absences)
    assert not warm.keeps_other_builds and "cache" not in "".join(fresh.lines())
    renamed = plan(request.model_copy(update={"models": ("conv",)}))
    untold = preview_of(request, renamed, absences)
    assert untold.contests[0].cached == () and "of a model by another name are not looked for" in "".join(
        untold.lines()
    )


def test_a_model_of_a_hub_has_the_name_with_its_commit_by_which_its_builds_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = models.find

    def of_hub(name: str) -> Family:
        family: Any = find(name.partition("@")[0].removeprefix("hub:"))
        monkeypatch.setattr(type(family), "prepare", lambda _: pytest.fail("a dry run fetches no weights"))
        return dataclasses.replace(family, name="hub:mlp@0123abc")

    monkeypatch.setattr(models, "find", of_hub)
    told = preview(Request(models=("hub:mlp",), backends=("null",), devices=("cpu",)))
    assert told.contests[0].title.startswith("hub:mlp@0123abc (")


def test_what_cannot_run_is_reported_with_every_reason_and_where_it_does() -> None:
    request = Request(models=("mlp", "rope"), backends=("triton", "triton/descriptor", "eager"), devices=("cpu",))
    contests = plan(request)
    absences = {(cell.cell.backend, cell.cell.device, ""): "" for each in contests for cell in each.cells}
    absences["eager", "cpu", ""] = "torch is broken"
    told = preview_of(request, contests, absences).cannot_run
    of_mlp, _, where = told["triton"].partition(", for ")
    assert of_mlp.endswith("inductor makes Triton kernels of other models") and where == contests[0].cells[0].cell.title
    assert told["triton/descriptor"] == (
        f"{told['triton']}; the kernel of rope loads by pointer only: use triton, for {contests[1].cells[0].cell.title}"
    )
    assert told["eager"] == "torch is broken", "it is the same everywhere"


def test_starts_are_part_of_the_plan_and_take_half_of_a_budget_at_most(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    without, with_starts = previewed(file, FACTORY), previewed(file, FACTORY, starts=True)
    seconds = 2 * LEAST_STARTS * USUAL_FRESH_START_S
    assert with_starts.seconds - without.seconds == pytest.approx(seconds)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",), starts=True)
    for budget, reserved_s in {"10m": seconds, "60s": 30.0, "": 0.0}.items():
        bounded = request.model_copy(update={"budget": Duration.parse(budget, "--budget") if budget else None})
        assert reserved_for_starts_s(bounded, plan(bounded)) == pytest.approx(reserved_s)


def shown(width: int, asked: dict[tuple[str, str], str] | None = None) -> str:
    console = Console(width=width, record=True, file=StringIO(), markup=False, emoji=False)
    listed = answer(asked or {})
    terminal.print_blocks(blocks_of(listed), console)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_name_stands_whole(width: int) -> None:
    words = shown(width).replace(",", " ").split()
    listed = [*backends.names(), *backends.ALIASES, *models.TABLE, *Inductor.mode_names()]
    for name in [*listed, "hf:FOLDER", "FILE.py:FACTORY"]:
        assert name in words


def test_a_backend_is_shown_with_its_caveat_and_what_is_installed() -> None:
    text = shown(200)
    assert TensorRT.description in text and TensorRT.caveat in text
    assert "torch 2." in text
    assert "eager-again" not in text, "the copy for selfcheck is in no list"


def test_a_device_that_was_asked_has_an_answer_and_it_is_printed_as_it_is() -> None:
    text = shown(200, {("eager", "cpu"): "", ("tensorrt", "cpu"): "[x] zoo.py:factory: needs :llama:"})
    assert "cpu: yes" in text
    assert "cpu: no: [x] zoo.py:factory: needs :llama:" in text


def test_a_dimension_has_its_default() -> None:
    assert "batch (4), features (256), hidden (512)" in shown(200)


BUSY = {"wait_share": 0.3, "others_cores": 1.0}
LIMITED = Request(models=("mlp",), devices=("cpu",), backends=("eager", "onnx"), require="median_ms<5")


class Machine:
    """Measures batches without time. Each backend has a largest batch that fits."""

    status = Status.OOM  # of what does not fit

    def __init__(self, largest: Mapping[str, int], interrupted_in: int = 0, disturbed_in: Sequence[int] = ()) -> None:
        self.largest, self.interrupted_in, self.disturbed_in = largest, interrupted_in, disturbed_in
        self.steps: list[dict[str, int]] = []

    @property
    def is_disturbed(self) -> bool:
        return len(self.steps) in self.disturbed_in

    def measure(self, wanted: Mapping[str, int]) -> dict[str, BatchTried]:
        self.steps.append(dict(wanted))
        if len(self.steps) == self.interrupted_in:
            raise KeyboardInterrupt
        return {
            label: BatchTried(
                batch=batch,
                reason="too slow" if batch > self.largest[label] or self.is_disturbed else "",
                status=self.status if batch > self.largest[label] else Status.OK,
                is_disturbed=self.is_disturbed,
            )
            for label, batch in wanted.items()
        }

    def search(self, most: int = 1024) -> dict[str, BatchSearch]:
        begun = [BatchSearch(label=label, most=most) for label in self.largest]
        return {found.label: found for found in search(begun, self.measure)}


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 64, 100, 1023, 1024, 5000])
def test_the_largest_batch_is_found_within_an_eighth(largest: int) -> None:
    machine = Machine({"eager": largest})
    found = machine.search()["eager"]
    best = found.largest.batch
    assert best <= largest and (best == 1024 or best + max(1, best // 8) >= min(largest + 1, 1024))
    if found.too_large:
        assert best < found.too_large.batch <= best + max(1, best // 8)
    tried = [one.batch for one in found.tried]
    assert len(set(tried)) == len(tried) and tried[:2] == [1, 2] and max(tried) <= 1024


def test_each_backend_has_a_search_of_its_own() -> None:
    machine = Machine({"eager": 0, "onnx": 6, "inductor": 40})
    found = machine.search()
    assert {label: one.largest and one.largest.batch for label, one in found.items()} == {
        "eager": None,
        "onnx": 6,
        "inductor": 40,
    }
    assert machine.steps[0] == {"eager": 1, "onnx": 1, "inductor": 1} and "eager" not in machine.steps[1]
    assert found["eager"].finding == "eager: no batch (too slow)"


def test_an_interruption_keeps_what_was_found() -> None:
    found = Machine({"onnx": 64}, interrupted_in=4).search()["onnx"]
    assert found.largest is not None and found.largest.batch == 4 and found.next_batch == 8
    assert found.finding.endswith("nothing larger was tried")


def test_what_misses_a_limit_is_measured_once_again() -> None:
    machine = Machine({"onnx": 16}, disturbed_in=[3])
    machine.status = Status.OK
    found = machine.search()["onnx"]
    assert found.largest is not None and found.largest.batch == 16
    assert [step["onnx"] for step in machine.steps] == [1, 2, 4, 4, 8, 16, 32, 32, 24, 24, 20, 20, 18, 18]


@pytest.mark.parametrize(
    ("disturbed", "tries", "largest"), [((3, 4, 5), 4, 16), ((3, 4, 5, 6), 4, 3), ((4,), 1, 16), ((3,), 2, 16)]
)
def test_what_misses_a_limit_while_it_is_disturbed_is_measured_until_it_is_not(
    disturbed: tuple[int, ...], tries: int, largest: int
) -> None:
    """Batch 4 comes in step 3. It is measured four times at most."""
    machine = Machine({"onnx": 16}, disturbed_in=disturbed)
    machine.status = Status.OK
    found = machine.search()["onnx"]
    assert sum(step["onnx"] == 4 for step in machine.steps) == tries
    assert found.largest is not None and (found.largest.batch, found.next_batch) == (largest, None)


def test_a_record_says_whether_its_batch_is_too_large() -> None:
    required = Requirements.parse("median_ms<5")
    kept = BatchTried.measured(8, once(2.0, "onnx"), required)
    assert kept.reason == "" and kept.median_ms == pytest.approx(2.0, rel=0.01)
    assert kept.samples_per_s == pytest.approx(8 * 700) and kept.peak_bytes and not kept.is_lower_bound
    held_down = BatchTried.measured(8, once(0.1, "onnx"), required)  # other load took most of the time
    assert held_down.rate == "≥7,200"
    slow = BatchTried.measured(16, once(6.0, "onnx"), required)
    assert slow.reason.startswith("median_ms is 6") and slow.status is Status.OK
    busy = BatchTried.measured(16, ok(cell("onnx"), under(steady([6.0]), **BUSY)), required)
    assert (slow.is_disturbed, busy.is_disturbed) == (False, True) and busy.status is Status.OK
    assert busy.reason == f"on a busy machine: {slow.reason}"
    assert BatchTried.measured(32, failed(cell("onnx"), Status.OOM, "no room"), required).reason == "oom: no room"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"set": {"batch": ("8",)}}, "leave out --set batch"),
        ({"models": ("mlp", "conv")}, "of one contest"),
        ({"set": {"hidden": ("8", "16")}}, "of one contest"),
        ({"require": Requirements()}, "say what must hold"),
    ],
)
def test_what_has_no_largest_batch_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        max_batch.begin(LIMITED.model_copy(update=changed), 8)


def test_a_search_takes_backends_of_named_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    searches = max_batch.begin(LIMITED.but(backends=("eager@glibc",)), 8)
    assert [one.label for one in searches] == ["eager@glibc"]


def test_the_command_measures_each_batch_in_a_run_of_its_own(command_line: CommandLine) -> None:
    briefly = ("--devices", "cpu", "--min-time", "0.05", "--out", "found", "--json")
    asked = ("--model", "mlp", "--backends", "eager", "--require", "median_ms<60000", "--most", "2")
    status, out, err = command_line("max-batch", *asked, *briefly)
    assert status == 0, err
    answer = json.loads(out)
    answer.pop("exit_status")
    assert answer.keys() == MaxBatchAnswer.model_fields.keys() and answer["complete"]
    (found,) = answer["searches"]
    assert [one["batch"] for one in found["tried"]] == [1, 2] and found["largest"]["samples_per_s"] > 0
    assert found["finding"].startswith("eager: batch 2, ")


@pytest.mark.parametrize(("run_ends", "status"), [(True, 0), (False, 130)])
def test_a_budget_that_is_over_is_no_interruption_and_a_longer_one_is_named(
    run_ends: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [once(1.0, "onnx"), failed(cell("onnx"), Status.NOT_REACHED, "no time")]

    def run(*_: object) -> tuple[Report, None]:
        return samples.report([measured.pop(0)], complete=run_ends or bool(measured)), None

    monkeypatch.setattr(max_batch.runs, "run", run)
    asked = LIMITED.model_copy(update={"backends": ("onnx",)})
    assert max_batch.find(asked, 64, tmp_path / "found", "max-batch", quiet=True, as_json=True) == status
    more = re.search(r"About (\d+) s more would do for the next batch of onnx", capsys.readouterr().err)
    assert bool(more) is run_ends and (not more or int(more[1]) > 1)


def records(first: tuple[float, ...], again: tuple[float, ...]) -> list[Record]:
    """Two records of 1 ms, whose processes are so many times as slow."""
    return [
        samples.ok(samples.cell(backend), samples.over_processes(1.0, biases))
        for backend, biases in ((FIRST, first), (AGAIN, again))
    ]


EQUAL = records((1.0, 1.002, 0.999, 1.001, 1.0, 1.003), (1.001, 1.0, 1.0, 1.002, 0.999, 1.001))


def test_equal_copies_tie_at_the_first_look() -> None:
    answer = selfcheck.answer_for(EQUAL, 1.0, [10.0, 14.0, 18.0, 22.0], fewest=3)
    assert (answer.winner, answer.unstable, answer.processes, answer.seconds) == (None, False, 3, 10.0)
    assert answer.is_right


def test_a_planted_slowdown_is_found_at_the_look_at_which_it_is_decided() -> None:
    answer = selfcheck.answer_for(EQUAL, 1.05, [10.0, 14.0, 18.0, 22.0], fewest=3)
    assert answer.winner == FIRST
    assert answer.ratio.value == pytest.approx(1.05, rel=0.01)
    assert answer.seconds == 10.0 + 4.0 * (answer.processes - 3)
    assert answer.is_right


def test_where_time_ran_out_the_last_look_counts_and_says_unstable() -> None:
    noisy = records((1.0, 1.1, 0.92), (1.08, 0.95, 1.0))
    answer = selfcheck.answer_for(noisy, 1.0, [10.0], fewest=3)
    assert (answer.winner, answer.unstable, answer.processes) == (None, True, 3)


def test_only_the_second_copy_is_slowed() -> None:
    first, again = selfcheck.with_slowdown(EQUAL, 2.0)
    assert first == EQUAL[0]
    assert again.latency.median_ms == pytest.approx(2 * EQUAL[1].latency.median_ms, rel=1e-3)
    assert again.bursts[0].samples_ns[0] == 2 * EQUAL[1].bursts[0].samples_ns[0]


def test_a_burst_that_waited_is_slowed_as_far_as_it_counts() -> None:
    conditions = Conditions(wait_share=0.5, quiet_ms=1.0, quiet_calls=9, quiet_wait_share=0.0, others_cores=1.0)
    waited = []
    for record in EQUAL:
        bursts = [burst.model_copy(update={"conditions": conditions}) for burst in record.bursts]
        waited.append(record.model_copy(update={"bursts": bursts}))
    assert selfcheck.answer_for(waited, 1.05, [10.0], fewest=6).ratio.value == pytest.approx(1.05, rel=0.001)


def trial_answer(planted: float, winner: str | None, unstable: bool = False) -> SlowdownAnswer:
    ratio = Ratio(value=planted, ci95=Interval(low=planted - 0.01, high=planted + 0.03), paired=True)
    return SlowdownAnswer(planted=planted, winner=winner, unstable=unstable, ratio=ratio, processes=4, seconds=20.0)


def test_a_summary_counts_winners_and_bounds_their_rate() -> None:
    trials = [[trial_answer(1.0, None), trial_answer(1.05, FIRST)] for _ in range(99)]
    trials.append([trial_answer(1.0, AGAIN), trial_answer(1.05, None, unstable=True)])
    equal, slower = selfcheck.summarise_trials("mlp", "default", trials)
    assert (equal.planted, equal.trials, equal.winners, equal.right) == (1.0, 100, 1, 99)
    assert equal.upper == pytest.approx(0.0466, abs=0.0002)  # Clopper and Pearson, from tables
    assert (slower.winners, slower.unstable) == (99, 1)
    assert (equal.half_width, equal.processes, equal.seconds) == (pytest.approx(0.02), 4, 20.0)


def test_no_winner_in_100_trials_bounds_the_rate_by_three_per_cent() -> None:
    (equal,) = selfcheck.summarise_trials("mlp", "default", [[trial_answer(1.0, None)]] * 100)
    assert equal.upper == pytest.approx(1 - 0.05 ** (1 / 100))


def test_a_copy_that_fails_makes_no_winner_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = EQUAL[0].model_copy(update={"status": Status.ERROR, "reason": "no module"})
    monkeypatch.setattr(selfcheck, "Launchers", MagicMock())
    monkeypatch.setattr(selfcheck, "measured", lambda *_, **__: [failed, EQUAL[1]])
    with pytest.raises(BakeoffError, match=r"eager failed \(error\), so nothing is compared: no module"):
        next(selfcheck.run("mlp", "cpu", "default", 1))


@pytest.mark.parametrize("trials", [0, 1])
def test_an_interrupted_selfcheck_says_what_its_table_has(
    trials: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Iterator[SimpleNamespace]:
        yield from [SimpleNamespace(answers=(trial_answer(1.0, None), trial_answer(1.05, FIRST)))] * trials
        raise KeyboardInterrupt

    monkeypatch.setattr(selfcheck, "run", interrupted)
    assert cli.main(["selfcheck", "--model", "mlp,conv", "--trials", "3", "--json"]) == 130
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert answer["exit_status"] == 130
    if trials:
        assert [(row["model"], row["trials"]) for row in answer["rows"]] == [("mlp", 1)] * 2
        assert "Interrupted after 1 of 6 trials. The table has these, and nothing is kept." in printed.err
    else:
        assert answer["error"] == "interrupted: nothing was measured yet, and the command can be run again"


@pytest.mark.slow
def test_a_trial_measures_eager_against_itself() -> None:
    (trial,) = selfcheck.run("mlp", "cpu", "default", 1, planted=(1.0, 2.0), max_processes=3)
    assert [record.cell.backend for record in trial.records] == [FIRST, AGAIN]
    assert all(len(record.processes) == 3 for record in trial.records)
    assert all(record.latency and not record.throughput for record in trial.records)  # a trial measures nothing else
    assert [found.planted for found in trial.answers] == [1.0, 2.0]
