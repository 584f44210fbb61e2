"""Charts: one description each, painted for the page and for files, with colours and titles that agree with it."""

import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from PIL import Image
from pydantic import ValidationError

from bakeoff.judging.judgement import Judgement, contests_of, judge, judge_together
from bakeoff.records.schema import Interval, Record, Report, Status
from bakeoff.reports import charts, findings
from bakeoff.reports.charts import CHARTS_PER_FILE, Chart, Palette, rows
from bakeoff.reports.charts.chart import Axis, Dots, Hill, Line, Lost, Mark, Text, Tile
from bakeoff.reports.charts.fronts import speed_over_error
from bakeoff.reports.charts.paint import save_png, save_svg
from bakeoff.reports.charts.palette import BLACK, DARK_GROUND, WHITE, Look, luminance, parse_hex, ramp, readable
from bakeoff.reports.charts.sweep import compiled_attention, compiled_language_models
from bakeoff.reports.run_report import to_cell
from tests.judging import test_precisions as precisions
from tests.reports import test_columns, test_suite_report
from tests.reports.samples import (
    bursts,
    cell,
    conv_on_cpu,
    failed,
    hostile_on_cpu,
    judged,
    lived,
    mlp_on_cuda,
    ok,
    over_processes,
    report,
    strictly_on_cpu,
    suite,
    sweep,
)
from tests.support.golden import same_as_golden

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


def all_charts(judgement: Judgement) -> list[Chart]:
    """Return the charts of a single contest, or of suites and sweeps, and those of what compiling is worth."""
    made, contests = judgement.report, judgement.contests
    palette = Palette(found.record for contest in contests for found in contest.cells)
    return [
        *(charts.of_contest(contests[0], palette, made) if len(contests) == 1 else []),
        *(chart for found in judgement.suites for chart in charts.of_suite(found, palette, made)),
        *(chart for swept in judgement.sweeps for chart in charts.of_sweep(swept, palette, made)),
        *compiled_attention(contests),
        *compiled_language_models(contests),
    ]


def in_short(chart: Chart) -> str:
    """Return what a chart says and shows: its title and axes, its legend, texts inside of it, and the tips of marks. A
    mark with hollow dots has an `o` before its tip, and one with a cross an `x`."""
    shapes = [shape for mark in chart.marks for shape in mark.shapes]
    axes = {"x": chart.x, "y": chart.y}
    parts = [
        f"{chart.name}: {chart.finding} ({chart.subject})",
        *(f"{name} {axis.title} {axis.low:.3g} to {axis.high:.3g}{' log' * axis.is_log}"
          for name, axis in axes.items() if axis),
        *(f"number {text}" for _, text in chart.x.numbers),
        f"rows {', '.join(chart.rows)}" if chart.rows else "",
        f"legend {', '.join(label for label, _ in chart.legend)}" if chart.legend else "",
        chart.foot_note,
        f"texts {', '.join(shape.text for shape in shapes if isinstance(shape, Text | Tile))}",
        *(_kind(mark) + mark.tip + _points(mark) for mark in chart.marks if mark.tip),
    ]  # fmt: skip
    return "; ".join(filter(None, parts))


def _points(mark: Mark) -> str:
    """Return the places of a line with dots, which has the name of a configuration as its tip."""
    dots = [shape for shape in mark.shapes if isinstance(shape, Dots) and len(shape.xs) > 1]
    return "".join(f" {x:.4g}: {y:.3g}" for each in dots for x, y in zip(each.xs, each.ys, strict=True))


def _kind(mark: Mark) -> str:
    is_hollow = any(isinstance(shape, Dots | Hill) and not shape.is_filled for shape in mark.shapes)
    return "x " if any(isinstance(shape, Lost) for shape in mark.shapes) else "o " if is_hollow else ""


def test_charts_show_as_before() -> None:
    """What is in several panels is named by what differs, and a headline counts contests with a sure winner alone."""
    absent = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU", asked_by_name=True)
    crashed = failed(cell("iree"), Status.CRASH, "signal 11")
    three = [
        ok(cell("eager"), over_processes(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0),
        ok(cell("openvino"), over_processes(0.99, (0.9, 1.1, 1.0), seed=2), build_s=9.0),
    ]
    wider = [test_columns.attention(name, n, 3.0, width=64) for n in (256, 16384) for name in ("eager", "inductor")]
    noisy = (1.0, 1.04, 0.96)
    cases = {
        "conv": judged(conv_on_cpu()),
        "strict": judged(strictly_on_cpu()),
        "three": judged([*three, absent, crashed]),
        "a suite": judged(suite(5), complete=False),
        "a sweep": judge(sweep(contests=3, backends=5)),
        "one build for sizes": judged(test_suite_report.records()),
        "load": judged(test_suite_report.loaded_records()),
        "attention": judged([*test_columns.SWEPT, *wider]),
        "attention in two precisions": judged(test_columns.in_two_precisions()),
        "language models": judged(test_columns.MODELS),
    }
    lines = [f"{name}, {in_short(chart)}" for name, found in cases.items() for chart in all_charts(found)]
    across = {
        "precisions": precisions.judged(),
        "precisions under load, by a metric": precisions.under_load("top1>-5%"),
        "precisions of generations": precisions.generating({"fp32": 4, "bf16": 3, "int8": 1}),
    }
    for name, contest in across.items():
        chart = speed_over_error(contest, Palette(row.record for row in contest.cells))
        lines += [f"{name}, {in_short(chart)}"] if chart else []
    alone = [ok(each, bursts(1.0)) for each in (cell(precision="fp32"), cell(precision="bf16"), cell(model="mlp"))]
    lines += [f"panel: {text}" for text in findings.subjects(judged(alone).contests).values()]
    undecided = judged([lived(1.0, "onnx", noisy), lived(1.03, "eager", noisy[::-1])]).contests
    lines += [f"undecided {name}: {text}" for name, text in findings.headlines(undecided, []).items()]
    same_as_golden("charts.txt", "\n".join(lines))


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


def test_a_chart_with_nothing_to_show_is_not_drawn(tmp_path: Path) -> None:
    assert draw(report([]), tmp_path) == {}
    assert draw(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path) == {}
    made = report(hostile_on_cpu())
    (contest,) = contests_of(made)
    names = {chart.name for chart in charts.of_contest(contest, Palette(found.record for found in contest.cells), made)}
    # nothing to be faster than, and too few cells for a front
    assert names == (NAMES | {"drift"}) - {"speedup", "pareto"}


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
        interval = {"median_ci95_ms": Interval(low=low_ms, high=2.2)}
        widened = best.model_copy(update={"latency": best.latency.model_copy(update=interval)})
        cells = (replace(contest.cells[0], record=widened), *contest.cells[1:])
        chart = rows.latency(replace(contest, cells=cells), Palette(records))
        assert chart is not None and chart.x.is_log
        spans = [shape.xs for mark in chart.marks for shape in mark.shapes if isinstance(shape, Line)]
        assert all(chart.x.low <= x for xs in spans for x in xs)
        assert chart.x.low == pytest.approx(max(0.27 if low_ms > 0.1 else 0, 0.14) / 1.3, rel=0.05)


def test_outputs_of_a_notebook_keep_their_own_colours_and_say_what_their_figure_shows() -> None:
    pages = [to_cell(judge(report(records))) for records in (PAIR, [PAIR[0], TORCHSCRIPT])]
    scopes = [re.findall(r'<div class="bakeoff (\w+)">', page)[0] for page in pages]
    assert scopes[0] != scopes[1]
    for page, scope in zip(pages, scopes, strict=True):
        assert set(re.findall(r"\.([\w]+)\{--k0", page)) == {scope}
        assert re.search(r"<figcaption><strong>\w+ wins at .*</figcaption>", page)


def palette_of(*labels: str, **colours: str) -> Palette:
    """Return the palette of records of these labels. Backends have their own colours, or the given ones."""
    cells = [cell(backend, mode or "default") for backend, _, mode in (label.partition("/") for label in labels)]
    records = [failed(one, Status.OOM, "") for one in cells]
    return Palette(
        record.model_copy(update={"colour": colours.get(record.cell.backend, record.colour)}) for record in records
    )


LABELS = ["eager", "torchscript", "inductor", "inductor/a", "inductor/b", "onnx", "triton", "hotpath", "theirs"]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(luminance(parse_hex(text)) for text in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("look", [*palette_of(*LABELS).looks, *ramp("abcdef").values()])
def test_every_colour_is_readable_on_light_and_on_dark(look: Look) -> None:
    assert contrast(look.light, "#ffffff") >= 2.08 and contrast(look.dark, DARK_GROUND) >= 2.97  # rounded to 8 bits


def test_a_backend_has_one_hue_and_a_mode_another_lightness_and_shape() -> None:
    palette = palette_of(*LABELS)
    plain, tuned = palette("inductor"), palette("inductor/a")
    assert plain.light == "#e69f00"
    assert luminance(parse_hex(tuned.dark)) > luminance(parse_hex(plain.dark)) and tuned.marker != plain.marker
    assert len({look.dark for look in palette.looks}) == len(LABELS)
    assert [look.number for look in palette.looks] == list(range(len(LABELS)))


def test_unknown_backends_get_colours_by_name_whatever_their_order() -> None:
    forth, back = palette_of("zeta", "alpha", "eager"), palette_of("eager", "alpha", "zeta")
    assert all(forth(label).light == back(label).light for label in ("zeta", "alpha", "eager"))
    assert forth("zeta").light != forth("alpha").light
    assert palette_of("zeta")("zeta").light == palette_of("zeta", "onnx", "theirs")("zeta").light, (
        "one report as another"
    )


def test_a_backend_of_somebody_else_has_the_colour_that_its_records_carry() -> None:
    assert palette_of("theirs", "eager", theirs="#0000ff")("theirs").light == "#0000ff"


@pytest.mark.parametrize("colour", ["red", "#00f", "#0000ff;}", "url(x)"])
def test_a_record_carries_nothing_but_a_colour(colour: str) -> None:
    with pytest.raises(ValidationError):
        failed(cell("onnx"), Status.OOM, "", colour=colour)


def test_a_readable_colour_stays_as_it_is() -> None:
    assert readable(parse_hex("#0072b2"), WHITE, 2.1) == parse_hex("#0072b2")
    assert readable(WHITE, WHITE, 22.0) == BLACK  # more than there is


def test_luminance_is_that_of_the_standard() -> None:
    assert (luminance(BLACK), luminance(WHITE)) == (0.0, pytest.approx(1.0))
    assert luminance(parse_hex("#ff0000")) == pytest.approx(0.2126)


@pytest.mark.parametrize("is_complete", [True, False])
def test_every_title_says_so_far_where_the_run_is_incomplete_and_only_there(is_complete: bool) -> None:
    made = report([*conv_on_cpu(), *mlp_on_cuda(), *strictly_on_cpu()], complete=is_complete)
    for contest in judge(made).contests:
        drawn = charts.of_contest(contest, Palette(found.record for found in contest.cells), made)
        assert drawn and all(chart.finding.startswith("so far, ") is not is_complete for chart in drawn)
