"""Processes of later epochs that load beside those of the present one, where a GPU's machine has cores to spare.

Loading needs no quiet, and several processes of a cell load sooner side by side than one after the other. What is timed
comes in order: a process that has loaded is stopped until its epoch comes. One that is still loading is held while
anything is timed, and goes on while processes are checked, end, or warm up.
"""

from bakeoff.measuring.controller.live_process import LiveProcess
from bakeoff.measuring.controller.worker_process import DeadlinePassed, Worker, WorkerEnded
from bakeoff.measuring.messages import Build, Built, Failed, PhaseBegun, PhaseEnded, ReadyToBuild
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.schema import Phase

LIMIT_S = 60.0
"""One that takes so much longer than the one before it is given up, and its cell starts in its own epoch as usual."""

MOST_AHEAD = 2
"""So many processes of a cell are loaded for later epochs at most, since each holds memory."""

QUICK_START_S = 6.0
"""Beside first builds, processes are loaded ahead only of cells that take no longer to start. Others may be beaten."""


def epochs_ahead(epoch: int, expected: int, plan: SamplingPlan) -> range:
    """Return the epochs whose processes may load beside this one, if `expected` epochs are to come in all."""
    if plan.builds > 1:
        return range(0)
    return range(epoch + 1, min(epoch + 1 + MOST_AHEAD, expected, plan.most_processes))


class AheadProcess:
    """A process that starts from what its cell has built. It loads, calls the model and checks it, and stops there.

    One that `builds_alone` stops before it builds.
    """

    def __init__(self, live: LiveProcess, now_s: float, limit_s: float, builds_alone: bool) -> None:
        self.live = live
        self._limit_s = limit_s
        self.is_built = False
        self.may_be_held = False  # it has told something, and so leads a process group of its own
        self._is_loaded = False
        self._has_failed = False
        self._goes_on_since_s: float | None = now_s
        self._builds_alone = builds_alone
        if not builds_alone:
            live.worker.send(Build())  # which it takes once it has loaded

    @property
    def is_ready(self) -> bool:
        """Return True once it has come as far as it may before its epoch."""
        return self.is_built or (self._builds_alone and self._is_loaded)

    @property
    def is_loading(self) -> bool:
        """Return True until it is ready or has failed, also while it is held."""
        return not (self.is_ready or self._has_failed)

    @property
    def goes_on(self) -> bool:
        return self.is_loading and self._goes_on_since_s is not None

    def hold(self, now_s: float) -> None:
        """Stop it wherever it is, because something is timed now."""
        if self.goes_on:
            self._stop(now_s)

    def go_on(self, now_s: float) -> None:
        """Let it load what is left, after it was held."""
        if self.is_loading and not self.goes_on:
            self._goes_on_since_s = now_s
            self.live.worker.resume()

    def poll(self, now_s: float) -> None:
        """Take what it has said, and do not wait. A failure is told by the process that its epoch starts instead."""
        live = self.live
        try:
            event = live.worker.receive(now_s)
        except DeadlinePassed:
            if self._waited_s(now_s) >= self._limit_s:
                self._give_up()
            return
        except WorkerEnded:
            self._give_up()
            return
        self.may_be_held = True
        if isinstance(event, PhaseBegun):
            live.phase = event.name
        elif isinstance(event, PhaseEnded):
            live.phases.append(Phase(name=event.name, seconds=event.seconds))
        elif isinstance(event, ReadyToBuild):
            self._is_loaded = True
        elif isinstance(event, Built):
            live.built_s += event.seconds
            self.is_built = True
        elif isinstance(event, Failed):
            self._give_up()
        if self.is_ready:
            self._stop(now_s)

    def end(self) -> None:
        if not self.live.worker.is_over:
            self.live.worker.end()

    def kill(self) -> list[Worker]:
        """Kill it, and do not wait. Return its worker, unless that is gone."""
        if self.live.worker.is_over:
            return []
        self.live.worker.kill()
        return [self.live.worker]

    def _waited_s(self, now_s: float) -> float:
        """Return for how long it has gone on so far, without the time for which it was held."""
        since_s = now_s if self._goes_on_since_s is None else self._goes_on_since_s
        return self.live.waited_s + now_s - since_s

    def _stop(self, now_s: float) -> None:
        self.live.waited_s, self._goes_on_since_s = self._waited_s(now_s), None
        self.live.worker.pause()

    def _give_up(self) -> None:
        self._has_failed = True
        self.end()
