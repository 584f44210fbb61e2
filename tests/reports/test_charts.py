"""Charts: one description each, painted for the page and for files."""

import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from bakeoff.judging.judgement import contests_of, judge, judge_together
from bakeoff.records.schema import Interval, Record, Report, Status
from bakeoff.reports import charts
from bakeoff.reports.charts import CHARTS_PER_FILE, Chart, Palette, speed
from bakeoff.reports.charts.chart import Axis, Line
from bakeoff.reports.charts.paint import save_png, save_svg
from bakeoff.reports.run_report import to_cell
from tests.reports.samples import (
    bursts,
    cell,
    conv_on_cpu,
    failed,
    hostile_on_cpu,
    mlp_on_cuda,
    ok,
    over_processes,
    report,
    strictly_on_cpu,
    sweep,
)

PAIR = [ok(cell(), over_processes(2.0)), ok(cell("onnx"), over_processes(1.0), build_s=1.0)]
TORCHSCRIPT = ok(cell("torchscript"), over_processes(1.0), build_s=1.0)
NAMES = {"latency", "speedup", "costs", "pareto", "phases", "samples"}
SVG = "{http://www.w3.org/2000/svg}"


def draw(made: Report, folder: Path) -> dict[str, Path]:
    """Every file, by its name."""
    return {path.name: path for path in charts.draw(judge(made), folder)}


def described(records: Sequence[Record], name: str) -> tuple[Chart, Palette]:
    """The chart of that name of the only contest of these records."""
    made = report(list(records))
    (contest,) = contests_of(made)
    palette = Palette(found.record for found in contest.cells)
    return next(chart for chart in charts.of_contest(contest, palette, made) if chart.name == name), palette


def seen(chart: Chart, palette: Palette) -> list[str]:
    """What is written in a chart on the page."""
    return ["".join(node.itertext()) for node in ElementTree.fromstring(charts.svg(chart, palette)).iter("text")]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every file of the whole sample, by its name."""
    return draw(report(), tmp_path_factory.mktemp("run") / "figures")


def texts(svg: Path) -> list[str]:
    """What a reader can read and search in it."""
    return ["".join(node.itertext()).strip() for node in ElementTree.parse(svg).iter(f"{SVG}text")]


def png_size_and_dpi(path: Path) -> tuple[int, int, int]:
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    per_metre = struct.unpack(">I", data[data.index(b"pHYs") + 4 :][:4])[0]
    return width, height, round(per_metre * 0.0254)


def test_every_figure_is_written_as_svg_and_for_papers_as_png(drawn: dict[str, Path], tmp_path: Path) -> None:
    assert set(drawn) == {f"{name}.svg" for name in NAMES}
    files = charts.draw(judge(report(PAIR)), tmp_path, png=True)
    assert {f"{name}.{kind}" for name in NAMES - {"pareto"} for kind in ("png", "svg")} <= {path.name for path in files}


def test_a_figure_is_as_wide_as_a_page_or_for_one_contest_as_a_column(tmp_path: Path) -> None:
    chart = described(PAIR, "latency")[0]
    width, height, dpi = png_size_and_dpi(save_png([chart] * 3, "three", tmp_path / "three.png"))
    assert (width, dpi) == (1440, 200) and width / 3 < height < 2 * width
    assert png_size_and_dpi(save_png([chart], "", tmp_path / "one.png"))[0] == 700


def test_files_are_the_same_each_time_and_no_setting_of_matplotlib_changes(tmp_path: Path) -> None:
    before = matplotlib.rcParams.copy()
    first, again = (draw(report(hostile_on_cpu()), tmp_path / name) for name in ("first", "again"))
    assert {name: path.read_bytes() for name, path in first.items()} == {
        name: path.read_bytes() for name, path in again.items()
    }
    assert matplotlib.rcParams.copy() == before


def test_a_sweep_becomes_lines_over_its_sizes_with_a_cross_where_a_cell_failed() -> None:
    made = sweep(contests=8, backends=5)
    (swept,) = judge(made).sweeps
    palette = Palette(made.records)
    over_latency, over_speedup = charts.of_sweep(swept, palette, made)
    assert (over_latency.x.title, over_latency.subject) == (
        "batch",
        "transformer (sequence 128) on cpu, fp32, over batch",
    )
    assert over_latency.finding.startswith(("fastest: ", "fastest at every batch: "))
    assert {"failed", "inductor/max-autotune"} <= dict(over_latency.legend).keys()
    assert {"median latency (ms)", "batch", "128"} <= set(seen(over_latency, palette))
    assert "speed-up over eager (x)" in seen(over_speedup, palette)


def test_what_is_in_several_reports_names_its_run() -> None:
    conv, mlp = conv_on_cpu()[:2], mlp_on_cuda()[:2]
    both = judge_together([report(conv, run_id="before"), report([*conv, *mlp], run_id="after")])
    palette = Palette(found.record for contest in both.contests for found in contest.cells)
    subjects = [charts.of_contest(contest, palette, both.report)[0].subject for contest in both.contests]
    assert [subject.rpartition(", ")[2] for subject in subjects] == ["before", "after", "fp16"]


def test_an_svg_keeps_its_text_and_says_what_is_seen(drawn: dict[str, Path]) -> None:
    found = texts(drawn["latency.svg"])
    assert any(text.startswith("no winner yet between onnx") for text in found)
    assert any(text.startswith("onnx wins at 0.9529 ms") for text in found)
    assert "median latency (ms), 95 % interval" in found
    assert any("$x$" in text for text in found)  # a name, not mathematics
    assert "median latency (ms)" in texts(drawn["pareto.svg"])


def test_a_failed_cell_is_a_mark_and_not_a_gap(drawn: dict[str, Path]) -> None:
    for name in ("latency", "speedup", "samples"):
        found = texts(drawn[f"{name}.svg"])
        assert {"\u00d7 crash in load", "\u00d7 oom in compile", "\u00d7 unavailable"} <= set(found), name
    assert "\u00d7 incorrect" in texts(drawn["speedup.svg"])
    assert any(text.endswith("incorrect") and text[0].isdigit() for text in texts(drawn["latency.svg"]))
    assert any("torchscript crash" in text for text in texts(drawn["pareto.svg"]))
    assert any("3.9" in text and "crash in load" in text for text in texts(drawn["phases.svg"]))


def test_what_strict_failed_is_labelled_as_that() -> None:
    found = seen(*described(strictly_on_cpu(), "latency"))
    assert sum(text.endswith(" fallback") and text[0].isdigit() for text in found) == 2
    assert not any("incorrect" in text for text in found)


def test_a_chart_with_nothing_to_show_is_not_drawn(tmp_path: Path) -> None:
    assert draw(report([]), tmp_path) == {}
    assert draw(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path) == {}
    made = report(hostile_on_cpu())
    (contest,) = contests_of(made)
    names = {chart.name for chart in charts.of_contest(contest, Palette(found.record for found in contest.cells), made)}
    # nothing to be faster than, and too few cells for a front
    assert names == (NAMES | {"drift"}) - {"speedup", "pareto"}


def test_the_costs_are_drawn_from_a_cold_start_with_their_crossings() -> None:
    records = [
        ok(cell("eager"), over_processes(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0),
        ok(cell("openvino"), over_processes(0.99, (0.9, 1.1, 1.0), seed=2), build_s=9.0),
    ]
    cold = seen(*described(records, "costs"))
    assert {"total time / eager's", "calls"} <= set(cold)
    assert any(re.fullmatch(r"2,0\d\d|1,9\d\d", text) for text in cold)  # 2 s against 1 ms a call
    assert described(records, "costs")[0].finding.startswith("eager costs least up to call ")
    assert any(re.fullmatch(r"[\d,]+\?", text) for text in cold)  # openvino may be no faster than onnx


def test_more_contests_than_fit_go_to_a_further_figure(tmp_path: Path) -> None:
    names = [f"model_{number}" for number in range(CHARTS_PER_FILE + 1)]
    records = [ok(cell("null", model=name), bursts(1.0, rounds=2, calls=3)) for name in names]
    files = draw(report(records), tmp_path)
    assert {"latency.svg", "latency-2.svg"} <= set(files) and "latency-3.svg" not in files
    assert "model_12 on cpu, fp32" not in texts(files["latency.svg"])
    assert "model_12 on cpu, fp32" in texts(files["latency-2.svg"])


def test_what_a_sweep_shows_its_contests_do_not_show_again(tmp_path: Path) -> None:
    files = draw(sweep(contests=2, backends=2), tmp_path)
    assert {"sweep-latency.svg", "sweep-speedup.svg", "phases.svg"} <= set(files)
    assert not {"latency.svg", "speedup.svg"} & set(files)


@pytest.mark.parametrize("median_ms", [1e-6, 1e5])
def test_one_burst_of_one_call_can_be_drawn(median_ms: float) -> None:
    records = [ok(cell(label), bursts(n * median_ms, 1, 1)) for n, label in enumerate(("eager", "onnx", "iree"), 1)]
    for name in NAMES:
        assert seen(*described(records, name))


def test_a_chart_on_the_page_has_marks_with_tips_and_colours_that_follow_the_theme() -> None:
    chart, palette = described(PAIR, "latency")
    svg = charts.svg(chart, palette)
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"].startswith("onnx wins at 1.018 ms, ")
    (first, second) = [node for node in root.iter("g") if node.get("class") == "mark"]
    assert first.attrib["data-k"] == str(palette("onnx").number)
    assert (first.findtext("title") or "").startswith("onnx: ") and (second.findtext("title") or "").startswith("eager")
    assert f"var(--k{palette('onnx').number})" in svg and "var(--ink)" in svg
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []
    assert "wins at" not in "".join(root.itertext())  # the page writes that as text of its own


def test_the_page_and_the_file_have_the_same_colours(tmp_path: Path) -> None:
    chart, palette = described([ok(cell("torchscript"), over_processes(2.0)), PAIR[1]], "latency")
    png, svg = save_png([chart], "", tmp_path / "latency.png"), save_svg([chart], "", tmp_path / "latency.svg")
    with Image.open(png) as image:
        pixels = image.convert("RGB").crop((30, 0, 100, image.height)).tobytes()
    painted = {"#" + pixels[start : start + 3].hex() for start in range(0, len(pixels), 3)}
    written = set(re.findall(r"#[0-9a-f]{6}", svg.read_text(encoding="utf-8")))
    assert {palette(label).light for label in ("torchscript", "onnx")} <= painted & written


def test_values_have_a_place_on_their_axis() -> None:
    assert [Axis("", 1.0, 100.0, is_log=True).share(value) for value in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    assert Axis("", 2.0, 4.0).share(3.0) == 0.5


def test_an_interval_that_begins_below_the_axis_is_cut_off_there() -> None:
    """A median of 1.4 ms beside 40 ms, whose interval begins at 0.27 ms, or at next to nothing."""
    for low_ms in (0.27, 1e-6):
        records = [ok(cell(), over_processes(40.0)), ok(cell("onnx"), over_processes(1.4))]
        (contest,) = contests_of(report(records))
        best = contest.cells[0].record
        assert best.latency is not None
        interval = {"median_ci95_ms": Interval(low=low_ms, high=2.2)}
        widened = best.model_copy(update={"latency": best.latency.model_copy(update=interval)})
        cells = (replace(contest.cells[0], record=widened), *contest.cells[1:])
        chart = speed.latency(replace(contest, cells=cells), Palette(records))
        assert chart is not None and chart.x.is_log
        spans = [shape.xs for mark in chart.marks for shape in mark.shapes if isinstance(shape, Line)]
        assert all(chart.x.low <= x for xs in spans for x in xs)
        assert chart.x.low == pytest.approx(max(0.27 if low_ms > 0.1 else 0, 0.14) / 1.3, rel=0.05)


def test_two_backends_have_no_front_and_what_is_absent_stands_below_no_chart() -> None:
    made = report(PAIR)
    (contest,) = contests_of(made)
    drawn_of = charts.of_contest(contest, Palette(PAIR), made)
    assert "pareto" not in {chart.name for chart in drawn_of}
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU", asked_by_name=True)
    crashed = failed(cell("iree"), Status.CRASH, "signal 11")
    chart, _ = described([*PAIR, ok(cell("openvino"), over_processes(1.5)), absent, crashed], "pareto")
    assert chart.foot_note == "\u00d7 iree crash"


def test_outputs_of_a_notebook_keep_their_own_colours_and_say_what_their_figure_shows() -> None:
    pages = [to_cell(judge(report(records))) for records in (PAIR, [PAIR[0], TORCHSCRIPT])]
    scopes = [re.findall(r'<div class="bakeoff (\w+)">', page)[0] for page in pages]
    assert scopes[0] != scopes[1]
    for page, scope in zip(pages, scopes, strict=True):
        assert set(re.findall(r"\.([\w]+)\{--ink", page)) == {scope}
        assert re.search(r"<figcaption><strong>\w+ wins at .*</figcaption>", page)
