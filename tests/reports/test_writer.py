"""All files of a report, written into a folder."""

import re
from pathlib import Path

import pytest

from bakeoff.judging.judgement import judge
from bakeoff.records.report_file import read
from bakeoff.reports.sentences import with_verdicts
from bakeoff.reports.writer import write
from tests.reports.samples import bursts, cell, ok, report, steady, under

SHOWCASE = Path(__file__).parents[2] / "docs" / "showcase"


def test_every_file_is_written_and_pictures_are_embedded_by_their_relative_path(tmp_path: Path) -> None:
    made = report([ok(cell(), bursts(1.0))])
    written = write(made, tmp_path / "new" / "run")
    texts = ["report.json", "cells.csv", "report.html", "details.md", "report.md"]
    assert [name for name in written if not name.startswith("figures/")] == texts
    assert "figures/latency.svg" in written
    assert all(path == tmp_path / "new" / "run" / name and path.is_file() for name, path in written.items())
    assert "](figures/latency.svg)" in written["report.md"].read_text(encoding="utf-8")
    assert read(tmp_path / "new" / "run") == with_verdicts(judge(made))


def test_a_failed_rendering_loses_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()  # no file can take its place
    with pytest.raises(OSError, match=r"report\.md"):
        write(report(), tmp_path, figures=False)
    assert read(tmp_path) == with_verdicts(judge(report()))


@pytest.mark.parametrize("folder", sorted(path.name for path in SHOWCASE.iterdir() if path.is_dir()))
def test_a_showcase_is_still_read_and_rendered(folder: str, tmp_path: Path) -> None:
    found = read(SHOWCASE / folder)
    written = write(found, tmp_path, figures=False)
    assert found.records[0].cell.label in written["report.md"].read_text(encoding="utf-8")


def test_no_file_tells_a_ratio_that_measures_waiting(tmp_path: Path) -> None:
    """Eager took 48 ms beside other programs, and 0.5 ms were measured of onnx: 96.246 times."""
    at_work = {"wait_share": 1.4, "cpu_share": 1.2, "caller_share": 0.6, "others_cores": 2.0}
    waited = under(steady([48.123] * 3, rounds=12), **at_work)
    write(report([ok(cell("onnx"), steady([0.5] * 3, rounds=12)), ok(cell("eager"), waited)]), tmp_path)
    for name in ("report.md", "details.md", "report.html", "cells.csv"):
        text = (tmp_path / name).read_text()
        assert not re.search(r"96\.2|\b96x", text), name
        assert name == "cells.csv" or "the machine was busy" in text, name
