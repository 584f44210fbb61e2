"""Shows which of several machines to rent, from one report of each."""

from bakeoff.judging.machines import Machines, Offer, Question
from bakeoff.records.text import first, listed, spell_ms
from bakeoff.reports import headline, machine, number_format
from bakeoff.reports.markdown import escape, table
from bakeoff.reports.number_format import NONE


def to_markdown(machines: Machines) -> str:
    """Return a section for each question that several machines answer, and what each machine is."""
    sections = [f"# {len(machines.reports)} machines"]
    for question in machines.questions:
        sections += [f"## {escape(question.title)}", f"{escape(answer(question))}.", _table(question)]
        sections += [
            escape(f"{name} did not try {listed(labels, 'or')}, so that it may do better than it shows.")
            for name, labels in question.untried.items()
        ]
    if not machines.questions:
        sections.append("No model was measured alike on two of them: there is nothing to compare.")
    if machines.asked_once:
        alone = ", ".join(map(escape, machines.asked_once))
        sections.append(f"On one machine only: {alone}.")
    rows = [[escape(name), escape(machine.name(report.environment))] for name, report in machines.reports.items()]
    sections += [
        table(["machine", "hardware"], rows, "ll"),
        "Cells of two machines share no rounds: the fastest is named where intervals do not overlap. Calls/s "
        "and prices are of calls back to back; J is beyond an idle machine.",
    ]
    return "\n\n".join(sections) + "\n"


def answer(question: Question) -> str:
    """Say which machine is the fastest, and which one is the cheapest for a million calls if prices are known."""
    fastest = question.offers[0]
    if len(question.fastest) > 1:
        said = f"{listed(question.fastest, 'or')} may be the fastest"
    else:
        times = question.offers[1].latency.median_ms / fastest.latency.median_ms
        said = (
            f"{fastest.machine} is the fastest: {spell_ms(fastest.latency.median_ms)} with "
            f"{candidates(fastest)}, {number_format.ratio(times)}x {question.offers[1].machine}"
        )
    cheapest = question.cheapest
    if cheapest is None or cheapest.price_per_million is None:
        return said
    return f"{said}; {cheapest.machine} is the cheapest, at {_price(cheapest.price_per_million)} for a million calls"


def candidates(offer: Offer) -> str:
    """Return what answers a single call fastest on this machine, or may."""
    return listed(first(offer.candidates), "or")


def certainty(offer: Offer) -> str:
    """Say how sure that is."""
    return headline.certainty(offer.contest, offer.contest.fastest)


def _table(question: Question) -> str:
    headings = ["machine", "device", "fastest", "median [95 %] (ms)", "calls/s", "J/call [95 %]", "price of 1M calls"]
    return table(headings, [_row(offer) for offer in question.offers], "lllrrrr")


def _row(offer: Offer) -> list[str]:
    rate, price = offer.calls_per_s, offer.price_per_million
    return [
        escape(offer.machine),
        str(offer.contest.cell.device),
        escape(f"{candidates(offer)} ({certainty(offer)})"),
        number_format.median(offer.latency),
        NONE if rate is None else number_format.rate(rate),
        _joules(offer),
        NONE if price is None else _price(price),
    ]


def _joules(offer: Offer) -> str:
    """Return `0.0261 [0.025, 0.027]`, or `-` where no energy was counted, or less than the counter resolves."""
    interval = offer.joules_ci95
    ends = f" [{interval.low:.3g}, {interval.high:.3g}]" if interval else ""
    return NONE if offer.joules_per_call is None else f"{offer.joules_per_call:.3g}{ends}"


def _price(value: float) -> str:
    """Return `0.0261`. The unit is that of the price of an hour."""
    return f"{value:.3g}"
