"""Renders blocks as one self-contained page: a file that opens from disk, needs no network, and prints.

Text from outside is escaped: by jinja2 in the templates, by the module that paints the charts, and as JSON without
markup characters for the script. The page's own policy allows no script but this one, which it knows by its hash.
"""

import base64
import functools
import hashlib
import itertools
import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bakeoff.records.text import one_line, visible
from bakeoff.reports import charts, number_format
from bakeoff.reports.blocks import Block, Section, Surface, inside, shown
from bakeoff.reports.charts import Chart, Palette
from bakeoff.reports.charts.chart import Charts
from bakeoff.reports.tables import shown_in

NOTE_LIMIT = 90
"""Longest note beside a value, in characters. The details of the cell hold it whole."""

USUAL_CALLS = 1_000
"""Number of calls at which the slider of the costs begins, unless the user asked for another number."""

_TEMPLATES = Path(__file__).with_name("templates")


def render(title: str, blocks: Sequence[Block], palette: Palette, summary: Sequence[str] = ()) -> str:
    """Return the blocks as a page. Those before the first section are its answer, and `summary` stands at the top."""
    answer = list(itertools.takewhile(lambda block: not isinstance(block, Section) or block.is_folded, blocks))
    sections = blocks[len(answer) :]
    return whole_page(
        "page.html.jinja", palette, blocks, title=title, summary=summary, answer=answer, sections=sections
    )


def render_cell(blocks: Sequence[Block], palette: Palette) -> str:
    scope = f"b{zlib.crc32(repr(palette.looks).encode()):x}"  # other cells of the notebook have other palettes
    return _render("cell.html.jinja", palette, blocks, Surface.SHORT, scope=scope)


def whole_page(template: str, palette: Palette, blocks: Sequence[Block] | None = None, **values: Any) -> str:
    script = _asset("page.js")
    return _render(
        template,
        palette,
        blocks,
        Surface.PAGE,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **{"summary": ()} | values,
    )


def _render(template: str, palette: Palette, blocks: Sequence[Block] | None, surface: Surface, **values: Any) -> str:
    has_markers = blocks is None or any(isinstance(block, Charts) and block.charts for block in inside(blocks))
    # a page without charts needs no markers: matplotlib, which draws them, takes a second to import
    labels = palette.labels if has_markers else []
    return (
        _environment()
        .get_template(template)
        .render(
            palette=palette,
            blocks=blocks,
            swatch=lambda label: Markup(charts.swatch(palette(label))) if label in labels else "",
            svg=lambda chart: Markup(charts.svg(chart, palette)),
            stops=partial(_stops, palette=palette),
            columns_of=lambda table: shown_in(surface, table.columns, table.rows),
            is_whole_page=surface is Surface.PAGE,
            **values,
        )
    )


def _stop_at(chart: Chart, calls: int | None) -> int:
    return max((place for place, stop in enumerate(chart.stops) if stop.calls <= (calls or USUAL_CALLS)), default=0)


def _stops(chart: Chart, palette: Palette) -> list[dict[str, Any]]:
    return [
        {
            "x": charts.place_on_x(chart, stop.calls),
            "said": stop.text,
            "totals": [[palette(label).number, total] for label, total in stop.totals],
        }
        for stop in chart.stops
    ]


@functools.cache
def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters |= {
        "visible": visible,
        "kind": lambda block: type(block).__name__,
        "shown": lambda blocks: shown(blocks, Surface.PAGE),
        "slug": lambda text: re.sub(r"\W+", "-", text.lower()).strip("-"),
        "stop_at": _stop_at,
        "ms": number_format.milliseconds,
        "percent": number_format.percent,
        "note": lambda text: one_line(text, NOTE_LIMIT),
    }
    return environment
