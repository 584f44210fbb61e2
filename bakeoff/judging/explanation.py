"""Sums up profiles by the modules of the user's model, down to a depth, and puts two of them side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from bakeoff.records.frozen import Frozen
from bakeoff.records.profile import CellProfile, Kind, Part

Modules = tuple[str, ...]

WANTED_ROWS = 20
"""Without a depth, modules are folded until there are no more rows than this."""

WELL_EXPLAINED = 0.05
"""Rows explain a call if they leave no more than this share of it."""

NOTEWORTHY_SHARE = 0.1
MOST_NAMED = 3


class Row(Frozen):
    """One row: modules, or what no module owns, with its time in a call of each of the two cells."""

    modules: Modules  # several where kernels work for all of them; empty where no module owns it
    kind: Kind | None = None  # of what no module owns
    classes: tuple[str, ...] = ()  # of the modules
    ms: float | None  # in a call as it is without the profiler; None: the cell has no such row
    share: float | None
    against_ms: float | None = None
    ratio: float | None = None  # of the other cell's time to this one's: above 1, this one is faster
    mostly: tuple[tuple[str, float], ...] = ()  # the names that take most of it, with their shares of the row


class Explanation(Frozen):
    """Where the time of a call goes."""

    label: str
    against: str | None
    depth: int
    rows: list[Row]
    call_ms: float
    residual_ms: float  # of a call, that no row has; negative where rows have more
    profiling_cost: float  # a profiled call over one without the profiler
    against_call_ms: float | None = None
    against_residual_ms: float | None = None
    against_profiling_cost: float | None = None

    @property
    def is_whole(self) -> bool:
        """Return True if the rows of both cells sum to their calls within 5 %."""
        pairs = [(self.residual_ms, self.call_ms), (self.against_residual_ms, self.against_call_ms)]
        return all(abs(residual) <= WELL_EXPLAINED * call for residual, call in pairs if residual is not None and call)


Key = tuple[Modules, Kind | None]


def explain(profile: CellProfile, against: CellProfile | None = None, depth: int | None = None) -> Explanation:
    """Return the rows of a profile beside those of another one. `depth` is how many names of a path are told apart."""
    profiles = [profile, *([against] if against else [])]
    depth = depth or fitting_depth(profiles)
    tables = [summed(each, depth) for each in profiles]
    order = {path: place for place, path in enumerate(profile.classes)}
    keys = sorted({key for table in tables for key in table}, key=lambda key: place_of(key, order))
    mine, other = tables[0], tables[1] if against else {}
    rows = []
    for modules, kind in keys:
        parts, beside = mine.get((modules, kind)), other.get((modules, kind))
        ms = time_of(parts, profile) if parts else None
        against_ms = time_of(beside, against) if beside and against else None
        rows.append(
            Row(
                modules=modules,
                kind=kind,
                classes=tuple(profile.classes.get(path, "") for path in modules),
                ms=ms,
                share=None if ms is None else ms / profile.call_ms,
                against_ms=against_ms,
                ratio=against_ms / ms if ms and against_ms else None,
                mostly=mostly_of(parts or beside or []),
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
    )


def summed(profile: CellProfile, depth: int) -> dict[Key, list[Part]]:
    """Return the parts of a profile by their folded modules, or by their kind where no module owns them."""
    rows: defaultdict[Key, list[Part]] = defaultdict(list)
    order = {path: place for place, path in enumerate(profile.classes)}
    for part in profile.parts:
        modules = folded_all(sorted(part.modules, key=lambda path: order.get(path, len(order))), depth)
        rows[modules, None if modules else part.kind].append(part)
    return dict(rows)


def folded_all(modules: Sequence[str], depth: int) -> Modules:
    """Return the modules down to this depth, each once. The model itself is named only where no other module is."""
    found = dict.fromkeys(folded(path, depth) for path in modules)
    return tuple(path for path in found if path) or tuple(found)


def folded(path: str, depth: int) -> str:
    """Return the first `depth` names of a path such as `layers.3.attention`."""
    return ".".join(path.split(".")[:depth])


def fitting_depth(profiles: Sequence[CellProfile]) -> int:
    """Return the largest depth that has no more than `WANTED_ROWS` rows, and 1 if there is none."""
    deepest = max((path.count(".") + 1 for profile in profiles for path in profile.classes if path), default=1)
    rows = {depth: len({key for each in profiles for key in summed(each, depth)}) for depth in range(1, deepest + 1)}
    return max((depth for depth, count in rows.items() if count <= WANTED_ROWS), default=1)


def place_of(key: Key, order: dict[str, int]) -> tuple[int, int, str]:
    """Return where a row stands: modules in the model's order, then what no module owns."""
    modules, kind = key
    if not modules:
        return (1, list(Kind).index(kind) if kind else 0, "")
    return (0, min(order.get(path, len(order)) for path in modules), "+".join(modules))


def time_of(parts: Sequence[Part], profile: CellProfile) -> float:
    """Return the time of parts in a call as it is without the profiler: their share of the profiled call, of that."""
    return sum(part.ms for part in parts) / profile.profiled_ms * profile.call_ms


def residual_of(profile: CellProfile) -> float:
    """Return the time of a call that no part has."""
    return profile.call_ms - time_of(profile.parts, profile)


def mostly_of(parts: Sequence[Part]) -> tuple[tuple[str, float], ...]:
    """Return the names that take a tenth of a row or more, with their shares, the largest first."""
    whole_ms = sum(part.ms for part in parts)
    times: defaultdict[str, float] = defaultdict(float)
    for part in parts:
        times[part.name] += part.ms
    shares = sorted(((name, ms / whole_ms) for name, ms in times.items() if whole_ms), key=lambda pair: -pair[1])
    return tuple(pair for pair in shares[:MOST_NAMED] if pair[1] >= NOTEWORTHY_SHARE)


class Branch(Frozen):
    """A module with all that is inside of it, or what no module owns, with its time in a call of each of two cells."""

    name: str  # the last name of its path, or the names of modules that kernels join
    ms: float
    against_ms: float
    branches: tuple[Branch, ...] = ()  # the largest one first


def tree_of(profile: CellProfile, against: CellProfile | None = None) -> Branch:
    """Return both profiles as one tree of modules.

    What works for several modules is a branch of the module that holds them all, and is not divided among them.
    """
    times: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, each in enumerate(filter(None, (profile, against))):
        for part in each.parts:
            times[place_in_tree(part)][side] += time_of([part], each)
        times["(no row has it)",][side] += max(0.0, residual_of(each))
    return branch_at((), times)


def place_in_tree(part: Part) -> tuple[str, ...]:
    """Return the names on the way from the model to a part."""
    if not part.modules:
        return (f"({part.kind})",)
    paths = [path.split(".") if path else [] for path in part.modules]
    if len(paths) == 1:
        return tuple(paths[0])
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    joined = " + ".join(".".join(path[shared:]) or "itself" for path in paths)
    return (*paths[0][:shared], joined)


def branch_at(place: tuple[str, ...], times: Mapping[tuple[str, ...], Sequence[float]]) -> Branch:
    """Return the branch at a place, with everything beyond it."""
    depth = len(place)
    inside = {key: value for key, value in times.items() if key[:depth] == place}
    names = dict.fromkeys(key[depth] for key in inside if len(key) > depth)
    branches = sorted((branch_at((*place, name), inside) for name in names), key=lambda branch: -branch.ms)
    ms, against_ms = (sum(value[side] for value in inside.values()) for side in (0, 1))
    return Branch(name=place[-1] if place else "", ms=ms, against_ms=against_ms, branches=tuple(branches))
