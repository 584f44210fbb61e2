"""The state of the machine while something was measured."""

from pydantic import Field

from bakeoff.records.frozen import Frozen


class Conditions(Frozen):
    """The state of the machine while a burst was measured. A value that the platform does not report is None."""

    calibration_ms: float | None = None  # a fixed piece of work on one core, timed at the start of the burst's round
    wait_share: float | None = None  # time its threads were ready and had no core / the burst's time; may exceed 1
    cpu_share: float | None = None  # CPU time of all its threads / the burst's time
    caller_share: float | None = None  # CPU time of the thread that makes the calls / the burst's time
    others_cores: float | None = None  # how many of the cores it may use other processes kept busy, in ticks of 10 ms
    throttled_share: float | None = None  # time that the quota of its control group held it / the burst's time
    quiet_calls: int | None = None  # calls in slices of the burst whose threads waited no longer than in the best one
    quiet_ms: float | None = None  # the median of these calls
    quiet_wait_share: float | None = None  # as `wait_share`, of these slices
    given_ms: float | None = None  # the median of all calls, each without its share of its slice's waiting; on a CPU
    steal_share: float | None = None  # time that the hypervisor gave our cores to others / the cores' time
    involuntary_switches: int | None = None  # how often a thread of the process was taken off its core
    page_faults: int | None = None  # memory pages that the process got anew from the kernel
    load: float | None = None  # of the machine, mean over the last minute
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: list[str] = Field(default_factory=list)  # why the GPU's clock was held down, in NVML's words
    core: int | None = None  # that the calling thread was put on before the burst, the same for all cells of a round
    foreign_gpu_processes: int | None = None  # that use the same GPU and are not of this run
