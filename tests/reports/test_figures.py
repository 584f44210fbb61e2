import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from judging.judgement import contests_of, judge_together
from judging.sweeps import sweeps_of
from records.schema import Report, Status
from reports.figure_style import COLUMN_WIDTH_IN, DPI, WIDTH_IN, Look, Looks, save, styled
from reports.figures import draw, latency
from reports.figures import sweep as sweeps
from reports.figures.panels import PANELS_PER_FIGURE, Drawing, figure_of
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

NAMES = {"latency", "speedup", "build-vs-speedup", "costs", "pareto", "phases", "samples"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every figure of the whole sample, by file name."""
    return {path.name: path for path in draw(report(), tmp_path_factory.mktemp("run") / "figures")}


def texts(svg: Path) -> list[str]:
    """What a reader can read and search in it."""
    return [
        "".join(node.itertext()).strip() for node in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def png_size_and_dpi(path: Path) -> tuple[int, int, int]:
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    per_metre = struct.unpack(">I", data[data.index(b"pHYs") + 4 :][:4])[0]
    return width, height, round(per_metre * 0.0254)


def test_every_figure_is_written_as_png_and_svg(drawn: dict[str, Path]) -> None:
    assert set(drawn) == {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg")}
    assert all(path.stat().st_size > 5_000 for path in drawn.values())


def test_a_png_has_200_dpi_and_the_width_of_a_page(drawn: dict[str, Path]) -> None:
    width, height, dpi = png_size_and_dpi(drawn["latency.png"])
    assert (width, dpi) == (round(WIDTH_IN * DPI), 200)
    assert width / 3 < height < 2 * width


def drawn_alone(drawing: Drawing[Any], subjects: Sequence[Any], labels: Sequence[str], stem: Path) -> tuple[Path, Path]:
    """One figure, without all the others, as PNG and SVG."""
    with styled():
        png, svg = save(figure_of(drawing, subjects, Looks(labels)), stem)
    return png, svg


def test_a_single_contest_is_as_wide_as_a_column(tmp_path: Path) -> None:
    (contest,) = contests_of(report(conv_on_cpu()[:2]))
    png, _ = drawn_alone(latency.DRAWING, [contest], ["eager", "inductor"], tmp_path / "latency")
    assert png_size_and_dpi(png)[0] == round(COLUMN_WIDTH_IN * DPI)


def test_a_sweep_becomes_lines_over_its_sizes_with_a_cross_where_a_cell_failed(tmp_path: Path) -> None:
    made = sweep(contests=8, backends=5)
    swept = sweeps_of(contests_of(made))
    labels = [record.cell.label for record in made.records]
    over_latency, over_speedup = (drawn_alone(each, swept, labels, tmp_path / each.name)[1] for each in sweeps.DRAWINGS)
    found = texts(over_latency)
    assert {"median latency (ms)", "batch", "failed", "inductor/max-autotune"} <= set(found)
    assert "transformer (sequence 128) on cpu, fp32, over batch" in found
    assert any(text.startswith(("fastest: ", "fastest at every batch: ")) for text in found)
    assert "speed-up over eager (x)" in texts(over_speedup)


def test_several_reports_are_drawn_as_one_and_what_is_in_both_names_its_run(tmp_path: Path) -> None:
    conv, mlp = conv_on_cpu()[:2], mlp_on_cuda()[:2]
    both = judge_together([report(conv, run_id="before"), report([*conv, *mlp], run_id="after")]).contests
    _, svg = drawn_alone(latency.DRAWING, both, ["eager", "inductor"], tmp_path / "latency")
    found = " ".join(texts(svg))
    assert ", before" in found and ", after" in found
    assert "mlp on cuda, fp16" in found and "mlp on cuda, fp16, after" not in found


def test_an_svg_keeps_its_text_and_says_what_is_seen(drawn: dict[str, Path]) -> None:
    found = texts(drawn["latency.svg"])
    assert "onnx and tensorrt tie on mlp" in found
    assert any(text.startswith("onnx is fastest on conv: 1.8") for text in found)
    assert "median latency (ms), 95 % interval" in found
    assert any("$x$" in text for text in found)  # a name, not mathematics


def test_a_failed_cell_is_a_mark_and_not_a_gap(drawn: dict[str, Path]) -> None:
    for name in ("latency", "speedup", "samples"):
        found = texts(drawn[f"{name}.svg"])
        assert {"\u00d7 crash in load (signal 11)", "\u00d7 oom in compile", "\u00d7 unavailable"} <= set(found), name
    assert "\u00d7 incorrect" in texts(drawn["speedup.svg"])
    assert any(text.endswith("incorrect") and text[0].isdigit() for text in texts(drawn["latency.svg"]))
    assert any("torchscript\xa0crash" in text for text in texts(drawn["build-vs-speedup.svg"]))
    assert any("3.9" in text and "crash in load" in text for text in texts(drawn["phases.svg"]))


def test_what_strict_failed_is_labelled_as_that(tmp_path: Path) -> None:
    draw(report(strictly_on_cpu()), tmp_path)
    found = texts(tmp_path / "latency.svg")
    assert sum(text.endswith(" fallback") and text[0].isdigit() for text in found) == 2
    assert not any("incorrect" in text for text in found)
    assert texts(tmp_path / "samples.svg")


def test_a_figure_with_nothing_to_show_is_not_written(tmp_path: Path) -> None:
    assert draw(report([]), tmp_path) == []
    assert draw(report([failed(cell("onnx"), Status.CRASH, "signal 11")]), tmp_path) == []
    names = {path.stem for path in draw(report(hostile_on_cpu()), tmp_path)}
    assert names == NAMES - {"speedup", "build-vs-speedup"}  # nothing to be faster than


def test_the_costs_are_drawn_for_each_start_with_their_crossings(tmp_path: Path) -> None:
    records = [
        ok(cell("eager"), over_processes(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0),
        ok(cell("openvino"), over_processes(0.99, (0.9, 1.1, 1.0), seed=2), build_s=9.0),
    ]
    assert {path.stem for path in draw(report(records), tmp_path)} == NAMES | {"costs-warm"}
    cold, warm = (texts(tmp_path / f"{name}.svg") for name in ("costs", "costs-warm"))
    assert {"total time / eager's", "calls"} <= set(cold)
    sure = next(text for text in cold if re.fullmatch(r"2,0\d\d|1,9\d\d", text))  # 2 s against 1 ms a call
    assert any(text.startswith("eager costs least up to call ") and "openvino" in text for text in cold)
    assert any(re.fullmatch(r"[\d,]+\?", text) for text in cold)  # openvino is no faster than onnx, for all one knows
    assert sure not in warm and "onnx" in warm


def test_what_nothing_dominates_is_what_is_seen(drawn: dict[str, Path]) -> None:
    found = texts(drawn["pareto.svg"])
    assert "nothing dominates onnx and eager" in found
    assert {"median latency (ms)", "build time (s)"} <= set(found)


def test_more_contests_than_fit_go_to_a_further_figure(tmp_path: Path) -> None:
    count = PANELS_PER_FIGURE + 1
    records = [ok(cell("null", dimensions={"batch": size}), bursts(1.0, rounds=2, calls=3)) for size in range(count)]
    files = {path.name for path in draw(report(records), tmp_path)}
    assert {"latency.png", "latency-2.png"} <= files
    assert "latency-3.png" not in files
    assert "null (batch 12) on cpu, fp32" not in texts(tmp_path / "latency.svg")
    assert any("batch 12" in text for text in texts(tmp_path / "latency-2.svg"))


def looks_of(made: Report) -> dict[str, Look]:
    labels = [row.label for contest in contests_of(made) for row in contest.cells]
    looks = Looks(labels)
    return {label: looks(label) for label in labels}


def test_a_backend_has_one_colour_and_a_mode_another_lightness_hatch_and_marker() -> None:
    looks = looks_of(report(conv_on_cpu()))
    plain, tuned = looks["inductor"], looks["inductor/max-autotune"]
    assert matplotlib.colors.to_hex(plain.colour) == "#e69f00"
    assert sum(tuned.colour) > sum(plain.colour)
    lost_white = [(1 - a) / (1 - b) for a, b in zip(tuned.colour, plain.colour, strict=True)]
    assert np.ptp(lost_white) < 1e-9  # the same hue, mixed with white
    assert tuned.hatch != plain.hatch and tuned.marker != plain.marker
    assert len({look.colour for look in looks.values()}) == len(looks)


def test_unknown_backends_get_colours_by_name_whatever_their_order() -> None:
    records = [ok(cell(name), bursts(1.0)) for name in ("zeta", "alpha", "eager")]
    forth, back = looks_of(report(records)), looks_of(report(records[::-1]))
    assert forth == back
    assert len(set(forth.values())) == 3


def test_drawing_leaves_no_global_state(tmp_path: Path) -> None:
    before = matplotlib.rcParams.copy()
    draw(report(hostile_on_cpu()), tmp_path)
    assert matplotlib.rcParams.copy() == before


@pytest.mark.parametrize("median_ms", [1e-6, 1e5])
def test_one_burst_of_one_call_can_be_drawn(tmp_path: Path, median_ms: float) -> None:
    made = report([ok(cell("eager"), bursts(median_ms, 1, 1)), ok(cell("onnx"), bursts(2 * median_ms, 1, 1))])
    assert {path.stem for path in draw(made, tmp_path)} == NAMES
