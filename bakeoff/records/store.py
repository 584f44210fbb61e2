"""Keeps a run in its folder: the request, one file for each finished cell, and one for each unfinished contest."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from bakeoff.records.atomic_file import lock_at_once, write_atomically
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError, os_reason
from bakeoff.records.metrics import Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import PARTS, refuse_checks
from bakeoff.records.schema import (
    CAPTURE,
    FIRST_CALL,
    SETTLE,
    Ceilings,
    Environment,
    Frozen,
    Memory,
    Phase,
    Placement,
    Record,
    Seconds,
    WarmUp,
    Work,
)
from bakeoff.records.traits import ModelTraits

VMSTAT = Path("/proc/vmstat")
"""The kernel's counters, on Linux."""


BUILD_FILE = "build.json"
FOLDERS = ("cells", "logs", "reference")

CHECKSUM_DIGITS = 8

MOST_READ_BYTES = 2**32
"""Of a larger file, such as a data set, the time of its last change is compared. Reading it could take minutes."""

Kept = TypeVar("Kept", bound=Frozen)


class Origin(Frozen):
    """Where a contest's model comes from, to tell whether it is the same later. What is not known is empty."""

    fingerprint: str = ""  # that its builds are found by
    weights: str = ""  # a digest
    variables: dict[str, str] = Field(default_factory=dict)  # digests of the environment variables that its files read
    files: dict[str, str] = Field(default_factory=dict)  # digests of the user's files, by their paths


KEPT_IN: dict[type[Frozen], str] = {
    Work: "work.json",
    ModelTraits: "traits.json",
    Metrics: "metrics.json",
    Origin: "origin.json",
}


class UnfinishedCell(Frozen):
    """A cell between two of its processes."""

    record: Record  # as it would stand without a further process
    time_left_s: float  # of its time limit
    last_process_s: Seconds  # that its last process took of this limit
    peak_memory: Memory | None  # of its last process
    builds: str  # the folder of what it has built; caches do not survive a move


class FirstBuild(Frozen):
    """What a cell has built in its first process, before this process has ended."""

    folder: str  # that it lies in; caches do not survive a move
    phases: list[Phase]
    memory: Memory
    built_at: str = ""  # date and time, in ISO 8601
    label: str = ""  # configuration of the cell that made it, of all that may share it
    placement: Placement | None = None
    warm_ups: dict[str, WarmUp] = Field(default_factory=dict)  # of first processes that start from it, by configuration

    @property
    def has_artefact(self) -> bool:
        """True if a later process can start from something. Calls and captured graphs leave nothing."""
        return any(phase.name not in (CAPTURE, FIRST_CALL, SETTLE) for phase in self.phases)


class UnfinishedContest(Frozen):
    """A contest between two epochs. It goes on from here when a run that was killed is resumed."""

    contest_id: str
    epochs: int  # that have ended
    held_all: bool  # memory held all cells at once in the last one
    cells: list[UnfinishedCell]
    place: str = ""  # of a pool


class ContestSoFar(Frozen):
    """What is known of a contest's cells while an epoch goes on: for a report on a run that ends now."""

    records: list[Record]


OF_ANOTHER_VERSION = "was begun by another version of Bakeoff, which alone can go on with it: start the run anew"


def what_is_kept_in(run: object) -> str:
    """Return what to do with a run, or one that is not known here (`RUN`), that an error has ended."""
    folder = shlex.quote(str(run))
    return f"what a run has measured is kept: `bakeoff report {folder}` ranks it, and `bakeoff resume {folder}` goes on"


class Store:
    """The folder of one run. Everything in it except the report is written while the run goes on."""

    def __init__(self, root: Path, vmstat: Path = VMSTAT) -> None:
        self.root = root
        self._save_elapsed: Callable[[], object] = lambda: None
        self._vmstat = vmstat
        self._kernel_kills = _kernel_kills(vmstat)

    @staticmethod
    def check(root: Path) -> None:
        """Make the folder of a new run. Raises UsageError if it cannot be made or written, or is not empty."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()):
                rest = f", or: bakeoff resume {shlex.quote(str(root))}" if Store.is_run(root) else ""
                raise UsageError(f"--out {shlex.quote(str(root))}: the folder is not empty; name another{rest}")
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as error:
            why = f"cannot be written ({os_reason(error)}): name a folder that can"
            raise UsageError(f"--out {shlex.quote(str(root))}: {why}") from None

    @classmethod
    def create(
        cls, root: Path, request: Frozen, planned: Sequence[str], command: str, ahead: Sequence[Record] = ()
    ) -> Store:
        """Begin a new run in `root`, wholly or not at all. Raise what `check` raises. Of a cell that has no numbers
        yet, a report has the record that is in `ahead`."""
        is_new = not root.exists()
        cls.check(root)
        plan = {
            "command": command,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "planned": list(planned),
            "request": request.model_dump(mode="json"),
        }
        try:
            for name in FOLDERS:
                (root / name).mkdir()
            write_atomically(root / "ahead.json", ContestSoFar(records=list(ahead)).model_dump_json())
            write_atomically(root / "plan.json", json.dumps(plan, indent=1))
        except BaseException:  # Ctrl-C, SIGTERM, or a disk that is full
            for path in (*(root / name for name in FOLDERS), root / "ahead.json", root / "plan.json"):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            if is_new:
                root.rmdir()
            raise
        return cls(root)

    @staticmethod
    def is_run(root: Path) -> bool:
        return (root / "plan.json").exists()

    @classmethod
    def open(cls, root: Path) -> Store:
        """Open the folder of an earlier run. Raises UsageError if there is none."""
        store = cls(root)
        store.request()
        return store

    @contextlib.contextmanager
    def measured_here(self) -> Iterator[None]:
        """Hold the run inside of the block. Raise UsageError where another process measures it."""
        with (self.root / "plan.json").open("ab") as plan:
            with contextlib.suppress(OSError):  # the file system has no locks
                try:
                    lock_at_once(plan)
                except BlockingIOError:
                    raise UsageError(f"{self.root}: another process measures this run: let it end first") from None
            yield

    def request(self) -> dict[str, Any]:
        """Return the request as JSON values. Raises UsageError if the folder holds no readable run."""
        plan = self._read_plan()
        if not isinstance(plan, dict) or not isinstance(plan.get("request"), dict):
            raise UsageError(f"{self.root} {OF_ANOTHER_VERSION}")
        return dict(plan["request"])

    @property
    def command(self) -> str:
        return str(self._read_plan().get("command", ""))

    @property
    def created_at(self) -> str:
        return str(self._read_plan()["created_at"])

    @property
    def planned(self) -> list[str]:
        return list(self._read_plan().get("planned", []))

    def ahead(self) -> list[Record]:
        """Return what a report says of planned cells while nothing of them was measured, if that was kept."""
        kept = _read(self.root / "ahead.json", ContestSoFar)
        return kept.records if kept else []

    def save(self, record: Record) -> None:
        self._write("cells", record.cell.id, record)

    def keep(self, contest: UnfinishedContest) -> None:
        """Write how far a contest has come, in one step, in case the run is killed."""
        self._write("unfinished", contest.contest_id, contest)
        self._file("so_far", contest.contest_id).unlink(missing_ok=True)
        self._save_elapsed()

    def keep_so_far(self, contest_id: str, records: Sequence[Record]) -> None:
        """Write what an epoch that goes on has measured so far. A resumed run measures the epoch again."""
        self._write("so_far", contest_id, ContestSoFar(records=list(records)))
        self._save_elapsed()

    def has_unfinished_processes(self) -> bool:
        """Return True if processes have numbers that a resumed run replaces, as not all cells had ended theirs."""
        ended = {cell.record.cell.id: len(cell.record.processes) for one in self.all_unfinished() for cell in one.cells}
        return any(
            len(record.processes) > ended.get(record.cell.id, 0) and not self.has(record.cell.id)
            for record in self._all_so_far()
        )

    def _all_so_far(self) -> list[Record]:
        return [record for kept in _read_all(self.root / "so_far", ContestSoFar) for record in kept.records]

    def cells_with_numbers(self, contest_id: str) -> int:
        """Return how many cells have numbers in what `keep_so_far` has written last."""
        kept = _read(self._file("so_far", contest_id), ContestSoFar)
        return sum(bool(record.bursts) for record in kept.records) if kept else 0

    def unfinished(self, contest_id: str) -> UnfinishedContest | None:
        """Return how far a contest has come, or None if it has not begun or has ended."""
        return _read(self._file("unfinished", contest_id), UnfinishedContest)

    def all_unfinished(self) -> list[UnfinishedContest]:
        return _read_all(self.root / "unfinished", UnfinishedContest)

    def forget(self, contest_id: str, cell_ids: Sequence[str]) -> None:
        self._file("unfinished", contest_id).unlink(missing_ok=True)
        self._file("so_far", contest_id).unlink(missing_ok=True)
        self.forget_builds(cell_ids)

    def builds(self, build_id: str) -> Path:
        """Return the folder for what the workers of a cell, and cells served by one dynamic build, share: its artefact
        and its caches. It is resolved, because some compilers take a path through a link for another one."""
        return self.root.resolve() / "builds" / build_id

    def forget_builds(self, build_ids: Iterable[str]) -> None:
        for build_id in build_ids:
            shutil.rmtree(self.builds(build_id), ignore_errors=True)
        with contextlib.suppress(OSError):  # something else was built, too
            (self.root / "builds").rmdir()

    @staticmethod
    def keep_build(build: FirstBuild) -> None:
        """Write what a build has taken beside it, in case the run is killed before anything of it is measured."""
        write_atomically(Path(build.folder) / BUILD_FILE, build.model_dump_json())

    @staticmethod
    def build_in(folder: Path) -> FirstBuild | None:
        """Return what was kept of the build in this folder, unless it was moved here or another version kept it."""
        try:
            build = FirstBuild.model_validate_json((folder / BUILD_FILE).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return build if build.folder == str(folder) else None

    def records(self, cell_ids: Sequence[str] | None = None) -> list[Record]:
        """Return the records so far of these cells, or of all of them in the order planned. A cell that has not ended
        has the record that was kept last."""
        records = {cell.record.cell.id: cell.record for contest in self.all_unfinished() for cell in contest.cells}
        records |= {record.cell.id: record for record in self._all_so_far()}
        wanted = self.planned if cell_ids is None else cell_ids
        for cell_id in wanted:
            if ended := _read(self._file("cells", cell_id), Record):
                records[cell_id] = ended
        return [records[cell_id] for cell_id in wanted if cell_id in records]

    def has(self, cell_id: str) -> bool:
        return self._file("cells", cell_id).exists()

    def forget_left(self) -> None:
        """Remove the records of cells that the run did not reach or had no disk for, so that they are measured now."""
        for record in self.records():
            if record.is_left_to_resume and not record.starts:
                self._file("cells", record.cell.id).unlink(missing_ok=True)

    def next_group(self) -> int:
        return 1 + max((burst.group for record in self.records() for burst in record.bursts), default=-1)

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def reference(self, contest_id: str) -> Path:
        return self._of_contest(contest_id, "pt")

    def sample(self, contest_id: str) -> Path:
        return self._of_contest(contest_id, "sample.npz")

    def inputs(self, contest_id: str) -> Path:
        """Return the file with the contest's input sets, for cells whose build is made with those of another size."""
        return self._of_contest(contest_id, "inputs.pt")

    def keep_facts(self, contest_id: str, facts: Work | ModelTraits | Metrics | Origin) -> None:
        """Keep a call's work, the model's traits and origin, or what `evaluate` says of the reference."""
        write_atomically(self._of_contest(contest_id, KEPT_IN[type(facts)]), facts.model_dump_json())

    def facts(self, contest_id: str, kind: type[Kept]) -> Kept | None:
        return _read(self._of_contest(contest_id, KEPT_IN[kind]), kind)

    def origin(self, contest_id: str) -> Origin:
        """Return where the contest's model comes from. Nothing is known of it before its reference is computed."""
        return self.facts(contest_id, Origin) or Origin()

    def origins(self, contest_id: str | None = None) -> dict[str, Origin]:
        """Return where the model of each contest comes from, by the contest's id, or that of one alone."""
        suffix = f".{KEPT_IN[Origin]}"
        files = (self.root / "reference").glob(f"*{suffix}")
        ids = [contest_id] if contest_id else sorted(file.name.removesuffix(suffix) for file in files)
        return {one: origin for one in ids if (origin := self.facts(one, Origin))}

    def own_variables(self, contest_id: str | None = None) -> dict[str, str]:
        """Return digests of the environment variables that the models' files read, or those of one contest's model."""
        origins = self.origins(contest_id).values()
        return {name: digest for origin in origins for name, digest in origin.variables.items()}

    def _digests(self, contest_id: str | None = None) -> dict[str, str]:
        origins = self.origins(contest_id).values()
        return {path: digest for origin in origins for path, digest in origin.files.items()}

    def own_files(self) -> dict[str, str]:
        """Return checksums of the user's files that were read whole, by their paths below the folder that holds all."""
        read = {path: digest for path, digest in self._digests().items() if len(digest) == CHECKSUM_DIGITS}
        common = set.intersection(*(set(Path(path).parents) for path in read)) if read else set()
        above = max(common, key=lambda folder: len(folder.parts), default=None)  # None: on several drives
        return {str(Path(path).relative_to(above)) if above else path: digest for path, digest in read.items()}

    def changed_files(self, contest_id: str | None = None) -> list[str]:
        """Return the user's files that are not as they were when a contest of theirs, or this one, began."""
        kept = self._digests(contest_id)
        return sorted(path for path, digest in kept.items() if file_digest(Path(path)) != digest)

    def save_ceilings(self, device: Device, precision: Precision, ceilings: Ceilings) -> None:
        self._write("ceilings", f"{device.slug}_{precision}", ceilings)

    def ceilings(self, device: Device, precision: Precision) -> Ceilings | None:
        return _read(self._file("ceilings", f"{device.slug}_{precision}"), Ceilings)

    def note(self, text: str) -> None:
        if text not in self.notes():
            with open(self.root / "notes.txt", "a", encoding="utf-8") as file:
                file.write(text + "\n")

    def notes(self) -> list[str]:
        path = self.root / "notes.txt"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return list(dict.fromkeys(lines))  # two places of a pool may have written the same one

    def save_environment(self, environment: Environment) -> None:
        write_atomically(self.root / "environment.json", environment.model_dump_json(indent=1))

    def environment(self) -> Environment | None:
        return _read(self.root / "environment.json", Environment)

    @contextlib.contextmanager
    def timed(self, now_s: Callable[[], float] = time.monotonic) -> Iterator[Callable[[], object]]:
        """Add the time of the block to that of the run, even if the block raises. It can save the time so far."""
        begun_s, before_s = now_s(), self.elapsed_s
        self._save_elapsed = lambda: write_atomically(self.root / "elapsed_s", str(before_s + now_s() - begun_s))
        try:
            yield self._save_elapsed
        finally:
            self._save_elapsed()

    @property
    def elapsed_s(self) -> float:
        """The seconds of measuring so far, over all resumptions, up to the last epoch where SIGKILL ended it."""
        path = self.root / "elapsed_s"
        return float(path.read_text()) if path.exists() else 0.0

    @property
    def resumed_at(self) -> str:
        """When the run was resumed last, in ISO 8601, UTC; empty if it never was."""
        path = self.root / "resumed_at"
        return path.read_text() if path.exists() else ""

    def was_resumed(self, at: str) -> None:
        write_atomically(self.root / "resumed_at", at)

    def kernel_killed(self) -> bool:
        """Return True if the kernel has killed a process for lack of memory since the last call of this."""
        before, self._kernel_kills = self._kernel_kills, _kernel_kills(self._vmstat)
        return self._kernel_kills > before

    def _file(self, kind: str, name: str) -> Path:
        """Return a file of one kind: `cells` that have ended, contests that are `unfinished` or known `so_far`."""
        return self.root / kind / f"{name}.json"

    def _write(self, kind: str, name: str, content: Frozen) -> None:
        path = self._file(kind, name)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, content.model_dump_json())

    def _of_contest(self, contest_id: str, what: str) -> Path:
        """Return the file with something that is known of the contest's model, beside its reference."""
        return self.root / "reference" / f"{contest_id}.{what}"

    def _read_plan(self) -> dict[str, Any]:
        path = self.root / "plan.json"
        try:
            plan: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError):
            refuse_checks(self.root)
            lacks = "holds no run that can be read: name the folder that --out named, or one of results/"
            if Store.is_run(self.root / PARTS):
                lacks = "compares parts of a pipeline that lived in one process: start that anew, in another folder"
            raise UsageError(f"{self.root} {lacks}") from None
        return plan


def _read(path: Path, kind: type[Kept]) -> Kept | None:
    """Return what a file holds, or None if there is no file. Raise BakeoffError for one that is damaged."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise BakeoffError(f"{path} is damaged ({why}): remove it, and `bakeoff resume` measures it again") from None


def _read_all(folder: Path, kind: type[Kept]) -> list[Kept]:
    return [kept for path in folder.glob("*.json") if (kept := _read(path, kind))]


def file_digest(path: Path) -> str:
    """Return what a file is known by, or nothing if there is none: its content, or the time of a huge one."""
    if not path.is_file():
        return ""
    status = path.stat()
    return f"{status.st_mtime_ns}" if status.st_size > MOST_READ_BYTES else _checksum(path, status.st_mtime_ns)


@functools.cache
def _checksum(path: Path, modified_ns: int) -> str:
    """Return a checksum of all of a file, which is read once for all contests. It shows accidents, and no forgery."""
    checksum, piece = 0, memoryview(bytearray(2**18))
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(piece):
            checksum = zlib.crc32(piece[:read], checksum)
    return f"{checksum:0{CHECKSUM_DIGITS}x}"


def _kernel_kills(vmstat: Path) -> int:
    """Return how many processes the kernel has killed for lack of memory, or 0 if it does not say."""
    if not vmstat.exists():
        return 0
    with open(vmstat, encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
