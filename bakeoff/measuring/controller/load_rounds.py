"""The cells of a group under load: all have a first look, each looks for its settings, all take turns, then soaks."""

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial

from bakeoff.judging.loaded_cell import LOWER_SHARES, held_no_soak, soaks_of
from bakeoff.judging.ranking import may_win
from bakeoff.measuring.controller.cell_run import CellRun
from bakeoff.measuring.controller.load_run import Round
from bakeoff.measuring.controller.rounds import order_of_round
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.planning.load_plan import SOAK_PARTS, LoadPlan
from bakeoff.planning.time_plan import PlanStep
from bakeoff.records.load_samples import Load, ServingSettings
from bakeoff.records.text import counted, spell_rate

SETTINGS_SHARE = 0.4
"""The search for settings takes at most this share of the time that a budget leaves for load."""

MOST_OF_SEARCH = 1.5
"""A cell with settings that meet the objective tries no others after so many times the usual seconds of a search."""

NEAR = 1.25
"""The runner-up is soaked beside a winner that carries at most so many times as much. Otherwise it is soaked only if
the winner misses the objective."""

NO_TIME_FOR_SETTINGS = "further settings, as --budget left no time for them"

NO_TIME_TO_SOAK = "--budget left no time for a soak"


def search_ended(plan: LoadPlan) -> str:
    """Say that the search for settings has taken longer than planned. Part of its time does not grow with windows."""
    return (
        f"further settings, as the search for them ends after {MOST_OF_SEARCH:g} times its planned "
        f"{plan.search_s:.3g} s (a longer --min-time gives it more)"
    )


Visit = Callable[[CellRun, Callable[[], None]], None]
"""Takes a step of a cell while every other one is stopped. A cell that ends in it is not among the living any more."""


class LoadRounds:
    """What one epoch of a group does under load. A cell for which no settings met the objective looks again later."""

    def __init__(self, run: RunContext, plan: LoadPlan, epoch: int, group: int, alive: Sequence[CellRun]) -> None:
        """`alive` shrinks while it lasts, as cells end."""
        self._run, self._plan, self._spec = run, plan, plan.spec
        self._epoch, self._group, self._alive = epoch, group, alive
        self._number = 0  # of steps that all cells took
        self._searches: dict[CellRun, Iterator[Load]] = {}  # that have begun
        self._searches_end_s: dict[CellRun, tuple[float, str]] = {}  # with the reason

    def take(self, visit: Visit) -> None:
        """Have all cells take all steps. A budget shortens the search, and leaves out further turns and the soak."""
        begun_s = self._now_s
        for cell_run in self._order():
            visit(cell_run, partial(self._look_first, cell_run))
        looked_s = self._now_s
        left_s = SETTINGS_SHARE * (self._run.time_plan.contest_ends_s - begun_s) - (looked_s - begun_s)
        for place, cell_run in enumerate(self._order(), start=1):
            ends_s = looked_s + left_s * place / len(self._alive)
            self._searches_end_s[cell_run] = (ends_s, NO_TIME_FOR_SETTINGS)
        settings_s = looked_s - begun_s + self._step(visit, self._settle)
        turns_s = last_s = 0.0
        for number in range(self._plan.rounds_in(self._run.sampling.processes)):
            if number and self._now_s + last_s > self._run.time_plan.contest_ends_s:
                break
            last_s = self._step(visit, self._take_turn)
            turns_s += last_s
            self._say_turns(f"turn {number + 1} under load, in process {self._epoch + 1}")
        if self._plan.soak_s:
            for _ in range(2):  # the best, and then the runner-up of one that missed
                if not (cells := self._to_soak()):
                    break
                in_time = self._has_time_to_soak(SOAK_PARTS * len(cells))
                settings_s += self._step(visit, self._soak if in_time else self._leave_out_soak)
            for _ in range(len(LOWER_SHARES) + 1):  # at last at a rate that another cell holds
                loads = [cell_run.load for cell_run in self._alive if cell_run.load]
                parts = [self._lower_parts(load) for load in loads if self._lower_rate(load)]
                if parts and self._has_time_to_soak(sum(parts)):
                    settings_s += self._step(visit, self._soak_at_less)
        for cell_run in self._alive:
            self._done(cell_run, PlanStep.LOAD, turns_s)
            if not self._epoch:  # nothing is planned for a search that comes late
                self._done(cell_run, PlanStep.SETTINGS, settings_s)

    def _step(self, visit: Visit, step: Callable[[CellRun, Round], None]) -> float:
        begun_s = self._now_s
        round_ = Round(self._group, self._number, begun_s - self._run.begun_s, self._run.machine.calibrate_ms())
        for cell_run in self._order():
            visit(cell_run, partial(step, cell_run, round_))
        self._number += 1
        return self._now_s - begun_s

    def _order(self) -> Sequence[CellRun]:
        return order_of_round(self._group, self._number, self._alive) if self._alive else ()

    def _look_first(self, cell_run: CellRun) -> None:
        has_settings = cell_run.load is not None and cell_run.load.settings is not None
        if not has_settings and cell_run.is_right:
            under_load = cell_run.under_load(self._plan)
            search = self._searches[cell_run] = under_load.search_settings(lambda: self._why_over(cell_run))
            self._note_search(cell_run, next(search))

    def _why_over(self, cell_run: CellRun) -> str:
        ends_s, why = self._searches_end_s[cell_run]
        return why if self._now_s >= ends_s else ""

    def _settle(self, cell_run: CellRun, _: Round) -> None:
        if (search := self._searches.get(cell_run)) is None:
            return
        label = cell_run.label
        self._run.progress.note(f"looking for the settings with which {label} serves best")
        planned = (self._now_s + MOST_OF_SEARCH * self._plan.search_s, search_ended(self._plan))
        self._searches_end_s[cell_run] = min(planned, self._searches_end_s[cell_run])
        for search_so_far in search:
            self._note_search(cell_run, search_so_far)
        load = cell_run.load
        assert load is not None
        if load.settings is None:
            self._run.progress.note(f"{label}: {load.reason}")
            return
        tried = (look.value for look in reversed(load.tried) if look.settings == load.settings)
        best = next(value for value in tried if value)
        value = f"{spell_rate(best)} {self._spec.unit}"
        self._run.progress.note(f"{label} {self._spec.verb} {value} at first, with {spelled(load.settings)}")

    def _note_search(self, cell_run: CellRun, load: Load) -> None:
        """Keep what a search knows, for the report of a run that ends now, and say what was tried last."""
        before, cell_run.load = cell_run.load, load
        if before and len(before.tried) == len(load.tried):
            return
        tried, label = load.tried[-1], cell_run.label
        with_settings = f"with {spelled(tried.settings)}"
        if tried.value is None:
            self._run.progress.note(f"{label} {with_settings}: {tried.reason}")
            return
        value = f"{spell_rate(tried.value)} {self._spec.unit}"
        self._run.progress.note(f"{label} {self._spec.verb} {value} {with_settings}, by a first look")

    def _say_turns(self, what: str) -> None:
        values = {
            cell_run.label: cell_run.load.turns[-1].value
            for cell_run in self._alive
            if cell_run.load and cell_run.load.turns
        }
        in_words = [f"{label} {spell_rate(value)}" if value else f"{label} none" for label, value in values.items()]
        if in_words:
            self._run.progress.note(f"{what}: {', '.join(in_words)} {self._spec.unit}")

    def _take_turn(self, cell_run: CellRun, round_: Round) -> None:
        if (load := cell_run.load) is not None and load.settings is not None:
            turn = cell_run.under_load(self._plan).turn(load, self._epoch, round_)
            cell_run.load = load.but(turns=[*load.turns, turn])

    def _soak(self, cell_run: CellRun, round_: Round) -> None:
        if (load := cell_run.load) is not None and cell_run in self._to_soak():
            soaked = cell_run.under_load(self._plan).soak(load, round_.seed)
            cell_run.load = load.but(soak=soaked)
            self._say_soak(cell_run.label, cell_run.load)

    def _say_soak(self, label: str, load: Load) -> None:
        for soak in soaks_of(load)[-1:]:
            ending = "misses the objective" if soak.has_missed else "holds"
            rate = spell_rate(soak.rate)
            self._run.progress.note(f"{label} serves {rate} requests/s for {soak.seconds:.3g} s and {ending}")

    def _to_soak(self) -> list[CellRun]:
        """Return those of all cells, or of the best by the turns so far, that had no soak yet."""
        ms_of: dict[CellRun, float] = {}  # for a request
        for cell_run in self._alive:
            values = [turn.value for turn in cell_run.load.turns if turn.value] if cell_run.load else []
            if values:
                ms_of[cell_run] = self._spec.ms_per_request(statistics.median(values))
        chosen = sorted(ms_of, key=ms_of.__getitem__)
        if not self._plan.soaks_all:
            # A cell that may not win gets a soak only if no other one serves.
            able = [cell_run for cell_run in chosen if cell_run.label in self._may_win or cell_run.may_be_accepted]
            best = (able or chosen)[:1]
            has_missed = any(held_no_soak(cell_run.load) for cell_run in best if cell_run.load)
            chosen = [cell for cell in (able or chosen)[:2] if has_missed or ms_of[cell] <= NEAR * ms_of[best[0]]]
        return [cell_run for cell_run in chosen if cell_run.load and not cell_run.load.soak]

    @cached_property
    def _may_win(self) -> Collection[str]:
        """The labels of the cells that may win, by what is known when the first one is to be soaked."""
        return may_win([record for cell_run in self._alive if (record := cell_run.so_far())], self._run.requirements)

    def _has_time_to_soak(self, parts: int) -> bool:
        return self._now_s + self._plan.soak_s * parts / SOAK_PARTS <= self._run.time_plan.contest_ends_s

    def _lower_rate(self, load: Load) -> float | None:
        """Return the rate of the next soak of a cell that has missed all, or None if there is to be none."""
        if not held_no_soak(load):
            return None
        rates = [soak.rate for soak in soaks_of(load)]
        if len(rates) <= len(LOWER_SHARES):
            return LOWER_SHARES[len(rates) - 1] * rates[0]
        # The rate that another cell holds shows whether that one carries more.
        soaks = [soak for cell_run in self._alive if cell_run.load for soak in soaks_of(cell_run.load)]
        return max((soak.rate for soak in soaks if not soak.has_missed and soak.rate < min(rates)), default=None)

    def _lower_parts(self, load: Load) -> int:
        """Return the parts of a further soak: what is left of one, and half at least, unless its length was named."""
        parts_left = SOAK_PARTS - len(load.soak) - len(load.lower_soak)
        return SOAK_PARTS if self._plan.soaks_all else max(SOAK_PARTS // 2, parts_left)

    def _soak_at_less(self, cell_run: CellRun, round_: Round) -> None:
        if (load := cell_run.load) is not None and (rate := self._lower_rate(load)) is not None:
            soaked = cell_run.under_load(self._plan).soak(load, round_.seed, rate, self._lower_parts(load))
            cell_run.load = load.but(lower_soak=[*load.lower_soak, *soaked])
            self._say_soak(cell_run.label, cell_run.load)

    def _leave_out_soak(self, cell_run: CellRun, _: Round) -> None:
        if (load := cell_run.load) is not None and cell_run in self._to_soak() and NO_TIME_TO_SOAK not in load.left_out:
            cell_run.load = load.but(left_out=[*load.left_out, NO_TIME_TO_SOAK])

    def _done(self, cell_run: CellRun, step: PlanStep, seconds: float) -> None:
        cell = cell_run.cell
        self._run.step_done(step, cell.label, seconds / len(self._alive))

    @property
    def _now_s(self) -> float:
        return self._run.machine.now_s()


def spelled(settings: ServingSettings) -> str:
    """Return `2 instances`, or `1 instance, batches of 4, hint THROUGHPUT`."""
    parts = [counted(settings.instances, "instance")]
    parts += [f"batches of {settings.batch}"] if settings.batch > 1 else []
    return ", ".join([*parts, *(f"{name} {value}" for name, value in settings.options.items())])
