"""What one build for a range of sizes costs: from records to the table of each output and the figure."""

from __future__ import annotations

import pytest

from bakeoff.judging.dynamic import DynamicRange
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.schema import Cell, Range, Record, Report, Status
from bakeoff.reports import charts, dynamic
from bakeoff.reports.charts.palette import Palette
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.run_report import to_markdown
from tests.reports.samples import cell, failed, ok, report, steady
from tests.support.golden import same_as_golden

SPAN = {"seq": Range(low=16, built_at=64, high=64)}
GUARD = "0/0: tensor 'x' size mismatch at index 1"


def of(label: str, seq: int, dynamic: bool = False) -> Cell:
    made = cell(label, model="transformer", dimensions={"batch": 2, "seq": seq})
    return made.model_copy(update={"dynamic": SPAN}) if dynamic else made


def records() -> list[Record]:
    """Return two sizes: onnx is 10 % and 30 % slower, inductor was compiled again, openvino serves no range."""
    found = []
    for seq, slower in ((64, 1.3), (16, 1.1)):  # the larger size comes first
        again = [GUARD] if seq == 16 else []
        found += [
            ok(of("eager", seq), steady([2.0, 2.0, 2.0])),
            ok(of("onnx", seq), steady([1.0, 1.0, 1.0]), build_s=3.0),
            ok(of("onnx", seq, dynamic=True), steady([slower] * 3), build_s=4.0),
            ok(of("inductor", seq), steady([0.5, 0.5, 0.5]), build_s=20.0),
            ok(of("inductor", seq, dynamic=True), steady([0.5] * 3), build_s=30.0, recompiled=again),
            ok(of("openvino", seq), steady([0.8, 0.8, 0.8]), build_s=1.0),
            failed(of("openvino", seq, dynamic=True), Status.UNSUPPORTED, "specialised axis 1 to 64"),
        ]  # fmt: skip
    return found


@pytest.fixture(scope="module")
def judgement() -> Judgement:
    return judge(report(records()))


@pytest.fixture(scope="module")
def found(judgement: Judgement) -> DynamicRange:
    (only,) = judgement.dynamic_ranges
    return only


def test_two_environments_share_a_range() -> None:
    """In each contest another one is the faster, and so stands first."""
    made = []
    for seq, faster in ((16, "old"), (64, "new")):
        made.append(ok(of("eager", seq), steady([2.0] * 3)))
        for name in ("old", "new"):
            built = of("onnx", seq, dynamic=True).model_copy(update={"environment": name})
            made.append(ok(built, steady([0.5 if name == faster else 1.0] * 3)))
    (only,) = judge(report(made)).dynamic_ranges
    assert [build.configuration for build in only.builds if build.is_needed] == ["onnx@old", "onnx@new"]
    assert only.names == ["seq 16", "seq 64"]


def test_costs_are_the_ratios_of_the_contests_fit(judgement: Judgement, found: DynamicRange) -> None:
    onnx = next(build for build in found.builds if build.configuration == "onnx")
    assert onnx.costs == pytest.approx([1.1, 1.3])
    for contest in judgement.contests:
        rows = {row.label: row for row in contest.cells}
        medians = [rows[label].record.latency for label in ("onnx[dynamic]", "onnx")]
        assert medians[0] and medians[1]
        assert rows["onnx[dynamic]"].over_own_build is not None
        assert rows["onnx[dynamic]"].over_own_build.value == medians[0].median_ms / medians[1].median_ms
        assert rows["onnx"].over_own_build is None


def changed(label: str, seqs: tuple[int, ...] = (16, 64), **update: object) -> DynamicRange:
    """Return the same range, in which the cells of this label are others at these sizes."""
    made = [
        record.model_copy(update=update)
        if record.cell.label == label and record.cell.dimensions["seq"] in seqs
        else record
        for record in records()
    ]
    (only,) = judge(report(made)).dynamic_ranges
    return only


def test_ranges_are_told_as_before(found: DynamicRange) -> None:
    """Only a cost that is established is named, and a build that is wrong at one size serves some."""
    wrong = changed("onnx[dynamic]", (16,), status=Status.INCORRECT, reason="rmse")
    cases = {"known": found, "noisy": changed("onnx[dynamic]", bursts=steady([0.7, 1.0, 1.7])), "wrong at one": wrong}
    same_as_golden("ranges.txt", "\n".join(f"{name}: {dynamic.finding(each)}" for name, each in cases.items()))
    onnx = next(build for build in wrong.builds if build.configuration == "onnx")
    assert dynamic.serves(onnx) == "some sizes (incorrect)" and len(onnx.costs) == 1


def test_the_csv_has_the_sizes_of_dynamic_builds(judgement: Judgement) -> None:
    header, *rows = to_csv(judgement).splitlines()
    assert {"dynamic", "recompiled", "over_own_build"} <= set(header.split(","))
    assert sum('"seq=16:64"' in row or "seq=16:64" in row for row in rows) == 6


def test_a_figure_shows_the_cost_over_the_sizes(judgement: Judgement) -> None:
    (sweep,) = judgement.sweeps
    palette = Palette(row.record for contest in judgement.contests for row in contest.cells)
    chart = next(one for one in charts.of_sweep(sweep, palette, judgement.report) if one.name == "sweep-dynamic")
    assert [label for label, _ in chart.legend][:2] == ["inductor[dynamic]", "onnx[dynamic]"]
    assert "onnx[dynamic] at seq 64: 1.30x" in " ".join(mark.tip for mark in chart.marks)


def test_a_dynamic_build_has_the_hue_of_its_backend() -> None:
    spans = {"seq": {"low": 16, "high": 64, "built_at": 32}}
    single, dynamic = failed(cell("onnx"), Status.OOM, ""), failed(cell("onnx", dynamic=spans), Status.OOM, "")
    looks = Palette([single, dynamic])
    assert looks("onnx").light == Palette([single])("onnx").light != looks("onnx[dynamic]").light
    assert looks("onnx").marker != looks("onnx[dynamic]").marker


def test_runs_without_a_range_have_no_such_table() -> None:
    plain = [record for record in records() if not record.cell.dynamic]
    judged = judge(report(plain))
    assert judged.dynamic_ranges == () and "one build for" not in to_markdown(judged)


def test_a_report_without_the_new_fields_still_reads() -> None:
    kept = report(records()[:2]).model_dump(mode="json")
    for record in kept["records"]:
        del record["recompiled"], record["cell"]["dynamic"]
    assert Report.model_validate(kept).records[0].cell.label == "eager"
