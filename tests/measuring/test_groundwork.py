"""The reference and the ceilings, asked of a launcher that answers as told, and the roofline that follows."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from bakeoff import models
from bakeoff.backends.plain_dispatch import OperatorWatch
from bakeoff.judging import roofline
from bakeoff.judging.fit import summarise
from bakeoff.measuring import isolation, messages
from bakeoff.measuring import session as measuring
from bakeoff.measuring.controller import groundwork
from bakeoff.measuring.controller import headers as headers_of_torch
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.environment import capture
from bakeoff.measuring.controller.headers import Headers
from bakeoff.measuring.controller.launcher import ForkLauncher
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.worker import ceilings
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.compiler_checks import CompilerChecks
from bakeoff.measuring.worker.counting import LongestSum, count
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.failure import Failure
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Latency, MemoryLevel, Status, TensorCores, Work
from bakeoff.records.store import Store
from tests.reports.samples import constant
from tests.support.measuring import Silent, measure
from tests.support.modules import Calling
from tests.support.scripted import Script, ScriptedLauncher, ScriptedMachine, contest_of, plan_of

CONTEST = contest_of(["eager", "null"])


@pytest.fixture
def launcher(tmp_path: Path) -> ScriptedLauncher:
    return ScriptedLauncher(tmp_path, {}, ScriptedMachine())


def context_of(launcher: ScriptedLauncher, store: Store, cache: BuildCache | None = None) -> RunContext:
    plan = plan_of()
    return RunContext(
        launchers=launcher,  # type: ignore[arg-type]
        store=store,
        progress=Silent(),
        request=Request(),
        sampling=plan,
        time_plan=TimePlan(plan),
        headers=Headers(store, Silent()),
        build_cache=cache,
    )


def failed(text: str, status: Status = Status.ERROR, place: str = "") -> messages.Failed:
    return messages.Failed(status=status, failure=Failure(kind="RuntimeError", text=text, place=place))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "run", Request(), [], "test")


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (
            failed("ValueError: no weights"),
            Status.ERROR,
            "the reference could not be computed: ValueError: no weights (",
        ),
        (
            failed("KeyError: 'x'", place="mine.py, line 3, in forward"),
            Status.ERROR,
            "the reference could not be computed: KeyError: 'x' (mine.py, line 3, in forward) (",
        ),
        (
            messages.Failed(
                status=Status.ERROR, failure=Failure(kind="SafetensorError", text="SafetensorError").on_full_disk
            ),
            Status.ERROR,
            "no disk space was left for the reference: SafetensorError: a disk is full, make room (",
        ),
        (
            WorkerEnded(-11),
            Status.CRASH,
            "the reference could not be computed: its process died of signal 11 (SIGSEGV) in start",
        ),
        (DeadlinePassed(), Status.TIMEOUT, "the reference was not computed within 30 s: raise --time-limit"),
    ],
    ids=["failed", "failed in the user's code", "full disk", "died", "out of time"],
)
def test_without_a_reference_there_is_a_reason(
    launcher: ScriptedLauncher, store: Store, answer: object, status: Status, reason: str
) -> None:
    launcher.answers[messages.ComputeReference] = answer
    with pytest.raises(groundwork.NoReference) as error:
        groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert error.value.status is status
    assert reason in str(error.value)


@pytest.mark.parametrize("limit", [{"time_limit_s": 3.0}, {"budget": "10s"}], ids=["time limit", "budget"])
def test_a_factory_that_hangs_is_named(limit: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\n\ndef build(batch: int = 2):\n    time.sleep(1e9)\n")
    report = measure(tmp_path / "run", "null", models=[f"{tmp_path}/mine.py:build"], **limit)
    (reason,) = [record.reason for record in report.records]
    assert "your model did not load within" in reason
    assert f"({tmp_path}/mine.py, in build() or an import before it)" in reason


def test_a_reference_is_computed_once_and_what_a_call_takes_is_kept(
    launcher: ScriptedLauncher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, *_ = groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert store.facts(CONTEST.id, Work) is not None
    path.touch()
    asked: list[messages.ComputeReference] = []
    ask = launcher.ask
    monkeypatch.setattr(launcher, "ask", lambda job, *rest: asked.append(job) or ask(job, *rest))
    assert groundwork.reference(CONTEST, context_of(launcher, store), 30.0) == (path, None, None)
    assert [job.is_resumed for job in asked] == [True], "only compared with the model as it is now"
    launcher.answers[messages.ComputeReference] = messages.ReferenceComputed(work=None, uncounted="", is_changed=True)
    with pytest.raises(groundwork.NoReference, match=r"than before this run was interrupted: start a new run"):
        groundwork.reference(CONTEST, context_of(launcher, store), 30.0)


def test_a_model_whose_work_cannot_be_counted_is_noted(launcher: ScriptedLauncher, store: Store) -> None:
    launcher.answers[messages.ComputeReference] = messages.ReferenceComputed(
        work=None, uncounted="RuntimeError: not now"
    )
    groundwork.reference(CONTEST, context_of(launcher, store), 30.0)
    assert store.notes() == [f"no roofline for {CONTEST.id}: counting its work failed: RuntimeError: not now"]


@pytest.mark.parametrize("answer", [failed("no such device"), WorkerEnded(3), DeadlinePassed()])
def test_a_machine_whose_ceilings_cannot_be_measured_is_used_without_a_floor(
    launcher: ScriptedLauncher, store: Store, answer: object, measured_ceilings: None
) -> None:
    launcher.answers[messages.MeasureCeilings] = answer
    cell = CONTEST.cells[0].cell
    groundwork.measure_ceilings(cell, context_of(launcher, store), 30.0)
    assert store.ceilings(cell.device, cell.precision) is None
    assert any("no roofline on cpu in fp32: measuring the machine's ceilings failed" in note for note in store.notes())


def test_ceilings_are_measured_once(launcher: ScriptedLauncher, store: Store, measured_ceilings: None) -> None:
    cell = CONTEST.cells[0].cell
    for _ in range(2):
        groundwork.measure_ceilings(cell, context_of(launcher, store), 30.0)
        launcher.answers.clear()
    assert store.ceilings(cell.device, cell.precision) is not None


def test_the_next_run_on_the_machine_takes_the_ceilings_of_the_first(
    launcher: ScriptedLauncher, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured_ceilings: None
) -> None:
    cell = CONTEST.cells[0].cell
    machine = capture()
    store.save_environment(machine)
    measured = messages.CeilingsMeasured(ceilings=Ceilings(flops_per_s=3e11, bytes_per_s=1e10))
    launcher.answers[messages.MeasureCeilings] = measured
    cache, asked_for_quiet = BuildCache(tmp_path / "cache"), list[str]()
    monkeypatch.setattr(launcher, "await_serving", lambda: asked_for_quiet.append("first"))
    groundwork.measure_ceilings(cell, context_of(launcher, store, cache), 30.0)
    assert not store.notes() and asked_for_quiet == ["first"]

    launcher.answers.clear()
    later = Store.create(tmp_path / "later", Request(), [], "test")
    later.save_environment(machine)
    groundwork.measure_ceilings(cell, context_of(launcher, later, cache), 30.0)
    assert asked_for_quiet == ["first"], "nothing is measured"
    first, taken = (each.ceilings(cell.device, cell.precision) for each in (store, later))
    assert first == measured.ceilings and first.kept_at == "" and taken is not None
    assert taken.kept_at and taken.model_copy(update={"kept_at": ""}) == first
    assert roofline.of(Work(flops=1, bytes_moved=1), taken, None).ceilings_kept_at == taken.kept_at


def test_ceilings_of_a_busy_machine_that_are_kept_name_the_day(
    launcher: ScriptedLauncher, store: Store, tmp_path: Path, measured_ceilings: None
) -> None:
    cell, machine, cache = CONTEST.cells[0].cell, capture(), BuildCache(tmp_path / "cache")
    store.save_environment(machine)
    busy = Ceilings(flops_per_s=3e11, bytes_per_s=1e10, wait_share=0.5)
    cache.keep_ceilings(machine, cell.device, cell.precision, busy)
    groundwork.measure_ceilings(cell, context_of(launcher, store, cache), 30.0)
    (note,) = store.notes()
    assert re.search(r"were measured by a run on \d{4}-\d\d-\d\d \d\d:\d\d UTC, even when repeated", note)


# --- torch's precompiled headers


@pytest.mark.parametrize(
    ("answer", "noteworthy_s", "note"),
    [
        (messages.HeadersMade(checks_s=1.0), 60.0, ""),
        (
            messages.HeadersMade(checks_s=22.1),
            60.0,
            "which once took 22 s on this machine: builds for eager on cpu were given the answers",
        ),
        (messages.HeadersMade(checks_s=1.0), 0.0, "0 s went into precompiling torch's C++ headers"),
        (failed("no g++"), 60.0, "were not precompiled, so its first build does it: no g++"),
        (WorkerEnded(-11), 60.0, "were not precompiled, so its first build does it: "),
        (failed("no compiler", status=Status.UNAVAILABLE), 60.0, ""),
    ],
    ids=["was there", "checks take long", "made", "failed", "died", "nothing to build with"],
)
def test_headers_are_precompiled_before_any_build(
    launcher: ScriptedLauncher,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    answer: object,
    noteworthy_s: float,
    note: str,
) -> None:
    launcher.answers[messages.PrecompileHeaders] = answer
    monkeypatch.setattr(headers_of_torch, "NOTEWORTHY_S", noteworthy_s)
    headers = Headers(store, Silent(), 30.0)
    headers.begin([(CONTEST.cells[0].cell, launcher)])
    assert store.notes() == []
    headers.await_for(CONTEST.cells[0].cell)
    headers.await_all()  # nothing is left to wait for
    assert [note in told for told in store.notes()] == [True] * bool(note)


def test_headers_that_cannot_be_kept_stop_nothing(
    launcher: ScriptedLauncher, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    Headers(store, Silent(), 30.0).begin([(CONTEST.cells[0].cell, launcher)])
    assert "cannot be kept, so that each build makes them" in store.notes()[0]


class OneServer(ScriptedLauncher):
    """Stands for the launchers of a run, and counts the fork servers that are prepared."""

    branched: tuple[tuple[str, ...], bool] | None = None
    note = ""

    def __init__(self, folder: Path, scripts: Mapping[str, Script], machine: ScriptedMachine) -> None:
        super().__init__(folder, scripts, machine)
        self.prepared: list[int] = []

    def prepare(self, epochs: int) -> None:
        self.prepared.append(epochs)

    def await_serving(self, epochs: int = 0) -> None: ...

    def preload_others(self) -> None: ...

    def branch(self, modules: Sequence[str], for_cuda: bool) -> None:
        self.branched = tuple(modules), for_cuda


@pytest.mark.parametrize(
    ("cores", "device", "servers"), [(2, "cpu", [3]), (16, "cpu", [5, 7]), (2, "cuda", [3]), (16, "cuda", [5, 7])]
)
def test_headers_are_made_beside_what_follows(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, cores: int, device: str, servers: list[int]
) -> None:
    monkeypatch.setattr(measuring, "usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launchers = OneServer(tmp_path, {}, ScriptedMachine())
    launchers.answers[messages.PrecompileHeaders] = messages.HeadersMade(checks_s=22.1)
    cells = [Cell(model="mlp", backend=name, device=Device(device)) for name in ("aotinductor", "onnx")]
    headers = measuring.prepare(launchers, cells, Request(), store, Silent())  # type: ignore[arg-type]
    assert launchers.prepared == servers
    assert launchers.branched == (("torch._inductor.compile_fx",), device == "cuda")
    told = "builds for aotinductor on"
    assert not any(told in note for note in store.notes())
    headers.await_for(cells[0])
    assert any(told in note for note in store.notes())


@pytest.mark.parametrize("budget", ["60s", ""])
def test_a_budget_makes_no_headers_and_reports_those_that_are_there(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launchers, jobs = OneServer(tmp_path, {}, ScriptedMachine()), list[messages.PrecompileHeaders]()
    launchers.answers[messages.PrecompileHeaders] = messages.HeadersMade(checks_s=22.1)
    start = launchers.start
    monkeypatch.setattr(launchers, "start", lambda job, log: (jobs.append(job), start(job, log))[1])
    cells = [Cell(model="mlp", backend="aotinductor")]
    request = Request(budget=budget)
    headers = measuring.prepare(launchers, cells, request, store, Silent())  # type: ignore[arg-type]
    assert [job.may_make for job in jobs] == [not budget]
    assert isolation.headers_of_torch().exists() is not bool(budget)
    headers.await_all()
    assert any("which once took 22 s on this machine" in note for note in store.notes())


@pytest.mark.parametrize("left", [0, 20])
def test_damaged_answers_of_the_compiler_are_asked_for_again(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    isolation.headers_of_torch().mkdir(parents=True)
    checks = CompilerChecks(answers={"avx2": True}, seconds=2.0)
    checks.keep("inductor", CPU)
    assert CompilerChecks.known("inductor", CPU) == checks
    (file,) = isolation.headers_of_torch().iterdir()
    os.truncate(file, left)
    assert CompilerChecks.known("inductor", CPU) is None


@pytest.mark.slow
def test_a_worker_that_may_not_make_headers_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ForkLauncher() as server:
        job = messages.PrecompileHeaders(backend="inductor", device=CPU, may_make=False)
        assert server.ask(job, tmp_path / "log", 60.0) == messages.HeadersMade(checks_s=0.0)
    assert not isolation.headers_of_torch().exists()


@pytest.mark.slow
def test_no_build_compiles_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, asked = tmp_path / "g++", tmp_path / "asked"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measure(tmp_path / "one", "inductor", "aotinductor")
    made = {file.name for file in isolation.headers_of_torch().glob("*.gch")}
    assert all(CompilerChecks.known(name, CPU) for name in ("inductor", "aotinductor"))
    first = asked.read_text()
    asked.unlink()
    measure(tmp_path / "two", "inductor", "aotinductor", models=["conv"])
    assert made and made == {file.name for file in isolation.headers_of_torch().glob("*.gch")}
    assert programs(first) - programs(asked.read_text()) >= checks()[1]


def programs(log: str) -> set[str]:
    """Return the names of what the compiler was asked to compile, which are hashes of the source and the flags."""
    return set(re.findall(r"/(\w+)\.cpp\b", log))


LISTS_CHECKS = """
import json
from torch._inductor import cpp_builder
from bakeoff.backends.vector_instructions import trust_vector_instructions, try_vector_instructions

names, build = [], cpp_builder.CppBuilder.build
cpp_builder.CppBuilder.build = lambda builder: (names.append(builder._name), build(builder))[1]
trust_vector_instructions({answers})
answers = try_vector_instructions()
print(json.dumps([answers, names]))
"""


def checks(trusting: Mapping[str, bool] | None = None) -> tuple[dict[str, bool], set[str]]:
    """Return what torch finds out in a process with an empty cache, and the programs that it compiles for that."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", LISTS_CHECKS.format(answers=trusting or {})]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    answers, names = json.loads(told.stdout)
    return answers, set(names)


@pytest.mark.slow
def test_where_the_compiler_was_checked_no_build_checks_it_again() -> None:
    answers, names = checks()
    assert answers and names
    assert checks(trusting=answers) == (answers, set())
    wrong = dict.fromkeys(answers, False)
    believed, _ = checks(trusting=wrong)
    assert believed and not any(believed.values())


KIB = 1024


def template(name: str, **dimensions: int) -> LoadedModel:
    family = models.find(name)
    return family.load(family.resolve(dimensions), seed=0)


def work_of(module: nn.Module, *args: torch.Tensor, precision: str = "fp32") -> Work:
    with torch.inference_mode():
        return count(module.eval(), Inputs(args), Precision(precision))


def size_of(*modules: nn.Module) -> int:
    """Bytes of all parameters, in the type they have."""
    return sum(weight.numel() * weight.element_size() for module in modules for weight in module.parameters())


# --- operations


@pytest.mark.parametrize(
    ("batch", "seq", "dim", "layers", "heads", "ffn"), [(2, 128, 256, 2, 4, 1024), (3, 7, 8, 1, 2, 5)]
)
def test_a_transformer_is_counted_as_by_hand(batch: int, seq: int, dim: int, layers: int, heads: int, ffn: int) -> None:
    model = template("transformer", batch=batch, seq=seq, dim=dim, layers=layers, heads=heads, ffn=ffn)
    rows = batch * seq
    projections = 2 * rows * dim * (3 * dim + dim)
    attention = 2 * 2 * batch * heads * seq * seq * (dim // heads)  # queries by keys, and their result by values
    feed_forward = 2 * 2 * rows * dim * ffn
    found = work_of(model.module, *model.inputs[0].args)
    assert found.flops == layers * (projections + attention + feed_forward)
    assert found.bytes_moved == size_of(model.module) + 2 * 4 * rows * dim  # and what comes in and goes out


def test_a_convolution_is_counted_as_by_hand() -> None:
    model = template("conv", batch=2, channels=3, size=16, width=8, classes=5)
    pixels = 2 * 16 * 16
    found = work_of(model.module, *model.inputs[0].args)
    assert found.flops == 2 * pixels * (9 * 3 * 8 + 9 * 8 * 8 + 8 * 5)
    statistics = 2 * 2 * 8 * 4  # mean and variance of two normalisations; how many batches they saw is not read
    assert found.bytes_moved == size_of(model.module) + statistics + 4 * pixels * (3 + 5)


def test_heads_that_share_keys_are_counted_for_every_query() -> None:
    shared = Calling(lambda _, query, key: functional.scaled_dot_product_attention(query, key, key, enable_gqa=True))
    query, key = torch.randn(2, 8, 10, 16), torch.randn(2, 2, 12, 16)
    assert work_of(shared, query, key).flops == 2 * 2 * (2 * 8 * 10 * 12 * 16)


def test_a_layer_that_torch_runs_as_one_operator_is_counted_as_its_parts() -> None:
    encoder = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
    assert torch.backends.mha.get_fastpath_enabled()
    found = work_of(encoder, torch.randn(2, 10, 64))
    assert found.flops == 2 * 20 * 64 * (4 * 64 + 2 * 128) + 2 * 2 * (2 * 4 * 10 * 10 * 16)
    assert torch.backends.mha.get_fastpath_enabled()
    lstm = nn.LSTM(32, 64, batch_first=True)
    assert work_of(lstm, torch.randn(2, 10, 32)).flops == 2 * 20 * (32 + 64) * 4 * 64
    assert torch.backends.mkldnn.enabled


def test_a_model_without_products_has_bytes_alone() -> None:
    assert work_of(nn.ReLU(), torch.randn(10)) == Work(flops=0, bytes_moved=80)


# --- bytes


def test_only_the_looked_up_rows_of_a_table_move() -> None:
    table = nn.Embedding(1000, 16)
    row, indices = 16 * 4, torch.tensor([[1, 2, 3]])
    assert work_of(table, indices).bytes_moved == 3 * row + 3 * 8 + 3 * row
    # more rows than there are: not more than the whole
    assert work_of(nn.Embedding(2, 16), torch.zeros(1, 50, dtype=torch.int64)).bytes_moved == 2 * row + 50 * (8 + row)


def test_a_table_that_is_also_a_weight_moves_whole_and_once() -> None:
    table = nn.Embedding(100, 16)
    tied = Calling(
        lambda _, indices: functional.linear(table(indices), table.weight), table=table, unused=nn.Linear(16, 16)
    )
    assert work_of(tied, torch.tensor([1, 2])).bytes_moved == size_of(table) + 2 * 8 + 2 * 100 * 4


def test_a_weight_used_twice_or_in_parts_moves_once() -> None:
    def twice(module: Calling, x: torch.Tensor) -> torch.Tensor:
        first, second, _ = module.weight.chunk(3)
        return functional.linear(functional.linear(x, first), second) + functional.linear(x, first)

    reused = Calling(twice, weight=nn.Parameter(torch.randn(24, 8)))
    assert work_of(reused, torch.randn(1, 8)).bytes_moved == 4 * (2 * 8 * 8 + 8 + 8)


def test_weights_inputs_and_outputs_count_in_the_precision_they_have() -> None:
    linear, x = nn.Linear(8, 8, bias=False), torch.randn(1, 8)
    assert work_of(linear, x).bytes_moved == 4 * (64 + 16)
    assert work_of(linear, x, precision="int8").bytes_moved == 64 + 4 * 16
    assert work_of(linear, x, precision="w4a32").bytes_moved == 64 * 9 / 16 + 4 * 16
    assert work_of(linear.to(torch.bfloat16), x.to(torch.bfloat16)).bytes_moved == 2 * (64 + 16)


def test_counting_raises_what_the_call_raises() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        work_of(nn.Linear(8, 8), torch.randn(1, 9))


# --- the floor


def latency(median_ms: float) -> Latency | None:
    return summarise(constant([median_ms]))


def test_the_floor_is_the_longer_of_compute_and_memory_time() -> None:
    best = Ceilings(flops_per_s=1e12, bytes_per_s=1e9)
    busy = roofline.of(Work(flops=4_000_000_000, bytes_moved=1_000_000), best, latency(8.0))
    assert (busy.floor_ms, busy.bound, busy.share) == (pytest.approx(4.0), "compute", pytest.approx(0.5))
    moving = roofline.of(Work(flops=1_000_000, bytes_moved=3_000_000), best, latency(4.0))
    assert (moving.floor_ms, moving.bound, moving.share) == (pytest.approx(3.0), "memory", pytest.approx(0.75))
    assert roofline.of(Work(flops=1, bytes_moved=1), best, None).share is None


MB = 10**6


def test_operations_that_convolutions_can_do_without_are_not_in_the_floor() -> None:
    best = Ceilings(flops_per_s=1e9, bytes_per_s=1e12)
    found = roofline.of(Work(flops=9 * MB, bytes_moved=1000, least_flops=MB), best, latency(4.0))
    assert (found.floor_ms, found.needed_flops, found.flops) == (pytest.approx(1.0), MB, 9 * MB)


@pytest.mark.parametrize(
    ("layer", "shape", "needed"),
    [
        (nn.Conv2d(4, 8, 3), (1, 4, 16, 16), 1 / 9),
        (nn.Conv2d(4, 8, 1), (1, 4, 16, 16), 1.0),
        (nn.Conv2d(4, 8, 3, stride=2), (1, 4, 16, 16), 4 / 9),
        (nn.Conv2d(4, 8, (1, 5), stride=(1, 7)), (1, 4, 16, 16), 1.0),
        (nn.Conv1d(4, 4, 5, groups=4), (1, 4, 64), 1 / 5),
        (nn.ConvTranspose2d(4, 8, 4, stride=2), (1, 4, 16, 16), 4 / 16),
    ],
)
def test_a_convolution_needs_one_operation_for_each_output_and_step(
    layer: nn.Module, shape: tuple[int, ...], needed: float
) -> None:
    found = work_of(layer, torch.randn(shape))
    least = found.flops if found.least_flops is None else found.least_flops
    assert least == pytest.approx(needed * found.flops, abs=1)


def test_a_step_of_training_saves_in_the_backward_convolutions_too() -> None:
    layer, x = nn.Conv2d(4, 8, 3), torch.randn(1, 4, 16, 16, requires_grad=True)

    def step(_: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
        layer(x).sum().backward()
        return x.grad

    found = count(Calling(step), Inputs((x,)), Precision.FP32)
    assert found.least_flops == pytest.approx(found.flops / 9, abs=2)


# --- what tensor cores do by their maker's figures


@pytest.mark.parametrize(
    ("gpu", "capability", "multiprocessors", "sm_clock_mhz", "precision", "tflops_per_s"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), 80, 1530, "fp16", 125),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, "fp16", 312),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, "tf32", 156),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410, "int8", 624),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830, "fp16", 989),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830, "tf32", 495),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 1830, "fp8", 1979),
        ("NVIDIA H200", (9, 0), 132, 1980, "bf16", 1071),
        ("NVIDIA B200", (10, 0), 148, 1860, "fp16", 2255),
    ],
)
def test_the_rate_of_tensor_cores_is_that_of_the_data_sheet(
    gpu: str, capability: tuple[int, int], multiprocessors: int, sm_clock_mhz: int, precision: str, tflops_per_s: int
) -> None:
    found = ceilings.tensor_cores(gpu, capability, multiprocessors, sm_clock_mhz, Precision(precision))
    assert found.flops_per_s / 1e12 == pytest.approx(tflops_per_s, abs=0.7)
    assert found.sm_clock_mhz == sm_clock_mhz


@pytest.mark.parametrize(
    ("gpu", "capability", "precision"),
    [
        ("NVIDIA H200", (9, 0), "fp32"),  # no tensor cores for it
        ("NVIDIA A100-SXM4-80GB", (8, 0), "fp8"),
        ("Tesla V100-SXM2-16GB", (7, 0), "bf16"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "fp16"),  # half of what an L40S of the same capability has
        ("NVIDIA of some later year", (99, 0), "fp16"),
        ("NVIDIA H20", (9, 0), "fp16"),
        ("NVIDIA H20-3e", (9, 0), "fp16"),
    ],
)
def test_an_unknown_rate_is_none(gpu: str, capability: tuple[int, int], precision: str) -> None:
    assert ceilings.tensor_cores(gpu, capability, 100, 1500, Precision(precision)) is None


def test_the_rate_of_tensor_cores_is_recorded_but_does_not_change_the_floor() -> None:
    nominal = TensorCores(flops_per_s=2e12, sm_clock_mhz=1980)
    work, measured = Work(flops=4_000_000_000, bytes_moved=1_000_000), Ceilings(flops_per_s=1e12, bytes_per_s=1e9)
    found = roofline.of(work, measured.model_copy(update={"tensor_cores": nominal}), latency(8.0))
    assert found.tensor_cores == nominal
    assert found.model_copy(update={"tensor_cores": None}) == roofline.of(work, measured, latency(8.0))


# --- the ceilings

STEP_NS = 1_000_000


class SteppingTime:
    """A clock that moves by `step_ns` whenever it is read, so that every call seems to take that long."""

    def __init__(self, step_ns: int = STEP_NS) -> None:
        self.now_ns, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def measured(precision: Precision, step_ns: int = STEP_NS) -> Ceilings:
    return ceilings.measure(CPU, precision, (8, 16, 32), (64 * KIB, 128 * KIB), SteppingTime(step_ns), lambda: 0)


def test_ceilings_are_operations_and_bytes_over_seconds() -> None:
    found = measured(Precision.FP32)
    # starting an operator is taken for at most half of its time
    assert (found.flops_per_s, found.bytes_per_s) == (2 * 32**3 / 1e-3, 128 * KIB / 0.5e-3)
    assert [level.working_set_bytes for level in found.levels] == [64 * KIB, 128 * KIB]
    assert not found.are_of_busy_machine


def test_ceilings_of_a_busy_machine_are_measured_again_and_the_highest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(rates: tuple[float, ...], flops_per_s: float) -> Ceilings:
        levels = [MemoryLevel(working_set_bytes=2**place, bytes_per_s=rate) for place, rate in enumerate(rates)]
        return Ceilings(flops_per_s=flops_per_s, bytes_per_s=rates[-1], levels=levels)

    told = iter([once((3.0, 5.0, 1.0), 7.0), once((4.0, 2.0, 2.0), 6.0), once((9.0, 9.0, 9.0), 9.0)])
    waited_ns = iter([0, 10**12, 10**12, 10**12])
    monkeypatch.setattr(ceilings, "_measure", lambda *_: next(told))
    found = ceilings.measure(CPU, Precision.FP32, waited_ns=lambda: next(waited_ns))
    assert (found.flops_per_s, found.bytes_per_s, found.are_of_busy_machine) == (7.0, 2.0, False)
    assert [level.bytes_per_s for level in found.levels] == [5.0, 5.0, 2.0], "what is smaller is as fast"


def test_on_a_cpu_that_stays_busy_one_thread_counts_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(*_: object) -> Ceilings:
        rate = 7.0 if torch.get_num_threads() == 1 else 2.0
        return Ceilings(flops_per_s=rate, bytes_per_s=rate, levels=[MemoryLevel(working_set_bytes=1, bytes_per_s=rate)])

    waited_ns = iter(range(0, 10**15, 10**12))
    monkeypatch.setattr(ceilings, "_measure", once)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = ceilings.measure(CPU, Precision.FP32, waited_ns=lambda: next(waited_ns))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert (found.flops_per_s, found.bytes_per_s, found.are_of_busy_machine) == (21.0, 21.0, True)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ([0.025, 0.2], 2 * 256**3 / 0.025),  # a slow machine
        ([0.028, 0.0015, 0.011, 0.088], 2 * 1024**3 / 0.011),  # the first product waited for a core
        ([0.0002, 0.03, 0.25], 2 * 256**3 / 0.0002),  # the second one waited, and looks as long as it may be
    ],
)
def test_the_last_product_takes_long_and_far_longer_than_the_one_before(
    seconds: list[float], best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(seconds)
    monkeypatch.setattr(ceilings, "_product", lambda *_: None)
    monkeypatch.setattr(ceilings, "_best_s", lambda *_: next(told))
    found = ceilings._best_flops_per_s(Clock(CPU), Precision.FP32, ceilings.PRODUCT_SIZES["cpu"])
    assert found == pytest.approx(best)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("int8", torch.int32)]
)
def test_a_small_type_is_measured_beside_float32(precision: str, dtype: torch.dtype) -> None:
    seen: set[torch.dtype] = set()

    def note(func: Any, args: object, kwargs: object, result: Any) -> None:
        if func.overloadpacket.__name__ in ("mm", "_int_mm"):
            seen.add(result.dtype)

    with OperatorWatch(note):
        measured(Precision(precision))
    assert seen == {dtype, torch.float32}


def test_there_is_no_ceiling_for_what_the_cpu_cannot_multiply() -> None:
    with pytest.raises(Unsupported, match="no fp8 product to measure on the CPU"):
        measured(Precision.FP8)


def test_the_largest_working_set_is_far_larger_than_the_caches_and_fits_into_memory() -> None:
    mib, plenty = KIB * KIB, 2**40
    for cache, free, largest in (
        (0, plenty, 256),
        (32 * mib, plenty, 256),
        (100 * mib, plenty, 400),
        (1024 * mib, plenty, 1024),
        (0, 800 * mib, 100),
    ):
        sizes = ceilings.working_sets("cpu", cache, free)
        assert (sizes[0], sizes[-1]) == (mib // 2, largest * mib)
        assert sizes == sorted(sizes)
    assert ceilings.working_sets("cpu", 0, mib) == [mib // 8]


def test_caches_are_read_as_linux_reports_them(tmp_path: Path) -> None:
    for processor, last in (("0", "0-1"), ("1", "0-1"), ("2", "2-3")):
        for index, (level, shared, kib) in enumerate([("1", processor, 32), ("2", processor, 512), ("3", last, 32768)]):
            cache = tmp_path / f"cpu{processor}" / "cache" / f"index{index}"
            cache.mkdir(parents=True)
            for name, text in (("level", level), ("shared_cpu_list", shared), ("size", f"{kib}K")):
                (cache / name).write_text(f"{text}\n")
    (tmp_path / "cpu2" / "cache" / "index3").mkdir()  # one that tells nothing
    assert ceilings.last_level_cache_bytes(tmp_path) == 2 * 32768 * KIB
    assert ceilings.last_level_cache_bytes(tmp_path / "none") == 0


@pytest.mark.slow
def test_this_machine_is_measured_within_reason() -> None:
    found = ceilings.measure(CPU, Precision.FP32)
    assert 1e8 < found.flops_per_s < 1e15
    assert 1e8 < found.bytes_per_s < 1e13


@pytest.mark.parametrize(
    ("answer", "may_jump"),
    [
        (nn.Upsample(scale_factor=2.0), False),
        (lambda x: x.sum() + (torch.arange(8.0) * 0.25).long(), False),
        (lambda x: x.sum() + (torch.arange(16.0) * 0.11 * 10).floor(), True),  # 11 is a rounding off
        (lambda x: x.sum() + (torch.arange(10.0, 11.0) * 1.1).floor(), True),  # also where it is alone
        (lambda x: x.sum() + torch.arange(1.0, 9.0).log2().long(), True),
        (lambda x: x.sum() + torch.full((8,), x.max().item()).long(), True),
        (lambda x: x.long(), True),
    ],
)
def test_what_no_rounding_moves_does_not_jump(answer: Callable[[torch.Tensor], torch.Tensor], may_jump: bool) -> None:
    """Torch's counter shows how the places are computed that an image is enlarged from."""
    x = torch.linspace(0.1, 3.7, 64).view(1, 1, 8, 8)

    with torch.inference_mode(), LongestSum() as sums:
        count(Calling(lambda _, x: answer(x)), Inputs((x,)), Precision.FP32)
    assert sums.jumps is may_jump


@pytest.mark.parametrize(
    ("call", "length"),
    [
        (lambda x: x.sum(1), 1000),
        (lambda x: x.mean(), 4000),
        (lambda x: x.var(0), 4),
        (lambda x: functional.mse_loss(x, x + 1), 4000),
        (lambda x: x.norm(dim=1), 1000),
        (lambda x: x.cumsum(1), 1000),
        (lambda x: x @ x.T, 1),
        (lambda x: x.relu(), 1),
        (lambda x: x[:0].sum(1).sum(), 1),
    ],
)
def test_the_longest_sum_is_found(call: Callable[[torch.Tensor], torch.Tensor], length: int) -> None:
    with torch.inference_mode(), LongestSum() as sums:
        call(torch.rand(4, 1000))
    assert sums.length == length


@pytest.mark.parametrize("kind", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("places", "is_any_order"), [([1, 1], True), ([1, 2], False)])
def test_several_values_in_one_place_are_found(kind: torch.dtype, places: list[int], is_any_order: bool) -> None:
    values = torch.tensor([1.0, 2.0]).to(kind)
    with torch.inference_mode(), LongestSum() as sums:
        torch.zeros(4, dtype=kind)[torch.tensor(places)] = values
    assert sums.writes_in_any_order is is_any_order


def test_one_number_in_several_places_may_lie_on_another_device() -> None:
    places = torch.tensor([1, 1], device="meta")
    with torch.inference_mode(), LongestSum() as sums:
        torch.zeros(4, device="meta").index_put_((places,), torch.tensor(3.0))
    assert not sums.writes_in_any_order


def written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4)
    y[:2].copy_(x.sum().expand(2))
    return y


@pytest.mark.parametrize(
    ("call", "lengths"),
    [
        (lambda x: (x.relu(), x.sum()), [1, 4000]),
        (lambda x: (x / x.sum(1, keepdim=True), x.max(), x.sum(0)), [1000, 1, 4]),
        (lambda x: (written(x), x[:2], x.mean().view(1)[0] * 2), [4000, 1, 4000]),
        (lambda x: (x * 2, x * x.sum().item()), [1, 4000]),
        (lambda x: (x.to_sparse(), x.sum(), x * 2), [4000, 4000, 1]),  # the first one's memory is not known
    ],
)
def test_the_longest_sum_of_each_output_is_found(
    call: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], lengths: list[int]
) -> None:
    with torch.inference_mode(), LongestSum() as sums:
        outputs = call(torch.rand(4, 1000))
    assert [sums.of([output]) for output in outputs] == lengths
