"""What a run would do, and about how long it would take: `bakeoff --dry-run`. Nothing is measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import computed_field

from bakeoff.commands.run import resolved
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.messages import ProbeTorch, TorchFacts, TryBackend
from bakeoff.measuring.probes import ask, facts_of_environments, launchers_for, why_not
from bakeoff.measuring.session import on_this_machine
from bakeoff.planning.places import places_of
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import USUAL_EVALUATE_S, TimePlan, starts_s
from bakeoff.records.device import Device
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import Cell
from bakeoff.records.text import counted, first, listed

Place = tuple[str, Device, str]
"""A backend, on a device, in an environment."""


class PlannedContest(Frozen):
    """One contest that would be measured."""

    title: str
    labels: tuple[str, ...]  # of the cells that can run
    seconds: float  # that it is expected to take
    evaluated_by: str = ""  # the user's own function
    cached: tuple[str, ...] = ()  # of the labels: earlier runs have kept builds, which serve if nothing has changed


class Preview(Frozen):
    """What `bakeoff run --dry-run --json` prints. Times are estimates."""

    contests: tuple[PlannedContest, ...]
    cannot_run: dict[str, str]  # why, by label
    budget_s: float | None = None
    places: tuple[str, ...] = ()  # of a pool
    keeps_other_builds: bool = False  # the cache has builds of other contests, perhaps of these models by other names

    @computed_field  # type: ignore[prop-decorator]
    @property
    def seconds(self) -> float:
        """Return about how long all of them take, side by side where there are several places."""
        seconds = [contest.seconds for contest in self.contests]
        return max(sum(seconds) / len(self.places), *seconds) if self.places else sum(seconds)

    def lines(self) -> Iterator[str]:
        for contest in self.contests:
            labels = ", ".join(contest.labels) or "nothing can run"
            more = f", with {contest.evaluated_by} for the reference and each cell" if contest.evaluated_by else ""
            more += f"; less if builds in the cache still fit: {', '.join(contest.cached)}" if contest.cached else ""
            yield f"{contest.title}: {labels} (about {spell_seconds(contest.seconds)}{more})"
        if self.keeps_other_builds:
            yield "builds that the cache has of a model by another name are not looked for, and serve too if they fit"
        if self.cannot_run:
            yield f"cannot run: {'; '.join(f'{label} ({reason})' for label, reason in self.cannot_run.items())}"
        if any(contest.evaluated_by for contest in self.contests):
            yield f"nobody knows how long evaluate takes: {spell_seconds(USUAL_EVALUATE_S)} a call are counted"
        beside = f", side by side on {', '.join(self.places)}" if self.places else ""
        contests, cells = len(self.contests), sum(len(contest.labels) for contest in self.contests)
        yield f"{counted(contests, 'contest')}, {counted(cells, 'cell')}{beside}: about {spell_seconds(self.seconds)}"
        if self.budget_s is not None and self.budget_s < self.seconds:
            yield f"--budget ends it after {spell_seconds(self.budget_s)}"


def preview(request: Request) -> Preview:
    """Return what a run of this request would do. Each backend is asked in a worker whether it can run here. Raise
    UsageError where the request is wrong."""
    request, _ = resolved(request, prepare=False)
    with launchers_for(request) as launchers:
        request = on_this_machine(request, ask(launchers.first, ProbeTorch(), TorchFacts))
        facts_of_environments(launchers, request)  # refuses those that run no worker
        places_of(request.devices, usable_cores())  # refuses those that this machine does not have
        contests = plan(request)
        cells = {_place_of(planned.cell): planned.cell for contest in contests for planned in contest.cells}
        absences = {
            place: why_not(
                launchers.of_environment(cell.environment).first, TryBackend(backend=cell.backend, device=cell.device)
            )
            for place, cell in cells.items()
        }
    return preview_of(request, contests, absences)


def preview_of(request: Request, contests: list[Contest], absences: Mapping[Place, str]) -> Preview:
    """Return what a run of these contests would do, where `absences` says why a place lacks a backend, or nothing."""
    planned: list[PlannedContest] = []
    refusals: dict[str, dict[str, list[str]]] = {}  # titles of contests, by label and reason
    served = {} if request.fresh else BuildCache().labels_served()
    before_s = 0.0
    sampling = request.sampling
    time_plan = TimePlan(sampling, load=request.load_plan)
    for contest in contests:
        cells = [planned.cell for planned in contest.cells]
        reasons = {one.cell.label: one.refusal[1] or absences[_place_of(one.cell)] for one in contest.cells}
        title = cells[0].title
        for label, reason in reasons.items():
            refusals.setdefault(label, {}).setdefault(reason, []).append(title)
        labels = tuple(label for label, reason in reasons.items() if not reason)
        function = Path(contest.evaluated_by(request.evaluate)).name if labels else ""
        time_plan.expect(contest.id, labels, sampling.processes, evaluates=bool(function))
        started_s = starts_s(labels, LEAST_STARTS, request.require.judge_starts) if request.starts else 0.0
        seconds = time_plan.left_s() - before_s + started_s
        cached = tuple(label for label in labels if label in served.get(title, ()))
        planned.append(
            PlannedContest(title=title, labels=labels, seconds=seconds, evaluated_by=function, cached=cached)
        )
        before_s = time_plan.left_s()
    return Preview(
        contests=tuple(planned),
        cannot_run={label: why for label, by_reason in refusals.items() if (why := _said_once(by_reason))},
        budget_s=request.budget.seconds if request.budget else None,
        places=request.devices if request.is_pool else (),
        keeps_other_builds=not served.keys() <= {contest.title for contest in planned},
    )


def spell_seconds(seconds: float) -> str:
    """Return `45 s` or `4 min 30 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return " ".join([*([f"{minutes} min"] if minutes else []), *([f"{rest} s"] if rest or not minutes else [])])


def _said_once(by_reason: Mapping[str, Sequence[str]]) -> str:
    reasons = [
        f"{reason}, for {listed(first(titles))}" if len(by_reason) > 1 else reason
        for reason, titles in by_reason.items()
        if reason
    ]
    return "; ".join(reasons)


def _place_of(cell: Cell) -> Place:
    return cell.backend, cell.device, cell.environment
