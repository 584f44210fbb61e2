"""What torch has found out about the C++ compiler, kept once for a machine beside torch's precompiled headers."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Self

import torch

from bakeoff.measuring import isolation
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.device import Device
from bakeoff.records.schema import Frozen


class CompilerChecks(Frozen):
    """Torch's answers for the builds of one backend and one kind of device, and how long they took."""

    answers: dict[str, bool]
    seconds: float

    @classmethod
    def known(cls, backend: str, device: Device) -> Self | None:
        """Return what this machine keeps, or None where torch has not checked the compiler yet, or that is damaged."""
        with contextlib.suppress(OSError, ValueError):
            return cls.model_validate_json(file_of(backend, device).read_text())
        return None

    def keep(self, backend: str, device: Device) -> None:
        write_atomically(file_of(backend, device), self.model_dump_json())


def file_of(backend: str, device: Device) -> Path:
    return isolation.headers_of_torch() / f"bakeoff-checked-{backend}-{device.kind}-{tools(torch.__file__)}"


def tools(torch_file: str) -> str:
    """Return what distinguishes this torch and this C++ compiler, as a file name. Torch's headers are for both."""
    compiler = shutil.which(os.environ.get("CXX") or "g++") or ""
    changed = os.stat(compiler).st_mtime_ns if compiler else 0
    return hashlib.sha256(f"{torch_file} {torch.__version__} {compiler} {changed}".encode()).hexdigest()[:16]
