"""Contests side by side, in a pool and on a local Ray cluster: nothing is lost where a controller or node is killed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from bakeoff.commands import run as runs
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.session import cells_of, time_plan_of
from bakeoff.measuring.variables import own_digests
from bakeoff.planning.places import places_of
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Ceilings, Cell, Record, Report, Status, Work
from bakeoff.records.store import Store
from bakeoff.scaling import pool
from bakeoff.scaling.cluster import Cluster, own_resources, pack, place_of_task, unpack
from bakeoff.scaling.pool import Pool, end_all, expected_seconds, slower_places
from bakeoff.scaling.schedule import MAX_ATTEMPTS, Schedule, chains_of
from tests.reports.samples import constant, ok
from tests.support.measuring import Silent, measure

SIZES = {"batch": ("1", "2", "3")}
"""Three contests of two cells each for two places: when the first one is decided, the third one cannot have ended."""


KNOWN_CEILINGS = """
from bakeoff.measuring.controller import groundwork
from bakeoff.records.schema import Ceilings
known = Ceilings(flops_per_s=1e11, bytes_per_s=1e10)
groundwork.measure_ceilings = lambda cell, run, *_: run.store.save_ceilings(cell.device, cell.precision, known)
"""
"""As in the tests' own process, a controller takes for known what the machine can do."""


def controllers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "place_process" in " ".join(one.cmdline())]


class Disturbing(Silent):
    """Kills a controller when batch 2 has built its first cell, and interrupts the run when a contest ends."""

    def __init__(self) -> None:
        super().__init__()
        self.kills = 0

    def built(self, cell: Cell, seconds: float, is_cached: bool = False) -> None:
        if cell.dimensions["batch"] == 2 and not self.kills:
            self.kills += 1
            controllers()[0].kill()

    def decided(self, records: Sequence[Record]) -> None:
        if self.kills:  # on a busy machine another contest may end before
            raise KeyboardInterrupt


@dataclass
class Pooled:
    """A run at two places that was disturbed."""

    folder: Path
    interrupted: Report
    controllers_after: int


@pytest.fixture(scope="module")
def known_ceilings_at_places() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "START", KNOWN_CEILINGS + pool.START)
        yield


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory, known_ceilings_at_places: None) -> Pooled:
    if len(usable_cores()) < 2:
        pytest.skip("two cores are needed")
    folder = tmp_path_factory.mktemp("pooled") / "run"
    devices = [f"cpu:{core}" for core in usable_cores()[:2]]
    interrupted = measure(folder, "null", "null/again", set=SIZES, devices=devices, progress=Disturbing())
    return Pooled(folder, interrupted, len(controllers()))


def test_a_killed_controller_is_replaced_and_its_contest_goes_on(pooled: Pooled) -> None:
    assert any("the process that directs its contest ended at cpu:" in note for note in pooled.interrupted.notes)
    assert any("(signal 9)" in note for note in pooled.interrupted.notes)


def test_an_interruption_ends_all_controllers_and_keeps_what_has_ended(pooled: Pooled) -> None:
    assert pooled.controllers_after == 0
    ended = [record for record in pooled.interrupted.records if record.place]
    assert not pooled.interrupted.complete
    assert pooled.interrupted.planned == 6 and len(ended) >= 2
    assert pooled.interrupted.elapsed_s > 0


def test_each_contest_stays_at_one_place_with_one_core(pooled: Pooled) -> None:
    assert_places(pooled.interrupted)
    assert pooled.interrupted.environment.usable_cores == pooled.interrupted.environment.torch_threads == 1


def assert_places(report: Report) -> None:
    measured = [record for record in report.records if record.place]
    places = {(record.cell.contest_id, record.place) for record in measured}
    assert len(places) == len({contest for contest, _ in places})
    assert {place for _, place in places} <= {f"cpu:{core}" for core in usable_cores()[:2]}
    for record in measured:
        assert all(f"cpu:{burst.conditions.core}" == record.place for burst in record.bursts if burst.conditions)


@pytest.mark.slow
def test_what_is_left_is_measured_later_and_every_cell_has_one_record(pooled: Pooled) -> None:
    progress = Silent()
    resumed, _ = runs.resume(pooled.folder, progress)
    request = Request(models=("mlp",), devices=("cpu",), backends=("null", "null/again"), set=SIZES)
    assert resumed.complete
    assert [record.cell for record in resumed.records] == cells_of(plan(request))
    assert {record.status for record in resumed.records} == {Status.OK}
    # a contest that was interrupted has records of what was measured so far, and then goes on
    ended_before = [record for record in resumed.records if record in pooled.interrupted.records]
    assert len(ended_before) >= 2
    assert len(ended_before) + len(progress.ended_labels) == 6
    assert resumed.elapsed_s > pooled.interrupted.elapsed_s
    assert_places(resumed)


def test_cells_of_a_contest_that_was_given_up_end_with_the_reason(tmp_path: Path) -> None:
    request = Request(models=("mlp",), devices=("cpu",), backends=("null", "null/again"))
    (contest,) = plan(request)
    ids = [planned.cell.id for planned in contest.cells]
    store = Store.create(tmp_path / "run", request, ids, "test")
    store.save(Record(cell=contest.cells[0].cell, status=Status.OK))
    progress = Silent()
    end_all(contest, "it ended three times", store, progress)
    assert [(each.status, each.reason) for each in store.records()] == [
        (Status.OK, ""),
        (Status.CRASH, "it ended three times"),
    ]
    assert progress.ended_labels == ["null/again"]


def test_contests_that_no_place_is_left_for_end_with_that_reason(tmp_path: Path) -> None:
    request = Request(models=("mlp",), devices=("cpu:0",), backends=("null",))
    contests = plan(request)
    store = Store.create(tmp_path / "run", request, [cell.id for cell in cells_of(contests)], "test")
    with Pool([], request, contests) as each:
        each.measure(store, Silent())
    assert [(each.status, each.reason) for each in store.records()] == [
        (Status.CRASH, "no place is left where a controller starts")
    ]


def test_a_floor_whose_ceilings_another_place_measured_later_is_given_at_the_end(tmp_path: Path) -> None:
    request = Request(models=("mlp",), devices=("cpu:0",), backends=("null",))
    contests = plan(request)
    (cell,) = cells_of(contests)
    store = Store.create(tmp_path / "run", request, [cell.id], "test")
    store.keep_facts(cell.reference_id, Work(flops=10, bytes_moved=10))
    store.save(ok(cell, constant([1.0] * 6)).model_copy(update={"no_floor": "scripted: no time"}))
    store.save_ceilings(cell.device, cell.precision, Ceilings(flops_per_s=1e9, bytes_per_s=1e9))
    with Pool([], request, contests) as each:
        each.measure(store, Silent())
    (record,) = store.records()
    assert record.roofline and not record.no_floor


def test_a_slower_place_is_named_with_the_work_that_it_is_slower_at() -> None:
    rates = {
        "cuda:0": {"one core": 100.0, "memory": 3.0e12},
        "cuda:1": {"one core": 98.5, "memory": 2.7e12},
        "cuda:2": {"one core": 99.0, "memory": 2.99e12},
    }
    assert slower_places(rates) == ["cuda:1 is slower than cuda:0 by 10.0% (memory)"]


def test_a_controller_that_does_not_start_ends_the_run_with_its_last_words() -> None:
    request = Request(models=("mlp",), devices=("cpu:0",), backends=("null",), env=("other=/nowhere",))
    places = places_of(request.devices, usable_cores() or [0], {})
    said = r"no controller at cpu:0: exit status 1 .*--env other=/nowhere: there is no such interpreter"
    with pytest.raises(BakeoffError, match=said), Pool(places, request, plan(request)) as each:
        each.begin()
    assert not controllers()


def test_the_expected_time_of_each_contest_is_its_own(tmp_path: Path) -> None:
    request = Request(models=("mlp",), devices=("cpu",), backends=("eager", "inductor"), set={"batch": ("1", "2")})
    contests = plan(request)
    store = Store.create(tmp_path / "run", request, [], "test")
    whole = time_plan_of(contests, request, store, float("inf"))
    total_s = whole.left_s()
    found = expected_seconds(contests, whole)
    assert list(found) == [contest.id for contest in contests] and sum(found.values()) == pytest.approx(total_s)
    assert all(each > 10 for each in found.values())


def contests(*models: str, **fields: object) -> list[Contest]:
    asked = {"models": models, "devices": ("cpu",), "backends": ("null",), **fields}
    return plan(Request(**asked))


def lasting(found: list[Contest], *seconds: float) -> dict[str, float]:
    return {contest.id: each for contest, each in zip(found, seconds, strict=True)}


def test_the_longest_contest_comes_first_and_each_goes_to_the_place_that_is_free() -> None:
    short, long, middle = found = contests("mlp", "conv", "transformer")
    schedule = Schedule(found, lasting(found, 1, 9, 4))
    assert schedule.next_for("a") is long
    assert schedule.next_for("b") is middle
    assert schedule.has_begun_at("b")
    schedule.ended("b")
    assert not schedule.has_begun_at("b") and not schedule.has_begun_at("c")
    assert schedule.waiting == [short] and schedule.waiting_s == 1
    assert schedule.next_for("b") is short
    schedule.ended("b")
    assert schedule.next_for("b") is None
    schedule.ended("a")
    assert schedule.next_for("a") is None


def test_a_contest_whose_controller_died_is_begun_again_at_its_place_and_given_up_in_the_end() -> None:
    first, second = found = contests("mlp", "conv")
    schedule = Schedule(found, lasting(found, 9, 1))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert schedule.next_for("a") is first
        assert schedule.lost("a") is (first if attempt == MAX_ATTEMPTS else None)
        assert schedule.next_for("b") is second, "the first one waits for its own place"
    schedule.ended("b")
    assert schedule.next_for("a") is schedule.next_for("b") is None


def test_contests_that_share_a_build_stay_at_one_place_one_after_the_other() -> None:
    found = contests("mlp", backends=("onnx",), set={"batch": ("1", "4", "8")}, dynamic=("batch=1:8",))
    other = contests("conv")
    assert chains_of([*found, *other]) == [found, other]
    schedule = Schedule([*found, *other], lasting([*found, *other], 1, 1, 1, 1))
    assert schedule.next_for("a") is found[0]
    assert schedule.next_for("b") is other[0]
    schedule.ended("b")
    assert schedule.next_for("b") is None
    assert schedule.lost("a") is None
    assert schedule.next_for("b") is None
    schedule.is_gone("a")
    assert [schedule.next_for("b"), schedule.ended("b"), schedule.next_for("b")] == [found[0], None, found[1]]


def test_a_contest_that_was_interrupted_goes_on_where_it_has_begun() -> None:
    first, second = found = contests("mlp", "conv")
    schedule = Schedule(found, lasting(found, 9, 1), {first.id: "b"})
    assert schedule.next_for("a") is second
    assert schedule.next_for("b") is first


def test_a_contest_gets_its_share_of_the_time_that_is_left() -> None:
    found = contests("mlp", "conv", "transformer")
    schedule = Schedule(found, lasting(found, 1, 6, 3))
    first = schedule.next_for("a")
    assert first is not None and schedule.share_of_waiting(first) == 0.6
    schedule.next_for("b")
    last = schedule.next_for("c")
    assert last is not None and schedule.share_of_waiting(last) == 1.0


ROOT = Path(__file__).resolve().parents[2]
CLUSTER_SIZES = ("1", "2", "4", "8", "16")
LIMIT_S = 240.0
SMALL_STORE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--cluster needs Ray: pip install"):
        measure(tmp_path / "run", "null", cluster="auto")


def test_what_comes_home_is_added_to_the_run(tmp_path: Path) -> None:
    node, home = (Store.create(tmp_path / name, Request(), [], "") for name in ("node", "home"))
    node.note("there")
    home.note("here")
    node.log("one").write_text("said")
    (node.root / "cells" / "stays.json").write_text("{}")
    packed = pack(node, ["logs", "notes.txt", "missing"])
    unpack(packed, home)
    unpack(packed, home)
    assert home.notes() == ["here", "there"]
    assert home.log("one").read_text() == "said" and not home.has("stays")


def test_nodes_are_told_apart_by_what_they_were_started_with() -> None:
    assert own_resources({"CPU": 4, "memory": 1e9, "node:10.0.0.1": 1, "rack-b": 1, "accelerator_type:H100": 1}) == [
        "rack-b"
    ]


def test_a_contest_on_a_gpu_gets_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.scaling.cluster.usable_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr("bakeoff.scaling.cluster.physical_cores", lambda cores: {})
    place = place_of_task(Request(devices=("cuda",)), gpus=2, gpu_ids=["1"])
    assert (place.cores, place.gpu) == ((2, 3), 0) and place.name.endswith(" cuda:1")
    assert place.variables({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert place_of_task(Request(devices=("cpu",)), gpus=0, gpu_ids=[]).cores == (0, 1, 2, 3)


@dataclass
class Story:
    """A run whose driver was killed, and which was resumed while a node was killed."""

    after_the_driver: Report
    whole: Report
    status: int


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Any, list[Any]]]:
    """A cluster with three nodes that measure, of which one has another hardware by its own resource."""
    utils = pytest.importorskip("ray.cluster_utils")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL_STORE})
    added = [
        cluster.add_node(num_cpus=1, object_store_memory=SMALL_STORE["object_store_memory"], resources=resources)
        for resources in ({}, {}, {"other-hardware": 1})
    ]
    yield cluster, added
    cluster.shutdown()


@pytest.fixture(scope="module")
def story(nodes: tuple[Any, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Story:
    cluster, (first, *_) = nodes
    folder = tmp_path_factory.mktemp("cluster") / "run"

    def records() -> int:
        return len(list(folder.glob("cells/*.json")))

    asked = ["--model", "mlp", "--set", f"batch={','.join(CLUSTER_SIZES)}", "--backends", "null,null/again"]
    brief = ["--devices", "cpu", "--processes", "1", "--min-time", "0.05", "--out", str(folder)]
    driver = command(*asked, *brief, "--cluster", cluster.address)
    wait_until(lambda: records() >= 4, driver)  # of two cells on three nodes: one contest has both
    driver.kill()
    driver.wait()
    before = report_at(folder)
    driver = command("resume", str(folder), "--quiet")
    seen = records()
    wait_until(lambda: records() > seen, driver)
    cluster.remove_node(first, allow_graceful=False)
    status = driver.wait(LIMIT_S)
    return Story(before, report_at(folder), status)


def command(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "runner.py", *arguments], cwd=ROOT)


def wait_until(is_so: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert driver.poll() is None and time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.mark.timeout(900)
def test_a_killed_driver_loses_nothing_that_had_ended(story: Story) -> None:
    before = {record.cell.id: record for record in story.after_the_driver.records}
    assert len(before) >= 2 and not story.after_the_driver.complete
    same = [record for record in story.whole.records if before.get(record.cell.id) == record]
    assert len(same) >= 2


def test_every_record_is_found_once_though_a_node_died(story: Story) -> None:
    request = Request(models=("mlp",), set={"batch": CLUSTER_SIZES}, devices=("cpu",), backends=("null", "null/again"))
    assert story.status == 0 and story.whole.complete
    wanted = [planned.cell.id for contest in plan(request) for planned in contest.cells]
    assert [record.cell.id for record in story.whole.records] == wanted
    assert {record.status for record in story.whole.records} == {Status.OK}
    assert all(record.place for record in story.whole.records)


def test_a_contest_of_a_node_that_died_began_again(story: Story) -> None:
    assert any("began again on" in note for note in story.whole.notes), story.whole.notes


class FakeRay(ModuleType):
    """A cluster of two nodes, whose tasks run here, each with the variables of its node."""

    def __init__(self, variables: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self._variables = variables
        self.init = self.shutdown = lambda **_: None
        self.remote = lambda **_: lambda task: SimpleNamespace(options=lambda **where: self._task(task, **where))
        self.get = lambda answer: answer

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "Alive": True, "Resources": {}} for name in self._variables]

    def _task(self, task: Callable[..., Any], label_selector: Mapping[str, str]) -> Any:
        def remote(*arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self._variables[next(iter(label_selector.values()))].items():
                    patch.setenv(name, value)
                return task(*arguments)

        return SimpleNamespace(remote=remote)


def test_a_run_is_not_resumed_on_a_cluster_where_a_node_has_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = own_digests(["MY_WIDTH"], {"MY_WIDTH": "64"})
    for other, is_refused in (("64", False), ("128", True)):
        monkeypatch.setitem(sys.modules, "ray", FakeRay({"a": {"MY_WIDTH": "64"}, "b": {"MY_WIDTH": other}}))
        with Cluster("auto") as cluster:
            if not is_refused:
                cluster.require_own_variables(recorded)
                continue
            with pytest.raises(UsageError, match=r"node b of the cluster: .*MY_WIDTH, which has another value"):
                cluster.require_own_variables(recorded)


def test_no_cluster_at_an_address_is_said(nodes: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--cluster 127\.0\.0\.1:1: no cluster answers"):
        measure(tmp_path / "run", "null", cluster="127.0.0.1:1")
