"""The doubts about who wins: what was not measured, not decided, or only narrowly."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from bakeoff.judging.answer import Answer
from bakeoff.judging.decision import (
    FEWEST_FOR_NARROW_LEAD,
    FEWEST_PROCESSES,
    MARGIN_UNPAIRED,
    NARROW_LEAD,
    Relation,
    is_covered_by_waiting,
    narrow_lead,
    relation,
)
from bakeoff.judging.doubt import Doubt, FirstPlace, OfCell, OfCells, Stop
from bakeoff.judging.fit import Fit
from bakeoff.judging.ranking import BASELINE, Evidence
from bakeoff.records.doubts import EAGER_DIFFERS, Effect, Unchecked
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import ORIGINAL, WITH_WINNERS, Ratio, Record, Status, Verdict
from bakeoff.records.text import first as first_names
from bakeoff.records.text import listed, percent, spell_interval, spell_ratio, spell_rough_ratio, to_go_on

CANNOT_RUN = (Status.UNAVAILABLE, Status.UNSUPPORTED)
"""A cell that cannot run on this machine, or not by this backend, is no reason to doubt the others."""

TOLD_ONCE = (*CANNOT_RUN, Status.LEFT_OUT)
"""Cells that ended like this are named in one sentence, and have no row of a contest."""


class NotRanked(OfCells):
    """Cells ended in a way that keeps them from being ranked."""

    status: Status
    reason: str
    is_live: bool = False

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        """Yield one doubt for all cells that ended alike."""

        def ending(record: Record) -> tuple[Status, str]:
            return record.status, record.reason

        ended = [one for one in evidence.ranking.records if one.status not in (Status.OK, *TOLD_ONCE)]
        for (status, reason), records in grouped(ended, ending).items():
            yield cls(tuple(record.cell.label for record in records), status, reason, evidence.is_live)

    @property
    def lacked_time(self) -> str:
        """Say how a cell that could still win lacked time, or nothing."""
        return str(self.status) if self.status is Status.NOT_REACHED else ""

    def effect(self, first: FirstPlace) -> Effect:
        return Effect.WINNER if self.lacked_time else Effect.NONE

    @property
    def brief(self) -> str:
        return f"{listed(first_names(self.labels))} {'were' if len(self.labels) > 1 else 'was'} {self.lacked_time}"

    def say(self) -> str:
        labels, several = listed(self.labels), len(self.labels) > 1
        if self.lacked_time:
            were, them = ("were", "them") if several else ("was", "it")
            return f"{labels} {were} {self.lacked_time}: {self.reason}. {to_go_on(self.is_live, them)}"
        are = "are" if several else "is"
        return f"{labels} {are} not ranked, {self.status}{f': {self.reason}' if self.reason else ''}"


class NoBaseline(Doubt):
    """The cell that speed-ups are taken to was not measured."""

    baseline: str
    configurations: tuple[str, ...] = ()  # that were asked for; empty: the baseline itself was, too
    is_live: bool = False

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        ranking = evidence.ranking
        baselines = [record for record in ranking.records if record.cell.label == ranking.baseline_label]
        if ranking.ranked and not any(record.latency for record in baselines):
            asked = dict.fromkeys(record.cell.configuration for record in ranking.records if not baselines)
            yield cls(ranking.baseline_label, tuple(asked), evidence.is_live)

    def say(self) -> str:
        text = f"{self.baseline} has no numbers here, so no speed-up can be given"
        if not self.configurations:
            return text  # how it ended is said of it
        backends = ",".join([self.baseline.partition(" ")[0], *self.configurations])
        option = f'backends="{backends}"' if self.is_live else f"--backends {shlex.quote(backends)}"
        return f"{text}. Measure it too: {option}"


class ModelChanges(OfCell):
    """Eager is the model itself, and failed a check: the builds were checked against its first answers only."""

    brief = "the model's answers change with the calls, the time or the process"

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        for record in evidence.ranking.records if evidence.ranking.ranked else ():
            is_model = record.cell.backend == BASELINE and record.cell.mode == "default"
            # It passed its first check: the record has that check, or that of a further process.
            is_wrong = record.status is Status.INCORRECT and (
                record.accuracy is not None and (record.accuracy.passed or len(record.processes) > 1)
            )
            differs = any(isinstance(doubt, Unchecked) and doubt.why == EAGER_DIFFERS for doubt in record.doubts)
            if is_model and (is_wrong or differs):
                yield cls(record.cell.label)

    def effect(self, first: FirstPlace) -> Effect:
        return Effect.WINNER

    def say(self) -> str:
        return (
            f"{self.label} is the model itself, and later answers of it were others: what it answers changes with the "
            "number of calls, the time or the process. Builds were checked against its first answers only. Let it "
            "answer every call alike, or compare later answers yourself"
        )


class Unpaired(Doubt):
    """Some cells shared no rounds with the best one."""

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if not all(ratio.paired for ratio in evidence.ranking.answer.leads.values()):
            yield cls()

    def say(self) -> str:
        return (
            "some cells were not measured in the same rounds, and the machine may have changed in between: leads "
            f"under {percent(MARGIN_UNPAIRED)} between them count as ties. Measure them in one run, interleaved"
        )


class OpenLeads(Doubt):
    """It is not known how the best cell compares with some others, so that one of them may win."""

    best: str
    ratios: Mapping[str, Ratio]  # of the best cell to each of them, by label
    worst = Effect.WINNER

    @property
    def brief(self) -> str:
        return f"{listed(first_names(list(self.ratios)), 'or')} may be as fast"


class MachineBusy(OpenLeads):
    """Threads waited for cores so long that it is not known how these cells compare with the best one."""

    has_one_thread: bool = False  # each cell

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if ratios := _open_leads(evidence.ranking.answer, is_covered=True):
            threads = {record.settings.get("threads") for record in evidence.ranking.measured}
            yield cls(evidence.ranking.labels[0], ratios, threads == {1})

    @property
    def brief(self) -> str:
        """Return why cells that the table ranks below the best one may be as fast, such as `the machine was busy
        (without waiting, onnx is about 4.8x as fast as eager)`."""
        rough = [_about(self.best, label, ratio.value) for label, ratio in self.ratios.items() if ratio.is_rough]
        if rough:
            return f"the machine was busy (without waiting, {listed(rough)})"
        slower = listed(first_names(list(self.ratios)))
        return f"the machine was busy, and waiting for cores may be all that makes {slower} slower"

    def say(self) -> str:
        fewer = "" if self.has_one_thread else "give the run fewer threads (OMP_NUM_THREADS=1), "
        return (
            f"{self.brief}: threads waited for cores so long that calls would measure the waiting. Stop what "
            f"else runs, {fewer}or let it wait: --wait-for-quiet 10m"
        )


def _open_leads(answer: Answer, is_covered: bool) -> dict[str, Ratio]:
    leads = {label: answer.leads[label] for label in answer.open_labels}
    return {label: lead for label, lead in leads.items() if is_covered_by_waiting(lead) is is_covered}


def _about(one: str, other: str, ratio: float) -> str:
    fast, slow = (one, other) if ratio >= 1 else (other, one)
    times = spell_rough_ratio(max(ratio, 1 / ratio))
    return f"{fast} is about {'' if times == '1' else f'{times}x '}as fast as {slow}"


WHOLE_PIPELINE = (
    "calls of the whole pipeline, in one process, differ too much to tell whether it is faster with the winners. Use a "
    "quieter machine, or an example call in which the parts take more of the time"
)


class Undecided(OpenLeads):
    """Measuring ended before it was decided whether these cells are as fast as the best one."""

    processes: int  # of each cell, at least
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False  # the model lived in a program, so that `resume` cannot

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        if ratios := _open_leads(evidence.ranking.answer, is_covered=False):
            fewest = min(ratio.processes for ratio in ratios.values())
            yield cls(evidence.ranking.labels[0], ratios, fewest, evidence.stop, evidence.is_live)

    def say(self) -> str:
        if self.best in (ORIGINAL, WITH_WINNERS):
            return WHOLE_PIPELINE
        if self.stop is Stop.INTERRUPTED:
            return _interrupted(self.best, self.ratios, self.is_live)
        processes = "one process" if self.processes == 1 else f"{self.processes} processes"
        limits = {Stop.PROCESSES: f"--processes over {self.processes}", Stop.BUDGET: "--budget"}
        return (
            f"{processes} of each cannot decide how {self.best} compares with {listed(list(self.ratios))}. Raise "
            f"{limits.get(self.stop, '--time-limit')}, or use a quieter machine"
        )


def _interrupted(best: str, ratios: Mapping[str, Ratio], is_live: bool) -> str:
    others = listed(list(ratios))
    return f"the run was interrupted before it was decided how {best} compares with {others}. {to_go_on(is_live)}"


class NotToldApart(OpenLeads):
    """Cells behind the runner-up vary so much that they may be as fast as the winner."""

    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        answer = evidence.ranking.answer
        told_apart = {*answer.candidates, *evidence.ranking.beaten_in_rounds}
        behind = {
            label: lead
            for label, lead in answer.leads.items()
            if label not in told_apart and relation(lead) is not Relation.FASTER
        }
        if behind:
            yield cls(answer.first[0], behind, evidence.stop, evidence.is_live)

    def say(self) -> str:
        if self.stop is Stop.INTERRUPTED:
            return _interrupted(self.best, self.ratios, self.is_live)
        return (
            f"{listed(list(self.ratios))} may be as fast as {self.best}: the median is longer, but varies too much to "
            "decide. Raise --processes"
        )


class NarrowLead(Doubt):
    """The winner leads by little, in few processes."""

    best: str
    processes: int
    stop: Stop = Stop.TIME_LIMIT
    is_live: bool = False
    narrow: float = NARROW_LEAD  # a lead by less than this is narrow
    brief = "measured in too few processes"
    worst = Effect.WINNER

    @classmethod
    def find(cls, evidence: Evidence) -> Iterator[Self]:
        answer = evidence.ranking.answer
        lead = next(iter(answer.leads.values()), None)
        if answer.leader and lead and lead.processes < FEWEST_PROCESSES and lead.value < 1 + narrow_lead(lead):
            yield cls(answer.leader, lead.processes, evidence.stop, evidence.is_live, narrow_lead(lead))

    def say(self) -> str:
        if self.best in (ORIGINAL, WITH_WINNERS):
            return WHOLE_PIPELINE
        on = "bakeoff resume, or " if self.stop is Stop.INTERRUPTED and not self.is_live else ""
        measured = "a single process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"{self.best} leads by less than {percent(self.narrow)} in {measured} of each, but two equal processes can "
            f"be so far apart. Measure more of them: {on}--processes {FEWEST_FOR_NARROW_LEAD}"
        )


Ratios = Iterable[tuple[str, str, Ratio]]
"""The labels of two cells, and how many times faster the first one is."""


class LastRunDiffers(Doubt):
    """The last run of this contest gave a ratio whose 95 % interval does not meet that of this one."""

    run_id: str  # of the last run
    label: str
    other: str
    before: Ratio  # of the first cell to the other one
    now: Ratio
    brief = "the last run said the opposite"

    @classmethod
    def find(cls, evidence: Evidence) -> list["LastRunDiffers"]:
        last = evidence.last
        return contradictions(last.run_id, ratios_of(last), evidence.ranking.fit)[:1] if last else []

    @property
    def cells(self) -> tuple[str, ...]:
        return self.label, self.other

    @property
    def is_opposite(self) -> bool:
        return (self.before.value > 1) != (self.now.value > 1)

    @property
    def worst(self) -> Effect:
        return Effect.WINNER if self.is_opposite else Effect.NUMBER

    @property
    def ratios(self) -> str:
        """Return `onnx was 1.13x as fast as eager [1.08, 1.20], and now is 0.56x [0.54, 0.58]`."""
        before, before_ends = spell_ratio(self.before.value), _spell_ends(self.before)
        now = f"{spell_ratio(self.now.value)}x {_spell_ends(self.now)}".rstrip()
        return f"{self.label} was {before}x as fast as {self.other} {before_ends}".rstrip() + f", and now is {now}"

    def say(self) -> str:
        said = "the opposite" if self.is_opposite else "otherwise"
        return (
            f"the last run ({self.run_id}) said {said}: {self.ratios}. One of them is wrong, or something changed "
            "between them: measure again, on a quiet machine"
        )


def _spell_ends(ratio: Ratio) -> str:
    return spell_interval(ratio.ci95.low, ratio.ci95.high, spell_ratio) if ratio.ci95 else ""


def contradictions(run_id: str, ratios: Ratios, fit: Fit) -> list[LastRunDiffers]:
    """Return the ratios of another run whose 95 % intervals do not meet those of this fit, opposite ones first."""
    doubts = [
        LastRunDiffers(run_id, fast, slow, before, now)
        for fast, slow, before in ratios
        if {fast, slow} <= fit.latency_ms.keys()
        if (now := fit.ratio(fast, slow)).ci95
        and before.ci95
        and (before.ci95.high < now.ci95.low or now.ci95.high < before.ci95.low)
    ]
    return sorted(doubts, key=lambda doubt: not doubt.is_opposite)


def ratios_of(last: Verdict) -> Ratios:
    """Yield the ratios of a verdict at single calls with their labels: over the baseline, and over the runner-up."""
    for standing in last.standings:
        if standing.speedup_over_baseline and last.baseline and standing.label != last.baseline:
            yield standing.label, last.baseline, standing.speedup_over_baseline
    if last.lead and last.winner and last.runner_up and last.runner_up != last.baseline:
        yield last.winner, last.runner_up, last.lead
