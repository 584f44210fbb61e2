"""What the worker of a cell works with, and how it announces its phases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import backends
from backends.base import Backend, BuildContext, Settings
from harness import messages, precision
from harness.messages import CellJob, PhaseBegun, PhaseEnded
from harness.worker import memory
from harness.worker.clock import Clock
from harness.worker.placing import gradients, load, place, training_of
from models.base import Inputs, of_each_shape
from records.errors import Unavailable, Unsupported
from records.schema import Cell, Memory

if TYPE_CHECKING:
    from backends.training import Training


@dataclass
class Bench:
    """What the worker of a cell works with."""

    connection: Connection
    job: CellJob
    workspace: Path  # this worker's own folder
    cell: Cell
    backend: Backend
    phases: Phases
    clock: Clock
    device_memory: memory.DeviceMemory
    threads: int
    training: Training | None = None
    targets: tuple[str, ...] = ()
    padded_axis: int | None = None
    parameters: int | None = None  # None in a process that never sees the module

    @classmethod
    def begin(cls, connection: Connection, job: CellJob, workspace: Path) -> Self:
        """Raises Unavailable where this machine lacks the backend, Unsupported where the precision is overruled."""
        import torch

        cell = job.cell
        (job.shared_folder / "artifact").mkdir(parents=True, exist_ok=True)
        phases = Phases(connection)
        backend = backends.create(cell.backend)
        with phases.announced("probe"):
            available = backend.available(cell.device)
        if not available:
            raise Unavailable(available.reason)
        precision.apply(cell.precision)
        device_memory = memory.DeviceMemory(cell.device.cuda_index)
        phases.clock = Clock(cell.device)
        threads = torch.get_num_threads()
        return cls(connection, job, workspace, cell, backend, phases, phases.clock, device_memory, threads)

    def model(self) -> tuple[Any, tuple[Inputs, ...]]:
        """Module and input sets on the cell's device, in its precision. From here on the workspace is where we are."""
        with self.phases.announced("model"):
            model = load(self.cell)
            if len(of_each_shape(model.inputs)) > 1 and not self.backend.takes_streams:
                raise Unsupported(f"{self.backend.name} builds for one shape, and these inputs have several")
            self.padded_axis = model.padded_axis
            self.targets = self.job.surgical or tuple(model.surgical_targets)
            os.chdir(self.workspace)
            placed = place(model, self.cell)
            self.parameters = sum(weight.numel() for weight in model.module.parameters())
            with self.clock.on_stream():
                self.training = training_of(model, self.cell)
            memory.return_unused(self.cell.device)
            return placed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.clock.on_stream(), gradients(self.cell.task):
            yield

    def context(self, sets: tuple[Inputs, ...]) -> BuildContext:
        return BuildContext(
            self.cell,
            self.phases,
            self.artifact,
            self.threads,
            sets,
            padded_axis=self.padded_axis,
            training=self.training,
            targets=self.targets,
        )

    @property
    def artifact(self) -> Path:
        """The folder that a backend builds into, which all workers of the cell share."""
        return self.job.shared_folder / "artifact"

    @property
    def handover(self) -> Path:
        return self.job.shared_folder / "inputs.pt"

    def counted(self) -> Settings:
        return {} if self.parameters is None else {"parameters": self.parameters}

    def memory(self) -> Memory:
        # the caches of a worker that built ahead of time went with it, and are not counted
        return Memory(
            peak_resident_bytes=memory.peak_resident_bytes(),
            peak_device_bytes=self.device_memory.peak_bytes,
            device_bytes_source=self.device_memory.source or None,
            artifact_bytes=memory.folder_bytes(self.artifact) + memory.folder_bytes(self.workspace / "cache"),
        )


class Phases:
    """Announces what is under way before it starts, so that a crash is known by its phase, and times what is timed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.clock: Clock | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A timed stage of building. The device's work is in it."""
        assert self.clock is not None
        messages.send(self._connection, PhaseBegun(name=name))
        with self.clock.timed() as seconds:
            yield
        messages.send(self._connection, PhaseEnded(name=name, seconds=seconds[0]))

    @contextlib.contextmanager
    def announced(self, name: str) -> Iterator[None]:
        """A stage that is not a user's cost."""
        messages.send(self._connection, PhaseBegun(name=name))
        yield
