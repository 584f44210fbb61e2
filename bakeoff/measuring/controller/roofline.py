"""The least time that this machine leaves for a call of a model, and how near a cell came to it.

Source of the model: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009. It assumes that weights, inputs and outputs move once, between memory and the
processor. A model that fits into a cache can be faster than its floor, and then its share is over 1.
"""

from __future__ import annotations

from bakeoff.records.schema import Ceilings, Latency, Roofline, Work


def of(work: Work, ceilings: Ceilings, latency: Latency | None) -> Roofline:
    """The floor of a contest, and how near the cell with this latency came to it."""
    compute_s = work.flops / ceilings.flops_per_s
    memory_s = work.bytes_moved / ceilings.bytes_per_s
    floor_ms = 1e3 * max(compute_s, memory_s)
    return Roofline(
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        ceiling_flops_per_s=ceilings.flops_per_s,
        ceiling_bytes_per_s=ceilings.bytes_per_s,
        floor_ms=floor_ms,
        bound="compute" if compute_s > memory_s else "memory",
        share=floor_ms / latency.median_ms if latency else None,
        tensor_cores=ceilings.tensor_cores,
    )
