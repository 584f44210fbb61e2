"""How the tests of this repository share one machine."""

import os
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

MEASURING = frozenset({"gpu", "harness", "hotpath", "test_runner.py"})
"""Folders and files whose tests start, time and kill processes. Each of these tests needs the machine to itself."""

LONGEST_TEST_S = 300.0
"""`timeout` of pyproject.toml: no test takes longer. After so long one runs beside whatever still holds the machine."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where pytest-xdist runs two tests at a time, one that measures waits for the others, and has none beside it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    import fcntl

    wanted = fcntl.LOCK_EX if _measures(item) else fcntl.LOCK_SH
    with (Path(tempfile.gettempdir()) / f"bakeoff-tests-{run}").open("a") as lock:
        # not waiting in the kernel: what a worker that died has left running may hold it for ever
        end = time.monotonic() + LONGEST_TEST_S
        while not _locked(lock, wanted | fcntl.LOCK_NB) and time.monotonic() < end:
            time.sleep(0.01)
        try:
            return (yield)
        finally:
            # not by closing it, since a process that the test has forked may have it open still
            fcntl.flock(lock, fcntl.LOCK_UN)


def _locked(lock: IO[str], how: int) -> bool:
    import fcntl

    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return False
    return True


def pytest_sessionfinish() -> None:
    """The last worker has nobody to wait for."""
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        (Path(tempfile.gettempdir()) / f"bakeoff-tests-{run}").unlink(missing_ok=True)


def _measures(item: pytest.Item) -> bool:
    return not MEASURING.isdisjoint(item.path.relative_to(Path(__file__).parent).parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that measure last. Leave out those marked `gpu` where torch sees no CUDA device."""
    items.sort(key=_measures)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
