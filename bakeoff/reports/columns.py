"""The columns of the table of cells: terminal, Markdown, page and CSV print this one list."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bakeoff.judging.constraints import OF_STARTS, QUANTITIES
from bakeoff.judging.costs import BreakEven
from bakeoff.judging.doubts_of_cells import PartlyElsewhere
from bakeoff.judging.judgement import CellJudgement, ContestJudgement
from bakeoff.judging.metric_changes import NO_CHANGE, MetricJudgement
from bakeoff.judging.optional_field import OptionalField
from bakeoff.judging.ranking import BASELINE
from bakeoff.records import schema
from bakeoff.records.text import first, listed, one_line, spell_rough_ratio, spell_times, visible
from bakeoff.reports import end_to_end, headline, number_format, sentences
from bakeoff.reports.answers import gain, named
from bakeoff.reports.number_format import NONE, error_over_all, unheld_changes
from bakeoff.reports.tables import Column, Surface, T, csv_field

NAME_LIMIT = 60
"""Longest name of an operator or engine in a table, in characters."""


def _of_record(read: Callable[[schema.Record], T | None]) -> OptionalField[CellJudgement, T]:
    return OptionalField(lambda row: read(row.record))


_LATENCY = _of_record(lambda record: record.latency)
_THROUGHPUT = _of_record(lambda record: record.throughput)
_ROOFLINE = _of_record(lambda record: record.roofline)
_DEVICE_TIME = _of_record(lambda record: record.device_time)
_KERNEL_TIMES = _of_record(lambda record: record.kernel_times)
_ENERGY = _of_record(lambda record: record.energy)
_EVALUATED = _of_record(lambda record: record.metrics)
_WARM_UP = _of_record(lambda record: record.warm_up)
_MEMORY = _of_record(lambda record: record.memory)
_ACCURACY = _of_record(lambda record: record.accuracy)
_SPEEDUP = OptionalField[CellJudgement, schema.Ratio](lambda row: row.speedup)
_OVER_OWN_BUILD = OptionalField[CellJudgement, schema.Ratio](lambda row: row.over_own_build)
_PLACEMENT = _of_record(lambda record: record.placement)


def columns_of(contests: Sequence[ContestJudgement]) -> list[Column[CellJudgement]]:
    records = [row.record for contest in contests for row in contest.cells]
    dimensions = dict.fromkeys(name for record in records for name in record.cell.dimensions)
    return [
        Column("rank", lambda row: row.rank, terminal_heading="#", csv="rank"),
        Column("place in its precision", lambda row: row.place,
               surfaces=~Surface.TERMINAL, spare=5, csv="place_in_precision"),
        BACKEND,
        BACKEND_IN_TERMINAL,
        csv_field("model", lambda row: row.cell.model),
        *(csv_field(f"dim_{name}", partial(_dimension, name=name)) for name in dimensions),
        csv_field("task", lambda row: row.cell.task),
        csv_field("device", lambda row: row.cell.device),
        csv_field("precision", lambda row: row.cell.precision),
        csv_field("seed", lambda row: row.cell.seed),
        csv_field("backend", lambda row: row.cell.backend),
        csv_field("mode", lambda row: row.cell.mode),
        csv_field("dynamic", lambda row: _span(row.cell)),
        *_in_details("Latency", _latency()),
        *_in_details("Beside the latency", _throughput()),
        *_floor(),
        *_speed(contests),
        Column("over its own build", _OVER_OWN_BUILD(lambda it: it.value), "x",
               interval=_OVER_OWN_BUILD(lambda it: it.ci95), surfaces=Surface.MARKDOWN | Surface.PAGE,
               csv="over_own_build", csv_interval="over_own_build_ci95_{}"),
        *_build(),
        csv_field("recompiled", lambda row: "; ".join(map(one_line, row.record.recompiled)) or None),
        *_memory(records),
        *(csv_field(name, _quantity(name)) for name in OF_STARTS),  # the report has a table of its own
        *_in_details("Beside the latency", _beside()),
        *_metrics(contests),
        *_in_details("Accuracy", _accuracy()),
        *_in_details("Placement", _placement(contests)),
        STATUS,
        csv_field("died_in", lambda row: row.record.died_in),
        csv_field("signal", lambda row: row.record.signal),
        csv_field("reason", lambda row: visible(row.record.reason)),
        csv_field("doubts", lambda row: "; ".join(one_line(doubt.say()) for doubt in row.record.doubts)),
        csv_field("contest_id", lambda row: row.cell.contest_id),
        csv_field("cell_id", lambda row: row.cell.id),
    ]  # fmt: skip


def answers_of(contests: Sequence[ContestJudgement], linked: int = 0) -> list[Column[ContestJudgement]]:
    """Return the columns of the table of winners, which has a row for each contest. The names of the first `linked`
    contests lead to their sections."""
    name_of = dict(zip(map(id, contests), sentences.names(contests), strict=True))
    anchor_of = {id(contest): f"#{anchor(number)}" for number, contest in enumerate(contests[:linked], 1)}

    return [
        Column("contest", lambda contest: name_of[id(contest)], write=one_line, is_text=True,
               link=lambda contest: anchor_of.get(id(contest), "")),
        Column("best", lambda contest: named(contest.answer), write=one_line, is_text=True, surfaces=~Surface.TERMINAL),
        Column("best", lambda contest: f"→ {one_line(named(contest.answer))}", is_text=True, surfaces=Surface.TERMINAL),
        Column("measured", lambda contest: contest.answer.value, text=headline.value),
        Column("speed-up", lambda contest: ratio.value if (ratio := contest.answer.gain) else None,
               text=lambda contest: gain(contest.answer)),
        Column("metric", headline.metrics, write=one_line, is_text=True),
        Column("among", headline.kept, is_text=True),
        Column("how sure", headline.certainty, write=one_line, is_text=True, is_bad=headline.is_unsure),
        Column("end to end", lambda contest: end_to_end.brief(contest) or NONE, write=one_line, is_text=True),
    ]  # fmt: skip


def anchor(number: int) -> str:
    return f"contest-{number}"


BACKEND = Column[CellJudgement](
    "backend", lambda row: row.label, write=one_line, is_text=True, is_label=True, surfaces=~Surface.TERMINAL
)

BACKEND_IN_TERMINAL = Column[CellJudgement](
    "backend",
    lambda row: row.label,
    text=lambda row: one_line(f"{'~' if PartlyElsewhere.of(row.record) else ''}{row.label}"),  # it ran elsewhere
    is_text=True,
    is_label=True,
    surfaces=Surface.TERMINAL,
)

STATUS = Column[CellJudgement](
    "status",
    lambda row: row.record.status.value,
    text=sentences.ending,
    note=lambda row: "; ".join(doubt.unmet for doubt in row.unmet) or row.record.reason,
    is_text=True,
    surfaces=Surface.MARKDOWN
    | Surface.SHORT,  # the page shows it beside the name of the backend, the terminal below its table
    csv="status",
)


def _in_details(group: str, columns: Sequence[Column[CellJudgement]]) -> list[Column[CellJudgement]]:
    return [replace(column, details=group) for column in columns]


def _dimension(row: CellJudgement, name: str) -> int | str | None:
    return row.cell.dimensions.get(name)


def _quantity(name: str) -> Callable[[CellJudgement], float | None]:
    return lambda row: QUANTITIES[name].of(row.record)


def _latency() -> list[Column[CellJudgement]]:
    def percentile(heading: str, name: str, surfaces: Surface = Surface.NONE) -> Column[CellJudgement]:
        value = _quantity(name)

        def text(row: CellJudgement) -> str:
            missing = "n/a" if row.record.latency else NONE  # a sample can be too small to hold a percentile
            return missing if (percentile_ms := value(row)) is None else number_format.milliseconds(percentile_ms)

        return Column(heading, value, "ms", text=text, surfaces=surfaces, csv=name)

    return [
        Column("median latency", _quantity("median_ms"), "ms",
               interval=_LATENCY(lambda it: it.median_ci95_ms), surfaces=Surface.ALL, terminal_heading="median\u00a0ms",
               csv="median_ms", csv_interval="median_ci95_{}_ms"),
        Column("mean", _quantity("mean_ms"), "ms", csv="mean_ms"),
        Column("standard deviation", _LATENCY(lambda it: it.std_ms), "ms", csv="std_ms"),
        Column("least", _quantity("min_ms"), "ms", csv="min_ms"),
        percentile("p90", "p90_ms"),
        percentile("p95", "p95_ms"),
        percentile("p99", "p99_ms", Surface.MARKDOWN | Surface.PAGE),
        percentile("p99.9", "p999_ms"),
        Column("calls", _LATENCY(lambda it: it.calls), write=number_format.count, csv="calls"),
    ]  # fmt: skip


def _throughput() -> list[Column[CellJudgement]]:
    calls_per_s = _quantity("calls_per_s")
    ends_per_s = _THROUGHPUT(lambda it: it.range_per_s)

    def samples_per_s(row: CellJudgement) -> float | None:
        batch, rate = row.cell.dimensions.get("batch"), calls_per_s(row)
        return rate * batch if rate and isinstance(batch, int) and batch > 1 else None

    def text_of(rate: Callable[[CellJudgement], float | None]) -> Callable[[CellJudgement], str]:
        return lambda row: number_format.rate_at_least(rate(row), row.record.is_throughput_doubtful)

    def of_blocks(row: CellJudgement) -> str:
        ends = ends_per_s(row)
        return f"{number_format.rate(ends.low)} to {number_format.rate(ends.high)}" if ends else NONE

    return [
        Column("throughput", calls_per_s, "calls/s", text=text_of(calls_per_s),
               surfaces=Surface.ALL, terminal_heading="calls/s", spare=6, csv="throughput_calls_per_s"),
        Column("throughput", samples_per_s, "samples/s", text=text_of(samples_per_s), surfaces=~Surface.SHORT,
               terminal_heading="samples/s", spare=8, csv="throughput_samples_per_s"),
        Column("slowest and fastest block", _THROUGHPUT(lambda it: it.range_per_s.low if it.range_per_s else None),
               "calls/s", text=of_blocks),
    ]  # fmt: skip


def _floor() -> list[Column[CellJudgement]]:
    share = _ROOFLINE(lambda it: it.share)
    return [
        Column("of floor", share, "%", surfaces=~Surface.SHORT, spare=7, csv="floor_share"),
        Column("achieved", share, text=lambda row: number_format.achieved_rate(row.record), surfaces=~Surface.SHORT,
               terminal_heading="rate", spare=9),
        csv_field("floor_ms", _ROOFLINE(lambda it: it.floor_ms)),
        csv_field("bound", _ROOFLINE(lambda it: it.bound)),
        csv_field("flops", _ROOFLINE(lambda it: it.flops or None)),
        csv_field("bytes_moved", _ROOFLINE(lambda it: it.bytes_moved)),
    ]  # fmt: skip


def _speed(contests: Sequence[ContestJudgement]) -> list[Column[CellJudgement]]:
    baselines = ", ".join({contest.baseline or BASELINE: None for contest in contests})

    def pays(row: CellJudgement) -> BreakEven | None:
        return None if row.is_baseline else row.break_even

    def pays_from(row: CellJudgement) -> int | None:
        return row.break_even.calls if row.break_even and row.break_even.is_established else None

    def is_established(row: CellJudgement) -> bool | None:
        return None if row.rank is None else row.break_even is not None and row.break_even.is_established

    def speedup(row: CellJudgement) -> str:
        ratio = row.speedup
        if ratio is None or not ratio.is_told:
            return number_format.NONE
        if sentences.is_of_few_calls(row):
            return f"about {spell_rough_ratio(ratio.value)}"
        return number_format.ratio(ratio.value)

    return [
        Column("speed-up", _SPEEDUP(lambda it: it.value), f"x {one_line(baselines, 20)}", text=speedup,
               interval=_SPEEDUP(lambda it: it.ci95), terminal_heading=f"x\u00a0{one_line(baselines, 20)}",
               csv="speedup", csv_interval="speedup_ci95_{}"),
        csv_field("speedup_paired", _SPEEDUP(lambda it: it.paired)),
        Column("break-even", pays_from, "calls", text=lambda row: number_format.break_even(pays(row)),
               interval=lambda row: number_format.break_even_ends(pays(row)), details="Costs", csv="break_even_calls"),
        csv_field("break_even_established", is_established),
    ]  # fmt: skip


def _span(cell: schema.Cell) -> str | None:
    return ",".join(f"{name}={span.low}:{span.high}" for name, span in cell.dynamic.items()) or None


def _energy(row: CellJudgement) -> str:
    if energy := row.record.energy:
        return energy.source if energy.resolved_j is not None else f"below what is resolved by {energy.source}"
    left = row.record.left
    return "not measured: it was beaten in its first process" if left and left.after_process == 1 else ""


def _beside() -> list[Column[CellJudgement]]:
    return [
        Column("device time", _DEVICE_TIME(lambda it: it.median_ms), "ms", csv="device_median_ms"),
        Column("GPU works", _KERNEL_TIMES(lambda it: it.busy_ms), "ms", note=_kernels, csv="gpu_busy_ms"),
        Column("energy per call", _quantity("joules_per_call"), "mJ", lambda joules: f"{1e3 * joules:.3g}",
               interval=_ENERGY(lambda it: it.ci95 if it.resolved_j is not None else None), note=_energy,
               surfaces=Surface.MARKDOWN | Surface.PAGE, csv="joules_per_call", csv_interval="joules_per_call_ci95_{}"),
        Column("warm-up", _WARM_UP(lambda it: it.calls), "calls", note=_warm_up),
        Column("the whole cell took", lambda row: row.record.elapsed_s or None, "s"),
    ]  # fmt: skip


def _kernels(row: CellJudgement) -> str:
    times = row.record.kernel_times
    return f"{times.kernels:,.0f} kernels; {sentences.longest_kernel(times)}" if times else ""


def _warm_up(row: CellJudgement) -> str:
    warm_up = row.record.warm_up
    if warm_up is None:
        return ""
    state = "steady" if warm_up.steady else "no trend" if warm_up.trendless else "never steady"
    return f"{number_format.seconds(warm_up.seconds)} s, {state}"


def _build() -> list[Column[CellJudgement]]:
    def phase(name: str) -> Callable[[CellJudgement], float | None]:
        return lambda row: seconds_of_phases(row.record.phases).get(name)

    def builds_s(row: CellJudgement) -> list[float]:
        seconds = [process.build_s for process in row.record.processes if not process.warm]
        return seconds if len(seconds) > 1 else []

    def shortest_to_longest(row: CellJudgement) -> str:
        if not (seconds := builds_s(row)):
            return NONE
        ends = f"{number_format.seconds(min(seconds))} to {number_format.seconds(max(seconds))}"
        return f"{ends}, of {len(seconds)}"

    return [
        *(csv_field(f"{name}_s", phase(name)) for name in ("export", "compile", "load", "capture")),
        Column("build", _quantity("build_s"), "s", note=_phases, spare=2, csv="build_s"),
        Column("first call", _quantity("first_call_s"), "s",
               surfaces=Surface.MARKDOWN | Surface.TERMINAL, spare=4, csv="first_call_s"),
        Column("shortest and longest build", lambda row: min(builds_s(row), default=None), "s",
               text=shortest_to_longest, details="Costs"),
        Column("build, warm", _quantity("warm_build_s"), "s",
               surfaces=Surface.MARKDOWN, details="Costs", csv="warm_build_s"),
        csv_field("warm_first_answer_s", _quantity("warm_first_answer_s")),
    ]  # fmt: skip


def seconds_of_phases(phases: Sequence[schema.Phase]) -> dict[str, float]:
    """Return the seconds of each phase by its name; a phase can come twice."""
    seconds: dict[str, float] = {}
    for phase in phases:
        seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.seconds
    return seconds


def _phases(row: CellJudgement) -> str:
    seconds = seconds_of_phases(row.record.phases_until_first_answer)
    return ", ".join(
        f"{name} {number_format.seconds(taken_s)}" for name, taken_s in seconds.items() if name != "first_call"
    )


def _memory(records: Sequence[schema.Record]) -> list[Column[CellJudgement]]:
    kinds = {kind for record in records if (kind := number_format.peak_memory(record)[1])}
    group = "Memory"
    return [
        Column("peak memory", lambda row: number_format.peak_memory(row.record)[0],
               f"MiB, {kinds.copy().pop()}" if len(kinds) == 1 else "MiB",
               note=lambda row: number_format.peak_memory(row.record)[1] if len(kinds) > 1 else "", spare=3,
               terminal_heading=f"peak {'device ' if kinds == {'device'} else 'RSS ' if kinds else ''}MiB"),
        Column("peak resident", _quantity("peak_resident_bytes"), "MiB", details=group, csv="peak_resident_bytes"),
        Column("peak without torch", _quantity("engine_resident_bytes"), "MiB",
               surfaces=Surface.MARKDOWN, details=group, csv="engine_resident_bytes"),
        Column("peak on the device", _quantity("peak_device_bytes"), "MiB", details=group, csv="peak_device_bytes"),
        Column("build on disk", _quantity("artifact_bytes"), "MiB",
               surfaces=Surface.MARKDOWN, details=group, csv="artifact_bytes"),
        Column("device memory read from", _MEMORY(lambda it: it.device_bytes_source), details=group),
    ]  # fmt: skip


def _accuracy() -> list[Column[CellJudgement]]:
    def is_bad(row: CellJudgement) -> bool:
        return row.record.accuracy is not None and not row.record.accuracy.passed

    def outputs(row: CellJudgement) -> str:
        wrong = "accepted" if row.record.status is schema.Status.OK else "wrong"
        return NONE if row.record.accuracy is None else wrong if is_bad(row) else "right"

    def error(row: CellJudgement) -> str:
        return number_format.error_of(row.record.accuracy) if row.record.accuracy else NONE

    def rule(row: CellJudgement) -> str:
        if (accuracy := row.record.accuracy) is None:
            return ""
        return "; ".join(filter(None, (accuracy.rule, error_over_all(accuracy), unheld_changes(row.record))))

    return [
        Column("relative RMSE", _quantity("relative_rmse"), text=error, note=rule, is_bad=is_bad,
               surfaces=Surface.ALL, spare=1, terminal_heading="relat. error", csv="relative_rmse"),
        Column("outputs", _ACCURACY(lambda it: it.rule), text=outputs, csv="accuracy_rule"),
        Column("RMSE", _quantity("rmse"), write=number_format.error, csv="rmse"),
        Column("eager's RMSE", _ACCURACY(lambda it: it.eager_rmse), write=number_format.error, csv="eager_rmse"),
        Column("RMSE after the last burst", _ACCURACY(lambda it: it.rmse_after), write=number_format.error),
        Column("error, as a multiple of its limit", _ACCURACY(lambda it: it.times_limit), write=spell_times,
               csv="times_limit"),
        Column("largest error", _quantity("max_abs_error"), write=number_format.error, csv="max_abs_error"),
        Column("tolerances", _ACCURACY(lambda it: f"relative {it.rtol:g}, absolute {it.atol:g}")),
    ]  # fmt: skip


def _metrics(contests: Sequence[ContestJudgement]) -> list[Column[CellJudgement]]:
    names = dict.fromkeys(name for contest in contests for row in contest.cells for name in row.metrics)
    if not names:
        has_failed = any(_metrics_failure(row) for contest in contests for row in contest.cells)
        why = Column[CellJudgement]("metric", lambda row: None, note=_metrics_failure, surfaces=~Surface.SHORT,
                                    text=lambda row: "none" if _metrics_failure(row) else NONE,
                                    details="Metrics")  # fmt: skip
        return [why] if has_failed else []
    took = Column("evaluate took", _EVALUATED(lambda it: it.seconds), "s", details="Metrics", csv="evaluate_s")
    return [*(column for name in names for column in _of_metric(name)), took]


def _metrics_failure(row: CellJudgement) -> str:
    failures = [own.failure for own in (row.record.reference_metrics, row.record.metrics) if own and own.failure]
    return failures[0].sentence if failures else ""


def _of_metric(name: str) -> list[Column[CellJudgement]]:
    group, surfaces = "Metrics", Surface.MARKDOWN | Surface.PAGE
    metric = OptionalField[CellJudgement, MetricJudgement](lambda row: row.metrics.get(name))
    value, change = metric(lambda it: it.value), metric(lambda it: it.change)
    ends = metric(lambda it: None if it.change_ci95 == NO_CHANGE else it.change_ci95)
    samples = metric(lambda it: f"{it.samples:,} samples" if it.samples else "a plain number, without interval")
    written = metric(lambda it: number_format.metric(it.value))
    written_with_change = metric(lambda it: f"{number_format.metric(it.value)} ({number_format.change(it.change)})")
    flips = metric(_flips)

    def is_worse(row: CellJudgement) -> bool:
        return bool(metric(lambda it: it.is_surely_worse)(row))

    def without(row: CellJudgement) -> str:
        return "none" if _metrics_failure(row) else NONE

    return [
        Column(f"{name} (change)", value, text=lambda row: written_with_change(row) or without(row),
               write=number_format.change, interval=ends, is_bad=is_worse,
               surfaces=Surface.TERMINAL | Surface.SHORT, terminal_heading=name),
        Column(name, value, text=lambda row: written(row) or without(row),
               note=lambda row: samples(row) or _metrics_failure(row), surfaces=surfaces, details=group,
               csv=f"metric_{name}"),
        Column(f"change of {name}", change, write=number_format.change, interval=ends,
               note=lambda row: flips(row) or "", is_bad=is_worse, surfaces=surfaces, details=group,
               csv=f"metric_{name}_change", csv_interval=f"metric_{name}_change_ci95_{{}}"),
        Column(f"{name} of the reference", metric(lambda it: it.reference),
               write=number_format.metric, details=group, csv=f"metric_{name}_reference"),
    ]  # fmt: skip


def _flips(metric: MetricJudgement) -> str:
    """Return `3 became wrong, 1 right, McNemar p = 0.62`, or nothing for scores that are not right or wrong."""
    if metric.lost is None or metric.won is None or metric.chance is None:
        return ""
    chance = f", McNemar p = {metric.chance:.2g}" if metric.lost or metric.won else ""
    return f"{metric.lost:,} became wrong, {metric.won:,} right{chance}"


def _placement(contests: Sequence[ContestJudgement]) -> list[Column[CellJudgement]]:
    def joined(read: Callable[[schema.Placement], Sequence[str]]) -> Callable[[CellJudgement], str]:
        return lambda row: "; ".join(map(one_line, read(row.record.placement))) if row.record.placement else ""

    def as_json(read: Callable[[schema.Placement], Mapping[str, float]]) -> Callable[[CellJudgement], str | None]:
        """Write JSON, so that no name of an engine can be taken for a separator."""
        values_of = _PLACEMENT(lambda it: {one_line(name): value for name, value in read(it).items()})
        return lambda row: json.dumps(values) if (values := values_of(row)) else None

    def is_bad(row: CellJudgement) -> bool:
        return row.record.placement is not None and row.record.placement.extent is not schema.Extent.FULL

    def note(row: CellJudgement) -> str:
        placement = row.record.placement
        if placement is None:
            return ""
        elsewhere = listed(first([one_line(name, NAME_LIMIT) for name in placement.fallbacks], 2))
        shares = listed(first(number_format.time_shares(placement.time_share), 2))
        return "; ".join(part for part in (elsewhere, shares) if part)

    surfaces = Surface.MARKDOWN | Surface.PAGE
    if any(is_bad(row) for contest in contests for row in contest.cells):
        surfaces |= Surface.SHORT  # a fallback is called a fallback everywhere
    return [
        Column("placement", _PLACEMENT(lambda it: it.extent.value), note=note,
               is_bad=is_bad, is_text=True, surfaces=surfaces, csv="placement"),
        Column("engines", as_json(lambda found: found.engines), csv="engines",
               text=joined(lambda found: [f"{name} {count}" for name, count in found.engines.items()])),
        Column("elsewhere", joined(lambda found: found.fallbacks), csv="fallbacks"),
        Column("time", as_json(lambda found: found.time_share), csv="time_share",
               text=joined(lambda found: number_format.time_shares(found.time_share))),
        Column("read from", joined(lambda found: found.evidence)),
    ]  # fmt: skip
