"""What is told of a run that was interrupted: every output says `so far`, and names what was not reached."""

import re
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.schema import Record, Status
from bakeoff.records.store import Store
from bakeoff.reports import doubt_sentences, headline, machine, sentences
from bakeoff.reports.first_screen import first_screen
from bakeoff.reports.writer import render
from tests.reports.samples import cell, environment, failed, judged, ok, over_processes, report, steady
from tests.support.printed import every_output

BACKENDS = ("eager", "onnx", "torchscript")


def interrupted(folder: Path, measured: dict[str, float]) -> Judgement:
    """Judge a run of three cells of which these have numbers, from what lies in its folder."""
    cells = [cell(backend) for backend in BACKENDS]
    ahead = [Record(cell=each, status=Status.NOT_REACHED, reason="scripted: too early") for each in cells]
    store = Store.create(folder, Request(models=("conv",)), [each.id for each in cells], "bakeoff run", ahead)
    store.save_environment(environment())
    store.keep_so_far(cells[0].contest_id, [ok(cell(name), over_processes(ms)) for name, ms in measured.items()])
    return judge(report_of(store))


def test_cells_that_an_interrupted_run_did_not_reach_are_named_and_have_not_failed(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {"onnx": 1.0})
    (contest,) = judgement.contests
    assert headline.line(contest).endswith("only onnx was measured, so far")
    assert sentences.title(judgement).startswith("conv \u00d7 eager, onnx and torchscript")
    assert machine.what_is_missing(judgement.report, sentences.not_reached(judgement)) == (
        "Incomplete: 1 of 3 cells have ended or were measured in part. Not reached yet: eager and torchscript."
    )
    for name, text in every_output(judgement).items():
        assert "only onnx was measured, so far" in text, name
        assert "not reached" in text.lower(), name
        assert "could be ranked" not in text, name


def test_in_a_sweep_cells_that_were_not_reached_have_their_size() -> None:
    small, large = ([cell(name, dimensions={"batch": size}) for name in ("eager", "onnx")] for size in (1, 8))
    records = [ok(each, over_processes(2.0)) for each in small]
    records += [failed(each, Status.NOT_REACHED, "too early") for each in large]
    screen = first_screen(judged(records, complete=False, planned=4), "run")
    assert screen.unfinished[0].endswith("Not reached yet: eager (batch 8) and onnx (batch 8).")


def test_where_all_cells_have_numbers_the_winner_is_the_one_so_far(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {"eager": 3.0, "onnx": 1.0, "torchscript": 2.0})
    (contest,) = judgement.contests
    assert headline.certainty(contest).endswith(", so far")
    assert sentences.finding(contest).startswith("so far, onnx wins at ")
    for name, text in every_output(judgement).items():
        assert f"{headline.certainty(contest)}" in text, name
    whole = judged(list(judgement.report.records))
    assert "so far" not in headline.line(whole.contests[0]) + sentences.finding(whole.contests[0])


def test_a_winner_is_doubted_while_a_cell_was_not_reached(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {"eager": 3.0, "onnx": 1.0})
    assert headline.certainty(judgement.contests[0]) == "but torchscript was not reached, so far"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("conv", "bakeoff resume measures"),
        ("live:Net", "Call compare again. Without fresh=True, it uses the builds that are"),
    ],
)
def test_a_live_model_is_compared_again_since_resume_cannot_go_on_with_it(model: str, told: str) -> None:
    eager, onnx, missing = (cell(backend).model_copy(update={"model": model}) for backend in BACKENDS)
    open_pair = [ok(eager, steady([1.0, 1.4, 1.1])), ok(onnx, steady([1.3, 1.0, 1.1]))]
    later = Record(cell=missing, status=Status.NOT_REACHED, reason="too early")
    judgement = judge(report([*open_pair, later], complete=False, request={"models": [model]}))
    (undecided,) = (each for each in doubt_sentences.doubts(judgement.contests[0]) if "was decided how" in each)
    (not_reached,) = (each for each in doubt_sentences.doubts(judgement.contests[0]) if "not reached: " in each)
    assert told in undecided and told in not_reached
    commands = first_screen(judgement, "run").commands.values()
    assert (["bakeoff resume run"] in commands) is (model == "conv")


@pytest.mark.parametrize(
    ("is_complete", "asked", "processes", "told"),
    [
        (False, {}, 3, "bakeoff resume measures on, and unfinished processes anew"),
        (False, {"budget": "60 s"}, 3, "bakeoff resume measures on, and unfinished processes anew"),
        (True, {"budget": "60 s"}, 3, "Raise --budget, or use a quieter machine"),
        (True, {"budget": "60 s", "processes": 2}, 2, "Raise --processes over 2, or use a quieter machine"),
        (True, {}, 20, "Raise --processes over 20, or use a quieter machine"),
        (True, {"processes": 25, "time_limit_s": 40.0}, 20, "Raise --time-limit, or use a quieter machine"),
        (True, {"time_limit_s": 600.0}, 9, "Raise --processes over 9, or use a quieter machine"),
    ],
)
def test_the_advice_for_an_open_answer_is_about_what_has_stopped_the_run(
    is_complete: bool, asked: dict[str, JsonValue], processes: int, told: str
) -> None:
    levels_ms = ([1.0, 1.7, 1.1, 3.0, 0.9] * 4)[:processes]
    pair = [ok(cell("eager"), steady(levels_ms)), ok(cell("onnx"), steady(levels_ms[1:] + levels_ms[:1]))]
    pair = [record.model_copy(update={"elapsed_s": 30.0}) for record in pair]
    (contest,) = judge(report(pair, complete=is_complete, request=asked)).contests
    doubts = doubt_sentences.doubts(contest)
    (how_to_decide,) = (each for each in doubts if re.search("how (onnx|eager) compares with", each))
    assert how_to_decide.endswith(told)
    rough = [each for each in doubts if "known only roughly" in each]
    assert all(each.endswith("Raise --processes" if is_complete else told) for each in rough)
    assert rough or is_complete


def test_a_run_that_is_interrupted_before_its_first_round_names_all_its_cells(tmp_path: Path) -> None:
    judgement = interrupted(tmp_path / "run", {})
    assert [each.cell.backend for each in judgement.report.records] == list(BACKENDS)
    for name, text in every_output(judgement).items():
        assert all(backend in text for backend in BACKENDS), name
        assert "nothing could be ranked (3 not reached)" in text.lower(), name


def test_a_report_without_a_chart_imports_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second, for which an interrupted run would go on."""
    monkeypatch.setitem(sys.modules, "bakeoff.reports.charts.paint", None)
    monkeypatch.delattr("bakeoff.reports.charts.paint", raising=False)
    assert "report.html" in render(interrupted(tmp_path / "run", {}), tmp_path)


def test_a_contest_that_has_not_begun_has_a_row_for_each_cell(tmp_path: Path) -> None:
    other = cell("eager").model_copy(update={"model": "later"})
    ahead = [Record(cell=each, status=Status.NOT_REACHED) for each in (cell("eager"), other)]
    store = Store.create(tmp_path / "run", Request(models=("conv",)), [each.cell.id for each in ahead], "", ahead)
    store.save_environment(environment())
    store.save(ok(cell("eager"), over_processes(2.0)))
    made = report_of(store)
    assert [each.status for each in made.records] == [Status.OK, Status.NOT_REACHED] and not made.complete
    assert made.reached == 1 and made.planned == 2
    assert [each.is_so_far for each in judge(made).contests] == [False, True], "the first one has ended"


@pytest.mark.parametrize(("require", "is_so_far"), [("", False), ("start_s<5", True)])
def test_missing_starts_are_told_and_make_no_verdict_undecided(require: str, is_so_far: bool, tmp_path: Path) -> None:
    cells = [cell(backend) for backend in BACKENDS[:2]]
    request = Request(models=("conv",), starts=True, require=require)
    store = Store.create(tmp_path / "run", request, [each.id for each in cells], "bakeoff run")
    store.save_environment(environment())
    for each, levels_ms in zip(cells, ([1.0, 1.4, 1.1], [1.3, 1.0, 1.1]), strict=True):
        store.save(ok(each, steady(levels_ms)))
    judgement = judge(report_of(store))
    (contest,) = judgement.contests
    assert not judgement.report.complete and contest.is_so_far is is_so_far
    assert machine.what_is_missing(judgement.report).startswith("Interrupted: all cells are measured, and the starts")
    assert headline.certainty(contest).endswith(", so far") is is_so_far
    told = every_output(judgement)["terminal"]
    assert "bakeoff resume" in told and "the run was interrupted before it was decided" not in told
    assert ("processes of each cannot decide" in told) is not is_so_far, "without starts nothing is ranked"
