"""Judges a contest under load: how much each cell carries, who carries most, and what there is to doubt.

A turn's value goes through the fit of latencies (`bakeoff.judging.fit`) as the milliseconds for a request. So rates are
compared within rounds and processes, as latencies are, and two copies of one backend tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bakeoff.judging.answer import Answer, Question, Row, Score, Term, rank
from bakeoff.judging.doubts import ByEffect, doubts_about
from bakeoff.judging.doubts_of_load import OfLoad, doubts_of
from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import fit
from bakeoff.judging.loaded_cell import LOWER_SHARES, LoadedCell, held_no_soak, loaded_cell, soaks_of
from bakeoff.records.load_samples import Load, LoadTurn, Objective
from bakeoff.records.scenarios import Scenario, ScenarioSpec
from bakeoff.records.schema import Burst, Conditions, Interval, Record, Status


@dataclass(frozen=True)
class LoadJudgement:
    """What is known of one contest under load. `cells` are in the order of reading, the best first. A cell that may not
    win has a value, and no rank."""

    scenario: Scenario
    streams: int
    objective: Objective | None
    cells: tuple[LoadedCell, ...]
    answer: Answer
    doubts: tuple[OfLoad, ...]
    is_so_far: bool = False  # the run was interrupted, and `resume` goes on
    is_live: bool = False  # the model lived in a program, so that `resume` cannot

    @property
    def spec(self) -> ScenarioSpec:
        return self.scenario.spec

    @property
    def ranked(self) -> list[LoadedCell]:
        return [cell for cell in self.cells if cell.rank is not None]

    @property
    def stages(self) -> tuple[str, ...]:
        windows = (window for cell in self.cells for turn in cell.load.turns for window in turn.windows)
        return tuple(next((window.stages for window in windows), ()))


@dataclass(frozen=True)
class LoadScore(Score):
    """The milliseconds of a request, with the value that the scenario asks for: a rate, or a latency."""

    spec: ScenarioSpec = Scenario.SERVER.spec

    def value(self, label: str) -> float:
        return self.spec.value_from_ms(self.ms(label))

    def interval(self, label: str) -> Interval | None:
        fitted = super().interval(label)
        low, high = sorted(map(self.spec.value_from_ms, (fitted.low, fitted.high))) if fitted else (0.0, 0.0)
        return Interval(low=low, high=high) if fitted else None


def judge_load(
    records: Sequence[Record],
    price_per_hour: float | None = None,
    baseline: str | None = None,
    may_not_win: Sequence[str] = (),
    is_so_far: bool = False,
    doubts: ByEffect | None = None,
) -> LoadJudgement | None:
    """Judge the cells of one contest under load, or return None if none of them was. Cells in `may_not_win` have
    values, and no rank. `doubts` are those at single calls."""
    loads = {record.cell.label: record.load for record in records if record.load}
    if not loads:
        return None
    first = next(iter(loads.values()))
    sound = {record.cell.label for record in records if record.status is Status.OK}
    # one that held no soak has no value, unless an interrupted run has not soaked it at lower rates yet
    serving = {label: load for label, load in loads.items() if label in sound and not _is_out(load, is_so_far)}
    fitted = fit(
        {
            label: series_of([_as_burst(load.scenario.spec, turn) for turn in load.turns if turn.value is not None])
            for label, load in serving.items()
        }
    )
    answer = rank(
        Question.LOAD,
        LoadScore([Term(fitted)], looks_once=True, spec=first.scenario.spec),
        [label for label in fitted.latency_ms if label not in may_not_win],
        [label for label in fitted.latency_ms if label in may_not_win],
        baseline,
        unit=first.scenario.spec.unit,
        cells=[record.cell for record in records],
        processes={label: len({turn.process for turn in load.turns}) for label, load in loads.items()},
    )
    rows = {row.label: row for row in answer.rows}
    cells = [
        loaded_cell(rows.get(label, Row(label=label)), loads[label], price_per_hour)
        for label in dict.fromkeys([*rows, *loads])
    ]
    of_load = tuple(doubt for cell in cells for doubt in doubts_of(cell))
    return LoadJudgement(
        scenario=first.scenario,
        streams=first.streams,
        objective=first.objective,
        cells=tuple(cells),
        answer=_doubted(answer, of_load, doubts or {}),
        doubts=of_load,
        is_so_far=is_so_far,
        is_live=any(record.cell.is_live for record in records),
    )


def _doubted(answer: Answer, doubts: Sequence[OfLoad], of_builds: ByEffect) -> Answer:
    """Return the answer with what could change who carries most, and what is said of any outcome: rates near the load
    generator's ceiling, and cells without a rate that may carry the most."""
    if not answer.best:
        return answer
    best, ranked = answer.best, {row.label for row in answer.ranked}
    of_any = [doubt for doubt in doubts if doubt.is_about_place(ranked, best.value or 0.0)]
    of_best = [*(doubt for doubt in doubts if doubt.label == best.label), *of_any]
    grave_doubts = [*doubts_about([best.label], of_builds), *dict.fromkeys(of_best)]
    return answer.doubted(grave_doubts, always=grave_doubts if len(ranked) == 1 else of_any)


def _as_burst(spec: ScenarioSpec, turn: LoadTurn) -> Burst:
    assert turn.value is not None
    return Burst(
        group=turn.group,
        round=turn.round,
        started_s=turn.started_s,
        samples_ns=[max(1, round(1e6 * spec.ms_per_request(turn.value)))],
        process=turn.process,
        conditions=Conditions(calibration_ms=turn.calibration_ms),
    )


def _is_out(load: Load, is_so_far: bool) -> bool:
    return held_no_soak(load) and not (is_so_far and len(soaks_of(load)) <= len(LOWER_SHARES))
