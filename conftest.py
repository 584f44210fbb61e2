"""How the tests share one machine: tests on a GPU and slow tests run alone, because they compare times."""

import gc
import os
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

# The tests' processes take a core each. Inductor's pool of compiling processes imports torch again for each of them.
for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ.setdefault(name, "1")

# OpenVINO, which tests import, would fork this process to report each import and conversion.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

# The tests' scripted backends are a plug-in. On the path it is installed, also for the processes that tests start.
PLUGIN = str(Path(__file__).parent / "tests/support/plugin")
if PLUGIN not in sys.path:
    sys.path.append(PLUGIN)
if PLUGIN not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*paths, PLUGIN)))

ALONE = ("gpu", "slow")
"""Marks of tests that compare times. Each of them needs the machine to itself."""

LONGEST = {"test_conformance.py", "test_quantising.py", "test_run.py", "test_cli.py", "test_wheel.py", "test_folder.py"}
"""Files that take longest. They begin first, so that no process has one of them left while the other has nothing."""

MAX_TEST_S = 300.0
"""No test takes longer, as `timeout` in pyproject.toml ensures. A test that has waited so long for the machine runs."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Make a test that compares times wait for the others, and let no other run beside it under pytest-xdist."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    import fcntl

    wanted = fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH
    with (Path(tempfile.gettempdir()) / f"bakeoff-tests-{run}").open("a") as lock:
        # polling, because a process that a dead worker has left may hold the lock for ever
        end = time.monotonic() + MAX_TEST_S
        while not _locked(lock, wanted | fcntl.LOCK_NB) and time.monotonic() < end:
            time.sleep(0.01)
        try:
            return (yield)
        finally:
            # closing the file is not enough, because a process that the test has forked may still have it open
            fcntl.flock(lock, fcntl.LOCK_UN)


def _locked(lock: IO[str], how: int) -> bool:
    import fcntl

    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return False
    return True


def pytest_sessionfinish() -> None:
    """Remove the lock file at the end."""
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):
        (Path(tempfile.gettempdir()) / f"bakeoff-tests-{run}").unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among what collecting imports. It stays, and looking would take a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _is_alone(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ALONE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first and tests that run alone last, and leave out `gpu` where there is no CUDA device."""
    items.sort(key=lambda item: (_is_alone(item), item.path.name not in LONGEST))
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
