"""Shows which of several machines to rent, from one report of each."""

from bakeoff.judging.machines import ContestOfMachines, Machines, Offer
from bakeoff.records.text import counted, first, listed, spell_ms
from bakeoff.reports import headline, machine, number_format
from bakeoff.reports.blocks import Block, Section, Text
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table, text_table


def blocks_of(machines: Machines) -> list[Block]:
    rows = [[name, machine.name(report.environment)] for name, report in machines.reports.items()]
    alone = ", ".join(machines.asked_once)
    blocks: list[Block] = [
        *(Section(question.title, _blocks(question)) for question in machines.questions),
        Text("" if machines.questions else "No model was measured alike on two of them: there is nothing to compare."),
        Text(alone and f"On one machine only: {alone}."),
        *(
            Text(f"{listed(names)} are runs of one machine: bakeoff compare judges two of them.")
            for names in machines.hosts
            if len(names) > 1
        ),
        text_table(["machine", "hardware"], rows, "ll"),
        Text(
            "Cells of two machines share no rounds: the fastest is named where intervals do not overlap. Calls/s "
            "and prices are of calls back to back; J is beyond an idle machine."
        ),
    ]
    hosts, runs = len(machines.hosts), len(machines.reports)
    return [Section(counted(hosts, "machine") + (f", {counted(runs, 'run')}" if runs > hosts else ""), blocks, level=1)]


def _blocks(question: ContestOfMachines) -> list[Block]:
    return [
        Text(f"{answer(question)}."),
        Table(_COLUMNS, question.offers),
        *(
            Text(f"{name} did not try {listed(labels, 'or')}, so that it may do better than it shows.")
            for name, labels in question.untried.items()
        ),
    ]


def answer(question: ContestOfMachines) -> str:
    fastest = question.offers[0]
    if len(question.fastest) > 1:
        said = f"{listed(question.fastest, 'or')} may be the fastest"
    else:
        times = question.offers[1].latency.median_ms / fastest.latency.median_ms
        said = (
            f"{fastest.machine} is the fastest: {spell_ms(fastest.latency.median_ms)} with "
            f"{candidates(fastest)}, {number_format.ratio(times)}x {question.offers[1].machine}"
        )
    if not question.maybe_cheapest:
        return said
    cheapest, *held_down = question.maybe_cheapest
    if held_down:
        names = listed([cheapest.machine, *(offer.machine for offer in held_down)], "or")
        return f"{said}; {names} may be the cheapest, since other load held rates down"
    return f"{said}; {cheapest.machine} is the cheapest, at {_price(cheapest)} for a million calls"


def candidates(offer: Offer) -> str:
    return listed(first(offer.candidates), "or")


def certainty(offer: Offer) -> str:
    return headline.certainty(offer.contest, offer.contest.fastest)


def _price(offer: Offer) -> str:
    """Return `0.0261`, or `≤0.0261` of a rate that was held down. The unit is that of the price of an hour."""
    price = offer.price_per_million
    return NONE if price is None else f"{'≤' if offer.is_lower_bound else ''}{price:.3g}"


_COLUMNS = [
    Column[Offer]("machine", lambda offer: offer.machine, is_text=True),
    Column[Offer]("device", lambda offer: offer.contest.cell.device, is_text=True),
    Column[Offer]("fastest", lambda offer: f"{candidates(offer)} ({certainty(offer)})", is_text=True),
    Column[Offer]("median", lambda offer: offer.latency.median_ms, "ms",
                  interval=lambda offer: offer.latency.median_ci95_ms),
    Column[Offer]("rate", lambda offer: offer.calls_per_s, "calls/s",
                  text=lambda offer: number_format.rate_at_least(offer.calls_per_s, offer.is_lower_bound)),
    Column[Offer]("energy", lambda offer: offer.joules_per_call, "J/call", lambda joules: f"{joules:.3g}",
                  interval=lambda offer: offer.joules_ci95),
    Column[Offer]("price of 1M calls", lambda offer: offer.price_per_million, text=_price),
]  # fmt: skip
