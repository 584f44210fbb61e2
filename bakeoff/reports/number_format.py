"""Writes numbers and facts as text: the same on a terminal, in Markdown, on the page and in charts."""

import math
from collections.abc import Callable, Mapping

from bakeoff.judging.change import Change
from bakeoff.judging.costs import BreakEven
from bakeoff.judging.doubts_of_cells import is_coarse
from bakeoff.judging.metric_changes import MetricJudgement
from bakeoff.records import text
from bakeoff.records.schema import Accuracy, Interval, Latency, Ratio, Record, Roofline

MEBIBYTE = 2**20
NOT_ESTABLISHED = "not established"
NONE = "-"
"""Text in place of a number that is not known."""

WIDE = 1.5
"""An interval whose ends are further apart than so many times is shown instead of the value between them."""

UNCLEAR = 2.0
"""A speed-up whose interval has ends further apart than this is said in words, as one that is hardly known."""

AS_EAGERS = ", as large as eager's own"
"""What stands beside an error that passes for no other reason."""

FAR_WORSE = 2.0
"""The error of the worst part is said to be that where it is more than so many times the error over all values. Every
part has twice the limit."""

UNKNOWN = "?x"

rate = text.spell_rate
ratio = text.spell_ratio
"""Write a rate and a ratio as a run's log does."""


def rate_at_least(value: float | None, is_lower_bound: bool) -> str:
    """Return `41.7`, or `≥41.7` where other load held the calls up: without it, there are more of them."""
    return NONE if value is None else f"{'≥' if is_lower_bound else ''}{rate(value)}"


_PREFIXES = ["", "k", "M", "G", "T", "P"]


def milliseconds(value_ms: float | None) -> str:
    """Return `0.0175`, without the unit."""
    return NONE if value_ms is None else text.spell_ms(value_ms).removesuffix(" ms")


def interval(ends: Interval | None, write: Callable[[float], str]) -> str:
    """Return `[0.0170, 0.0181]` with a space that does not break, `[unknown]` where it is too wide, or nothing."""
    return text.spell_interval(ends.low, ends.high, write) if ends else ""


def with_interval(value_ms: float, ends: Interval | None) -> str:
    """Return `0.0175 [0.0170, 0.0181]`, in milliseconds."""
    return f"{milliseconds(value_ms)} {interval(ends, milliseconds)}".rstrip()


def median(latency: Latency) -> str:
    return with_interval(latency.median_ms, latency.median_ci95_ms)


def ratio_interval(ends: Interval | None) -> str:
    """Return `[1.80, 1.90]`, or nothing for an interval without width, as of the baseline over itself."""
    return "" if ends is None or ends.low == ends.high else interval(ends, ratio)


def times(of: Ratio) -> str:
    """Return `1.59x`, `2.8x to 17x`, or `?x` where the two cannot be told apart at all, and `about 4.8x` for what only
    a few calls of a busy machine say."""
    ends = of.ci95
    if of.is_of_busy_machine:
        return f"about {text.spell_rough_ratio(of.value)}x" if of.is_told else UNKNOWN
    if ends is None or 0 < ends.high <= WIDE * ends.low:
        return f"{ratio(of.value)}x"
    if ends.low <= 1 <= ends.high:
        return UNKNOWN
    return f"{ratio(ends.low)}x to {ratio(ends.high)}x"


def compared(of: Ratio, other: str, as_fast: str = "") -> str:
    """Return `1.59x eager`, or `faster than eager, unclear by how much (2.8x to 17x)`."""
    if of.ci95 is not None and of.ci95.high > UNCLEAR * of.ci95.low and not of.ci95.low <= 1 <= of.ci95.high:
        return f"{'faster' if of.value > 1 else 'slower'} than {other}, unclear by how much ({times(of)})"
    if as_fast and times(of) == UNKNOWN:
        return f"not told apart from {other}"
    return f"{times(of)} {as_fast}{other}"


def seconds(value_s: float | None) -> str:
    """Return `0.0042` or `42`, without the unit."""
    return NONE if value_s is None else text.spell_seconds(value_s)


def minutes(value_s: float) -> str:
    """Return minutes and seconds, such as `1:05`. A negative time is none."""
    return "{}:{:02}".format(*divmod(max(0, round(value_s)), 60))


def mebibytes(value_bytes: int | None) -> str:
    if value_bytes is None:
        return NONE
    size = value_bytes / MEBIBYTE
    return f"{size:,.0f}" if size >= 9.95 or size == 0 else f"{size:.2g}"


def break_even(break_even: BreakEven | None) -> str:
    """Return `302`, `from the start`, `never` or `not established`; `break_even_ends` are the ends of its interval."""
    if break_even is None:
        return NONE
    if not break_even.is_established:
        return NOT_ESTABLISHED
    if break_even.calls is None:
        return "never"
    return count(break_even.calls) if break_even.calls else "from the start"


def break_even_with_interval(found: BreakEven | None) -> str:
    """Return `302 [280, 330]`, or one of the texts of `break_even`."""
    ends = break_even_ends(found)
    interval = f" [{count(ends.low)},\u00a0{count(ends.high)}]" if ends and ends.low < ends.high else ""
    return f"{break_even(found)}{interval}"


def break_even_ends(break_even: BreakEven | None) -> Interval | None:
    """Return the calls between which the break-even lies; None where none is established, or it never comes."""
    if break_even is None or not break_even.is_established or break_even.calls is None or not break_even.high:
        return None
    return Interval(low=break_even.low or 0, high=break_even.high)


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def error(value: float | None) -> str:
    return NONE if value is None else f"{value:.1e}"


def error_of(check: Accuracy, where: str = "") -> str:
    """Return `1.3e-07`, or `7.4e+01, as large as eager's own` for one that passes for no other reason."""
    is_of_nothing = bool(check.unchecked) and math.isnan(check.relative_rmse)  # no value was compared
    value = NONE if is_of_nothing else error(check.relative_rmse)
    return f"{value}{where}{AS_EAGERS if is_coarse(check) else ''}"


def error_over_all(check: Accuracy) -> str:
    """Return `7.7e-07 over all values` where the error that is shown is that of a far worse part, or nothing."""
    overall = check.overall_relative_rmse
    is_of_part = overall is not None and check.relative_rmse > FAR_WORSE * overall
    return f"{error(overall)} over all values" if is_of_part else ""


def unheld_changes(record: Record) -> str:
    if record.accuracy is None or not record.accuracy.changes_unheld:
        return ""
    number, of = record.accuracy.changes_unheld, record.accuracy.changes
    if number == of:
        return f"parameters could not be judged: {record.cell.precision} cannot hold the change of any of {of:,}"
    return f"{record.cell.precision} cannot hold the change of {number:,} of {of:,} parameters"


def percent(share: float | None) -> str:
    """Return `57` for 0.57: at least two significant digits, without the sign."""
    if share is None:
        return NONE
    value = 100 * share
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def quantity(value: float, unit: str) -> str:
    """Return three significant digits with a decimal prefix: `872 MFLOP`, `45.2 GB/s`."""
    step = 0 if value < 1 else min(len(_PREFIXES) - 1, int(math.log10(value)) // 3)
    scaled = value / 1000**step
    if float(f"{scaled:.3g}") >= 1000 and step < len(_PREFIXES) - 1:  # 999.9 k is 1.00 M
        scaled, step = scaled / 1000, step + 1
    digits = 0 if scaled >= 99.95 or step == 0 else 1 if scaled >= 9.995 else 2
    return f"{scaled:,.{digits}f} {_PREFIXES[step]}{unit}"


def metric(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def change(value: float) -> str:
    return f"{value:+.2g}" if value else "0"


def metric_change(judged: MetricJudgement) -> str:
    return f"{metric(judged.reference)} → {metric(judged.value)} ({change(judged.change)})"


def floor(roofline: Roofline) -> str:
    """Return `0.151 ms, bound by memory (872 MFLOP at 199 GFLOP/s, 6.84 MB at 45.2 GB/s)`."""
    least = " at least" if roofline.needed_flops < roofline.flops else ""
    compute = f"{quantity(roofline.needed_flops, 'FLOP')}{least} at {quantity(roofline.ceiling_flops_per_s, 'FLOP/s')}"
    if not roofline.flops:  # torch counts products and convolutions, and no Fourier transform, sort or sum
        compute = "operations not counted"
    cached = " from a cache" if roofline.in_cache else ""
    memory = f"{quantity(roofline.bytes_moved, 'B')}{cached} at {quantity(roofline.ceiling_bytes_per_s, 'B/s')}"
    said = f"{text.spell_ms(roofline.floor_ms)}, bound by {text.one_line(roofline.bound)} ({compute}, {memory})"
    return f"none is known: a cell was faster than {said}" if roofline.is_beaten else said


def achieved_rate(record: Record) -> str:
    """Return the rate of the work that bounds a cell, by its median latency: `1.21 PFLOP/s` or `3.95 TB/s`."""
    roofline = record.roofline
    if roofline is None or record.latency is None or not record.latency.median_ms:
        return NONE
    seconds = record.latency.median_ms / 1e3
    if roofline.bound == "compute":
        return quantity(roofline.flops / seconds, "FLOP/s")
    return quantity(roofline.bytes_moved / seconds, "B/s")


def time_shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{name} {percent(share)} %" for name, share in sorted(shares.items(), key=lambda item: -item[1])]


def peak_memory(record: Record) -> tuple[int | None, str]:
    """Return the peak bytes and of which memory: `device` if the cell ran on one and it was read, else `resident`."""
    memory = record.memory
    if memory is None:
        return None, ""
    if record.cell.device.is_cuda and memory.peak_device_bytes is not None:
        return memory.peak_device_bytes, "device"
    return memory.peak_resident_bytes, "resident" if memory.peak_resident_bytes is not None else ""


def ending(record: Record) -> str:
    """Say how a cell ended: `ok`, `crash in load`. The reason names a signal."""
    return f"{record.status} in {text.one_line(record.died_in)}" if record.died_in else record.status.value


def ending_beside_reason(record: Record) -> str:
    """Say how a cell ended, without the phase where its reason names that: `died of signal 11 (SIGSEGV) in load`."""
    return record.status.value if record.died_in and f"in {record.died_in}" in record.reason else ending(record)


def spell_change(change: Change) -> str:
    """Return `+8.2 % [+5.1, +11.4]`: how much longer the new run takes, with its 95 % interval."""
    interval = change.ci95
    limits = f" [{signed_percent(interval.low - 1)},\u00a0{signed_percent(interval.high - 1)}]" if interval else ""
    return f"{signed_percent(change.value - 1)} %{limits}"


def signed_percent(share: float) -> str:
    """Return `+8.2`, `-12` or `+0.0`, without the sign for percent."""
    percent = 100 * share
    if abs(percent) >= 9.95:
        return f"{percent:+,.0f}"
    return f"{round(percent, 1) + 0.0:+.1f}"  # -0.0 becomes 0.0
