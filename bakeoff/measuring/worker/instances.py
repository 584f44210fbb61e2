"""Answers requests with a built cell: instances in threads of their own, a queue, and batches of requests."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Self

import torch

from bakeoff.backends.base import AheadOfTime, Compiled
from bakeoff.measuring.worker.around import RequestStages
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.worker_context import Phases, WorkerContext
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError, Unsupported, first_line
from bakeoff.records.load_samples import ServingSettings
from bakeoff.truth import accuracy
from bakeoff.truth.calls import Outputs, thinned
from bakeoff.truth.checking import beside_witnesses
from bakeoff.truth.reference import Reference

START_LIMIT_S = 300.0
"""Instances must have started and answered their first requests after so long."""


class LoadRequest(NamedTuple):
    """One request of the generator: its number there, which inputs it is for, and when it came."""

    number: int
    sample: int
    came_ns: int


Answer = Callable[[Sequence[int]], None]
"""Computes the answers to requests for these inputs, by their numbers."""


class Instances:
    """Threads that answer requests from one queue. Each has an instance of the build."""

    def __init__(
        self,
        answers: Sequence[Callable[[], contextlib.AbstractContextManager[Answer]]],
        batch: int,
        release: Callable[[], None] = lambda: None,
        stages: tuple[str, ...] = (),
    ) -> None:
        """Start a thread for each of `answers`, which opens its instance in that thread. `release` comes last."""
        self._release = release
        self.stages = stages  # around the model, in each request
        self.wait_s = 0.0
        self.shed_after_ns: int | None = None
        self._batch = batch
        # SimpleQueue.get(timeout=...) can wait for ever: CPython computes a negative time left, and takes it for none
        self._queue: queue.Queue[LoadRequest | None] = queue.Queue()
        self._lock = threading.Lock()
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.begin(nothing)
        self._threads = [threading.Thread(target=self._serve, args=(answer,), daemon=True) for answer in answers]
        self._warm: list[Answer] = []
        for thread in self._threads:
            thread.start()
        errors = [self._started.get(timeout=START_LIMIT_S) for _ in self._threads]
        failed = sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError))
        if error := next(iter(failed), None):
            self.close()
            raise error

    @classmethod
    def no_op(cls, settings: ServingSettings) -> Self:
        return cls([lambda: contextlib.nullcontext(nothing)] * settings.instances, settings.batch)

    def begin(self, answered: Callable[[Sequence[int]], None]) -> None:
        """Count anew, and call `answered` for each request that has its answer from here on."""
        self._answered = answered
        self.failed = self.shed = 0
        self.failure = ""

    def put(self, request: LoadRequest) -> None:
        self._queue.put(request)

    def warm_up(self, seconds: float) -> float:
        """Have all instances answer requests for `seconds`, because a process that was stopped has cold caches. Return
        how many they answered in a second."""
        done: queue.SimpleQueue[int] = queue.SimpleQueue()

        def count(numbers: Sequence[int]) -> None:
            for number in numbers:
                done.put(number)

        self.begin(count)
        begun_s = time.perf_counter()
        answered = waiting = 0
        for number in range(2 * self._batch * len(self._threads)):
            self.put(LoadRequest(number, number, time.perf_counter_ns()))
            waiting += 1
        while waiting:
            done.get()
            waiting -= 1
            answered += 1
            if time.perf_counter() < begun_s + seconds:
                self.put(LoadRequest(waiting, waiting, time.perf_counter_ns()))
                waiting += 1
        return answered / (time.perf_counter() - begun_s)

    def close(self) -> None:
        """End all threads that can be ended. One that hangs in a call stays, and goes with the process."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=10.0)
        self._release()

    def _serve(self, open_instance: Callable[[], contextlib.AbstractContextManager[Answer]]) -> None:
        try:
            with open_instance() as answer:
                self._started.put(None)
                while (first := self._queue.get()) is not None:
                    self._answer(answer, self._gathered(first))
        except Exception as error:
            self._started.put(error)

    def _gathered(self, first: LoadRequest) -> list[LoadRequest]:
        """Return the first request with others, which fill the batch or come within the waiting time."""
        requests = [first]
        end_s = time.perf_counter() + self.wait_s if self._batch > 1 else 0.0
        while len(requests) < self._batch:
            try:
                left_s = end_s - time.perf_counter()
                following = self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._queue.put(None)  # for the loop that ends the thread
                break
            requests.append(following)
        return requests

    def _answer(self, answer: Answer, requests: Sequence[LoadRequest]) -> None:
        limit_ns = self.shed_after_ns
        oldest_ns = 0 if limit_ns is None else time.perf_counter_ns() - limit_ns
        wanted = [request for request in requests if request.came_ns >= oldest_ns]
        failed = 0
        try:
            if wanted:
                answer([request.sample for request in wanted])
        except Exception as error:  # it is counted, and the generator must not wait for it
            failed = len(wanted)
            failure = f"{type(error).__name__}: {first_line(error)}"
        with self._lock:
            self.shed += len(requests) - len(wanted)
            self.failed += failed
            if failed and not self.failure:
                self.failure = failure
        self._answered([request.number for request in requests])


def start_instances(
    worker: WorkerContext, sets: Sequence[Inputs], reference: Reference, settings: ServingSettings
) -> Instances:
    """Build the cell for these settings, check every instance while all run, and return them. Raises BakeoffError where
    an answer is wrong, and Unsupported where the backend or the model cannot do this."""
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    stack = contextlib.ExitStack()
    try:
        built, stages = build_for_serving(worker, settings, 1)
        single = stack.enter_context(built)
        batched = None
        if settings.batch > 1:
            batched = stack.enter_context(build_for_serving(worker, settings, settings.batch)[0])
    except BaseException:
        stack.close()
        raise
    finally:
        torch.set_num_threads(before)
    outputs: list[list[Outputs]] = []
    gate = threading.Barrier(settings.instances)

    @contextlib.contextmanager
    def open_instance() -> Iterator[Answer]:
        alone = settings.instances == 1
        clock = worker.clock if alone else Clock(worker.cell.device)
        torch.set_num_threads(settings.threads)
        with clock.on_stream(), worker.gradients(), contextlib.ExitStack() as held:
            try:
                own = single if alone else held.enter_context(single.instance())
                several = batched if alone or batched is None else held.enter_context(batched.instance())
                caller = Caller(own, several, sets, settings.batch, clock, stages)
                gate.wait(START_LIMIT_S)
                outputs.append(caller.outputs())
            except BaseException:
                gate.abort()  # or the others would wait for this one
                raise
            yield caller.answer

    try:
        names = stages.names if stages else ()
        instances = Instances([open_instance] * settings.instances, settings.batch, stack.close, names)
    except threading.BrokenBarrierError:
        raise BakeoffError("an instance did not start") from None
    finally:
        torch.set_num_threads(before)
    # instances of a model that is random or keeps state answer as their earlier calls make them
    precision = worker.cell.precision
    compare = partial(accuracy.check, precision=precision)
    for answers in outputs if worker.traits.begins_alike else ():
        right = beside_witnesses(answers, reference, precision, compare)
        if not right.passed:
            instances.close()
            raise BakeoffError(f"wrong answers when instances answer at the same time: {right.rule}")
    return instances


class Caller:
    """One instance: it puts the inputs of requests where the build reads them, and calls it. With stages, `before` and
    `after` of each request run in this thread, too."""

    def __init__(
        self,
        single: Compiled,
        batched: Compiled | None,
        sets: Sequence[Inputs],
        batch: int,
        clock: Clock,
        stages: RequestStages | None = None,
    ) -> None:
        self._single, self._batched, self._sets, self._clock = single, batched, sets, clock
        self._batch = batch
        self._stages = stages
        self._together = in_batch(sets, batch) if batched else None

    def answer(self, samples: Sequence[int]) -> None:
        made = [self._stages.inputs() if self._stages else None for _ in samples]
        requests = [own or self._sets[sample % len(self._sets)] for own, sample in zip(made, samples, strict=True)]
        if self._batched is None or len(requests) == 1:
            for inputs in requests:
                self._call(self._single, inputs)
                if self._stages:
                    self._stages.finish(self._single.outputs())
            return
        self._call_together(self._batched, requests)
        if self._stages:
            parts = [output.chunk(self._batch) for output in self._batched.outputs()]
            for place in range(len(requests)):
                self._stages.finish([part[place] for part in parts])

    def _call_together(self, batched: Compiled, requests: Sequence[Inputs]) -> None:
        """Make one call of these requests. A batch that is not full is padded, as the shapes of a build are fixed."""
        assert self._together is not None
        for place, inputs in enumerate(requests):
            for whole, part in zip(self._together.tensors(), inputs.tensors(), strict=True):
                rows = part.shape[0]
                whole[place * rows : (place + 1) * rows].copy_(part)
        self._call(batched, self._together)

    def outputs(self) -> list[Outputs]:
        """Return the outputs for every input set: of single calls, or of the last place of each batch."""
        found = []
        for inputs in self._sets:
            if self._batched is None:
                self._call(self._single, inputs)
                outputs = self._single.outputs()
            else:
                self._call_together(self._batched, [inputs] * self._batch)
                outputs = tuple(whole.chunk(self._batch)[-1].clone() for whole in self._batched.outputs())
            found.append(thinned(outputs))
        return found

    def _call(self, compiled: Compiled, inputs: Inputs) -> None:
        compiled.bind(inputs)
        compiled.run()
        self._clock.synchronise()


def build_for_serving(
    worker: WorkerContext, settings: ServingSettings, batch: int
) -> tuple[Compiled, RequestStages | None]:
    """Build the cell for these settings and batches of so many requests, in a folder of its own, or load such a build
    of another process of the cell. Return it with the stages around the model."""
    is_ahead = isinstance(worker.backend, AheadOfTime)
    is_as_measured = batch == 1 and (not is_ahead or settings.threads == worker.threads)
    # code that was generated ahead of time may hold the number of threads
    name = f"batch-{batch}" + (f"-threads-{settings.threads}" if is_ahead else "")
    folder = worker.artifact if is_as_measured else worker.job.shared_folder / "load" / name
    folder.mkdir(parents=True, exist_ok=True)
    worker = replace(worker, phases=UnreportedPhases(worker.connection))
    # a compiler that exports takes no inference tensors
    with contextlib.chdir(worker.started_in), torch.inference_mode(False):
        # The model is loaded anew, because a build may have changed the one that it got.
        module, own_sets = worker.model()
        chosen = own_sets[0] if batch == 1 else in_batch(own_sets, batch)
    with worker.running():
        stages = worker.around.of_requests() if worker.around else None
        context = replace(worker.context(own_sets), workspace=folder, threads=settings.threads, serving=settings)
        done = folder / ".packaged"
        if isinstance(worker.backend, AheadOfTime):
            if not is_as_measured and not done.exists():
                worker.backend.package(module, chosen, context)
                done.touch()
            compiled = worker.backend.load(chosen, context)
        else:
            compiled = worker.backend.build(module, chosen, context)
        compiled.bind(chosen)
        compiled.run()
        worker.clock.synchronise()
        return compiled, stages


class UnreportedPhases(Phases):
    """Reports no phase: those of a build for load are not the cell's."""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        yield

    def announce(self, name: str) -> None:
        pass


def in_batch(sets: Sequence[Inputs], batch: int) -> Inputs:
    """Return the inputs of one call that answers `batch` requests, one behind the other in the first dimension. Raises
    Unsupported where the inputs have no common first dimension."""
    rows = {tensor.shape[0] if tensor.dim() else 0 for inputs in sets for tensor in inputs.tensors()}
    if len(rows) != 1 or 0 in rows:
        raise Unsupported("requests cannot share a call: the inputs have no common first dimension")
    return sets[0].map(lambda tensor: torch.cat([tensor] * batch))


def nothing(*_: object) -> None:
    """Do nothing, as the generator's library of requests, its last call and an empty answer need it."""
