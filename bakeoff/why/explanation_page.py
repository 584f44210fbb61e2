"""Shows where the time of a call goes as a page: nested boxes for each cell, which zoom together."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bakeoff.reports import page
from bakeoff.reports.charts import Palette
from bakeoff.why import explanation_text
from bakeoff.why.explanation import Branch, Explanation, ProfiledCell, tree_of


def explanation_to_page(explanation: Explanation, cells: Sequence[ProfiledCell]) -> str:
    profiles, records = [cell.profile for cell in cells], [cell.record for cell in cells]
    root = tree_of(profiles)
    labels = [profile.label for profile in profiles]
    return page.whole_page(
        "explanation.html.jinja",
        Palette(records),
        title=f"{' and '.join(labels)}: {records[0].cell.title}",
        headline=explanation_text.headline(explanation),
        notes=[*explanation_text.warnings(explanation), *explanation_text.notes(explanation, cells)],
        labels=labels,
        root=root,
        longest_ms=max(root.ms),
        boxes=boxes_of(root, max(root.ms)),
        work=[(profile.label, explanation_text.work_lines(profile)) for profile in profiles],
    )


class Box(NamedTuple):
    """A branch of a tree of modules in a figure of nested boxes. Places and widths are shares of the longest call."""

    number: int
    above: int  # number of the box that holds it; the model has its own
    depth: int
    left: float
    width: float
    branch: Branch


def boxes_of(root: Branch, longest_ms: float) -> list[list[Box]]:
    """Return the boxes of a tree in each cell. A branch has the same number in all of them."""
    sides: list[list[Box]] = [[] for _ in root.ms]
    numbers = itertools.count()

    def place(branch: Branch, above: int | None, depth: int, lefts: Sequence[float]) -> None:
        number = next(numbers)
        widths = [ms / longest_ms for ms in branch.ms]
        for side, left, width in zip(sides, lefts, widths, strict=True):
            if width > 0:
                side.append(Box(number, number if above is None else above, depth, left, width, branch))
        inner = list(lefts)
        for child in branch.branches:
            place(child, number, depth + 1, inner)
            inner = [left + ms / longest_ms for left, ms in zip(inner, child.ms, strict=True)]

    place(root, None, 0, [0.0] * len(root.ms))
    return sides
