"""Text from outside is shown as text by every output: it makes no markup, no escape sequence and no row of a table."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff.judging.compare import compare
from bakeoff.judging.judgement import judge
from bakeoff.records.report_file import write_json
from bakeoff.records.schema import Placement, Record, Report, Status
from bakeoff.reports import comparison, history
from bakeoff.reports.comparison import to_page as comparison_to_page
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.markdown import escape
from bakeoff.reports.run_report import print_report, to_markdown, to_page
from tests.reports.samples import (
    HOSTILE,
    accuracy,
    caveat,
    cell,
    environment,
    failed,
    ok,
    over_processes,
    report,
    roofline,
)
from tests.reports.test_page import Page


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
        environment=environment().model_copy(update={**names, "gpus": []}),
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
