"""What the scripts of benchmarks/ compute from trials, keep, and print as tables."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.decision import Relation
from benchmarks import aa, breadth, published, shipped_models
from benchmarks.aa_load import report
from benchmarks.common import Lines
from benchmarks.replay import Outcome, replay, stored_trials
from benchmarks.under_load import PAIRS, table
from tests.support.checkout import ROOT


def row(label: str, ms: float | None, speedup: float | None = None, status: str = "ok") -> dict[str, Any]:
    ends = {"speedup_ci95_low": speedup and speedup * 0.99, "speedup_ci95_high": speedup and speedup * 1.01}
    return {"label": label, "median_ms": ms, "speedup": speedup, "status": status, "reason": "", "build_s": 2.0} | ends


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_that_a_stop_has_cut_is_left_out_and_replaced(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "new" / "results.jsonl")
    assert lines.read() == []
    lines.append({"number": 1})
    with lines.path.open("a") as file:
        file.write('{"number": ')
    assert lines.read() == [{"number": 1}]
    lines.append({"number": 2})
    assert lines.read() == [{"number": 1}, {"number": 2}]


@pytest.mark.parametrize(
    ("eager_ms", "ours", "said"), [(6.0, 3.1, "yes"), (6.0, 3.2, "NO"), (0.6, 4.0, "no limit: under 1 ms")]
)
def test_ratios_of_calls_over_a_millisecond_have_a_tolerance(eager_ms: float, ours: float, said: str) -> None:
    problem = published.PROBLEMS[0]
    script = {
        f"{name}{hot}_ms": ms for name, ms in (("eager", eager_ms), ("inductor", eager_ms / 3)) for hot in ("", "_hot")
    }
    results = [
        {"way": "script", "problem": problem.name, "settings": "fp32", "seconds": 9.0} | script,
        {
            "way": "bakeoff",
            "problem": problem.name,
            "settings": "fp32",
            "rows": [row("eager", eager_ms, 1.0), row("inductor", eager_ms / ours, ours)],
        },
    ]
    *_, line = published.agreement_table([problem], results).splitlines()
    assert cells(line)[2:4] == ["3.62", "3.000"]
    assert cells(line)[6].startswith(f"{ours:.3f} [")
    assert cells(line)[-1] == said


def test_a_problem_is_measured_once_and_the_script_first() -> None:
    regnet = next(problem for problem in published.PROBLEMS if problem.name == "27_RegNet")
    done = [{"way": "script", "problem": regnet.name, "settings": "fp32"}]
    assert [(way, settings) for way, _, settings in published.missing([regnet], done)] == [
        ("script", "published"),
        ("script", "tf32"),
        ("bakeoff", "fp32"),
        ("bakeoff", "tf32"),
    ]


def test_shares_and_means_over_models() -> None:
    right = {"outcome": "sure", "candidates": [], "seconds": 60.0}
    results = [
        {"model": "a", "winner": "onnx", "rows": [row("eager", 4.0), row("onnx", 1.0)]} | right,
        {"model": "b", "winner": None, "rows": [row("eager", 1.005), row("onnx", 1.0)]} | right,
        {"model": "c", "winner": "eager", "rows": [row("eager", 2.0), row("onnx", 1.0, status="incorrect")]} | right,
    ]
    lines = {cells(line)[0]: cells(line)[1:] for line in shipped_models.backends_table(results).splitlines()[2:]}
    assert lines["`onnx`"] == ["2 of 3", "2", "67%", "2.00", "1.00", "2"]
    assert lines["`eager`"][:4] == ["3 of 3", "1", "67%", "1.00"]
    assert "onnx (incorrect)" in shipped_models.models_table(results).splitlines()[-1]


def test_the_shipped_models_are_ten_and_have_names_of_their_own() -> None:
    asked = list(shipped_models.asked_in("shipped"))
    assert len({one.name for one in asked}) == 10
    assert asked[-2].arguments(["prompt=8"])[-4:] == ["--set", "prompt=8", "--set", "new_tokens=128"]
    paths = [part for one in asked for part in one.model.split(":") if part.startswith("presets/")]
    assert len(paths) == 7 and all((ROOT / "bakeoff" / path).exists() for path in paths)


def test_graphs_are_of_every_source_in_turns_and_the_smallest_first(tmp_path: Path) -> None:
    for folder, shapes in {"a/x": "[4]", "a/y": "[5]", "a/z": "[2]", "b/large": "[9, 9]", "c/v": "[]"}.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "weight_meta.py").write_text(f"class T:\n\tname = 'T'\n\tshape = {shapes}\n")
    chosen = breadth.graphs_of(tmp_path, count=3, numbers=5)
    assert len(chosen) == 3 and chosen[0] == f"graphnet:{tmp_path}/c/v"
    assert [Path(name).parent.name for name in chosen] == ["c", "a", "a"]


def test_builds_that_are_not_right_are_counted_and_named() -> None:
    def check(label: str, status: str, reason: str = "") -> dict[str, str]:
        return {"model": "m", "label": label, "status": status, "reason": reason, "unchecked": ""}

    checks = [check("eager", "ok"), check("onnx", "incorrect", "off"), check("openvino", "error", "no such operator")]
    _, _, *rows = breadth.report(
        [{"model": "m", "checks": checks}, {"model": "n", "checks": [], "refused": "no model"}]
    ).splitlines()
    assert [cells(line)[1:] for line in rows[:3]] == [["1", "0", "0"], ["0", "1", "0"], ["0", "0", "1"]]
    assert rows[4:] == ["- n: no model", "- onnx of m: incorrect: off", "- openvino of m: error: no such operator"]


def answer(slower: float, winner: str | None, is_open: bool = False) -> dict[str, Any]:
    return {"slower": slower, "winner": winner, "is_open": is_open, "seconds": 20.0, "processes": 4}


@pytest.mark.parametrize(("device", "trials"), [("cpu", 800), ("cuda", 150)])
def test_the_plan_has_its_trials_and_each_part_of_it_has_all_kinds(device: str, trials: int) -> None:
    plan = aa.in_order(device)
    equal = [kind.name for kind, _ in plan if kind.name.startswith("A/A")]
    assert len(equal) == trials
    assert {name: round(3 * equal[: trials // 5].count(name) / (trials // 5), 1) for name in set(equal)} == {
        "A/A, templates": 1.0,
        "A/A, real models": 1.0,
        "A/A, many cells": 1.0,
    }
    assert len(set(plan)) == len(plan)


def test_the_trials_in_the_evidence_are_of_todays_rules() -> None:
    """A change of these files, in code, begins the count of trials anew: `RULES` of benchmarks/aa.py lists them."""
    assert f"by today's rules (digest {aa.rules()};" in (ROOT / "docs/evidence.md").read_text(encoding="utf-8")


def test_every_backend_has_its_second_copy_in_the_plug_in() -> None:
    entries = (aa.COPIES / "bakeoff_copies-1.0.dist-info" / "entry_points.txt").read_text()
    copied = {label for kind in aa.TRIALS for label in kind.copied}
    names = {aa.twin(label).partition("/")[0] for label in copied} - {"eager-again"}  # Bakeoff itself has that one
    assert all(f"{name} = " in entries for name in names)


def test_what_counts_as_wrong_and_as_right() -> None:
    trials = [
        {"answers": [answer(1.0, None), answer(1.05, "first")]},
        {"answers": [answer(1.0, "again"), answer(1.05, "again")]},
        {"answers": [answer(1.0, None, is_open=True), answer(1.05, None)]},
        {"failure": "no such backend"},
    ]
    equal, slower = aa.rows_of("A/A", trials)
    assert equal[1:4] == ["equal", 3, 1] and equal[5:7] == [1, 1]
    assert slower[1:4] == ["5% slower", 3, 1] and slower[5:7] == [1, 1]
    assert equal[-1] == 1


def test_a_winner_with_a_copy_is_wrong_and_so_is_a_gap_over_two_per_cent() -> None:
    many = [
        {"first": ["onnx"], "is_wrong": wrong, "is_open": False, "took_s": 60.0, "processes": 3} for wrong in (0, 1)
    ]
    many.append({**many[0], "not_ranked": {"onnx-again": "no module"}})
    row = next(aa.rows_of("A/A, many cells", many))
    assert row[2:4] == [2, 1] and row[-1] == 1
    usual = [{"gap": gap, "took_s": 6.0} for gap in (0.01, 0.03, 0.2)]
    assert next(aa.rows_of("usual, templates", usual))[2:4] == [3, 2]


def test_lanes_share_no_core() -> None:
    lanes = aa.lanes_of("cpu", 1, None)
    assert sum(len(lane.cores) for lane in lanes) == len(frozenset().union(*(lane.cores for lane in lanes)))
    assert len(aa.lanes_of("cpu", 1, 1)) == 1


def test_each_gpu_has_a_lane_with_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(aa, "usable_cores", lambda: set(range(1000, 1016)))
    first, second = aa.lanes_of("cuda", None, None)
    assert (first.gpu, second.gpu) == ("3", "5")
    assert len(first.cores) == len(second.cores) == 8 and not first.cores & second.cores


@pytest.mark.slow
def test_the_usual_method_has_a_gap() -> None:
    kind = next(kind for kind in aa.TRIALS if kind.is_usual and kind.device == "cpu")
    assert aa.usual_gap(kind, 0) >= 0


def test_a_winner_counts_also_where_the_other_copy_carried_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tied = {"winner": None, "gap": 0.02, "settings": {"eager": {}, "eager-again": {}}, "seconds": 60.0}
    report([tied, {**tied, "winner": "eager-again", "gap": None}])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| 2 | 1 | 1 | 2 |")


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_stored_equals_get_no_winner_and_slower_copies_are_found(every: int) -> None:
    equal: list[Outcome] = []
    slower: list[Outcome] = []
    for trial in list(stored_trials())[::every]:
        (slower if "slower" in trial.source else equal).append(replay(trial))
    assert (len(equal), len(slower)) == (1320 // every, 80 // every)
    assert not [one for one in equal if one.relation in (Relation.FASTER, Relation.SLOWER)]
    assert sum(one.relation is Relation.FASTER for one in slower) >= 68 // every
    assert not [one for one in slower if one.relation is Relation.SLOWER]
    assert sum(one.decided for one in equal) >= 1060 // every


COPIES, TWICE = "1.00, short, 1 thread", "2, medium, 2 threads"


def one(pair: str, load: str, ratio: float, **more: Any) -> dict[str, Any]:
    """Return a contest that was told as sure, with an interval of 5 % to either side."""
    ends = [ratio * 0.95, ratio * 1.05]
    told = {"certainty": Certainty.SURE, "winner": "fast", "ends": ends, "seconds": 6.0}
    return {"pair": pair, "load": load, "ratio": ratio} | told | more


def test_wrong_winners_and_sure_intervals_without_the_quiet_ratio_are_counted() -> None:
    assert PAIRS[TWICE].ratio == 2.0
    rows = table(
        [
            one(TWICE, "none", 1.9),
            one(TWICE, "memory", 2.02),  # without the quiet ratio, which is known to 5 % itself
            one(TWICE, "memory", 2.2),  # the quiet one is 1.9
            one(TWICE, "memory", 2.0, winner="slow", certainty=Certainty.DOUBTED),
            one(COPIES, "memory", 1.04),
            one(COPIES, "memory", 1.0, winner=None, certainty=Certainty.TIE),
            one(TWICE, "memory", 1.0, winner=None, certainty=Certainty.TIE),
            one(TWICE, "memory", 40.0, winner=None, certainty=Certainty.OPEN, ends=None),
        ]
    )
    contests, wrong, sure, outside, ties, missed, undecided, seconds = rows[3].split("|")[2:-1]
    assert rows[2].startswith("|none|1|0|1|0|")
    assert (contests, wrong, sure, outside) == ("7", "2", "3", "1")
    assert (ties, missed, undecided, seconds) == ("2", "1", "1", "6")
    assert rows[-1] == "Quiet ratios: 2, medium, 2 threads: 1.900 (± 5.0%)"


def test_a_quiet_contest_is_compared_with_the_other_quiet_ones() -> None:
    rows = table([one(TWICE, "none", 1.9), one(TWICE, "none", 2.05)])
    assert rows[2].split("|")[4:6] == ["2", "2"]


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
