"""The least time that this machine leaves for a call of a model, and how near a cell came to it.

Source of the model: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. Weights, inputs and outputs move once, from the level of memory that can hold them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bakeoff.records.device import CPU
from bakeoff.records.schema import Ceilings, Cell, Latency, MemoryLevel, Record, Report, Roofline, Work


def of(work: Work, ceilings: Ceilings, latency: Latency | None) -> Roofline:
    """Return the floor of a contest, and how near the cell with this latency came to it."""
    least_flops = work.flops if work.least_flops is None else work.least_flops
    # Of a larger working set, which may be in a slower level of memory, these bytes could beat the floor.
    levels = ceilings.levels or [MemoryLevel(working_set_bytes=0, bytes_per_s=ceilings.bytes_per_s)]
    level = next((level for level in reversed(levels) if level.working_set_bytes <= work.bytes_moved), levels[0])
    is_in_memory = bool(ceilings.levels) and level == ceilings.levels[-1]
    compute_s = least_flops / ceilings.flops_per_s
    # of a call that no cache holds, a part as large as the cache may stay there
    memory_s = (work.bytes_moved - (ceilings.cache_bytes if is_in_memory else 0)) / level.bytes_per_s
    floor_ms = 1e3 * max(compute_s, memory_s)
    return Roofline(
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        ceiling_flops_per_s=ceilings.flops_per_s,
        ceiling_bytes_per_s=level.bytes_per_s,
        floor_ms=floor_ms,
        least_flops=work.least_flops,
        in_cache=work.bytes_moved <= ceilings.cache_bytes,
        bound="compute" if compute_s > memory_s else "memory",
        share=floor_ms / latency.median_ms if latency else None,
        tensor_cores=ceilings.tensor_cores,
        ceilings_kept_at=ceilings.kept_at,
    )


def named_by_work(reports: Sequence[Report]) -> list[Report]:
    """Return the reports, with the work in the name of a model where another report's model of that name does other
    work: a model in a program or a file may change its width without changing a dimension."""
    own = [
        {_on_any_device(record.cell): record.roofline.flops for record in report.records if record.roofline}
        for report in reports
    ]
    works = {(key, flops) for of_report in own for key, flops in of_report.items()}
    differing = {key for key, count in Counter(key for key, _ in works).items() if count > 1}

    def named(record: Record, flops_of: Mapping[str, int]) -> Record:
        cell = record.cell
        if (key := _on_any_device(cell)) not in differing or key not in flops_of:
            return record
        model = f"{cell.model} ({flops_of[key]:,} FLOP)"
        return record.but(cell=cell.but(model=model))

    return [
        report.but(records=[named(record, flops_of) for record in report.records])
        for report, flops_of in zip(reports, own, strict=True)
    ]


def _on_any_device(cell: Cell) -> str:
    return cell.but(device=CPU).contest_id
