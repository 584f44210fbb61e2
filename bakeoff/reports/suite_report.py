"""What a report says of a suite: the columns of its tables and its sentences, the same for every output."""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.optional_field import OptionalField
from bakeoff.judging.suites import FAMILY_ERROR, MIN_PASSED_SHARE, TAUS, Failures, Means, Suite, SuiteRow, passed
from bakeoff.records.text import counted, first, listed, one_line
from bakeoff.reports import headline, number_format, sentences
from bakeoff.reports.answers import named
from bakeoff.reports.findings import NEAR
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Raw, csv_field

NAMES_SHOWN = 6
"""Number of models that a reason for failing names; further ones are counted."""

REASON_LIMIT = 200

FULL_COLOUR = 4.0
"""The speed-up that has the full colour on a map of models."""

NBSP = "\u00a0"
"""A blank at which no heading is broken."""


PROFILE = "On what share of the models a backend is within a factor of the best latency (a failure never is)"


def map_title(suite: Suite) -> str:
    over = f"speed-up over {suite.baseline}" if suite.baseline else "latency"
    return f"Every model: {over} of each backend, or how it ended"


def title(suite: Suite) -> str:
    """Return `46 models on cpu, fp32`, or `58 contests of 46 models on cuda, fp16, train_step`."""
    cell = suite.contests[0].cell
    contests = len(suite.contests)
    number = f"{contests} contests of {suite.models} models" if contests > suite.models else f"{contests} models"
    task = "" if cell.task == "inference" else f", {cell.task}"
    run = f", {suite.contests[0].run_id}" if suite.contests[0].run_id else ""
    return f"{number} on {cell.device}, {cell.precisions}{task}{run}"


def finding(suite: Suite) -> str:
    leaders = {row.label: row.means.speedup for row in suite.rows if row.may_lead and row.means}
    if not leaders:
        return f"no backend has a mean: there is nothing that {_ranked_passed(suite)}"
    if len(suite.common) == 1:
        name = model_names(suite)[suite.common[0].contest_id]
        return f"there is no average yet: {name} is all that {_ranked_passed(suite)}"
    over = f"over the {_common(suite)} that {_ranked_passed(suite)}"
    gains = [f"{number_format.ratio(gain)}x" for gain in leaders.values() if gain is not None]
    reach = " to ".join(dict.fromkeys([gains[-1], gains[0]])) if gains else ""
    gained = f", {reach} {suite.baseline}" if gains and list(leaders) != [suite.baseline] else ""
    if len(leaders) == 1:
        (best,) = leaders
        return f"{best} is the fastest on average{gained} {over}"
    return f"{listed(list(leaders))} cannot be told apart on average{gained} {over}"


def answer(suite: Suite) -> str:
    return f"{title(suite)}: {finding(suite)}."


def notes(suite: Suite) -> list[str]:
    without = [row.label for row in suite.rows if row.means is None and row.passed]
    lines = [
        f"Mean speed-up, build time and memory are over the {_common(suite)} that {_ranked_passed(suite)}: the "
        "geometric mean, the median, and the geometric mean of the peaks."
    ]
    if suite.busy:
        lines.append(f"In {counted(suite.busy, 'further contest')} the machine was too busy for a speed-up.")
    if without and suite.common:
        lines.append(
            f"{listed(without)} passed less than {number_format.percent(MIN_PASSED_SHARE)} % of what "
            f"{'they were' if len(without) > 1 else 'it was'} asked, and so {'have' if len(without) > 1 else 'has'} no "
            "mean."
        )
    sure = sum(contest.fastest.certainty is Certainty.SURE for contest in suite.contests)
    lines.append(
        f"{sure} of {len(suite.contests)} contests have a sure winner. {suite.wins} of these are counted as wins: they "
        f"remain when the error over all contests together is held at {number_format.percent(FAMILY_ERROR)} % (Holm)."
    )
    return lines


def failure(suite: Suite, failures: Failures) -> str:
    """Return `onnx: error in export on 3 models (a, b, c): RuntimeError: ...`."""
    names = model_names(suite)
    record, where = failures.cell.record, [names[contest.contest_id] for contest in failures.contests]
    reason = record.reason
    ending = number_format.ending(record)
    if failures.cell.unmet:
        ending, reason = "not as required", "; ".join(doubt.unmet for doubt in failures.cell.unmet)
    models = f"{counted(len(where), 'model')} ({listed(first(where, NAMES_SHOWN))})"
    example = "such as " if failures.differ and not failures.cell.unmet else ""
    text = f": {example}{one_line(reason, REASON_LIMIT)}" if reason else ""
    return f"{', '.join(failures.labels)}: {ending} on {models}{text}"


def model_names(suite: Suite) -> dict[str, str]:
    """Return a short name for each contest by its id: `bert` for `hf:presets/zoo/bert`, unless two would be equal."""
    names = sentences.names(suite.contests)
    # without its source; a file's function keeps the file's name
    last_parts = [re.sub(r"^(?:\w+:)(?:[^:]*/)?([^/:]+)$", r"\1", one.cell.model) for one in suite.contests]
    triples = zip(names, suite.contests, last_parts, strict=True)
    short = [name.replace(one.cell.model, last, 1) for name, one, last in triples]
    counts = Counter(short)
    return {
        contest.contest_id: one_line(brief if counts[brief] == 1 else name)
        for contest, name, brief in zip(suite.contests, names, short, strict=True)
    }


def columns_of(suite: Suite) -> list[Column[SuiteRow]]:
    over = f"x {one_line(suite.baseline or '', 20)}"
    unbroken, near = over.replace(" ", NBSP), f"{number_format.percent(NEAR - 1)} %"

    means = OptionalField[SuiteRow, Means](lambda row: row.means)

    def reach(row: SuiteRow) -> str:
        if row.is_baseline or not row.means or row.means.lowest is None or row.means.highest is None:
            return ""
        return f"{number_format.ratio(row.means.lowest)} to {number_format.ratio(row.means.highest)}"

    def apart(row: SuiteRow) -> str:
        cannot, not_reached = row.cannot_run, row.not_reached
        parts = [f"{cannot} cannot run here" if cannot else "", f"{not_reached} not reached" if not_reached else ""]
        return ", ".join(filter(None, parts))

    return [
        LABEL,
        Column("passed", lambda row: row.passed, text=_pass_rate, note=apart, csv="passed"),
        csv_field("asked", lambda row: row.asked),
        csv_field("cannot_run", lambda row: row.cannot_run),
        csv_field("not_reached", lambda row: row.not_reached),
        csv_field("pass_rate", lambda row: row.passed / row.asked if row.asked else None),
        Column("mean speed-up", means(lambda it: it.speedup), over, note=reach,
               terminal_heading=f"mean {unbroken}", csv="geometric_mean_speedup"),
        csv_field("lowest_speedup", means(lambda it: it.lowest)),
        csv_field("highest_speedup", means(lambda it: it.highest)),
        Column("wins", lambda row: row.wins, csv="wins"),
        Column(f"within {near} of the best", _share(NEAR), write=lambda share: f"{100 * share:.0f} %",
               terminal_heading=f"within {near.replace(' ', NBSP)} of{NBSP}best"),
        Column("median build", means(lambda it: it.build_s), "s", csv="median_build_s"),
        Column("peak memory", means(lambda it: it.memory), over,
               terminal_heading=f"memory {unbroken}", csv="geometric_mean_memory"),
        *(csv_field(f"profile_{tau:g}", _share(tau)) for tau in TAUS),
    ]  # fmt: skip


def profile_columns() -> list[Column[SuiteRow]]:
    return [LABEL, *(Column(f"{tau:g}x", _share(tau), "%") for tau in TAUS)]


def map_columns(suite: Suite) -> list[Column[ContestJudgement]]:
    names = model_names(suite)
    return [
        Column("model", lambda contest: names[contest.contest_id], is_text=True),
        *map(_map_column, suite.labels),
        Column("best", lambda contest: named(contest.answer), write=one_line, is_text=True),
        Column("how sure", headline.certainty, write=one_line, is_text=True, is_bad=headline.is_unsure),
    ]


@dataclass(frozen=True)
class Tile:
    """What the map of a suite shows of one cell."""

    text: str  # the speed-up, or how it ended
    speedup: float | None
    is_bad: bool = False


def tile(contest: ContestJudgement, label: str) -> Tile:
    cell = contest.cell_of(label)
    if cell is None:
        return Tile(NONE, None)
    if not passed(cell):
        return Tile(
            "not as required" if cell.unmet else cell.record.status.value, None, not cell.record.status.is_absence
        )
    if cell.speedup is None:
        return Tile(f"{number_format.milliseconds(cell.latency.median_ms if cell.latency else None)} ms", None)
    return Tile(number_format.ratio(cell.speedup.value), cell.speedup.value)


def strength(speedup: float | None) -> float:
    """Return how strongly a speed-up is coloured: 1 from `FULL_COLOUR` on, -1 for the same slowdown, 0 for none."""
    return max(-1.0, min(1.0, math.log(speedup) / math.log(FULL_COLOUR))) if speedup else 0.0


def outcome(contest: ContestJudgement) -> str:
    tried = (cell for cell in contest.cells if not cell.record.status.is_absence)
    return "all passed" if all(map(passed, tried)) else "some failed"


LABEL = Column[SuiteRow]("backend", lambda row: row.label, write=one_line, is_text=True, is_label=True, csv="backend")


def suite_fields(suite: Suite) -> dict[str, Raw]:
    cell = suite.contests[0].cell
    return {
        "task": cell.task,
        "device": str(cell.device),
        "precision": cell.precisions,
        "contests": len(suite.contests),
        "contests_in_means": len(suite.common),
        "baseline": suite.baseline,
    }


def _map_column(label: str) -> Column[ContestJudgement]:
    return Column(
        label,
        lambda contest: tile(contest, label).speedup,
        text=lambda contest: tile(contest, label).text,
        is_bad=lambda contest: tile(contest, label).is_bad,
        strength=lambda contest: strength(tile(contest, label).speedup),
    )


def _pass_rate(row: SuiteRow) -> str:
    """Return `96 % (44 of 46)`; a rate that is not 100 % is never printed so."""
    if not row.asked:
        return NONE
    rate = 100 if row.passed == row.asked else min(99, round(100 * row.passed / row.asked))
    return f"{rate} % ({row.passed} of {row.asked})"


def _share(tau: float) -> Callable[[SuiteRow], float]:
    return lambda row: row.profile.share(tau)


def _ranked_passed(suite: Suite) -> str:
    return f"every ranked backend passed{' with a known speed-up' if suite.busy else ''}"


def _common(suite: Suite) -> str:
    number = len(suite.common)
    kind = "contest" if len(suite.contests) > suite.models else "model"
    return f"{number} {kind}{'' if number == 1 else 's'}"
