"""The plug-in for pytest, in projects of its own. What it measures is planted, except in a slow test."""

import re
from pathlib import Path

import pytest
import scipy.special
import scipy.stats

import bakeoff
from bakeoff.judging import judgement
from bakeoff.reports import comparison
from tests.reports import samples
from tests.support.checkout import ROOT

pytest_plugins = ["pytester"]

IMPORTED = (scipy.special, scipy.stats, bakeoff.compare, bakeoff.Result, judgement, comparison, samples)
"""An inner session forgets what it imported, and NumPy and SciPy cannot be imported twice."""

# where the plug-in is installed, its entry point would load it a second time
LOADED = ("-p", "no:bakeoff", "-p", "bakeoff.api.pytest_plugin", "-p", "no:cacheprovider")

PLANTED = """
import pytest
import bakeoff as library
from bakeoff.records.report_file import write_json
from bakeoff.records.schema import Status
from tests.reports.samples import cell, failed, ok, report, steady


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    def compare(model, inputs, *, out, progress, ms):
        assert (model, inputs, progress) == ("net", None, False)
        cells = {"eager": 4.0, "onnx": ms}
        made = report(
            [
                ok(cell(label), steady([value] * 5, rounds=6))
                if ms
                else failed(cell(label), Status.ERROR, "it cannot be called")
                for label, value in cells.items()
            ]
        )
        write_json(made, out)
        return library.Result(made, out)

    monkeypatch.setattr("bakeoff.api.compare.compare", compare)
"""

TEST = """
def test_speed(bakeoff):
    result = bakeoff.compare("net", ms={ms})
    assert result.winner == "onnx"
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others take long to load
    pytester.makeconftest(PLANTED)
    pytester.syspathinsert(ROOT)
    return pytester


def run(project: pytest.Pytester, ms: float, *options: str) -> pytest.RunResult:
    project.makepyfile(test_net=TEST.format(ms=ms))
    return project.runpytest_inprocess(*LOADED, *options)


def test_a_regression_fails_the_test_with_the_sentence_of_compare(project: pytest.Pytester) -> None:
    run(project, 1.0, "--bakeoff-save", "base").assert_outcomes(passed=1)
    same = run(project, 1.0, "--bakeoff-base", "base")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["test_net.py::test_speed: No regression over 5 % was found: *2 same*"])
    slower = run(project, 1.3, "--bakeoff-base", "base")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(["1 regression: *onnx*+30 %*"])
    assert "Traceback" not in slower.stdout.str()
    run(project, 1.3, "--bakeoff-base", "base", "--bakeoff-fail-above", "50%").assert_outcomes(passed=1)


def test_a_test_that_measured_nothing_fails(project: pytest.Pytester) -> None:
    failed = run(project, 0.0)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["nothing was measured: eager: it cannot be called; onnx: it cannot be called"])


def test_a_missing_base_is_said(project: pytest.Pytester) -> None:
    found = run(project, 1.0, "--bakeoff-base", "nowhere")
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["*test_speed: nothing was compared: there is no run in nowhere*--bakeoff-save=nowhere"])


def test_without_options_it_only_measures(project: pytest.Pytester) -> None:
    found = run(project, 1.0)
    found.assert_outcomes(passed=1)
    assert "nothing was compared" not in found.stdout.str()


def test_a_base_is_not_replaced_by_what_it_judges(project: pytest.Pytester) -> None:
    found = run(project, 1.0, "--bakeoff-base", "base", "--bakeoff-save", "./base")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["*are both base: slowness that came in small steps*"])


def test_runs_of_a_test_are_kept_apart(project: pytest.Pytester) -> None:
    project.makepyfile(test_net=TEST.format(ms=1.0) + '    bakeoff.compare("net", ms=2.0)\n')
    project.runpytest_inprocess(*LOADED, "--bakeoff-save", "base").assert_outcomes(passed=1)
    kept = sorted(folder.name for folder in (project.path / "base").iterdir())
    assert len(kept) == 2 and kept[1] == f"{kept[0]}-2" and kept[0].startswith("test_net.py-test_speed-")


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("backends", "bakeoff.records.errors.UsageError: unknown backend 'onnnx': did you mean 'onnx'? (bakeoff list)"),
        ("bakcends", "TypeError: compare() got an unexpected keyword argument 'bakcends': did you mean 'backends'?"),
    ],
)
def test_a_mistake_is_one_message_below_the_line_of_the_test(
    project: pytest.Pytester, keyword: str, message: str
) -> None:
    project.makeconftest("")  # nothing is planted
    project.makepyfile(test_net=f'def test_speed(bakeoff):\n    bakeoff.compare("mlp", {keyword}="onnnx")\n')
    found = project.runpytest_inprocess(*LOADED)
    found.assert_outcomes(failed=1)
    lines = found.stdout.str().splitlines()
    assert [line for line in lines if line.startswith("E  ")] == [f"E       {message}"]
    frames = [line for line in lines if re.match(r"\S+\.py:\d+: ", line)]
    error = message.partition(":")[0].rpartition(".")[2]
    assert frames == [f"test_net.py:2: {error}"], "no frame of ours is shown"


@pytest.mark.slow
def test_a_live_model_is_measured_and_held_against_its_base(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_net="""
        import torch


        def test_speed(bakeoff):
            options = {"backends": "eager", "devices": "cpu", "min_time": 0.05, "processes": 1}
            result = bakeoff.compare(torch.nn.Linear(4, 4), torch.ones(2, 4), **options)
            assert result.rows[0]["status"] == "ok"
        """
    )
    project = Path(pytester.path)
    pytester.runpytest_subprocess(*LOADED, "--bakeoff-save", str(project / "base")).assert_outcomes(passed=1)
    found = pytester.runpytest_subprocess(*LOADED, "--bakeoff-base", str(project / "base"))
    found.stdout.fnmatch_lines(["*test_speed: *"])
