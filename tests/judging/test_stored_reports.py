"""Stored reports: their verdicts and their dates stay what they were."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import judge, judged_anew
from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.report_file import read
from bakeoff.records.store import Store
from tests.reports.samples import cell, environment, ok, over_processes

STORED = Path(__file__).parent / "stored"
EXPECTED: dict[str, Any] = json.loads((STORED / "verdicts.json").read_text())
CASES = [(name, require) for name, found in EXPECTED.items() for require in found["requirements"]]


def summary(contest: ContestJudgement) -> dict[str, Any]:
    lead, ends = contest.fastest.lead, contest.fastest.lead.ci95 if contest.fastest.lead else None
    pays = {judged.label: judged.break_even for judged in contest.ranked}
    return {
        "contest": contest.title,
        "winner": contest.fastest.leader,
        "tied": list(contest.fastest.tied),
        "runner_up": contest.fastest.runner_up,
        "baseline": contest.baseline if contest.ranked else None,
        "unstable": contest.fastest.is_open,
        "lead": lead and pytest.approx([lead.value, ends and ends.low, ends and ends.high], rel=1e-9),
        "ranks": {judged.label: judged.rank for judged in contest.ranked},
        "speedups": {
            judged.label: judged.speedup and pytest.approx(judged.speedup.value, rel=1e-9) for judged in contest.ranked
        },
        "break_even_calls": {
            label: found.calls if found and found.is_established else None for label, found in pays.items()
        },
    }


@pytest.mark.parametrize(("name", "require"), CASES)
def test_the_verdicts_of_a_stored_report_are_the_same(name: str, require: str) -> None:
    report = judged_anew(read(STORED / f"{name}.json.gz"), require=require)
    expected = EXPECTED[name]["requirements"][require]
    for contest, verdict in zip(judge(report).contests, expected, strict=True):
        assert summary(contest) == verdict


BEGAN = "2026-01-02T03:04:05+00:00"


def test_a_report_has_the_date_on_which_its_run_began(tmp_path: Path) -> None:
    measured, added = (ok(cell(name), over_processes(2.0)) for name in ("eager", "onnx"))
    store = Store.create(tmp_path / "run", Request(models=("mlp",)), [measured.cell.id, added.cell.id], "bakeoff run")
    store.save_environment(environment())
    path = store.root / "plan.json"
    plan = json.loads(path.read_text()) | {"created_at": BEGAN}
    path.write_text(json.dumps(plan))
    store.save(measured)
    interrupted = report_of(store)
    store.save(added.model_copy(update={"started_at": "2027-01-02T03:04:05+00:00"}))
    resumed = report_of(store)
    assert not interrupted.complete and resumed.complete
    assert interrupted.created_at == resumed.created_at == BEGAN
