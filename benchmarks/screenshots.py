"""Makes the pictures of docs/reading-a-report.md from a run: its page, its report.md, and what a terminal shows.

    python benchmarks/screenshots.py docs/showcase/cpu docs

It needs Chromium and its driver (apt-get install chromium chromium-driver) and the `test` extra.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from PIL import Image
from rich.console import Console
from rich.text import Text
from selenium import webdriver

from bakeoff.judging.judgement import judge
from bakeoff.records import report_file
from bakeoff.reports.run_report import print_report, to_page, to_short_markdown

DESK, PHONE = (1300, 800), (390, 844)
"""The width and height of a window in pixels."""

COLUMNS, LINES = 100, 30
"""The width of the terminal, and how many of its last lines are shown."""

LIKE_GITHUB = """<meta charset="utf-8"><style>
body { font: 16px/1.5 -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2328; margin: 32px 48px }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: .3em; font-weight: 600 }
table { border-collapse: collapse } th, td { border: 1px solid #d1d9e0; padding: 6px 13px }
pre { background: #f6f8fa; padding: 16px; border-radius: 6px; font: 85%/1.45 "DejaVu Sans Mono", monospace }
</style>"""


def main(run: Path, target: Path) -> None:
    judgement = judge(report_file.read(run))
    page, markdown = to_page(judgement, str(run)), to_short_markdown(judgement, run)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, html, size in (
            ("reading-a-report.png", page, DESK),
            ("reading-a-report-phone.png", page, PHONE),
            (
                "reading-a-report-markdown.png",
                LIKE_GITHUB + MarkdownIt("gfm-like", {"linkify": False}).render(markdown),
                DESK,
            ),
        ):
            photograph(browser, html, size, Path(folder) / "page.html", target / name)
    terminal = Console(file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor")
    print_report(judgement, terminal, str(run))
    shown = terminal.file.getvalue().rstrip().splitlines()[-LINES:]  # type: ignore[attr-defined]  # it is a StringIO
    console = Console(file=io.StringIO(), width=COLUMNS, record=True)
    console.print(Text.from_ansi("\n".join(shown)))
    (target / "reading-a-report-terminal.svg").write_text(
        console.export_svg(title=f"bakeoff report {run}"), encoding="utf-8"
    )


def chromium() -> Any:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    return webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    )


def photograph(browser: Any, html: str, size: tuple[int, int], file: Path, target: Path) -> None:
    """Write what a window of this size shows first."""
    file.write_text(html, encoding="utf-8")
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(file.as_uri())
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
    picture.quantize(32).save(target, optimize=True)  # a third of the size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("out", type=Path, help="the folder for the pictures")
    arguments = parser.parse_args()
    main(arguments.run, arguments.out)
