"""A report, a comparison and a site as pages, and text from outside, which no output takes for markup."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import cli
from bakeoff.judging.compare import compare
from bakeoff.judging.judgement import judge
from bakeoff.records import report_file
from bakeoff.records.report_file import write_json
from bakeoff.records.schema import Placement, Record, Report, Status
from bakeoff.reports import comparison, history, site
from bakeoff.reports.comparison import to_page as comparison_to_page
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.markdown import escape
from bakeoff.reports.run_report import print_report, to_markdown, to_page
from tests.reports.samples import (
    HOSTILE,
    accuracy,
    bursts,
    caveat,
    cell,
    constant,
    conv_on_cpu,
    environment,
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


def test_a_report_without_records_or_numbers_is_a_page_too() -> None:
    assert "No cell has ended yet." in Page(to_page(judged([]))).reads()
    assert Page(to_page(judged([failed(cell("onnx"), Status.CRASH, "signal 11")]))).charts() == []
    unfinished = Page(to_page(judged(mlp_on_cuda(), complete=False, planned=40)))
    assert "Incomplete: 7 of 40 cells have ended or were measured in part." in unfinished.reads()


def test_extreme_numbers_are_drawn_too() -> None:
    one_call = [ok(cell("eager"), bursts(1e-6, 1, 1)), ok(cell("onnx"), bursts(1e5, 1, 1))]
    nothing = ok(cell("null"), constant([1e-6] * 4), roofline=roofline(1.0), first_call_s=0.0, status=Status.INCORRECT)
    endless = ok(cell("onnx"), constant([1e9]), accuracy=accuracy(math.inf), build_s=1e-12, status=Status.INCORRECT)
    unknown = nothing.but(memory=None, phases=[])
    for records in (one_call, [nothing], [endless], [unknown, endless]):
        assert Page(to_page(judged(records))).charts()


def run(run_id: str, day: int, onnx_ms: float) -> Report:
    records = [ok(cell("eager"), over_processes(2.0)), ok(cell("onnx"), over_processes(onnx_ms, seed=1))]
    return report(records, run_id=run_id, created_at=f"2026-11-{day}T12:00:00+00:00")


def test_a_site_has_an_index_the_reports_and_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, day, onnx_ms in (("first", 1, 1.0), ("second", 2, 0.5)):
        report_file.write_json(run(name, 10 + day, onnx_ms), tmp_path / name)
    paths = [str(tmp_path / name) for name in ("first", "second")]
    assert cli.main(["publish", *paths, "--out", str(tmp_path / "site"), "--card"]) == 0
    assert "Site: " in capsys.readouterr().out
    index = (tmp_path / "site" / "index.html").read_text()
    links = set(re.findall(r'<a href="(runs/[^"]+)"', index))
    assert links == {"runs/first.html", "runs/second.html"}
    assert all((tmp_path / "site" / link).read_text().startswith("<!doctype html>") for link in links)
    assert 'data-chart="history"' in index  # both runs measured the same cells
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", index)
    card = (tmp_path / "site" / "model-card.md").read_text()
    assert card.startswith("## Inference speed") and "onnx" in card
    assert re.search(r"0\.(49|50)\d* ms", card)


def test_a_card_measures_again_without_the_files_of_the_run() -> None:
    command = "bakeoff --model conv --json --junit j.xml --summary=s.md --out results/x"
    made = judge(run("first", 11, 1.0).but(command=f"{command}\nbakeoff --model mlp"))
    assert site.to_card([made]).endswith("```sh\nbakeoff --model conv\nbakeoff --model mlp\n```\n")


def test_pages_of_runs_that_are_not_published_any_more_are_removed(tmp_path: Path) -> None:
    first, second = judge(run("first", 11, 1.0)), judge(run("second", 12, 0.5))
    site.write([first, second], tmp_path)
    (tmp_path / "runs" / "own.html").write_text("a page of someone else")
    (tmp_path / "CNAME").write_text("example.org")
    assert site.write([second], tmp_path).removed == [tmp_path / "runs" / "first.html"]
    assert {page.name for page in (tmp_path / "runs").iterdir()} == {"second.html", "own.html"}
    assert (tmp_path / "CNAME").exists()


def test_a_list_of_pages_removes_nothing_outside_of_the_site(tmp_path: Path) -> None:
    kept = tmp_path / "kept.html"
    kept.write_text("not of the site")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / site.PAGES).write_text('["../kept.html", "runs/../../kept.html", 7]')
    assert site.write([judge(run("first", 11, 1.0))], tmp_path / "site").removed == []
    assert kept.exists()


def test_runs_of_one_id_get_files_of_their_own() -> None:
    assert site.unique_names(["a b", "a/b", "../..", "a-b-2"]) == ["a-b", "a-b--2", "run", "a-b-2"]


def test_an_index_is_safe_with_any_text() -> None:
    index = site.to_index([site.PublishedRun(judge(hostile()), "runs/a.html")])
    assert "<script>alert" not in index and "\x1b" not in index


def test_every_link_of_the_contents_leads_to_a_section_and_one_contest_has_none() -> None:
    markdown = to_markdown(judged())
    (contents,) = re.findall(r"^Contents: .*$", markdown, flags=re.M)
    links, anchors = re.findall(r"\]\(#(.*?)\)", contents), re.findall(r'<a id="(.*?)">', markdown)
    assert sorted(links) == sorted(anchors)
    assert "Contents" not in to_markdown(judged(conv_on_cpu()))


def test_a_long_reason_stands_whole_below_the_tables() -> None:
    reason = "word " * 100 + "the end"
    markdown = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.ERROR, reason)]))
    assert reason in markdown[markdown.index("</a>What failed") :]
    assert "What failed" not in to_markdown(judged([failed(cell("onnx"), Status.UNAVAILABLE, "no library")]))
    absent = to_markdown(judged([ok(cell(), bursts(1.0)), failed(cell("onnx"), Status.UNAVAILABLE, reason)]))
    assert absent.count(reason) == 1 and "What failed" not in absent


def hostile(text: str = HOSTILE, run_id: str = HOSTILE, created_at: str = "2026-05-01T10:00:00Z") -> Report:
    """Return a report with this text wherever text can come from outside."""
    where = {"model": text, "dimensions": {"batch": text}}
    everywhere = {
        "doubts": [caveat(text)],
        "command": text,
        "settings": {text: text},
        "versions": {text: text},
        "precision_in_force": {text: text},
        "placement": Placement.model_validate(
            {
                "extent": "partial",
                "engines": {text: 1},
                "fallbacks": [text],
                "time_share": {text: 1},
                "evidence": [text],
            }
        ),
    }
    records: list[Record] = [
        ok(cell(**where), over_processes(2.0), **everywhere),
        ok(cell(text, text, **where), over_processes(1.0), build_s=1.0, roofline=roofline(1.0),
           accuracy=accuracy(rule=text), **everywhere),
        failed(cell("onnx", **where), Status.CRASH, text, died_in=text, log_tail=f"{text}\n\x1b[31m{text}",
               command=text),
    ]  # fmt: skip
    names = {"hostname": text, "cpu": text, "git_commit": text, "versions": {"torch": text}, "variables": {text: text}}
    return report(
        records,
        run_id=run_id,
        created_at=created_at,
        command=text,
        notes=[text],
        request={text: text, "calls": 7},
        environment=environment().but(**names, gpus=[]),
    )


def assert_is_plain(markdown: str) -> None:
    """Hold Markdown against what GitHub would make of it, outside of its code blocks."""
    assert "\x1b" not in markdown
    text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", markdown, flags=re.S | re.M)
    ours = {"<details>", "</details>", "<summary>", "</summary>", "<sub>", "</sub>", "</a>"}
    assert set(re.findall(r"<[^>]*>", re.sub(r'<a id="[\w-]+">', "", text))) <= ours
    assert text.count("<details>") == text.count("</details>")
    assert "\n# heading" not in text and "[e](http" not in text and "$g$" not in text
    for table in re.findall(r"(?:^\| .*\n)+", text, flags=re.M):
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_markdown_shows_it_literally() -> None:
    markdown = to_markdown(judge(hostile()))
    assert_is_plain(markdown)
    assert re.search(r"^````text\n.*</details> ``` \{x\}.*\n````$", markdown, flags=re.S | re.M)


def test_a_comparison_shows_it_literally() -> None:
    assert_is_plain(comparison.to_markdown(compare(hostile(), hostile(run_id="new"))))


def test_a_history_shows_it_literally(tmp_path: Path) -> None:
    write_json(hostile(), tmp_path / "1")
    write_json(hostile(created_at="2026-05-02T10:00:00Z"), tmp_path / "2")
    assert_is_plain(history.to_markdown(history.read(tmp_path)))


def test_pages_hold_no_element_of_it() -> None:
    made = hostile("</script><script>pwned</script><img src=x onerror='pwned'>\"&lt;' onload=\"pwned \x1b[31m")
    for text in (to_page(judge(made)), comparison_to_page(compare(made, made))):
        assert "\x1b" not in text
        page = Page(text)
        assert {tag for tag, _ in page.elements}.isdisjoint({"img", "iframe", "object", "link", "form"})
        assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert [each for each in page.all("script") if each.get("type") != "application/json"] == [{}]  # ours
        assert "pwned</script><img" in page.reads()


def test_the_terminal_prints_it_without_escape_sequences_and_markup() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100)
    with LiveTable(console) as table:
        table.phase(cell(HOSTILE), HOSTILE)
        table.note(HOSTILE)
        table.ended(failed(cell(HOSTILE), Status.CRASH, HOSTILE, died_in=HOSTILE))
    print_report(judge(hostile()), console)
    text = file.getvalue()
    assert "\x1b" not in text and "[bold]y[/bold]" in text


def test_the_csv_keeps_it_in_one_field() -> None:
    _, onnx, crashed = csv.DictReader(io.StringIO(to_csv(judge(hostile()))))
    plain = HOSTILE.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert crashed["reason"] == plain
    assert json.loads(onnx["engines"]) == {" ".join(plain.split()): 1}


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("a\r\nb\tc", "a b c"),
        ("`x` *y* _z_", r"\`x\` \*y\* \_z\_"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("[t](u) ~~s~~", r"\[t\](u) \~\~s\~\~"),
        ("back\\|slash", r"back\\\|slash"),
        ("$x$", "&#36;x&#36;"),
        ("- item", r"\- item"),
        ("# head", r"\# head"),
        ("1. one", r"1\. one"),
        ("1.5x", "1.5x"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x00y\u202e", "red xy"),
    ],
)
def test_what_markdown_would_read_as_markup_is_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped
