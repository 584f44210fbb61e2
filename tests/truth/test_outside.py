"""What the user's own code reads from outside and does there is noted, and the clock that it sees can be stopped."""

import contextlib
import datetime
import importlib
import io
import json
import logging
import mmap
import os
import socket
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time as imported
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bakeoff.records.traits import Access, AccessKind
from bakeoff.truth.moved_clock import clock_at, is_clock_stopped, time_seen
from bakeoff.truth.outside import CLOCK, OutsideWatch, dropped, of_attributes
from bakeoff.truth.user_code import count_as_users, is_users_file

NOON_S = 1_000_000_000.0
LOG = logging.getLogger("scores")
OPEN: dict[str, Any] = {}
"""What a test finds open. Each process of pytest-xdist imports this file, and one of them runs its tests. Under `log`
is a descriptor that each test points to a file of its own."""


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    client, server = socket.socketpair()
    log = os.open(os.devnull, os.O_RDWR)
    with client, server, mmap.mmap(-1, 8) as mapped, contextlib.closing(sqlite3.connect(":memory:")) as scores:
        OPEN.update(client=client, mapped=mapped, scores=scores, log=log)
        yield
    os.close(log)
    OPEN.clear()


def connects() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"1", ("127.0.0.1", 9))


@torch.jit.script  # type: ignore[untyped-decorator]
def prints(x: torch.Tensor) -> torch.Tensor:
    print("1")  # noqa: T201
    return x


def access(kind: AccessKind, name: str = "") -> Access:
    return Access(kind=kind, name=name)


@pytest.mark.filterwarnings("ignore:1")
@pytest.mark.usefixtures("heard_logs")
@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda: time.time(), CLOCK),
        (lambda: imported(), CLOCK),
        (lambda: time.perf_counter_ns(), CLOCK),
        (lambda: datetime.datetime.now(datetime.UTC).hour, CLOCK),
        (lambda: datetime.date.today(), CLOCK),
        (lambda: time.strftime("%H"), CLOCK),
        (lambda: os.environ.get("SCALE", "2"), access(AccessKind.VARIABLE, "SCALE")),
        (lambda: os.getenv("SCALE"), access(AccessKind.VARIABLE, "SCALE")),
        (lambda: "SCALE" in os.environ, access(AccessKind.VARIABLE, "SCALE")),
        (lambda: Path("bias.txt").read_text(), access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: np.loadtxt("bias.txt"), access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: np.load("bias.npy", mmap_mode="r"), access(AccessKind.READ_FILE, "bias.npy")),
        (lambda: Path("bias.txt").resolve().read_text(), access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: torch.load("weights.pt"), access(AccessKind.READ_FILE, "weights.pt")),
        (lambda: os.path.exists("flag"), access(AccessKind.READ_FILE, "flag")),
        (lambda: os.listdir("weights"), access(AccessKind.READ_FOLDER, "weights")),
        (lambda: Path("weights").is_dir(), access(AccessKind.READ_FOLDER, "weights")),
        (lambda: os.stat("bias.txt").st_mtime, access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: Path("bias.txt").stat(), access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: os.path.getsize("bias.txt"), access(AccessKind.READ_FILE, "bias.txt")),
        (lambda: os.makedirs("logs/today", exist_ok=True), access(AccessKind.MADE_FOLDER, "logs/today")),
        (lambda: Path("logs/now").mkdir(parents=True, exist_ok=True), access(AccessKind.MADE_FOLDER, "logs/now")),
        (lambda: os.write(OPEN["log"], b"1"), access(AccessKind.WRITTEN_FILE, "descriptor.log")),
        (lambda: os.write(2, b""), access(AccessKind.PRINT)),
        (lambda: os.environ.update(SCALE="3"), access(AccessKind.SET_VARIABLE, "SCALE")),
        (lambda: os.environ.pop("SCALE", ""), access(AccessKind.VARIABLE, "SCALE")),
        (lambda: mmap.mmap(OPEN["log"], 8), access(AccessKind.READ_FILE, "descriptor.log")),
        (lambda: OPEN["mapped"].read(1), access(AccessKind.READ_FILE)),
        (lambda: OPEN["mapped"].write(b""), access(AccessKind.WRITTEN_FILE)),
        (lambda: OPEN["scores"].execute("SELECT 1").fetchone(), access(AccessKind.DATABASE)),
        (lambda: OPEN["client"].send(b"1"), access(AccessKind.NETWORK, "a socket")),
        (lambda: np.datetime64("now"), CLOCK),
        (lambda: time.clock_gettime(time.CLOCK_REALTIME), CLOCK),
        (lambda: Path("log.txt").write_text("1"), access(AccessKind.WRITTEN_FILE, "log.txt")),
        (lambda: np.save("log.npy", np.ones(2)), access(AccessKind.WRITTEN_FILE, "log.npy")),
        (lambda: torch.save(torch.ones(2), "log.pt"), access(AccessKind.WRITTEN_FILE, "log.pt")),
        (lambda: save_file({"a": torch.ones(2)}, "log.st"), access(AccessKind.WRITTEN_FILE, "log.st")),
        (lambda: load_file("weights.st"), access(AccessKind.READ_FILE, "weights.st")),
        (lambda: warnings.warn("1", stacklevel=1), access(AccessKind.LOG, "warnings")),
        (lambda: print("1"), access(AccessKind.PRINT)),  # noqa: T201
        (lambda: sys.stderr.write("1"), access(AccessKind.PRINT)),
        (lambda: sys.stdout.writelines(["1"]), access(AccessKind.PRINT)),
        (lambda: prints(torch.ones(2)), access(AccessKind.PRINT)),
        (lambda: ThreadPoolExecutor(1).submit(lambda: print("1")).result(), access(AccessKind.PRINT)),  # noqa: T201
        (lambda: time.sleep(0), access(AccessKind.SLEEP)),
        (lambda: LOG.warning("1"), access(AccessKind.LOG, "scores")),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), access(AccessKind.PROGRAM, sys.executable)),
        (lambda: subprocess.run(["true"], check=True), access(AccessKind.PROGRAM, "true")),  # the library reads PATH
        (connects, access(AccessKind.NETWORK, "('127.0.0.1', 9)")),
    ],
)
def test_what_the_users_code_does_is_noted(
    act: Callable[[], Any], expected: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights").mkdir()
    Path("bias.txt").write_text("1 2")
    np.save("bias.npy", np.ones(2))
    torch.save(torch.ones(2), "weights.pt")
    save_file({"a": torch.ones(2)}, "weights.st")
    with open("descriptor.log", "wb+") as file:
        file.truncate(8)
        os.dup2(file.fileno(), OPEN["log"])
    monkeypatch.setenv("SCALE", "2")
    act()  # what is imported and looked up once is no access of each call
    with OutsideWatch() as watch:
        act()
    assert watch.accesses == (expected,)
    before = watch.accesses
    act()
    assert watch.accesses == before, "the watch ends with its block"


def test_a_file_that_was_opened_before_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open("calls.jsonl", "w") as file, OutsideWatch() as watch:
        json.dump({"calls": 1}, file)
    assert watch.accesses == (access(AccessKind.WRITTEN_FILE, "calls.jsonl"),)


def test_what_the_model_itself_does_is_noted_wherever_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_scorer.py").write_text(
        "import os, torch\n"
        "class Scorer(torch.nn.Module):\n"
        "    def forward(self, x): return x * len(os.environ['HOME'])\n"
    )
    monkeypatch.syspath_prepend(folder)
    scorer = importlib.import_module("installed_scorer").Scorer()
    found = []
    for prepare in (lambda: None, lambda: count_as_users(scorer), lambda: count_as_users(nn.Sequential())):
        prepare()
        with OutsideWatch() as watch:
            scorer(torch.ones(2))
        found.append(watch.accesses)
    assert found == [(), *[(access(AccessKind.VARIABLE, "HOME"),)] * 2]
    assert not is_users_file(nn.Sequential.forward.__code__.co_filename)


def test_what_libraries_and_the_system_do_for_themselves_is_not_noted() -> None:
    with OutsideWatch() as watch:
        torch.nn.functional.relu(torch.ones(2))
        LOG.debug("nobody hears it")
        Path(os.devnull).read_bytes()
        json.loads("[1]")
        print("for nobody", file=io.StringIO())
        logging.LogRecord("a", 1, "b", 1, "c", (), None)  # which reads the clock
        exec(compile("sys.stderr.write('old')", warnings.__file__, "exec"), {"sys": sys})  # torch warns
    assert watch.accesses == ()


@pytest.mark.parametrize(("stream", "noted"), [(None, ()), (SimpleNamespace(write=list), (access(AccessKind.PRINT),))])
def test_prints_go_where_they_went_also_without_a_terminal(
    stream: object, noted: tuple[Access, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a stream may be absent, or count nothing."""
    monkeypatch.setattr(sys, "stdout", stream)
    with OutsideWatch() as watch:
        print("1")  # noqa: T201
    assert watch.accesses == noted and sys.stdout is stream


def test_code_that_holds_a_slice_is_watched_as_any_other() -> None:
    """Dynamo makes such code. It has no hash before Python 3.12."""
    code = compile("a = 1\nprint(a)", "<made by dynamo>", "exec")
    with OutsideWatch() as watch:
        exec(code.replace(co_consts=(*code.co_consts, slice(None))))
    assert watch.accesses == (access(AccessKind.PRINT),)


def test_looking_at_installed_packages_is_no_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that `pip install --target` has brought are known by lists, which the watch reads itself."""
    monkeypatch.chdir(tmp_path)
    Path("some.dist-info").mkdir()
    Path("some.dist-info/RECORD").write_text("data.json,,\n")
    for name in ("data.json", "mine.json"):
        Path(name).write_text("1")
    with OutsideWatch() as watch:
        Path("data.json").read_text()
        Path("mine.json").read_text()
        os.close(os.open("/", os.O_RDONLY))
    assert watch.accesses == (access(AccessKind.READ_FILE, "mine.json"), access(AccessKind.READ_FOLDER, "/"))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen["calls"] += 1
        return x


def test_attributes_that_a_call_changes_are_noted_as_a_whole() -> None:
    module = Counting()
    with OutsideWatch([module]) as watch:
        module(torch.ones(2))
    assert watch.accesses == (access(AccessKind.ATTRIBUTE, "attribute seen"),)
    assert of_attributes(["buffer past", "attribute a.b", "variable C[0]", "variable C's length"]) == (
        access(AccessKind.ATTRIBUTE, "attribute a.b"),
        access(AccessKind.ATTRIBUTE, "variable C"),
    )


def test_what_is_dropped_is_what_was_expected_and_not_found() -> None:
    first, second = (access(AccessKind.WRITTEN_FILE, f"logs/{number}.json") for number in (1, 2))
    reads = access(AccessKind.READ_FILE, "logs/1.json")
    assert dropped([first, reads], [second]) == [reads], "each call may write a file of another name"
    assert dropped([first, reads], [reads]) == [first]


def times() -> tuple[Any, ...]:
    local = datetime.datetime.now()
    return (
        time.time(),
        imported(),
        time.time_ns() / 1e9,
        local.timestamp(),
        datetime.datetime.now(datetime.UTC).timestamp(),
        datetime.datetime.now(tz=datetime.timezone(datetime.timedelta(hours=5))).timestamp(),
        datetime.datetime.utcnow().replace(tzinfo=datetime.UTC).timestamp(),
        time.clock_gettime(time.CLOCK_REALTIME),
        time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
        np.datetime64("now").astype(float).item(),
        np.datetime64("now", "ms").astype(float).item() / 1e3,
        time.mktime(time.localtime()),
        time.mktime(time.strptime(time.ctime())),
        time.mktime(time.strptime(time.asctime())),
        time.mktime(time.strptime(time.strftime("%Y-%m-%d %H:%M:%S"), "%Y-%m-%d %H:%M:%S")),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stopped_clock_shows_one_time_to_the_users_code_only() -> None:
    own, real = time.time, time.monotonic()
    with clock_at(NOON_S):
        assert times() == (NOON_S,) * len(times())
        assert datetime.date.today() == np.datetime64("today") == datetime.date.fromtimestamp(NOON_S)
        assert np.datetime64("2020-01-01") == datetime.date(2020, 1, 1) and np.isnat(np.datetime64())
        assert (began := time.monotonic(), time.process_time_ns()) == (time.monotonic(), time.process_time_ns())
        assert time.gmtime(5).tm_year == 1970 and time.strftime("%Y", time.gmtime(5)) == "1970"
        assert logging.LogRecord("a", 1, "b", 1, "c", (), None).created > NOON_S + 1, "libraries have the real clock"
        assert time.time is own, "a compiler sees the same function"
        with clock_at(2 * NOON_S):
            assert time.time() == time_seen() == 2 * NOON_S and time.monotonic() == pytest.approx(began + NOON_S)
    with clock_at(time.time()):
        assert time.monotonic() - real < 60, "as it goes on when timed calls have the real clock"
    with clock_at(NOON_S):
        with clock_at(None):
            assert time.time() == NOON_S
        assert is_clock_stopped()
    assert not is_clock_stopped()
    assert min(times()[:2]) > NOON_S + 1


@pytest.mark.parametrize("clock_s", [None, NOON_S])
@pytest.mark.parametrize(
    ("read", "raised", "message"),
    [
        (lambda: time.localtime(1e20), OverflowError, "timestamp out of range"),
        (lambda: time.strftime(5), TypeError, "argument 1 must be str"),
        (lambda: time.ctime("q"), TypeError, "cannot be interpreted|must be"),
        (lambda: time.clock_gettime(99_999), OSError, "Invalid argument"),
        (lambda: datetime.datetime.now("zone"), TypeError, "tzinfo argument"),
        (lambda: list(map(time.gmtime, [1e20])), OverflowError, "timestamp out of range"),
        (lambda: np.datetime64("nonsense"), ValueError, "nonsense"),
        (lambda: np.datetime64("now", "lightyears"), TypeError, "lightyears"),
    ],
)
def test_a_clock_that_is_listened_to_raises_what_it_raises_itself(
    clock_s: float | None, read: Callable[[], Any], raised: type[Exception], message: str
) -> None:
    def caught() -> Exception | None:
        try:
            read()
        except Exception as error:
            return error
        return None

    with OutsideWatch() as watch, clock_at(clock_s):
        for _ in range(50):  # the interpreter calls otherwise what it calls often
            error = caught()
            assert type(error) is raised
        sys.stderr.write("1")
    assert access(AccessKind.PRINT) in watch.accesses, "the watch goes on"
    with pytest.raises(raised, match=message):
        raise error


class OwnTime(datetime.datetime):
    pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("now", [OwnTime.now, OwnTime.utcnow, lambda: OwnTime.now(datetime.UTC), OwnTime.today])
def test_a_subclass_gives_its_own_times(now: Callable[[], datetime.datetime]) -> None:
    with clock_at(NOON_S):
        assert isinstance(now(), OwnTime)
        assert now().replace(tzinfo=None).year == 2001


def test_the_clock_goes_on_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), clock_at(NOON_S):
        raise ZeroDivisionError
    assert time.time() > NOON_S + 1
