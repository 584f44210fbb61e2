"""Taking samples of a build with scripted latencies, under a clock that only its calls move."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

from bakeoff.backends.base import Compiled, Wrapped
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.intervals import covered
from bakeoff.measuring.controller.cell_record import doubt_of
from bakeoff.measuring.cores import usable_cores
from bakeoff.measuring.worker import conditions, sampling
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Inputs
from bakeoff.planning.sampling_plan import ENOUGH_CALLS, SamplingPlan
from bakeoff.records.device import CPU
from bakeoff.records.doubts import WarmUpNoise, WarmUpTrend
from bakeoff.records.schema import WarmUp

MS = 1_000_000


@dataclass
class FakeTime:
    now_ns: int = 0

    def read(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@dataclass
class Scripted(Compiled):
    """`latency_ms` of the number of the call; binding takes `bind_ms`."""

    time: FakeTime
    latency_ms: Callable[[int], float] = lambda call: 1.0
    bind_ms: float = 0.0
    compiles_until_call: int = 0
    fails_at_call: int | None = None
    calls: int = 0
    bound: list[Inputs] = field(default_factory=list)
    collecting: list[bool] = field(default_factory=list)

    def bind(self, inputs: Inputs) -> None:
        self.bound.append(inputs)
        self.time.now_ns += int(self.bind_ms * MS)

    def run(self) -> None:
        self.calls += 1
        self.collecting.append(gc.isenabled())
        if self.calls == self.fails_at_call:
            raise RuntimeError("scripted")
        self.time.now_ns += int(self.latency_ms(self.calls) * MS)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return ()

    def compilations(self) -> int:
        return min(self.calls, self.compiles_until_call)


SETS = [Inputs((index,)) for index in range(4)]


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def clock_of(time: FakeTime) -> Clock:
    return Clock(CPU, time.read)


@pytest.fixture(autouse=True, scope="module")
def frozen_garbage() -> Iterator[None]:
    """As in a measuring process, collections leave alone what was there before: in a test run that is a great deal."""
    sampling.freeze_garbage()
    yield
    gc.unfreeze()


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector, on again afterwards."""
    yield
    gc.enable()


def warmed(compiled: Scripted, min_s: float = 0.5, limit_s: float = sampling.WARM_UP_LIMIT_S) -> WarmUp:
    return sampling.warm_up(compiled, SETS, clock_of(compiled.time), min_s, limit_s=limit_s)


@pytest.mark.parametrize(
    ("latency_ms", "seconds", "limits", "calls"),
    [
        (1.0, 0.05, (10,), 50),
        (30.0, 0.05, (10,), 10),  # at least so many
        (1.0, 0.06, (4, 19), 60),  # the calls wanted, as far as they take little time
        (100.0, 0.06, (4, 19), 19),
        (150.0, 0.06, (4, 19), 14),
        (1000.0, 0.06, (4, 19), 4),
        (0.1, 0.05, (4, 0, ENOUGH_CALLS), 250),  # with enough calls half of the time will do
        (0.3, 0.05, (4, 0, ENOUGH_CALLS), 100),
        (0.6, 0.05, (4, 0, ENOUGH_CALLS), 84),
        (1.0, 0.05, (4, 0, ENOUGH_CALLS), 50),
    ],
)
def test_a_burst_lasts_as_long_as_it_should(
    time: FakeTime, latency_ms: float, seconds: float, limits: tuple[int, ...], calls: int
) -> None:
    samples = sampling.burst(Scripted(time, lambda call: latency_ms), SETS, clock_of(time), seconds, *limits)
    assert samples == [int(latency_ms * MS)] * calls


def test_a_burst_is_divided_into_slices_between_calls(time: FakeTime) -> None:
    watch = conditions.Watch(CPU)
    marks: list[int] = []
    watch.mark = marks.append  # type: ignore[method-assign]
    build = Scripted(time, lambda call: 0.4 if call <= 6 else 3.0)
    assert len(sampling.burst(build, SETS, clock_of(time), 0.008, 1, watch=watch)) == 8
    assert marks == [3, 6, 7]  # a millisecond, or one call that is longer; the end is no mark of its own


def test_every_call_is_a_sample_in_order_with_the_next_inputs_and_without_binding(time: FakeTime) -> None:
    compiled = Scripted(time, lambda call: call, bind_ms=5.0)
    samples = sampling.burst(compiled, SETS, clock_of(time), 0.0, 6)
    assert samples == [number * MS for number in range(1, 7)]
    assert [inputs.args[0] for inputs in compiled.bound] == [0, 1, 2, 3, 0, 1]


def test_the_device_is_waited_for_on_either_side_of_a_call(time: FakeTime) -> None:
    clock = clock_of(time)
    queued_ms = 0.0

    class Queueing(Scripted):
        def bind(self, inputs: Inputs) -> None:
            nonlocal queued_ms
            queued_ms += 7.0

        def run(self) -> None:
            nonlocal queued_ms
            queued_ms += 2.0

    def synchronise() -> None:
        nonlocal queued_ms
        time.now_ns += int(queued_ms * MS)
        queued_ms = 0.0

    clock.synchronise = synchronise
    assert sampling.burst(Queueing(time), SETS, clock, 0.0, 3) == [2 * MS] * 3


def noise(time: FakeTime, seed: int) -> Callable[[int], float]:
    """Of a loud machine: each window of 125 ms has a level of its own, 10 % apart (standard deviation)."""

    def latency_ms(_: int) -> float:
        return random.Random(f"{seed}/{time.now_ns // (125 * MS)}").lognormvariate(0.0, 0.1)

    return latency_ms


def swinging(to: float) -> Callable[[int], float]:
    """Return a level that changes about once in each window of 125 ms."""
    return lambda call: to if (call // 125) % 2 else 1.0


@pytest.mark.parametrize(
    ("latency_ms", "limits_s", "steady", "trendless", "low_s", "high_s"),
    [
        (lambda call: 1.0, (0.5, 20.0), True, False, 0.5, 0.65),
        (lambda call: 1.0, (1.0, 0.1), True, False, 1.0, 1.2),  # a longer warm-up than the limit is granted
        (lambda call: 1000.0, (0.5, 20.0), True, False, 10.0, 20.0),  # ten calls at least
        (lambda call: 1.0 + 4.0 * 0.995**call, (0.5, 20.0), True, False, 0.9, 5.0),
        (lambda call: 1.0005**call, (0.5, 3.0), False, False, 3.0, 3.5),
        (swinging(1.015), (0.5, 2.0), True, False, 0.5, 2.0),  # windows agree within two per cent
        (swinging(1.03), (0.5, 2.0), False, True, 1.5, 2.5),
        (swinging(1.2), (0.5, 20.0), False, True, 1.5, 2.5),  # it goes nowhere
    ],
)
def test_a_warm_up_ends_when_windows_agree_or_go_nowhere(
    time: FakeTime,
    latency_ms: Callable[[int], float],
    limits_s: tuple[float, float],
    steady: bool,
    trendless: bool,
    low_s: float,
    high_s: float,
) -> None:
    compiled = Scripted(time, latency_ms)
    warm_up = warmed(compiled, *limits_s)
    assert (warm_up.steady, warm_up.trendless) == (steady, trendless)
    assert low_s <= warm_up.seconds < high_s and warm_up.calls == compiled.calls
    doubt = WarmUpNoise() if trendless else WarmUpTrend(seconds=warm_up.seconds)
    assert doubt_of(warm_up) == (None if steady else doubt)
    assert not steady or latency_ms(compiled.calls) < 1.03 * latency_ms(10**4)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_is_no_warm_up(time: FakeTime, seed: int) -> None:
    warm_up = warmed(Scripted(time, noise(time, seed)))
    assert warm_up.seconds < 10.0 < sampling.WARM_UP_LIMIT_S


def test_what_gets_faster_beneath_noise_is_mostly_waited_for(time: FakeTime) -> None:
    """From twice as long, by half of what is left each second: after two of them a quarter of it is left."""

    def warmed_up(seed: int) -> WarmUp:
        jitter, begun_ns = noise(time, seed), time.now_ns
        return warmed(Scripted(time, lambda call: jitter(call) * (1.0 + 0.5 ** ((time.now_ns - begun_ns) / 1e9))))

    found = [warmed_up(seed) for seed in range(60)]
    given_up = [warm_up for warm_up in found if not warm_up.steady]
    assert len(given_up) > 20  # the others had three windows that agree, by chance or at last
    assert sum(warm_up.seconds < 2.0 for warm_up in given_up) <= 0.1 * len(found)


def test_windows_that_differ_and_get_faster_are_waited_for(time: FakeTime) -> None:
    def latency_ms(call: int) -> float:
        return (1.2 if time.now_ns // (125 * MS) % 2 else 1.0) * (1.0 + 4.0 * 0.999**call)

    warm_up = warmed(Scripted(time, latency_ms))
    assert not warm_up.steady
    assert warm_up.seconds > 3.0


def test_what_compiles_is_not_given_up(time: FakeTime) -> None:
    compiled = Scripted(time, swinging(1.2), compiles_until_call=3000)
    warmed(compiled)
    assert compiled.calls > 3000


def test_compilations_that_go_on_keep_it_from_being_steady(time: FakeTime) -> None:
    assert not warmed(Scripted(time, compiles_until_call=10**6), limit_s=2.0).steady
    settled = Scripted(time, compiles_until_call=700)
    assert warmed(settled).steady
    assert settled.calls > 700 + 2 * 125


def warmed_again(compiled: Scripted) -> WarmUp:
    """Warm up as in a further process."""
    return sampling.warm_up(compiled, SETS, clock_of(compiled.time), 0.5, is_first=False)


@pytest.mark.parametrize(
    ("latency_ms", "is_steady", "low_s", "high_s"),
    [
        (lambda call: 1.0, (True,), 0.125, 0.2),  # a quarter of the time
        (lambda call: 1.0005**call, (False,), 0.125, 2.5),
        # from twice as long: what calls are slower by in the end, under a fifth, is not waited for
        (lambda call: 2.0 * (1 + 0.99**call), (True, False), 0.45, sampling.REPEATED_WARM_UP_LIMIT_S),
    ],
)
def test_a_further_process_warms_up_while_it_gets_faster_and_otherwise_shortly(
    time: FakeTime, latency_ms: Callable[[int], float], is_steady: tuple[bool, ...], low_s: float, high_s: float
) -> None:
    compiled = Scripted(time, latency_ms)
    warm_up = warmed_again(compiled)
    assert warm_up.steady in is_steady and compiled.calls >= 10 and low_s <= warm_up.seconds < high_s
    assert latency_ms(compiled.calls) < 1.2 * latency_ms(10**4)


@pytest.mark.parametrize("seed", range(5))
def test_a_further_process_does_not_wait_for_noise_to_end(time: FakeTime, seed: int) -> None:
    assert 0.125 <= warmed_again(Scripted(time, noise(time, seed))).seconds < 0.7


def test_a_further_process_warms_up_while_something_is_compiled(time: FakeTime) -> None:
    compiling = Scripted(time, compiles_until_call=600)
    assert warmed_again(compiling).calls > 600


class Choosing(Scripted):
    """A build that takes two milliseconds a call until it is final, and then one."""

    def __init__(self, time: FakeTime, final_at_call: int) -> None:
        super().__init__(time, lambda call: 2.0 if call <= final_at_call else 1.0)
        self.final_at_call, self.restored, self.was_finalised = final_at_call, 0, False

    def restore(self) -> None:
        self.restored += 1

    def is_final(self) -> bool:
        return self.was_finalised or self.calls >= self.final_at_call

    def finalise(self) -> None:
        self.was_finalised = True


def test_a_build_is_called_until_it_is_final(time: FakeTime) -> None:
    compiled = Choosing(time, final_at_call=1000)
    found = sampling.call_until_final(compiled, SETS, clock_of(time))
    assert found is not None and found.calls == compiled.calls
    # calls come in windows of half a second, and the last window goes on after the choice
    assert 1000 <= found.calls < 1500
    assert found.seconds == pytest.approx(2.0 + (found.calls - 1000) / 1e3)
    assert not compiled.was_finalised and compiled.restored >= 4, "training begins anew with each window"


def test_a_build_that_does_not_become_final_has_to_stay_as_it_is(time: FakeTime) -> None:
    compiled = Choosing(time, final_at_call=10**9)
    found = sampling.call_until_final(compiled, SETS, clock_of(time), limit_s=3.0)
    assert found is not None and found.seconds == pytest.approx(3.0)
    assert compiled.was_finalised


def test_a_build_that_is_final_is_not_called(time: FakeTime) -> None:
    compiled = Scripted(time)
    assert sampling.call_until_final(compiled, SETS, clock_of(time)) is None and compiled.calls == 0


def test_a_wrapper_is_final_when_the_build_inside_is(time: FakeTime) -> None:
    inner = Choosing(time, final_at_call=10)
    wrapper = Wrapped(inner)
    assert not wrapper.is_final()
    wrapper.finalise()
    assert wrapper.is_final() and inner.was_finalised


@pytest.mark.parametrize(
    ("latency_ms", "bind_ms", "calls_per_s", "block_s"),
    [
        (lambda call: 2.0, 50.0, 500.0, 0.1),
        (lambda call: 0.5, 0.0, 2000.0, 0.05),  # a block of short calls takes half as long
        (lambda call: 4.0 if call <= 26 else 1.0, 0.0, 1000.0, 0.1),  # after one call, a slow block and two others
    ],
)
def test_throughput_is_calls_over_time_in_the_median_block(
    time: FakeTime, latency_ms: Callable[[int], float], bind_ms: float, calls_per_s: float, block_s: float
) -> None:
    throughput = sampling.throughput(Scripted(time, latency_ms, bind_ms), SETS, clock_of(time))
    assert throughput.calls_per_s == pytest.approx(calls_per_s) and throughput.block_s == pytest.approx(block_s)
    assert throughput.blocks == sampling.THROUGHPUT_BLOCKS
    single = sampling.throughput(Scripted(time, lambda call: 2.0), SETS, clock_of(time), blocks=1)
    assert (single.blocks, single.range_per_s) == (1, None)
    assert single.calls_per_s == pytest.approx(500.0)


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_throughput_begins_on_the_core_of_a_burst_and_is_free_afterwards(time: FakeTime) -> None:
    usual, core, cores = os.sched_getaffinity(0), max(usable_cores()), []

    def latency_ms(call: int) -> float:
        cores.append(os.sched_getaffinity(0))
        return 2.0

    sampling.throughput(Scripted(time, latency_ms), SETS, clock_of(time), core)
    assert cores[0] == {core}
    assert cores[-1] == usual


def test_throughput_of_a_device_that_lags_behind_is_the_devices(time: FakeTime) -> None:
    clock = clock_of(time)
    compiled = Scripted(time, lambda call: 0.1)  # the host's part; the device takes 2 ms, and queues
    done_ns = 0

    def synchronise() -> None:
        nonlocal done_ns
        time.now_ns = max(time.now_ns, done_ns)

    def run() -> None:
        nonlocal done_ns
        Scripted.run(compiled)
        done_ns = max(done_ns, time.now_ns) + 2 * MS

    clock.synchronise = synchronise
    compiled.run = run  # type: ignore[method-assign]
    throughput = sampling.throughput(compiled, SETS, clock)
    assert throughput.calls_per_s == pytest.approx(500.0, rel=0.02)
    assert throughput.block_s < 0.3


def test_device_time_needs_a_device(time: FakeTime) -> None:
    assert sampling.device_time(Scripted(time), SETS, clock_of(time)) is None


@pytest.mark.parametrize(("seconds", "rounds", "warm_up_s"), [(0.1, 12, 0.05), (1.5, 12, 0.5), (9.0, 30, 0.5)])
def test_bursts_hold_the_time_and_a_hundred_calls(seconds: float, rounds: int, warm_up_s: float) -> None:
    plan = SamplingPlan.lasting(seconds)
    assert (plan.processes, plan.most_processes, plan.rounds) == (3, 20, rounds)
    assert plan.processes * plan.rounds * plan.burst_s == pytest.approx(seconds)
    assert plan.processes * plan.rounds * plan.burst_calls >= 100
    assert plan.burst_s <= 0.1
    assert plan.warm_up_s == warm_up_s


def test_a_single_process_takes_the_calls_of_one_of_three() -> None:
    one, three = SamplingPlan.lasting(0.3, processes=1), SamplingPlan.lasting(0.3, processes=3)
    assert one.rounds * one.burst_calls == three.rounds * three.burst_calls < 100


def test_a_percentile_that_is_required_has_the_calls_it_takes() -> None:
    plan = SamplingPlan.lasting(1.5, wanted_calls=Requirements.parse("build_s<60, p90_ms<5, p99_ms<5").calls)
    assert plan.processes * plan.rounds * plan.wanted_calls >= 662
    assert plan.processes * plan.rounds * plan.burst_calls < 662
    unasked = SamplingPlan.lasting(1.5)
    assert SamplingPlan.lasting(1.5, wanted_calls=Requirements.parse("build_s<60").calls) == unasked


@pytest.mark.parametrize(("asked", "most"), [(1, 1), (2, 2), (3, 20), (5, 20), (22, 22)])
def test_fewer_processes_than_an_interval_needs_are_taken_as_they_are(asked: int, most: int) -> None:
    """One or two are sampled for their share of what three are."""
    plan = SamplingPlan.lasting(1.5, asked)
    assert (plan.processes, plan.most_processes) == (asked, most)
    assert max(3, plan.processes) * plan.rounds * plan.burst_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    "take", [lambda *a: sampling.burst(*a, 0.0, 5), sampling.throughput], ids=["burst", "throughput"]
)
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails_at_call", [None, 4])
def test_no_garbage_is_collected_while_samples_are_taken(
    time: FakeTime, collector: None, take: Callable[..., object], enabled: bool, fails_at_call: int | None
) -> None:
    compiled = Scripted(time, fails_at_call=fails_at_call)
    if not enabled:
        gc.disable()
    if fails_at_call is None:
        take(compiled, SETS, clock_of(time))
    else:
        with pytest.raises(RuntimeError, match="scripted"):
            take(compiled, SETS, clock_of(time))
    assert gc.isenabled() is enabled
    assert len(compiled.collecting) >= 4
    assert not any(compiled.collecting)


def test_a_rate_far_below_that_of_single_calls_is_measured_again_when_calls_are_as_quick_as_usual(
    time: FakeTime,
) -> None:
    busy_until_ns = 1500 * MS
    compiled = Scripted(time, lambda call: 20.0 if time.now_ns < busy_until_ns else 1.0)
    found = sampling.throughput(compiled, SETS, clock_of(time), usual_ms=1.0, sleep=time.sleep)
    assert found.calls_per_s == pytest.approx(1000.0)
    assert found.range_per_s is not None and found.range_per_s.low == pytest.approx(1000.0)
    busy_until_ns, time.now_ns = 10**6 * MS, 0
    found = sampling.throughput(compiled, SETS, clock_of(time), usual_ms=1.0, sleep=time.sleep)
    assert found.calls_per_s == pytest.approx(50.0), "the machine stays busy"
    assert time.now_ns < 4000 * MS


def test_a_rate_that_fits_the_latency_is_measured_once(time: FakeTime) -> None:
    found = sampling.throughput(Scripted(time), SETS, clock_of(time), usual_ms=1.1)
    assert found.calls_per_s == pytest.approx(1000.0)
    assert time.now_ns < 500 * MS


# --- what a GPU does during a call


def test_what_is_summed_is_one_call_of_several() -> None:
    # two calls: a product, a copy on another stream that overlaps it, and a second product after a pause
    call = [("gemm", 0.0, 400.0), ("copy", 300.0, 500.0), ("gemm", 800.0, 1000.0)]
    traced = call + [(name, begun + 5000, ended + 5000) for name, begun, ended in call]
    found = sampling.summed_kernels(traced, calls=2)
    assert (found.busy_ms, found.kernels, found.calls) == (pytest.approx(0.7), 3, 2)
    assert [(kernel.name, kernel.share) for kernel in found.longest] == [("gemm", 0.75), ("copy", 0.25)]


def test_only_the_longest_kernels_are_kept() -> None:
    found = sampling.summed_kernels([(f"kernel {number}", 0.0, float(number)) for number in range(1, 9)], calls=1)
    assert [kernel.name for kernel in found.longest] == ["kernel 8", "kernel 7", "kernel 6"]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0.0), ([(1, 3), (2, 5)], 4.0), ([(4, 5), (0, 1)], 2.0), ([(0, 9), (1, 2), (3, 4)], 9.0)],
)
def test_time_is_covered_once(spans: list[tuple[float, float]], expected: float) -> None:
    assert covered(spans) == expected


def test_nothing_traced_is_nothing_known() -> None:
    assert sampling.summed_kernels([], calls=3) is None
    assert sampling.trace_kernels(None, (), Clock(CPU)) is None  # type: ignore[arg-type]  # it must not be called
