"""Other programs that keep cores busy."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psutil
import pytest

from bakeoff.measuring.controller.others import OtherPrograms, Program, QuietWait, busy_cores, programs_of_others
from bakeoff.measuring.cores import usable_cores

NAMES = {1: "init", 7: "trainer"}


def warning(taken_s: dict[int, float], cores: int) -> str:
    """Return the warning after a second in which programs took so many seconds of a CPU."""
    readings: Iterator[dict[int, Program]] = iter(
        [
            {pid: Program(name, 5.0) for pid, name in NAMES.items()},
            {pid: Program(name, 5.0 + taken_s.get(pid, 0.0)) for pid, name in NAMES.items()} | {9: Program("new", 9.0)},
        ]
    )
    seconds = iter([0.0, 1.0, 1.0])
    return OtherPrograms(lambda: next(readings), lambda: next(seconds), lambda _: None).warning(cores)


@pytest.mark.parametrize(("taken_s", "cores", "longer"), [(7.0, 8, 3), (1.0, 2, 2), (2.0, 8, 2)])
def test_a_run_begins_with_a_warning_where_others_keep_cores_busy(taken_s: float, cores: int, longer: int) -> None:
    said = warning({7: taken_s, 1: 0.01}, cores)
    assert f"{taken_s:.0f} of {cores} cores" in said
    assert f"about {longer} times as long" in said
    assert "(trainer, process 7, takes most)" in said


@pytest.mark.parametrize(("taken_s", "cores"), [(0.1, 2), (1.5, 8), (0.0, 1)])
def test_a_quiet_machine_needs_no_warning(taken_s: float, cores: int) -> None:
    assert warning({7: taken_s}, cores) == ""


def test_programs_of_others_are_none_of_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ours:
        found = programs_of_others()
        ours.communicate()
    assert not {os.getpid(), os.getppid(), ours.pid} & found.keys()


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_num"), reason="the system does not report the core of a process")
def test_programs_on_cores_that_we_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times, ours = SimpleNamespace(user=1.0, system=0.5), usable_cores()[0]
    programs = [
        SimpleNamespace(pid=-number, info={"name": "p", "cpu_times": times, "cpu_num": core})
        for number, core in enumerate([ours, max(usable_cores()) + 1000], 1)
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: programs)
    assert programs_of_others() == {-1: Program("p", 1.5)}


def test_busy_cores_are_counted() -> None:
    assert 0.0 <= busy_cores(0.05) <= (os.cpu_count() or 1) + 0.5


def waiting(busy: list[float], left_s: float = 10.0) -> tuple[QuietWait, list[str], Callable[[], float]]:
    """Return what waits, what it says, and its clock, which looking moves on by a second."""
    time_s, said, readings = [0.0], list[str](), iter(busy)

    def look() -> float:
        time_s[0] += 1.0
        return next(readings)

    return QuietWait(left_s, said.append, look, lambda: time_s[0]), said, lambda: time_s[0]


def test_a_run_waits_until_others_rest() -> None:
    quiet, said, now_s = waiting([3.0, 3.0, 0.1, 0.0])
    quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s, len(said)) == (3.0, 7.0, 1)
    quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s, len(said)) == (4.0, 7.0, 1)


def test_a_run_does_not_wait_for_ever() -> None:
    quiet, said, now_s = waiting([3.0] * 20, left_s=5.0)
    for _ in range(2):
        quiet.wait(lambda: None)
    assert (now_s(), quiet.left_s) == (5.0, 0.0)
    assert "measured beside them" in said[-1]
