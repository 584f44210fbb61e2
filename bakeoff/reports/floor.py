"""What keeps each cell from the floor, as sentences. Every output prints them; none is escaped yet."""

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.records.schema import DECODE, KernelTimes
from bakeoff.records.text import one_line, percent, spell_ms
from bakeoff.reports import number_format

NAME_LENGTH = 60
"""The name of a kernel can have hundreds of characters in C++."""


def sentences(contest: ContestJudgement) -> list[str]:
    """Say what keeps each cell from the floor. It is told of decode steps that a GPU's trace was taken of."""
    if contest.cell.task != DECODE:
        return []
    return [sentence for cell in contest.cells if (sentence := _shortfall(cell))]


def _shortfall(cell: CellJudgement) -> str:
    times, latency, roofline = cell.record.kernel_times, cell.latency, cell.record.roofline
    if times is None or latency is None or roofline is None or roofline.share is None:
        return ""
    waits_ms, excess_ms = latency.median_ms - times.busy_ms, times.busy_ms - roofline.floor_ms
    text = f"{one_line(cell.label)} reaches {percent(roofline.share)} of the floor"
    if waits_ms > excess_ms:
        return (
            f"{text}: the GPU works in {number_format.milliseconds(times.busy_ms)} of {spell_ms(latency.median_ms)}, "
            f"and waits for the host between {times.kernels:,.0f} kernels."
        )
    return (
        f"{text}: its {times.kernels:,.0f} kernels take {spell_ms(times.busy_ms)}, "
        f"{number_format.ratio(times.busy_ms / roofline.floor_ms)} times the floor; {longest(times)}."
    )


def longest(times: KernelTimes) -> str:
    """Return `gemv takes 61 % of that`, of the kernel that takes most of a call."""
    kernel = times.longest[0]
    return f"{one_line(kernel.name.removeprefix('void '), NAME_LENGTH)} takes {percent(kernel.share)} of that"
