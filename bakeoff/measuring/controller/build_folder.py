"""The folder of what a cell builds, and the cells of one contest that share it.

Modes that start from the same artefact are one family, such as `onnx` and its CUDA graph. The first of its cells builds
what they share, and the others wait for it. Every record has the phases that its cell would take alone.
"""

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bakeoff import backends
from bakeoff.records.schema import FIRST_CALL, SETTLE, Cell, Extent, Phase, Placement
from bakeoff.records.store import FirstBuild, Store

EXTENTS = (Extent.FULL, Extent.PARTIAL, Extent.FALLBACK)
"""From the best to the worst."""


def built_as(cell: Cell) -> Cell:
    """Return the cell whose build this one starts from. It is the cell itself, except in a mode that has no own."""
    if cell.dynamic or cell.environment:
        return cell
    mode = backends.create(cell.backend).mode(cell.mode).built_as
    return cell.but(mode=mode) if mode else cell


@dataclass
class BuildFolder:
    """A folder with the builds of a family's cells, one in each numbered folder."""

    path: Path
    is_cached: bool = False  # it stays for the next run
    is_dynamic: bool = False  # it stays for cells of other sizes
    made: dict[int, FirstBuild] = field(default_factory=dict)  # by number; the others find it there
    from_before: FirstBuild | None = None  # what an earlier run made, or this one before it was interrupted
    _cleared: set[int] = field(default_factory=set)
    _making: dict[int, str] = field(default_factory=dict)  # which cell builds now
    _users: set[str] = field(default_factory=set)
    _keeps: bool = False
    _is_spoilt: bool = False

    def __post_init__(self) -> None:
        self.from_before = Store.build_in(self.of(0))
        if self.from_before:
            self.made[0] = self.from_before

    def of(self, build: int) -> Path:
        return self.path / str(build)

    def enter(self, label: str, has_built: bool) -> None:
        """Add a cell. What was begun by a run that ended is removed, unless something there is complete."""
        if not (self._users or has_built or self.made):
            shutil.rmtree(self.path, ignore_errors=True)
        self._users.add(label)

    def clear_once(self, build: int) -> None:
        """Remove what is left of a build that this run has not begun."""
        if build not in self._cleared:
            shutil.rmtree(self.of(build), ignore_errors=True)
            self._cleared.add(build)

    def is_made_by_another(self, build: int, label: str) -> bool:
        return self._making.get(build, label) != label

    def begin(self, build: int, label: str) -> None:
        """Have this cell make the build. Others wait until it is done."""
        self._making[build] = label

    def done(self, build: int, made: FirstBuild) -> None:
        """Let other cells of the family start from what this one has built."""
        self._making.pop(build, None)
        self.made[build] = made

    def give_up(self, build: int, label: str) -> None:
        """Remove what this cell has begun to build, if it has not come to its end. Another may be waiting there."""
        if self._making.get(build) == label:
            del self._making[build]
            for part in ("artifact", "cache"):
                for path in (self.of(build) / part).glob("*"):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        with contextlib.suppress(OSError):
                            path.unlink()

    def spoil(self) -> None:
        """Have what an earlier run built removed once no cell uses it."""
        self._is_spoilt = True

    def leave(self, label: str, keeps_build: bool) -> None:
        """Take a cell away. After the last one the folder goes, unless a later run may use it."""
        self._users.discard(label)
        self._keeps |= keeps_build
        stays = self.is_dynamic or (self.is_cached and self._keeps and not self._is_spoilt)
        if not (self._users or stays):
            shutil.rmtree(self.path, ignore_errors=True)


def folders_of(cells: Mapping[str, Cell], cached: Mapping[str, Path], store: Store) -> dict[str, BuildFolder]:
    by_path: dict[Path, BuildFolder] = {}
    folders = {}
    for cell_id, cell in cells.items():
        path = cached.get(cell_id) or store.builds(built_as(cell).build_id)
        folder = by_path.setdefault(path, BuildFolder(path, cell_id in cached, bool(cell.dynamic)))
        folders[cell_id] = folder
    return folders


def phases_alone(own: list[Phase], first: FirstBuild, cell: Cell, is_of_earlier_run: bool) -> list[Phase]:
    """Return the phases of a cell alone: those of the build `first` that it started from, and its `own`."""
    date = {"built_at": first.built_at} if is_of_earlier_run else {}
    if cell.dynamic:  # another size may have made it
        shared = {phase.name for phase in first.phases} - {FIRST_CALL, SETTLE}
    elif first.label in ("", cell.configuration):
        return [phase.but(**date) for phase in first.phases]
    else:
        shared = set(backends.create(cell.backend).shared_phases)
        date["shared_with"] = first.label
    phases = [phase.but(**date) for phase in first.phases if phase.name in shared]
    return [*phases, *(phase for phase in own if phase.name not in shared)]


def placement_of_both(own: Placement | None, first: FirstBuild | None) -> Placement | None:
    """Return where the work ran, with what was reported when it was built. A compiler reports fallbacks only then."""
    if own is None or first is None or first.placement is None:
        return own
    built = first.placement
    return own.but(
        extent=max(own.extent, built.extent, key=EXTENTS.index),
        fallbacks=list(dict.fromkeys([*built.fallbacks, *own.fallbacks])),
        frozen_choices=list(dict.fromkeys([*built.frozen_choices, *own.frozen_choices])),
    )
