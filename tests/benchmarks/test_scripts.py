"""The scripts of benchmarks/ start."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")

START_EACH = """
import contextlib, io, json, os, runpy, sys, traceback
usual = sys.path[1:]
for script in sys.argv[1:]:
    sys.path[:], sys.argv = [os.path.dirname(script), *usual], [script, "--help"]
    for name in [each for each in sys.modules if each.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    said, status = io.StringIO(), None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            traceback.print_exc()
    print(json.dumps({"script": script, "status": status, "said": said.getvalue()}))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, str]]:
    """How each script ends with `--help`, and what it says. One interpreter runs them, since all import Bakeoff.

    Each script has the search path of a script that is started alone, and finds nothing imported from its folder.
    """
    command = [sys.executable, "-c", START_EACH, *map(str, SCRIPTS)]
    folder = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(each["script"]).name: (each["status"], each["said"]) for each in told}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_starts_in_any_folder(script: Path, started: dict[str, tuple[object, str]]) -> None:
    status, said = started[script.name]
    assert status == 0 and "usage:" in said, said


def test_the_cases_that_must_be_judged_rightly_are_here() -> None:
    """Some are used by `benchmarks/truth.py` alone."""
    folder = ROOT / "tests/cases"
    cases = tomllib.loads((folder / "must_be.toml").read_text())["case"]
    assert not [case["model"] for case in cases if not (folder / case["model"].partition(":")[0]).exists()]
