"""What it takes to start an exported folder is measured in fresh processes, stage by stage."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bakeoff import cli
from bakeoff.judging.constraints import Requirements
from bakeoff.judging.judgement import judge
from bakeoff.judging.start_times import judge_starts
from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Record
from bakeoff.records.start_samples import Start, StartedCell, Starts
from bakeoff.records.store import Store
from bakeoff.reports import markdown, starts_file
from bakeoff.reports import start_report as shown
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import to_page, to_short_markdown
from bakeoff.shipping import script_environment, start_runs
from bakeoff.shipping.start_runs import Contender
from tests.reports import samples
from tests.reports.samples import ok, over_processes, report
from tests.shipping.test_export import record_of
from tests.support.golden import same_as_golden
from tests.support.printed import printed

RUNTIME = """
def read(path):
    return None

def set_process_up(path, description):
    {imports}

class Measured:
    def __init__(self, path, description):
        pass

    def answer(self, number):
        {call}

    def check(self):
        return {check}
"""


def contender(folder: Path, imports: str = "pass", call: str = "pass", check: str = "True") -> Contender:
    """Return a folder whose runtime does this alone."""
    (folder / "runtime").mkdir(parents=True)
    (folder / "runtime/folder.py").write_text(RUNTIME.format(imports=imports, call=call, check=check))
    return Contender(record_of("onnx"), "onnx", "load.py", start_runs._staged(sys.executable, folder), None, {})


def test_an_import_that_takes_a_second_shows_as_a_second(tmp_path: Path) -> None:
    plain, planted = contender(tmp_path / "plain"), contender(tmp_path / "planted", "import planted_module")
    (tmp_path / "planted" / "planted_module.py").write_text("import time\ntime.sleep(1.0)\n")
    start_runs.measure([plain, planted], 2, False, print)
    assert not plain.reason and not planted.reason
    cells = [
        StartedCell(cell_id=name, label=name, starts=each.starts)
        for name, each in {"plain": plain, "planted": planted}.items()
    ]
    judged = {cell.label: cell for cell in judge_starts(cells).cells}
    assert judged["planted"].stages["imports"] - judged["plain"].stages["imports"] == pytest.approx(1.0, abs=0.1)
    for stage in ("load", "first answer"):
        assert judged["planted"].stages[stage] < 0.1
    assert (planted.starts[0].peak_bytes or 0) >= 2**20
    assert (planted.starts[0].steady_bytes or 0) >= 2**20


def test_a_folder_with_what_was_compiled_is_also_started_without(tmp_path: Path) -> None:
    plain = contender(tmp_path / "plain")
    assert start_runs._without_compiled(plain) is None
    (tmp_path / "plain" / "compiled").mkdir()
    (tmp_path / "plain" / "compiled" / "one.so").write_bytes(bytes(10))
    bare = start_runs._without_compiled(replace(plain, artifact_bytes=15))
    assert bare and (bare.label, bare.artifact_bytes) == ("onnx, compiled at its start", 5)
    folder = Path(bare.command[-1])
    assert (folder / "runtime" / "folder.py").exists() and not (folder / "compiled").exists()
    start_runs.measure([plain, bare], 1, False, print)
    assert len(plain.starts) == len(bare.starts) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"imports": "import a_module_that_is_not_there"}, "No module named 'a_module_that_is_not_there'"),
        ({"call": "1 / 0"}, "ZeroDivisionError"),
        ({"check": 'print("output 0 is wrong", file=__import__("sys").stderr)'}, "output 0 is wrong"),
    ],
)
def test_a_start_without_a_right_answer_is_told(tmp_path: Path, script: dict[str, str], reason: str) -> None:
    broken = contender(tmp_path / "broken", **script)
    start_runs.measure([broken], 2, False, print)
    assert reason in broken.reason and broken.starts == []


def start_of(imports_s: float, **fields: Any) -> Start:
    others = {"interpreter_s": 0.1, "load_s": 0.1, "first_answer_s": 0.1, "later_answers_s": 0.1}
    memory = {"peak_bytes": 10**8, "steady_bytes": 10**8, "device_bytes": None}
    return Start(**{**others, **memory, **fields}, imports_s=imports_s)


def cell(label: str, *imports_s: float, environment_bytes: int = 10**8) -> StartedCell:
    installed = {"torch": environment_bytes}
    made = [start_of(each) for each in imports_s]
    return StartedCell(cell_id=label, label=label, distributions=installed, starts=made)


def starts_of(*cells: StartedCell) -> Starts:
    return Starts(
        run_id="run",
        title="mlp on cpu",
        created_at="2026-11-26T13:00:00+00:00",
        machine="a CPU (2 cores)",
        python="3.12.1",
        is_page_cache_dropped=False,
        cells=list(cells),
    )


FAST = cell("onnx", *(0.2 + 0.01 * turn for turn in range(7)))
SLOW = cell("eager", *(2.0 + 0.01 * turn for turn in range(7)), environment_bytes=7 * 10**8)


def test_starts_are_told_as_before_and_what_is_required_is_held() -> None:
    judged = judge_starts([SLOW, FAST])
    assert [each.label for each in judged.cells] == ["onnx", "eager"]
    assert judged.cells[0].interval is not None and judged.cells[0].interval.low == pytest.approx(0.5)
    required = judge_starts([FAST, SLOW], "start_s<1, environment_bytes<300MB")
    assert required.answer.candidates == ["onnx"]
    nothing = judge_starts([FAST, SLOW], "imports_s<0.1")
    assert shown.exit_status(nothing) == 1
    blocks = starts_file.blocks_of(required, starts_of(FAST, SLOW))
    lines = [*map(shown.headline, (judged, nothing)), *shown.contest_answer(required).cells[1].unmet]
    same_as_golden("starts.md", "\n".join([*lines, markdown.render(blocks), printed(blocks, 160)]))


@pytest.mark.parametrize("text", ["p99_ms<5", "start_s<1MB", "start_s"])
def test_what_cannot_be_required_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        judge_starts([FAST], text)


def test_an_environment_has_what_its_distributions_need() -> None:
    jinja = script_environment.sizes_of(["# a comment", "jinja2==3"])
    assert jinja.keys() == {"jinja2", "markupsafe"}  # not babel, which an extra brings
    own = metadata.distribution("markupsafe").files or []
    assert jinja["markupsafe"] == sum(Path(str(each.locate())).stat().st_size for each in own)
    with pytest.raises(metadata.PackageNotFoundError):
        script_environment.sizes_of(["no-such-distribution-here"])


def test_an_environment_of_its_own_has_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    python = script_environment.make_environment(script_environment.sizes_of(["jinja2"]), tmp_path / "environment")
    for module, is_there in {"jinja2": True, "markupsafe": True, "yaml": False, "pytest": False}.items():
        assert (subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0) is is_there


def started(label: str, *imports_s: float) -> Record:
    """A record of a cell with one start for each of these times, or with none."""
    latency_ms = {"eager": 4.0, "onnx": 2.0, "openvino": 1.0}[label]
    made = ok(samples.cell(label), over_processes(latency_ms))
    return made.model_copy(update={"starts": [cell(label, *imports_s)]} if imports_s else {})


def test_a_requirement_of_starts_decides_who_may_win_a_run() -> None:
    records = [started("eager", *[5.0] * 7), started("onnx", *[0.2] * 7), started("openvino", *[1.5] * 7)]
    assert judge(report(records)).contests[0].fastest.winner == "openvino"
    required = judge(report(records, request={"require": "start_s<1", "starts": True}))
    (contest,) = required.contests
    assert contest.fastest.winner == "onnx"
    assert {each.label: [doubt.unmet for doubt in each.unmet] for each in contest.unranked} == {
        "openvino": ["start_s is 1.8, not < 1"],
        "eager": ["start_s is 5.3, not < 1"],
    }
    answer = answer_of(required, Path("run")).contests[0].starts
    assert answer and answer.headline.startswith("onnx, first answer after 0.50 s")
    markdown = to_short_markdown(required, Path("run"))
    assert "onnx, first answer after 0.50 s" in markdown and "From the start of a process" in markdown
    assert "From the start of a process" in to_page(required)


def test_a_cell_that_was_not_started_may_not_win_where_starts_are_required() -> None:
    records = [started("eager", *[0.2] * 7), started("onnx")]
    (contest,) = judge(report(records, request={"require": "start_s<1"})).contests
    assert [doubt.unmet for each in contest.unranked for doubt in each.unmet] == [
        "start_s cannot be judged: it was not started"
    ]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"require": "start_s<1"}, "add --starts"),
        ({"starts": True, "no_artifacts": True}, "leave out --no-artifacts"),
        ({"starts": True, "task": "train_step"}, "only inference is exported"),
        ({"starts": True, "cluster": "auto"}, "--starts is of one machine"),
    ],
)
def test_starts_that_cannot_be_measured_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Request(**asked)


def test_a_run_starts_its_contenders_and_is_complete_only_then(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "report.json").unlink()
    plan = json.loads((folder / "plan.json").read_text())
    plan["request"]["starts"] = True
    (folder / "plan.json").write_text(json.dumps(plan))
    store = Store.open(folder)
    assert not report_of(store).complete

    def start(contender: Contender) -> None:
        contender.starts.append(start_of(0.2))

    monkeypatch.setattr(start_runs, "start_once", start)
    start_runs.add_starts(store, Requirements(), lambda _: None, time.monotonic() - 1)
    told = report_of(store)
    reasons = [cell.reason for record in told.records for cell in record.starts]
    assert reasons == ["the time budget was over after 0 of 7 starts"] * 3 and told.complete
    for record in store.records():
        store.save(record.model_copy(update={"starts": []}))
    start_runs.add_starts(store, Requirements.parse("environment_bytes<10GB"), lambda _: None, math.inf)
    (contest,) = judge(report_of(store)).contests
    assert contest.starts and {each.label for each in contest.starts.cells} == {
        "eager",
        "onnx",
        "openvino",
        "torchscript",
    }
    assert all(each.cell.environment_bytes for each in contest.starts.cells)


def test_the_page_cache_is_dropped_only_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_runs, "DROP_CACHES", tmp_path / "drop_caches")
    monkeypatch.setattr(start_runs.os, "sync", lambda: None)
    start_runs.drop_page_cache()
    assert (tmp_path / "drop_caches").read_text() == "3"
    monkeypatch.setattr(start_runs, "DROP_CACHES", tmp_path / "nowhere" / "drop_caches")
    with pytest.raises(UsageError, match="--cold: the page cache cannot be dropped"):
        start_runs.drop_page_cache()


@pytest.mark.parametrize("in_cpp", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_folder_of_a_cell_is_started(
    in_cpp: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not in_cpp:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    assert cli.main(["start", str(run), "onnx", "--starts", "1"]) == 2
    assert "at least 7" in capsys.readouterr().err
    monkeypatch.setattr(start_runs, "LEAST_STARTS", 1)
    arguments = ["--starts", "1", "--out", str(tmp_path / "out"), "--json", "--require", "environment_bytes<1GB"]
    assert cli.main(["start", str(run), "onnx", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = next(each for each in answer["cells"] if each["label"] == "onnx")
    assert found["script"] == "load.py"
    assert found["stages_s"]["imports"] > 0.01 and found["start_s"] > sum(found["stages_s"].values()) * 0.99
    assert found["distributions"].keys() >= {"onnxruntime", "numpy"}
    assert 0 < found["artifact_bytes"] < 10**6 < found["environment_bytes"]
    assert answer["exit_status"] == 0
    program = next((each for each in answer["cells"] if each["label"] == "onnx in C++"), None)
    if shutil.which("cmake") is None:
        assert "CMake" in answer["not_started"]["onnx in C++"]
    else:
        assert program and program["script"] == "main.cpp" and program["stages_s"]["imports"] == 0
        assert any(name.startswith("libonnxruntime") for name in program["distributions"])
        assert program["start_s"] < found["start_s"] and program["artifact_bytes"] == found["artifact_bytes"]
    assert {"starts.md", "starts.json", "figures"} == {each.name for each in (tmp_path / "out").iterdir()}
