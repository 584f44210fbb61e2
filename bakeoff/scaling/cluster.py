"""Contests on the nodes of a Ray cluster. Ray places them, starts them again where a node dies, and transfers results.

A task starts the same controller process as a place of a pool does, in a folder of its own. What it reports goes to an
actor beside the driver, which writes records into the run's folder the moment they come.
"""

import contextlib
import importlib.util
import io
import os
import platform
import re
import socket
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bakeoff.judging.environment_changes import within_run
from bakeoff.measuring.controller import environment
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.controller.server_start import temporary_folder
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.same_model import require_own_variables
from bakeoff.measuring.session import cells_of, pending, time_plan_of
from bakeoff.planning.places import Place, divide_cores, physical_cores
from bakeoff.planning.plan import Contest
from bakeoff.planning.request import Request
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Environment
from bakeoff.records.store import Store
from bakeoff.records.text import counted
from bakeoff.scaling.controller_process import ProgressEvent
from bakeoff.scaling.place_process import ContestEnded, ControllerStarted, MeasureContest, Message, StartController
from bakeoff.scaling.pool import Controller, end_all, expected_seconds
from bakeoff.scaling.schedule import MAX_ATTEMPTS

NODE_ID = "ray.io/node-id"
LAST_DIED = "the last node died that is {}"
POLL_S = 0.5
MAX_CONNECT_S = 10.0
SENT_HOME = ("logs", "reference")
"""Folders of a contest that are copied back to the driver when it has ended."""


@dataclass(frozen=True)
class Node:
    id: str
    cpus: float
    gpus: int
    kind: str  # its hardware in words: a contest is begun again on nodes of the same kind only


class ControllerDied(BakeoffError):
    """The process that directs a contest has ended before the contest."""


class Cluster:
    """A connection to a Ray cluster that is up. It is a context manager: leaving it ends what is under way."""

    def __init__(self, address: str) -> None:
        """Raises UsageError without Ray, or where no cluster answers."""
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--cluster needs Ray: pip install -c constraints.txt '.[cluster]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        self._ray = ray
        try:
            # Ray would try for minutes where nothing listens.
            host, colon, port = address.rpartition(":")
            if colon and "/" not in host and port.isdigit():
                socket.create_connection((host, int(port)), MAX_CONNECT_S).close()
            ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            said = str(error).splitlines()[0]
            reason = f"no cluster answers ({said}); start it with ray start"
            raise UsageError(f"--cluster {address}: {reason}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def request_for(self, request: Request) -> Request:
        """Return the request with its device: the GPUs of the cluster if there are any, unless one is named. Raises
        UsageError for what a cluster does not measure, or a device that no node has."""
        alive = self._alive()
        has_gpus = any(resources.get("GPU") for resources in alive.values())
        devices = request.devices or ("cuda" if has_gpus else "cpu",)
        if devices not in (("cpu",), ("cuda",)):
            raise UsageError(f"--devices {','.join(devices)}: with --cluster, write cpu or cuda")
        if devices == ("cuda",) and not has_gpus:
            raise UsageError("--devices cuda: no node of the cluster has a GPU")
        if request.budget:
            raise UsageError("--budget and --cluster: contests go to nodes as these become free, so leave --budget out")
        return request.but(devices=devices)

    def measure(self, request: Request, contests: Sequence[Contest], store: Store, progress: Progress) -> None:
        """Bring every cell to its record in the store. A node measures one contest at a time, or one on each GPU."""
        ray = self._ray
        open_contests = [contest for contest in contests if pending(contest, store)]
        cells = cells_of(contests)
        progress.planned(cells)
        expected_s = expected_seconds(open_contests, time_plan_of(open_contests, request, store, float("inf")))
        nodes = self._nodes(Device(request.devices[0]))
        home = self._home(store)
        task = ray.remote(max_retries=MAX_ATTEMPTS - 1, retry_exceptions=[ControllerDied])(measure_on_node)
        under_way: dict[Any, tuple[Contest, str]] = {}
        slots = [node for node in nodes for _ in range(max(1, node.gpus))]
        for number, contest in enumerate(sorted(open_contests, key=lambda each: -expected_s[each.id])):
            node = slots[number % len(slots)]
            options = {
                "num_cpus": node.cpus / max(1, node.gpus),
                "num_gpus": int(node.gpus > 0),
                "label_selector": {NODE_ID: f"in({','.join(other.id for other in nodes if other.kind == node.kind)})"},
                "name": contest.id,
            }
            ref = task.options(**options).remote(request, contest, node.gpus, home, Path.cwd())
            under_way[ref] = (contest, node.kind)
        with store.timed() as save_elapsed, contextlib.suppress(KeyboardInterrupt):
            while under_way:
                done, _ = ray.wait(list(under_way), timeout=POLL_S)
                for event in ray.get(home.take.remote()):
                    event.show(progress)
                for ref in done:
                    contest, kind = under_way.pop(ref)
                    self._conclude(ref, contest, kind, nodes, store, progress)
                    save_elapsed()
                self._give_up_where_no_node_is_left(nodes, under_way, store, progress)

    def _conclude(
        self, ref: Any, contest: Contest, kind: str, nodes: Sequence[Node], store: Store, progress: Progress
    ) -> None:
        """Take home what a contest has left, or end its cells with the reason why no attempt came to its end."""
        try:
            unpack(self._ray.get(ref), store)
        except (self._ray.exceptions.RayError, ControllerDied) as error:
            cause = getattr(error, "cause", None) or error
            said = " ".join(str(cause).split())[:300]
            reason = f"none of {MAX_ATTEMPTS} attempts on {kind} came to its end: {said}"
            end_all(contest, reason if kind in self._kinds_left(nodes) else LAST_DIED.format(kind), store, progress)

    def _give_up_where_no_node_is_left(
        self, nodes: Sequence[Node], under_way: dict[Any, tuple[Contest, str]], store: Store, progress: Progress
    ) -> None:
        """End the contests of a kind of hardware of which the last node has died. Ray would wait for another one."""
        left = self._kinds_left(nodes)
        for ref, (contest, kind) in list(under_way.items()):
            if kind not in left:
                del under_way[ref]
                self._ray.cancel(ref, force=True)
                end_all(contest, LAST_DIED.format(kind), store, progress)

    def _kinds_left(self, nodes: Sequence[Node]) -> set[str]:
        alive = self._alive()
        return {node.kind for node in nodes if node.id in alive}

    def require_own_variables(self, recorded: Mapping[str, str]) -> None:
        """Raise UsageError where a node's variables are not those that the models' files have read in this run."""
        for node_id, said in self._answers(self._alive(), other_variables, recorded).items():
            if said:
                raise UsageError(f"node {node_id[:8]} of the cluster: {said}")

    def _answers(self, nodes: Iterable[str], function: Callable[..., str], *arguments: object) -> dict[str, str]:
        """Return what a function says on each of these nodes."""
        task = self._ray.remote(num_cpus=0, max_retries=0)(function)
        asked = {node_id: task.options(label_selector={NODE_ID: node_id}).remote(*arguments) for node_id in nodes}
        return {node_id: self._ray.get(answer) for node_id, answer in asked.items()}

    def _home(self, store: Store) -> Any:
        here = self._ray.get_runtime_context().get_node_id()
        actor = (
            self._ray.remote(num_cpus=0)(DriverMailbox)
            .options(label_selector={NODE_ID: here})
            .remote(store.root.resolve())
        )
        self._ray.get(actor.take.remote())
        return actor

    def _alive(self) -> dict[str, dict[str, float]]:
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}

    def _nodes(self, device: Device) -> list[Node]:
        """Return the nodes that can measure on this device, each with its hardware as a task there has found it."""
        wanted = "GPU" if device.is_cuda else "CPU"
        able = {node_id: resources for node_id, resources in self._alive().items() if resources.get(wanted)}
        nodes = []
        for node_id, said in self._answers(able, hardware).items():
            resources = able[node_id]
            gpus = int(resources.get("GPU", 0)) if device.is_cuda else 0
            nodes.append(Node(node_id, resources.get("CPU", 0), gpus, ", ".join([said, *own_resources(resources)])))
        return nodes


class DriverMailbox:
    """Runs as an actor beside the driver. It writes what controllers send into the run's folder, and keeps events."""

    def __init__(self, root: Path) -> None:
        self._store = Store.open(root)
        self._reported: list[ProgressEvent] = []
        self._begun: set[str] = set()

    def receive(self, contest_id: str, where: str, message: Message, built: bytes | None = None) -> None:
        """Take a message of the controller of a contest. `built` is what the cell of a record has built."""
        if isinstance(message, ControllerStarted):
            self._has_begun(contest_id, where, message.environment)
        elif isinstance(message, ProgressEvent):
            if message.record:
                if built:
                    unpack(built, self._store)
                self._store.save(message.record)
            self._reported.append(message)

    def _has_begun(self, contest_id: str, where: str, captured: Environment) -> None:
        """Keep the environment of the first node, and note how another one differs, and what began again."""
        if contest_id in self._begun:
            self._store.note(
                f"{contest_id} began again on {where}, because an attempt was lost with its node or process"
            )
        self._begun.add(contest_id)
        before = self._store.environment()
        if before is None:
            self._store.save_environment(captured)
            return
        if changed := within_run(before, captured, "host", "$CUDA_VISIBLE_DEVICES"):
            self._store.note(f"{contest_id} was measured on {where}, which differs: {'; '.join(map(str, changed))}")

    def take(self) -> list[ProgressEvent]:
        notes, self._reported = self._reported, []
        return notes


def measure_on_node(request: Request, contest: Contest, gpus: int, home: Any, started_in: Path) -> bytes:
    """Measure one contest on this node, as a Ray task, and return its logs, its reference and its notes, packed. Raises
    ControllerDied, so that Ray starts the contest again."""
    import ray

    place = place_of_task(request, gpus, ray.get_gpu_ids())
    with temporary_folder("node") as folder:
        store = Store.create(folder / "run", request, [planned.cell.id for planned in contest.cells], "")
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's: a contest has the threads that it has without Ray
        begin = StartController(place, request, (contest,), max(1, gpus))
        # The user's files are found if this node has the folder in which the run was started.
        is_shared = started_in.is_dir()
        with Controller(begin, started_in if is_shared else None) as controller:
            while (message := controller.receive()) is not None:
                if isinstance(message, ContestEnded):
                    controller.reply()
                    controller.end()
                    return pack(store, [*SENT_HOME, "notes.txt"])
                record = message.record if isinstance(message, ProgressEvent) else None
                built = pack(store, [record.artifact]) if record and record.artifact else None
                ray.get(home.receive.remote(contest.id, place.name, message, built))
                has_begun = isinstance(message, ControllerStarted)
                controller.reply(MeasureContest(contest, store.root) if has_begun else None)
            how = controller.ending()
        if not is_shared:
            how += f"; {place.name} has no folder {started_in}, so files of your own are not found there"
        raise ControllerDied(f"the process that directs its contest ended at {place.name} ({how})")


def place_of_task(request: Request, gpus: int, gpu_ids: Sequence[int | str]) -> Place:
    """Return the place of a task: its node, or one of its GPUs with an equal share of the cores."""
    device, here = Device(request.devices[0]), platform.node()
    if not device.is_cuda:
        return Place(here, device, tuple(usable_cores()))
    index = int(gpu_ids[0])
    cores = usable_cores()
    # Ray has made CUDA see this GPU alone, so that its number is 0.
    return Place(f"{here} cuda:{index}", device, divide_cores(cores, physical_cores(cores), gpus)[index], gpu=0)


def other_variables(recorded: Mapping[str, str]) -> str:
    """Return how this machine's variables differ from those that a run has recorded, or nothing."""
    try:
        require_own_variables(recorded, os.environ)
    except UsageError as error:
        return str(error)
    return ""


def hardware() -> str:
    node = environment.capture()
    memory = f"{(node.memory_bytes or 0) / 2**30:.0f} GiB"
    return ", ".join([node.cpu, counted(node.logical_cores or 0, "core"), memory, *(gpu.name for gpu in node.gpus)])


def own_resources(resources: dict[str, float]) -> list[str]:
    """Return the names of the resources that whoever started the node has given to it."""
    usual = re.compile(r"CPU|GPU|memory|object_store_memory|node:.*|accelerator_type:.*")
    return sorted(name for name in resources if not usual.fullmatch(name))


def pack(store: Store, names: Sequence[str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            if (store.root / name).exists():
                archive.add(store.root / name, name)
    return packed.getvalue()


def unpack(packed: bytes, store: Store) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive.getmembers():
            if member.name == "notes.txt":
                notes = archive.extractfile(member)
                for line in notes.read().decode().splitlines() if notes else ():
                    store.note(line)
            else:
                archive.extract(member, store.root, filter="data")
