"""Contests side by side: a controller process at each place of a pool, and one schedule that hands them contests."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Self

from bakeoff.judging.environment_changes import within_run
from bakeoff.measuring.controller.cell_record import record_of
from bakeoff.measuring.controller.contests import add_floors
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.session import cells_of, pending, time_plan_of
from bakeoff.planning.places import Place
from bakeoff.planning.plan import Contest
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import FACTOR_IF_NOT, TimePlan
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.schema import Environment, Status
from bakeoff.records.store import Store
from bakeoff.scaling.controller_process import ControllerProcess, ProgressEvent
from bakeoff.scaling.place_process import ControllerStarted, MeasureContest, StartController
from bakeoff.scaling.schedule import MAX_ATTEMPTS, Schedule

MAX_SLOWER = 0.02
"""A place that is slower than the fastest one by more than this is named, and refused with --strict."""

START = "from bakeoff.scaling.place_process import main; main()"


class Controller(ControllerProcess):
    def __init__(self, begin: StartController, folder: Path | None = None) -> None:
        super().__init__(START, begin, begin.place.variables(os.environ), folder)
        self.place = begin.place
        self.left_s = (0.0, 0.0)  # that its contest is expected to take, and takes at most


class Pool:
    """The controllers of a run, one at each place. It is a context manager: leaving it ends all of them."""

    def __init__(self, places: Sequence[Place], request: Request, contests: Sequence[Contest]) -> None:
        self._places, self._request, self._contests = places, request, contests
        self._controllers: dict[str, Controller] = {}
        self._leaving: list[Controller] = []
        self._begun: dict[str, ControllerStarted] = {}
        self._differing: list[str] = []  # places, in words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for controller in self._controllers.values():
            controller.interrupt()
        for controller in (*self._controllers.values(), *self._leaving):
            controller.ending()

    def begin(self) -> Environment:
        """Start all controllers at the same time, and return the environment of the first place. Raises UsageError
        under --strict where one is slower than another, and BakeoffError where one does not start."""
        for place in self._places:
            self._start(place)
        while len(self._begun) < len(self._places):
            for controller in self._ready():
                message = controller.receive()
                if message is None:
                    raise BakeoffError(f"no controller at {controller.place.name}: {self._cause(controller)}")
                if isinstance(message, ControllerStarted):
                    self._begun[controller.place.name] = message
        slower = slower_places({name: begun.rates for name, begun in self._begun.items()})
        if slower and self._request.strict:
            raise UsageError(f"--strict: {'; '.join(slower)}: leave it out of --devices")
        first, *others = (self._begun[place.name].environment for place in self._places)
        self._differing = slower
        for place, other in zip(self._places[1:], others, strict=True):
            changes = within_run(first, other, "$CUDA_VISIBLE_DEVICES")  # by which each place has a GPU of its own
            self._differing += [f"{place.name} differs in {change}" for change in changes]
        return first

    def measure(self, store: Store, progress: Progress, budget_ends_s: float = math.inf) -> None:
        """Bring every cell to its record in the store. Each contest is measured at the place that is free first."""
        where = ", ".join(self._request.devices)
        store.note(f"contests were measured side by side on {where}, each on cores of its own")
        for difference in self._differing:
            store.note(difference)
            progress.note(difference)
        open_contests = [contest for contest in self._contests if pending(contest, store)]
        time_plan = time_plan_of(open_contests, self._request, store, math.inf)
        names = [place.name for place in self._places]
        begun_at = {cell.contest_id: cell.place for cell in store.all_unfinished() if cell.place in names}
        schedule = Schedule(open_contests, expected_seconds(open_contests, time_plan), begun_at)
        cells = cells_of(self._contests)
        progress.planned(cells)
        next_order = functools.partial(self._next_order, schedule, store, budget_ends_s)
        with store.timed() as save_elapsed, contextlib.suppress(KeyboardInterrupt):
            for controller in list(self._controllers.values()):
                self._hand(controller, next_order(controller.place))
            while self._controllers:
                for controller in self._ready():
                    message = controller.receive()
                    if message is None:
                        self._replace(controller, schedule, store, progress)
                    elif isinstance(message, ProgressEvent):
                        with on_cores_of(controller.place):
                            self._show(controller, message, schedule, progress)
                        controller.reply()
                    else:
                        if not isinstance(message, ControllerStarted):
                            schedule.ended(controller.place.name)
                            save_elapsed()
                        self._hand(controller, next_order(controller.place))
            for contest in schedule.waiting:
                end_all(contest, "no place is left where a controller starts", store, progress)
            add_floors(store)
            store.forget_builds({cell.build_id for cell in cells})

    def _start(self, place: Place) -> None:
        begin = StartController(place, self._request, tuple(self._contests), len(self._places))
        self._controllers[place.name] = Controller(begin)

    def _ready(self) -> Iterator[Controller]:
        """Wait until some controllers have reported something or ended, and yield them."""
        connections = {controller.connection: controller for controller in self._controllers.values()}
        for connection in wait(list(connections)):
            yield connections[connection]  # type: ignore[index]  # only Windows waits for handles

    def _hand(self, controller: Controller, order: MeasureContest | None) -> None:
        controller.left_s = (0.0, 0.0)
        controller.reply(order)
        if order is None:
            self._leaving.append(self._controllers.pop(controller.place.name))

    def _cause(self, controller: Controller) -> str:
        """Return how a controller has ended that was not ordered to end."""
        return self._controllers.pop(controller.place.name).ending()

    def _replace(self, controller: Controller, schedule: Schedule, store: Store, progress: Progress) -> None:
        """Start another controller where one has died. Its contest goes on, or ends where that was its last attempt."""
        place = controller.place
        cause = f"the process that directs its contest ended at {place.name} ({self._cause(controller)})"
        # A controller that died before it began a contest would only die again.
        if not schedule.has_begun_at(place.name):
            store.note(f"{cause} before it began: that place measured nothing more")
            schedule.is_gone(place.name)
            return
        given_up = schedule.lost(place.name)
        if given_up is None:
            store.note(f"{cause}: the contest went on from its last epoch in another process")
        else:
            end_all(given_up, f"{cause}, the last of {MAX_ATTEMPTS} attempts", store, progress)
        self._start(place)

    def _next_order(
        self, schedule: Schedule, store: Store, budget_ends_s: float, place: Place
    ) -> MeasureContest | None:
        contest = schedule.next_for(place.name)
        if contest is None:
            return None
        now_s = time.monotonic()
        share = min(1.0, len(self._controllers) * schedule.share_of_waiting(contest))
        ends_s = now_s + (budget_ends_s - now_s) * share if budget_ends_s < math.inf else math.inf
        return MeasureContest(contest, store.root, ends_s)

    def _show(self, controller: Controller, event: ProgressEvent, schedule: Schedule, progress: Progress) -> None:
        if event.method == "time_left":
            controller.left_s = event.arguments  # type: ignore[assignment]
            expected, most = zip(*(controller.left_s for controller in self._controllers.values()), strict=True)
            waits_s = schedule.waiting_s, FACTOR_IF_NOT * schedule.waiting_s
            progress.time_left(
                *(
                    max(*own, (sum(own) + wait_s) / len(own))
                    for own, wait_s in zip((expected, most), waits_s, strict=True)
                )
            )
        else:
            event.show(progress)


def end_all(contest: Contest, reason: str, store: Store, progress: Progress) -> None:
    for planned in pending(contest, store):
        record = record_of(planned, Status.CRASH, Failure(kind="no controller", text=reason))
        store.save(record)
        progress.ended(record)
    store.forget(contest.id, [])


def expected_seconds(contests: Sequence[Contest], time_plan: TimePlan) -> dict[str, float]:
    expected_seconds = {}
    for contest in contests:
        before_s = time_plan.left_s()
        time_plan.ended(contest.id)
        expected_seconds[contest.id] = before_s - time_plan.left_s()
    return expected_seconds


def slower_places(rates: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return, in words, which places do a fixed piece of work slower than the fastest one, and by how much."""
    slower_places = []
    for work in dict.fromkeys(work for rate in rates.values() for work in rate):
        fastest = max(rates, key=lambda name: rates[name][work])
        for name, rate in rates.items():
            slower = 1 - rate[work] / rates[fastest][work]
            if slower > MAX_SLOWER:
                slower_places.append(f"{name} is slower than {fastest} by {slower:.1%} ({work})")
    return slower_places


@contextlib.contextmanager
def on_cores_of(place: Place) -> Iterator[None]:
    """Keep this process to the cores of a place, whose controller waits meanwhile: no other place is disturbed."""
    usual = usable_cores()
    if place.cores:
        os.sched_setaffinity(0, place.cores)
    try:
        yield
    finally:
        if place.cores:
            os.sched_setaffinity(0, usual)
