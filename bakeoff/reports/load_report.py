"""What a contest carried under load, as columns and sentences. Every output prints them; none is escaped yet."""

from dataclasses import replace
from typing import Any

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.doubts_of_load import SoakMissed
from bakeoff.judging.loaded_cell import LoadedCell, SoakSummary
from bakeoff.judging.optional_field import OptionalField
from bakeoff.judging.under_load import LoadJudgement
from bakeoff.records.load_samples import ServingSettings
from bakeoff.records.text import counted, listed, to_go_on
from bakeoff.reports import answers
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table, text_table

FIRST_LOOK = "by a first look"
WATT_HOUR_J = 3600.0

_SOAK = OptionalField[LoadedCell, SoakSummary](lambda cell: cell.soak)

EVEN_SHARE = 0.2
"""An interval whose half is a smaller share of the value is written as `±`."""


def columns_of(load: LoadJudgement) -> list[Column[LoadedCell]]:
    of = load.objective.percentile if load.objective else "p99"
    is_rate = load.spec.is_rate

    return [
        Column("rank", lambda cell: cell.rank, csv="rank"),
        Column("place", lambda cell: cell.place, spare=4, csv="place_in_precision"),
        Column("backend", lambda cell: cell.label, is_text=True, is_label=True, csv="backend"),
        Column("requests" if is_rate else "median latency", lambda cell: cell.value, "1/s" if is_rate else "ms",
               interval=lambda cell: cell.interval, csv="requests_per_s" if is_rate else "median_ms",
               csv_interval="ci95_{}"),
        Column("rate of the soak", _SOAK(lambda it: it.rate if is_rate else None), "1/s", csv="soak_requests_per_s"),
        Column("median over the soak", _SOAK(lambda it: it.p50_ms), "ms", spare=1, csv="soak_p50_ms"),
        Column(f"{of} over the soak", _SOAK(lambda it: it.objective_ms or it.p99_ms), "ms", csv="soak_percentile_ms"),
        Column("drift", _SOAK(lambda it: it.drift), "%", lambda share: f"{100 * share:+.1f}", spare=6,
               csv="soak_drift"),
        Column("memory", _SOAK(lambda it: it.resident_bytes), "MiB", spare=2, csv="resident_bytes"),
        Column("device memory", _SOAK(lambda it: it.device_bytes), "MiB", spare=5, csv="device_bytes"),
        Column("energy of a million", _SOAK(lambda it: it.joules_per_million), "Wh",
               lambda joules: f"{joules / WATT_HOUR_J:.3g}", csv="joules_per_million"),
        Column("price of a million", lambda cell: cell.price_per_million, "", lambda price: f"{price:.3g}",
               csv="price_per_million"),
        Column("serves with", lambda cell: settings(cell.load.settings) if cell.load.settings else None,
               text=lambda cell: settings(cell.load.settings) if cell.load.settings else cell.load.reason or NONE,
               is_text=True, csv="settings"),
    ]  # fmt: skip


def tables(load: LoadJudgement) -> list[Table[Any]]:
    tried = [
        [cell.label, settings(look.settings), NONE if look.value is None else load.spec.spell(look.value), look.reason]
        for cell in load.cells
        for look in cell.load.tried
    ]
    is_known = any(cell.value is not None or cell.load.settings or cell.load.reason for cell in load.cells)
    name = f"{load.scenario}:{load.streams}" if load.spec.takes_streams else str(load.scenario)
    whole = f", each request with {listed([f'{stage}()' for stage in load.stages])}" if load.stages else ""
    scenario = f"{name}{_condition(load)}{whole}"
    return [
        *([Table(columns_of(load), load.cells, f"Under load: {scenario}")] if is_known else []),
        replace(
            text_table(["backend", "serves with", "reached", "why not"], tried, "llll"),
            title="Every setting that was tried, in shorter windows",
            is_folded=True,
        ),
    ]


def sentences(contest: ContestJudgement, load: LoadJudgement) -> list[str]:
    answer = verdict(load)
    best = load.ranked[0] if load.ranked else None
    how = [f"{best.label} serves best with {settings(best.load.settings)}."] if best and best.load.settings else []
    missed = {doubt.label for doubt in load.doubts if isinstance(doubt, SoakMissed)}
    soaked_below = [
        f"The soak of {cell.label} ran at {load.spec.spell(cell.soak.rate)}, and does not show that it carries "
        f"{load.spec.spell_number(cell.rate)} for long."
        for cell in load.ranked
        if cell.soak and cell.rate and cell.is_soaked_below and cell.label not in missed and load.spec.is_rate
    ]
    stages = listed([f"{stage}()" for stage in load.stages])
    whole = f"Each request ran {stages} in the thread of its instance: rates and latencies are of whole requests."
    others = [*([whole] if stages else []), *_against_single_calls(contest, load), *soaked_below]
    texts = dict.fromkeys(text for cell in load.cells for text in cell.load.left_out)
    others += [*(doubt.say() for doubt in load.doubts), *([f"Not tried: {'; '.join(texts)}."] if texts else [])]
    return [answer[0].upper() + answer[1:], *how, *others]


def verdict(load: LoadJudgement) -> str:
    """Return `under load openvino, 410 ± 12 requests/s at p99 < 20 ms (378 for long), 1.50x eager, sure winner`."""
    if not load.ranked:
        reasons = listed([f"{cell.label}: {_why_unranked(load, cell)}" for cell in load.cells])
        rule = " First looks rank nothing: cells are compared in turns, side by side." if FIRST_LOOK in reasons else ""
        return f"under load nothing could be ranked ({reasons}).{rule}"
    best, why = load.ranked[0], ""
    if load.answer.is_open and load.is_so_far:
        why = f" (the run was interrupted. {to_go_on(load.is_live)})"
    elif load.answer.is_open and all(turn.process == 0 for cell in load.ranked for turn in cell.load.turns):
        why = ", as one process of each does not decide"
    held = "".join(f" ({held})" for held in held_for_long(load, best))
    value = f"{_with_interval(load, best)}{_condition(load)}{held}"
    return f"under load {answers.line(load.answer, value)}{why}."


def _why_unranked(load: LoadJudgement, cell: LoadedCell) -> str:
    chosen, spec = cell.load.settings, load.scenario.spec
    looks = [look.value for look in cell.load.tried if look.value and chosen in (None, look.settings)]
    if looks and not cell.load.turns and not cell.load.reason:
        at_first = looks[-1] if chosen else min(looks, key=spec.ms_per_request)
        return f"no turn yet, but {load.spec.spell(at_first)} {FIRST_LOOK}"
    if cell.soaks and cell.value is None:
        lowest = min(soak.rate for soak in cell.soaks)
        return f"it does not hold the objective for long, even at {load.spec.spell(lowest)}"
    no_turn = "no turn yet" if load.is_so_far else "it had no turn"
    return cell.load.reason or ("no turn has a value" if cell.load.turns else no_turn)


def carried(load: LoadJudgement, value: float) -> str:
    """Return `410 requests/s at p99 < 20 ms`, or the median latency of a scenario that has no rate."""
    return f"{load.spec.spell(value)}{_condition(load)}"


def settings(chosen: ServingSettings) -> str:
    """Return `2 instances x 1 thread, batches of up to 4 within 2 ms, hint THROUGHPUT`."""
    parts = [f"{counted(chosen.instances, 'instance')} x {counted(chosen.threads, 'thread')}"]
    if chosen.batch > 1:
        within = f" within {chosen.wait_ms:g} ms" if chosen.wait_ms else ""
        parts.append(f"batches of up to {chosen.batch}{within}")
    return ", ".join([*parts, *(f"{name} {value}" for name, value in chosen.options.items())])


def _against_single_calls(contest: ContestJudgement, load: LoadJudgement) -> list[str]:
    candidates = contest.fastest.candidates
    carriers = load.answer.first
    if not carriers or not candidates or set(carriers) & set(candidates):
        return []
    fastest = listed(candidates, "or")
    return [f"It is not the fastest at single calls, which is {fastest}: how you call decides what to ship."]


def _condition(load: LoadJudgement) -> str:
    return f" at {load.objective.percentile} < {load.objective.limit_ms:g} ms" if load.objective else ""


def _with_interval(load: LoadJudgement, cell: LoadedCell) -> str:
    """Return `410 ± 12 requests/s`, or both ends of an interval that is wide and so uneven."""
    assert cell.value is not None
    text = load.spec.spell_number(cell.value)
    if ends := cell.interval:
        half = (ends.high - ends.low) / 2
        is_even = half < EVEN_SHARE * cell.value
        low, high, width = (load.spec.spell_number(each) for each in (ends.low, ends.high, half))
        text += f" ± {width}" if is_even else f" [{low}, {high}]"
    return f"{text} {load.spec.unit}"


def held_for_long(load: LoadJudgement, cell: LoadedCell) -> list[str]:
    """Return `378 for long`, or nothing of a cell that held all of its rate, or was not soaked."""
    return [f"{load.spec.spell_number(cell.held.rate)} for long"] if cell.held and cell.held is not cell.soak else []
