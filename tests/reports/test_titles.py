"""The title of every chart agrees with its marks and with the judgement, in the showcase and in built reports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import judge
from bakeoff.records import report_file
from bakeoff.records.schema import Report
from bakeoff.reports import charts, findings
from bakeoff.reports.charts import Chart, Palette
from bakeoff.reports.charts.chart import Dots, Hill, Line, Mark, Text, Tile
from tests.reports.samples import (
    LAYOUTS,
    cell,
    lived,
    ok,
    over_processes,
    report,
    roofline,
    strictly_on_cpu,
    suite,
    sweep,
)

SHOWCASE = Path(__file__).parents[2] / "docs" / "showcase"


@dataclass(frozen=True)
class Drawn:
    """The charts of one contest by their names."""

    report: Report
    contest: ContestJudgement
    palette: Palette
    charts: dict[str, Chart]

    def label(self, mark: Mark) -> str:
        """The configuration that a mark is of."""
        return next((label for label in self.palette.labels if self.palette(label) == mark.look), "")

    def shapes(self, name: str, kind: type) -> list[tuple[str, object]]:
        """All shapes of that kind in a chart, with the configurations that they are of."""
        marks = self.charts[name].marks if name in self.charts else ()
        return [(self.label(mark), shape) for mark in marks for shape in mark.shapes if isinstance(shape, kind)]


def described(made: Report) -> list[Drawn]:
    drawn = []
    for contest in judge(made).contests:
        palette = Palette(found.record for found in contest.cells)
        found = charts.of_contest(contest, palette, made)
        drawn.append(Drawn(made, contest, palette, {chart.name: chart for chart in found}))
    return drawn


def built() -> list[Report]:
    """Reports with a tie, with nothing decided, with a lead while a cell is open, and beyond the floor."""
    noisy, wild = (1.0, 1.04, 0.96), (0.6, 1.0, 1.9, 1.2, 0.7)
    pairs = [
        [lived(1.0, "onnx"), lived(1.0, "eager"), lived(2.0, "openvino")],
        [lived(1.0, "onnx", noisy), lived(1.03, "eager", noisy[::-1])],
        [lived(1.0, "onnx"), lived(1.3, "eager"), lived(1.6, "openvino", wild)],
        [lived(1.0, "onnx"), lived(1.01, "eager")],
        [ok(cell(), over_processes(0.10), roofline=roofline(0.1)), lived(0.06, "onnx", roofline=roofline(0.06))],
        [lived(1.0, "onnx", LAYOUTS), lived(3.0, "eager", build_s=2.0), lived(4.0, "inductor", build_s=9.0)],
    ]
    made = [report(pair, complete=bool(place % 2)) for place, pair in enumerate(pairs)]
    return [report(), report(strictly_on_cpu()), *made]


@pytest.fixture(scope="module")
def everything() -> list[Drawn]:
    """Every contest of the showcase and of the built reports."""
    shown = [report_file.read(SHOWCASE / name) for name in ("cpu", "h200")]
    return [drawn for made in (*shown, *built()) for drawn in described(made)]


def test_every_title_says_so_far_where_the_run_is_incomplete_and_only_there(everything: list[Drawn]) -> None:
    assert {drawn.report.complete for drawn in everything} == {True, False}
    for drawn in everything:
        for chart in drawn.charts.values():
            assert chart.finding.startswith("so far, ") == (not drawn.report.complete), chart.finding


def test_every_chart_names_machine_versions_and_date(everything: list[Drawn]) -> None:
    for drawn in everything:
        environment = drawn.report.environment
        for chart in drawn.charts.values():
            assert drawn.report.created_at[:10] in chart.origin
            assert environment.cpu in chart.origin or any(gpu.name in chart.origin for gpu in environment.gpus)
            assert all(
                f"{name} {version}" in chart.origin
                for made in drawn.contest.cells
                for name, version in made.record.versions.items()
            )


def test_only_a_sure_winner_is_called_the_fastest(everything: list[Drawn]) -> None:
    said = set()
    for drawn in everything:
        contest = drawn.contest
        if "latency" not in drawn.charts:
            continue
        title = drawn.charts["latency"].finding.removeprefix("so far, ")
        if wins := " wins at " in title:
            assert contest.fastest.winner and title.startswith(contest.fastest.winner)
        assert title.startswith("no winner yet") is (contest.fastest.certainty is Certainty.OPEN)
        assert title.startswith("tie") is (contest.fastest.certainty is Certainty.TIE)
        said.add("wins" if wins else title.split()[0])
        ratio = re.search(r"(x to )?([\d.,]+x) as fast as eager", title)
        if wins and ratio and not ratio[1]:
            shown = dict(drawn.shapes("speedup", Text))[contest.fastest.winner or ""]
            assert isinstance(shown, Text) and shown.text == ratio[2]
    assert said >= {"wins", "no", "tie"}


def test_as_many_are_faster_than_the_baseline_as_there_are_dots_and_intervals_above_1(everything: list[Drawn]) -> None:
    unsure = 0
    for drawn in everything:
        if "speedup" not in drawn.charts:
            continue
        title, baseline = drawn.charts["speedup"].finding, drawn.contest.baseline
        called, of, perhaps = re.findall(r"(\d+|none) of (\d+) faster than \w+(?:, (\d+) more)?", title)[0]
        dots = [(label, dot) for label, dot in drawn.shapes("speedup", Dots) if label != baseline]
        filled = [dot for _, dot in dots if isinstance(dot, Dots) and dot.is_filled and dot.xs[0] > 1]
        lines = {label: line.xs[0] for label, line in drawn.shapes("speedup", Line) if isinstance(line, Line)}
        above = [dot for label, dot in dots if isinstance(dot, Dots) and lines.get(label, dot.xs[0]) > 1]
        assert (len(dots), len(filled)) == (int(of), 0 if called == "none" else int(called)), title
        assert len(above) == len(filled) + int(perhaps or 0), title
        unsure += int(perhaps or 0)
    assert unsure


def test_the_hollow_dots_are_those_that_the_title_calls_dominated(everything: list[Drawn]) -> None:
    counts = set()
    for drawn in everything:
        if "pareto" not in drawn.charts:
            continue
        dots = {label: dot.is_filled for label, dot in drawn.shapes("pareto", Dots) if isinstance(dot, Dots)}
        title = drawn.charts["pareto"].finding.removeprefix("so far, ")
        hollow = [label for label, is_filled in dots.items() if not is_filled]
        counts.add(len(hollow))
        if title.startswith("none of the "):
            assert not hollow and f" {len(dots)} is" in title
        elif " only " in title:
            assert all(label not in hollow for label in dots if f"only {label} " in title)
        elif " others " not in title:
            assert {label for label in dots if re.search(rf"[ ,]{re.escape(label)}[ ,]", title)} == set(hollow), title
    assert min(counts) == 0 < max(counts)


def test_the_calls_that_spread_most_are_those_of_the_widest_hill(everything: list[Drawn]) -> None:
    for drawn in everything:
        hills = {label: hill for label, hill in drawn.shapes("samples", Hill) if isinstance(hill, Hill)}
        if not hills:
            continue
        by_label = drawn.contest.distributions.by_label
        widest = max(hills, key=lambda label: by_label[label].high_ms / by_label[label].low_ms)
        assert f"{widest}'s calls spread most" in drawn.charts["samples"].finding


def test_the_line_at_a_latency_stands_within_its_hill(everything: list[Drawn]) -> None:
    checked = 0
    for drawn in everything:
        hills = {label: hill for label, hill in drawn.shapes("samples", Hill) if isinstance(hill, Hill)}
        latencies = {made.label: made.latency.median_ms for made in drawn.contest.cells if made.latency}
        for label, line in drawn.shapes("samples", Line):
            if label in hills and isinstance(line, Line):
                hill = hills[label]
                assert hill.xs[0] <= line.xs[0] <= hill.xs[-1]
                assert line.xs[0] == pytest.approx(latencies[label], rel=0.05)
                assert min(line.ys) >= float(np.interp(line.xs[0], hill.xs, hill.ys)) - 1e-9
                checked += 1
    assert checked > 20


def test_what_takes_longest_has_the_longest_bar_of_those_that_answered(everything: list[Drawn]) -> None:
    for drawn in everything:
        ends = {label: text.x or 0.0 for label, text in drawn.shapes("phases", Text) if isinstance(text, Text)}
        answered = {made.label for made in drawn.contest.cells if made.latency and made.record.phases}
        if answered:
            title = drawn.charts["phases"].finding.removeprefix("so far, ")
            (named,) = (label for label in ends if title.startswith(f"{label} takes longest"))
            assert named in answered and ends[named] == max(ends[label] for label in answered)


def test_a_floor_that_a_cell_is_faster_than_is_not_drawn(everything: list[Drawn]) -> None:
    beaten = [drawn for drawn in everything if drawn.contest.roofline and drawn.contest.roofline.is_beaten]
    assert beaten and not any("roofline" in drawn.charts for drawn in beaten)
    for drawn in everything:
        if "roofline" not in drawn.charts:
            continue
        title = drawn.charts["roofline"].finding
        best = drawn.contest.best
        share = best.record.roofline.share if best and best.record.roofline else None
        assert (drawn.contest.fastest.winner or "the lowest latency") in title or not share


def test_titles_of_panels_in_one_file_show_what_differs() -> None:
    precisions = [ok(cell(precision=name), over_processes(1.0)) for name in ("fp32", "bf16")]
    contests = judge(report([*precisions, ok(cell(model="mlp"), over_processes(1.0))])).contests
    assert [text.partition(":")[0] for text in findings.subjects(contests).values()] == [
        "fp32",
        "bf16",
        "mlp on cpu, fp32",
    ]


def test_a_sweep_has_another_title_over_its_latencies_than_over_its_speedups() -> None:
    made = sweep(contests=3, backends=3)
    (swept,) = judge(made).sweeps
    over_latency, over_speedup = charts.of_sweep(swept, Palette(made.records), made)
    assert "fastest" in over_latency.finding
    last = swept.contests[-1]
    gain = last.best.speedup.value if last.best and last.best.speedup else 0.0
    assert over_speedup.finding.endswith(
        f"{last.fastest.winner} {gain:.2f}x eager at batch 4" if last.fastest.winner else "at batch 4"
    )


def test_a_headline_counts_only_contests_with_a_sure_winner() -> None:
    noisy = (1.0, 1.04, 0.96)
    undecided = judge(report([lived(1.0, "onnx", noisy), lived(1.03, "eager", noisy[::-1])])).contests
    found = findings.headlines(undecided, [])
    assert "no contest has a sure winner" in found["latency"] and "no contest has" in found["speedup"]


def test_titles_over_many_models_agree_with_the_lines_and_tiles() -> None:
    made = report(suite(5), complete=False)
    judgement = judge(made)
    (found,), palette = judgement.suites, Palette(made.records)
    profile, speedups = charts.of_suite(found, palette, made)
    lines = {
        mark.look.number: line for mark in profile.marks for line in mark.shapes if mark.look and isinstance(line, Line)
    }
    for row in found.rows:
        line = lines[palette(row.label).number]
        assert list(line.ys) == sorted(line.ys) and line.ys[-1] == row.passed / 5
    number = re.findall(r"^so far, onnx is within 10 % of the best on (\d) of 5$", profile.finding)
    assert [int(text) / 5 for text in number] == [lines[palette("onnx").number].ys[0]]
    tiles = [tile for mark in speedups.marks for tile in mark.shapes if isinstance(tile, Tile) and mark.tip]
    faster = [tile for tile in tiles if re.fullmatch(r"[\d.]+", tile.text) and float(tile.text) > 1.1]
    ranked = [tile for tile in tiles if re.fullmatch(r"[\d.]+", tile.text)]
    assert speedups.finding == f"so far, {len(faster)} of {len(ranked) - 5} cells are faster than eager"
    assert sorted(tile.text for tile in tiles if tile.ink == "bad") == ["crash", "crash", "error"]
