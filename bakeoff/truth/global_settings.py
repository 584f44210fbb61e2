"""Global settings of torch that a model's file or its calls may change, and that must be the same for every cell."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch

from bakeoff.records.traits import ModelTraits, Setting

Settings = dict[str, str]

MATMUL_PRECISION = "matmul precision"
"""The setting that the precision of a cell overrules."""

ON, OFF = "on", "off"

LOADING_THREADS = 2
"""Several processes load side by side, each with half of the cores' threads at most. With a thread for each core in
each of them, threads mostly wait for a core."""

TINY = 1e-310
"""A denormal number in float64, which becomes zero where these are flushed."""


def read() -> Settings:
    return {
        "threads": str(torch.get_num_threads()),
        "interop threads": str(torch.get_num_interop_threads()),
        "default type": str(torch.get_default_dtype()).removeprefix("torch."),
        "flush-denormal": _on(not torch.full((1,), TINY, dtype=torch.float64, device="cpu").mul(1.0).item()),
        "deterministic algorithms": _on(torch.are_deterministic_algorithms_enabled()),
        "cudnn.benchmark": _on(torch.backends.cudnn.benchmark),
        "cudnn.deterministic": _on(torch.backends.cudnn.deterministic),
        "cuDNN": _on(bool(torch.backends.cudnn.enabled)),
        "oneDNN": _on(bool(torch.backends.mkldnn.enabled)),
        MATMUL_PRECISION: torch.get_float32_matmul_precision(),
    }


def changed_since(before: Settings) -> tuple[Setting, ...]:
    now = read()
    return tuple(
        Setting(name=name, before=value, after=now[name]) for name, value in before.items() if now[name] != value
    )


def put_in_force(traits: ModelTraits) -> int:
    """Put the settings of the model's file in force, also where it never runs. Return torch's number of threads."""
    changed = {setting.name: setting.after for setting in traits.settings}
    if traits.threads is not None and traits.threads != torch.get_num_threads():
        torch.set_num_threads(traits.threads)
    switches: dict[str, Callable[[bool], object]] = {
        "flush-denormal": torch.set_flush_denormal,
        "deterministic algorithms": partial(torch.use_deterministic_algorithms, warn_only=True),
        "cudnn.benchmark": partial(setattr, torch.backends.cudnn, "benchmark"),
        "cudnn.deterministic": partial(setattr, torch.backends.cudnn, "deterministic"),
    }
    for name in switches.keys() & changed:
        switches[name](changed[name] == ON)
    return torch.get_num_threads()


@contextlib.contextmanager
def few_threads(at_most: int = LOADING_THREADS) -> Iterator[None]:
    """Have torch compute with `at_most` threads or fewer in the block, where nothing is timed. The block does not
    notice: the number of threads that it reads and sets is the one in force afterwards."""
    get, put = torch.get_num_threads, torch.set_num_threads
    wanted, is_over = get(), False
    at_most = max(1, min(at_most, wanted // 2))
    if wanted <= at_most:
        yield
        return

    # So a model's file that sets threads is heard, and one that sets them back again changes nothing.
    def wanted_threads() -> int:
        return get() if is_over else wanted

    def want_threads(nthreads: int) -> None:
        nonlocal wanted
        put(nthreads if is_over else min(nthreads, at_most))  # first, because it refuses senseless numbers
        wanted = wanted if is_over else nthreads

    put(min(wanted, at_most))
    # a module that is imported meanwhile may keep these functions, which are torch's own once the block is over
    torch.get_num_threads, torch.set_num_threads = wanted_threads, want_threads
    try:
        yield
    finally:
        is_over = True
        torch.get_num_threads, torch.set_num_threads = get, put
        put(wanted)


def threads_for_untimed_work(is_machine_busy: bool) -> AbstractContextManager[None]:
    """Have torch compute with one thread in the block if other programs keep the machine busy."""
    # Threads that share cores with other programs wait for one another: calls may take forty times as long.
    return few_threads(1) if is_machine_busy else contextlib.nullcontext()


def _on(is_on: bool) -> str:
    return ON if is_on else OFF
