"""Windows of load by MLPerf's generator, with answers that follow a script."""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed")

from bakeoff.measuring.messages import TakeLoad
from bakeoff.measuring.worker.instances import Answer, Instances, LoadRequest
from bakeoff.measuring.worker.load_server import generate, load_generator
from bakeoff.records.load_samples import ServingSettings
from bakeoff.records.scenarios import Scenario


def opened(answer: Answer) -> Callable[[], contextlib.AbstractContextManager[Answer]]:
    return lambda: contextlib.nullcontext(answer)


def window(
    answer: Answer,
    folder: Path,
    scenario: Scenario = Scenario.SERVER,
    instances: int = 1,
    batch: int = 1,
    wait_s: float = 0.0,
    shed_after_s: float | None = None,
    **more: object,
) -> tuple[Instances, np.ndarray]:  # type: ignore[type-arg]
    """Return the instances after a short window, and the latencies in ms."""
    known = {"rate": 400.0, "seconds": 0.2, "seed": 7, **more}
    order = TakeLoad.model_validate({"scenario": scenario, "settings": ServingSettings(), **known})
    serving = Instances([opened(answer)] * instances, batch)
    with contextlib.closing(serving):
        serving.wait_s = wait_s
        serving.shed_after_ns = None if shed_after_s is None else int(1e9 * shed_after_s)
        latencies_ns, _ = generate(load_generator(), serving, order, folder / "loadgen")
    return serving, latencies_ns / 1e6


def sleep_5_ms(samples: Sequence[int]) -> None:
    time.sleep(0.005)


def test_requests_come_at_the_rate_asked_for_and_count_from_when_they_were_due(tmp_path: Path) -> None:
    _, fast = window(lambda samples: None, tmp_path, rate=200.0)
    assert 20 <= len(fast) <= 70
    _, queued = window(sleep_5_ms, tmp_path, rate=400.0)
    assert queued.max() > 50.0, "at twice its capacity the queue grows, and waiting is part of a latency"


def test_the_same_seed_brings_the_same_requests(tmp_path: Path) -> None:
    counts = {len(window(lambda samples: None, tmp_path)[1]) for _ in range(2)}
    assert len(counts) == 1


def test_a_request_that_fails_is_counted_and_does_not_stop_the_others(tmp_path: Path) -> None:
    calls: list[int] = []

    def answer(samples: Sequence[int]) -> None:
        calls.extend(samples)
        if len(calls) % 10 == 0:
            raise ValueError("scripted")

    serving, latencies = window(answer, tmp_path)
    assert len(latencies) == len(calls)
    assert serving.failed == len(calls) // 10
    assert serving.failure == "ValueError: scripted"


def test_requests_that_waited_too_long_are_left_out_so_that_an_overload_ends(tmp_path: Path) -> None:
    begun_s = time.perf_counter()
    serving, latencies = window(sleep_5_ms, tmp_path, rate=5000.0, shed_after_s=0.02)
    assert serving.shed > len(latencies) / 2
    assert time.perf_counter() - begun_s < 5.0, "without that, it would take as long"


def test_requests_share_a_call_up_to_the_limit(tmp_path: Path) -> None:
    sizes: list[int] = []

    def answer(samples: Sequence[int]) -> None:
        sizes.append(len(samples))
        time.sleep(0.005)

    _, latencies = window(answer, tmp_path, rate=800.0, batch=4, wait_s=0.002)
    assert sum(sizes) == len(latencies) and max(sizes) == 4


def test_a_batch_that_stays_small_is_answered_after_the_waiting_time() -> None:
    answered: queue.SimpleQueue[int] = queue.SimpleQueue()
    serving = Instances([opened(lambda samples: None)], batch=2)
    serving.begin(lambda numbers: answered.put(numbers[0]))
    serving.wait_s = 1e-6
    for number in range(30_000):  # with a queue whose waits can have no end, one of the first ten thousand hangs
        serving.put(LoadRequest(number, number, time.perf_counter_ns()))
        assert answered.get(timeout=10.0) == number
    serving.close()


def test_instances_answer_at_the_same_time(tmp_path: Path) -> None:
    meeting = threading.Barrier(4, timeout=20.0)
    answers = itertools.count()

    def answer(samples: Sequence[int]) -> None:
        if next(answers) < 4:
            meeting.wait()  # no first answer ends before all instances have begun one

    serving, _ = window(answer, tmp_path, Scenario.OFFLINE, instances=4, rate=200.0)
    assert not meeting.broken and serving.failed == 0


def test_requests_of_several_streams_come_together(tmp_path: Path) -> None:
    _, latencies = window(sleep_5_ms, tmp_path, Scenario.MULTI_STREAM, streams=4, rate=200.0)
    assert len(latencies) % 4 == 0
    assert latencies[3] > latencies[0] + 10.0, "the last one waits for the three before it"


def test_an_instance_that_does_not_open_is_reported() -> None:
    @contextlib.contextmanager
    def broken():  # type: ignore[no-untyped-def]
        raise MemoryError("no room")
        yield

    with pytest.raises(MemoryError, match="no room"):
        Instances([broken, opened(sleep_5_ms)], batch=1)
