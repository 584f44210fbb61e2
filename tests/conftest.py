"""What the tests of more than one folder share."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO

import pytest

from harness import groundwork
from harness.launcher import Launcher
from harness.progress import Progress
from harness.roofline import Ceilings
from harness.store import Store
from reports.schema import Cell

MEASURING = ("gpu", "harness", "hotpath", "test_runner.py")
"""Folders and files whose tests start, time and kill processes: each needs the machine to itself."""


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """`runner.main` takes SIGTERM for itself; afterwards it is as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session", autouse=True)
def known_ceilings() -> Iterator[Callable[..., None]]:
    """A run measures for a second what the machine can do, and the tests make many: these take it for known."""
    measured: Callable[..., None] = groundwork.measure_ceilings

    def known(cell: Cell, launcher: Launcher, store: Store, progress: Progress, limit_s: float) -> None:
        store.save_ceilings(cell.device, cell.precision, Ceilings(flops_per_s=1e11, bytes_per_s=1e10))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groundwork, "measure_ceilings", known)
        yield measured


@pytest.fixture
def measured_ceilings(known_ceilings: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine can do is measured after all."""
    monkeypatch.setattr(groundwork, "measure_ceilings", known_ceilings)


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
    return item.path.relative_to(Path(__file__).parent).parts[0] in MEASURING


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What measures comes last. Tests marked `gpu` are skipped, with the reason, where torch sees no CUDA device."""
    items.sort(key=_measures)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and torch sees none"))
