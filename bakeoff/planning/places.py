"""The places of a pool: GPUs, or sets of cores, on each of which one contest is measured at a time."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import UsageError
from bakeoff.records.grouping import grouped

ALL_GPUS = "cuda:all"
PROCESSORS = Path("/sys/devices/system/cpu")

CORES = r"\d+(-\d+)?"
SET_OF_CORES = re.compile(rf"cpu:{CORES}(\+{CORES})*", re.ASCII)


@dataclass(frozen=True)
class Place:
    """A share of a machine. What is measured there sees no other GPU and uses no other core."""

    name: str  # as in --devices: cuda:1 or cpu:0-3
    device: Device  # of the cells that are measured here
    cores: tuple[int, ...]  # none where a process cannot be kept to cores
    gpu: int | None = None  # the number that CUDA gives it in this process

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables `given`, such that CUDA sees this place's GPU alone."""
        if self.gpu is None:
            return dict(given)
        visible = [entry for entry in given.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
        own = visible[self.gpu] if self.gpu < len(visible) else str(self.gpu)
        return {**given, "CUDA_VISIBLE_DEVICES": own}


def is_pool(devices: Sequence[str]) -> bool:
    """Return True if these names from --devices are the places of a pool: sets of cores, or more than one GPU."""
    on_gpus = [name for name in devices if name.startswith("cuda")]
    return len(on_gpus) > 1 or ALL_GPUS in devices or any(name.startswith("cpu:") for name in devices)


def devices_of_cells(devices: Sequence[str]) -> list[Device]:
    """Return the devices of the cells that --devices asks for. All cells of a pool have one: `cpu` or `cuda`. Raise
    UsageError for an unknown name, and for a pool of two kinds."""
    for name in devices:
        if name.startswith("cpu:") and not SET_OF_CORES.fullmatch(name):
            raise UsageError(f"--devices {name}: write a set of cores as cpu:0-3, or cpu:0-3+8-11")
        if name != ALL_GPUS and not name.startswith("cpu:"):
            Device(name)
    if not is_pool(devices):
        return list(map(Device, devices))
    kinds = {name.partition(":")[0] for name in devices}
    if len(kinds) > 1 or "cpu" in devices:
        raise UsageError(
            f"--devices {','.join(devices)}: sets of cores, or several GPUs, are a pool and stand alone; "
            "measure other devices in a run of their own"
        )
    return [Device(*kinds)]


def places_of(
    devices: Sequence[str], usable: Collection[int], siblings: Mapping[int, int] | None = None
) -> list[Place]:
    """Return the places of a pool, which share the `usable` cores, or none without a pool. `siblings` gives the
    physical core of each core, if not this machine's. Raise UsageError for places that overlap, differ in size, or do
    not exist."""
    if not is_pool(devices):
        return []
    siblings = physical_cores(usable) if siblings is None else siblings
    option = f"--devices {','.join(devices)}"
    if devices[0].startswith("cuda"):
        indices = [Device(name).cuda_index or 0 for name in devices]
        shares = divide_cores(usable, siblings, len(indices))
        places = [
            Place(f"cuda:{index}", Device("cuda"), cores, index) for index, cores in zip(indices, shares, strict=True)
        ]
        if len(set(indices)) < len(indices):
            raise UsageError(f"{option}: a GPU is named twice")
        return places
    places = [Place(name, CPU, tuple(sorted(set(_ranges(name.removeprefix("cpu:")))))) for name in devices]
    named_cores = [core for place in places for core in place.cores]
    if missing := sorted(set(named_cores) - set(usable)):
        raise UsageError(f"{option}: this process may use the cores {_spell(usable)}, and not {_spell(missing)}")
    if len(set(named_cores)) < len(named_cores):
        raise UsageError(f"{option}: a core is in two sets")
    if len({len(place.cores) for place in places}) > 1:
        raise UsageError(f"{option}: all sets need as many cores as the others")
    shared = [{siblings.get(core, core) for core in place.cores} for place in places]
    if sum(map(len, shared)) > len(set().union(*shared)):
        shared_by_two = "two of these cores are threads of one physical core, so that two contests would share it"
        raise UsageError(f"{option}: {shared_by_two}")
    return places


def divide_cores(usable: Collection[int], siblings: Mapping[int, int], shares: int) -> list[tuple[int, ...]]:
    """Return equal shares of the physical cores, in their order, each with all of its threads. Raise UsageError where
    there are fewer physical cores than shares."""
    threads = grouped(sorted(usable), lambda core: siblings.get(core, core))
    per_share = len(threads) // shares
    if usable and not per_share:
        raise UsageError(f"{shares} contests side by side need as many cores, and this process may use {len(threads)}")
    physical = sorted(threads)
    chunks = [physical[share * per_share : (share + 1) * per_share] for share in range(shares)]
    return [tuple(sorted(core for one in chunk for core in threads[one])) for chunk in chunks]


def physical_cores(usable: Collection[int], processors: Path = PROCESSORS) -> dict[int, int]:
    """Return the physical core of each of these cores, named by its first thread, where Linux reports it."""
    physical_cores = {}
    for core in usable:
        path = processors / f"cpu{core}" / "topology" / "thread_siblings_list"
        if path.exists():
            physical_cores[core] = min(_ranges(path.read_text(encoding="ascii").strip().replace(",", "+")))
    return physical_cores


def _ranges(text: str) -> list[int]:
    ranges: list[int] = []
    for part in text.split("+"):
        low, _, high = part.partition("-")
        ranges += range(int(low), int(high or low) + 1)
    return ranges


def _spell(cores: Collection[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
