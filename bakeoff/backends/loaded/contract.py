"""What `bakeoff.load` gives to the loader of a backend, and what it wants back. Nothing here imports a library."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a build takes or returns."""

    name: str
    type: str  # torch's name
    shape: Shape  # at the size that the sample has
    ranges: Mapping[int, tuple[int, int]]  # of the axes that the build leaves open, by their number

    def serves(self, shape: Shape) -> bool:
        """Return True if a tensor of this shape is one."""
        if not self.ranges:
            return shape == self.shape
        return len(shape) == len(self.shape) and all(
            self.ranges[axis][0] <= size <= self.ranges[axis][1] if axis in self.ranges else size == self.shape[axis]
            for axis, size in enumerate(shape)
        )

    @property
    def served(self) -> str:
        """Return the type and the sizes in words, such as `float32 (1 to 64, 256)`."""
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
    """The settings of `load.py`: threads, `tf32`, `graph`, `channels_last`, and what the backend's template reads."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample: Callable[[], list[Any]]
    """Returns the inputs of the sample as arrays of NumPy. bfloat16 stands there as words of uint16."""

    @property
    def is_open(self) -> bool:
        """Return True if the build serves a range of sizes."""
        return any(spec.ranges for spec in self.inputs)


class Loaded(ABC):
    """A loaded artefact. Calls of several threads reach it at the same time only if its `Runtime` allows that."""

    takes_arrays: ClassVar[bool]
    """True if it takes and returns arrays of NumPy, with words for bfloat16. Otherwise they are tensors of torch on
    its device."""

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a call, in memory that no later call overwrites.

        On CUDA they are ready on the caller's current stream, and nothing waits for the device.
        """
