"""How near each cell comes to the floor, and what keeps it from there. No output's escaping is done here yet."""

from __future__ import annotations

from judging.contest import CellJudgement, ContestJudgement
from records.schema import DECODE, KernelTimes
from records.text import one_line, spell_ms
from reports import format
from reports.words import percent

NAME_LENGTH = 60


def sentences(contest: ContestJudgement) -> list[str]:
    """Say for each cell of a decode step that was traced what keeps it from the floor, which weights and cache set."""
    if contest.cell.task != DECODE:
        return []
    return [sentence for cell in contest.cells if (sentence := _shortfall(cell))]


def _shortfall(cell: CellJudgement) -> str:
    times, latency, roofline = cell.record.kernel_times, cell.latency, cell.record.roofline
    if times is None or latency is None or roofline is None or roofline.share is None:
        return ""
    waits_ms, excess_ms = latency.median_ms - times.busy_ms, times.busy_ms - roofline.floor_ms
    told = f"{one_line(cell.label)} reaches {percent(roofline.share)} of the floor"
    if waits_ms > excess_ms:
        return (
            f"{told}: the GPU works in {format.milliseconds(times.busy_ms)} of {spell_ms(latency.median_ms)}, "
            f"and waits for the host between {times.kernels:,.0f} kernels."
        )
    return (
        f"{told}: its {times.kernels:,.0f} kernels take {spell_ms(times.busy_ms)}, "
        f"{format.ratio(times.busy_ms / roofline.floor_ms)} times the floor; {longest(times)}."
    )


def longest(times: KernelTimes) -> str:
    """Return `gemv takes 61 % of that`, of the kernel that takes most of a call."""
    kernel = times.longest[0]
    return f"{short(kernel.name)} takes {percent(kernel.share)} of that"


def short(kernel: str) -> str:
    """Return the beginning of a kernel's name, which can have hundreds of characters in C++."""
    return one_line(kernel.removeprefix("void "), NAME_LENGTH)
