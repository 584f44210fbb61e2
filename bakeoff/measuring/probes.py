"""Short questions to this machine, each answered by a worker of its own."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import TypeVar

from bakeoff.measuring import malloc
from bakeoff.measuring.controller.launcher import Launcher, Launchers
from bakeoff.measuring.controller.server_start import discard_early
from bakeoff.measuring.controller.worker_process import DeadlinePassed, WorkerEnded
from bakeoff.measuring.messages import Event, Failed, Job, ProbeTorch, TorchFacts, Tried, TryBackend, TryImport
from bakeoff.planning.request import OF_WORKERS, Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.text import last_words

PROBE_LIMIT_S = 300.0
Answer = TypeVar("Answer", bound=Event)


@contextlib.contextmanager
def launchers_for(request: Request, epochs: int = 1) -> Iterator[Launchers]:
    """Yield the launchers of a run, prepared for so many epochs. Raises UsageError for an environment without an
    interpreter, and for an allocator that is not here."""
    for name, python in request.env.items():
        if shutil.which(python) is None:
            raise UsageError(f"--env {name}={python}: there is no such interpreter")
    with malloc.in_force(request.malloc), Launchers(request.start_method, pythons=request.env) as launchers:
        launchers.prepare(epochs)
        discard_early()
        yield launchers


def facts_of_environments(launchers: Launchers, request: Request) -> dict[str, TorchFacts]:
    facts = {}
    for name, python in request.env.items():
        try:
            facts[name] = ask(launchers.of_environment(name).first, ProbeTorch(lists_versions=True), TorchFacts)
        except BakeoffError as error:
            raise UsageError(f"--env {name}={python} runs no worker; it needs {OF_WORKERS}: {error}") from None
    return facts


def ask(
    launcher: Launcher,
    job: Job,
    answer: type[Answer],
    asking: str = "",
    limit_s: float = PROBE_LIMIT_S,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Answer:
    """Start a worker for a job, and return its answer. Raises BakeoffError where there is none, with the reason and
    with `asking`, which says what was asked."""
    name = type(job).__name__
    failed = f"{asking or f'asking this machine ({name})'} failed: "
    log = launcher.temporary / f"{name}.log"
    try:
        event = launcher.ask(job, log, limit_s, on_phase)
    except (WorkerEnded, DeadlinePassed) as error:
        said = last_words(log.read_text(errors="replace")) if log.exists() else ""
        raise BakeoffError(f"{failed}{error} {said}".strip()) from None
    if isinstance(event, Failed):
        raise BakeoffError(f"{failed}{event.failure.sentence}")
    assert isinstance(event, answer)
    return event


def why_not(launcher: Launcher, job: TryBackend | TryImport) -> str:
    """Return why what is tried in a worker does not work, or an empty string. The worker may die of it."""
    try:
        return ask(launcher, job, Tried).reason
    except BakeoffError as error:
        return str(error)
