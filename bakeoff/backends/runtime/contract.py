"""What loads an artefact is given, and what it returns. Nothing here imports a library."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

Shape = tuple[int, ...]

WORDS = {"bfloat16": "uint16"}
"""How NumPy keeps types that it lacks, by torch's names."""

WARMING_CALLS = 3
"""Calls before a CUDA graph is captured. In its first calls a library allocates workspaces, which a capture does not
allow."""

WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Values of torch.compile's `mode` with which it replays CUDA graphs of its own. The next call overwrites outputs."""


@dataclass(frozen=True)
class TensorSpec:
    name: str
    type: str  # torch's name
    shape: Shape  # at the size that the sample has
    ranges: Mapping[int, tuple[int, int]]  # of the axes that the build leaves open, by their number

    def serves(self, shape: Shape) -> bool:
        if not self.ranges:
            return shape == self.shape
        return len(shape) == len(self.shape) and all(
            self.ranges[axis][0] <= size <= self.ranges[axis][1] if axis in self.ranges else size == self.shape[axis]
            for axis, size in enumerate(shape)
        )

    @property
    def numpy_type(self) -> str:
        """NumPy's name of the type. Raw words stand for a type that NumPy lacks."""
        return WORDS.get(self.type, self.type)

    @property
    def served(self) -> str:
        """The type and the sizes in words, such as `float32 (1 to 64, 256)`."""
        sizes = [
            "{} to {}".format(*self.ranges[axis]) if axis in self.ranges else str(size)
            for axis, size in enumerate(self.shape)
        ]
        return f"{self.type} ({', '.join(sizes)})"


@dataclass(frozen=True)
class Artifact:
    """What was exported, with everything that it takes to load it."""

    path: Path
    device: str
    settings: Mapping[str, Any]
    """The settings of `bakeoff.json`: threads, `tf32`, `graph`, `channels_last`, `calling` (the mode of torch in which
    it will be called), and what the loader reads."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample: Callable[[], list[Any]]
    """Returns the inputs of the sample as arrays of NumPy. bfloat16 stands there as words of uint16."""

    @property
    def is_open(self) -> bool:
        return any(spec.ranges for spec in self.inputs)


class Execution(ABC):
    """Calls of a loaded artefact over memory that is bound before. What is timed is `run` alone."""

    stream: Any = None
    """The CUDA stream that calls belong on, or None where they may be on any."""

    @abstractmethod
    def bind(self, inputs: Sequence[Any]) -> None:
        """Take the inputs of the next calls. It may copy, on the current stream."""

    @abstractmethod
    def run(self) -> None:
        """Enqueue one call on the current stream."""

    @abstractmethod
    def results(self) -> Sequence[Any]:
        """Return the outputs of the last call, which the next one may overwrite."""


class Loaded(ABC):
    """A loaded artefact. Calls of several threads reach it at the same time only if its `Runtime` allows that."""

    takes_arrays: ClassVar[bool]
    """True if it takes and returns arrays of NumPy, with words for bfloat16. Otherwise they are tensors of torch on
    its device."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a call, in memory that no later call overwrites. On CUDA they are ready on the caller's
        current stream, and nothing waits for the device."""

    @abstractmethod
    def execution(self) -> Execution:
        """Return what is measured: calls over bound memory, as a run makes them, as long as this object lives."""
