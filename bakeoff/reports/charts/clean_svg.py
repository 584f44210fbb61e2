"""Turns a figure of matplotlib into the SVG of a chart, without what a page has no use for."""

import hashlib
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from html import escape
from xml.etree import ElementTree

from matplotlib.figure import Figure

from bakeoff.records.text import one_line
from bakeoff.reports.charts.chart import Mark

_KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity",
         "font-size", "font-weight", "text-anchor"]  # fmt: skip
_DEFAULTS = {"font-size": "7", "stroke-width": "0.6", "text-anchor": "start"}
"""What most elements have stands at the root, except for SVG's own default."""

ROOT_ATTRIBUTES = 'font-size="7" stroke-width="0.6"'
_HREF = "{http://www.w3.org/1999/xlink}href"


def svg_of(figure: Figure, marks: Sequence[Mark] = ()) -> str:
    """Return what stands inside of matplotlib's `<svg>`: each mark in a group with its tip, numbers of one decimal."""
    figure.patch.set_visible(False)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    shared, names = _shared(root, hashlib.sha1(written.getvalue().encode(), usedforsecurity=False).hexdigest()[:6])
    body = [f"<defs>{shared}</defs>"] if shared else []
    for group, nodes in itertools.groupby(_leaves(root, ""), key=lambda each: each[0]):
        inner = "".join(_element(node, names) for _, node in nodes)
        if group == "caption":
            inner = f'<g class="caption">{inner}</g>'
        elif group:
            inner = _grouped(marks[int(group.removeprefix("mark-"))], inner)
        body.append(inner)
    return "".join(body)


def _grouped(mark: Mark, inner: str) -> str:
    if not mark.tip:
        return inner
    number = f' data-k="{mark.look.number}"' if mark.look else ""
    return f'<g class="mark"{number}><title>{escape(one_line(mark.tip), quote=False)}</title>{inner}</g>'


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _shared(root: ElementTree.Element, unique: str) -> tuple[str, dict[str, str]]:
    """Return the shapes and clips that others refer to, once each, and their new names by the old ones."""
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for node in (each for defs in root.iter() if _tag(defs) == "defs" for each in defs if "id" in each.attrib):
        for each in node.iter():
            each.attrib.pop("style", None)  # the colours stand where it is used
        text = _element(node, {}, "".join(_element(part, {}) for part in node))
        names[node.attrib["id"]] = texts.setdefault(text, f"{unique}{len(texts)}")
    return "".join(re.sub(r"^<(\w+)", rf'<\1 id="{name}"', text) for text, name in texts.items()), names


def _leaves(node: ElementTree.Element, group: str) -> Iterator[tuple[str, ElementTree.Element]]:
    """Yield what is drawn, each with the name of the mark or of the part that it belongs to."""
    for child in node:
        name = child.get("id", "")
        if _tag(child) == "g":
            yield from _leaves(child, name if name.startswith(("mark-", "caption")) else group)
        elif _tag(child) in ("path", "use", "text"):
            yield group, child


def _element(node: ElementTree.Element, names: dict[str, str], inside: str = "") -> str:
    """Return one element without what nobody needs. `names` are the new names of what it refers to."""
    tag = _tag(node)
    style = dict(part.strip().split(": ", 1) for part in node.get("style", "").split(";") if part.strip())
    if "font" in style:  # older releases of matplotlib write one property
        style["font-size"] = re.findall(r"[\d.]+px", style["font"])[0]
        style |= {"font-weight": "700"} if re.search(r"\b(bold|700)\b", style["font"]) else {}
    if "stroke" in style:
        style.setdefault("stroke-width", "1")  # matplotlib leaves out SVG's default
    kept = {name: style[name].removesuffix("px") for name in _KEPT if name in style}
    kept = {name: value for name, value in kept.items() if value != _DEFAULTS.get(name)}
    kept |= {name: _rounded(node.attrib[name]) for name in ("x", "y", "width", "height", "d") if name in node.attrib}
    if tag == "path" and kept.get("d", "").count("C") == 8:  # a circle
        tag, kept["r"] = "circle", kept.pop("d").split("C")[0].split(" ")[1]
    if href := node.get(_HREF):
        kept["href"] = f"#{names[href.removeprefix('#')]}"
    if clip := re.search(r"#(\w+)", node.get("clip-path", "")):
        kept["clip-path"] = f"url(#{names[clip[1]]})"
    attributes = "".join(f' {name}="{value}"' for name, value in kept.items())
    text = escape(node.text or "", quote=False) if tag == "text" else inside
    return f"<{tag}{attributes}>{text}</{tag}>" if text else f"<{tag}{attributes}/>"


def _rounded(text: str) -> str:
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{round(float(number[0]), 1) + 0.0:g}", text)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", text).strip()
