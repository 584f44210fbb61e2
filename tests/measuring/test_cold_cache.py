"""With --cold-cache, the last-level cache is written over before each timed call, and never in it."""

from pathlib import Path

import pytest
import torch

from bakeoff.judging.judgement import judge
from bakeoff.measuring.worker import sampling, serving
from bakeoff.measuring.worker.clock import Clock
from bakeoff.measuring.worker.serving import ColdCalls
from bakeoff.models.base import Inputs
from bakeoff.planning.request import Request
from bakeoff.records.device import CPU
from bakeoff.records.errors import UsageError
from bakeoff.reports import sentences
from tests.measuring.test_sampling import FakeTime, Scripted
from tests.support.measuring import by_label, measure

MIB = 2**20


class Watched(Scripted):
    """Notes how often the buffer was written when each call begins, and when it ends."""

    cold: ColdCalls

    def run(self) -> None:
        before = int(self.cold._buffer[-1])
        super().run()
        self.writes = [*getattr(self, "writes", []), (before, int(self.cold._buffer[-1]))]


def test_each_call_is_preceded_by_one_eviction_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "cache_bytes_of", lambda device: 48 * MIB)
    time = FakeTime()
    watched = Watched(time, bind_ms=7.0)
    clock = Clock(CPU, time.read)
    watched.cold = ColdCalls(watched, clock)
    samples_ns = sampling.burst(watched.cold, [Inputs((torch.ones(1),), {})], clock, 0.0, 5)
    assert samples_ns == [1_000_000] * 5  # without binding, and what follows it
    assert watched.writes == [(call, call) for call in range(1, 6)]
    assert watched.cold.settings()["MiB written before each call"] == 96


def test_a_cold_run_says_so_wherever_it_is_shown(tmp_path: Path) -> None:
    report = measure(tmp_path / "cold", "eager", cold_cache=True)
    record = by_label(report)["eager"]
    assert (
        record.latency is not None and record.cell.cold_cache and record.settings["MiB written before each call"] >= 64
    )
    assert record.throughput is None and record.energy is None
    assert "--cold-cache" in record.command and "_cold_" in record.cell.id
    judgement = judge(report)
    assert sentences.title(judgement).endswith(", cold cache")
    assert judgement.contests[0].title.endswith("on cpu, fp32, cold cache")
    assert all(burst.conditions and burst.conditions.given_ms is None for burst in record.bursts)


def test_requests_under_load_have_no_cold_cache() -> None:
    with pytest.raises(UsageError, match="--cold-cache"):
        Request(load="server", slo="p99_ms<5", cold_cache=True)
