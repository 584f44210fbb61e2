"""Workers, a launcher and a machine that follow a script: contests run in no time, without any process."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bakeoff import backends
from bakeoff.measuring import messages
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.contests import measure_ceilings, measure_contest
from bakeoff.measuring.controller.environment import Machine
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.plan import Contest, PlannedCell
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.planning.time_plan import TimePlan
from bakeoff.records import schema
from bakeoff.records.artifacts import Artifacts
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import BakeoffError
from bakeoff.records.failure import Failure
from bakeoff.records.load_samples import LoadWindow
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.scenarios import Scenario
from bakeoff.records.store import Store
from tests.support.cells import labelled
from tests.support.measuring import Silent

RIGHT = schema.Accuracy(
    rmse=0, relative_rmse=0, max_abs_error=0, eager_rmse=0, allclose=True, rtol=0, atol=0, passed=True, rule="allclose"
)


ENERGY = schema.Energy(joules_per_call=0.01, idle_w=70.0, calls=1000, seconds=1.0, source="scripted")


KERNELS = schema.KernelTimes(busy_ms=0.5, kernels=12, longest=[schema.Kernel(name="gemv", share=0.6)], calls=3)
METRICS = messages.Evaluated(metrics=Metrics(values={"top1": Metric.of_scores([1.0] * 800)}, seconds=1.0))
WRONG = RIGHT.but(passed=False, rule="rmse is 7")
HANG = "hang"
INTERRUPT = "interrupt"  # of the controller, which waits for the worker
SEGFAULT = -11

Ending = schema.Status | int | str
"""How a worker ends early: a status that it tells, an exit status, or a hang."""


def ready_with(check: schema.Accuracy = RIGHT, **changes: Any) -> messages.Ready:
    """Return what a process tells when it is warm, with this check of its answers."""
    ready = messages.Ready(
        accuracy=check,
        settle=None,
        warm_up=schema.WarmUp(calls=10, seconds=0.1, steady=True),
        placement=None,
        memory=schema.Memory(),
        precision_in_force={},
        settings={"threads": 2},
        versions={},
        caveat="",
        reference_type="float64",
    )
    return ready.but(**changes)


@dataclass
class Script:
    """What the workers of one cell do. Their bursts vary by `spread` around `level_ms`."""

    level_ms: float = 1.0
    spread: float = 0.001
    disturbed_of_ten: int = 0  # so many of ten rounds had to wait for a core
    seconds_per_start: float = 1.0
    seconds_per_burst: float = 0.01
    seconds_per_warm_up: float = 0.0
    seconds_per_check: float = 0.0  # the last one; the first one is part of the start
    resident_bytes: int = 10**9
    recompilations: int = 0
    built_bytes: int = 0  # what its backend builds
    fills_disk: bool = False
    phases: tuple[str, ...] = ("load",)  # of building, where it is not built ahead of time
    endings: Mapping[tuple[int, str], Ending] = field(default_factory=dict)
    """By number of the worker and stage: "start", "build", "warm-up", "burst 3", "load 3", "further", "finish",
    "evaluate" or "trace"."""
    evaluate_s: float = 1.0
    slower_after_s: float = math.inf  # longer windows of load answer less
    slower_share: float = 0.95  # of what shorter ones answer
    overloaded: frozenset[int] = frozenset()  # numbers of workers that meet no objective under load
    calls_per_s: Mapping[int, float] = field(default_factory=dict)  # back to back, by number of the worker
    answers: Mapping[tuple[int, str], schema.Accuracy] = field(
        default_factory=dict
    )  # by number and "start" or "finish"


class ScriptedMachine(Machine):
    """A machine whose time passes as scripts say."""

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 0.0
        self.now_s = lambda: self.time_s
        self.calibrate_ms = lambda: 1.0
        self.usable_cores = lambda: [0, 1]
        self.available_bytes = lambda: 10**12
        self.device_free_bytes = lambda device: None
        self.full_disks: list[Path] = []
        self.has_full_disk = lambda folder: folder in self.full_disks
        self.wait = self._wait

    def _wait(self, workers: Sequence[ScriptedWorker], seconds: float) -> list[ScriptedWorker]:
        """Let time pass until the first of these says something, or until so many seconds have passed."""
        first = min(workers, key=lambda worker: worker.speaks_s)
        if first.speaks_s > self.time_s + seconds:
            self.time_s += seconds
            return []
        self.time_s = max(self.time_s, first.speaks_s)
        return [first]


class ScriptedWorker:
    def __init__(
        self,
        script: Script,
        number: int,
        job: messages.CellJob,
        machine: ScriptedMachine,
        on_step: Callable[[str], None],
    ) -> None:
        self.is_over = False
        self.is_stopped, self._stopped_s = False, 0.0
        self.warmed_up_s = 0.0
        self._on_step = on_step
        on_step("launched")
        self._script, self._number, self._job, self._machine = script, number, job, machine
        self.workspace = job.shared_folder
        machine.full_disks += [self.workspace] if script.fills_disk else []
        self._random = random.Random(f"{job.cell.label} {number}")
        self._bursts = self._windows = 0
        self._tunes_next = False
        self._events: deque[object] = deque()
        self._due_s = 0.0
        if script.built_bytes:
            (job.shared_folder / "artifact").mkdir(parents=True, exist_ok=True)
            (job.shared_folder / "artifact" / "model").write_bytes(bytes(script.built_bytes))
        self._say("start", messages.PhaseBegun(name="model"), messages.ReadyToBuild())

    @property
    def speaks_s(self) -> float:
        """When it says what comes next."""
        return math.inf if self._events[0] == HANG else self._due_s

    def _passing(self, seconds: float) -> None:
        if seconds:
            self._due_s = self._machine.time_s + seconds

    def _build(self) -> None:
        if isinstance(self._job, messages.PackageCell):
            self._say(
                "build",
                messages.PhaseBegun(name="compile"),
                messages.PhaseEnded(name="compile", seconds=2.0),
                messages.Packaged(),
            )
        else:
            timed = [
                (messages.PhaseBegun(name=name), messages.PhaseEnded(name=name, seconds=0.5))
                for name in self._script.phases
            ]
            events = [event for both in timed for event in both]
            self._say("build", *events, messages.Built(seconds=self._script.seconds_per_start))

    def _warm_up(self, seconds: float) -> None:
        self.warmed_up_s = seconds
        source = schema.DRIVERS_ACCOUNT if self._job.cell.device.is_cuda else None
        self._say(
            "warm-up",
            messages.PhaseBegun(name="warm-up"),
            ready_with(
                self._script.answers.get((self._number, "start"), RIGHT),
                warm_up=schema.WarmUp(calls=10, seconds=max(seconds, 10 * self._script.level_ms / 1e3), steady=True),
                memory=schema.Memory(peak_resident_bytes=self._script.resident_bytes, device_bytes_source=source),
                check_s=self._script.seconds_per_check,
            ),
        )

    def _say(self, stage: str, *events: object) -> None:
        ending = self._script.endings.get((self._number, stage))
        if ending is not None:
            begun = [event for event in events if isinstance(event, messages.PhaseBegun)]
            if isinstance(ending, schema.Status):
                ending = messages.Failed(status=ending, failure=Failure(kind="Scripted", text="scripted"))
            # a process goes on after an interruption of the controller
            events = (INTERRUPT, *events) if ending == INTERRUPT else (*begun, ending)
        self._events.extend(events)

    def send(self, command: object) -> None:
        assert not self.is_stopped, "a stopped process hears nothing"
        if isinstance(command, messages.Build) and self._tunes_next:
            self._passing(self._script.seconds_per_start)
            self._on_step("tunes")
            self._build()
        elif isinstance(command, messages.Build):
            self._on_step("builds")
            builds = self._job.cell.device.is_cuda and not isinstance(self._job, messages.MeasurePackagedCell)
            self._tunes_next = builds and backends.create(self._job.cell.backend).tunes_late
            self._passing(0.5 if self._tunes_next else self._script.seconds_per_start)
            if self._tunes_next:
                self._say("export", messages.ReadyToTune())
            else:
                self._build()
        elif isinstance(command, messages.BeginWarmUp):
            self._on_step("warms up")
            self._passing(self._script.seconds_per_warm_up)
            self._warm_up(seconds=0.05 if command.is_repeated else 0.1)
        elif isinstance(command, messages.TakeBurst):
            self._on_step("burst")
            self._passing(self._script.seconds_per_burst)
            factor = self._random.lognormvariate(0, self._script.spread)
            waited = 0.5 if self._bursts % 10 < self._script.disturbed_of_ten else 0.0
            taken = messages.BurstMeasured(
                samples_ns=[round(1e6 * self._script.level_ms * factor)],
                conditions=schema.Conditions(wait_share=waited),
            )
            self._say(f"burst {self._bursts}", taken)
            self._bursts += 1
        elif isinstance(command, messages.TakeLoad):
            self._passing(command.seconds)
            share = self._script.slower_share if command.seconds > self._script.slower_after_s else 1.0
            window = window_of_load(command, share * 1e3 / self._script.level_ms)
            late = {"objective_ms": 1e3} if self._number in self._script.overloaded else {}
            taken_under_load = messages.TrafficWindow(window=window.but(**late))
            self._say(f"load {self._windows}", taken_under_load)
            self._windows += 1
        elif isinstance(command, messages.MeasureFurther):
            self._on_step("measures")
            measured = messages.FurtherMeasured(
                throughput=self._throughput(command.throughput_blocks) if command.throughput_blocks else None,
                energy=ENERGY if command.with_energy else None,
            )
            self._say("further", messages.PhaseBegun(name="throughput"), measured)
        elif isinstance(command, messages.Finish):
            self._on_step("finishes")
            self._passing(self._script.seconds_per_check)
            answer = self._script.answers.get((self._number, "finish"), RIGHT)
            finished = messages.Finished(
                accuracy_after=answer,
                placement=None,
                memory=schema.Memory(engine_resident_bytes=1 if command.with_engine_memory else None),
                recompilations=self._script.recompilations,
            )
            self._say("finish", messages.PhaseBegun(name="last check"), finished)
            if command.with_metrics:
                self._say("evaluate", messages.PhaseBegun(name="evaluate"), METRICS)
            if command.with_trace:
                self._say("trace", messages.KernelsTraced(times=KERNELS))

    def _throughput(self, blocks: int) -> schema.Throughput:
        rate = self._script.calls_per_s.get(self._number, 1e3 / self._script.level_ms)
        return schema.Throughput(calls_per_s=rate, blocks=blocks, block_s=0.1)

    def receive(self, deadline_s: float) -> object:
        event = self._events[0]
        if self.speaks_s > deadline_s:
            self._machine.time_s = max(self._machine.time_s, deadline_s)
            raise DeadlinePassed
        self._machine.time_s = max(self._machine.time_s, self._due_s)
        self._events.popleft()
        if event == INTERRUPT:
            os.kill(os.getpid(), signal.SIGINT)
        if isinstance(event, int):
            raise WorkerEnded(event)
        if isinstance(event, messages.PhaseBegun) and event.name == "evaluate":
            self._on_step("evaluates")
            self._passing(self._script.evaluate_s)
        if isinstance(
            event,
            messages.ReadyToBuild | messages.Built | messages.Ready | messages.FurtherMeasured | messages.Finished,
        ):
            self._on_step("loaded" if isinstance(event, messages.ReadyToBuild) else type(event).__name__.lower())
        return event

    def pause(self) -> None:
        assert not self.is_over
        self.is_stopped, self._stopped_s = True, self._machine.time_s

    def resume(self) -> None:
        assert not self.is_over
        if self.is_stopped and self._due_s > self._stopped_s:  # it does the rest now
            self._due_s += self._machine.time_s - self._stopped_s
        self.is_stopped = False

    def kill(self) -> None:
        assert not self.is_over

    def end(self) -> int:
        self._on_step("ended")
        self.is_over = True
        return -9


class ScriptedLauncher:
    """Stands for the launchers of a run, and for each of them."""

    start_method = "scripted"
    are_serving = True
    branch_note = ""

    def __init__(self, folder: Path, scripts: Mapping[str, Script], machine: ScriptedMachine) -> None:
        self.temporary = folder
        self.first = self
        self.started: list[tuple[int, str]] = []  # epoch and label, in order
        self.jobs: list[tuple[str, type, tuple[str, ...]]] = []  # label, job, and imports of the branch, in order
        self.steps: list[tuple[int, str, str]] = []  # epoch, what, and label, in order
        self.epochs = 10**6  # so many have a fork server
        self.interrupted_at: tuple[int, str] | None = None  # epoch and label of a cell whose start is interrupted
        self._scripts, self._machine = scripts, machine
        self.answers: dict[type, object] = {
            messages.ComputeReference: messages.ReferenceComputed(
                work=schema.Work(flops=10, bytes_moved=10), uncounted=""
            ),
            messages.MeasureCeilings: messages.CeilingsMeasured(
                ceilings=schema.Ceilings(flops_per_s=1e9, bytes_per_s=1e9)
            ),
            messages.EvaluateReference: METRICS,
        }
        self.epoch = 0
        self._workers: dict[str, list[ScriptedWorker]] = {}
        self.most_beside_what_is_timed = 0  # so many other workers went on then
        self.folders: dict[str, list[Path]] = {}  # that the workers of a cell were to share

    def await_serving(self) -> None: ...

    def of_environment(self, name: str) -> ScriptedLauncher:
        return self

    def of_epoch(self, epoch: int) -> ScriptedLauncher:
        if epoch >= self.epochs:
            raise BakeoffError("the fork server ended")
        self.epoch = epoch
        return self

    def start(
        self, job: messages.CellJob, log: Path, workspace: Path | None = None, imports: Sequence[str] = ()
    ) -> ScriptedWorker | ScriptedAnswer:
        if type(job) in self.answers:
            return ScriptedAnswer(self.answers[type(job)])
        label = job.cell.label
        if (self.epoch, label) == self.interrupted_at:
            raise KeyboardInterrupt
        job.shared_folder.mkdir(parents=True, exist_ok=True)
        self.folders.setdefault(label, []).append(job.shared_folder)
        self.started.append((self.epoch, label))
        self.jobs.append((label, type(job), tuple(imports)))
        before = self._workers.setdefault(label, [])

        epoch = self.epoch

        def on_step(what: str) -> None:
            self.steps.append((epoch, what, label))
            if what in ("burst", "measures"):
                going_on = sum(
                    not (each.is_over or each.is_stopped) for all_of in self._workers.values() for each in all_of
                )
                self.most_beside_what_is_timed = max(self.most_beside_what_is_timed, going_on - 1)

        before.append(ScriptedWorker(self._scripts[label], len(before), job, self._machine, on_step))
        return before[-1]

    def most(self, begin: str, end: str, at: str = "") -> dict[int, int]:
        """Return how many cells at most were between two steps, by epoch, or only when a cell took the step `at`."""
        between: dict[int, set[str]] = {}
        most: dict[int, int] = {}
        for epoch, what, label in self.steps:
            cells = between.setdefault(epoch, set())
            cells ^= {label} if what in (begin, end) and (what == begin) != (label in cells) else set()
            most[epoch] = max(most.get(epoch, 0), len(cells) if at in ("", what) else 0)
        return most

    def warmed_up_s(self, label: str) -> list[float]:
        return [worker.warmed_up_s for worker in self._workers[label]]

    def alive(self) -> int:
        return sum(not worker.is_over for workers in self._workers.values() for worker in workers)

    def ask(
        self, job: object, log: Path, limit_s: float, on_phase: Callable[[str], None] = lambda phase: None
    ) -> object:
        return ScriptedAnswer(self.answers[type(job)]).answer(limit_s, on_phase)


class ScriptedHeaders:
    """Stands for torch's headers, and notes who waited for them."""

    def __init__(self, launcher: ScriptedLauncher, machine: ScriptedMachine, made_s: float) -> None:
        self._launcher, self._machine, self._made_s = launcher, machine, made_s

    def are_made_for(self, cell: schema.Cell) -> bool:
        includes_any = cell.device.kind in backends.create(cell.backend).precompiles
        if includes_any and self._machine.time_s < self._made_s:
            return False
        self._launcher.steps.append((self._launcher.epoch, "has headers", cell.label))
        return True

    def await_for(self, cell: schema.Cell) -> None:
        self._machine.time_s = max(self._machine.time_s, self._made_s)
        self._launcher.steps.append((self._launcher.epoch, "has headers", cell.label))

    def await_all(self) -> None:
        self._launcher.steps.append((self._launcher.epoch, "has headers", "all"))


@dataclass(frozen=True)
class ScriptedAnswer:
    """Stands for a worker with a short job. It answers as told, or ends."""

    event: object

    def answer(self, limit_s: float, on_phase: Callable[[str], None] = lambda phase: None) -> object:
        if isinstance(self.event, Exception):
            raise self.event
        return self.event


def window_of_load(order: messages.TakeLoad, capacity: float) -> LoadWindow:
    """Return what a queue makes of the order: latency rises without end towards the capacity."""
    capacity = 50_000.0 if order.answers_nothing else capacity
    is_server = order.scenario is Scenario.SERVER
    sheds = not is_server and order.shed_after_ms is not None  # most requests are there for too long
    sent = order.rate if is_server else 20 * capacity if sheds else capacity
    latency_ms = 2 + 2 / (1 - sent / capacity) if is_server and sent < capacity else 1e3
    return LoadWindow(
        asked_rate=order.rate if is_server else None,
        rate=sent,
        requests=200,
        seconds=order.seconds,
        p50_ms=latency_ms / 2,
        p90_ms=latency_ms,
        p99_ms=latency_ms,
        objective_ms=latency_ms if order.quantile else 2.0,
    )


def plan_of(processes: int = 1, most_processes: int | None = None, rounds: int = 12) -> SamplingPlan:
    most = most_processes or processes
    return SamplingPlan(processes, most, rounds, burst_s=0.0, burst_calls=1, warm_up_s=0.0)


def contest_of(labels: Sequence[str], device: Device = CPU, precision: Precision = Precision.FP32) -> Contest:
    cells = [labelled(label, device=device, precision=precision) for label in labels]
    return Contest(cells[0].contest_id, tuple(PlannedCell(cell, asked_by_name=True, of_best=True) for cell in cells))


def run_contest(
    folder: Path,
    scripts: Mapping[str, Script],
    plan: SamplingPlan | None = None,
    *,
    undecided: Callable[[Sequence[schema.Record]], Sequence[tuple[str, str]]] = lambda records: (),
    available_bytes: Callable[[ScriptedLauncher], int] = lambda launcher: 10**12,
    time_limit_s: float = 600.0,
    epochs: int = 10**6,
    artifact_limit: float = 10**9,
    interleaved: bool = True,
    cores: int = 2,
    budget_s: float = math.inf,
    interrupted_at: tuple[int, str] | None = None,
    load: LoadPlan | None = None,
    device: Device = CPU,
    headers_s: float = 0.0,
    build_cache: BuildCache | None = None,
    eager_call: messages.EagerCall | None = None,
    evaluate: str = "",
    evaluate_timeout_s: float = 600.0,
    precision: Precision = Precision.FP32,
    require: str = "",
    reference_memory: schema.Memory | None = None,
    is_machine_busy: bool = False,
) -> SimpleNamespace:
    """Run a contest of cells that follow `scripts`, by label, or go on with the interrupted one in the same folder.

    Return its records by label, its notes and what started.
    """
    contest = contest_of(list(scripts), device, precision)
    if Store.is_run(folder / "run"):
        store = Store.open(folder / "run")
    else:
        store = Store.create(folder / "run", Request(), [planned.cell.id for planned in contest.cells], "test")
    machine, progress = ScriptedMachine(), Silent()
    progress.now_s = machine.now_s
    launcher = ScriptedLauncher(folder, scripts, machine)
    launcher.epochs, launcher.interrupted_at = epochs, interrupted_at
    launcher.answers[messages.ComputeReference] = messages.ReferenceComputed(
        work=schema.Work(flops=10, bytes_moved=10),
        uncounted="",
        fingerprint="f",
        eager_call=eager_call,
        memory=reference_memory,
    )
    machine.available_bytes = lambda: available_bytes(launcher)
    machine.usable_cores = lambda: list(range(cores))
    plan = plan or plan_of()
    measurement = RunContext(
        launchers=launcher,
        store=store,
        progress=progress,
        request=Request(
            time_limit_s=time_limit_s,
            schedule="interleaved" if interleaved else "sequential",
            evaluate=evaluate,
            evaluate_timeout_s=evaluate_timeout_s,
            require=require,
        ),
        sampling=plan,
        time_plan=TimePlan(plan, budget_s, load),
        headers=ScriptedHeaders(launcher, machine, headers_s),  # type: ignore[arg-type]
        undecided=undecided,
        machine=machine,
        artifacts=Artifacts(store.root, artifact_limit),
        load=load,
        build_cache=build_cache,
        is_machine_busy=is_machine_busy,
    )
    pending = [planned for planned in contest.cells if not store.has(planned.cell.id)]
    with contextlib.suppress(KeyboardInterrupt), store.timed(machine.now_s):
        measure_contest(measurement, contest, pending)
        measure_ceilings(measurement, [contest])
    return SimpleNamespace(
        records={record.cell.label: record for record in store.records()},
        store=store,
        notes=store.notes(),
        said=progress.notes,
        left_s=progress.left_s,
        ends_s=progress.ends_s,
        started=launcher.started,
        jobs=launcher.jobs,
        folders=launcher.folders,
        steps=launcher.steps,
        most=launcher.most,
        most_beside_what_is_timed=launcher.most_beside_what_is_timed,
        warmed_up_s=launcher.warmed_up_s,
        ended_s=machine.time_s,
        left_alive=launcher.alive(),
        complete=all(store.has(planned.cell.id) for planned in contest.cells),
    )
