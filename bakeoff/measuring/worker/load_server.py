"""Serves a built cell to MLPerf's load generator, and measures windows of load.

The generator runs in this process and calls `issue` whenever requests are due. It counts latencies from the time at
which a request was to be sent, so that a late generator hides nothing.
"""

import contextlib
import importlib
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import psutil

from bakeoff.backends.reasons import is_out_of_memory
from bakeoff.measuring.messages import TakeLoad, TrafficWindow
from bakeoff.measuring.worker import conditions, energy
from bakeoff.measuring.worker.instances import Instances, LoadRequest, nothing, start_instances
from bakeoff.measuring.worker.worker_context import WorkerContext, explain
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.load_samples import LoadWindow, ServingSettings
from bakeoff.truth.reference import Reference

SAMPLES = 1024
"""The generator draws from so many requests. Their inputs are the cell's sets in turn."""

SWITCH_INTERVAL_S = 0.0005
"""Python gives a waiting thread its turn after so long. By default it is 5 ms, more than many objectives."""

MAX_OVERTIME = 3.0
"""The generator stops sending after so many times the seconds asked for."""

WARM_UP_S = 0.05
SAMPLE = re.compile(r'"name":"Sample".*?"ts":([\d.]+).*?"sample_seq":(\d+).*?"complete_ns":(\d+)')


class CachedInstances(NamedTuple):
    settings: ServingSettings
    instances: Instances


class LoadServer:
    """Takes windows of load, with the settings of each. The latest build is kept, or two while they are compared."""

    def __init__(self, worker: WorkerContext, sets: Sequence[Inputs], reference: Reference) -> None:
        self._worker = worker
        self._sets = sets
        self._reference = reference
        self._kept: list[CachedInstances] = []  # the latest one last

    def take(self, order: TakeLoad) -> TrafficWindow:
        try:
            generator = load_generator()
            with contextlib.ExitStack() as held:
                if order.answers_nothing:
                    instances = held.enter_context(contextlib.closing(Instances.no_op(order.settings)))
                else:
                    instances = self._serving(order)
                held.enter_context(contextlib.chdir(self._worker.started_in))  # which stages of a request may read from
                return TrafficWindow(window=self._window(generator, instances, order))
        except Exception as error:  # settings that fail are one more result of the search
            self.close()
            return TrafficWindow(window=None, reason=explain(error)[1].sentence)

    def close(self) -> None:
        self._keep([])

    def _serving(self, order: TakeLoad) -> Instances:
        alike = order.settings.but(wait_ms=0.0)
        mine = [each for each in self._kept if each.settings == alike]
        others = [each for each in self._kept if each.settings != alike]
        self._keep([*(others[-1:] if order.keeps_other else []), *mine])
        if not mine:
            instances = self._start(order.settings)  # which may end those that are kept
            self._kept.append(CachedInstances(alike, instances))
        instances = self._kept[-1].instances
        instances.wait_s = order.settings.wait_ms / 1e3
        return instances

    def _start(self, settings: ServingSettings) -> Instances:
        """Start instances with these settings. Where memory does not hold them beside the kept ones, those end."""
        try:
            return start_instances(self._worker, self._sets, self._reference, settings)
        except Exception as error:
            if not self._kept or not is_out_of_memory(error):
                raise
        self.close()
        return start_instances(self._worker, self._sets, self._reference, settings)

    def _keep(self, wanted: list[CachedInstances]) -> None:
        removed, self._kept = [each for each in self._kept if each not in wanted], wanted
        for each in removed:
            each.instances.close()

    def _window(self, generator: ModuleType, instances: Instances, order: TakeLoad) -> LoadWindow:
        worker = self._worker
        instances.shed_after_ns = None if order.shed_after_ms is None else int(1e6 * order.shed_after_ms)
        answered_rate = instances.warm_up(WARM_UP_S)
        if instances.stages and order.scenario.spec.requests_wait_for_all:
            # the rate was guessed from the model alone, and so many requests as it means would take much longer
            order = order.but(rate=min(order.rate, answered_rate))
        counter, watch = energy.counter_for(worker.cell.device), conditions.Watch(worker.cell.device)
        folder = worker.workspace / "loadgen"
        joules = counter.joules()
        watch.begin()
        begun_s = time.perf_counter()
        latencies_ns, sent_s = generate(generator, instances, order, folder)
        seconds = time.perf_counter() - begun_s
        seen = watch.end()
        joules_after = counter.joules()
        worker.device_memory.sample()
        latencies_ms = latencies_ns / 1e6
        finished_s = float(np.max(sent_s + latencies_ns / 1e9) - np.min(sent_s))
        sends_at_rate = order.scenario.spec.sends_at_rate
        span_s = max(float(np.max(sent_s) - np.min(sent_s)), 1e-9) if sends_at_rate else finished_s
        intervals = max(1, len(sent_s) - 1) if sends_at_rate else len(sent_s)
        return LoadWindow(
            asked_rate=order.rate if sends_at_rate else None,
            rate=intervals / span_s,
            requests=len(latencies_ns),
            failed=instances.failed,
            shed=instances.shed,
            seconds=seconds,
            p50_ms=float(np.quantile(latencies_ms, 0.5)),
            p90_ms=float(np.quantile(latencies_ms, 0.9)),
            p99_ms=float(np.quantile(latencies_ms, 0.99)),
            objective_ms=float(np.quantile(latencies_ms, order.quantile)),
            latencies_us=np.rint(latencies_ns / 1e3).astype(int).tolist() if order.keeps_latencies else [],
            joules=None if joules is None or joules_after is None else joules_after - joules,
            energy_source="" if joules is None else counter.source,
            resident_bytes=psutil.Process().memory_info().rss,
            device_bytes=worker.device_memory.now_bytes,
            conditions=seen,
            failure=instances.failure,
            stages=list(instances.stages),
        )


def load_generator() -> ModuleType:
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError:
        raise Unavailable("--load needs MLPerf's load generator: pip install mlcommons-loadgen") from None


def generate(
    generator: ModuleType, instances: Instances, order: TakeLoad, folder: Path
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Run the generator once. Return each request's latency in ns, and the second at which it was to be sent."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings, logs = _settings_of(generator, order), generator.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = True  # it holds the latency of each request, which the summary does not
    logs.log_mode = generator.LoggingMode.EndOfTestOnly

    def issue(samples: Sequence[Any]) -> None:
        came_ns = time.perf_counter_ns()
        for sample in samples:
            instances.put(LoadRequest(sample.id, sample.index, came_ns))

    def answered(numbers: Sequence[int]) -> None:
        generator.QuerySamplesComplete([generator.QuerySampleResponse(number, 0, 0) for number in numbers])

    instances.begin(answered)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    system = generator.ConstructSUT(issue, nothing)
    library = generator.ConstructQSL(SAMPLES, SAMPLES, nothing, nothing)
    try:
        generator.StartTestWithLogSettings(system, library, settings, logs)
    finally:
        generator.DestroyQSL(library)
        generator.DestroySUT(system)
        sys.setswitchinterval(interval_s)
    requests = SAMPLE.findall((folder / "mlperf_log_trace.json").read_text())
    shutil.rmtree(folder, ignore_errors=True)
    if not requests:
        raise BakeoffError("MLPerf's load generator sent no request")
    table = np.array([(int(number), float(ts) / 1e6, int(latency)) for ts, number, latency in requests])
    table = table[np.argsort(table[:, 0], kind="stable")]
    return np.maximum(table[:, 2], 1.0), table[:, 1]


def _settings_of(generator: ModuleType, order: TakeLoad) -> Any:
    settings = generator.TestSettings()
    settings.mode = generator.TestMode.PerformanceOnly
    settings.scenario = getattr(generator.TestScenario, order.scenario.spec.generator_name)
    settings.min_duration_ms = max(1, round(1e3 * order.seconds))
    settings.max_duration_ms = round(1e3 * MAX_OVERTIME * max(order.seconds, order.min_requests / order.rate))
    settings.min_query_count = 1 if order.scenario.spec.requests_wait_for_all else order.min_requests
    settings.server_target_qps = settings.offline_expected_qps = order.rate
    settings.server_target_latency_ns = 10**15  # we judge the latencies ourselves
    settings.single_stream_expected_latency_ns = round(1e9 / order.rate)
    settings.multi_stream_expected_latency_ns = round(1e9 * order.streams / order.rate)
    settings.multi_stream_samples_per_query = order.streams
    settings.schedule_rng_seed = order.seed
    settings.qsl_rng_seed, settings.sample_index_rng_seed = order.seed + 1, order.seed + 2
    return settings
