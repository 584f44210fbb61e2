"""The verdict over recorded calls of several sizes, and its table: a row for each backend, a column for each size."""

from functools import partial

from bakeoff.judging.mix import Mix, MixRow
from bakeoff.records.text import counted, one_line, percent, spell_ms
from bakeoff.reports import answers, number_format, sentences
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table

REASON_LIMIT = 120

NOTE = (
    "Mean: each size's latency, weighted by how often it came. Each build was made for its size alone, and a backend "
    "without a build for one of the sizes is not ranked."
)


def title(mix: Mix) -> str:
    """Return a title such as `net.py:factory on cpu, fp32: 400 recorded calls of 3 sizes`."""
    run = f", {run_id}" if (run_id := mix.sizes[0].contest.run_id) else ""
    calls = sum(size.calls for size in mix.sizes)
    of = "" if mix.covered == 1 else f" ({percent(mix.covered)} of all)"
    title = sentences.title_without(["call"], mix.sizes[0].contest.cell)
    return f"{title}{run}: {counted(calls, 'recorded call')}{of} of {counted(len(mix.sizes), 'size')}"


def finding(mix: Mix) -> str:
    value = f"a mean of {spell_ms(mix.answer.value or 0.0)} a request"
    return answers.sentence(mix.answer, value, answers.how_sure(mix.answer))


def answer(mix: Mix) -> str:
    return f"{title(mix)}: {finding(mix)}."


def table_of(mix: Mix) -> Table[MixRow]:
    every = [
        Column[MixRow](f"{size.name} ({percent(size.weight)})", partial(_latency, place=place), "ms",
                       text=partial(_text, place=place))
        for place, size in enumerate(mix.sizes)
    ]  # fmt: skip
    columns = [
        Column[MixRow]("backend", lambda row: row.label, write=one_line, is_text=True, is_label=True),
        Column[MixRow]("mean", lambda row: row.value, "ms", number_format.milliseconds,
                       interval=lambda row: row.interval),
        Column[MixRow](f"x {mix.answer.baseline}", answers.speedup, write=number_format.ratio,
                       interval=answers.speedup_ends),
        *every,
        Column[MixRow]("built", lambda row: row.build_s, "s", number_format.seconds),
        Column[MixRow]("not ranked", lambda row: why_not(row, mix) or None, write=partial(one_line, limit=REASON_LIMIT),
                       is_text=True),
    ]  # fmt: skip
    return Table(columns, mix.rows, label=title(mix))


def why_not(row: MixRow, mix: Mix) -> str:
    if row.missing is None:
        return ""
    place, record = row.missing
    reason = one_line(record.reason) or number_format.ending(record)
    return f"at {mix.sizes[place].name}: {reason}"


def _latency(row: MixRow, place: int) -> float | None:
    cell = row.cells[place]
    return cell.latency.median_ms if cell and cell.latency else None


def _text(row: MixRow, place: int) -> str:
    cell, latency_ms = row.cells[place], _latency(row, place)
    if latency_ms is not None:
        return number_format.milliseconds(latency_ms)
    return number_format.ending(cell.record) if cell else NONE
