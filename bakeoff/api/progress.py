"""Shows a run while it goes on: in a notebook, in a terminal, or as a few lines in a log."""

import sys
from html import escape
from typing import Any, Self

from rich.console import Console

from bakeoff.judging.constraints import Requirements
from bakeoff.records.text import one_line, visible
from bakeoff.reports.live_table import REFRESH_EVERY_S, LiveTable

MOST_LINES = 40
"""Maximum number of cells that a notebook shows at once."""


def shown(is_wanted: bool, requirements: Requirements, calls: int | None) -> LiveTable:
    # a kernel displays HTML; IPython is not imported to find out
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if is_wanted and hasattr(shell, "kernel"):
        return NotebookTable(requirements)
    console = Console(stderr=True, markup=False, emoji=False, force_jupyter=False)
    return LiveTable(console, quiet=not is_wanted, requirements=requirements, calls=calls)


class NotebookTable(LiveTable):
    """Shows the live table as one output of a cell. It is updated while the run goes on, and is empty afterwards."""

    def __init__(self, requirements: Requirements) -> None:
        super().__init__(Console(quiet=True, force_jupyter=False), quiet=True, requirements=requirements)
        self._handle: Any = None
        self._note = ""

    def __enter__(self) -> Self:
        from IPython import display

        self._handle = display.display(display.HTML(""), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._update("")

    def note(self, text: str) -> None:
        self._note = one_line(text)
        self._draw()

    def _draw(self) -> None:
        now_s = self._clock_s()
        if now_s - self._drawn_s >= REFRESH_EVERY_S:
            self._drawn_s = now_s
            rows = "".join(
                "<tr>" + "".join(f"<td style='text-align:left'>{_plain(text.plain)}</td>" for text in columns) + "</tr>"
                for columns in self._shown(MOST_LINES)
            )
            note = f"<p>{_plain(self._note)}</p>" if self._note else ""
            self._update(f"<div><table>{rows}</table><p>{_plain(self._counts())}</p>{note}</div>")

    def _update(self, html: str) -> None:
        from IPython import display

        self._handle.update(display.HTML(html))


def _plain(text: str) -> str:
    return escape(visible(text))
