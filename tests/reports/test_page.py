"""A report and a comparison as pages. The table of cells is in test_columns.py."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from bakeoff.judging.judgement import judge
from bakeoff.records.schema import Status
from bakeoff.reports.run_report import to_page
from tests.reports.samples import (
    accuracy,
    bursts,
    cell,
    constant,
    conv_on_cpu,
    failed,
    judged,
    mlp_on_cuda,
    ok,
    over_processes,
    report,
    roofline,
    sweep,
)

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
    """Return the page of the whole sample: every status, two contests with a baseline and one without."""
    return Page(to_page(judged()))


def test_the_contents_lead_to_every_section_if_there_are_several(page: Page) -> None:
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    targets = [link["href"] for link in page.all("a")]
    assert {target.removeprefix("#") for target in targets} <= ids
    assert targets.count("#contest-2") == 2  # in the table of winners and in the contents
    assert Page(to_page(judged(conv_on_cpu()))).all("nav") == []


def test_every_cell_is_a_row_that_unfolds(page: Page) -> None:
    rows = page.all("tr", class_="unfolded")
    assert len(rows) == len([cell for contest in judged().contests for cell in contest.shown])
    assert {button["aria-controls"] for button in page.all("button", class_="unfold")} == {row["id"] for row in rows}


def test_every_chart_has_a_text_that_is_read_out() -> None:
    records = [
        ok(cell(), over_processes(2.0), roofline=roofline(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0, roofline=roofline(1.0)),
        ok(cell("openvino"), over_processes(1.5, seed=2), build_s=3.0, roofline=roofline(1.5)),
    ]
    made = Page(to_page(judged(records)))
    assert made.charts() == [
        "latency", "speedup", "pareto", "costs", "phases", "samples", "drift",
        "roofline",
    ]  # fmt: skip
    pictures = made.all("svg", role="img")
    assert len(pictures) == 8 and all(len(picture["aria-label"]) > 40 for picture in pictures)


def test_sizes_that_were_swept_are_lines_over_them() -> None:
    made = Page(to_page(judge(sweep(contests=8, backends=5))))
    assert made.charts()[:2] == ["sweep-latency", "sweep-speedup"]
    tips = made.reads("title")
    assert "openvino at batch 128: oom in first_call" in tips
    assert re.search(r"inductor at batch 8: [\d.]+ \[[\d.]+, [\d.]+\] ms", tips)


def test_the_slider_names_the_cheapest_at_each_number_of_calls() -> None:
    records = [ok(cell(), over_processes(2.0)), ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0)]
    html = to_page(judged(records))
    (text,) = re.findall(r'class="stops">(.*?)</script>', html, flags=re.S)
    cold = json.loads(text)
    assert cold[0]["said"].startswith("1 call from a cold start: eager costs least, ")
    assert cold[-1]["said"].startswith("10,000,000 calls from a cold start: onnx costs least, ")
    assert [total[0] for total in cold[0]["totals"]] == [1, 0] and [total[0] for total in cold[-1]["totals"]] == [0, 1]
    assert [stop["x"] for stop in cold] == sorted(stop["x"] for stop in cold)
    (slider,) = Page(html).all("input", type="range")
    assert slider["max"] == str(len(cold) - 1) and cold[int(slider["value"])]["said"].startswith("1,000 calls")
    asked = to_page(judged(records, request={"calls": 100}))
    assert cold[int(Page(asked).all("input", type="range")[0]["value"])]["said"].startswith("100 calls")


def test_the_page_asks_nobody_for_anything_and_runs_no_other_script(page: Page) -> None:
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none';") and "script-src 'sha256-" in policy["content"]
    assert "unsafe-inline" not in policy["content"].partition("script-src")[2]
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "data"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#"), tag


def test_the_page_can_be_used_without_sight_or_pointer(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for reference in ("aria-controls", "aria-labelledby", "for"):
            assert attributes.get(reference, ids[0]) in ids
    assert all("scope" in header for header in page.all("th"))
    assert all(region["tabindex"] == "0" for region in page.all("div", class_="scroll"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 2 for before, after in itertools.pairwise(levels))


@pytest.mark.slow
def test_thirty_cells_fit_into_a_megabyte() -> None:
    records = []
    for number, place in itertools.product(range(3), range(10)):
        member = cell("null", f"mode{place}", model=f"model{number}", dimensions={"batch": 8, "features": 1024})
        made = over_processes(1.5 / (1 + 0.1 * place), rounds=20, calls=60, seed=place)
        records.append(ok(member, made, build_s=1.0 + place, roofline=roofline(1.0)))
    assert len(to_page(judged(records)).encode()) < 2**20


def test_a_report_without_records_or_numbers_is_a_page_too() -> None:
    assert "No cell has ended yet." in Page(to_page(judged([]))).reads()
    assert Page(to_page(judged([failed(cell("onnx"), Status.CRASH, "signal 11")]))).charts() == []
    unfinished = Page(to_page(judged(mlp_on_cuda(), complete=False, planned=40)))
    assert "Incomplete: 7 of 40 cells have ended or were measured in part." in unfinished.reads()


def test_extreme_numbers_are_drawn_too() -> None:
    one_call = [ok(cell("eager"), bursts(1e-6, 1, 1)), ok(cell("onnx"), bursts(1e5, 1, 1))]
    nothing = ok(cell("null"), constant([1e-6] * 4), roofline=roofline(1.0), first_call_s=0.0, status=Status.INCORRECT)
    endless = ok(cell("onnx"), constant([1e9]), accuracy=accuracy(math.inf), build_s=1e-12, status=Status.INCORRECT)
    unknown = nothing.model_copy(update={"memory": None, "phases": []})
    for records in (one_call, [nothing], [endless], [unknown, endless]):
        assert Page(to_page(judged(records))).charts()


def test_the_outputs_of_a_cell_that_was_never_called_are_not_called_right() -> None:
    absent = failed(cell("onnx"), Status.UNAVAILABLE, "it is not installed", asked_by_name=True)
    page = to_page(judge(report([ok(cell("eager"), constant([1.0] * 6)), absent])))
    assert page.count("<dt>outputs</dt>") == page.count("<dt>outputs</dt><dd>right</dd>") == 1
