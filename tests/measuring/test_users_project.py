"""A project whose folders have our rooms' names is measured in every kind of process, as `python detect.py` would run.

It imports siblings at the top of its file, in its factory and in its calls, and its factory reads a file that lies in
the folder that the user stands in, and that an environment variable of the user's own names.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff import models
from bakeoff.commands import environments
from bakeoff.measuring.controller.launcher import CAN_FORK
from bakeoff.measuring.cores import usable_cores
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.schema import Record, Report, Status
from bakeoff.scaling.cluster import ControllerDied, measure_on_node
from tests.support.checkout import ROOT
from tests.support.measuring import by_label, measure
from tests.support.wheels import wheel

OWN_ROOMS = (
    "backends",
    "commands",
    "doctor",
    "judging",
    "measuring",
    "planning",
    "records",
    "scaling",
    "shipping",
    "truth",
)

FACTORY = """
from typing import NamedTuple

class Widths(NamedTuple):
    x: torch.Tensor
    scale: torch.Tensor

class Lazy(Detector):
    def forward(self, widths):
        from records import offset
        return super().forward(widths.x) * widths.scale + offset()

def lazy(batch: int = 1):
    import os
    from judging import depth
    with open(os.environ["MY_WIDTHS"], encoding="utf-8") as lines:
        width = int(lines.read())
    return Lazy().eval(), (Widths(torch.randn(batch, width), torch.ones(depth())),)
"""

ROOMS = {
    "records": "def offset():\n    return 0.25\n",
    "judging": "def depth():\n    return 1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand above the project, which has a package for each of our rooms, and return its folder."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "tests/cases/project", folder)
    for room in OWN_ROOMS:
        (folder / room).mkdir()
        (folder / room / "__init__.py").write_text(ROOMS.get(room, ""))
    with (folder / "detect.py").open("a") as file:
        file.write(FACTORY)
    (tmp_path / "widths.txt").write_text("64")
    monkeypatch.setenv("MY_WIDTHS", "widths.txt")
    monkeypatch.chdir(tmp_path)
    return folder


def measured(folder: Path, *backends: str, **fields: object) -> Report:
    report = measure(folder, *backends, models=["project/detect.py:lazy"], **fields)
    ended = {label: (record.status, record.reason) for label, record in by_label(report).items()}
    assert ended == dict.fromkeys(backends, (Status.OK, ""))
    return report


@pytest.mark.parametrize("start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_both_kinds_and_one_that_loads_what_another_one_packaged(start_method: str, project: Path) -> None:
    if start_method == "forkserver" and not CAN_FORK:
        pytest.skip("only Linux has fork servers")
    measured(project / "run", "torchscript", "null-packaged", start_method=start_method)


def test_the_process_that_compiles_hot_paths(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bakeoff_hotpath import handover
    from bakeoff_hotpath.compiling import child_environment

    for name in ("detect", "models", "models.common", "reports", "utils", *OWN_ROOMS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = models.find("project/detect.py:lazy").load({"batch": 1}, seed=0)
    handover.write(project / "task", loaded.module, loaded.inputs[0].args, {}, is_training=False)
    code = (
        "from pathlib import Path; from bakeoff_hotpath import handover; task = handover.read(Path('task'));"
        "print(type(task.module).__module__, tuple(task.module(*task.args).shape))"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=project, env=child_environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout == "bakeoff_user_detect (1, 64)\n", done.stderr


@pytest.mark.slow
def test_an_environment_beside_ours(project: Path, own_servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "caches"))
    environments.add("beside", [str(wheel(project, "some_library", "1.0"))])
    measured(project / "run", "eager", "eager@beside", env=(f"beside={environments.python_of('beside')}",))


@pytest.mark.slow
def test_a_controller_of_a_place(project: Path) -> None:
    measured(project / "run", "eager", devices=(f"cpu:{usable_cores()[0]}",))


class Remote:
    """Stands for the mailbox of a driver: calling it remotely keeps the message."""

    def __init__(self, calls: list[object]) -> None:
        self._calls = calls

    def remote(self, *arguments: object) -> None:
        self._calls.append(arguments[2])


@pytest.mark.slow
def test_a_node_of_a_cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of Ray runs in another folder than the driver, on a node that sees the driver's folder or does not."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda refs: None, get_gpu_ids=list))
    asked = {"models": ["project/detect.py:lazy"], "backends": ["eager"], "devices": ["cpu"]}
    request = Request.model_validate({**asked, "processes": 1, "min_time_s": 0.05})
    (contest,) = plan(request)
    told: list[Any] = []
    home = SimpleNamespace(tell=Remote(told))
    started_in = Path.cwd()
    monkeypatch.chdir(project)
    measure_on_node(request, contest, 0, home, started_in)
    ((record,),) = (each.arguments for each in told if getattr(each, "method", "") == "ended")
    assert isinstance(record, Record)
    assert record.status is Status.OK, record.reason
    elsewhere = project / "only-on-the-driver"
    with pytest.raises(
        ControllerDied, match=rf"no file project/detect\.py.*has no folder {elsewhere}, so files of your"
    ):
        measure_on_node(request, contest, 0, home, elsewhere)


BRIEFLY = ("--backends", "eager", "--devices", "cpu", "--processes", "1", "--min-time", "0.05", "--out", "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "model"),
    [
        (["-m", "bakeoff"], "detect:factory"),
        ([str(ROOT / "runner.py")], "reports.net:factory"),
    ],
    ids=["module", "module in a package"],
)
def test_a_controller_that_finds_packages_of_the_same_names(program: list[str], model: str, project: Path) -> None:
    """The checkout's own `models`, `backends` and `reports` are on the path of `runner.py`."""
    code = "from detect import factory as made\n\ndef factory():\n    return made()\n"
    (project / "reports/net.py").write_text(code)
    environment = {**os.environ, **({"PYTHONPATH": str(ROOT)} if "-m" in program else {})}
    command = [sys.executable, *program, "--model", model, *BRIEFLY]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = report_file.read(project / "run").records
    assert record.status is Status.OK, record.reason
