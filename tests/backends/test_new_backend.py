"""A backend of two modes is one file and one entry point. Everything else works for it without another edit."""

import csv
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import backends
from bakeoff.commands import listing
from bakeoff.doctor import examine
from bakeoff.doctor.diagnosis import Outcome
from bakeoff.judging.judgement import judge
from bakeoff.measuring.controller import launcher
from bakeoff.measuring.controller.launcher import Launcher
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import likely_to_run, usual_build_s
from bakeoff.records import report_file
from bakeoff.records.schema import Report, Status
from bakeoff.reports import csv_files
from bakeoff.reports.charts import Palette
from bakeoff.reports.run_report import to_page
from bakeoff.reports.terminal import print_blocks
from bakeoff.shipping import export
from bakeoff.why import failing_script
from tests.support.distributions import distribute
from tests.support.measuring import by_label, measure

FILE = '''
"""A backend of somebody else: torch.jit.trace, frozen or not."""

import torch

from bakeoff import (
    ANYWHERE,
    AVAILABLE,
    Backend,
    Compiled,
    Finding,
    FlatModule,
    Mode,
    Runtime,
    ScriptPart,
    Weight,
)

def always_there(facts):
    yield Finding(weight=Weight.NOTE, text="tracing is old", remedy="none is needed", backends=["tracing"])


class Tracing(Backend):
    name = "tracing"
    description = "torch.jit.trace by somebody else"
    modes = (Mode(options={"freezes": True}, worth_trying=ANYWHERE), Mode("thawed", {"freezes": False}))
    devices = ("cpu",)
    usual_build_s = 3.5
    colour = "#0000ff"
    caveat = "it is only a test"
    traps = (always_there,)

    def available(self, device):
        return AVAILABLE

    def script(self, cell, settings):
        return ScriptPart("call = partial(torch.jit.trace(model, inputs, check_trace=False), *inputs)")

    def runtime(self, device):
        return Runtime(("traced.pt",), ("torch", "numpy"), ("torch",), "torch_programs:load_torchscript")

    def build(self, module, inputs, context):
        with context.phase("export"):
            traced = torch.jit.trace(FlatModule(module, inputs), inputs.tensors(), check_trace=False).eval()
        with context.phase("compile"):
            if self.mode(context.cell.mode).options["freezes"]:
                traced = torch.jit.freeze(traced)
            torch.jit.save(traced, context.workspace / "traced.pt")
            for _ in range(3):
                traced(*inputs.tensors())
        return Traced(traced)


class Traced(Compiled):
    def __init__(self, function):
        self._function = function

    def bind(self, inputs):
        self._tensors = inputs.tensors()

    def run(self):
        self._outputs = self._function(*self._tensors)

    def outputs(self):
        return tuple(tensor.clone() for tensor in self._outputs)
'''
LABELS = ("tracing", "tracing/thawed")


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, shared_servers: Callable[..., Launcher]) -> Iterator[None]:
    """Install the file as a distribution, for this process and for those that it starts.

    Fork servers that other tests have left do not know it.
    """
    site = tmp_path_factory.mktemp("site")
    (site / "somebodys_tracing.py").write_text(FILE)
    distribute("tracing", "somebodys_tracing:Tracing", site, "somebodys-tracing")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", str(site), prepend=":")
        patch.setattr(launcher, "create_launcher", shared_servers)
        yield


@pytest.fixture(scope="module")
def run(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured") / "run"
    report = measure(folder, "eager", "tracing/all", set={"features": ("64",), "hidden": ("64",)})
    report_file.write_json(report, folder)
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> Report:
    return report_file.read(run)


def ran(*command: object, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_planned_and_its_time_is_estimated() -> None:
    request = Request.model_validate({"models": ("mlp",), "backends": ("best",), "devices": ("cpu", "cuda")})
    on_cpu, on_cuda = ([planned.cell for planned in contest.cells] for contest in plan(request))
    assert "tracing" in likely_to_run(on_cpu) and "tracing" not in likely_to_run(on_cuda)
    assert "tracing/thawed" not in [cell.label for cell in on_cpu], "nobody said that it is worth trying"
    assert [usual_build_s(label) for label in LABELS] == [3.5, 3.5]


@pytest.mark.slow
def test_it_is_measured_and_drawn_in_its_colour(report: Report) -> None:
    records = by_label(report)
    assert {label: records[label].status for label in LABELS} == dict.fromkeys(LABELS, Status.OK)
    assert "it is only a test" in str(records["tracing"].doubts)
    palette = Palette(report.records)
    assert palette("tracing").light == "#0000ff" and palette("tracing").marker != palette("tracing/thawed").marker
    assert "#0000ff" in to_page(judge(report))


@pytest.mark.slow
def test_it_is_exported_and_its_failures_have_a_script(run: Path, report: Report, tmp_path: Path) -> None:
    export.export(run, "tracing", tmp_path / "export")
    assert "output 0 is right" in ran("load.py", cwd=tmp_path / "export")
    source = "model, inputs = torch.nn.Linear(2, 2), (torch.ones(1, 2),)"
    script = failing_script.script_of_part(report, by_label(report)["tracing"], source, "it fails")
    assert "it builds and runs" in ran("-c", script, cwd=tmp_path)


@pytest.mark.slow
def test_the_tables_and_the_csv_name_it(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_files.to_csv(judge(report)))))
    modes = {row["mode"] for row in rows if row["backend"] == "tracing"}
    assert modes == {"default", "thawed"}, "the order is by rank, and this run was measured"
    shown = io.StringIO()
    print_blocks(listing.blocks_of(listing.answer({})), Console(file=shown, width=200))
    for said in ("torch.jit.trace by somebody else", "default, thawed", "it is only a test"):
        assert said in shown.getvalue()


@pytest.mark.slow
def test_the_doctor_tries_it_and_looks_for_its_traps() -> None:
    diagnosis = examine.examine(["tracing"], ["cpu"], lambda text: None)
    (trial,) = diagnosis.trials
    assert (trial.backend, trial.outcome) == ("tracing", Outcome.PASS)
    assert "always-there" in [finding.trap for finding in diagnosis.findings]


def test_it_is_listed_last_and_the_table_does_not_know_it() -> None:
    assert backends.names()[-1] == "tracing" and "tracing" not in backends.TABLE
