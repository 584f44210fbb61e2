"""Sums up profiles by the modules of the user's model, and puts two of them side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from pydantic import Field, JsonValue

from bakeoff.backends.profiling import ROUNDED_OFF, Kind, ProfiledKernel
from bakeoff.judging import fit, roofline
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import DEVICE, Ceilings, Cell, Record, Status
from bakeoff.why.records import CellProfile

Modules = tuple[str, ...]

WANTED_ROWS = 20
"""Without a depth, modules are opened as long as there are no more rows than this."""

WELL_EXPLAINED = 0.05
"""Rows explain a call if they leave no more than this share of it."""

MOST_EVEN_COST = 2.0
"""A profiled call that takes no more times as long is taken to be longer by the same share in all rows."""

MOST_UNEVEN = 1.25
"""Otherwise a row is rough if its time is this many times another, depending on what the profiler takes longer for."""

NOTEWORTHY_SHARE = 0.1
MOST_NAMED = 3

NOT_OWNED = {kind: f"({kind})" for kind in Kind} | {Kind.COMPUTE: "(operators whose module is not known)"}
"""What stands in the place of modules, by the kind of what none of them owns."""

UNSEEN = "(not attributed)"
"""The name of the rest of a call that no part has."""


class ProfiledCell(NamedTuple):
    """The profile of a cell, with the cell's record in the run and what the machine reaches at best, if it is known."""

    profile: CellProfile
    record: Record
    ceilings: Ceilings | None = None


class Bound(Frozen):
    """Which of the machine's two ceilings a module meets first, and the least time that both leave for it."""

    by: str  # "compute" or "memory"
    floor_ms: float
    share: float | None  # of the row's time that is the floor; None where other rows hold work of the module, too


LATENCY = "latency in ms"
FAR_OFF = 2.0


class Unlike(Frozen):
    """What differs between a cell in the run and in the profile. Then the profile may not explain the run."""

    label: str
    what: str  # `LATENCY`, "threads", or the name of a library
    in_run: float | str
    in_profile: float | str

    @property
    def is_far_off(self) -> bool:
        """Return True for a latency so far from the run's that a ratio to the other cell would say nothing."""
        if self.what != LATENCY or isinstance(self.in_run, str) or isinstance(self.in_profile, str):
            return False
        return max(self.in_run, self.in_profile) >= FAR_OFF * min(self.in_run, self.in_profile)


class Differing(Frozen):
    """In what two cells differ beside their builds, so that a ratio of them holds that, too."""

    what: str  # such as "precision"
    values: tuple[str, str]


class ModuleRow(Frozen):
    """One row: modules, or what no module owns, with its time in a call of each of the two cells."""

    modules: Modules = ()  # several where kernels work for all of them; empty where no module owns it
    kind: Kind | None = None  # of what no module owns; None: of modules, or of the rest that no row has
    classes: tuple[str, ...] = ()  # of the modules
    ms: float | None  # in a call as it is without the profiler; None: the cell has no such row
    share: float | None
    against_ms: float | None = None
    ratio: float | None = None  # of the other cell's time to this one's: above 1, this one is faster
    mostly: tuple[tuple[str, float], ...] = ()  # the names that take most of it, with their shares of the row
    bound: Bound | None = None  # of one module's row, where its work and the machine's ceilings are known
    against_bound: Bound | None = None  # the same in the other cell
    is_rough: bool = False  # the profiler's own time hides what it is
    against_is_rough: bool = False


class Explanation(Frozen):
    """Where the time of a call goes."""

    label: str
    against: str | None
    depth: int | None  # None: modules are opened where most of the time goes
    rows: list[ModuleRow]
    call_ms: float
    residual_ms: float  # of a call, that no row has; negative where rows have more
    profiling_cost: float  # a profiled call over one without the profiler
    against_call_ms: float | None = None
    against_residual_ms: float | None = None
    against_profiling_cost: float | None = None
    unlike: tuple[Unlike, ...] = ()
    differing: tuple[Differing, ...] = ()
    incorrect: dict[str, str] = Field(default_factory=dict)  # why the run calls a cell incorrect, by its label
    was_busy: bool = False  # the machine, in the run, so that the two cells have no ratio

    @property
    def is_whole(self) -> bool:
        """Return True if the rows of both cells sum to their calls within 5 %."""
        pairs = [(self.residual_ms, self.call_ms), (self.against_residual_ms, self.against_call_ms)]
        return all(abs(residual) <= WELL_EXPLAINED * call for residual, call in pairs if residual is not None and call)


class ExplanationAnswer(Frozen):
    """What `bakeoff explain --json` prints. Profiles have every kernel of both cells."""

    explanation: Explanation
    profiles: list[dict[str, JsonValue]]

    @classmethod
    def of_profiles(cls, explanation: Explanation, profiles: Sequence[CellProfile]) -> ExplanationAnswer:
        dumped = [profile.model_dump(mode="json", exclude={"spans"}) for profile in profiles]
        return cls(explanation=explanation, profiles=dumped)


Key = tuple[Modules, Kind | None]


def explain(cells: Sequence[ProfiledCell], depth: int | None = None) -> Explanation:
    """Return the rows of a profile, beside those of a second one if there are two. `depth` is how many names of a path
    are told apart. Without it, modules are opened where most of the time goes."""
    profiles = [cell.profile for cell in cells]
    profile, against = profiles[0], profiles[1] if len(profiles) > 1 else None
    holders = {holder for profile in profiles for path in profile.classes for holder in holders_of(path)}
    opened = {one for one in holders if len(holders_of(one)) < depth} if depth else opened_by_time(profiles, holders)
    tables = [summed(profile, opened) for profile in profiles]
    order = {path: place for place, path in enumerate(profile.classes)}
    keys = sorted({key for table in tables for key in table}, key=lambda key: place_of(key, order))
    unlike = tuple(difference for cell in cells for difference in differences(cell))
    bursts = [cell.record.bursts for cell in cells]
    # if the run's machine was too busy for a ratio, it mostly is so for the profile, too
    was_busy = len(cells) > 1 and all(bursts) and not fit.speedup(bursts[0], bursts[1]).is_told
    may_compare = not was_busy and not any(difference.is_far_off for difference in unlike)
    rows = []
    for modules, kind in keys:
        times = [time_in_row((modules, kind), cell, table, opened) for cell, table in zip(cells, tables, strict=True)]
        (ms, is_rough, bound), (against_ms, against_is_rough, against_bound) = (*times, NO_TIME)[:2]
        has_ratio = may_compare and not (is_rough or against_is_rough)
        rows.append(
            ModuleRow(
                modules=modules,
                kind=kind,
                classes=tuple(profile.classes.get(path, "") for path in modules),
                ms=ms,
                share=None if ms is None else ms / profile.call_ms,
                against_ms=against_ms,
                ratio=against_ms / ms if ms and against_ms and has_ratio else None,
                mostly=mostly_of(next(table[modules, kind] for table in tables if (modules, kind) in table)),
                bound=bound,
                against_bound=against_bound,
                is_rough=is_rough,
                against_is_rough=against_is_rough,
            )
        )
    return Explanation(
        label=profile.label,
        against=against.label if against else None,
        depth=depth,
        rows=rows,
        call_ms=profile.call_ms,
        residual_ms=residual_of(profile),
        profiling_cost=profile.profiled_ms / profile.call_ms,
        against_call_ms=against.call_ms if against else None,
        against_residual_ms=residual_of(against) if against else None,
        against_profiling_cost=against.profiled_ms / against.call_ms if against else None,
        unlike=unlike,
        differing=tuple(differing(cells[0].record.cell, cells[1].record.cell)) if against else (),
        incorrect={cell.profile.label: cell.record.reason for cell in cells if cell.record.status is Status.INCORRECT},
        was_busy=was_busy,
    )


TimeInRow = tuple[float | None, bool, Bound | None]
"""The time of a row in one cell, whether it is rough, and what bounds it."""
NO_TIME: TimeInRow = (None, False, None)


def time_in_row(
    key: Key, cell: ProfiledCell, table: Mapping[Key, Sequence[ProfiledKernel]], opened: Set[str]
) -> TimeInRow:
    if key not in table:
        return NO_TIME
    ms, is_rough = time_of(table[key], cell.profile), is_rough_in(table[key], cell.profile)
    return ms, is_rough, None if is_rough else bound_of(key[0], ms, cell, table, opened)


def is_rough_in(parts: Sequence[ProfiledKernel], profile: CellProfile) -> bool:
    """Return True if a row's time depends much on how the profiler's own time falls on the rows of a call."""
    if profile.profiled_ms <= MOST_EVEN_COST * profile.call_ms:
        return False
    runs, all_runs = (
        sum(part.runs for part in some if part.kind in (Kind.COMPUTE, Kind.COPY)) for some in (parts, profile.parts)
    )
    added_ms = (profile.profiled_ms - profile.call_ms) * runs / all_runs if all_runs else 0.0
    # Rows are scaled alike. This is the time if each run of a kernel or an operator takes equally longer.
    by_run = (sum(part.ms for part in parts) - added_ms) / time_of(parts, profile)
    return not 1 / MOST_UNEVEN <= by_run <= MOST_UNEVEN


def named_apart(cells: Sequence[ProfiledCell]) -> list[ProfiledCell]:
    """Return the cells with labels that tell two of them apart: `eager fp32` and `eager bf16`, or `onnx batch 8`."""
    if len(cells) < 2 or cells[0].profile.label != cells[1].profile.label:
        return list(cells)
    apart = differing(cells[0].record.cell, cells[1].record.cell)
    names = [
        " ".join([cell.profile.label, *(difference.values[side] for difference in apart)])
        for side, cell in enumerate(cells)
    ]
    return [cell._replace(profile=cell.profile.but(label=name)) for cell, name in zip(cells, names, strict=True)]


def differing(mine: Cell, other: Cell) -> list[Differing]:
    sizes = dict.fromkeys((*mine.dimensions, *other.dimensions))
    pairs = [(name, *(f"{name} {cell.dimensions.get(name, '-')}" for cell in (mine, other))) for name in sizes]
    pairs += [(what, str(getattr(mine, what)), str(getattr(other, what))) for what in ("task", "device", "precision")]
    return [Differing(what=what, values=(one, two)) for what, one, two in pairs if one != two]


def bound_of(
    modules: Modules, ms: float, cell: ProfiledCell, rows: Mapping[Key, object], opened: Set[str]
) -> Bound | None:
    """Return what bounds the row of one module with everything inside it, or None for other rows."""
    needs, ceilings = cell.profile.needs, cell.ceilings
    if not ms or not ceilings or len(modules) != 1 or modules[0] not in needs or not needs[modules[0]].bytes_moved:
        return None
    path = modules[0]
    if path in opened and any(path in holders_of(other) for other in cell.profile.classes):
        return None  # what is inside has rows of its own
    roof = roofline.of(needs[path], ceilings, None)
    is_elsewhere = sum(path in others for others, _ in rows) > 1
    return Bound(by=roof.bound, floor_ms=roof.floor_ms, share=None if is_elsewhere else roof.floor_ms / ms)


def differences(cell: ProfiledCell) -> list[Unlike]:
    """Return in what the profiled calls were not those of the run."""
    profile, record = cell.profile, cell.record
    pairs: list[tuple[str, float | str, float | str]] = []
    if record.latency:
        low = high = record.latency.median_ms
        if record.latency.median_ci95_ms:
            low, high = record.latency.median_ci95_ms.low, record.latency.median_ci95_ms.high
        is_like = low * (1 - WELL_EXPLAINED) <= profile.median_ms <= high * (1 + WELL_EXPLAINED)
        then = record.latency.median_ms
        # the interval of a busy machine may hold anything
        if not is_like or max(then, profile.median_ms) >= FAR_OFF * min(then, profile.median_ms):
            pairs.append((LATENCY, then, profile.median_ms))
    if record.cell.inputs_from != DEVICE:
        pairs.append(("source of inputs", record.cell.inputs_from, DEVICE))
    threads = record.settings.get("threads")
    if isinstance(threads, int) and profile.threads and threads != profile.threads.allowed:
        pairs.append(("threads", float(threads), float(profile.threads.allowed)))
    pairs += [
        (name, version, profile.versions[name])
        for name, version in record.versions.items()
        if profile.versions.get(name, version) != version
    ]
    return [Unlike(label=profile.label, what=what, in_run=then, in_profile=now) for what, then, now in pairs]


def moved(profile: CellProfile) -> dict[str, tuple[float, float]]:
    """Return how often and for how many milliseconds a call casts, copies or changes a layout, by the operator's name.
    The times are those of a call without the profiler, the longest first."""
    times: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for part in profile.parts:
        if part.kind is Kind.COPY and part.name != ROUNDED_OFF:
            times[part.name][0] += part.runs
            times[part.name][1] += time_of([part], profile)
    by_time = sorted(times.items(), key=lambda item: -item[1][1])
    return {name: (runs, ms) for name, (runs, ms) in by_time}


def longest_joined(profile: CellProfile) -> ProfiledKernel | None:
    joined = [part for part in profile.parts if len(part.modules) > 1 and part.kind is Kind.COMPUTE]
    return max((part for part in joined if part.name != ROUNDED_OFF), key=lambda part: part.ms, default=None)


def summed(profile: CellProfile, opened: Set[str]) -> dict[Key, list[ProfiledKernel]]:
    """Return the parts of a profile by their folded modules, or by their kind where no module owns them."""
    rows: defaultdict[Key, list[ProfiledKernel]] = defaultdict(list)
    order = {path: place for place, path in enumerate(profile.classes)}
    for part in profile.parts:
        in_order = sorted(part.modules, key=lambda path: (order.get(path, len(order)), path))
        paths = dict.fromkeys(folded(path, opened) for path in in_order)
        modules = tuple(path for path in paths if path) or tuple(paths)  # the model itself, where no other one is
        rows[modules, None if modules else part.kind].append(part)
    return dict(rows)


def folded(path: str, opened: Set[str]) -> str:
    """Return the outermost module on the way to `path` that is not opened, or the path itself."""
    return next((holder for holder in holders_of(path) if holder not in opened), path)


def holders_of(path: str) -> list[str]:
    """Return what holds a module, from the model on: `["", "layers"]` for `layers.3`."""
    names = path.split(".") if path else []
    return [".".join(names[:count]) for count in range(len(names))]


def opened_by_time(profiles: Sequence[CellProfile], holders: Set[str]) -> Set[str]:
    """Return the modules to open so that rows show where most of the time goes, and are no more than `WANTED_ROWS`."""
    opened: Set[str] = {""}
    refused: set[str] = set()
    while True:
        shares: defaultdict[str, float] = defaultdict(float)
        for profile in profiles:
            for (modules, _), parts in summed(profile, opened).items():
                for path in modules:
                    shares[path] += time_of(parts, profile) / profile.call_ms / len(profiles)
        large = {
            path: share
            for path, share in shares.items()
            if share >= NOTEWORTHY_SHARE and path in holders and path not in opened | refused
        }
        if not large:
            return opened
        slowest = max(large, key=lambda path: large[path])
        # Like neighbours are opened together.
        together = {path for path in large if path.rpartition(".")[0] == slowest.rpartition(".")[0]}
        wider = opened | together
        if len({key for profile in profiles for key in summed(profile, wider)}) <= WANTED_ROWS:
            opened = wider
        else:
            refused |= together


def place_of(key: Key, order: dict[str, int]) -> tuple[int, int, str]:
    """Return where a row stands: modules in the model's order, then what no module owns."""
    modules, kind = key
    if not modules:
        return (1, list(Kind).index(kind) if kind else 0, "")
    return (0, min(order.get(path, len(order)) for path in modules), "+".join(modules))


def time_of(parts: Sequence[ProfiledKernel], profile: CellProfile) -> float:
    """Return the time of parts in a call as it is without the profiler: their share of the profiled call, of that."""
    return sum(part.ms for part in parts) / profile.profiled_ms * profile.call_ms


def residual_of(profile: CellProfile) -> float:
    return profile.call_ms - time_of(profile.parts, profile)


def mostly_of(parts: Sequence[ProfiledKernel]) -> tuple[tuple[str, float], ...]:
    """Return the names that take a tenth of a row or more, with their shares, the largest first."""
    whole_ms = sum(part.ms for part in parts)
    times: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        times[kernel_name(part.name)] += part.ms
    shares = sorted(((name, ms / whole_ms) for name, ms in times.items() if whole_ms), key=lambda pair: -pair[1])
    return tuple(pair for pair in shares[:MOST_NAMED] if pair[1] >= NOTEWORTHY_SHARE)


def kernel_name(name: str) -> str:
    """Return the name of a GPU's kernel without what a C++ compiler adds: result, template arguments and parameters."""
    if not name.startswith("void ") and "<" not in name:
        return name
    plain, longer = name.replace("(anonymous namespace)::", ""), ""
    while plain != longer:
        plain, longer = re.sub("<[^<>]*>", "", plain), plain
    return plain.partition("(")[0].split()[-1]


class Branch(Frozen):
    """A module with all that is inside of it, or what no module owns, with its time in a call of each of two cells."""

    name: str  # the last name of its path, or the names of modules that kernels join
    ms: tuple[float, ...]  # in each cell
    mostly: tuple[tuple[tuple[str, float], ...], ...] = ()  # in each cell: the names that take most of it, with shares
    is_module: bool = True
    branches: tuple[Branch, ...] = ()  # the largest one first


Place = tuple[str, ...]


def tree_of(profiles: Sequence[CellProfile]) -> Branch:
    """Return profiles as one tree of modules. What works for several modules is not divided among them: it is a branch
    of the module that holds them all."""
    parts: defaultdict[Place, list[list[ProfiledKernel]]] = defaultdict(lambda: [[] for _ in profiles])
    for side, profile in enumerate(profiles):
        rest_ms = max(0.0, residual_of(profile)) / profile.call_ms * profile.profiled_ms
        for part in (*profile.parts, ProfiledKernel(name=UNSEEN, ms=rest_ms, runs=1)):
            parts[place_in_tree(part)][side].append(part)
    return branch_at((), parts, profiles)


def place_in_tree(part: ProfiledKernel) -> Place:
    if not part.modules:
        return (part.name if part.name == UNSEEN else NOT_OWNED[part.kind],)
    paths = [path.split(".") if path else [] for path in part.modules]
    if len(paths) == 1:
        return tuple(paths[0])
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    names = " + ".join(".".join(path[shared:]) or "itself" for path in paths)
    return (*paths[0][:shared], names)


def branch_at(
    place: Place, parts: Mapping[Place, list[list[ProfiledKernel]]], profiles: Sequence[CellProfile]
) -> Branch:
    depth = len(place)
    inside = {key: value for key, value in parts.items() if key[:depth] == place}
    names = dict.fromkeys(key[depth] for key in inside if len(key) > depth)
    branches = sorted((branch_at((*place, name), inside, profiles) for name in names), key=lambda branch: -branch.ms[0])
    own = [[part for value in inside.values() for part in value[side]] for side in range(len(profiles))]
    return Branch(
        name=place[-1] if place else "",
        ms=tuple(time_of(parts, profile) for parts, profile in zip(own, profiles, strict=True)),
        mostly=tuple(map(mostly_of, own)),
        is_module=not place or not place[0].startswith("("),
        branches=tuple(branches),
    )
