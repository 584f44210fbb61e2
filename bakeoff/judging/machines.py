"""Reports of several machines side by side: which of them to rent for a model.

Each machine is judged by its own report. Cells of two machines never shared a round, so nothing divides a drift out
between them: one machine is called faster than another only where the intervals of their medians do not overlap.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import judge
from bakeoff.judging.price import Price
from bakeoff.judging.roofline import named_by_work
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.grouping import grouped
from bakeoff.records.report_file import folder_of
from bakeoff.records.schema import Interval, Latency, Report

CALLS = 1_000_000
"""Money is for so many calls."""

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Offer:
    """The best cell of one machine for one question: a model with its dimensions, its task and its precision."""

    machine: str
    contest: ContestJudgement
    latency: Latency
    calls_per_s: float | None  # back to back, as the throughput of the record says
    is_lower_bound: bool  # other load held the rate down, so that it is more, and the price less
    joules_per_call: float | None  # beyond an idle machine; None where the counter cannot resolve it
    joules_ci95: Interval | None
    price_per_million: float | None  # in the unit of the price of an hour, for calls back to back

    @property
    def candidates(self) -> list[str]:
        return self.contest.fastest.candidates


@dataclass(frozen=True)
class ContestOfMachines:
    """What several machines were asked alike, with an offer of each that has an answer: the fastest comes first."""

    title: str
    offers: tuple[Offer, ...]

    @property
    def fastest(self) -> list[str]:
        """Return the machines that may be the fastest: those whose interval reaches that of the first offer."""
        reached = self.offers[0].latency.median_ci95_ms
        ends = [(offer.machine, offer.latency.median_ci95_ms) for offer in self.offers]
        return [machine for machine, end in ends if end is None or reached is None or end.low <= reached.high]

    @property
    def untried(self) -> dict[str, list[str]]:
        """Return what may be the fastest on the first machine and was never tried on another with the same kind of
        device, by machine."""
        first = self.offers[0]
        labels_by_machine = {}
        for offer in self.offers[1:]:
            tried = {cell.label for cell in offer.contest.cells}
            labels = [label for label in first.candidates if label not in tried]
            if labels and offer.contest.cell.device.is_cuda == first.contest.cell.device.is_cuda:
                labels_by_machine[offer.machine] = labels
        return labels_by_machine

    @property
    def maybe_cheapest(self) -> list[Offer]:
        """Return the offer with the lowest price, and then those that may cost less, as their rates were held down.
        There is none unless every machine has a price, and there are several."""
        by_price = sorted(self.offers, key=lambda offer: offer.price_per_million or math.inf)
        if len(self.offers) < 2 or any(offer.price_per_million is None for offer in self.offers):
            return []
        return [by_price[0], *(offer for offer in by_price[1:] if offer.is_lower_bound)]

    @property
    def cheapest(self) -> Offer | None:
        return self.maybe_cheapest[0] if len(self.maybe_cheapest) == 1 else None


@dataclass(frozen=True)
class Machines:
    """Reports by the names of their machines, and the questions that at least two of them answer."""

    reports: Mapping[str, Report]
    questions: tuple[ContestOfMachines, ...]
    asked_once: tuple[str, ...]  # titles of what only one machine was asked, or could answer

    @property
    def hosts(self) -> list[list[str]]:
        """Return the names of the reports of each machine: several runs of one host are of one machine."""

        def host(name: str) -> tuple[str, ...]:
            environment = self.reports[name].environment
            return (environment.hostname, environment.cpu, *(gpu.name for gpu in environment.gpus))

        return list(grouped(self.reports, host).values())


def machines_of(reports: Mapping[str, Report], prices: Mapping[str, float] | None = None) -> Machines:
    """Put reports side by side. `prices` are of an hour of a machine, by its name. Raise UsageError for a price of an
    unknown machine."""
    prices = prices or {}
    for name in prices:
        if name not in reports:
            raise unknown("machine", name, reports, "--price NAME=2.5/h")
    machines: dict[str, list[Offer]] = {}
    for name, report in zip(reports, named_by_work(list(reports.values())), strict=True):
        for contest in judge(report).contests:
            if offer := _offer(name, contest, prices.get(name)):
                title = contest.cell.title.replace(f" on {contest.cell.device}, ", ", ")  # machines differ by it
                machines.setdefault(title, []).append(offer)
    several = {title: offers for title, offers in machines.items() if len({offer.machine for offer in offers}) > 1}
    questions = [
        ContestOfMachines(title, tuple(sorted(offers, key=lambda offer: offer.latency.median_ms)))
        for title, offers in several.items()
    ]
    return Machines(reports, tuple(questions), tuple(title for title in machines if title not in several))


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Return prices of an hour by machine from texts such as `h200=2.5/h`. Raises UsageError for another text."""
    prices = {}
    for text in texts:
        name, _, price = text.partition("=")
        prices[name] = Price.parse(price if name else "", text, "h200=2.5/h").per_hour
    return prices


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the name of each machine: that of the report's folder. Raises UsageError if two folders end alike."""
    folders = [folder_of(path.resolve()) for path in paths]
    names = [folder.name for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two folders are named {name}, and they name the machines: rename one")
    return names


def _offer(machine: str, contest: ContestJudgement, price_per_hour: float | None) -> Offer | None:
    best = contest.best
    if best is None or best.latency is None:
        return None
    record = best.record
    rate = record.throughput.calls_per_s if record.throughput else None
    return Offer(
        machine=machine,
        contest=contest,
        latency=best.latency,
        calls_per_s=rate,
        is_lower_bound=record.is_throughput_doubtful,
        joules_per_call=record.energy.resolved_j if record.energy else None,
        joules_ci95=record.energy.ci95 if record.energy and record.energy.resolved_j is not None else None,
        price_per_million=price_per_hour / SECONDS_PER_HOUR / rate * CALLS if price_per_hour and rate else None,
    )
