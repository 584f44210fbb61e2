"""The cells of a contest under load: the best settings of each, its turns in rounds, and a soak."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bakeoff import backends
from bakeoff.backends.base import ServingKnobs
from bakeoff.judging.loaded_cell import has_lost
from bakeoff.measuring.controller.rate_search import GIVE_UP_SHARE_OF_TURN, RateSearch
from bakeoff.measuring.messages import TakeLoad, TrafficWindow
from bakeoff.planning.load_plan import SOAK_PARTS, LoadPlan
from bakeoff.records.load_samples import Load, LoadTurn, LoadWindow, ServingSettings, TriedSettings
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Cell
from bakeoff.records.text import counted, spell_rate

Take = Callable[[TakeLoad], TrafficWindow]
"""Has the worker of a cell take one window. Raises CellEnded where the cell ends instead."""

FIRST_SHARE = 0.7
"""A search begins at this share of the capacity, which is measured with all requests queued."""

MAX_CAPACITY_SHARE = 1.1
"""No rate above this many times the capacity is tried: its queue grows until the window ends."""

TURN_STEP = 1.06
TURN_WINDOWS = 3
"""Step of the search in a turn, and its maximum number of windows. It begins at the rate of the turn before."""

SEARCH_WINDOWS = 4
SEARCH_SHARE = 0.25
"""Maximum number of windows in a search for settings, and their length as a share of the usual one."""

LEAST_UNLOADED = 20
"""No rate is searched where so many requests, one after the other, all take longer than the objective allows. If half
of them could be quick enough, as p50 asks, that would happen once in a million times."""

QUICK_SHARE = 0.1
"""Single calls that take less than this share of the objective show that some rate holds."""

SHED_FACTOR = 5.0
"""A request that has waited this many times the objective is not called any more."""

WAIT_SHARE = 0.1
"""A request waits at most this share of the objective for others to fill its batch."""

BATCHES = (2, 4, 8)
GPU_INSTANCES = (2, 4)
MOST_INSTANCES = 16

CLOSE = 1.25
"""Settings that differ by more than this factor are told apart by the first look."""

FEWEST_LOOKS, MOST_LOOKS = 3, 4
SETTINGS_SEED, LOOK_SEEDS = 1, 501
"""Seeds of the requests with which settings are tried, and of those of the first further look at two of them."""

WORTH = 1.05
"""Other settings replace the simpler ones only if they carry at least this many times as much."""

LEAST_NOISE = 0.01
"""The smallest noise that is assumed."""

PROBED_IN_TURN = (0, 0, 1, 1, 0)
"""Two settings with the same instances are probed three times each, or twice if both pairs of probes agree. The second
one was probed just before."""

PROBE_MARGIN = 1.25
"""A probe queues so many times as many requests as the quickest one so far has answered in the length of a window."""

CEILING_RATE = 4000.0
CEILING_SHARE = 4.0
CEILING_WINDOWS = 5
"""The load generator need not show that it reaches more than this rate, or so many times a cell's value."""


@dataclass(frozen=True)
class Round:
    """A round of turns: every living cell takes one with the same requests."""

    group: int
    number: int
    started_s: float
    calibration_ms: float | None = None

    @property
    def seed(self) -> int:
        """The seed of this round's requests. All cells of a round get the same ones, so their ratio is fair."""
        return 1 + 1000 * self.group + 10 * self.number


class CellUnderLoad:
    def __init__(self, plan: LoadPlan, cell: Cell, take: Take, latency_ms: float, threads: int) -> None:
        """`latency_ms` is that of single calls, and `threads` are those that they had."""
        self._plan = plan
        self._cell = cell
        self._take = take
        self._latency_ms = latency_ms
        self._threads = threads
        self._compares = False  # settings in turn: two builds stay alive, which a turn's memory must not contain
        self._answered_shares: list[float] = []  # of what single calls promise, in each probe

    def search_settings(self, why_over: Callable[[], str] = lambda: "") -> Iterator[Load]:
        """Try the knobs of the backend one after the other. Yield what is known after each trial, and at last with the
        best settings. Once one meets the objective, a reason from `why_over` ends the search."""
        self._compares = True
        knobs = backends.create(self._cell.backend).serving
        tried: list[TriedSettings] = []
        best: int | None = None  # the place in `tried`
        why_ended = ""

        def attempt(settings: ServingSettings) -> Iterator[Load]:
            nonlocal best, why_ended
            if any(trial.settings == settings for trial in tried):
                return
            if best is not None and (why := why_over()):
                why_ended = why
                return
            trial = self._try(settings, None if best is None else tried[best])
            tried.append(trial)
            yield self._plan.load(tried)
            if trial.value is None:
                return
            is_better = best is None
            if best is not None:
                tried[best], tried[-1], is_better = self._compared(tried[best], trial)
            best = len(tried) - 1 if is_better else best

        for settings in layouts(self._threads, knobs, self._cell.device.is_cuda):
            yield from attempt(settings)
        if best is not None:
            for name, values in knobs.options.items():
                for value in values[1:]:
                    at = tried[best].settings
                    yield from attempt(at.but(options=at.options | {name: value}))
            for batch in self._batches():
                wait_ms = WAIT_SHARE * self._plan.objective.limit_ms if self._plan.objective else 0.0
                yield from attempt(tried[best].settings.but(batch=batch, wait_ms=wait_ms))
                if tried[best].settings.batch != batch:
                    break  # a larger batch than one that does not help would not, either
        elif knobs.options or self._batches():
            why_ended = f"further settings of {self._cell.label}, as no number of instances met the objective"
        chosen = None if best is None else tried[best]
        reasons = [] if knobs.instance else [f"{self._cell.backend} answers one call at a time: one instance"]
        if not isinstance(self._cell.dimensions.get("batch"), int):
            reasons.append("the model has no dimension batch: requests were not put together")
        left_out = [*reasons, *([why_ended] if why_ended else [])]
        load = self._plan.load(tried).but(left_out=left_out)
        if chosen is None:
            longest = max(tried, key=lambda trial: len(trial.windows))
            yield load.but(reason=longest.reason)
        else:
            ceiling = self._ceiling(chosen.settings, chosen.value)
            yield load.but(settings=chosen.settings, ceiling=ceiling)

    def turn(self, load: Load, process: int, round_: Round) -> LoadTurn:
        """Take the cell's turn in a round, from the median of what was found before."""
        assert load.settings is not None
        values = [turn.value for turn in load.turns if turn.value is not None]
        searched = [trial.value for trial in load.tried if trial.settings == load.settings and trial.value is not None]
        start = statistics.median([*searched[-1:], *values])
        value, windows = self._measure(load.settings, start, round_.seed, is_turn=True)
        return LoadTurn(
            group=round_.group,
            round=round_.number,
            process=process,
            started_s=round_.started_s,
            value=value,
            windows=windows,
            calibration_ms=round_.calibration_ms,
        )

    def soak(self, load: Load, seed: int, rate: float | None = None, parts: int = SOAK_PARTS) -> list[LoadWindow]:
        """Serve for a long time at `rate`, or at the rate that was found, in `parts` windows that follow each other."""
        values = [turn.value for turn in load.turns if turn.value is not None]
        if not values or not self._plan.soak_s or load.settings is None:
            return []
        rate = self._rate_of(statistics.median(values)) if rate is None else rate
        windows: list[LoadWindow] = []
        for part in range(parts):
            order = self._order(load.settings, rate, seed + part, keeps=True)
            order = order.but(seconds=self._plan.soak_s / SOAK_PARTS, min_requests=1, is_soak=True)
            if window := self._take(order).window:
                windows.append(window)
            # The objective is then missed however it goes on.
            if has_lost(self._plan.objective, windows, (part + 1) / parts):
                break
        return windows

    def _try(self, settings: ServingSettings, best: TriedSettings | None) -> TriedSettings:
        if best is None and self._plan.objective and (reason := self._why_no_rate_holds(settings)):
            return TriedSettings(settings=settings, value=None, reason=reason)
        traffic = self._probe(settings)
        if traffic.window is None:
            return TriedSettings(settings=settings, value=None, reason=traffic.reason)
        if traffic.window.failed:
            return TriedSettings(settings=settings, value=None, reason=failures_of(traffic.window))
        capacity = traffic.window.rate
        if self._plan.spec.sends_at_rate:
            if best is not None and (reason := self._why_not_searched(best, settings, capacity)):
                return TriedSettings(settings=settings, value=None, windows=[traffic.window], reason=reason)
            value, windows = self._search(settings, FIRST_SHARE * capacity, SETTINGS_SEED, SEARCH_SHARE, capacity)
        else:
            value, windows = self._measure(settings, capacity, SETTINGS_SEED, share=SEARCH_SHARE)
        return TriedSettings(
            settings=settings, value=value, windows=windows, reason="" if value else self._why(windows)
        )

    def _why_no_rate_holds(self, settings: ServingSettings) -> str:
        """Say why no rate is looked for, or nothing if some request that came alone was quick enough."""
        assert self._plan.objective is not None
        limit, fastest_ms, requests = self._plan.objective, math.inf, 0
        if self._latency_ms < QUICK_SHARE * limit.limit_ms:
            return ""
        order = self._order(settings, 1e3 / self._latency_ms, SETTINGS_SEED, SEARCH_SHARE)
        alone = order.but(scenario=Scenario.SINGLE_STREAM, quantile=0.0, shed_after_ms=None)
        # Two windows must show it, because in the first one a slow model may answer a single request.
        for least in (1, LEAST_UNLOADED):
            window = self._take(alone.but(min_requests=least)).window
            if window is None or window.failed or window.objective_ms is None:
                return ""  # the probe reports why
            fastest_ms, requests = min(fastest_ms, window.objective_ms), requests + window.requests
            if fastest_ms <= limit.limit_ms:
                return ""
        if requests < LEAST_UNLOADED:
            return ""
        return (
            f"{limit.percentile} < {limit.limit_ms:g} ms holds at no rate: of {requests:,} requests to "
            f"{counted(settings.instances, 'instance')}, one after the other, the fastest took {fastest_ms:.3g} ms"
        )

    def _probe(self, settings: ServingSettings, number: int = 0) -> TrafficWindow:
        """Measure the capacity of these settings with all requests queued. No request is shed."""
        promised = settings.instances * 1e3 / self._latency_ms / max(1, self._threads // settings.threads)
        # Requests of quick models take far longer than their calls, so that later probes would last too long.
        share = min(1.0, PROBE_MARGIN * max(self._answered_shares, default=1.0))
        order = self._order(settings, share * promised, SETTINGS_SEED + number, SEARCH_SHARE)
        traffic = self._take(order.but(scenario=Scenario.OFFLINE, shed_after_ms=None))
        if traffic.window and not traffic.window.failed:
            self._answered_shares.append(traffic.window.rate / promised)
        return traffic

    def _why_not_searched(self, best: TriedSettings, other: ServingSettings, capacity: float) -> str:
        """Say why no rate within the objective is looked for, or nothing if `other` may carry more than the best.
        `capacity` is what a probe of `other` has just shown."""
        if best.value is None:
            return ""
        if MAX_CAPACITY_SHARE * capacity <= best.value:  # rates of short windows are a little too high
            return f"answers {spell_rate(capacity)} requests/s at most"
        if (other.instances, other.threads) != (best.settings.instances, best.settings.threads):
            return ""
        rates: tuple[list[float], list[float]] = ([], [capacity])
        leads: list[float] = []  # of `other`, in each pair of probes
        # A probe takes a fraction of a search's time. It misses what only makes single answers faster.
        for place in PROBED_IN_TURN:
            if len(leads) == 2 and (min(leads) > WORTH or max(leads) <= WORTH):
                break
            traffic = self._probe((best.settings, other)[place], len(rates[place]))
            if traffic.window is None or traffic.window.failed:
                why = failures_of(traffic.window) if traffic.window else traffic.reason
                return why if place == 1 else ""
            rates[place].append(traffic.window.rate)
            leads = [theirs / ours for ours, theirs in zip(*rates, strict=False)]
        lead = statistics.median(leads)
        if lead > WORTH:
            return ""
        return f"with all requests queued, it answers {lead:.2f} times as many a second as the best settings so far"

    def _compared(self, holder: TriedSettings, other: TriedSettings) -> tuple[TriedSettings, TriedSettings, bool]:
        """Look at both in turn until their difference is clear. Return both, and whether `other` carries more."""
        leads: list[float] = []  # of `other`, in logarithms
        values_of = [[trial.value] for trial in (holder, other)]
        pair = [holder, other]
        first = self._lead(holder.value, other.value)
        if abs(first) < math.log(CLOSE):
            while not is_settled(leads):
                for place in (0, 1) if len(leads) % 2 else (1, 0):
                    # Both get the same requests, so that chance seldom decides.
                    pair[place] = self._looked_at(pair[place], LOOK_SEEDS + len(leads))
                    if (value := pair[place].value) is None:
                        return pair[0], pair[1], place == 0
                    values_of[place].append(value)
                leads.append(self._lead(values_of[0][-1], values_of[1][-1]))
        settled = [
            trial.but(value=statistics.median(filter(None, values)))
            for trial, values in zip(pair, values_of, strict=True)
        ]
        return settled[0], settled[1], statistics.mean(leads or [first]) > math.log(WORTH)

    def _looked_at(self, tried_settings: TriedSettings, seed: int) -> TriedSettings:
        assert tried_settings.value is not None
        value, windows = self._measure(tried_settings.settings, tried_settings.value, seed, SEARCH_SHARE, is_turn=True)
        light = [window.but(latencies_us=[]) for window in windows]
        reason = "" if value else self._why(windows)
        return tried_settings.but(value=value, windows=[*tried_settings.windows, *light], reason=reason)

    def _lead(self, holder: float | None, other: float | None) -> float:
        """Return how many times less a request costs with the `other` value, in logarithms."""
        assert holder is not None and other is not None
        ms_per_request = self._plan.spec.ms_per_request
        return math.log(ms_per_request(holder) / ms_per_request(other))

    def _measure(
        self, settings: ServingSettings, value: float, seed: int, share: float = 1.0, is_turn: bool = False
    ) -> tuple[float | None, list[LoadWindow]]:
        if self._plan.spec.sends_at_rate:
            return self._search(settings, value, seed, share, None, is_turn)
        order = self._order(settings, self._rate_of(value) if is_turn else value, seed, share, is_turn)
        traffic = self._take(order)
        if traffic.window is None or traffic.window.failed:
            return None, [traffic.window] if traffic.window else []
        window = traffic.window
        return self._value_of(window), [window]

    def _search(
        self,
        settings: ServingSettings,
        start: float,
        seed: int,
        share: float,
        capacity: float | None,
        is_turn: bool = False,
    ) -> tuple[float | None, list[LoadWindow]]:
        """Return the highest rate within the objective, in requests that were really sent, with the windows."""
        assert self._plan.objective is not None
        search = RateSearch(self._plan.objective.limit_ms, start, most_windows=SEARCH_WINDOWS)
        if is_turn:
            search.step, search.most_windows, search.give_up_share = TURN_STEP, TURN_WINDOWS, GIVE_UP_SHARE_OF_TURN
        if capacity is not None:
            search.highest = MAX_CAPACITY_SHARE * capacity
        windows: list[LoadWindow] = []
        while (rate := search.next_rate()) is not None:
            traffic = self._take(self._order(settings, rate, seed, share, is_turn))
            if traffic.window is None:
                return None, windows
            windows.append(traffic.window)
            # a request that failed or was left out has no answer, however soon that was said
            is_whole = not traffic.window.failed and not traffic.window.shed
            latency_ms = traffic.window.objective_ms or 0.0
            search.add(rate, latency_ms if is_whole else max(latency_ms, 2 * self._plan.objective.limit_ms))
        result = search.result()
        sent = statistics.median([window.rate / window.asked_rate for window in windows if window.asked_rate] or [1.0])
        return (None if result is None else result * sent), windows

    def _ceiling(self, settings: ServingSettings, value: float | None) -> float | None:
        """Return a value that the generator reaches with these settings where answering takes no time."""
        order = self._order(settings, CEILING_RATE, SETTINGS_SEED, SEARCH_SHARE).but(answers_nothing=True)
        if not self._plan.spec.sends_at_rate:
            window = self._take(order).window
            return None if window is None else self._value_of(window)
        assert self._plan.objective is not None
        enough = max(CEILING_RATE, CEILING_SHARE * (value or 0.0))
        limit_ms = self._plan.objective.limit_ms
        search = RateSearch(limit_ms, enough, step=2.0, most_windows=CEILING_WINDOWS, highest=enough)
        while (rate := search.next_rate()) is not None:
            if (window := self._take(order.but(rate=rate)).window) is None:
                return None
            search.add(rate, window.objective_ms or 0.0)
        return search.held[0] if search.held else None

    def _order(
        self, settings: ServingSettings, rate: float, seed: int, share: float = 1.0, keeps: bool = False
    ) -> TakeLoad:
        plan, seconds = self._plan, self._plan.window_s * share
        return TakeLoad(
            scenario=plan.scenario,
            settings=settings,
            rate=rate,
            seconds=seconds,
            min_requests=plan.requests_of(rate, share) if plan.spec.sends_at_rate else 1,
            streams=plan.streams,
            seed=seed,
            quantile=plan.objective.quantile if plan.objective else 0.99,
            shed_after_ms=SHED_FACTOR * plan.objective.limit_ms if plan.objective else None,
            keeps_latencies=keeps and not plan.spec.requests_wait_for_all,
            keeps_other=self._compares,
        )

    def _rate_of(self, value: float) -> float:
        return self._plan.spec.rate_from(value, self._plan.streams)

    def _value_of(self, window: LoadWindow) -> float:
        return window.rate if self._plan.spec.is_rate else window.p50_ms

    def _batches(self) -> Sequence[int]:
        """Return the sizes to try. Requests that come one by one cannot share a call."""
        has_batch = isinstance(self._cell.dimensions.get("batch"), int)
        return BATCHES if has_batch and self._plan.spec.puts_requests_together else ()

    def _why(self, windows: Sequence[LoadWindow]) -> str:
        if failed := next((window for window in windows if window.failed), None):
            return failures_of(failed)
        lowest = min((window.asked_rate or window.rate for window in windows), default=0.0)
        limit = self._plan.objective
        missed = f"{limit.percentile} < {limit.limit_ms:g} ms does not hold" if limit else "nothing was answered"
        return f"{missed} even at {spell_rate(lowest)} requests/s"


def layouts(threads: int, knobs: ServingKnobs, on_gpu: bool) -> list[ServingSettings]:
    """Return the numbers of instances to try. On a CPU they share the threads that a single call has."""
    options = {name: values[0] for name, values in knobs.options.items()}
    counts = [1]
    if knobs.instance and on_gpu:
        counts += GPU_INSTANCES
    elif knobs.instance:
        counts += [count for count in (2, 4, 8, MOST_INSTANCES) if count < threads]
        counts += [threads] if 1 < threads <= MOST_INSTANCES else []
    return [
        ServingSettings(instances=count, threads=threads if on_gpu else max(1, threads // count), options=options)
        for count in counts
    ]


def is_settled(leads: Sequence[float]) -> bool:
    """Return True if the mean of these leads, in logarithms, is surely over 0, or surely not worth it."""
    if len(leads) < FEWEST_LOOKS or len(leads) == MOST_LOOKS:
        return len(leads) == MOST_LOOKS
    error = max(statistics.stdev(leads), LEAST_NOISE) / math.sqrt(len(leads))
    mean = statistics.mean(leads)
    return mean - 2 * error > 0 or mean + 2 * error < math.log(WORTH)


def failures_of(window: LoadWindow) -> str:
    return f"{window.failed} of {counted(window.requests, 'request')} failed: {window.failure}"
