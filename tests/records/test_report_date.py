"""A report keeps its date until something is measured: histories are sorted by it."""

from pathlib import Path

from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records import report_file
from bakeoff.records.store import Store
from tests.reports.samples import cell, environment, ok, over_processes


def test_a_report_that_is_made_again_keeps_its_date(tmp_path: Path) -> None:
    measured = ok(cell("eager"), over_processes(2.0))
    store = Store.create(tmp_path / "run", Request(models=("mlp",)), [measured.cell.id], "bakeoff run")
    store.save_environment(environment())
    store.save(measured)
    earlier = report_of(store).model_copy(update={"created_at": "2026-01-02T03:04:05+00:00"})
    assert earlier.complete
    report_file.write_json(earlier, store.root)
    assert report_of(store).created_at == earlier.created_at
    store.save(measured.model_copy(update={"started_at": "2027-01-02T03:04:05+00:00"}))
    assert report_of(store).created_at != earlier.created_at
