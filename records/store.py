"""A run's folder: what was asked, and one file per finished cell, each of which appears whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from records.atomic_file import write_atomically
from records.device import Device
from records.errors import UsageError
from records.precision import Precision
from records.schema import Ceilings, Environment, Frozen, Record, Work
from records.upgrade import upgrade_record


class Store:
    """The folder of one run. Everything in it but the report is written while the run goes on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kernel_kills = _kernel_kills()

    @staticmethod
    def check(root: Path) -> None:
        """Make the folder of a new run. Raises UsageError where it cannot be made or written, or is not empty."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                raise UsageError(f"--out {root}: the folder is not empty; name another, or: runner.py resume {root}")
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            raise UsageError(
                f"--out {root}: cannot be written ({error.strerror or error}): name a folder that can"
            ) from None

    @classmethod
    def create(cls, root: Path, request: Frozen, planned: Sequence[str], command: str) -> Store:
        """A new run in `root`. Raises what `check` raises."""
        cls.check(root)
        for name in ("cells", "logs", "golden"):
            (root / name).mkdir()
        store = cls(root)
        store._write_plan({"command": command, "planned": list(planned), "request": request.model_dump(mode="json")})
        return store

    @staticmethod
    def is_run(root: Path) -> bool:
        """Whether a run has begun in this folder."""
        return (root / "plan.json").exists()

    @classmethod
    def open(cls, root: Path) -> Store:
        """The folder of an earlier run. Raises UsageError where there is none."""
        store = cls(root)
        store.request()
        return store

    def request(self) -> dict[str, Any]:
        """What was asked, as JSON values. Raises UsageError if the folder holds no readable run."""
        plan = self._read_plan()
        if not isinstance(plan, dict) or not isinstance(plan.get("request"), dict):
            raise UsageError(f"{self.root / 'plan.json'} is not a plan of this version of Bakeoff")
        return dict(plan["request"])

    @property
    def command(self) -> str:
        return str(self._read_plan().get("command", ""))

    @property
    def planned(self) -> list[str]:
        """Ids of all cells, in the order planned."""
        return list(self._read_plan().get("planned", []))

    def save(self, record: Record) -> None:
        """Write a cell's record; it replaces none and appears whole."""
        write_atomically(self.root / "cells" / f"{record.cell.id}.json", record.model_dump_json())
        self._kept(record.cell.id).unlink(missing_ok=True)

    def keep(self, record: Record) -> None:
        """Keep what a cell has come to so far, between two of its processes: should the run be killed, it is there."""
        path = self._kept(record.cell.id)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, record.model_dump_json())

    def records(self) -> list[Record]:
        """The records so far, in the order planned; of a cell that was not brought to its end, what was kept of it."""
        found = []
        for cell_id in self.planned:
            path = self.root / "cells" / f"{cell_id}.json"
            if not path.exists():
                path = self._kept(cell_id)
            if path.exists():
                found.append(Record.model_validate(upgrade_record(json.loads(path.read_text()))))
        return found

    def has(self, cell_id: str) -> bool:
        """Whether the cell has been brought to its end."""
        return (self.root / "cells" / f"{cell_id}.json").exists()

    def next_group(self) -> int:
        """A number that no group of cells of this run had yet."""
        return 1 + max((burst.group for record in self.records() for burst in record.bursts), default=-1)

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def golden(self, contest_id: str) -> Path:
        return self.root / "golden" / f"{contest_id}.safetensors"

    def save_work(self, contest_id: str, work: Work) -> None:
        """Keep what a call takes beside the golden, which is computed in the same process."""
        write_atomically(self._work(contest_id), work.model_dump_json())

    def work(self, contest_id: str) -> Work | None:
        """What a call of this contest's model takes; None where it was not counted."""
        path = self._work(contest_id)
        return Work.model_validate_json(path.read_text()) if path.exists() else None

    def save_ceilings(self, device: Device, precision: Precision, ceilings: Ceilings) -> None:
        path = self._ceilings(device, precision)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, ceilings.model_dump_json())

    def ceilings(self, device: Device, precision: Precision) -> Ceilings | None:
        """What the machine can do at best; None where it was not measured."""
        path = self._ceilings(device, precision)
        return Ceilings.model_validate_json(path.read_text()) if path.exists() else None

    def note(self, text: str) -> None:
        """Keep a remark that a reader of the report should see; the same one only once."""
        if text not in self.notes():
            with open(self.root / "notes.txt", "a", encoding="utf-8") as file:
                file.write(text + "\n")

    def notes(self) -> list[str]:
        path = self.root / "notes.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def save_environment(self, environment: Environment) -> None:
        write_atomically(self.root / "environment.json", environment.model_dump_json(indent=1))

    def environment(self) -> Environment | None:
        path = self.root / "environment.json"
        return Environment.model_validate_json(path.read_text()) if path.exists() else None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the block's time to the run's, also when the block is broken off."""
        begun, before_s = time.monotonic(), self.elapsed_s
        try:
            yield
        finally:
            write_atomically(self.root / "elapsed_s", str(before_s + time.monotonic() - begun))

    @property
    def elapsed_s(self) -> float:
        """Seconds of measuring so far, over all resumptions; time cut off by SIGKILL is missing."""
        path = self.root / "elapsed_s"
        return float(path.read_text()) if path.exists() else 0.0

    def kernel_killed(self) -> bool:
        """Whether the kernel has killed a process for want of memory since this was last asked."""
        before, self._kernel_kills = self._kernel_kills, _kernel_kills()
        return self._kernel_kills > before

    def _kept(self, cell_id: str) -> Path:
        return self.root / "unfinished" / f"{cell_id}.json"

    def _work(self, contest_id: str) -> Path:
        return self.root / "golden" / f"{contest_id}.work.json"

    def _ceilings(self, device: Device, precision: Precision) -> Path:
        return self.root / "ceilings" / f"{device.slug}_{precision}.json"

    def _write_plan(self, plan: dict[str, object]) -> None:
        write_atomically(self.root / "plan.json", json.dumps(plan, indent=1))

    def _read_plan(self) -> dict[str, Any]:
        path = self.root / "plan.json"
        try:
            plan: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            raise UsageError(f"{self.root} holds no run: there is no readable {path.name} in it") from None
        return plan


def _kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say."""
    if not os.path.exists("/proc/vmstat"):
        return 0
    with open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
