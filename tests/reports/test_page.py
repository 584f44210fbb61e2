import itertools
import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest

from judging.compare import compare
from judging.judgement import judge
from records.schema import Accuracy, Extent, Placement, Record, Report, Stage, Status, WarmUp
from reports.page import DOUBTS_SHOWN, comparison_to_page, to_page
from tests.reports.samples import (
    accuracy,
    cell,
    constant,
    conv_on_cpu,
    environment,
    failed,
    judged,
    mlp_on_cuda,
    ok,
    over_processes,
    product_on_cuda,
    report,
    roofline,
    sweep,
)
from tests.reports.samples import bursts as bursts_of

ATTACK = """</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>"&lt;' onload="window.pwned=1"""
MEBIBYTE = 2**20
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """A page as its elements in order, with what stands in them; raises where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []  # the innermost tag, and what stands in it
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """Attributes of every such element."""
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]

    def charts(self) -> list[str]:
        return [attributes["data-chart"] for attributes in self.all("figure")]

    def reads(self, *tags: str) -> str:
        """What a reader reads, in these tags or in all but scripts and styles."""
        parts = [data for tag, data in self.text if (tag in tags if tags else tag not in ("script", "style"))]
        return re.sub(r"\s+", " ", " ".join(parts))


@pytest.fixture(scope="module")
def page() -> Page:
    """Of the whole sample: every status, markup in names, two contests with a baseline and one without."""
    return Page(to_page(judged()))


def test_the_verdict_and_its_doubts_come_first(page: Page) -> None:
    read = page.reads()
    places = [read.index(text) for text in ("onnx wins at", "What speaks against", "Filter", "How it was measured")]
    assert places == sorted(places)
    assert next(data for tag, data in page.text if tag == "h2" and data.strip()) == "Verdict"


def test_many_doubts_fold_away() -> None:
    doubts = [f"doubt number {number}" for number in range(DOUBTS_SHOWN + 3)]
    made = Page(to_page(judged([ok(cell(), bursts_of(1.0), doubts=doubts)])))
    assert "3 more" in made.reads("summary")


def test_every_cell_is_a_row_that_unfolds(page: Page) -> None:
    rows = page.all("tr", class_="unfolded")
    assert len(rows) == len(report().records)
    controlled = {button["aria-controls"] for button in page.all("button", class_="unfold")}
    assert controlled == {row["id"] for row in rows}


def test_a_row_unfolds_to_all_that_is_known() -> None:
    partly = Placement(extent=Extent.PARTIAL, engines={"TensorRT": 10}, fallbacks=["gelu"], evidence=["a profile"])
    measured = ok(
        cell("onnx"),
        over_processes(1.0),
        build_s=2.0,
        placement=partly,
        stages=[Stage(name="backward", calls=9, median_ms=0.25, mean_ms=0.3, std_ms=0.1)],
        precision_in_force={"cudnn_allow_tf32": False},
        settings={"threads": 16},
        versions={"onnxruntime": "1.31.1"},
        doubts=["warm-up never became steady"],
    )
    lost = failed(
        cell("inductor"), Status.CRASH, "died in load", died_in="load", signal=11, log_tail="Segmentation fault"
    )
    read = Page(to_page(judged([measured, lost]))).reads()
    for known in (
        "first call, warm start", "process 3, warm", "backward 0.250 ms", "throughput 900 calls/s",
        "peak resident 900 MiB", "outputs right", "elsewhere gelu", "cudnn_allow_tf32 false",
        "threads 16", "onnxruntime 1.31.1",
        "warm-up never became steady", "python runner.py --model conv --backends onnx", "Segmentation fault",
        "died in load",
    ):  # fmt: skip
        assert known in read, known


@pytest.mark.parametrize(
    ("warm_up", "read"),
    [
        ({"steady": True}, "120 calls (0.60 s, steady)"),
        ({"steady": False, "trendless": True}, "120 calls (0.60 s, no trend)"),
        ({"steady": False}, "120 calls (0.60 s, never steady)"),
    ],
)
def test_a_row_tells_how_its_warm_up_ended(warm_up: dict[str, bool], read: str) -> None:
    ended = WarmUp(calls=120, seconds=0.6, **warm_up)
    assert f"warm-up {read}" in Page(to_page(judged([ok(cell(), over_processes(1.0), warm_up=ended)]))).reads()


def test_every_chart_is_there_and_is_read_out_by_what_is_seen() -> None:
    records = [
        ok(cell(), over_processes(2.0), roofline=roofline(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0, roofline=roofline(1.0)),
    ]
    made = Page(to_page(judged(records)))
    assert made.charts() == [
        "latency", "speedup", "build-vs-speedup", "pareto", "costs", "costs-warm", "phases", "samples", "drift",
        "roofline",
    ]  # fmt: skip
    pictures = made.all("svg", role="img")
    assert len(pictures) == 10 and all(len(picture["aria-label"]) > 40 for picture in pictures)
    assert pictures[0]["aria-label"].startswith("onnx is fastest on conv: ")


def test_what_tensor_cores_do_nominally_stands_below_the_floor_of_a_product() -> None:
    page = to_page(judged(product_on_cuda()))
    assert page.index("Floor: 1.50 ms") < page.index("Tensor cores: 1.07 PFLOP/s nominally") < page.index("<caption")
    assert "Tensor cores" not in to_page(judged(product_on_cuda(clock_mhz=None)))


def test_a_failed_cell_is_a_mark_in_the_charts_and_not_a_gap(page: Page) -> None:
    lost = page.reads("text")
    assert {"\u00d7 crash in load (signal 11)", "\u00d7 oom in compile", "\u00d7 unavailable"} <= set(
        re.findall("\u00d7 (?:crash in load \\(signal 11\\)|oom in compile|unavailable)", lost)
    )
    assert "0.556 incorrect" in lost


def test_sizes_that_were_swept_are_lines_over_them() -> None:
    made = Page(to_page(judge(sweep(contests=8, backends=6))))
    assert made.charts()[:2] == ["sweep-latency", "sweep-speedup"]
    tips = made.reads("title")
    assert "openvino at batch 128: oom in first_call" in tips
    assert re.search(r"inductor at batch 8: [\d.]+ \[[\d.]+, [\d.]+\] ms", tips)
    assert "sweep-latency" not in Page(to_page(judged())).charts()


def test_the_slider_names_the_cheapest_at_each_number_of_calls() -> None:
    records = [ok(cell(), over_processes(2.0)), ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0)]
    html = to_page(judged(records))
    cold, warm = (json.loads(text) for text in re.findall(r'class="stops">(.*?)</script>', html, flags=re.S))
    assert cold[0]["said"].startswith("1 call from a cold start: eager costs least, ")
    assert cold[-1]["said"].startswith("10,000,000 calls from a cold start: onnx costs least, ")
    assert [stop["said"] for stop in warm] != [stop["said"] for stop in cold]
    assert [total[0] for total in cold[0]["totals"]] == [1, 0] and [total[0] for total in cold[-1]["totals"]] == [0, 1]
    assert [stop["x"] for stop in cold] == sorted(stop["x"] for stop in cold)
    (slider, _) = Page(html).all("input", type="range")
    assert slider["max"] == str(len(cold) - 1) and cold[int(slider["value"])]["said"].startswith("1,000 calls")
    asked = to_page(judged(records, request={"calls": 100}))
    assert cold[int(Page(asked).all("input", type="range")[0]["value"])]["said"].startswith("100 calls")


def hostile() -> Report:
    """What comes from outside is markup everywhere."""
    name: dict[str, Any] = {"model": ATTACK, "dimensions": {"batch": ATTACK}}
    everywhere: dict[str, Any] = {
        "doubts": [ATTACK],
        "command": ATTACK,
        "settings": {ATTACK: ATTACK},
        "versions": {ATTACK: ATTACK},
        "precision_in_force": {ATTACK: ATTACK},
        "placement": Placement(
            extent=Extent.PARTIAL, engines={ATTACK: 1}, fallbacks=[ATTACK], time_share={ATTACK: 1.0}, evidence=[ATTACK]
        ),
    }
    wrong = ok(cell(), bursts_of(1.0)).accuracy
    assert isinstance(wrong, Accuracy)
    records: list[Record] = [
        ok(cell(**name), over_processes(2.0), **everywhere),
        ok(cell(ATTACK, ATTACK, **name), over_processes(1.0), build_s=1.0, roofline=roofline(1.0),
           accuracy=wrong.model_copy(update={"rule": ATTACK}), **everywhere),
        failed(cell("onnx", **name), Status.CRASH, ATTACK, died_in=ATTACK, log_tail=f"{ATTACK}\n\x1b[31m{ATTACK}"),
    ]  # fmt: skip
    machine = environment().model_copy(
        update={
            "hostname": ATTACK,
            "cpu": ATTACK,
            "versions": {"torch": ATTACK},
            "variables": {ATTACK: ATTACK},
            "gpus": [],
        }
    )
    more = {"run_id": ATTACK, "created_at": ATTACK, "command": ATTACK, "notes": [ATTACK], "environment": machine}
    return report(records, request={ATTACK: ATTACK, "calls": 7}, **more)


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_markup_from_outside_is_text(kind: str) -> None:
    made = hostile()
    html = to_page(judge(made)) if kind == "report" else comparison_to_page(compare(made, made))
    page = Page(html)
    assert "\x1b" not in html
    assert {tag for tag, _ in page.elements}.isdisjoint({"img", "iframe", "object", "link", "form"})
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    scripts = page.all("script")
    assert [each for each in scripts if each.get("type") != "application/json"] == [{}]  # ours, and the data for it
    assert "window.pwned=1</script><img" in page.reads()


def test_the_page_asks_nobody_for_anything_and_runs_no_other_script(page: Page) -> None:
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none';") and "script-src 'sha256-" in policy["content"]
    assert "unsafe-inline" not in policy["content"].partition("script-src")[2]
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "data"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#"), tag


def test_whoever_cannot_see_or_point_can_use_it(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for reference in ("aria-controls", "aria-labelledby", "for"):
            assert attributes.get(reference, ids[0]) in ids
    for table in page.all("table", class_="cells"):
        assert table["id"]
    assert all("scope" in header for header in page.all("th"))
    assert all(region["tabindex"] == "0" for region in page.all("div", class_="scroll"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 2 for before, after in itertools.pairwise(levels))


def test_a_hundred_cells_fit_into_three_megabytes() -> None:
    names = ["eager", "inductor", "inductor/max-autotune", "inductor/reduce-overhead", "onnx", "openvino", "tensorrt",
             "torch-tensorrt", "aotinductor", "torchscript"]  # fmt: skip
    records = []
    for number in range(10):
        for place, name in enumerate(names):
            member = cell(*name.split("/"), model=f"model{number}", dimensions={"batch": 8, "features": 1024})
            made = over_processes(1.5 / (1 + 0.1 * place), rounds=20, calls=60, seed=place)
            records.append(ok(member, made, build_s=1.0 + place, roofline=roofline(1.0)))
    html = to_page(judged(records))
    assert len(records) == 100
    assert len(html.encode()) < 3 * MEBIBYTE


def test_a_report_without_records_or_numbers_is_a_page_too() -> None:
    assert "No cell has ended yet." in Page(to_page(judged([]))).reads()
    assert Page(to_page(judged([failed(cell("onnx"), Status.CRASH, "signal 11")]))).charts() == []
    one = report([ok(cell("eager"), bursts_of(1e-6, 1, 1)), ok(cell("onnx"), bursts_of(1e5, 1, 1))])
    assert "latency" in Page(to_page(judge(one))).charts()
    unfinished = Page(to_page(judged(mlp_on_cuda(), complete=False, planned=40)))
    assert "Incomplete: 7 of 40 cells have ended." in unfinished.reads()


def test_what_no_clock_would_give_is_drawn_too() -> None:
    nothing = ok(cell("null"), constant([0.0] * 4), roofline=roofline(1.0), first_call_s=0.0)
    endless = ok(cell("onnx"), constant([1e9]), accuracy=accuracy(math.inf), build_s=1e-12)
    for records in ([nothing], [endless], [nothing.model_copy(update={"memory": None, "phases": []}), endless]):
        assert Page(to_page(judge(unjudged(records)))).charts()


def unjudged(records: list[Record]) -> Report:
    """Of cells that are not ranked: a ratio of nothing is none."""
    wrong = [record.model_copy(update={"status": Status.INCORRECT}) for record in records]
    return report(wrong)


def test_a_comparison_says_what_changed_and_what_speaks_against_it() -> None:
    base = report([ok(cell(), over_processes(1.7)), ok(cell("onnx"), over_processes(0.9, seed=1)), *conv_on_cpu()[1:2]])
    new = report([
        ok(cell(), over_processes(1.7)),
        ok(cell("onnx"), over_processes(1.08, seed=1)),
        failed(conv_on_cpu()[1].cell, Status.OOM, "out of memory", log_tail="allocating"),
    ], run_id="new", environment=environment().model_copy(update={"cuda": "13.0"}))  # fmt: skip
    made = Page(comparison_to_page(compare(base, new)))
    read = made.reads()
    assert "2 regressions: " in read and "onnx on conv on cpu, fp32 is slower, +20 %" in read
    assert "Other settings or versions that bear on speed : CUDA 12.8 → 13.0." in read
    assert "ok -> oom: out of memory" in read and "allocating" in read
    assert made.charts() == ["change"]
    assert "\u00d7 broken" not in made.reads("text")  # it is of another contest, whose chart has nothing to draw
