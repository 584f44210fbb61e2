"""The stages of one kind of call, from eager calls to the version that it settles on. Imports torch.

A path goes from `Watching` over `Compiling`, `Ready` and `Trial` to `Settled`, and from each of them straight to
`Settled` where something speaks against compiled code. A stage answers the calls that are looked at, and its `next`
says which stage comes after such a call. Each holds only what it needs.
"""

from __future__ import annotations

import functools
import hashlib
import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path as Folder
from typing import Any, ClassVar

import torch

from bakeoff_hotpath import deciding, packages, settings, watching
from bakeoff_hotpath.compiling import Call, Compiler, Job
from bakeoff_hotpath.deciding import Expectation, TrialResult
from bakeoff_hotpath.detector import HotPathDetector
from bakeoff_hotpath.flattening import Flat, Weights, rebuilder, tensors_in
from bakeoff_hotpath.handover import CannotHandOver
from bakeoff_hotpath.knowledge import LOG, NOTHING_MEASURED, Knowledge, Learned, Measured
from bakeoff_hotpath.meters import CallTimer, DeviceMeter, Meter, Sample
from bakeoff_hotpath.watching import Recorder, WatchBudget

MIN_AGREEING_RECORDINGS = 2
"""A path is compiled after this many recorded calls that did the same."""

POLL_EVERY_S = 0.01
START_COMPILING_S = 0.01
"""The longest time that handing a call to another process takes (1 to 10 ms for `attention_block` on two cores)."""

TRIAL_WARM_UP_CALLS = 3

WEIGHTS_CHANGED = (
    "its weights are of another shape, type or device than in its first call, or its submodules are others, or an "
    "attribute has another value"
)
SETTINGS_CHANGED = "torch's settings have changed since it was compiled"
CALLS_DIFFER = "its operations, or their constants, differ from call to call"


@dataclass(frozen=True)
class Policy:
    """Everything that the switches of one model share."""

    detector: HotPathDetector
    compiler: Compiler
    knowledge: Knowledge
    watch_share: float
    has_spare_cores: Callable[[], bool]


class FollowedModule:
    """A module with its own forward. What only some calls need is made at first use: a module may be called once."""

    def __init__(self, module: torch.nn.Module, name: str, policy: Policy) -> None:
        self.module = module
        self.name = name
        self.policy = policy
        self.forward: Callable[..., Any] = module.forward

    @functools.cached_property
    def weights(self) -> Weights:
        return Weights(self.module)

    @functools.cached_property
    def chance(self) -> random.Random:
        return random.Random(0)

    @functools.cached_property
    def _device_type(self) -> str:
        return next((tensor.device.type for tensor in self.module.parameters()), "cpu")

    def is_set_apart(self) -> bool:
        """Return True if autocast, capture into a CUDA graph or saved-tensor hooks are active.

        Compiled code does not take them into account. A captured call happens later and cannot be timed. With hooks for
        saved tensors, checkpointing runs the forward again, and it must save the same both times.
        """
        return (
            torch.is_autocast_enabled(self._device_type)
            or torch.is_autocast_enabled("cuda")
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        )


class Path:
    """One kind of call of one module, with the stage that it has reached."""

    def __init__(
        self, followed: FollowedModule, key: Hashable, is_training: bool, meter: Meter, budget: WatchBudget
    ) -> None:
        self.followed = followed
        self.key = key
        self.is_training = is_training
        self.modes = followed.weights.modes
        self.meter = meter
        self.budget = budget
        self.timer = CallTimer(meter, is_training)
        self.calls = budget.plain
        self.calls_per_look = 1
        """The number of calls since the last look, that of the next look included."""
        self.calls_to_skip = 0
        self.stage: Stage = Watching(Sample(meter))

    def is_as_met(self) -> bool:
        """Return True if a call fits the path in what its kind does not show. Any other call gets eager, this once."""
        return not self.followed.is_set_apart() and self.followed.weights.modes == self.modes

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        """Return the weights and a call's tensors, or None if the weights are of another kind than before."""
        weights = self.followed.weights.current()
        return None if weights is None else [*weights, *tensors_in(args, kwargs)]

    def identity(self, fingerprint: str) -> str:
        """Return a name for the path and the machine. Paths with the same name can share a compiled version."""
        devices = {tensor.device for tensor in self.followed.weights.current() or [] if tensor.is_cuda}
        if isinstance(self.meter, DeviceMeter):  # the device of the inputs, for a module without weights
            devices.add(self.meter.device)
        about = (
            fingerprint,
            self.key,
            self.is_training,
            self.modes,
            torch.__version__,
            settings.read(),
            settings.processor(),
            sorted({torch.cuda.get_device_name(device) for device in devices}),
            self.followed.weights.kinds,
        )
        return hashlib.sha256(repr(about).encode()).hexdigest()[:24]

    def learn(self, identity: str, verdict: str, reason: str, measured: Measured) -> None:
        """Keep the verdict for later runs."""
        knowledge = self.followed.policy.knowledge
        known = knowledge.of(identity)
        if measured.burden is None and known is not None:
            measured = replace(measured, burden=known.measured.burden)
        try:
            knowledge.learn(identity, Learned(verdict, reason, measured))
        except OSError as error:
            LOG.warning("what was learned of %s is lost with this run: %s", self.followed.name, error)


@dataclass(frozen=True)
class Answered:
    """A call that was looked at, with what it returned. A recorder is there if the call was recorded."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    recorder: Recorder | None = None


@dataclass(frozen=True)
class Evidence:
    """The result of all recorded calls of a path, which did the same."""

    signature: str  # of the operations, as the detector counts them
    fingerprint: str  # of the operations with all their constants
    identity: str
    recordings: int


@dataclass(frozen=True)
class Version:
    """A compiled version that is loaded."""

    function: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    rebuild: Callable[[list[torch.Tensor]], Any]

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        return self.rebuild(self.function(tensors))


@dataclass(frozen=True)
class Settled:
    """The last stage: calls run the compiled version if there is one, and eager if not."""

    name: ClassVar[str] = "settled"
    reason: str
    measured: Measured = NOTHING_MEASURED
    signature: str | None = None
    version: Version | None = None
    switched_at_call: int | None = None
    has_failed: bool = False
    """The path could not be compiled. It is False where eager is faster."""

    @property
    def runs(self) -> str:
        return "eager" if self.version is None else "compiled"

    def without_version(self, reason: str) -> Settled:
        """Return this stage back on eager, since the version no longer fits."""
        return replace(self, reason=reason, version=None, has_failed=True)


class Undecided(ABC):
    """Any stage before the last."""

    name: ClassVar[str]
    runs: ClassVar[str] = "eager"
    reason: str
    evidence: Evidence | None = None

    @abstractmethod
    def answer(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answered:
        """Answer a call that is looked at."""

    @abstractmethod
    def next(self, path: Path, call: Answered) -> Stage:
        """Return the stage after this call, which may be this one."""

    @abstractmethod
    def measured(self) -> Measured:
        """Return what this run knows by now."""

    def cancel(self) -> None:  # noqa: B027 - most stages have nothing under way
        """Stop what is under way."""

    def settled(self, reason: str, *, has_failed: bool = False) -> Settled:
        """Return the last stage, with eager."""
        signature = self.evidence.signature if self.evidence else None
        return Settled(reason, self.measured(), signature, has_failed=has_failed)

    def failed(self, reason: str) -> Settled:
        return self.settled(reason, has_failed=True)


Stage = Undecided | Settled


class EagerStage(Undecided):
    """Calls are eager's. They are timed, and recorded where the budget allows it."""

    def __init__(self, eager: Sample) -> None:
        self.eager = eager

    def answer(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answered:
        begin = path.timer.begin(path.calls_per_look)
        is_recorded = path.budget.wants_to_watch()
        # the budget counts the host's time alone, since recording is the host's work
        begun = time.perf_counter()
        if is_recorded:
            outputs, recorder = watching.record(
                path.followed.policy.detector, path.followed.module, path.followed.forward, args, kwargs
            )
            path.budget.add_watched(time.perf_counter() - begun)
            return Answered(args, kwargs, outputs, recorder)
        outputs = path.followed.forward(*args, **kwargs)
        path.budget.add_plain(time.perf_counter() - begun, path.calls_per_look)
        path.timer.end(begin, self.eager)
        self.eager.collect()
        return Answered(args, kwargs, outputs)

    def next(self, path: Path, call: Answered) -> Stage:
        if call.recorder is not None:
            objection = self._objection(path, call.recorder)
            if objection:
                return self.failed(objection)
            self._note(path, call.recorder)
        return self._go_on(path, call)

    def measured(self) -> Measured:
        return Measured(eager_s=self.eager.median_s)

    def _objection(self, path: Path, recorder: Recorder) -> str:
        """Return why compiled code could not do what the recorded call did, or an empty text."""
        if recorder.obstacle:
            return recorder.obstacle
        if path.followed.weights.current() is None:
            return WEIGHTS_CHANGED
        if self.evidence is not None and self.evidence.fingerprint != recorder.fingerprint:
            return CALLS_DIFFER
        return ""

    def _note(self, path: Path, recorder: Recorder) -> None:
        """Keep what the recorded call has shown."""

    @abstractmethod
    def _go_on(self, path: Path, call: Answered) -> Stage: ...

    def _is_worth(self, path: Path, speedup: float | None, delay_s: float) -> bool:
        return Expectation(path.calls, self.eager.mean_s or 0.0, speedup).is_worth(delay_s)


class Watching(EagerStage):
    """Calls are counted until the path is hot, and compiling it is worth its cost."""

    name = "watching"

    def __init__(self, eager: Sample) -> None:
        super().__init__(eager)
        self.reason = "not hot yet"
        self._counted_calls = 0

    def _note(self, path: Path, recorder: Recorder) -> None:
        signature = path.followed.policy.detector.signature
        assert signature is not None
        self._counted_calls += 1
        recordings = 1 + (self.evidence.recordings if self.evidence else 0)
        identity = path.identity(recorder.fingerprint)
        self.evidence = Evidence(signature, recorder.fingerprint, identity, recordings)

    def _go_on(self, path: Path, call: Answered) -> Stage:
        if self.evidence is None:
            return self
        detector = path.followed.policy.detector
        # calls of this kind between two recorded ones are taken to have gone the same way
        detector.count_again(self.evidence.signature, path.calls - self._counted_calls)
        self._counted_calls = path.calls
        return self._when_hot(path, call, self.evidence) if detector.is_hot(self.evidence.signature) else self

    def _when_hot(self, path: Path, call: Answered, evidence: Evidence) -> Stage:
        policy = path.followed.policy
        known = policy.knowledge.of(evidence.identity)
        folder = policy.knowledge.artefact(evidence.identity)
        if known and known.verdict in ("eager", "failed"):
            return self.settled(f"an earlier run found: {known.reason}", has_failed=known.verdict == "failed")
        if folder.is_dir():
            return Ready(self.eager, evidence, known.measured if known else NOTHING_MEASURED, is_own=False)
        self.reason = "hot, and not yet worth compiling"
        compile_s = known.measured.compile_s if known else None
        delay_s = deciding.delay_of_compiling_s(
            policy.knowledge.usual_compile_s if compile_s is None else compile_s,
            START_COMPILING_S,
            policy.has_spare_cores(),
            policy.knowledge.usual_burden,
        )
        is_worth = self._is_worth(path, known.measured.speedup if known else None, delay_s)
        if not is_worth or evidence.recordings < MIN_AGREEING_RECORDINGS or not policy.compiler.is_free():
            return self
        if folder.is_dir():  # an equal part was compiled, and that has just ended
            return self
        try:
            job = policy.compiler.start(Call(path.followed.module, call.args, call.kwargs, path.is_training), folder)
        except (CannotHandOver, OSError) as error:
            return self.failed(str(error))
        return Compiling(Sample(path.meter), evidence, job, before_s=self.eager.mean_s)


class Compiling(EagerStage):
    """Another process compiles. Calls are timed, to see by how much it delays them."""

    name = "compiling"
    reason = "being compiled"

    def __init__(self, eager: Sample, evidence: Evidence, job: Job, before_s: float | None) -> None:
        super().__init__(eager)
        self.evidence: Evidence = evidence
        self._job = job
        self._before_s = before_s
        self._polled_at = time.perf_counter()

    def cancel(self) -> None:
        self._job.cancel()

    def _go_on(self, path: Path, call: Answered) -> Stage:
        if time.perf_counter() - self._polled_at < POLL_EVERY_S:
            return self
        self._polled_at = time.perf_counter()
        outcome = self._job.poll()
        if outcome is None:
            return self
        burden = None
        if self._before_s and self.eager.mean_s:
            burden = deciding.burden_of(self._before_s, self.eager.mean_s)
        measured = replace(outcome.measured, burden=burden)
        if not outcome.reason:
            ready = Ready(self.eager, self.evidence, measured, is_own=True)
            path.learn(self.evidence.identity, "ready", ready.reason, measured)
            return ready
        reason = f"not compiled: {outcome.reason}"
        if outcome.is_for_good:
            path.learn(self.evidence.identity, "failed", reason, measured)
        return replace(self.failed(reason), measured=replace(measured, eager_s=self.eager.median_s))


class Ready(EagerStage):
    """The compiled version waits on the disk until loading it is worth its cost."""

    name = "ready"

    def __init__(self, eager: Sample, evidence: Evidence, measured: Measured, *, is_own: bool) -> None:
        super().__init__(eager)
        self.evidence: Evidence = evidence
        self.reason = "compiled, and not yet worth taking up" if is_own else "compiled in an earlier run"
        self._measured = measured
        self._is_own = is_own
        """False for a version of an earlier run, or of another module."""

    def measured(self) -> Measured:
        return replace(self._measured, load_s=None, eager_s=self.eager.median_s)

    def _go_on(self, path: Path, call: Answered) -> Stage:
        identity, speedup = self.evidence.identity, self._measured.speedup
        if speedup is not None and speedup < deciding.CLEARLY_SLOWER:
            reason = f"compiled is {speedup:.2f}x as fast, as the compiling process measured"
            path.learn(identity, "eager", reason, self._measured)
            return self.settled(reason)
        if not self._is_worth(path, speedup, self._measured.load_s or 0.0):
            return self
        if path.identity(self.evidence.fingerprint) != identity:
            return self.failed(SETTINGS_CHANGED)
        begun = time.perf_counter()
        tensors = path.tensors(call.args, call.kwargs)
        if tensors is None:
            return self.failed(WEIGHTS_CHANGED)
        folder = path.followed.policy.knowledge.artefact(identity)
        try:
            version, wrong = self._load(path, call, tensors, folder)
            # a version that was taken over may be right for another path of the same name
            is_for_good = self._is_own
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            # another run may succeed, for memory may be full in this run alone
            is_for_good, wrong = False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if not isinstance(error, RuntimeError):  # a part is gone: the next run compiles it anew
                shutil.rmtree(folder, ignore_errors=True)
        measured = replace(self._measured, load_s=time.perf_counter() - begun)
        if not wrong:
            return Trial(path, self.evidence, measured, version, watched_eager_s=self.eager.median_s)
        reason = f"the compiled version was not taken up: {wrong}"
        if is_for_good:
            path.learn(identity, "failed", reason, measured)
        return self.failed(reason)

    def _load(self, path: Path, call: Answered, tensors: list[torch.Tensor], folder: Folder) -> tuple[Version, str]:
        """Return the loaded version, and how its results differ from eager's."""
        function = path.followed.policy.compiler.load(folder, tensors)
        if path.is_training:
            # a graph of its own, from tensors without the program's hooks, leaves the program's graph alone
            tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
            flat = Flat(path.followed.module, path.followed.weights.names, call.args, call.kwargs)
            expected = packages.results_of(flat, tensors, is_training=True)
        else:
            expected = tensors_in((call.outputs,), {})
        results = packages.results_of(lambda *given: function(list(given)), tensors, path.is_training)
        return Version(function, rebuilder(call.outputs)), packages.difference(results, expected)


class Trial(Undecided):
    """The compiled version warms up. Then pairs of calls compare it with eager.

    The first of a pair is drawn. Where two calls make a step, one version would otherwise have all that lies between
    steps: the backward pass and the optimiser.
    """

    name = "trial"
    runs = "eager and compiled"
    reason = "being tried"

    def __init__(
        self, path: Path, evidence: Evidence, measured: Measured, version: Version, watched_eager_s: float | None
    ) -> None:
        self.evidence: Evidence = evidence
        self._measured = measured
        self._version = version
        self._watched_eager_s = watched_eager_s
        self._eager, self._compiled = Sample(path.meter), Sample(path.meter)
        self._warm_up_calls_left = TRIAL_WARM_UP_CALLS
        self._second_is_compiled: bool | None = None
        """The version of the next call, where that completes a pair."""

    def measured(self) -> Measured:
        return replace(
            self._measured,
            eager_s=self._eager.median_s or self._watched_eager_s,
            compiled_s=self._compiled.median_s or self._measured.compiled_s,
        )

    def answer(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answered:
        is_compiled, sample = self._draw(path.followed.chance)
        begin = path.timer.begin()
        # with all that a settled path does before a compiled call
        tensors = path.tensors(args, kwargs) if is_compiled and path.is_as_met() else None
        outputs = path.followed.forward(*args, **kwargs) if tensors is None else self._version(tensors)
        if sample is not None:
            path.timer.end(begin, sample)
        self._eager.collect()
        self._compiled.collect()
        return Answered(args, kwargs, outputs)

    def next(self, path: Path, call: Answered) -> Stage:
        if path.followed.weights.current() is None:
            return self.failed(WEIGHTS_CHANGED)
        if self._warm_up_calls_left or self._second_is_compiled is not None:
            return self
        result = deciding.trial_result(self._eager.seconds, self._compiled.seconds)
        return self._judged(path, result) if result is not None and result.is_over else self

    def _draw(self, chance: random.Random) -> tuple[bool, Sample | None]:
        """Return whether the next call is the compiled version's, and where its time belongs."""
        if self._warm_up_calls_left:
            self._warm_up_calls_left -= 1
            return True, None
        if self._second_is_compiled is None:
            is_compiled = chance.random() < 0.5
            self._second_is_compiled = not is_compiled
        else:
            is_compiled, self._second_is_compiled = self._second_is_compiled, None
        return is_compiled, self._compiled if is_compiled else self._eager

    def _judged(self, path: Path, result: TrialResult) -> Settled:
        measured = self.measured()
        assert measured.eager_s is not None and measured.compiled_s is not None
        speed = (
            f"{result.speedup:.2f}x [{result.low:.2f}, {result.high:.2f}] as fast "
            f"({1e3 * measured.compiled_s:.3g} ms compiled, {1e3 * measured.eager_s:.3g} ms eager)"
        )
        if result.is_won:
            reason, verdict = f"tried, and {speed}", "compiled"
            settled = replace(self.settled(reason), version=self._version, switched_at_call=path.calls)
        else:
            doubt = "" if result.is_lost else f", which shows no lead of {deciding.MIN_SPEEDUP}"
            reason, verdict = f"tried, and compiled is {speed}{doubt}", "eager"
            # the next run tries again what may well be faster; it looks at these medians before it does
            speedup = deciding.speedup_of(measured.eager_s, measured.compiled_s)
            if not result.is_lost and speedup >= deciding.MIN_SPEEDUP:
                verdict = "ready"
            settled = self.settled(reason)
        path.learn(self.evidence.identity, verdict, reason, measured)
        return settled
