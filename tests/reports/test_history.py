"""Many reports as one history: found, put in order, drawn, and told where the machine changed."""

import gzip
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bakeoff.judging.stored_report import report_of
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import to_json
from bakeoff.records.schema import Environment, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.reports import history
from bakeoff.reports.history import RUNS_SHOWN
from tests.reports.samples import cell, constant, environment, failed, ok, over_processes, report
from tests.support.golden import same_as_golden


def made(day: int, records: list[Record], where: Environment | None = None, zone: str = "+00:00") -> Report:
    return report(
        records, run_id=f"run-{day}", created_at=f"2026-05-{day:02}T10:00:00{zone}", environment=where or environment()
    )


def medians(*medians_ms: float) -> list[Record]:
    names = ["eager", "onnx", "openvino"]
    return [ok(cell(name), constant([median] * 8)) for name, median in zip(names, medians_ms, strict=False)]


def keep(found: Report, folder: Path, packed: bool = False) -> None:
    folder.mkdir(parents=True)
    text = to_json(found)
    if packed:
        (folder / "report.json.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (folder / "report.json").write_text(text, encoding="utf-8")


def rows(text: str, label: str) -> list[list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [[cell.strip() for cell in line] for line in lines]


def test_runs_are_found_at_any_depth_and_reported_in_the_order_of_time(tmp_path: Path) -> None:
    keep(made(3, medians(1.0, 0.7)), tmp_path / "a")
    keep(made(1, medians(1.2, 0.5)), tmp_path / "b" / "deep", packed=True)
    keep(made(2, medians(1.1, 0.6)), tmp_path / "c")
    found, page = history.write(tmp_path, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert [run.run_id for run in found.runs] == ["run-1", "run-2", "run-3"]
    assert text.startswith("# History: 3 runs, 2026-05-01 to 2026-05-03\n")
    assert rows(text, "onnx") == [["onnx", "3", "0.5000", "0.6000", "0.7000"]]
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"history.md", "history.png", "history.svg"}
    assert "](history.png)" in text


def across(scale: float, *precisions: Precision) -> list[Record]:
    """eager and onnx in one contest of these precisions, which take 2 and 1 ms, and half of it for each further one."""
    compared = precisions if len(precisions) > 1 else ()
    return [
        ok(cell(name).but(precision=precision, compared=compared), constant([scale * ms] * 8))
        for place, precision in enumerate(precisions)
        for name, ms in (("eager", 2.0 / 2**place), ("onnx", 1.0 / 2**place))
    ]


RENEWED = environment().but(versions={"torch": "2.10.0", "onnxruntime": "1.23.0"})
ELSEWHERE = RENEWED.but(git_commit="fff0000", hostname="other")
ASKED = (Precision.FP32, Precision.BF16, Precision.INT8)
HISTORIES: dict[str, list[Report]] = {
    "precisions of one contest": [made(day, across(day, *ASKED)) for day in (1, 2)],
    "different precisions": [
        made(1, across(1, Precision.FP32, Precision.INT8)), made(2, across(2.0, Precision.FP32)), made(3, medians(0.5))
    ],
    "another environment": [
        made(day, medians(1.0), where) for day, where in enumerate([environment(), RENEWED, ELSEWHERE], 1)
    ],
    "a cell that failed": [
        made(1, [*medians(1.0), failed(cell("onnx"), Status.UNAVAILABLE, "no")]),
        made(2, [*medians(2.0), failed(cell("onnx"), Status.CRASH, "died")]),
        made(3, medians(4.0)),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp("history") for name in HISTORIES}
    for name, reports in HISTORIES.items():
        for day, kept in enumerate(reports):
            keep(kept, folders[name] / str(day))
    return folders


def test_histories_read_as_before(histories: dict[str, Path]) -> None:
    texts = [f"{name}: {history.to_markdown(history.read(folder))}" for name, folder in histories.items()]
    same_as_golden("histories.md", "\n".join(texts))


def test_the_figure_marks_another_environment_and_has_a_gap_for_a_cell_that_failed(histories: dict[str, Path]) -> None:
    pictures = {}
    for name in ("another environment", "a cell that failed"):
        found, _ = history.write(histories[name], histories[name])
        pictures[name] = (histories[name] / "history.svg").read_text(encoding="utf-8")
        assert [len(run.changes) for run in found.runs] == [0, int(name == "another environment"), 0]
    assert "environment changed" in pictures["another environment"]
    assert ">eager<" in pictures["a cell that failed"] and ">onnx<" not in pictures["a cell that failed"]


def test_time_is_compared_and_not_its_spelling(tmp_path: Path) -> None:
    keep(made(2, medians(1.0), zone="+14:00"), tmp_path / "a")  # 20:00 of the day before, in UTC
    keep(made(1, medians(1.0), zone=""), tmp_path / "b")
    keep(made(1, medians(1.0), zone="Z").but(run_id="early"), tmp_path / "c")
    assert [run.run_id for run in history.read(tmp_path).runs] == ["early", "run-1", "run-2"]


def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    keep(made(1, medians(1.0)), tmp_path / "good")
    keep(made(1, medians(1.0)), tmp_path / "good-again")
    keep(made(1, medians(1.0)).but(created_at="yesterday"), tmp_path / "undated")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.json").write_text(json.dumps({"schema_version": "9.0.0"}), encoding="utf-8")
    found = history.read(tmp_path)
    assert len(found.runs) == 1
    said = "\n".join(found.skipped)
    for part in ("broken/report.json is not JSON", "has schema 9.0.0", "'yesterday'", "is the run run-1 once more"):
        assert part in said
    assert "4 reports left out" in history.to_markdown(found)


def test_a_folder_without_a_report_that_can_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report below"):
        history.read(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        history.read(tmp_path / "nowhere")
    (tmp_path / "report.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="is not JSON"):
        history.read(tmp_path)


def test_the_first_table_holds_the_last_runs_and_folded_ones_those_before(tmp_path: Path) -> None:
    for day in range(1, RUNS_SHOWN + 4):
        keep(made(day, medians(1.0 + day)), tmp_path / str(day))
    _, page = history.write(tmp_path, tmp_path)
    text = page.read_text(encoding="utf-8")
    last, earlier = rows(text, "eager")
    for row, days in ((last, range(4, RUNS_SHOWN + 4)), (earlier, range(1, 4))):
        assert row[1] == str(RUNS_SHOWN + 3) and [text.split(" [")[0] for text in row[2:]] == [
            f"{1 + day:#.4g}" for day in days
        ]
    assert text.index("<summary>Runs 1 to 3</summary>") < text.index(" | ".join(earlier))
    ticks = [node.text for node in ElementTree.parse(tmp_path / "history.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert str(RUNS_SHOWN + 3) in ticks
    assert f"eager moved most, to {(1 + RUNS_SHOWN + 3) / 2:.2f}x its first latency" in ticks
    assert "conv on cpu, fp32" in ticks


def test_a_history_of_other_runs_is_not_replaced(tmp_path: Path) -> None:
    keep(made(1, medians(1.2)), tmp_path / "a" / "run_1")
    keep(made(2, medians(1.1)), tmp_path / "b" / "run_2")
    _, page = history.write(tmp_path / "a", tmp_path)
    with pytest.raises(UsageError, match="other runs"):
        history.write(tmp_path / "b", tmp_path)
    before = page.read_bytes()
    assert history.write(tmp_path, tmp_path)[1] == page and page.read_bytes() != before


def test_without_any_latency_there_is_a_page_and_no_figure(tmp_path: Path) -> None:
    keep(made(1, [failed(cell(), Status.ERROR, "no")]), tmp_path / "1")
    _, page = history.write(tmp_path, tmp_path)
    assert "history.png" not in page.read_text(encoding="utf-8")


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
    store.save(added.but(started_at="2027-01-02T03:04:05+00:00"))
    resumed = report_of(store)
    assert not interrupted.complete and resumed.complete
    assert interrupted.created_at == resumed.created_at == BEGAN
