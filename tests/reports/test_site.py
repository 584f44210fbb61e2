"""A static site has the answers of many runs, their reports, and their history."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bakeoff import cli
from bakeoff.judging.judgement import judge
from bakeoff.records import report_file
from bakeoff.records.schema import Report
from bakeoff.reports import site
from tests.reports.samples import cell, ok, over_processes, report
from tests.reports.test_hostile_text import hostile


def run(run_id: str, day: int, onnx_ms: float) -> Report:
    records = [ok(cell("eager"), over_processes(2.0)), ok(cell("onnx"), over_processes(onnx_ms, seed=1))]
    return report(records, run_id=run_id, created_at=f"2026-11-{day}T12:00:00+00:00")


def test_a_site_has_an_index_the_reports_and_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, day, onnx_ms in (("first", 1, 1.0), ("second", 2, 0.5)):
        report_file.write_json(run(name, 10 + day, onnx_ms), tmp_path / name)
    paths = [str(tmp_path / name) for name in ("first", "second")]
    assert cli.main(["publish", *paths, "--out", str(tmp_path / "site"), "--card"]) == 0
    assert "Site: " in capsys.readouterr().out
    index = (tmp_path / "site" / "index.html").read_text()
    links = set(re.findall(r'<a href="(runs/[^"]+)"', index))
    assert links == {"runs/first.html", "runs/second.html"}
    assert all((tmp_path / "site" / link).read_text().startswith("<!doctype html>") for link in links)
    assert 'data-chart="history"' in index  # both runs measured the same cells
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", index)
    card = (tmp_path / "site" / "model-card.md").read_text()
    assert card.startswith("## Inference speed") and "onnx" in card
    assert re.search(r"0\.(49|50)\d* ms", card)


def test_a_card_measures_again_without_the_files_of_the_run() -> None:
    command = "bakeoff --model conv --json --junit j.xml --summary=s.md --out results/x"
    made = judge(run("first", 11, 1.0).model_copy(update={"command": f"{command}\nbakeoff --model mlp"}))
    assert site.to_card([made]).endswith("```sh\nbakeoff --model conv\nbakeoff --model mlp\n```\n")


def test_pages_of_runs_that_are_not_published_any_more_are_removed(tmp_path: Path) -> None:
    first, second = judge(run("first", 11, 1.0)), judge(run("second", 12, 0.5))
    site.write([first, second], tmp_path)
    (tmp_path / "runs" / "own.html").write_text("a page of someone else")
    (tmp_path / "CNAME").write_text("example.org")
    assert site.write([second], tmp_path).removed == [tmp_path / "runs" / "first.html"]
    assert {page.name for page in (tmp_path / "runs").iterdir()} == {"second.html", "own.html"}
    assert (tmp_path / "CNAME").exists()


def test_a_list_of_pages_removes_nothing_outside_of_the_site(tmp_path: Path) -> None:
    kept = tmp_path / "kept.html"
    kept.write_text("not of the site")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / site.PAGES).write_text('["../kept.html", "runs/../../kept.html", 7]')
    assert site.write([judge(run("first", 11, 1.0))], tmp_path / "site").removed == []
    assert kept.exists()


def test_one_run_has_no_history() -> None:
    index = site.to_index([site.PublishedRun(judge(run("first", 11, 1.0)), "runs/first.html")])
    assert "From run to run" not in index and "<h1>1 run</h1>" in index


def test_runs_of_one_id_get_files_of_their_own() -> None:
    assert site.unique_names(["a b", "a/b", "../..", "a-b-2"]) == ["a-b", "a-b--2", "run", "a-b-2"]


def test_an_index_is_safe_with_any_text() -> None:
    index = site.to_index([site.PublishedRun(judge(hostile()), "runs/a.html")])
    assert "<script>alert" not in index and "\x1b" not in index
