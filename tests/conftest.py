"""What the tests of more than one folder share."""

import functools
import gc
import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main
from hypothesis import settings

from bakeoff import cli
from bakeoff.measuring.controller import groundwork, launcher
from bakeoff.measuring.controller.build_cache import CEILINGS
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.measuring.controller.run_context import RunContext
from bakeoff.planning.request import StartMethod
from bakeoff.records.schema import Ceilings, Cell
from bakeoff.shipping import export
from bakeoff.why import controller as why
from tests.lent_servers import lent_servers

CHECKOUT = ("tests.", "benchmarks.", "plugins.", "bakeoff_hotpath", "scripted_backends")
"""How the names of the modules that tests import from this repository begin, but for Bakeoff's."""

settings.register_profile("brief", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Try out more examples where slow tests are wanted, too."""
    settings.load_profile("brief" if "not slow" in config.option.markexpr else "thorough")


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """`cli.main` takes SIGTERM for itself; afterwards it is as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def restored_switches() -> Iterator[None]:
    """A test that applies a precision in its own process leaves torch's switches as they were."""
    import torch

    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Return a function that makes `import NAME` give a library, or fail where the library is None."""

    def put(name: str, library: object) -> None:
        monkeypatch.setitem(sys.modules, name, library)

    return put


CommandLine = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], restored_signals: None
) -> CommandLine:
    """`bakeoff` in this process, in an empty folder: exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        status = cli.main([*map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return status, said.out, said.err

    return call


def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that the workers of pytest-xdist share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep builds in an empty folder meanwhile, and not where the user's are.

    It holds only what the machine can do, once a command in a process of its own has measured that.
    """
    folder = tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex}"
    measured = folder_of_all(tmp_path_factory) / "ceilings"
    if measured.exists():
        shutil.copytree(measured, folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BAKEOFF_CACHE_DIR", str(folder))
        yield
    for file in folder.glob(f"{CEILINGS}*"):
        measured.mkdir(exist_ok=True)
        shutil.copy2(file, measured)


# each test begins with no builds of earlier runs, and so do the fixtures that several tests share
own_cache = pytest.fixture(autouse=True)(empty_cache)
own_cache_of_module = pytest.fixture(scope="module", autouse=True)(empty_cache)
own_cache_of_session = pytest.fixture(scope="session", autouse=True)(empty_cache)


@pytest.fixture(scope="session", autouse=True)
def unfrozen_at_the_end() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def frozen_libraries(unfrozen_at_the_end: None) -> None:
    """Let `gc.collect`, which much of the product calls, look only at what the tests of this module make.

    To look at all libraries and tests that were imported takes half a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_test_is_users() -> Iterator[None]:
    """Leave out the modules of the checkout, which would count as the user's: to describe them takes a second."""
    from bakeoff.truth import user_code  # torch is only for the processes that run tests

    imported = user_code.user_modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            user_code, "user_modules", lambda: [each for each in imported() if not each.__name__.startswith(CHECKOUT)]
        )
        yield


@pytest.fixture(autouse=True)
def restored_process() -> Iterator[None]:
    """Undo what loading a user's model and beginning a worker leave in the tests' own process.

    The model's folder is on the search path, and its file has a name among the modules: `sparse.py` would be taken for
    the library of that name. PyTorch's fast path may be off.
    """
    before = list(sys.path)
    yield
    sys.path[:] = before
    if torch := sys.modules.get("torch"):
        torch.backends.mha.set_fastpath_enabled(True)
    if importing := sys.modules.get("bakeoff.models.importing"):
        for name in importing.names.values():
            sys.modules.pop(name, None)
        importing.names.clear()


@pytest.fixture(scope="session", autouse=True)
def known_ceilings() -> Iterator[Callable[..., None]]:
    """A run measures for a second what the machine can do, and the tests make many: these take it for known."""
    measured: Callable[..., None] = groundwork.measure_ceilings

    def known(cell: Cell, run: RunContext, *_: object) -> None:
        if not run.store.ceilings(cell.device, cell.precision):
            run.store.save_ceilings(cell.device, cell.precision, Ceilings(flops_per_s=1e11, bytes_per_s=1e10))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groundwork, "measure_ceilings", known)
        yield measured


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[Callable[..., Launcher]]:
    """Runs in the tests' own process borrow their fork servers, so that few of them import torch."""
    with lent_servers() as start_new:
        yield start_new


@pytest.fixture
def heard_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logger `scores` is heard, although a library that another test has imported may have silenced loggers."""
    monkeypatch.setattr(logging.getLogger("scores"), "disabled", False)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    logging.getLogger("scores").setLevel(logging.WARNING)
    logging.root.manager._clear_cache()  # type: ignore[attr-defined,unused-ignore]


@pytest.fixture
def own_servers(shared_servers: Callable[..., Launcher], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start fork servers of their own, and end them."""
    monkeypatch.setattr(launcher, "create_launcher", shared_servers)


@pytest.fixture
def forked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export, an explanation or a blame forks a server that has imported torch, and starts no fresh interpreter."""

    def forked(_: StartMethod, **fields: Mapping[str, str]) -> launcher.Launchers:
        return launcher.Launchers("auto", **fields)

    for room in (export, why):
        monkeypatch.setattr(room, "Launchers", forked)


@pytest.fixture
def measured_ceilings(known_ceilings: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine can do is measured after all."""
    monkeypatch.setenv("BAKEOFF_CACHE_DIR", f"{os.environ['BAKEOFF_CACHE_DIR']}-of-measured")
    monkeypatch.setattr(groundwork, "measure_ceilings", known_ceilings)


@pytest.fixture(scope="session", autouse=True)
def quick_processes() -> Iterator[None]:
    """Build the command line once, and leave it to the system when files reach the disk: no machine loses its power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def programs_beside_tests() -> Iterator[None]:
    """Let no run warn of what the machine does beside the tests, such as other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bakeoff.measuring.controller.others.programs_of_others", dict)
        yield


@pytest.fixture(scope="session", autouse=True)
def torchvision_operators() -> object | None:
    """Let torchvision import where it is installed, and with it transformers, whichever test comes first.

    PyPI's torchvision is compiled against torch with CUDA. Beside the CPU's torch two operators are missing, and no
    model here calls them. They live as long as the library that is returned.
    """
    if find_spec("torchvision") is None:
        return None
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.fixture(scope="session")
def vision() -> None:
    """Skip the test where timm or torchvision is missing."""
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("timm and torchvision are not installed")
