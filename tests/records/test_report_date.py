"""A report has the date on which its run began, whatever is measured or read later: histories are sorted by it."""

import json
from pathlib import Path

from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.store import Store
from tests.reports.samples import cell, environment, ok, over_processes

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
