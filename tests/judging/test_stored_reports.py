"""The verdicts of stored reports stay what they were. `stored/verdicts.json` was written when they were.

A run that was killed has a report of what it measured until then.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import judge, judged_anew
from bakeoff.judging.stored_report import builds_at, report_at
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.report_file import read, write_json
from bakeoff.records.store import Store
from tests.reports.samples import environment, lived, report

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


def test_a_run_that_was_killed_has_a_report_of_what_it_measured_until_then(tmp_path: Path) -> None:
    onnx, eager = lived(1.0, "onnx"), lived(2.0, "eager")
    store = Store.create(tmp_path / "run", Request(), [onnx.cell.id, eager.cell.id], "")
    with pytest.raises(BakeoffError, match=r"no environment\.json: the run ended before it began"):
        report_at(store.root)
    store.save_environment(environment())
    store.save(onnx)
    found = report_at(store.root)
    assert [record.cell.label for record in found.records] == ["onnx"]
    assert (found.planned, found.complete, found.environment.cpu) == (2, False, "AMD EPYC 9654")


def test_the_run_of_a_whole_pipeline_has_no_builds_and_its_parts_have_a_run(tmp_path: Path) -> None:
    write_json(report([lived(1.0, "original")]), tmp_path)
    with pytest.raises(UsageError, match=f"name the one of its parts, {tmp_path / 'parts'}$"):
        builds_at(tmp_path)
