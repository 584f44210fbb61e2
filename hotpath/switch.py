"""In the place of a module's forward: eager at first, watched for a bounded share of the time, then whatever is faster.

Imports torch. Everything is decided between two calls, in the thread that calls: there is no thread of ours.
"""

from __future__ import annotations

import functools
import hashlib
import random
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from hotpath import deciding, settings, watching
from hotpath.child import answer, difference
from hotpath.compiling import Call, Compiler, Job, Outcome
from hotpath.deciding import Expectation, Trial
from hotpath.detector import HotPathDetector
from hotpath.flattening import Flat, Weights, key_of, rebuilder, shapeless, tensors_in
from hotpath.handover import CannotHandOver
from hotpath.knowledge import LOG, Knowledge, Learned
from hotpath.meters import DeviceMeter, HostMeter, Meter, Sample, meter_for
from hotpath.watching import Recorder, WatchBudget

MOST_PATHS = 16
"""Kinds of calls of one module that are followed; whoever has more has too many to compile each."""

ONLY_COUNTED = 10
"""So many calls of a kind at most are counted and timed, and no more: fewer where the threshold is lower."""

CLOSE_CALLS = 32
"""So many calls are looked at one by one; afterwards one every `LOOK_EVERY_S` of plain calls, within `STRIDES`."""

LOOK_EVERY_S = 0.02
STRIDES = 16, 256
AGREEING = 2
"""So many watched iterations must have taken the same path before it is compiled."""

POLL_S = 0.01
START_S = 0.01
"""What handing a call over to another process takes at most (1 to 10 ms, of `attention_block` on two cores)."""

CHANGED = (
    "its weights are of another shape, type or device than in its first call, or its submodules are others, or an "
    "attribute has another value"
)
UNFIT = "it has a weight that is sparse, nested or of a class of its own, or a part in TorchScript"
PATCHED = "its forward was replaced by another one, which the compiling process would not find"
EARLIER = "an earlier run found: "
TRIAL_WARM_UP = 3
"""Calls of the compiled version before any is timed."""


class Stage(StrEnum):
    WATCHING = "watching"
    COMPILING = "compiling"
    READY = "ready"
    TRIAL = "trial"
    SETTLED = "settled"


@dataclass
class Path:
    """One kind of call of one module, on its way to the version that it settles on."""

    key: Hashable
    is_training: bool
    meter: Meter
    budget: WatchBudget
    modes: list[bool] = field(default_factory=list)
    """Of the module and its submodules: which of them were in training mode when the path began."""
    stage: Stage = Stage.WATCHING
    calls: int = 0
    skip: int = 0
    """So many calls are made before the next is looked at."""
    skipped: int = 0
    counted: int = 0
    """How many of the calls the detector knows of."""
    signature: str | None = None
    """Of its operations, as the detector counts them."""
    fingerprint: str = ""
    """Of its operations with all their constants."""
    agreeing: int = 0
    """So many watched calls had it."""
    identity: str = ""
    job: Job | None = None
    polled_at: float = 0.0
    outcome: Outcome | None = None
    was_compiled_here: bool = False
    """And not taken over from an earlier run, or from another module."""
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]] | None = None
    rebuild: Callable[[list[torch.Tensor]], Any] | None = None
    turn: int = 0
    compiled_is_first: bool = False
    """In the pair of the trial that is under way."""
    previous: tuple[Any, Sample | None] | None = None
    """In training: when the step before began, and whose it was."""
    load_s: float | None = None
    before_s: float | None = None
    """What an eager call took before the compilation began."""
    burden: float | None = None
    switched_at_call: int | None = None
    reason: str = "not hot yet"
    has_failed: bool = False
    """It stays eager because it could not be compiled, and not because eager is faster."""
    eager: Sample = field(init=False)
    eager_in_trial: Sample = field(init=False)
    compiled: Sample = field(init=False)

    def __post_init__(self) -> None:
        self.eager, self.eager_in_trial, self.compiled = (Sample(self.meter) for _ in range(3))

    @property
    def runs_compiled(self) -> bool:
        return self.stage is Stage.SETTLED and self.function is not None

    @property
    def is_on_trial(self) -> bool:
        return self.stage is Stage.TRIAL

    @property
    def eager_s(self) -> float | None:
        """Of one call, as the trial measured it beside the compiled one; before that, as watched."""
        return self.eager_in_trial.median_s or self.eager.median_s


@dataclass(frozen=True)
class Policy:
    """What the switches of one model have in common."""

    detector: HotPathDetector
    compiler: Compiler
    knowledge: Knowledge
    watch_share: float
    has_spare_cores: Callable[[], bool]


class Switch:
    """Answers the calls of one module. Any number of threads may call it; one at a time looks and decides."""

    def __init__(self, module: torch.nn.Module, name: str, policy: Policy) -> None:
        self.name = name
        self.paths: dict[Hashable, Path] = {}
        self.compilations = 0
        """Started, or taken over from an earlier run."""
        self._module = module
        self._policy = policy
        self._forward: Callable[..., Any] = module.forward
        self.__wrapped__ = self._forward  # where `inspect.signature` looks: trainers ask a model which inputs it takes
        self._met: dict[Hashable, WatchBudget] = {}
        """Of each kind of call what its first ones took."""
        self._alike: dict[Hashable, int] = defaultdict(int)
        """Of kinds that the detector counts together, how many calls were answered before any of them had a path."""
        self._is_closed = False
        """No further path is begun."""
        self._unseen = 1
        """So many calls go to eager without a look at what they are given. The first one may be the only one."""
        self._lock = threading.Lock()
        self._looking: int | None = None
        """The thread that has the lock while it answers a call."""
        if _has_another_forward(module):
            path = Path(None, False, HostMeter(), WatchBudget(policy.watch_share))
            self.paths[None], self._is_closed = path, True
            self._fail(path, PATCHED)
            return
        vars(module)["forward"] = self  # as `_leave` deletes it; a module's own assignment asks first what it is

    # not in __init__, since a module may be called only once, and then needs none of these

    @functools.cached_property
    def _chance(self) -> random.Random:
        return random.Random(0)

    @functools.cached_property
    def _device_type(self) -> str:
        return next((tensor.device.type for tensor in self._module.parameters()), "cpu")

    @functools.cached_property
    def _weights(self) -> Weights:
        return Weights(self._module)

    def __reduce__(self) -> Any:
        """A copy of the model, or one in another process, has its own forward."""
        return _own_forward, (self._module,)

    def remove(self) -> None:
        """Call off what is under way, and give the module its own forward back."""
        self.settle("it was called off")
        self._leave()

    def settle(self, reason: str = "no more time was given to it") -> None:
        """Have every path stay with what it runs now."""
        if self._looking == threading.get_ident():  # from within the module's forward: this thread has the lock
            self._settle_all(reason)
            return
        with self._lock:
            self._settle_all(reason)

    def _settle_all(self, reason: str) -> None:
        self._is_closed = True
        for path in list(self.paths.values()):
            if path.stage is not Stage.SETTLED:
                self._settle_eager(path, reason)
        if not any(path.runs_compiled for path in list(self.paths.values())):
            self._leave()

    @property
    def is_settled(self) -> bool:
        """Whether no path is undecided, and there is one or will be none."""
        return (self._is_closed or bool(self.paths)) and all(
            path.stage is Stage.SETTLED for path in list(self.paths.values())
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # first, so that who traces it sees nothing of ours change
            return self._forward(*args, **kwargs)
        if self._unseen > 0:
            self._unseen -= 1
            return self._forward(*args, **kwargs)
        key = key_of(args, kwargs)
        path = self.paths.get((key, torch.is_grad_enabled(), self._module.training))
        if path is None:
            return self._meet(key, args, kwargs)
        if path.stage is Stage.SETTLED:
            return self._forward(*args, **kwargs) if path.function is None else self._compiled(path, args, kwargs)
        if path.skip > 0:
            path.skip -= 1
            return self._forward(*args, **kwargs)
        return self._look(path, args, kwargs)

    def _meet(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a kind that has no path yet: it gets one when there were as many as the threshold asks for.

        The first ones are answered and timed, no more. They may be the only ones, and nothing can come of them sooner.
        Where the detector counts calls of any shape together, so does this, and one call of each kind is enough.
        """
        kind = key, torch.is_grad_enabled(), self._module.training
        budget = self._met.get(kind)
        is_one_too_many = budget is None and len(self._met) >= MOST_PATHS
        if key is None or self._is_closed or is_one_too_many or self._is_set_apart():
            return self._forward(*args, **kwargs)
        detector = self._policy.detector
        alike = kind if detector.shapes == "exact" else (shapeless(args, kwargs), *kind[1:])
        if budget is None or self._alike[alike] < min(detector.hot_threshold, ONLY_COUNTED):
            begun = time.perf_counter()
            outputs = self._forward(*args, **kwargs)
            taken_s = time.perf_counter() - begun
            # a kind is met when a call of it has been answered
            self._met.setdefault(kind, WatchBudget(self._policy.watch_share)).add_plain(taken_s)
            self._alike[alike] += 1
            return outputs
        path = self._begin(kind, budget, args, kwargs)
        return self._forward(*args, **kwargs) if path is None else self._look(path, args, kwargs)

    def _begin(
        self, kind: tuple[Hashable, bool, bool], budget: WatchBudget, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Path | None:
        """The path of a kind of call; None where this is not the moment: a later call begins it."""
        weights = self._weights.current()
        tensors = [*(weights or ()), *tensors_in(args, kwargs)]
        wants_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        path = Path(kind[0], wants_gradients, meter_for(tensors), budget, self._modes(), calls=budget.plain)
        # without waiting: another thread is looking, or this one, in a forward that calls itself
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_closed:
                return None
            if kind in self.paths:
                return self.paths[kind]
            self.paths[kind] = path
            if not self._weights.are_fit:
                self._fail(path, UNFIT)
            elif weights is None:
                self._fail(path, CHANGED)
            elif any(tensor.data_ptr() % 16 for tensor in tensors):
                self._fail(path, "a tensor does not begin at a multiple of 16 bytes, which compiled code relies on")
            return path
        finally:
            self._lock.release()

    def _look(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is looked at."""
        if not self._is_as_met(path):
            return self._forward(*args, **kwargs)
        if not self._lock.acquire(blocking=False):
            return self._forward(*args, **kwargs)  # another thread is looking, or this one, further up
        self._looking = threading.get_ident()
        try:
            if path.stage is Stage.SETTLED:
                return self._forward(*args, **kwargs)
            since = path.skipped + 1
            path.calls += since
            if path.is_on_trial:
                return self._try_out(path, args, kwargs)
            outputs, recorder = self._eager(path, since, args, kwargs)
            try:
                if recorder is not None:
                    self._note(path, recorder)
                self._consider(path, args, kwargs, outputs)
            except Exception as error:  # of ours: the call has been answered
                LOG.warning("%s stays eager", self.name or type(self._module).__name__, exc_info=True)
                self._fail(path, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
            self._skip(path)
            return outputs
        finally:
            self._looking = None
            self._lock.release()

    def _modes(self) -> list[bool]:
        return [part.training for part in self._weights.modules]

    def _is_as_met(self, path: Path) -> bool:
        """Whether a call is one of those that its path was begun for, which its kind alone does not tell.

        One that is not gets eager, this once: what is set for some calls may be set back for the next.
        """
        return not self._is_set_apart() and self._modes() == path.modes

    def _is_set_apart(self) -> bool:
        """Whether something is on that a call alone does not show, and that compiled code knows nothing of.

        Autocast, on the module's device or, for one without weights, on a GPU that may be given. A capture into a CUDA
        graph: the call happens later, and can be neither timed nor replaced. Hooks for what is saved for the backward
        pass, as checkpointing has: the forward made again there must save what the first one did.
        """
        return (
            torch.is_autocast_enabled(self._device_type)
            or torch.is_autocast_enabled("cuda")
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        )

    def _skip(self, path: Path) -> None:
        """Let calls pass until the next look at this path.

        Where it is the only one, they pass without being told apart: telling takes longer than the rest of it. They
        are eager's anyway, and a kind of call that comes between is met at a later look.
        """
        path.skipped = path.skip = self._unseen = 0
        if path.calls < CLOSE_CALLS or path.stage in (Stage.TRIAL, Stage.SETTLED):
            return
        fewest, most = STRIDES
        call_s = path.eager.mean_s or path.budget.usual_s or 0.0
        stride = min(most, max(fewest, int(LOOK_EVERY_S / max(call_s, 1e-9))))
        # by chance longer or shorter, so that kinds that take turns are all met
        path.skipped = self._chance.randint(stride // 2, stride + stride // 2)
        if len(self._met) == 1:
            self._unseen = path.skipped
        else:
            path.skip = path.skipped

    def _eager(
        self, path: Path, since: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Recorder | None]:
        """The call as it always was, timed, and recorded where the budget allows. `since`: calls since the last one."""
        begin = path.meter.mark()
        if path.is_training:
            self._end_step(path, begin, since)
        is_watched = path.budget.wants_to_watch()
        begun = time.perf_counter()
        if is_watched:
            outputs, recorder = watching.record(self._policy.detector, self._module, self._forward, args, kwargs)
            path.budget.add_watched(time.perf_counter() - begun)
            path.previous = None
            return outputs, recorder
        outputs = self._forward(*args, **kwargs)
        # of the host alone: recording is the host's work, too
        path.budget.add_plain(time.perf_counter() - begun, since)
        if path.is_training:
            path.previous = (begin, path.eager)
        else:
            path.eager.add(begin, path.meter.mark())
        path.eager.settle()
        return outputs, None

    def _end_step(self, path: Path, now: Any, since: int) -> None:
        """A training step lasts until the next one's forward begins."""
        if path.previous is not None:
            begin, sample = path.previous
            if sample is not None:
                sample.add(begin, now, since)
        path.previous = None

    def _note(self, path: Path, recorder: Recorder) -> None:
        """What a watched call has shown."""
        if path.stage is Stage.SETTLED:  # by its own forward
            return
        path.counted += 1
        path.agreeing += 1
        if recorder.obstacle:
            self._fail(path, recorder.obstacle)
        elif self._weights.current() is None:
            self._fail(path, CHANGED)
        elif path.fingerprint not in ("", recorder.fingerprint):
            self._fail(path, "its operations, or their constants, differ from call to call")
        path.signature, path.fingerprint = self._policy.detector.signature, recorder.fingerprint
        path.identity = self._identity(path)

    def _consider(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """Whether it is time for the next stage."""
        if path.stage is Stage.WATCHING and path.signature is not None:
            detector = self._policy.detector
            # calls of the same kind between two watched ones are taken to have gone the same way
            detector.count_again(path.signature, path.calls - path.counted)
            path.counted = path.calls
            if detector.is_hot(path.signature):
                self._consider_compiling(path, args, kwargs)
        elif path.stage is Stage.COMPILING and time.perf_counter() - path.polled_at > POLL_S:
            assert path.job is not None
            path.polled_at = time.perf_counter()
            outcome = path.job.poll()
            if outcome is not None:
                self._take_outcome(path, outcome)
        if path.stage is Stage.READY:
            self._consider_loading(path, args, kwargs, outputs)

    def _consider_compiling(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        knowledge, compiler = self._policy.knowledge, self._policy.compiler
        known = knowledge.of(path.identity)
        folder = knowledge.artefact(path.identity)
        if known and known.verdict in ("eager", "failed"):
            conclude = self._fail if known.verdict == "failed" else self._settle_eager
            conclude(path, EARLIER + known.reason)
            return
        if known and folder.is_dir():
            self.compilations += 1
            path.outcome = Outcome("", known.compile_s, known.load_s, known.eager_s, known.compiled_s)
            path.stage, path.reason = Stage.READY, "compiled in an earlier run"
            return
        path.reason = "hot, and not yet worth compiling"
        compile_s = known.compile_s if known and known.compile_s is not None else knowledge.usual_compile_s
        burden = knowledge.usual_burden
        delay_s = deciding.delay_of_compiling_s(compile_s, START_S, self._policy.has_spare_cores(), burden)
        is_worth = self._expectation(path, known.speedup if known else None).is_worth(delay_s)
        if not is_worth or path.agreeing < AGREEING or not compiler.is_free():
            return
        try:
            path.job = compiler.start(Call(self._module, args, kwargs, path.is_training), folder)
        except (CannotHandOver, OSError) as error:
            self._fail(path, str(error))
            return
        self.compilations += 1
        path.before_s, path.eager = path.eager.mean_s, Sample(path.meter)
        path.stage, path.reason = Stage.COMPILING, "being compiled"

    def _take_outcome(self, path: Path, outcome: Outcome) -> None:
        path.job, path.outcome, path.was_compiled_here = None, outcome, True
        if path.before_s and path.eager.mean_s:
            path.burden = deciding.burden_of(path.before_s, path.eager.mean_s)
        if outcome.reason:
            self._fail(path, f"not compiled: {outcome.reason}")
            if outcome.is_for_good:
                self._learn(path, "failed")
            return
        path.stage, path.reason = Stage.READY, "compiled, and not yet worth taking up"
        self._learn(path, "ready")

    def _consider_loading(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        outcome = path.outcome
        assert outcome is not None
        speedup = None
        if outcome.eager_s and outcome.compiled_s:
            speedup = deciding.faster_by(outcome.eager_s, outcome.compiled_s)
        if speedup is not None and speedup < deciding.CLEARLY_SLOWER:
            self._settle_eager(path, f"compiled is {speedup:.2f}x as fast, as the compiling process measured")
            self._learn(path, "eager")
            return
        if not self._expectation(path, speedup).is_worth(outcome.load_s or 0.0):
            return
        begun = time.perf_counter()
        weights = self._weights.current()
        if weights is None:
            self._fail(path, CHANGED)
            return
        tensors = [*weights, *tensors_in(args, kwargs)]
        folder = self._policy.knowledge.artefact(path.identity)
        # a version that was taken over may be right for another path of the same name
        is_for_good = path.was_compiled_here
        try:
            function = self._policy.compiler.load(folder, tensors)
            if path.is_training:
                # of a graph of our own, from tensors without the program's hooks: what it differentiates is left alone
                tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
                expected = answer(Flat(self._module, self._weights.names, args, kwargs), tensors, is_training=True)
            else:
                expected = tensors_in((outputs,), {})
            wrong = difference(answer(lambda *given: function(list(given)), tensors, path.is_training), expected)
            path.function, path.rebuild = function, rebuilder(outputs)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            # memory may be full in this run alone
            is_for_good, wrong = False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if not isinstance(error, RuntimeError):  # part of it is gone: the next run compiles it anew
                shutil.rmtree(folder, ignore_errors=True)
        path.load_s = time.perf_counter() - begun
        if wrong:
            self._fail(path, f"the compiled version was not taken up: {wrong}")
            if is_for_good:
                self._learn(path, "failed")
            return
        path.stage, path.reason = Stage.TRIAL, "being tried"

    def _try_out(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the trial: the compiled version warms up, then come pairs of either one.

        Which is first in a pair is drawn. Where two calls make a step, one version would else have all that lies
        between steps, the backward pass and the optimiser.
        """
        turn = path.turn - TRIAL_WARM_UP
        is_first = turn % 2 == 0
        if is_first:
            path.compiled_is_first = self._chance.random() < 0.5
        is_compiled = turn < 0 or is_first is path.compiled_is_first
        sample = None if turn < 0 else path.compiled if is_compiled else path.eager_in_trial
        begin = path.meter.mark()
        if path.is_training:
            self._end_step(path, begin, 1)
        outputs = self._compiled(path, args, kwargs) if is_compiled else self._forward(*args, **kwargs)
        if path.is_training:
            path.previous = (begin, sample)
        elif sample is not None:
            sample.add(begin, path.meter.mark())
        path.turn += 1
        path.compiled.settle()
        path.eager_in_trial.settle()
        if turn >= 0 and not is_first and path.stage is Stage.TRIAL:  # a pair has become complete
            trial = deciding.trial_of(path.eager_in_trial.seconds, path.compiled.seconds)
            if trial is not None and trial.is_over:
                self._judge(path, trial)
        return outputs

    def _judge(self, path: Path, trial: Trial) -> None:
        """The end of the trial."""
        eager_s, compiled_s = path.eager_in_trial.median_s, path.compiled.median_s
        assert eager_s is not None and compiled_s is not None
        measured = (
            f"{trial.ratio:.2f}x [{trial.low:.2f}, {trial.high:.2f}] as fast "
            f"({1e3 * compiled_s:.3g} ms compiled, {1e3 * eager_s:.3g} ms eager)"
        )
        if trial.is_won:
            path.stage, path.switched_at_call = Stage.SETTLED, path.calls
            path.reason = f"tried, and {measured}"
            self._learn(path, "compiled")
            return
        doubt = "" if trial.is_lost else f", which shows no lead of {deciding.FASTER}"
        self._settle_eager(path, f"tried, and compiled is {measured}{doubt}")
        # what may well be faster is tried again by the next run, which will look at these medians before it does
        may_be_faster = not trial.is_lost and deciding.faster_by(eager_s, compiled_s) >= deciding.FASTER
        self._learn(path, "ready" if may_be_faster else "eager")

    def _compiled(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function, rebuild = path.function, path.rebuild
        if function is None or rebuild is None or not self._is_as_met(path):
            return self._forward(*args, **kwargs)
        weights = self._weights.current()
        if weights is None:
            self._fail(path, CHANGED)
            return self._forward(*args, **kwargs)
        return rebuild(function([*weights, *tensors_in(args, kwargs)]))

    def _fail(self, path: Path, reason: str) -> None:
        path.has_failed = True
        self._settle_eager(path, reason)

    def _settle_eager(self, path: Path, reason: str) -> None:
        """For this run. A path that stays eager leaves nothing in the calls' way."""
        if path.job is not None:
            path.job.cancel()
            path.job = None
        path.stage, path.reason = Stage.SETTLED, reason
        path.function = path.rebuild = path.previous = None
        self._leave_if_all_is_eager()

    def _expectation(self, path: Path, speedup: float | None) -> Expectation:
        return Expectation(path.calls, path.eager.mean_s or 0.0, speedup)

    def _identity(self, path: Path) -> str:
        """A name for the path and the machine: what has the same one can share a compiled version."""
        devices = {tensor.device for tensor in self._weights.current() or [] if tensor.is_cuda}
        if isinstance(path.meter, DeviceMeter):  # of its inputs, where it has no weights
            devices.add(path.meter.device)
        about = (
            path.fingerprint,
            path.key,
            path.is_training,
            path.modes,
            torch.__version__,
            settings.read(),
            settings.processor(),
            sorted({torch.cuda.get_device_name(device) for device in devices}),
            self._weights.kinds,
        )
        return hashlib.sha256(repr(about).encode()).hexdigest()[:24]

    def _learn(self, path: Path, verdict: str) -> None:
        """Keep the verdict for later runs."""
        outcome, known = path.outcome or Outcome(""), self._policy.knowledge.of(path.identity)
        speedup_known = path.compiled.median_s is not None
        learned = Learned(
            verdict,
            path.reason,
            outcome.compile_s,
            path.load_s if path.load_s is not None else outcome.load_s,
            path.eager_s if speedup_known else outcome.eager_s,
            path.compiled.median_s if speedup_known else outcome.compiled_s,
            path.burden if path.burden is not None or known is None else known.burden,
        )
        try:
            self._policy.knowledge.learn(path.identity, learned)
        except OSError as error:
            LOG.warning("what was learned of %s is lost with this run: %s", self.name, error)

    def _leave_if_all_is_eager(self) -> None:
        """Nothing stands in the way of calls that are to stay as they are.

        Kinds met later, or once only until then, are not followed: one that comes again is waited for.
        """
        # copies, since another thread may meet a further kind meanwhile
        is_waited_for = any(kind not in self.paths and budget.plain > 1 for kind, budget in list(self._met.items()))
        runs_compiled = any(path.runs_compiled for path in list(self.paths.values()))
        if self.is_settled and not is_waited_for and not runs_compiled:
            self._leave()

    def _leave(self) -> None:
        if vars(self._module).get("forward") is self:
            del vars(self._module)["forward"]


def _has_another_forward(module: torch.nn.Module) -> bool:
    """Whether a forward was put in the place of its class's, as libraries do that add hooks of their own."""
    forward = vars(module).get("forward")
    return forward is not None and forward != _own_forward(module)  # its own one is left by a copy of a switch


def _own_forward(module: torch.nn.Module) -> Callable[..., Any]:
    forward: Callable[..., Any] = type(module).forward.__get__(module)
    return forward
