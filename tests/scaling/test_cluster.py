"""A local Ray cluster of three nodes: a driver is killed, a node is killed, and every record is found once."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.variables import own_digests
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Report, Status
from bakeoff.records.store import Store
from bakeoff.scaling.cluster import Cluster, own_resources, pack, place_of_task, unpack
from tests.support.measuring import measure

ROOT = Path(__file__).resolve().parents[2]
SIZES = ("1", "2", "4", "8", "16")
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

    asked = ["--model", "mlp", "--set", f"batch={','.join(SIZES)}", "--backends", "null,null/again"]
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
    request = Request(models=("mlp",), set={"batch": SIZES}, devices=("cpu",), backends=("null", "null/again"))
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
