"""Processes of the next epoch that load beside those of the present one, where a GPU's machine has cores to spare.

Loading needs no quiet, and two processes of a cell load sooner side by side than one after the other. What is timed
comes in order: a process that has loaded is stopped until its epoch comes.
"""

from __future__ import annotations

from bakeoff.measuring.controller.live_process import LiveProcess
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.messages import Build, Built, Failed, PhaseBegun, PhaseEnded, ReadyToBuild
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.schema import Phase

LIMIT_S = 60.0
"""One that takes longer is given up, and its cell starts in its own epoch as usual."""


def loads_next(epoch: int, plan: SamplingPlan) -> bool:
    """Return True if the epoch after this one is to load beside it. Both follow the first one, and come in pairs."""
    following = epoch + 1
    if plan.builds > 1 or following >= plan.most_processes:
        return False
    if following < plan.processes:
        return epoch % 2 == 1
    return epoch >= plan.processes and (epoch - plan.processes) % 2 == 0


class AheadProcess:
    """A process that starts from what its cell has built. It loads, calls the model and checks it, and stops there."""

    def __init__(self, live: LiveProcess, begun_s: float) -> None:
        self.live = live
        self.is_built = False
        self.has_failed = False
        self._begun_s = begun_s

    @property
    def is_loading(self) -> bool:
        return not (self.is_built or self.has_failed)

    def poll(self, now_s: float) -> None:
        """Take what it has said, and do not wait. A failure is told by the process that its epoch starts instead."""
        live = self.live
        try:
            event = live.worker.receive(now_s)
        except DeadlinePassed:
            if now_s - self._begun_s >= LIMIT_S:
                self._give_up()
            return
        except WorkerEnded:
            self._give_up()
            return
        if isinstance(event, PhaseBegun):
            live.phase = event.name
        elif isinstance(event, PhaseEnded):
            live.phases.append(Phase(name=event.name, seconds=event.seconds))
        elif isinstance(event, ReadyToBuild):
            live.worker.send(Build())
        elif isinstance(event, Built):
            live.built_s += event.seconds
            live.waited_s = now_s - self._begun_s
            live.worker.pause()
            self.is_built = True
        elif isinstance(event, Failed):
            self._give_up()

    def end(self) -> None:
        if not self.live.worker.is_over:
            self.live.worker.end()

    def _give_up(self) -> None:
        self.has_failed = True
        self.end()
