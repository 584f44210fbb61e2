"""Says what a cell's error or failure comes from, and which modules must stay in float32."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bakeoff.records.text import counted, listed, one_line
from bakeoff.reports.blocks import Block, Picture, Surface, Text
from bakeoff.reports.charts import chart
from bakeoff.reports.charts.chart import BAR_Y, NAME_CHARACTERS, Chart, Dots, Line, Mark, axis_around
from bakeoff.reports.number_format import NONE, error, milliseconds, percent, ratio
from bakeoff.reports.tables import Table, text_table
from bakeoff.why.explanation_text import THE_MODEL
from bakeoff.why.records import EVEN_SHARE, Blame, Found, GrowthPoint, KeptSet, PartTrial, Variant, largest_local

MIN_POINTS = 4
"""Whether one module has most of the error is said of so many modules or more."""

REFERENCE = (
    "Errors are relative to each part in float64, with casts to narrower types widened. The run's own check has "
    "another reference, the whole model's outputs."
)

MAX_ROWS = 12
"""A terminal shows so many parts, those furthest beyond their limits. A file shows all of them."""


def blocks_of(blame: Blame, beside: Path, script: Path | None = None) -> list[Block]:
    """Return what was found, the parts that were tried, and the growth of the error, for a file in `beside`. A file has
    every part, and a terminal the worst ones. `script` is the file for a script of the part that fails."""
    link = os.path.relpath(blame.figure, beside) if blame.figure else ""
    whole, *parts = blame.trials
    worst = sorted(parts, key=lambda trial: (-trial.excess, not trial.fails))[: MAX_ROWS - 1]
    kept = set(map(id, [whole, *worst]))
    shown = [trial for trial in blame.trials if id(trial) in kept]
    more = len(blame.trials) - len(shown)
    growth = [[point.name, point.kind, error(point.local), error(point.accumulated)] for point in blame.growth]
    smaller = "" if blame.looks_for_failure else ", with a smaller error / limit"
    tried = f"{counted(more, 'more part')} {'was' if more == 1 else 'were'} tried{smaller}: --out FILE has all."
    return [
        *map(Text, sentences(blame, script)),
        *([Picture(quote(link), f"How the error of {blame.label} grows along the model")] if link else []),
        replace(trials_table(blame, blame.trials), on=Surface.MARKDOWN),
        replace(trials_table(blame, shown), on=Surface.TERMINAL),
        Text(tried if more else "", on=Surface.TERMINAL),
        text_table(["along the model", "kind", "error alone", "accumulated"], growth, "llrr"),
        Text(f"Figure: {blame.figure}" if blame.figure else "", on=Surface.TERMINAL),
    ]


def sentences(blame: Blame, script: Path | None = None) -> list[str]:
    effort = f"It made {counted(blame.builds, 'build')} in {blame.seconds:.0f} s."
    if not blame.looks_for_failure:
        effort += f" {REFERENCE}"
    return [conclusion(blame), further_sentences(blame), growth_sentence(blame), script_sentence(blame, script), effort]


def conclusion(blame: Blame) -> str:
    whole = blame.trials[0]
    if blame.found is Found.NOTHING:
        if blame.model_fails:
            return f"{blame.label}: the model itself fails, so that no backend is to blame: {one_line(whole.failure)}"
        if blame.looks_for_failure:
            return f"{blame.label}: the whole model builds and runs now, so that nothing can be blamed."
        said = f"{blame.label}: {figures(whole)}. No part is to blame."
        return f"{said} The run calls it incorrect for another reason: {blame.in_run}" if blame.in_run else said
    place = blame.place or whole
    name = place.name or THE_MODEL.strip("()")
    if blame.looks_for_failure:
        return f"{blame.label}: the smallest part that fails alone is {spot(place)}: {one_line(place.failure)}"
    if blame.found is Found.SPREAD:
        return (
            f"{blame.label}: the error has no single place. {name} is beyond its limit ({figures(place)}), and no part "
            "of it is: the error grows from part to part."
        )
    said = f"{blame.label}: precision is lost in {spot(place)}: {figures(place)}."
    if place.error and place.eager_error and not place.eager_error < place.error / 2:  # neither may be finite
        said += " Eager loses as much, so that the model itself does it."
    return said


def spot(place: PartTrial) -> str:
    return f"{place.name or THE_MODEL.strip('()')}, {place.kind}{f' ({place.line})' if place.line else ''}"


def further_sentences(blame: Blame) -> str:
    if blame.place is None or blame.found is Found.SPREAD:
        return ""
    if blame.looks_for_failure:
        said = [f"{spot(other)} fails, too: {one_line(other.failure).rstrip('.')}." for other in blame.others]
    else:
        said = [f"Precision is also lost in {spot(other)}: {figures(other)}." for other in blame.others]
    if count := blame.same_failures:
        said.append(f"{counted(count, 'more part')} fail{'s' * (count == 1)} in the same words, and may hide others.")
    if again := [] if blame.looks_for_failure else blame.repeated:
        verb = "is beyond its limit" if len(again) == 1 else "are beyond their limits"
        why = ", and runs the same code" if len(again) == 1 else ", and run the same code"
        said.append(f"{listed(again)} {verb}, too{why if blame.is_complete else ''}.")
    if not blame.is_complete:
        said.append("The search ended before all parts were tried: there may be more.")
    elif not said:
        said.append(f"No other part {'fails alone' if blame.looks_for_failure else 'is beyond its limit'}.")
    return " ".join(said)


def figures(trial: PartTrial) -> str:
    if not math.isfinite(trial.error or 0.0):
        return "it returns values that are not finite where the reference's are"
    return f"its own error is {error(trial.error)}, and up to {error(trial.limit)} is allowed"


def growth_sentence(blame: Blame) -> str:
    """Say whether most of the error comes from one module, or nothing if it is not known."""
    largest = largest_local(blame.growth)
    if largest is None:
        return ""
    point, share = largest
    ends = [point for point in blame.growth if point.accumulated is not None]
    first, last = (ends[0], ends[-1]) if ends else (None, None)
    path = ""
    if first and last and first is not last:
        path = f": {error(first.accumulated)} after {first.name}, {error(last.accumulated)} after {last.name}"
    if broken := next((end for end in ends if not math.isfinite(end.accumulated or 0.0)), None):
        return f"The error is not finite from {broken.name} on{path}."
    count = len([point for point in blame.growth if point.local is not None])
    # One of a few modules always has a large share.
    if count < MIN_POINTS:
        return ""
    is_even = share < EVEN_SHARE
    where = f"{'No module' if is_even else point.name} has most of the error{path}. " if path else ""
    most = f"Of the squared errors of {count} modules, each called alone, {point.name} has {percent(share)} %"
    return f"{where}{most}{', the largest share' if is_even else ''}."


def script_sentence(blame: Blame, file: Path | None) -> str:
    script = blame.script
    if blame.found is Found.NOTHING or not blame.looks_for_failure:
        nothing = "the model itself fails" if blame.model_fails else "nothing fails"
        why = nothing if blame.found is Found.NOTHING else "the part runs, and only what fails has a script"
        return f"{file} was not written: {why}." if file else ""
    if script is None:
        why = "No script can be written of it: torch.export does not take it, or no script does what this backend does."
        return f"{why} {file} was not written." if file else why
    made = "A script made from its traced graph, run without Bakeoff,"
    if script.fails_alike:
        return f"{made} fails in the same way. {f'It is in {file}.' if file else '--script FILE keeps it.'}"
    it_is = f" It is in {file}." if file else ""
    return f"{made} does not fail in this way, but: {one_line(script.ending).rstrip('.')}.{it_is}"


def trials_table(blame: Blame, trials: Sequence[PartTrial]) -> Table[Any]:
    if blame.looks_for_failure:
        outcomes = [[part(trial), trial.kind, outcome(trial)] for trial in trials]
        return text_table(["part, built apart", "kind", "outcome"], outcomes, "lll")
    rows = [
        [
            part(trial),
            trial.kind,
            error(trial.error),
            error(trial.eager_error),
            error(trial.limit),
            one_line(trial.failure, 120) if trial.failure else NONE if trial.error is None else ratio(trial.excess),
        ]
        for trial in trials
    ]
    headings = ["part, built apart", "kind", "error", "eager's", "limit", "error / limit"]
    return text_table(headings, rows, "llrrrr")


def part(trial: PartTrial) -> str:
    """Return the name of a part, with the line that calls it: a module may call an operator several times."""
    return f"{trial.name or THE_MODEL}{f' ({trial.line})' if trial.line else ''}"


def outcome(trial: PartTrial) -> str:
    return f"fails: {one_line(trial.failure, 120)}" if trial.failure else "builds and runs"


def figure(blame: Blame) -> str | None:
    finding = growth_sentence(blame).partition(". ")[0].removesuffix(".") or "Errors of modules along the model"
    drawn = growth_chart(blame, finding)
    if drawn is None:
        return None
    from bakeoff.reports.charts.paint import file_svg  # imports matplotlib

    return file_svg([drawn], "")


def blocks_of_kept(kept: KeptSet) -> list[Block]:
    """Return which modules stay in float32, what that costs, and the order in which modules were tried."""
    order = (
        "Modules in the order in which they were tried, those first that cause most error alone. Errors are those of "
        f"{kept.searched_in}; the variants above are the backend's."
    )
    variants = [
        [
            variant.name,
            error(variant.error),
            one_line(variant.failure, 80) if variant.failure else "yes" if variant.holds else "no",
            milliseconds(variant.latency_ms),
            "" if variant.ratio is None else f"{ratio(variant.ratio)} {ends(variant)}".rstrip(),
        ]
        for variant in kept.variants
    ]
    tried = [
        [trial.name, trial.kind, error(trial.alone), error(trial.left), "yes" if trial.is_kept else trial.note or "no"]
        for trial in kept.tried
    ]
    alone = f"error of it alone in {kept.precision}"
    return [
        Text(kept_conclusion(kept)),
        text_table(["the model", "error", "holds", "latency (ms)", "latency / as it is [95 %]"], variants, "lrlrr"),
        Text(order if kept.tried else ""),
        text_table(["module", "kind", alone, "error left with it in fp32, too", "stays"], tried, "llrrl"),
        Text(f"It made {counted(kept.builds, 'build')} in {kept.seconds:.0f} s."),
    ]


def kept_conclusion(kept: KeptSet) -> str:
    by_name = {variant.name: variant for variant in kept.variants}
    plain, everything = kept.variants[0], kept.variants[-1]
    head = f"{kept.label} in {kept.precision}"
    if plain.holds:
        return f"{head} holds {kept.requirement} as it is: no module need stay in fp32."
    if not everything.holds:
        why = everything.failure or f"its error in fp32 is {error(everything.error)}"
        return f"{head} does not hold {kept.requirement}, and not with all of it in fp32 either: {why}."
    chosen = by_name.get("with the set in fp32")
    if not kept.holds or chosen is None:
        why = f": {chosen.failure}" if chosen and chosen.failure else ""
        return f"{head} holds {kept.requirement} with all of the model in fp32, and with no smaller set{why}."
    names = ", ".join(kept.kept) or THE_MODEL.strip("()")
    return (
        f"{head} holds {kept.requirement} with {counted(len(kept.kept), 'module')} in fp32: {names}. They have "
        f"{percent(kept.share_of_weights)} % of the weights."
    )


def ends(variant: Variant) -> str:
    return "[{}, {}]".format(*map(ratio, variant.ratio_ci95)) if variant.ratio_ci95 else ""


# --- the figure

ACCUMULATED, LOCAL = "#0072b2", "#d55e00"


def growth_chart(blame: Blame, finding: str) -> Chart | None:
    """Draw the accumulated and the local error of each module, a row for each, from the input down to the output.
    Return None where no module has an error above 0 that is finite."""
    points = blame.growth
    errors = [value for point in points for value in (point.local, point.accumulated) if is_drawn(value)]
    if not errors:
        return None
    x = axis_around("error relative to the output", list(filter(None, errors)), is_log=True)
    accumulated = [(place, point.accumulated) for place, point in enumerate(points) if is_drawn(point.accumulated)]
    path = Mark(
        tuple(
            Line((first or 0.0, second or 0.0), (above + BAR_Y, below + BAR_Y), colour=ACCUMULATED)
            for (above, first), (below, second) in pairwise(accumulated)
            if below == above + 1
        )
    )
    return Chart(
        name="blame",
        subject=f"{blame.label}, {blame.precision}",
        finding=finding,
        caption="Error of modules' outputs: accumulated from the input, and of the module alone on exact inputs",
        x=x,
        marks=(path, *(mark for place, point in enumerate(points) for mark in marks_of(place, point, x.low))),
        rows=tuple(one_line(f"{point.name} ({point.kind})", NAME_CHARACTERS) for point in points),
        colours=(("accumulated", ACCUMULATED), ("of the module alone", LOCAL)),
    )


def is_drawn(value: float | None) -> bool:
    """Return True for an error that has a place on a logarithmic axis."""
    return bool(value) and math.isfinite(value or 0.0)


def marks_of(place: int, point: GrowthPoint, low: float) -> Sequence[Mark]:
    marks = []
    for value, shape, colour, words in (
        (point.accumulated, "o", ACCUMULATED, "accumulated"),
        (point.local, "D", LOCAL, "of the module alone"),
    ):
        if value is None:
            continue
        tip = f"{point.name}: {words} {error(value)}"
        if math.isfinite(value):
            marks.append(Mark((Dots((max(value, low),), (place + BAR_Y,), size=5.0, shape=shape, colour=colour),), tip))
        elif value is point.local or point.local is None or math.isfinite(point.local):
            marks.append(Mark((chart.Text(low, place + BAR_Y, f"{words}: not finite", colour="bad"),), tip))
    return marks
