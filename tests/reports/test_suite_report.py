"""What every output says of a suite. The sums themselves are in tests/judging/test_suites.py."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from bakeoff import cli
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.suites import Suite
from bakeoff.records import report_file
from bakeoff.records.schema import Record, Status
from bakeoff.reports import csv_files, suite_report
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import MOST_SECTIONS, to_markdown, to_page
from tests.reports.samples import cell, failed, judged, lived, report, suite
from tests.support.printed import reported

RECORDS = suite(5)


@pytest.fixture(scope="module")
def five() -> Judgement:
    return judged(RECORDS)


@pytest.fixture(scope="module")
def found(five: Judgement) -> Suite:
    return five.suites[0]


@pytest.fixture(scope="module")
def page(five: Judgement) -> str:
    return to_page(five)


@pytest.fixture(scope="module")
def many() -> Judgement:
    """More contests than the terminal prints sections of."""
    return judged(suite(MOST_SECTIONS + 1))


def words(text: str) -> str:
    return " ".join(text.split())


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_one_model_is_no_average() -> None:
    kept = [
        record if record.cell.model.endswith("net0") or record.cell.backend == "eager" else left_out(record)
        for record in RECORDS
    ]
    (interrupted,) = judged(kept).suites
    assert suite_report.finding(interrupted) == "there is no average yet: net0 is all that every ranked backend passed"


def left_out(record: Record) -> Record:
    return failed(record.cell, Status.NOT_REACHED, "interrupted")


def test_the_terminal_prints_a_line_for_each_of_many_contests_and_last_the_answer_of_the_suite(many: Judgement) -> None:
    lines = reported(many).rstrip().splitlines()
    first = next(place for place, line in enumerate(lines) if "net0  →" in line)
    assert all("→" in line for line in lines[first:-1]) and len(lines[first:-1]) == MOST_SECTIONS + 1
    assert lines[-1].startswith("9 models on cpu, fp32: onnx is the fastest")
    assert lines[0] == "9 models on cpu, fp32" and first < 30
    assert "relat." not in reported(many)  # a column of the long tables


def test_without_a_suite_nothing_is_said_of_one() -> None:
    small = judged(suite(3))
    assert csv_files.suite_tables(small) == {} and answer_of(small, Path()).suites == []
    assert "on average" not in reported(small) and "Every model" not in to_markdown(small)


def test_the_quiet_answer_is_the_line_of_each_contest_and_of_the_suite(many: Judgement) -> None:
    said = reported(many, is_quiet=True).splitlines()
    assert said[-1].startswith("9 models on cpu, fp32: onnx is the fastest")
    assert sum("→" in line for line in said) == len(many.contests) == MOST_SECTIONS + 1


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Status.OOM, "OOM"),
        (Status.TIMEOUT, "timeout"),
        (Status.INCORRECT, "fail_accuracy"),
        (Status.CRASH, "fail_to_run"),
    ],
)
def test_dynamos_words_for_endings(ending: Status, said: str) -> None:
    records = [failed(cell(model=f"net{n}"), ending, "so") for n in range(4)]
    (row, *_) = table(csv_files.suite_tables(judged(records))["dynamo.csv"])
    assert row["accuracy"] == said


def test_the_json_answer_has_the_suite(five: Judgement, found: Suite) -> None:
    (told,) = json.loads(answer_of(five, Path()).model_dump_json())["suites"]
    assert [each["label"] for each in told["backends"]] == found.labels
    assert told["contests_in_means"] == 2 and len(told["failures"]) == 2


def test_the_page_colours_speedups_and_names_failures_by_their_status(page: str) -> None:
    rows = re.findall(r'<tr class="cell " data-status="(all passed|some failed)">(.*?)</tr>', page, re.DOTALL)
    assert [outcome for outcome, _ in rows].count("some failed") == 3 and len(rows) == 5
    cells = re.findall(r'<td class="number( heat)?( status bad)?"[^>]*><span class="value">([^<]*)<', rows[1][1])
    assert cells == [("", " status bad", "error"), (" heat", "", "1.60"), ("", "", "1.00"), ("", "", "1.00")]


def test_shards_joined_by_one_report_are_the_same_suite(
    tmp_path: Path, found: Suite, capsys: pytest.CaptureFixture[str], restored_signals: None
) -> None:
    for shard in range(2):
        kept = [each for each in RECORDS if int(each.cell.model[-1]) % 2 == shard]
        (tmp_path / str(shard)).mkdir()
        made = report(kept, run_id=f"shard-{shard}", complete=bool(shard), created_at=f"2026-05-0{1 + shard}T10:00:00Z")
        report_file.write_json(made, tmp_path / str(shard))
    whole = tmp_path / "whole"
    paths = [str(tmp_path / str(shard)) for shard in range(2)]
    assert cli.main(["report", *paths, "--out", str(whole)]) == 0
    joined = report_file.read(whole)
    assert (len(joined.records), joined.planned, joined.complete) == (len(RECORDS), len(RECORDS), False)
    assert joined.created_at == "2026-05-01T10:00:00Z", "when the first shard began"
    (suite_of_both,) = judge(joined).suites
    assert {row.label: (row.passed, row.wins, row.profile.ratios) for row in suite_of_both.rows} == {
        row.label: (row.passed, row.wins, row.profile.ratios) for row in found.rows
    }
    assert suite_report.finding(suite_of_both) in words(capsys.readouterr().out)
    assert cli.main(["report", paths[0], paths[0], "--out", str(whole)]) == 2
    assert "without a contest in common" in capsys.readouterr().err


def test_a_suite_without_a_baseline_has_latencies_and_no_speedups() -> None:
    records: list[Record] = [
        each.model_copy(update={"cell": each.cell.model_copy(update={"model": f"net{n}"})})
        for n in range(4)
        for each in (lived(1.0, "onnx"), lived(2.0, "openvino"))
    ]
    made = judged(records)
    (alone,) = made.suites
    assert (
        suite_report.finding(alone)
        == "onnx is the fastest on average over the 4 models that every ranked backend passed"
    )
    assert suite_report.tile(alone.contests[0], "onnx").text.endswith(" ms")
    assert "mean speed-up" not in reported(made) and "None" not in to_markdown(made)
