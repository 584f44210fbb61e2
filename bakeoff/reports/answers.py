"""Says an answer to any question: who, how good, how much better than eager, and how surely."""

from collections.abc import Sequence
from typing import Self

from bakeoff.judging.answer import Answer, Certainty, Question, Row
from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.doubt import Doubt
from bakeoff.judging.doubts import is_open_requirement
from bakeoff.judging.doubts_of_winner import MachineBusy
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.text import first, listed, one_line, spell_ms
from bakeoff.reports import number_format
from bakeoff.reports.number_format import NONE


class AnswerToQuestion(Frozen):
    """Who is best at one question. Ratios say how many times better the first candidate is."""

    question: Question
    """`latency` of a call, `load`, whole `generation`, the total time of so many `calls`,
    the mean over `recorded sizes`, `whole requests`, or a `start`."""
    outcome: Certainty
    """How sure it is. `open`: measuring ended before it was decided. `doubted`: the first doubt could change it."""
    winner: str | None
    """The only candidate, or None where there are several, or none."""
    candidates: list[str]
    """The best first, then those that may prove as good."""
    tied: list[str]
    """Labels that share the first place, if there are several."""
    open: list[str]
    """Labels that may still prove as good as the best one, because measuring ended before it was decided."""
    value: float | None
    """What the first candidate reaches, in `unit`."""
    unit: str
    processes: int
    """In how many processes the first candidate was measured. A sure answer of fewer than three holds for these."""
    baseline: str | None
    speedup: Ratio | None
    """How many times better the first candidate is than the baseline, eager, at the question."""
    runner_up: str | None
    """The best one that is no candidate."""
    lead: Ratio | None
    """How many times better the first candidate is than the runner-up."""

    @classmethod
    def to(cls, answer: Answer, **others: object) -> Self:
        return cls.of(answer, outcome=answer.certainty, open=answer.open_labels, **others)


def line(answer: Answer, value: str, *kept: str, sure: str = "") -> str:
    """Say an answer in one line: `onnx, 15,177 requests/s, 1.59x eager, top1 0.9467, sure winner`."""
    parts = (named(answer), value, gain(answer), *kept, sure or how_sure(answer))
    return ", ".join(part for part in parts if part not in ("", NONE))


def sentence(answer: Answer, value: str, sure: str, is_busy: bool = False) -> str:
    """Say an answer as a sentence: `onnx wins at 0.95 ms, 1.83x as fast as eager and 1.2x as fast as openvino`. Where
    several may win, it says how far apart they are, but not on a busy machine."""
    best, certainty = answer.best, answer.certainty
    if best is None:
        return sure
    against = [answer.baseline] if certainty is Certainty.ALONE else [answer.baseline, answer.runner_up]
    ratios = {
        label: best.speedup if label == answer.baseline else answer.leads.get(label)
        for label in against
        if label and label not in answer.candidates
    }
    faster = listed([number_format.compared(of, one_line(label), "as fast as ") for label, of in ratios.items() if of])
    if certainty in (Certainty.TIE, Certainty.OPEN):
        values = [row.value for row in answer.rows if row.label in answer.candidates and row.value is not None]
        ends = dict.fromkeys(map(spell_ms, (min(values), max(values))))
        between = "" if is_busy else f" ({' to '.join(ends)})"
        close = f" within {number_format.percent(answer.tied_within)} %" if answer.tied_within else ""
        how = "no winner yet" if certainty is Certainty.OPEN else f"tie{close}"
        of_best = f"; {best.label} is {faster}" if faster else ""
        return f"{how} between {listed(first(answer.candidates))}{between}{of_best}"
    if certainty is Certainty.ALONE:
        return ", ".join(filter(None, (sure, f"at {value}", faster)))
    return ", ".join(filter(None, (f"{best.label} wins at {value}", faster, sure)))


def speedup(row: Row) -> float | None:
    return row.speedup.value if row.speedup else None


def speedup_ends(row: Row) -> Interval | None:
    return row.speedup.ci95 if row.speedup else None


def named(answer: Answer) -> str:
    return listed(first(answer.candidates), "or") if answer.candidates else NONE


def gain(answer: Answer) -> str:
    """Return `1.59x eager`, or that it is faster than eager where the ends are far apart. The speed-up of generations
    is of their whole time, with that of the prompt."""
    if answer.gain is None:
        return NONE
    of = "whole generations " if answer.question is Question.GENERATION else ""
    return f"{of}{number_format.compared(answer.gain, one_line(answer.baseline or ''))}"


def how_sure(answer: Answer, doubts: Sequence[Doubt] = (), alone: str = "could be ranked") -> str:
    """Say in a few words how sure it is who is best: `sure winner`, `tie`, `but the machine was busy`. `doubts` are all
    that are known. `alone` says why there is only one cell."""
    match answer.certainty:
        case Certainty.NOTHING:
            return "nothing could be ranked"
        case Certainty.ALONE:
            alone = f"only {answer.candidates[0]} {alone}"
            return f"{alone}, and {_brief(answer)}" if answer.doubt else alone
        case Certainty.DOUBTED:
            return f"but {_brief(answer)}"
        case Certainty.OPEN:
            busy = next((doubt for doubt in doubts if isinstance(doubt, MachineBusy)), None)
            return f"undecided: {busy.brief}" if busy else f"undecided{_but(answer, doubts)}"
        case Certainty.TIE:
            close = answer.tied_within
            return f"{f'within {number_format.percent(close)} %' if close else 'tie'}{_but(answer, doubts)}"
        case Certainty.SURE if answer.processes < FEWEST_PROCESSES:
            return f"sure winner ({'one process' if answer.processes == 1 else f'{answer.processes} processes'})"
        case Certainty.SURE:
            return "sure winner"


def _but(answer: Answer, doubts: Sequence[Doubt]) -> str:
    """Say what more there is to doubt where several cells may be the best."""
    open_ones = (doubt for doubt in doubts if is_open_requirement(doubt, answer.candidates))
    limit = f", and {_brief(answer)}" if answer.doubt else ""
    return next((f", and {doubt.brief}" for doubt in open_ones), "") + limit


def _brief(answer: Answer) -> str:
    return answer.doubt.brief if answer.doubt else ""
