"""A module's forward in the place of its own: eager at first, then the version that each kind of call settles on.

Imports torch. Everything is decided between two calls, in the thread that calls: this library starts no thread.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from bakeoff_hotpath.flattening import key_of, shapeless, tensors_in
from bakeoff_hotpath.knowledge import LOG
from bakeoff_hotpath.meters import HostMeter, meter_for
from bakeoff_hotpath.stages import WEIGHTS_CHANGED, EagerStage, FollowedModule, Path, Policy, Settled, Stage, Watching
from bakeoff_hotpath.watching import WatchBudget

MAX_PATHS = 16
"""A module may have more kinds of calls than this. The others stay eager."""

MAX_COUNTED_CALLS = 10
"""The first calls of a kind are only counted and timed: this many, or as many as the threshold if that is lower."""

CALLS_LOOKED_AT_EACH = 32
"""The first calls of a path are looked at one by one. Later there is one look every `LOOK_EVERY_S`."""

LOOK_EVERY_S = 0.02
MIN_STRIDE, MAX_STRIDE = 16, 256
"""The fewest and the most calls between two looks."""

UNFIT = "it has a weight that is sparse, nested or of a class of its own, or a part in TorchScript"
PATCHED = "its forward was replaced by another one, which the compiling process would not find"
MISALIGNED = "a tensor does not begin at a multiple of 16 bytes, which compiled code relies on"

Kind = tuple[Hashable, bool, bool]
"""The key of a call, whether gradients are on, and whether the module is in training mode."""


class Switch:
    """Answers the calls of one module. Any number of threads may call it; one at a time looks and decides."""

    def __init__(self, module: torch.nn.Module, name: str, policy: Policy) -> None:
        self.name = name
        self.paths: dict[Hashable, Path] = {}
        self.compilations = 0
        """The compilations that were started, or taken over from an earlier run."""
        self._module = module
        self._policy = policy
        self._of = FollowedModule(module, name, policy)
        self._forward = self._of.forward
        self.__wrapped__ = self._forward  # `inspect.signature` looks here: trainers ask a model which inputs it takes
        self._met: dict[Kind, WatchBudget] = {}
        """The times of the first calls of each kind."""
        self._alike: dict[Hashable, int] = defaultdict(int)
        """The calls of kinds that the detector counts together, before any of them had a path."""
        self._is_closed = False
        """No further path is begun."""
        self._unseen_calls = 1
        """These calls go to eager without a look at their arguments. The first call may be the only one."""
        self._lock = threading.Lock()
        self._looking_thread: int | None = None
        """The thread that has the lock while it answers a call."""
        if _has_another_forward(module):
            path = Path(self._of, None, False, HostMeter(), WatchBudget(policy.watch_share))
            self.paths[None], self._is_closed = path, True
            self._move(path, path.stage, Settled(PATCHED, has_failed=True))
            return
        vars(module)["forward"] = self  # by `vars`, since a module's own assignment first asks what it is given

    def __reduce__(self) -> Any:
        """Give a copy of the model, here or in another process, its own forward."""
        return _own_forward, (self._module,)

    def remove(self) -> None:
        """Cancel what is under way, and give the module its own forward back."""
        self.settle("it was called off")
        self._leave()

    def settle(self, reason: str = "no more time was given to it") -> None:
        """Make every path stay with what it runs now."""
        if self._looking_thread == threading.get_ident():  # from within the module's forward: this thread has the lock
            self._settle_all(reason)
            return
        with self._lock:
            self._settle_all(reason)

    def _settle_all(self, reason: str) -> None:
        self._is_closed = True
        for path in list(self.paths.values()):
            if not isinstance(path.stage, Settled):
                self._move(path, path.stage, path.stage.settled(reason))
        if not self._runs_compiled():
            self._leave()

    @property
    def is_settled(self) -> bool:
        """True if every path is settled, and there is a path or will be none."""
        # a copy, since another thread may begin a path meanwhile
        paths = list(self.paths.values())
        return (self._is_closed or bool(paths)) and all(isinstance(path.stage, Settled) for path in paths)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # first, so that a tracer sees nothing of ours change
            return self._forward(*args, **kwargs)
        if self._unseen_calls > 0:
            self._unseen_calls -= 1
            return self._forward(*args, **kwargs)
        key = key_of(args, kwargs)
        path = self.paths.get((key, torch.is_grad_enabled(), self._module.training))
        if path is None:
            return self._meet(key, args, kwargs)
        if isinstance(path.stage, Settled):
            if path.stage.version is None:
                return self._forward(*args, **kwargs)
            return self._run_compiled(path, path.stage, args, kwargs)
        if path.calls_to_skip > 0:
            path.calls_to_skip -= 1
            return self._forward(*args, **kwargs)
        return self._look(path, args, kwargs)

    def _run_compiled(self, path: Path, settled: Settled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = None
        if path.is_as_met():
            tensors = path.tensors(args, kwargs)
            if tensors is None:
                self._move(path, settled, settled.without_version(WEIGHTS_CHANGED))
        if tensors is None or settled.version is None:
            return self._forward(*args, **kwargs)
        return settled.version(tensors)

    def _meet(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call of a kind without a path. The kind gets one after as many calls as the threshold asks for.

        The first calls are only timed, since they may be the only ones. Where the detector counts calls of any shape
        together, so does this method, and one call of each kind is enough.
        """
        kind = key, torch.is_grad_enabled(), self._module.training
        budget = self._met.get(kind)
        is_one_too_many = budget is None and len(self._met) >= MAX_PATHS
        if key is None or self._is_closed or is_one_too_many or self._of.is_set_apart():
            return self._forward(*args, **kwargs)
        detector = self._policy.detector
        alike = kind if detector.shapes == "exact" else (shapeless(args, kwargs), *kind[1:])
        if budget is None or self._alike[alike] < min(detector.hot_threshold, MAX_COUNTED_CALLS):
            begun = time.perf_counter()
            outputs = self._forward(*args, **kwargs)
            taken_s = time.perf_counter() - begun
            # only now, since a kind is not met if its calls raise
            self._met.setdefault(kind, WatchBudget(self._policy.watch_share)).add_plain(taken_s)
            self._alike[alike] += 1
            return outputs
        path = self._begin(kind, budget, args, kwargs)
        return self._forward(*args, **kwargs) if path is None else self._look(path, args, kwargs)

    def _begin(self, kind: Kind, budget: WatchBudget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Path | None:
        """Return the path of a kind, or None where a later call has to begin it."""
        weights = self._of.weights.current()
        tensors = [*(weights or ()), *tensors_in(args, kwargs)]
        is_training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        path = Path(self._of, kind[0], is_training, meter_for(tensors), budget)
        # without waiting: another thread is looking, or this one, in a forward that calls itself
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_closed:
                return None
            if kind in self.paths:
                return self.paths[kind]
            self.paths[kind] = path
            why = ""
            if not self._of.weights.are_fit:
                why = UNFIT
            elif weights is None:
                why = WEIGHTS_CHANGED
            elif any(tensor.data_ptr() % 16 for tensor in tensors):
                why = MISALIGNED
            if why:
                self._move(path, path.stage, Settled(why, has_failed=True))
            return path
        finally:
            self._lock.release()

    def _look(self, path: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that is looked at, and see whether the path moves on."""
        if not path.is_as_met():
            return self._forward(*args, **kwargs)
        if not self._lock.acquire(blocking=False):
            return self._forward(*args, **kwargs)  # another thread is looking, or this one, further up
        self._looking_thread = threading.get_ident()
        try:
            stage = path.stage
            if isinstance(stage, Settled):  # meanwhile, by another thread
                return self._forward(*args, **kwargs)
            path.calls += path.calls_per_look
            call = stage.answer(path, args, kwargs)
            try:
                # the stage moves on alone, unless the module's forward has settled it
                while path.stage is stage and not isinstance(stage, Settled):
                    following = stage.next(path, call)
                    if following is stage:
                        break
                    self._move(path, stage, following)
                    stage, call = following, replace(call, recorder=None)
            except Exception as error:  # an error of this library: the call has been answered
                LOG.warning("%s stays eager", self.name or type(self._module).__name__, exc_info=True)
                if not isinstance(path.stage, Settled):
                    reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                    self._move(path, path.stage, path.stage.failed(reason))
            self._skip(path)
            return call.outputs
        finally:
            self._looking_thread = None
            self._lock.release()

    def _skip(self, path: Path) -> None:
        """Let calls pass until the next look at this path.

        Where it is the only path, they pass without a look at their arguments, which takes longer than the rest. A kind
        of call that comes between is met at a later look.
        """
        path.calls_per_look, path.calls_to_skip, self._unseen_calls = 1, 0, 0
        if path.calls < CALLS_LOOKED_AT_EACH or not isinstance(path.stage, EagerStage):
            return
        call_s = path.stage.eager.mean_s or path.budget.usual_s or 0.0
        stride = min(MAX_STRIDE, max(MIN_STRIDE, int(LOOK_EVERY_S / max(call_s, 1e-9))))
        # longer or shorter by chance, so that kinds that take turns are all met
        skipped = self._of.chance.randint(stride // 2, stride + stride // 2)
        path.calls_per_look = skipped + 1
        if len(self._met) == 1:
            self._unseen_calls = skipped
        else:
            path.calls_to_skip = skipped

    def _move(self, path: Path, before: Stage, after: Stage) -> None:
        """Take the path from one stage to the next."""
        if isinstance(before, Watching) and not isinstance(after, Settled):
            self.compilations += 1
        path.stage = after
        if isinstance(after, Settled):
            if not isinstance(before, Settled):
                before.cancel()
            if after.version is None:
                self._leave_if_all_is_eager()

    def _leave_if_all_is_eager(self) -> None:
        """Take the switch away from calls that stay eager.

        A kind that was met more than once is waited for. One that was met once, or comes later, is not followed.
        """
        # copies, since another thread may meet a further kind meanwhile
        is_waited_for = any(kind not in self.paths and budget.plain > 1 for kind, budget in list(self._met.items()))
        if self.is_settled and not is_waited_for and not self._runs_compiled():
            self._leave()

    def _runs_compiled(self) -> bool:
        return any(isinstance(path.stage, Settled) and path.stage.version for path in list(self.paths.values()))

    def _leave(self) -> None:
        if vars(self._module).get("forward") is self:
            del vars(self._module)["forward"]


def _has_another_forward(module: torch.nn.Module) -> bool:
    """Return True if a library has put a forward with hooks of its own in the place of the class's."""
    forward = vars(module).get("forward")
    return forward is not None and forward != _own_forward(module)  # a copy of a switch leaves the module's own one


def _own_forward(module: torch.nn.Module) -> Callable[..., Any]:
    forward: Callable[..., Any] = type(module).forward.__get__(module)
    return forward
