"""Says what a bisection found: a line for each step, and the first slow version."""

from bakeoff.judging.bisection import Bisection, Call, TriedVersion
from bakeoff.judging.decision import Relation, relation
from bakeoff.records.text import listed
from bakeoff.reports import sentences
from bakeoff.reports.tables import Column, Table


def steps_table(bisection: Bisection) -> Table[TriedVersion]:
    order = sorted(bisection.steps, key=lambda step: bisection.versions.index(step.version))
    columns: list[Column[TriedVersion]] = [
        Column(bisection.package, lambda step: step.version, is_text=True),
        Column("", lambda step: step.call.value, is_text=True),
        Column(f"time over {bisection.good}'s", _times),
        Column(f"{bisection.bad}'s time over its own", lambda step: sentences.ratio_or_none(step.below_bad)),
        Column("", lambda step: step.reason, is_text=True),
    ]
    return Table(columns, order)


def step_line(bisection: Bisection, step: TriedVersion) -> str:
    outcome = step.reason if step.over_good is None else f"{_times(step)} the time of {bisection.good}"
    return f"{bisection.package} {step.version}: {step.call}, {outcome}"


def conclusion(bisection: Bisection) -> str:
    if not bisection.steps:
        return "Nothing was measured yet."
    first, suspects = bisection.steps[0], bisection.suspects
    if not suspects:
        return _no_difference(bisection, first)
    if bisection.next_version is not None:
        return f"Not finished: the first slow version of {bisection.package} is one of {listed(suspects, 'or')}."
    if step := bisection.first_slow:
        before = bisection.versions[bisection.versions.index(step.version) - 1]
        said = (
            f"{bisection.package} {step.version} is the first slow version: {bisection.backend} takes {_times(step)} "
            f"the time of {bisection.good}, and {before} is the last fast one."
        )
        if step.below_bad and relation(step.below_bad) is Relation.FASTER:
            said += f" It is not all: with {bisection.bad} it takes {sentences.ratio(step.below_bad)} as long again."
        return said
    return (
        f"The first slow version of {bisection.package} is one of {listed(suspects, 'or')}. {_what_settles(bisection)}"
    )


def _no_difference(bisection: Bisection, first: TriedVersion) -> str:
    if first.over_good is None:
        return f"{bisection.bad} was not measured."
    ratio = f"{bisection.backend} takes {_times(first)} the time with {bisection.bad}"
    if first.call is Call.UNDECIDED:
        return f"{bisection.good} and {bisection.bad} are not told apart ({ratio}): {_settling(first)}."
    is_faster = relation(first.over_good) is Relation.SLOWER
    said = (
        f"{bisection.bad} is faster than {bisection.good}"
        if is_faster
        else f"{bisection.good} and {bisection.bad} do not differ"
    )
    return f"{said} ({ratio}): there is nothing to find between them."


def _what_settles(bisection: Bisection) -> str:
    said = []
    for step in filter(None, map(bisection.step_of, bisection.suspects)):
        if step.call is Call.SKIPPED:
            said.append(f"{step.version} was skipped: {step.reason}.")
        if step.call is Call.UNDECIDED:
            said.append(
                f"{step.version} is undecided ({_times(step)} the time of {bisection.good}): {_settling(step)}."
            )
    return " ".join(said)


def _settling(step: TriedVersion) -> str:
    processes = step.over_good.processes if step.over_good else 1
    return f"a quiet machine, or more processes than {processes} (--processes), would settle it"


def _times(step: TriedVersion) -> str:
    return sentences.ratio_or_none(step.over_good)
