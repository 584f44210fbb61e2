"""`bakeoff.load`: a folder that `bakeoff export` wrote, as a callable with the model's own signature.

It imports no torch unless the folder needs it, and nothing that the call of a model does not need.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.backends.runtime.contract import WORDS, Loaded, TensorSpec
from bakeoff.backends.runtime.folder import artifact_of, libraries_named, read
from bakeoff.backends.runtime.folder import load as load_artifact
from bakeoff.backends.standalone import Threads
from bakeoff.records.call_form import Arguments, HasNoForm, maker, taker
from bakeoff.records.errors import BakeoffError, NotServed, UsageError, first_line

if TYPE_CHECKING:
    import numpy
    import torch


def load(
    folder: str | Path, *, fallback: Callable[..., Any] | None = None, device: str | torch.device | None = None
) -> ShippedModel:
    """Return what `bakeoff export` wrote into a folder as a callable with the model's own signature.

    Call it with tensors of torch or with arrays of NumPy, and it answers with the same. A call that the build does not
    serve raises `bakeoff.NotServed`, which says what it serves, or goes to `fallback`. On CUDA, `device` may name
    another GPU than the one it was built on.
    """
    return ShippedModel(Path(folder), read(Path(folder)), fallback, device)


class ShippedModel:
    """A build that is called like the model that it was made from."""

    fallback_calls: int
    """How many calls went to the fallback."""
    description: Mapping[str, Any]
    """What `bakeoff.json` says: the cell, its latency, the settings that it was measured with, and how it is called."""

    def __init__(
        self,
        folder: Path,
        description: Mapping[str, Any],
        fallback: Callable[..., Any] | None = None,
        device: str | torch.device | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        """With `loaded`, that is called and nothing is loaded."""
        import numpy

        self.description = description
        self.device = _device(description, device)
        self.fallback_calls = 0
        self.fallback = fallback
        self.folder = folder
        self._arguments = _arguments(description["call"])
        self._make = _maker(description["call"]["answer"])
        artifact = artifact_of(folder, description, self.device)
        # tensors of inference mode would restrict what the caller may do with answers
        self._artifact = replace(artifact, settings={**artifact.settings, "calling": "no_grad"})
        self._inputs, self._outputs = self._artifact.inputs, self._artifact.outputs
        self._is_open = self._artifact.is_open
        self._numpy, self._array = numpy, numpy.ndarray
        self._on_arrays = [(spec.shape, numpy.dtype(spec.numpy_type)) for spec in self._inputs]
        self._has_words = any(spec.type in WORDS for spec in (*self._inputs, *self._outputs))
        self._on_tensors: list[tuple[tuple[int, ...], Any]] = []  # once tensors of torch came
        self._tensor: Any = None
        self._from_numpy: Any = None
        self._torch_device: Any = None
        self._lock = threading.Lock()
        loaded = loaded or self._load()
        self._takes_arrays = loaded.takes_arrays
        self._run: Callable[[Sequence[Any]], Sequence[Any]] = loaded.run
        if self.thread_safety is Threads.TURNS:
            self._run = _in_turns(loaded.run)
        elif self.thread_safety is Threads.ONE:
            self._run = _in_one_thread(loaded.run)

    def _load(self) -> Loaded:
        description = self.description
        try:
            with libraries_named(self.folder):
                loaded = load_artifact(self._artifact, description["loader"])
        except Exception as error:
            if isinstance(error, BakeoffError) or not (foreign := description.get("operators")):
                raise
            text = f"{self.folder} has the operators {', '.join(foreign)}: first import the module that registers them"
            raise BakeoffError(f"{text} ({first_line(error)})") from error
        _warn_of_tf32(description, self.device)
        return loaded

    @property
    def thread_safety(self) -> Threads:
        return Threads(self.description["thread_safety"])

    @property
    def served(self) -> str:
        return ", ".join(f"'{spec.name}': {spec.served}" for spec in self._inputs)

    @property
    def __signature__(self) -> inspect.Signature:
        return self._arguments.signature

    def __repr__(self) -> str:
        return f"<{self.description['label']} of {self.description['title']}, serves {self.served}>"

    def sample_inputs(self) -> list[Any]:
        """Return the inputs of the sample as arrays of NumPy, with words of uint16 for bfloat16."""
        return self._artifact.sample()

    def sample_tensors(self) -> list[torch.Tensor]:
        """Return the inputs of the sample as tensors of torch on the build's device."""
        from bakeoff.backends.runtime.torch_streams import sample_tensors

        return sample_tensors(self._artifact, self.device)

    def sample_call(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model that hold these tensors, and the constants of the build."""
        call = self.description["call"]
        kwargs = {name: maker(form)(tensors) for name, form in call["kwargs"].items()}
        return tuple(maker(form)(tensors) for form in call["args"]), kwargs

    def tensors_of(self, answer: object) -> list[Any]:
        """Return the tensors or arrays in an answer, in the order of the outputs."""
        tensors: list[Any] = [None] * len(self._outputs)
        taker(self.description["call"]["answer"], "answer")(answer, tensors)
        return tensors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model does."""
        try:
            leaves = self._arguments.leaves(args, kwargs)
            if type(leaves[0]) is self._array:
                return self._make(self._call_with_arrays(leaves))
            return self._make(self._call_with_tensors(leaves))
        except NotServed:
            if self.fallback is None:
                raise
        with self._lock:
            self.fallback_calls += 1
        return self.fallback(*args, **kwargs)

    # --- arrays of NumPy

    def _call_with_arrays(self, leaves: Sequence[numpy.ndarray[Any, Any]]) -> Sequence[Any]:
        if self._has_words:
            leaves = [_words(leaf) for leaf in leaves]
        for leaf, (shape, kind) in zip(leaves, self._on_arrays, strict=True):
            if type(leaf) is not self._array or leaf.dtype != kind or (leaf.shape != shape and not self._is_open):
                raise self._not_served(leaves)
        if self._is_open and not self._serves_sizes(leaves):
            raise self._not_served(leaves)
        if self._takes_arrays:
            outputs = self._run(leaves)
        else:
            self._know_tensors(leaves)
            given = [self._as_tensor(leaf, spec) for leaf, spec in zip(leaves, self._inputs, strict=True)]
            results = [tensor.cpu() for tensor in self._run(self._to_device(given))]
            outputs = [_as_words(tensor) if self._has_words else _as_array(tensor) for tensor in results]
        return [self._as_bfloat16(output, n) for n, output in enumerate(outputs)] if self._has_words else outputs

    def _as_bfloat16(self, array: Any, number: int) -> Any:
        """Return words as an array of ml_dtypes' bfloat16, which ONNX installs, too."""
        if self._outputs[number].type not in WORDS:
            return array
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)

    # --- tensors of torch

    def _call_with_tensors(self, leaves: Sequence[torch.Tensor]) -> Sequence[Any]:
        wanted = self._on_tensors or self._know_tensors(leaves)
        for leaf, (shape, kind) in zip(leaves, wanted, strict=True):
            if not isinstance(leaf, self._tensor) or leaf.dtype is not kind:
                raise self._not_served(leaves)
            if leaf.shape != shape and not self._is_open:
                raise self._not_served(leaves)
        if self._is_open and not self._serves_sizes(leaves):
            raise self._not_served(leaves)
        if self._takes_arrays:
            arrays = [_as_words(leaf) for leaf in leaves] if self._has_words else [_as_array(leaf) for leaf in leaves]
            outputs = self._run(arrays)
            if self._has_words:
                tensors = [self._as_tensor(output, spec) for output, spec in zip(outputs, self._outputs, strict=True)]
            else:
                tensors = [self._from_numpy(output) for output in outputs]
        else:
            tensors = list(self._run(self._to_device(leaves)))
        device = leaves[0].device
        return tensors if tensors[0].device == device else [output.to(device) for output in tensors]

    def _know_tensors(self, leaves: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
        """Take from torch what calls with tensors need, if anybody has imported it."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise self._not_served(leaves)
        self._tensor, self._from_numpy, self._torch_device = torch.Tensor, torch.from_numpy, torch.device(self.device)
        self._on_tensors = [(spec.shape, getattr(torch, spec.type)) for spec in self._inputs]
        return self._on_tensors

    def _as_tensor(self, array: Any, spec: TensorSpec) -> torch.Tensor:
        import torch

        from bakeoff.backends.runtime.torch_streams import as_tensor

        return as_tensor(array if array.flags.writeable else array.copy(), getattr(torch, spec.type))

    def _to_device(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        device = self._torch_device
        return [tensor if tensor.device == device else tensor.to(device) for tensor in tensors]

    # --- what is not served

    def _serves_sizes(self, leaves: Sequence[Any]) -> bool:
        return all(spec.serves(tuple(leaf.shape)) for spec, leaf in zip(self._inputs, leaves, strict=True))

    def _not_served(self, leaves: Sequence[Any]) -> NotServed:
        for leaf, spec in zip(leaves, self._inputs, strict=True):
            if not hasattr(leaf, "shape"):
                return NotServed(f"'{spec.name}' is a {type(leaf).__name__}: give a tensor or an array")
            kind, shape = str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)
            if WORDS.get(spec.type, spec.type) != WORDS.get(kind, kind) or not spec.serves(shape):
                sizes = ", ".join(map(str, shape))
                return NotServed(f"'{spec.name}' is {kind} ({sizes}), and this build serves {self.served}")
        return NotServed("give tensors or arrays, and not both in one call")


def _device(description: Mapping[str, Any], device: object) -> str:
    built_for: str = description["device"]
    wanted = built_for if device is None else str(device)
    if wanted.partition(":")[0] != built_for.partition(":")[0]:
        raise UsageError(f"this was built for {built_for}, and does not run on {wanted}")
    return f"{wanted}:0" if wanted == "cuda" else wanted


def _arguments(call: Mapping[str, Any]) -> Arguments:
    if "unknown" in call:
        raise BakeoffError(f"bakeoff.load cannot call what was exported, but load.py can: {call['unknown']}")
    return Arguments(dict(call))


def _maker(answer: dict[str, Any]) -> Callable[[Sequence[Any]], Any]:
    why = answer.get("unknown")
    if why is None:
        try:
            return maker(answer)
        except HasNoForm as error:
            why = str(error)
    raise BakeoffError(f"bakeoff.load cannot make the model's answer, but load.py can: {why}")


def _warn_of_tf32(description: Mapping[str, Any], device: str) -> None:
    """Warn where this program has TF32 switched otherwise than the measurement, if the build computes by torch."""
    if device.startswith("cuda") and description["loader"].startswith("torch_programs:"):
        from bakeoff.backends.runtime.torch_programs import computes_in_tf32

        has, wants = computes_in_tf32(), description["settings"]["tf32"]
        if has is not wants:
            how, precision, switch = ("with", "high", "on") if wants else ("without", "highest", "off")
            text = f"this build was measured {how} TF32, which torch.set_float32_matmul_precision('{precision}') turns"
            warnings.warn(f"{text} {switch}", RuntimeWarning, stacklevel=5)


def _in_turns(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    lock = threading.Lock()

    def run_in_turn(inputs: Sequence[Any]) -> Sequence[Any]:
        with lock:
            return run(inputs)

    return run_in_turn


def _in_one_thread(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    owner = threading.get_ident()

    def run_in_owner(inputs: Sequence[Any]) -> Sequence[Any]:
        if threading.get_ident() != owner:
            raise BakeoffError("only the thread that loaded this build may call it: load it in each thread")
        return run(inputs)

    return run_in_owner


def _as_array(tensor: torch.Tensor) -> Any:
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()


def _as_words(tensor: torch.Tensor) -> Any:
    import torch

    return _as_array(tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor)


def _words(leaf: Any) -> Any:
    """Return an array of ml_dtypes' bfloat16 as one of words."""
    is_bfloat16 = getattr(getattr(leaf, "dtype", None), "name", "") == "bfloat16"
    return leaf.view("uint16") if is_bfloat16 else leaf
